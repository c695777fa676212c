"""The shared queue, `pool.queue`: slots, ring, notes, tasks."""
