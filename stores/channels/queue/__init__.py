"""The shared queue: `pool.queue`."""
