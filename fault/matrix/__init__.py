"""The crash matrix: each operation cut off at each of its steps, and what survivors then see."""
