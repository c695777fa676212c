"""The words of SWARM's registers. Plain arithmetic; constants are in layout.py.

Metadata word (SWARM section 4: timestamp and pointer, 8 bytes)
    bits 14-63  i      time of the guess, in us since 2025 (unique_ids.py); all ones: a tombstone
    bits 8-13   tid    the writer whose value it is
    bit 7       VERIFIED, or else GUESSED
    bits 1-6    row    whose pointers lead to the value's buffer: the writer's row, or that of a
                       client that wrote a copy back (trap S9)
    bit 0       side   which of the row's two pointers

The tuples of the paper are ordered by (i, tid, VERIFIED), which are the upper bits, the *rank*; (i,
tid) is the *stamp* of a write. The place of the value does not count (trap S5).

Lock word: bits 8-63 stamp, bit 1 WRITE, bit 0 READ; a replaced node may get a word with both.

Fields that end: i, in 2060, 35 years and 8 months after 2025. From then on a writer gets
ClientError before it writes anything; older values can still be read. Timestamps are compared as
numbers, so they cannot wrap. The numbers of registers and tombstones have words of their own
(stores/core/records.py).
"""

from __future__ import annotations

from limpet.stores.swarm.layout import ROW_SHIFT, STAMP_SHIFT, TIME_MAX, TIME_SHIFT, WRITER_MASK


def rank_of(word: int) -> int:
    """The rank, by which tuples are ordered."""
    return word >> STAMP_SHIFT - 1


def stamp_of(word: int) -> int:
    """The stamp: time and writer."""
    return word >> STAMP_SHIFT


def time_of(word: int) -> int:
    return word >> TIME_SHIFT


def writer_of(word: int) -> int:
    return word >> STAMP_SHIFT & WRITER_MASK


def row_of(word: int) -> int:
    return word >> ROW_SHIFT & WRITER_MASK


def side_of(word: int) -> int:
    return word & 1


def is_tombstone(word: int) -> bool:
    return word >> TIME_SHIFT == TIME_MAX


def tuple_word(time: int, writer: int, flags: int, row: int, side: int) -> int:
    return time << TIME_SHIFT | writer << STAMP_SHIFT | flags | row << ROW_SHIFT | side


def placed(word: int, row: int, side: int) -> int:
    """The tuple `word`, whose value is on this side of this row."""
    return word >> STAMP_SHIFT - 1 << STAMP_SHIFT - 1 | row << ROW_SHIFT | side
