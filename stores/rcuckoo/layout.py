"""The words of RCuckoo's tables. Plain, as compiled modules need them.

A table is one region of a memory node:

    0         journals  one for each client slot of the pool (locks.py)
    then      locks     a word each (locks.py), from a multiple of 64 on
    then      rows      (rows.py), from a multiple of 64 on

Counters of less than a word: the sequence of a journal, 56 bits, which wraps after 200 years of ten
million states a second. The version of a row is a word; clients compare it for equality, or for one
or two more, modulo 2^64.
"""

from typing import Final

SLOTS: Final = 8
"""Entries of a row."""
TRAILER_WORDS: Final = 2
INLINE: Final = 1
LENGTH_SHIFT: Final = 8
LENGTH_MASK: Final = 0xFF_FFFF
FINGERPRINT_SHIFT: Final = 56

OWNER: Final = 0
LEASE: Final = 8
HELD_MAX: Final = 9
STATE: Final = 88
PATH_MAX: Final = 7
REDO: Final = 208
"""Offsets in a journal, in bytes; the most locks of an operation, and the most rows of a path. The
locks end where the state begins, and the steps of a path where the redo image begins."""

COUNT_MASK: Final = 15
PATH_SHIFT: Final = 4
PATH_MASK: Final = 15
SEQUENCE_SHIFT: Final = 8
SEQUENCE_MASK: Final = (1 << 64 - SEQUENCE_SHIFT) - 1

LOST: Final = 8
"""A status: there is no path among the locked rows."""
FOUND: Final = 0
NO_PATH: Final = 1
LACKING: Final = 2
"""Results of a search: there is a path; there is none; none among the cached rows."""
LOOKS_MAX: Final = 1000
"""A row that is not whole, or a lock whose holder does not have it, in so many looks is damaged."""
AT_PATH: Final = 2
"""The place in `Rows` of the first row under the locks; those of a key's rows come before."""
EMPTY: Final = 0xFFFF_FFFF
"""In place of an entry's other row: there is no entry."""

assert HELD_MAX == PATH_MAX + 2
assert STATE == LEASE + 8 + 8 * HELD_MAX
assert REDO == STATE + 8 + 16 * PATH_MAX
