"""Layout of the ring buffer. Plain constants; the tables are in ring_buffer.py."""

from typing import Final

from limpet.shm.endpoint.field_ends import LASTS, Field

END: Final = 0
OLDEST: Final = 8
NUMBER: Final = 16
WRITER: Final = 64
NEWS: Final = 128
ROOM: Final = 192
DATA: Final = 256

HEAD: Final = 16
"""Bytes before a message: its size, and its number."""

CLIENT_MASK: Final = (1 << 48) - 1
"""The id in a participant's word."""

SIZE: Final = 1 << 20
BLOCK: Final = "block"
SKIP: Final = "skip"
NOW: Final = "now"
OLD: Final = "oldest"
SIZE_MAX: Final = 1 << 40
POSITION_MAX: Final = (1 << 64) - 4 * SIZE_MAX
"""No position is greater: it lasts for 58 years at 10 GB a second. So a position plus the size of
a ring or of a message does not wrap."""
EVER: Final = 0xFFFF_FFFF_FFFF_FFFF
"""As `Reader.unsafe`: the writer may overtake the reader at every position."""

FIELDS: Final = (
    Field(
        "ring: position, in bytes",
        POSITION_MAX,
        10_000_000_000,
        LASTS,
        "then nothing more is sent: StoreCorrupt; remove the ring, and make it anew",
    ),
)
