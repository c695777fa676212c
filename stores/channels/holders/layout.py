"""Layout of the table of holders. Plain constants; the tables are in holders.py."""

from typing import Final

from limpet.shm.endpoint.field_ends import A_SECOND_MAX, WRAPS, Field

SHARED: Final = 0
EXCLUSIVE: Final = 1
"""The lines, and ways to take."""

FIRST_LINE: Final = 64
SECOND_LINE: Final = 128
ROWS: Final = 192

RECORD_MASK: Final = (1 << 13) - 1
ROW_SHIFT: Final = 13
ROW_MASK: Final = (1 << 12) - 1
NUMBER_SHIFT: Final = 25
NUMBER_MASK: Final = (1 << 39) - 1
NEVER: Final = (1 << 64) - 1
"""No word of a table that was read: its record and its row do not belong together."""

TAKEN: Final = (1 << 32) - 1
LINED_SHIFT: Final = 32
LINED_BITS: Final = 13
LINED_MASK: Final = (1 << 13) - 1
LINED_ONE: Final = 1 << LINED_SHIFT
WRITER: Final = 1 << 58
DIED_SHIFT: Final = 59
DIED_MAX: Final = 31
DIED_ONE: Final = 1 << DIED_SHIFT
DIED: Final = DIED_MAX << DIED_SHIFT

COUNT: Final = (1 << 24) - 1
WRITES: Final = 1 << 24
LINED: Final = 1 << 25
VALUE: Final = (1 << 32) - 1
VERSION_SHIFT: Final = 32

RECORDS: Final = 8
RECORD_SIZE: Final = 16

KEPT_S: Final = 0.02
"""A lock that is free is kept for this time for clients that come first."""
LIMIT_MAX: Final = COUNT
FREE_MAX: Final = (1 << 31) - 1
"""As many permits may be free: as SEM_VALUE_MAX of POSIX."""

FIELDS: Final = (
    Field(
        "holders: number of a change",
        NUMBER_MASK + 1,
        A_SECOND_MAX,
        WRAPS,
        "only compared for equality; deceived is a client that was stopped in a change for 2^39",
    ),
    Field(
        "holders: number of the change of a row",
        1 << VERSION_SHIFT,
        A_SECOND_MAX,
        WRAPS,
        "compared together with the value; deceived is a client that was stopped for 2^32 changes",
    ),
)

assert NUMBER_MASK << NUMBER_SHIFT | ROW_MASK << ROW_SHIFT | RECORD_MASK == NEVER
assert WRITER == 1 << LINED_SHIFT + 2 * LINED_BITS
assert DIED | WRITER | (WRITER - 1) == NEVER
