"""The ring buffer, `pool.ring`: messages, the writer and the reader."""
