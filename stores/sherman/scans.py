"""Scans of a tree store: the pairs of a range, leaf by leaf, merged from all trees.

An operation reads a leaf and, at the same time, leaves that follow as far as the client knows them
(routes.py). If the scan has a limit, each operation reads as many as are likely to be needed: the
client remembers how many entries the leaves had, and where in its leaf the first key was. If it has
an end, it reads those that begin before it. Otherwise the first operation reads one leaf, the next
one two, and so on. An operation begins where the last leaf ended. A leaf counts only if it begins
where the one before it ends: if nodes were split or merged meanwhile, the fences show that, and the
scan goes on by the sibling, or searches for the leaf by its key. In trees that are changed in place
an operation reads one leaf.

Where an earlier scan has noted the leaves that follow, they are prefetched some way ahead. A scan
in descending order reads one leaf in an operation, and searches for the one before it.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Any, Final

from limpet.shm.endpoint.fabric import hash64
from limpet.stores.core.base import as_bytes
from limpet.stores.core.inline import InlineStore, Step
from limpet.stores.core.status import AGAIN, DONE
from limpet.stores.sherman.layout import LEAVES_MAX, SLOTS
from limpet.stores.sherman.routes import Routes
from limpet.stores.sherman.trees import Leaf, Trees

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


class ScanPart(Step):
    """The pairs of a range of one tree, some leaves at a time. Each `once` gives the next ones, in
    the order of the scan, and says by `ended` whether they were the last ones."""

    def __init__(self, trees: Trees, leaf: Leaf, tree: int) -> None:
        super().__init__()
        self.trees = trees
        self.leaf = leaf
        self.tree = tree
        self.ended = False


class Range(ScanPart):
    """In ascending order. `start`: where the next leaf begins; None: there is none. `wanted`: about
    so many pairs are to be read; 0: that is not known."""

    def __init__(
        self, trees: Trees, leaf: Leaf, tree: int, start: bytes, high: bytes | None, wanted: int
    ) -> None:
        super().__init__(trees, leaf, tree)
        self.wanted = wanted
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
        trees, leaf = self.trees, self.leaf
        if not self.ahead:
            self._look_ahead(hashed)
        most = self.count if self.high is None and not self.wanted else LEAVES_MAX
        count = trees.read_run(self.tree, self.known, hashed, start, self.high, self.wanted, most)
        if not count or not self._is_first(start):
            if trees.find_leaf(leaf, self.tree, hashed, start, self.known) != DONE:
                return AGAIN
            count = 1
        found = self._take(count)
        self.result = found
        self.count = min(2 * self.count, LEAVES_MAX)
        if self.wanted:
            self.wanted = max(self.wanted - len(found), 1)
        self.ended = self.start is None or (self.high is not None and self.start >= self.high)
        return DONE

    def _is_first(self, start: bytes) -> bool:
        """Whether the leaf that was read first has `start` in its range; find it there then."""
        leaf, page = self.leaf, self.leaf.page
        if page.level or not page.has(start):
            return False
        leaf.index = page.find(start)
        routes: Routes = self.trees.routes[self.tree]
        if routes.find(start) != leaf.at:
            routes.note_leaf(page.low(), leaf.at)
        return True

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
            self.trees.prefetch_node(self.ahead)
            self.ahead = routes.sibling_of(self.ahead)

    def _take(self, count: int) -> Pairs:
        """The pairs in the first leaf, from the entry found on, and in those of the others that
        follow, each where the one before it ends."""
        trees = self.trees
        routes: Routes = trees.routes[self.tree]
        found: Pairs = []
        row = 0
        while True:
            leaf: Leaf = trees.run[row]
            page = leaf.page
            following = page.sibling()
            if following:
                routes.follow(leaf.at, following)
            if self.ahead:
                self._fetch(routes)
            self.start = append_range(trees, leaf, self.high, found)
            row += 1
            if self.start is None or row == count:
                break
            leaf = trees.run[row]
            page = leaf.page
            if page.level or not page.begins_at(self.start):
                break
            leaf.index = 0
        self.known = following if trees.reads_ahead else 0
        return found


class RangeBelow(ScanPart):
    """In descending order, one leaf at a time. A node has no link to the one before it, so each
    leaf is searched for by `end`, where the leaf after it begins; None: there is no leaf after
    it."""

    def __init__(self, trees: Trees, leaf: Leaf, tree: int, low: bytes, end: bytes | None) -> None:
        super().__init__(trees, leaf, tree)
        self.low = low
        self.end = end

    def once(self) -> int:
        if self.trees.find_leaf_below(self.leaf, self.tree, self.end) != DONE:
            return AGAIN
        page = self.leaf.page
        found: Pairs = []
        begins = page.low()
        self.leaf.index = page.find(self.low) if begins < self.low else 0
        append_range(self.trees, self.leaf, self.end, found)
        found.reverse()
        self.result = found
        self.end = begins
        self.ended = begins <= self.low
        return DONE


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

    def scan(self, low: Any, high: Any, prefix: Any, reverse: bool, limit: int | None) -> Any:
        """As `Store.scan`. A key that stays is met once; each node is as it was at one moment."""
        first = b"" if low is None else as_bytes("key", low)
        last = None if high is None else as_bytes("key", high)
        if prefix is not None:
            begin = as_bytes("prefix", prefix)
            first, end = max(first, begin), after_prefix(begin)
            last = end if last is None else last if end is None else min(last, end)
        if limit is not None and operator.index(limit) < 0:
            raise ValueError(f"a scan's limit is not negative: {limit}")
        # Cython may take an empty object for less than another empty one.
        if last is not None and (not last or first >= last):
            return iter(())
        parts: list[ScanPart] = []
        count = len(self.trees.roots)
        wanted = 0 if limit is None else max(1, (limit + count - 1) // count)
        for tree in range(count):
            if reverse:
                parts.append(RangeBelow(self.trees, self.leaf, tree, first, last))
            else:
                parts.append(Range(self.trees, self.leaf, tree, first, last, wanted))
        merged = Merge(self.store, parts, reverse)
        pairs = itertools.chain.from_iterable(iter(merged.batch, None))
        return pairs if limit is None else itertools.islice(pairs, limit)

    def keys(self) -> Any:
        """Every key, in order; as weakly consistent as `scan`."""
        return (key for key, _ in self.scan(None, None, None, False, None))

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


def after_prefix(prefix: bytes) -> bytes | None:
    """The least key above all that begin with this prefix; None: there is none."""
    stem = prefix.rstrip(b"\xff")
    end = len(stem) - 1
    return stem[:end] + bytes([stem[end] + 1]) if stem else None


class Merge:
    """The pairs of all trees, in the order of the scan."""

    def __init__(self, store: InlineStore, parts: list[ScanPart], reverse: bool) -> None:
        self.store = store
        self.sources = [Source(part) for part in parts]
        self.reverse = reverse

    def batch(self) -> Pairs | None:
        """The next pairs, up to where a tree must be read again; None: there are no more."""
        self._order([source for source in self.sources if source.more(self.store)])
        sources = self.sources
        if not sources:
            return None
        first: Source = sources[0]
        if len(sources) == 1:
            return first.rest()
        found: Pairs = []
        second: Source = sources[1]
        while first.take(second.key, self.reverse, found):
            # Its next key comes after that of the second, which is first now.
            sources[0], sources[1] = second, first
            if len(sources) > 2:
                self._sink(1)
            first, second = second, sources[1]
        return found

    def _order(self, sources: list[Source]) -> int:
        """Take in these sources in the order of their keys."""
        self.sources = sources
        for index in range(len(sources) - 2, -1, -1):
            self._sink(index)
        return 0

    def _sink(self, index: int) -> int:
        """Move a source to its place among those after it, which are in order."""
        sources = self.sources
        moved: Source = sources[index]
        while index + 1 < len(sources):
            after: Source = sources[index + 1]
            if after.key <= moved.key if self.reverse else after.key >= moved.key:
                break
            sources[index] = after
            index += 1
        sources[index] = moved
        return 0


class Source:
    """The pairs of one tree that were read and not given yet: those from `place` on."""

    def __init__(self, part: ScanPart) -> None:
        self.part = part
        self.pairs: Pairs = []
        self.place = 0
        self.key = b""
        """The key at `place`."""

    def more(self, store: InlineStore) -> bool:
        """Read pairs to give, if there are any more."""
        while self.place == len(self.pairs):
            if self.part.ended:
                return False
            self.pairs, self.place = store.run(self.part), 0
        self.key = self.pairs[self.place][0]
        return True

    def rest(self) -> Pairs:
        """Give all that were read."""
        found = self.pairs[self.place :] if self.place else self.pairs
        self.pairs, self.place = [], 0
        return found

    def take(self, bound: bytes, reverse: bool, found: Pairs) -> bool:
        """Give the pairs before this key; False: all that were read."""
        pairs, place = self.pairs, self.place
        while True:
            found.append(pairs[place])
            place += 1
            if place == len(pairs):
                self.place = place
                return False
            key = pairs[place][0]
            if key <= bound if reverse else key >= bound:
                self.place, self.key = place, key
                return True
