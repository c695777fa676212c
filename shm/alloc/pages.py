"""Runs of pages in adjacent blocks, whichever client owns them: arithmetic on bitmaps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from limpet.shm.endpoint.layout import PAGES

if TYPE_CHECKING:
    from limpet.shm.arrays import Words

ALL_PAGES: Final = (1 << PAGES) - 1


def run_with_more(clear: Words, known: Words, pages: int) -> range:
    """The blocks of the last run of so many adjacent clear pages that is not made of `known` ones
    alone; of both, a word a block."""
    starts = _starts(clear, pages) & ~_starts(known, pages)
    page = starts.bit_length() - 1
    return range(page // PAGES, (page + pages - 1) // PAGES + 1) if starts else range(0)


def _starts(clear: Words, pages: int) -> int:
    """Where runs of so many adjacent clear pages begin: a bit a page."""
    found = int.from_bytes(clear.tobytes(), "little")
    length = 1
    while length < pages and found:
        step = min(length, pages - length)
        found &= found >> step
        length += step
    return found
