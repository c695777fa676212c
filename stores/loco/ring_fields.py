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
POSITION_MAX: Final = 1 << 62
"""A writer begins at no greater one: at 10 GB a second that takes 14 years."""
EVER: Final = 0xFFFF_FFFF_FFFF_FFFF
"""Positions up to which a reader looks whether it was overtaken."""
