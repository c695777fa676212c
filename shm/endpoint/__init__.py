"""Verbs on memory: compiled, portable, simulated; and the layout of every word that they touch."""
