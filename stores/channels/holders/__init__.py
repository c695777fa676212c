"""Semaphores and reader-writer locks, over one table of holders."""
