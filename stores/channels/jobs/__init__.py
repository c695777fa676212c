"""Queues whose jobs are delivered until they are acknowledged: `pool.queue(name, acks=True)`."""
