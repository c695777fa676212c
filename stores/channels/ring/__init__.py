"""The ring buffer: `pool.ring`."""
