"""The write set of a transaction on trees: it reads nodes, and stages changed copies of them.

Used within one operation, by `Commit` (stores/rtx/commit.py). It finds a leaf as a get does; the
transaction validates the version in which the leaf was read. It need not validate the inner nodes
on the way: a leaf's fences show that it is the right one. A node that overflows is split as often
as needed, each time with one more entry for its parent, which is then found.

A split gathers the entries of a node, with the new ones, in a page that has room for more than one
node (`_gather`). It is private to the handle, and in use within one step. The new nodes are made of
ranges of its entries. Entries are copied as bytes, and none of them becomes an object of Python.

Between two leaves the fence is not a whole key, but the fewest bytes of one that tell the keys on
its left from those on its right (`Page.border`). So leaves have more room, and an inner node has
more children.

The node above a leaf is looked for where a node above leaves was met before (routes.py), and
otherwise from the root. Its fences show whether it is the right one, as for a leaf.

A merge goes on only while more is likely to be merged: the new node is less than half full, or an
inner node, or the only child of its parent.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from limpet.shm.endpoint.fabric import hash64, words_bytes
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.errors import NodeFailed, StoreCorrupt, StoreFull
from limpet.stores.inline import Attempt
from limpet.stores.rtx.layout import EXTENT_PAIR, LOCKED, OBJECT_SIZE, POINTER
from limpet.stores.rtx.reads import Staging
from limpet.stores.sherman.layout import EXTENT, SLOTS
from limpet.stores.sherman.page import Page
from limpet.stores.sherman.routes import Routes
from limpet.stores.sherman.trees import Leaf, Trees, leaf_of
from limpet.stores.status import (
    AGAIN,
    AT_ONCE,
    DONE,
    EXISTS,
    INSERT,
    MISSING,
    NO_MEMORY,
    PUT,
    UPDATE,
)
from limpet.stores.vacant import is_vacant

if TYPE_CHECKING:
    from limpet.stores.staged import Staged

GATHERED: Final = 4
"""The entries of so many nodes can be gathered: of one, and those of a run that fill two more."""
GATHERED_MAX: Final = 0xFFF8
"""Offsets in a page have 16 bits."""
MERGED_SHARE: Final = 0.75
"""Two nodes with entries are merged only if they fill at most this share of the new one."""
SHRINKS_MAX: Final = 32
"""Tries of a merge that meets conflicts; a later merge takes in a leaf that one left."""
ROUNDS_MAX: Final = 4
"""How often the way to a node may lead back to the root: staged nodes may be out of date."""


class Busy(Exception):
    """A node that is needed is locked by another client, or has changed since it was read."""


class TreeWay(Attempt):
    """The state of a write to a tree; it goes on by `commit`, if that is not None."""

    def __init__(self, commit: Any = None) -> None:
        super().__init__()
        self.commit = commit

    def at_once(self) -> TreeWay:
        """Try again without a pause."""
        self.outcome = AT_ONCE
        return self

    def ended(self, outcome: int) -> TreeWay:
        """End the write with this outcome."""
        self.outcome = outcome
        return self


def commit_staged(store: Any, staging: WriteSet, stage: Callable[[], int]) -> int:
    """Stage a change by `stage`, and commit it: DONE, or the outcome of the step that failed.
    Within an operation."""
    commit: Any = staging.commit
    try:
        commit.begin(store.link)
        outcome = stage()
        return commit.run() if outcome == DONE else outcome
    except BaseException:
        commit.abandon()
        raise
    finally:
        commit.give_back()


def shrink(store: Any, key: bytes) -> None:
    """Merge the leaf with a neighbour, and go on as long as there is likely more to merge.

    If every try meets a conflict, or memory is full, the leaf stays; a later merge takes it in.
    """
    scope = store.endpoint.background(True)
    try:
        commit = store.commit()
        staging = store.staging(commit)
        attempt = 0
        while attempt < SHRINKS_MAX:
            with store.client:
                store.require_there()
                outcome = commit_staged(store, staging, lambda: staging.shrink(key))
            if outcome == DONE:
                staging.show_leaves(store.trees.routes[staging.tree], True)
            if outcome == MISSING or (outcome == DONE and not staging.sparse):
                break
            if outcome == NO_MEMORY:
                commit.replenish(0, True)
            if outcome != DONE:
                attempt += 1
                store.endpoint.pause(attempt)
    except (StoreFull, NodeFailed):
        pass  # the key is deleted; the rest can wait
    finally:
        store.endpoint.background(scope)


class WriteSet(Staging):
    """The changes of one transaction to one store."""

    def __init__(self, store: Any, commit: Staged) -> None:
        self.store = store
        self.trees: Trees = store.trees
        self.commit = commit
        self.endpoint = store.endpoint
        self.key = b""
        """The node that is staged, or was staged last."""
        self.tree = 0
        """Number of the tree that it is in."""
        self.ended = 0
        """Which key of a run comes next (`stage_run`)."""
        self.sparse = False
        """Whether more nodes are likely to be merged after the merge that was staged last."""
        self.gathered: Page | None = None
        """Room for the entries of more than one node."""
        self.word = array("Q", (0,))
        """Room for a link."""

    def stage(self, key: bytes, value: bytes | None, mode: int = PUT) -> int:
        """Stage one key's value, None to delete it: DONE, EXISTS, MISSING or AGAIN."""
        self.key = key
        try:
            leaf = self._leaf(key)
        except Busy:
            return AGAIN
        return self._change(leaf, key, value, mode)

    def stage_read(self, leaf: Leaf, key: bytes, value: bytes, mode: int) -> int:
        """The same, in the key's leaf, which was read in this operation."""
        self.key = key
        self.tree = leaf.tree
        self.commit.expect(leaf.at, leaf.lock)
        return self._change(leaf, key, value, mode)

    def _change(self, leaf: Leaf, key: bytes, value: bytes | None, mode: int) -> int:
        store = self.store
        at, page = leaf.at, leaf.page
        index = page.find(key)
        if not page.exact and (mode == UPDATE or value is None):
            return MISSING if self._read_as_absent(leaf, key) else AGAIN
        if page.exact and mode == INSERT:
            return EXISTS
        self._drop_extent(page, index)
        if value is None:
            page.remove(index)
            return self._write(at, page)
        flags = 0
        if len(value) > store.value_size:
            self.commit.extents.append((self, at, key, value))
            value, flags = bytes(8), EXTENT
        try:
            return self._put(at, page, index, key, value, flags)
        except Busy:
            return AGAIN

    def stage_run(self, keys: list[bytes], values: list[bytes], first: int) -> int:
        """Stage the values of keys in ascending order, of one tree, from the `first` on: as many as
        are in its leaf's range and fill at most two nodes; those from `ended` on are left. DONE or
        AGAIN."""
        self.key = keys[first]
        try:
            leaf = self._leaf(self.key)
            at, page = leaf.at, leaf.page
            last = page.key(page.count - 1) if page.count else None
            merged = self._gather(page)
            room = min(2 * page.size, merged.size - page.size)
            size, self.ended = 0, first
            while self.ended < len(keys):
                key, value = keys[self.ended], values[self.ended]
                size += 8 + len(key) + len(value)
                if size > room or page.is_below(key) or len(value) > self.store.value_size:
                    break
                index = merged.find(key)
                self._drop_extent(merged, index)
                if not merged.exact:
                    merged.insert(index, key, value, 0)
                elif not merged.set_value(index, value, 0):
                    raise StoreCorrupt(f"{size} bytes do not fit beside {page.used()}: damaged")
                self.ended += 1
            if merged.used() > page.end - 8 * SLOTS:
                return self._split(at, page, merged, last is None or last < keys[first])
            low, high = page.low(), page.high()
            return self._make(at, page.level, low, high, page.sibling(), merged, 0, merged.count)
        except Busy:
            return AGAIN

    def _drop_extent(self, page: Page, index: int) -> int:
        """The extent of the key that was found last in this leaf, if it has one, is no longer
        linked."""
        if page.exact and page.has_extent(index):
            self.commit.dropped[page.link(index)] = self.store.link | EXTENT_PAIR
        return 0

    def _read_as_absent(self, leaf: Leaf, key: bytes) -> bool:
        """Note that a key is not in its leaf; False: that has changed since the transaction read
        it.

        The transaction writes nothing for that key, so nothing but its read set can show that the
        key was absent when it committed. A leaf that is staged will be locked as it was read.
        """
        reads = self.commit.reads
        if reads is None or self.commit.is_written(leaf.at):
            return True
        return bool(reads.note_fixed(leaf.at, leaf.lock, leaf.pointer, self.store, key))

    def _put(self, at: int, page: Page, index: int, key: bytes, value: bytes, flags: int) -> int:
        """Set an entry of a node, the one at `index` if it has the key."""
        if page.exact:
            if page.set_value(index, value, flags):
                return self._write(at, page)
        elif page.fits(key, len(value)):
            page.insert(index, key, value, flags)
            return self._write(at, page)
        entries = self._gather(page)
        if page.exact:
            entries.remove(index)
        entries.insert(index, key, value, flags)
        return self._split(at, page, entries, index == entries.count - 1)

    def _gather(self, page: Page) -> Page:
        """A copy of a node's entries, in a page with room for more; until the next call."""
        if self.gathered is None:
            self.gathered = Page(self.endpoint, min(GATHERED * page.size, GATHERED_MAX))
        gathered = self.gathered
        gathered.reset(page.level, b"", None, 0)
        gathered.take(page, 0, page.count)
        return gathered

    def _write(self, at: int, page: Page | None) -> int:
        self.commit.write_for(at, page, self.store, self.key)
        return DONE

    def new_extent(self, allocator: Any, at: int, key: bytes, value: bytes) -> int:
        """Write an extent, in the client journal, and have its key's entry name it; 0: no memory is
        ready. `at`: the leaf that the entry was staged in."""
        objects = self.store.objects
        node = at >> NODE_SHIFT & 0xFF
        reference: int = allocator.allocate(node, objects.size_of(key, value), 1)
        if reference:
            objects.write(reference, key, value)
            self.place(at, key, reference)
        return reference

    def place(self, at: int, key: bytes, reference: int) -> None:
        """Make a key's entry name that; when staged, the entry was in this object's node."""
        tree = self.trees.tree_of(key)
        while True:
            page = self.commit.page_at(at)
            assert page is not None
            if page.level == 0 and page.has(key):
                page.set_value(page.find(key), self._link(reference), EXTENT)
                return
            at = self.trees.next_hop(as_staged(page, tree, at), key, 0)

    def _link(self, at: int) -> bytes:
        """The value of an entry that is an address or a reference."""
        self.word[0] = at
        return words_bytes(self.word, 0, 8)

    # ---- splits ---------------------------------------------------------------------------------

    def _split(self, at: int, page: Page, entries: Page, appended: bool) -> int:
        """Put these entries, too many for one node, into a node and new siblings of it.

        `appended`: the new ones come after all others. In the last node of a level more of them are
        likely to follow, so the nodes before the last one are filled; else all become as full as
        each other.
        """
        low, high, sibling = page.low(), page.high(), page.sibling()
        level, room = page.level, page.size - 8 * SLOTS
        if appended and high is None:
            ends = _filled(entries, room, len(low))
        else:
            ends = _evened(entries, room, len(low), 0 if high is None else len(high))
        root = self.trees.roots[self.tree]
        nodes = [self._vacant() if at == root else at]
        lows = [low]
        for index in range(len(ends) - 1):
            nodes.append(self._vacant())
            lows.append(entries.border(ends[index]))
        for index in range(len(ends) - 1, -1, -1):
            begin = ends[index - 1] if index else 0
            self._make(nodes[index], level, lows[index], high, sibling, entries, begin, ends[index])
            high, sibling = lows[index], nodes[index]
        if at == root:
            above = self._blank().page
            above.reset(level + 1, low, None, 0)
            for index in range(len(ends)):
                above.insert(index, lows[index], self._link(nodes[index]), 0)
            return self._write(at, above)
        outcome = DONE
        for index in range(1, len(ends)):
            outcome = self.link_above(level + 1, lows[index], nodes[index])
            if outcome != DONE:
                break
        return outcome

    def link_above(self, level: int, fence: bytes, right: int) -> int:
        """Link the node of that level to a new node, which begins at this fence."""
        leaf = self._inner(fence, level)
        return self._put(leaf.at, leaf.page, leaf.page.find(fence), fence, self._link(right), 0)

    def _make(
        self,
        at: int,
        level: int,
        low: bytes,
        high: bytes | None,
        sibling: int,
        entries: Page,
        begin: int,
        end: int,
    ) -> int:
        """Stage a node with the entries of a page from `begin` on, up to `end`."""
        page = self._blank().page
        page.reset(level, low, high, sibling)
        page.take(entries, begin, end)
        return self._write(at, page)

    def _vacant(self) -> int:
        """A vacant object of the tree. Raises StoreFull when there is none."""
        trees: Any = self.trees
        root = trees.roots[self.tree]
        scope = self.endpoint.background(True)
        try:
            for _ in range(trees.object_count):
                number = trees.next_vacant()
                at = root + number * OBJECT_SIZE
                if number and not self.commit.is_written(at):
                    lock = self.endpoint.load(at)
                    # ORDER: the pointer after the lock, from which it is locked.
                    if not lock & LOCKED and is_vacant(self.endpoint.load(at + POINTER)):
                        self.commit.expect(at, lock)
                        return at
        finally:
            self.endpoint.background(scope)
        raise trees.why_full(self.tree)

    def show_leaves(self, routes: Routes, merged: bool) -> None:
        """Note the leaves that were written by a change that is committed. `merged`: by a merge, so
        that there are fewer leaves now."""
        for node in self.commit.all_written():
            page = node.page
            if page is not None and page.level == 0:
                if merged:
                    routes.learn_range(page.low(), node.at, page.high())
                else:
                    routes.learn(page.low(), node.at)

    # ---- merges ---------------------------------------------------------------------------------

    def shrink(self, key: bytes) -> int:
        """Merge the leaf in whose range the key is, or a node above it, with a neighbour.

        DONE; MISSING: there is nothing to merge; AGAIN.
        """
        try:
            return self._merge(self._leaf(key), key)
        except Busy:
            return AGAIN

    def _merge(self, leaf: Leaf, key: bytes) -> int:
        at, page = leaf.at, leaf.page
        root = self.trees.roots[self.tree]
        if at == root:
            return self._vacate_root(page)
        inner = self._inner(key, page.level + 1)
        parent, above = inner.at, inner.page
        if above.count == 1:
            return self._merge(inner, key)
        index = above.find(key)
        left = max(0, index - 1) if above.exact else max(0, index - 2)
        first_at, second_at = above.link(left), above.link(left + 1)
        first = page if first_at == at else self._read(first_at).page
        second = page if second_at == at else self._read(second_at).page
        if first.sibling() != second_at or first.level != page.level:
            return AGAIN
        low, high, sibling = first.low(), second.high(), second.sibling()
        used = first.used() + second.used() + len(low) + len(high or b"") + 8 * SLOTS
        if used > page.size * (MERGED_SHARE if first.count and second.count else 1):
            return MISSING
        is_last = parent == root and above.count == 2
        if is_last and high is not None:
            return AGAIN  # there is another one, to which the root does not link yet
        merged = self._blank().page
        if is_last:
            low, sibling = b"", 0
        merged.reset(page.level, low, high, sibling)
        merged.take(first, 0, first.count)
        merged.take(second, 0, second.count)
        self.sparse = (
            page.level > 0 or 2 * merged.used() < merged.size or (above.count == 2 and not is_last)
        )
        self.commit.write(second_at, None)
        if is_last:
            self.commit.write(first_at, None)
            return self._write(root, merged)
        self._write(first_at, merged)
        above.remove(left + 1)
        return self._write(parent, above)

    def _vacate_root(self, page: Page) -> int:
        root = self.trees.roots[self.tree]
        if page.level or page.count or is_vacant(self.endpoint.load(root + POINTER)):
            return MISSING
        return self._write(root, None)

    # ---- finding --------------------------------------------------------------------------------

    def _leaf(self, key: bytes) -> Leaf:
        """The leaf in whose range the key is, with its page as it is staged."""
        trees = self.trees
        hashed = hash64(key)
        self.tree = trees.number_of(hashed)
        routes: Routes = trees.routes[self.tree]
        hint = routes.hinted(hashed)
        known = routes.hinted_leaf(hint) if hint else routes.find(key)
        leaf = self._walk(key, 0, known)
        if leaf.at != known and not self.commit.is_written(leaf.at):
            routes.learn(leaf.page.low(), leaf.at)
        return leaf

    def _inner(self, key: bytes, level: int) -> Leaf:
        """The node of that level in whose range the key is."""
        trees = self.trees
        root = trees.roots[self.tree]
        if level != 1 or not trees.parents:
            return self._walk(key, level, root)
        parents: Routes = trees.parents[self.tree]
        known = parents.find(key)
        leaf = self._walk(key, level, known)
        if leaf.at != known:
            if known != root:
                parents.drop(key)
            parents.learn(leaf.page.low(), leaf.at)
        return leaf

    def _walk(self, key: bytes, level: int, at: int) -> Leaf:
        root, rounds = self.trees.roots[self.tree], 0
        while rounds < ROUNDS_MAX:
            leaf = self._read(at)
            if leaf.page.level == level and leaf.page.has(key):
                return leaf
            at = self.trees.next_hop(leaf, key, level)
            rounds += at == root
        raise Busy

    def _read(self, at: int) -> Leaf:
        """The staged node; otherwise a copy of it, whose version the transaction then expects."""
        page = self.commit.page_at(at)
        if page is not None:
            return as_staged(page, self.tree, at)
        leaf = self._read_copy(at)
        self.commit.expect(at, leaf.lock)
        return leaf

    def _blank(self) -> Leaf:
        """A leaf that nodes are copied to, whose page is given back when this is over."""
        leaf = self.trees.blank()
        self.commit.lent.append(leaf.page)
        return leaf

    def _read_copy(self, at: int) -> Leaf:
        """A copy of a node that no client has locked. Raises Busy."""
        leaf = self._blank()
        leaf.tree = self.tree
        self.trees.leaf.at = at  # after a conflict, the client waits for this node
        if not self.trees.read(leaf, at, 0) or leaf.lock & LOCKED:
            raise Busy
        return leaf


def as_staged(page: Page, tree: int, at: int) -> Leaf:
    """A staged node."""
    leaf = leaf_of(page)
    leaf.tree, leaf.at = tree, at
    return leaf


def _filled(entries: Page, room: int, low: int) -> list[int]:
    """Cut the entries of the last node of a level so that each piece but the last one fills a node,
    which has `room` bytes for them and its fences: where each piece ends. `low`: bytes of the low
    fence of the first one."""
    ends: list[int] = []
    used, begin = low, 0
    for index in range(entries.count):
        used += entries.size_of(index)
        # The next entry may begin the next piece: then its border is the high fence of this one.
        if index > begin and used + entries.border_most(index + 1) > room:
            after = entries.border_size(index + 1)
            if used + after > room:
                ends.append(index)
                begin = index
                used = entries.border_size(index) + entries.size_of(index)
    ends.append(entries.count)
    return ends


def _evened(entries: Page, room: int, low: int, high: int) -> list[int]:
    """Cut entries into as few pieces as fit nodes with `room` bytes for them and their fences, each
    of about as many bytes: where each piece ends. `low`, `high`: bytes of the outer fences. Raises
    StoreCorrupt if none do."""
    count = 2
    while count <= entries.count:
        ends = _cut(entries, count)
        if _fit(entries, ends, room, low, high):
            return ends
        count += 1
    raise StoreCorrupt(f"an entry of {entries.used()} bytes is in no node: damaged")


def _fit(entries: Page, ends: list[int], room: int, low: int, high: int) -> bool:
    """Whether each of these pieces fits a node, with its fences."""
    begin, fence = 0, low
    for index in range(len(ends)):
        end: int = ends[index]
        after = high if index == len(ends) - 1 else entries.border_size(end)
        size = fence + after
        for entry in range(begin, end):
            size += entries.size_of(entry)
        if size > room:
            return False
        begin, fence = end, after
    return True


def _cut(entries: Page, count: int) -> list[int]:
    """Cut entries into so many pieces of about as many bytes, none of them empty."""
    ends: list[int] = []
    total, passed, begin = float(entries.used()), 0.0, 0
    for index in range(entries.count):
        size = entries.size_of(index)
        # A border is at the nearest end of an entry.
        border = total * (len(ends) + 1) / count
        if index > begin and len(ends) < count - 1 and passed + size / 2.0 >= border:
            ends.append(index)
            begin = index
        passed += size
    ends.append(entries.count)
    return ends
