"""Processes that are killed, stopped or interrupted: by signals, or at a point of their own."""
