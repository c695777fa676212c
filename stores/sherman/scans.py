"""Scans of a tree store: the pairs of a range, leaf by leaf, merged from all trees.

A leaf is read in an operation of its own, and from its sibling pointer those that follow, whose
reads overlap: first one, then two, and so on. The next operation begins where the last leaf ended;
where nodes were split or merged meanwhile, its fences say so, and it is looked up by its key.
Where an earlier scan has noted what follows (routes.py), leaves are fetched some way ahead.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, Final

from limpet.shm.endpoint.fabric import hash64
from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.stores.base import as_bytes
from limpet.stores.rtx.layout import POINTER
from limpet.stores.sherman.layout import SLOTS
from limpet.stores.sherman.lookup import Lookup
from limpet.stores.sherman.routes import Routes
from limpet.stores.status import DONE

LEAVES_MAX: Final = 4
"""A scan reads one leaf, then two, and so on up to so many in one operation."""
AHEAD: Final = 4
"""A scan fetches so many leaves before it reads them."""
Pairs = list[tuple[bytes, bytes]]


class Scans(Lookup):
    """The trees of a store, and their pairs in order. `ShermanParameters`."""

    def scan(self, low: Any = None, high: Any = None) -> Any:
        """The pairs with low <= key < high, in the order of keys; None: from the first, to the
        last. A key that stays is met once; each node is as it was at one moment. To see all at one
        moment, scan in a transaction.
        """
        first = b"" if low is None else as_bytes("key", low)
        last = None if high is None else as_bytes("key", high)
        trees = [self._leaves_of(tree, first, last) for tree in range(len(self.roots))]
        batches = (found for found, _ in trees[0]) if len(trees) == 1 else _merged(trees)
        return itertools.chain.from_iterable(batches)

    def keys(self) -> Any:
        """Every key, in order; as weakly consistent as `scan`."""
        return (key for key, _ in self.scan())

    def items(self) -> Any:
        return self.scan()

    def read_leaf(self, tree: int, start: bytes) -> tuple[int, bytes | None]:
        """How many keys from `start` on are in the leaf with it, and where the next one begins."""
        page = self.page
        return self.at_leaf(tree, start, lambda: (page.count - self.index, page.high()))

    def _leaves_of(
        self, tree: int, low: bytes, high: bytes | None
    ) -> Iterator[tuple[Pairs, bytes | None]]:
        """The pairs of each leaf of a tree, and where the next one begins."""
        start: bytes | None = low
        leaf, ahead, count = 0, 0, 1
        while start is not None and (high is None or start < high):
            found, start, leaf, ahead = self.read_range(tree, start, high, leaf, ahead, count)
            count = min(2 * count, LEAVES_MAX)
            yield found, start

    def read_range(
        self, tree: int, start: bytes, high: bytes | None, leaf: int, ahead: int, count: int
    ) -> tuple[Pairs, bytes | None, int, int]:
        """The pairs from `start` on in the leaf with it and in those that follow, at most `count`
        in all; where the next leaf begins, its object, and that of the next one to be fetched, as
        far as is known. `leaf`, `ahead`: what the call before this one gave, or 0.
        """
        attempt = 0
        hashed = hash64(start)
        while True:
            self.client.enter()
            try:
                self.require_there()
                if not ahead:
                    ahead = self._look_ahead(tree, hashed, leaf)
                if self._look(tree, hashed, start, leaf) == DONE:
                    return self._read_on(high, count, ahead)
            finally:
                self.client.leave()
            attempt += 1
            self.stay(attempt, False)

    def _look_ahead(self, tree: int, hashed: int, leaf: int) -> int:
        """Fetch the leaf of a key and those after it, as far as is known; what is next, or 0."""
        routes: Routes = self.routes[tree]
        hint = 0 if leaf else routes.hinted(hashed)
        ahead = routes.hinted_leaf(hint) if hint else leaf
        for _ in range(AHEAD):
            ahead = self._fetch(routes, ahead)
        return ahead

    def _fetch(self, routes: Routes, ahead: int) -> int:
        """Fetch a leaf, if it is not 0; the one that follows it, as far as is known, or 0."""
        if not ahead:
            return 0
        self.endpoint.foresee(ahead + POINTER, 0, self.page.size)
        return routes.sibling_of(ahead)

    def _read_on(
        self, high: bytes | None, count: int, ahead: int
    ) -> tuple[Pairs, bytes | None, int, int]:
        """As `read_range`, from the leaf on that was read, and its entry `index`."""
        page = self.page
        routes: Routes = self.routes[self.tree]
        found: Pairs = []
        at = self.at
        while True:
            leaf = page.sibling()
            if leaf:
                routes.follow(at, leaf)
                at = leaf
            pointer = self._pointer_at(leaf) if count > 1 and leaf else 0
            if ahead:
                ahead = self._fetch(routes, ahead)
            elif pointer:
                self.endpoint.prefetch(pointer & ADDRESS_MASK, page.size)
            after = self._append_range(high, found)
            if after is None or not pointer:
                return found, after, leaf, ahead
            self.endpoint.wait()
            page.read(pointer & ADDRESS_MASK)
            self.endpoint.wait()
            if page.level or not page.begins_at(after):
                return found, after, leaf, ahead
            self.index = 0
            count -= 1

    def range_here(self, high: bytes | None) -> tuple[Pairs, bytes | None]:
        """The pairs from the key looked for on in the leaf that was read, and where the next one
        begins."""
        found: Pairs = []
        after = self._append_range(high, found)
        return found, after

    def _append_range(self, high: bytes | None, found: Pairs) -> bytes | None:
        """Append the pairs from entry `index` on in the leaf that was read; where the next leaf
        begins."""
        page = self.page
        index = self.index
        end = page.count if high is None else page.find(high)
        while True:
            index = page.pairs(index, end, found)
            if index >= end:
                return page.high() if end == page.count else None
            slot = page.image.word(SLOTS + index)
            found.append((page.key(index), self._value(slot)))
            index += 1


def _merged(trees: list[Iterator[tuple[Pairs, bytes | None]]]) -> Iterator[Pairs]:
    """The pairs of all trees, in order; one list after another."""
    parts = [_Part(leaves) for leaves in trees]
    while parts := [part for part in parts if part.more()]:
        ends = [part.after for part in parts if part.after is not None]
        end = min(ends) if ends else None
        yield sorted(itertools.chain.from_iterable(part.take(end) for part in parts))


class _Part:
    """What was read of a tree, and not given yet: all its pairs below `after`."""

    def __init__(self, leaves: Iterator[tuple[Pairs, bytes | None]]) -> None:
        self.leaves = leaves
        self.pairs: Pairs = []
        self.after: bytes | None = b""

    def more(self) -> bool:
        """Have pairs to give, if there are any more."""
        while not self.pairs and self.after is not None:
            self.pairs, self.after = next(self.leaves, ([], None))
        return bool(self.pairs)

    def take(self, end: bytes | None) -> Pairs:
        """Give the pairs below `end`."""
        cut = len(self.pairs) if end is None else bisect_left(self.pairs, (end,))
        taken, self.pairs = self.pairs[:cut], self.pairs[cut:]
        return taken
