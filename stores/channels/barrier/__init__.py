"""The barrier, `pool.barrier`: its layout and its registers."""
