"""Blocks, size classes and the heap of a client; memory that others can use again is reclaimed."""
