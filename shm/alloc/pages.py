"""Runs of pages in adjacent blocks, whichever client owns them: arithmetic on bitmaps.

The pages of a node are numbered through: page p of block b is 64 * b + p. A gap is all of some
adjacent clear pages. A run in it can cost it a place: a gap of two lengths has no room for a second
run when the first is in its middle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from limpet.shm.endpoint.layout import PAGES, RUN_MAX

if TYPE_CHECKING:
    from collections.abc import Collection

    from limpet.shm.arrays import Flags, Words

ALL_PAGES: Final = (1 << PAGES) - 1
LOWEST: Final = 1
HIGHEST: Final = 1 << PAGES - 1
"""The pages at the borders of a block."""
_BLOCKS_MAX: Final = RUN_MAX // PAGES + 2
"""A run lies in fewer blocks."""


def best_run(clear: Words, known: Words, pages: int, free: Flags, bare: Flags, most: int) -> range:
    """The blocks of a run of so many adjacent clear pages that is not made of `known` ones alone
    (of both, a word a block), with at most `most` free blocks.

    The client will take the last run in its blocks (`Runs`), so the run ends where a gap does, or
    at the end of a block before one that is not known, or is free, which it need not claim. Of all
    these one that costs its gap no place; then one with the fewest free blocks; of these, one with
    pages of other blocks, too; then with the fewest bare blocks, whose pages are still to be
    allocated; then the last, since blocks are claimed from the end of the node on.
    """
    count = len(clear)
    gaps, ours = _number(clear), _number(known)
    found = _starts(gaps, pages) & ~_starts(ours, pages)
    borders = int.from_bytes(LOWEST.to_bytes(8, "little") * count, "little")
    stops = ~gaps | borders & ~_number(np.where(free, np.uint64(0), known))
    starts = _numbers(found & stops >> pages, count)
    firsts, lasts = starts // PAGES, (starts + pages - 1) // PAGES
    frees = _sum(free, firsts, lasts)
    fits = frees <= most
    if not fits.any():
        return range(0)
    starts, firsts, lasts, frees = starts[fits], firsts[fits], lasts[fits], frees[fits]
    lost = _lost(gaps, count, starts, pages)
    alone = frees == lasts - firsts + 1
    costs = ((lost * _BLOCKS_MAX + frees) * 2 + alone) * _BLOCKS_MAX
    costs += _sum(free & bare, firsts, lasts)
    best = np.flatnonzero(costs == costs.min())[-1]
    return range(int(firsts[best]), int(lasts[best]) + 1)


def around(clear: Words, blocks: Collection[int]) -> set[int]:
    """The blocks in which the gaps end that go through these blocks, all of which are clear; a word
    a block."""
    found = set()
    for block in blocks:
        for step, border in ((-1, HIGHEST), (1, LOWEST)):
            at = block + step
            while 0 <= at < len(clear) and int(clear[at]) == ALL_PAGES and at not in blocks:
                at += step
            if 0 <= at < len(clear) and int(clear[at]) & border and at not in blocks:
                found.add(at)
    return found


def _lost(gaps: int, count: int, starts: Words, pages: int) -> Words:
    """How many places, 0 or 1, runs from these pages on cost their gaps."""
    ends = _numbers(gaps & ~(gaps >> 1), count)
    begins = _numbers(gaps & ~(gaps << 1), count)
    gap = np.searchsorted(ends, starts)
    above, below = ends[gap] + 1 - starts - pages, starts - begins[gap]
    found: Words = (above + below) // pages - above // pages - below // pages
    return found


def _sum(flags: Flags, firsts: Words, lasts: Words) -> Words:
    """How many flags are set in each of these ranges."""
    ahead = np.concatenate(([0], np.cumsum(flags)))
    found: Words = ahead[lasts + 1] - ahead[firsts]
    return found


def _starts(clear: int, pages: int) -> int:
    """Where runs of so many adjacent clear pages begin: a bit a page."""
    length = 1
    while length < pages and clear:
        step = min(length, pages - length)
        clear &= clear >> step
        length += step
    return clear


def _number(bits: Words) -> int:
    """A bit a page."""
    return int.from_bytes(bits.tobytes(), "little")


def _numbers(bits: int, count: int) -> Words:
    """The pages whose bits are set, in their order; of so many blocks."""
    words = np.frombuffer(bits.to_bytes(8 * count, "little"), dtype="<u8")
    blocks = np.flatnonzero(words)
    left = words[blocks]
    found = []
    while len(left):
        lowest = left & (~left + np.uint64(1))
        found.append(blocks * PAGES + np.frexp(lowest.astype(np.float64))[1] - 1)
        left = left ^ lowest
        blocks, left = blocks[left != 0], left[left != 0]
    numbers: Words = np.sort(np.concatenate(found)) if found else np.zeros(0, dtype=np.int64)
    return numbers
