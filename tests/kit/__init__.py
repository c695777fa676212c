"""Shared parts of tests: the division of the suite, scenes, clients that stop on demand."""
