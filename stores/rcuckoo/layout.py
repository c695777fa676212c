"""The words of RCuckoo's tables. Plain, as compiled modules need them.

A table is one region of a memory node:

    0         lease     0, or the id of the client that repairs the table (repair.py)
    64        journals  one for each client slot of the pool (locks.py)
    then      locks     a bit each (locks.py), from a multiple of 64 on
    then      rows      (rows.py), from a multiple of 64 on

Counters of less than a word: the sequence of a journal, 51 bits, which wraps after 7 years of ten
million states a second (locks.py says why that is safe). The version of a row is a word; clients
compare it for equality, or for one or two more, modulo 2^64.
"""

from typing import Final

JOURNALS: Final = 64
SLOTS: Final = 8
"""Entries of a row."""
TRAILER_WORDS: Final = 2
INLINE: Final = 1
LENGTH_SHIFT: Final = 8
LENGTH_MASK: Final = 0xFF_FFFF
FINGERPRINT_SHIFT: Final = 56

OWNER: Final = 0
STATE: Final = 8
GROUPS: Final = 16
GROUPS_MAX: Final = 8
PATH: Final = 144
PATH_MAX: Final = 7
REDO: Final = 256
"""Offsets in a journal, in bytes; the most groups of locks and rows of a path in it."""

HELD_MASK: Final = 15
UNSURE: Final = 16
COUNT_SHIFT: Final = 5
COUNT_MASK: Final = 15
PATH_SHIFT: Final = 9
PATH_MASK: Final = 15
SEQUENCE_SHIFT: Final = 13
SEQUENCE_MASK: Final = (1 << 64 - SEQUENCE_SHIFT) - 1
ANY: Final = 0xFFFF_FFFF_FFFF_FFFF
"""All bits of a word of the lock table."""

LOST: Final = 8
"""A status: there is no path among the locked rows."""
FOUND: Final = 0
NO_PATH: Final = 1
LACKING: Final = 2
"""Results of a search: there is a path; there is none; none among the cached rows."""
LOOKS_MAX: Final = 1000
"""A row that is not whole, or a lock without an owner, in so many looks is damaged."""
EMPTY: Final = 0xFFFF_FFFF
"""In place of an entry's other row: there is no entry."""

assert PATH == GROUPS + 16 * GROUPS_MAX
assert REDO == PATH + 16 * PATH_MAX
