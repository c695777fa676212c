"""The barrier: `pool.barrier`."""
