"""pDPM-Direct: a key-value store whose clients lock each key, and write values in place."""
