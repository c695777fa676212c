"""Locks: `pool.lock`, over the ticket lock of the paper."""
