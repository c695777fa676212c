"""Layout of the ring buffer. Plain constants; the tables are in ring_buffer.py."""

from typing import Final

END: Final = 0
OLDEST: Final = 8
NUMBER: Final = 16
WRITER: Final = 64
NEWS: Final = 128
ROOM: Final = 192
DATA: Final = 256

HEAD: Final = 16
"""Bytes before a message: its size, and its number."""

SIZE: Final = 1 << 20
BLOCK: Final = "block"
SKIP: Final = "skip"
NOW: Final = "now"
OLD: Final = "oldest"
EVER: Final = 0xFFFF_FFFF_FFFF_FFFF
"""Positions up to which a reader looks whether it was overtaken."""
