"""The words of RCuckoo's tables. Plain, as compiled modules need them.

A table is one region of a memory node:

    0         journals  one for each client slot of the pool (locks.py)
    then      locks     a word each (locks.py), from a multiple of 64 on
    then      rows      (rows.py), each from 16 bytes after a multiple of 64 on

Counters of less than a word: the sequence of a journal, 56 bits, which wraps after 200 years of ten
million states a second. The sequence of a row is a word; clients compare it for equality, or for up
to four more, modulo 2^64.
"""

from typing import Final

SLOTS: Final = 8
"""Entries of a row."""
LINE_WORDS: Final = 8
HEAD_WORDS: Final = 6
HEAD_AT: Final = LINE_WORDS - HEAD_WORDS
"""Words of a cache line, of a row's header, and of the line before the header."""
SEQUENCE: Final = 0
SUM: Final = 1
TAGS: Final = 2
KEY_SIZES: Final = 3
VALUE_SIZES: Final = 4
"""The words of a row's header (rows.py)."""
EXTENT: Final = 0xFFFF
"""In place of the size of a value: it is in an extent."""

KEY_SIZE_SHIFT: Final = 8
VALUE_SIZE_SHIFT: Final = 16
"""The entry of a redo image, in a word: bits 0-7 tag, 8-15 size of the key, 16-31 as in
VALUE_SIZES."""

OWNER: Final = 0
LEASE: Final = 8
HELD_MAX: Final = 9
STATE: Final = 88
PATH_MAX: Final = 7
REDO: Final = 208
"""Offsets in a journal, in bytes; the most locks of an operation, and the most rows of a path. The
locks end where the state begins, and the steps of a path where the redo image begins."""

REDO_AT: Final = 2 * PATH_MAX
ENTRY_AT: Final = REDO_AT + 1
"""Words of an `Entry` (rows.py)."""

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
EMPTY: Final = 0xFFFF_FFFF
"""In place of an entry's other row: there is no entry."""

assert HEAD_WORDS == VALUE_SIZES + SLOTS // 4 <= LINE_WORDS
assert HELD_MAX == PATH_MAX + 2
assert STATE == LEASE + 8 + 8 * HELD_MAX
assert REDO == STATE + 8 + 16 * PATH_MAX
