"""Known-bad variants of a client's notes on its blocks (alloc/slabs.py): a cut between two of their
lines leaves a page in the notes twice, or a block that seems to be empty."""

from __future__ import annotations

from typing import Any


def fit_by_swapping(self: Any, counts: list[int], pending: bool = False) -> bool:
    """`Runs.fit`, for which pending pages are among the ready ones meanwhile."""
    cursor, before = self.cursor, [slab.aside for slab in self.slabs]
    if pending:
        for slab in self.slabs:
            slab.ready[0] ^= slab.pending[0]
    try:
        return not self._refused(counts, 0, 1)
    finally:
        if pending:
            for slab in self.slabs:
                slab.ready[0] ^= slab.pending[0]
        self._restore(cursor, before)


def take_pages_before_the_count(self: Any, mask: int, count: int) -> None:
    """`Slab.take_pages`, with the count last."""
    self.ready[0] &= ~mask
    self.ready_count -= count
