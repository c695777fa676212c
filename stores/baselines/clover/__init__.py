"""Clover: a key-value store whose index is in a metadata process, its data in passive memory."""
