"""Fields of words in shared memory that count something in fewer than 64 bits, and their ends.

Each module that defines such words lists its own as `FIELDS`. Kinds, states, classes, sizes, places
and hashes count nothing, and are not listed; nor are whole words that are only counted up. A field
    lasts    for 30 years at the rate that is stated, which is what bounds it or 10 million a second
    wraps    and all is as before: readers compare differences, or ask only whether it has changed
    stays    at its end, which is as good as any count beyond
For what wraps, and tells one time from another, `end` says which client would be deceived: always
one that was stopped in the midst of a step for just one turn of the field, or a multiple of it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

A_SECOND_MAX: Final = 10_000_000
"""So many events a second a pool is made for."""
LASTS: Final = "lasts"
WRAPS: Final = "wraps"
STAYS: Final = "stays"


class Field(NamedTuple):
    """A field: its name, how many events it has room for, how many a second there are at most, what
    becomes of it at the end (LASTS, WRAPS or STAYS), and why that does no harm."""

    name: str
    room: int
    a_second: float
    end: str
    why: str
