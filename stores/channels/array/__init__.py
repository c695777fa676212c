"""`pool.array`: numbers, and other elements of a fixed size, in shared memory, in any shape."""
