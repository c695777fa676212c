"""Blocks, size classes and the heap of a client; and reclaiming memory for other clients."""
