"""Scans of a tree store: the pairs of a range, leaf by leaf, merged from all trees.

An operation reads a leaf and then, by the sibling pointers, leaves that follow. Their reads
overlap. The first operation reads one leaf, the next one two, and so on. An operation begins where
the last leaf ended. If nodes were split or merged meanwhile, the fences show that, and the scan
searches for the leaf by its key. Where an earlier scan has noted the leaves that follow
(routes.py), they are prefetched some way ahead.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any, Final

from limpet.shm.endpoint.fabric import hash64
from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.stores.base import as_bytes
from limpet.stores.inline import InlineStore, Step
from limpet.stores.sherman.layout import SLOTS
from limpet.stores.sherman.routes import Routes
from limpet.stores.sherman.trees import Leaf, Trees
from limpet.stores.status import AGAIN, DONE

LEAVES_MAX: Final = 4
"""A scan reads one leaf, then two, and so on up to this many in one operation."""
AHEAD: Final = 4
"""A scan prefetches this many leaves ahead."""
Pairs = list[tuple[bytes, bytes]]


class Visit(Step):
    """Read the leaf of a tree in whose range a key is, then call `work`; its result."""

    def __init__(
        self, trees: Trees, leaf: Leaf, tree: int, key: bytes, work: Callable[[], Any]
    ) -> None:
        super().__init__()
        self.trees = trees
        self.leaf = leaf
        self.tree = tree
        self.key = key
        self.work = work

    def once(self) -> int:
        if self.trees.find_in(self.leaf, self.tree, self.key) != DONE:
            return AGAIN
        self.result = self.work()
        return DONE


class Range(Step):
    """The pairs of a range of a tree. Each `once` gives the pairs in the leaf with `start` and in
    some that follow, and sets `start` to where the next leaf begins; None: it was the last one.
    """

    def __init__(
        self, trees: Trees, leaf: Leaf, tree: int, start: bytes, high: bytes | None
    ) -> None:
        super().__init__()
        self.trees = trees
        self.leaf = leaf
        self.tree = tree
        self.start: bytes | None = start
        self.high = high
        self.known = 0
        """The leaf with `start`, as far as is known."""
        self.ahead = 0
        """The next leaf to prefetch, as far as is known."""
        self.count = 1
        """The greatest number of leaves in one operation."""

    def once(self) -> int:
        start: Any = self.start
        hashed = hash64(start)
        if not self.ahead:
            self._look_ahead(hashed)
        if self.trees.look(self.leaf, self.tree, hashed, start, self.known) != DONE:
            return AGAIN
        self.result = self._read_on()
        self.count = min(2 * self.count, LEAVES_MAX)
        return DONE

    def _look_ahead(self, hashed: int) -> None:
        """Prefetch the leaf of a key and those after it, as far as is known."""
        routes: Routes = self.trees.routes[self.tree]
        hint = 0 if self.known else routes.hinted(hashed)
        self.ahead = routes.hinted_leaf(hint) if hint else self.known
        for _ in range(AHEAD):
            self._fetch(routes)

    def _fetch(self, routes: Routes) -> None:
        """Prefetch the next leaf, if it is known, and go on to the leaf that follows it."""
        if self.ahead:
            self.trees.foresee(self.ahead)
            self.ahead = routes.sibling_of(self.ahead)

    def _read_on(self) -> Pairs:
        """The pairs in this leaf, from the entry found on, and in the leaves that follow."""
        trees, leaf, page = self.trees, self.leaf, self.leaf.page
        endpoint = trees.endpoint
        routes: Routes = trees.routes[self.tree]
        found: Pairs = []
        at = leaf.at
        count = self.count
        while True:
            following = page.sibling()
            if following:
                routes.follow(at, following)
                at = following
            pointer = trees.pointer_at(following) if count > 1 and following else 0
            if self.ahead:
                self._fetch(routes)
            elif pointer:
                endpoint.prefetch(pointer & ADDRESS_MASK, page.size)
            self.start = append_range(trees, leaf, self.high, found)
            if self.start is not None and pointer:
                endpoint.wait()
                page.read(pointer & ADDRESS_MASK)
                endpoint.wait()
            if self.start is None or not pointer or page.level or not page.begins_at(self.start):
                self.known = following if trees.reads_ahead else 0
                return found
            leaf.index = 0
            count -= 1


def append_range(trees: Trees, leaf: Leaf, high: bytes | None, found: Pairs) -> bytes | None:
    """Append the pairs of a leaf from the entry found on; where the next leaf begins."""
    page = leaf.page
    index = leaf.index
    end = page.count if high is None else page.find(high)
    while True:
        index = page.pairs(index, end, found)
        if index >= end:
            return page.high() if end == page.count else None
        slot = page.image.word(SLOTS + index)
        found.append((page.key(index), trees.value(page, slot)))
        index += 1


class Scans:
    """The pairs of a store's trees in order."""

    def __init__(self, store: InlineStore, trees: Trees, leaf: Leaf) -> None:
        """`leaf`: the leaf that the store's operations read to."""
        self.store = store
        self.trees = trees
        self.leaf = leaf

    def scan(self, low: Any = None, high: Any = None) -> Any:
        """The pairs with low <= key < high, in the order of keys; None: from the first, to the
        last. A key that stays is met once; each node is as it was at one moment. To see all at one
        moment, scan in a transaction.
        """
        first = b"" if low is None else as_bytes("key", low)
        last = None if high is None else as_bytes("key", high)
        trees = [self._leaves_of(tree, first, last) for tree in range(len(self.trees.roots))]
        batches = (found for found, _ in trees[0]) if len(trees) == 1 else _merged(trees)
        return itertools.chain.from_iterable(batches)

    def keys(self) -> Any:
        """Every key, in order; as weakly consistent as `scan`."""
        return (key for key, _ in self.scan())

    def _leaves_of(
        self, tree: int, low: bytes, high: bytes | None
    ) -> Iterator[tuple[Pairs, bytes | None]]:
        """The pairs of each leaf of a tree, and where the next one begins."""
        step = Range(self.trees, self.leaf, tree, low, high)
        while step.start is not None and (high is None or step.start < high):
            found = self.store.run(step)
            yield found, step.start

    def at_leaf(self, tree: int, key: bytes, work: Callable[[], Any]) -> Any:
        """Read the leaf of that tree in whose range the key is, then call `work` in the same
        operation; its result."""
        return self.store.run(Visit(self.trees, self.leaf, tree, key, work))

    def read_leaf(self, tree: int, start: bytes) -> tuple[int, bytes | None]:
        """How many keys the leaf has from `start` on, and where the next leaf begins."""
        leaf, page = self.leaf, self.leaf.page
        return self.at_leaf(tree, start, lambda: (page.count - leaf.index, page.high()))

    def range_here(self, high: bytes | None) -> tuple[Pairs, bytes | None]:
        """The pairs of the leaf that was read, from the key looked for on, and where the next leaf
        begins."""
        found: Pairs = []
        after = append_range(self.trees, self.leaf, high, found)
        return found, after


def _merged(trees: list[Iterator[tuple[Pairs, bytes | None]]]) -> Iterator[Pairs]:
    """The pairs of all trees, in order; one list after another."""
    parts = [_Part(leaves) for leaves in trees]
    while parts := [part for part in parts if part.more()]:
        ends = [part.after for part in parts if part.after is not None]
        end = min(ends) if ends else None
        yield sorted(itertools.chain.from_iterable(part.take(end) for part in parts))


class _Part:
    """The pairs of a tree that were read and not given yet: all below `after`."""

    def __init__(self, leaves: Iterator[tuple[Pairs, bytes | None]]) -> None:
        self.leaves = leaves
        self.pairs: Pairs = []
        self.after: bytes | None = b""

    def more(self) -> bool:
        """Read pairs to give, if there are any more."""
        while not self.pairs and self.after is not None:
            self.pairs, self.after = next(self.leaves, ([], None))
        return bool(self.pairs)

    def take(self, end: bytes | None) -> Pairs:
        """Give the pairs below `end`."""
        cut = len(self.pairs) if end is None else bisect_left(self.pairs, (end,))
        taken, self.pairs = self.pairs[:cut], self.pairs[cut:]
        return taken
