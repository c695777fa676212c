"""Counters in words of shared memory that have fewer than 64 bits, and their ends.

Each module that defines such words lists its own as `FIELDS`. Kinds, states, classes, sizes, places
and hashes count nothing, and are not listed; nor are whole words that only count up. A field
    lasts    for 30 years at the stated rate, which is its bound or 10 million a second
    wraps    without harm: readers compare differences, or ask only whether it has changed
    stays    at its end, which serves as well as any count beyond it
For a field that wraps and distinguishes points in time, `end` names the client that would be
deceived: always a client that was stopped in the middle of a step for exactly one turn of the
field, or a multiple of it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

A_SECOND_MAX: Final = 10_000_000
"""Events a second for which a pool is made."""
LASTS: Final = "lasts"
WRAPS: Final = "wraps"
STAYS: Final = "stays"


class Field(NamedTuple):
    """A field: its name, the number of events for which it has room, the most events a second,
    its end (LASTS, WRAPS or STAYS), and the reason why this does no harm."""

    name: str
    room: int
    a_second: float
    end: str
    why: str
