"""The write set of a transaction on trees: it reads nodes, and stages changed copies of them.

Used within one operation, by `Commit` (stores/transactions/commit.py). It finds a leaf as a get
does; the transaction validates the version in which the leaf was read. It need not validate the
inner nodes on the way: a leaf's fences show that it is the right one. A node that overflows is
split as often as needed, each time with one more entry for its parent, which is then found.

A split for one new entry copies the entries of the old node straight into the two new ones
(`_halve`). Every other split gathers the entries of a node, with the new ones, in a page that has
room for more than one node (`_gather`). It is private to the handle, and in use within one step.
The new nodes are made of ranges of its entries. Entries are copied as bytes, and none of them
becomes an object of Python.

A run of pairs that fall into one leaf becomes as many leaves as it fills, up to 48, in one
transaction (`stage_run`): the leaf, its new siblings, and their parent with all new links at once,
which is split likewise if it has to be. All new fences lie in the range of the leaf, and no node
above it begins within that, so they are links of one parent. A root with too many links gets a
level more. A kill leaves what any transaction leaves (stores/transactions/commit.py): all new
leaves, or none of them.

Between two leaves the fence is not a whole key, but the fewest bytes of one that tell the keys on
its left from those on its right (`Page.border`). So leaves have more room, and an inner node has
more children.

The node above a leaf is looked for where a node above leaves was met before (routes.py), and
otherwise from the root. Its fences show whether it is the right one, as for a leaf. A client that
is led to a node too far to the left goes on to its sibling, and then down from the root. If that
node begins where it was noted, it was only split: then it stays noted.

A merge goes on only while more is likely to be merged: the new node is less than half full, or an
inner node, or the only child of its parent.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from limpet.shm.endpoint.fabric import hash64, words_bytes
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.errors import NodeFailed, StoreCorrupt, StoreFull
from limpet.stores.core.base import Attempt
from limpet.stores.core.object_layout import POINTER
from limpet.stores.core.records import is_vacant
from limpet.stores.core.status import (
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
from limpet.stores.sherman.layout import EXTENT, PLACE_MASK, PLACE_SHIFT, SLOTS
from limpet.stores.sherman.page import Page
from limpet.stores.sherman.routes import Routes
from limpet.stores.sherman.trees import Leaf, Trees, leaf_of
from limpet.stores.transactions.layout import EXTENT_PAIR, LOCKED, OBJECT_SIZE
from limpet.stores.transactions.reads import Staging

if TYPE_CHECKING:
    from limpet.stores.transactions.staged import Staged

GATHERED: Final = 3
"""Beside those of one node, a split gathers entries of at most so many."""
GATHERED_MAX: Final = 0xFFF8
"""Offsets in a page have 16 bits."""
KEY_MOST: Final = 255
"""Bytes of a fence at most (parameters.py)."""
MERGED_SHARE: Final = 0.75
"""Two nodes with entries are merged only if they fill at most this share of the new one."""
SHRINKS_MAX: Final = 32
"""Tries of a merge that meets conflicts; a later merge takes in a leaf that one left."""
NO_PLACE: Final = -1
ROUNDS_MAX: Final = 4
"""How often the way to a node may lead back to the root: staged nodes may be out of date."""
LEAVES_LEAST: Final = 4
"""Memory for more leaves than these is made ready before a run is staged."""
NODES_BESIDE: Final = 8
"""So many nodes beside its leaves a run may write: those above them, and leaves less full."""
ASIDE_MAX: Final = 2
"""So many siblings are met on the way to a node until it leads by the root."""


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


def shrink(store: Any, key: bytes, kept: WriteSet | None = None) -> None:
    """Merge the leaf with a neighbour, and go on as long as there is likely more to merge.

    If every try meets a conflict, or memory is full, the leaf stays; a later merge takes it in.
    `kept`: a write set to use as long as there is memory ready: within operations only.
    """
    endpoint = store.endpoint
    scope = endpoint.background(True)
    try:
        staging: WriteSet = store.staging(store.commit()) if kept is None else kept
        attempt = 0
        while attempt < SHRINKS_MAX:
            outcome = store.within(staging.run_shrink, key)
            if outcome == MISSING or (outcome == DONE and not staging.sparse):
                break
            if outcome == NO_MEMORY:
                if staging is kept:
                    staging = store.staging(store.commit())
                    continue
                commit: Any = staging.commit
                commit.replenish(0, True)
            if outcome != DONE:
                attempt += 1
                endpoint.pause(attempt)
    except (StoreFull, NodeFailed):
        pass  # the key is deleted; the rest can wait
    finally:
        endpoint.background(scope)


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
        self.wanted = 0
        """For how many nodes a run wants memory."""
        self.sparse = False
        """Whether more nodes are likely to be merged after the merge that was staged last."""
        self.gathered: Page | None = None
        """Room for the entries of more than one node."""
        self.made: list[tuple[int, bytes, int]] = []
        """Of each new sibling that is staged: its level, its low fence and its object."""
        self.word = array("Q", (0,))
        """Room for a link."""
        self.pair = array("Q", (0, 0))
        """Lock and pointer of an object that may be vacant."""

    def stage(self, key: bytes, value: bytes | None, mode: int = PUT) -> int:
        """Stage one key's value, None to delete it: DONE, EXISTS, MISSING or AGAIN."""
        self.key = key
        if self.made:
            self.made = []
        try:
            leaf = self._leaf(key)
        except Busy:
            return AGAIN
        return self._change(leaf, key, value, mode)

    def stage_read(self, leaf: Leaf, key: bytes, value: bytes, mode: int) -> int:
        """As `stage`, but the key's leaf was read in this operation already, and the last search in
        it was for this key."""
        self.key = key
        self._begin_at(leaf)
        return self._change(leaf, key, value, mode)

    def _begin_at(self, leaf: Leaf) -> int:
        """Begin with a leaf that was read in this operation."""
        if self.made:
            self.made = []
        self.tree = leaf.tree
        self.commit.expect(leaf.at, leaf.lock, leaf.pointer)
        return 0

    def _change(self, leaf: Leaf, key: bytes, value: bytes | None, mode: int) -> int:
        store = self.store
        at, page, index = leaf.at, leaf.page, leaf.index
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

    def stage_run(
        self, leaf: Leaf, keys: list[bytes], values: list[bytes], first: int, leaves: int
    ) -> int:
        """Stage the values of keys in ascending order, of one tree, from the `first` on, in their
        leaf, which was read in this operation: as many as are in its range, and fill about so many
        leaves; those from `ended` on are left. DONE; AGAIN; NO_MEMORY: for `wanted` nodes it is to
        be made ready first, as all would have to be staged again when it is found missing.

        The leaf's page may have some of them already (leaf_writer.py), those before `first`.
        """
        self.key = keys[first]
        self._begin_at(leaf)
        page, store = leaf.page, self.store
        high = page.high()
        count = len(keys) if high is None else bisect_left(keys, high, first)
        room = min(leaves * page.size, (count - first) * (8 + store.key_size + store.value_size))
        likely = (count - first) * (8 + len(keys[first]) + len(values[first])) // page.size
        likely = min(likely, leaves)
        # It is asked for once, as the allocator may know only when it is taken what is ready.
        wanted, self.wanted = self.wanted, 0
        if likely > LEAVES_LEAST and not wanted:
            wanted = likely + NODES_BESIDE
            if not self.commit.allocator.has_ready(leaf.at >> NODE_SHIFT & 0xFF, page.size, wanted):
                self.wanted = wanted
                return NO_MEMORY
        entries = self._gather(page, room)
        room = min(room, entries.size - page.size)
        at_end = False
        size, index, self.ended = 0, 0, first
        while self.ended < count:
            key, value = keys[self.ended], values[self.ended]
            size += 8 + len(key) + len(value)
            if size > room or len(value) > store.value_size:
                break
            if at_end:
                index = entries.count
            else:
                # It is above the one before it, so likely it belongs just behind that.
                index = (
                    entries.find_next(key, index + 1) if self.ended > first else entries.find(key)
                )
                # All entries are below it, and so below those that follow.
                at_end = index == entries.count
                self._drop_extent(entries, index)
            if at_end or not entries.exact:
                entries.insert(index, key, value, 0)
            elif not entries.set_value(index, value, 0):
                raise StoreCorrupt(f"{size} bytes do not fit beside {page.used()}: damaged")
            self.ended += 1
        try:
            return self._put_all(leaf.at, page, entries, index == entries.count - 1)
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
        elif at != self.trees.roots[self.tree]:
            begin = self._middle(page, index, key, len(value))
            if begin:
                return self._halve(at, page, index, key, value, flags, begin)
        entries = self._gather(page, GATHERED * page.size)
        if page.exact:
            entries.remove(index)
        entries.insert(index, key, value, flags)
        return self._split(at, page, entries, index == entries.count - 1)

    def _put_all(self, at: int, page: Page, entries: Page, appended: bool) -> int:
        """Replace a node's entries by these; split it if they are too many.
        `appended`: as `_split` has it."""
        if entries.used() > page.end - 8 * SLOTS:
            return self._split(at, page, entries, appended)
        low, high = page.low(), page.high()
        return self._make(at, page.level, low, high, page.sibling(), entries, 0, entries.count)

    def _gather(self, page: Page, room: int) -> Page:
        """A copy of a node's entries, in a page with so much room for more, if a page can have it;
        until the next call."""
        size = min(page.size + room + 7 & ~7, GATHERED_MAX)
        if self.gathered is None or self.gathered.size < size:
            self.gathered = Page(self.endpoint, size)
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
        for index in range(1, len(ends)):
            self.made.append((level, lows[index], nodes[index]))
        if at == root:
            return self._raise_root(level + 1, lows, nodes, appended)
        return self.link_above(level + 1, lows, nodes)

    def _middle(self, page: Page, index: int, key: bytes, size: int) -> int:
        """Where to cut a node that gets a new entry at `index`, with this key and a value of that
        size, so that both halves fit: how many entries stay. 0: `_split` has to find a way."""
        high, room = page.high_size(), page.size - 8 * SLOTS
        added, total = 8 + len(key) + size, page.used()
        passed, begin = 0, 0
        if index == page.count and not page.has_high():
            # As `_split` has it: the new entry alone is in the last node of the level.
            passed, begin = total, index
        else:
            total += added
            each = 0
            while begin <= page.count:
                each = added if begin == index else page.size_of(begin - (begin > index))
                if begin and 2 * passed + each >= total:
                    break
                passed += each
                begin += 1
            if begin > page.count:
                return 0
            total -= added
        # A fence between two keys has no more bytes than the upper key.
        border = len(key) if begin == index else page.length(begin - (begin > index))
        left = page.low_size() + passed + border
        return begin if left <= room and border + total + added - passed + high <= room else 0

    def _halve(
        self, at: int, page: Page, index: int, key: bytes, value: bytes, flags: int, begin: int
    ) -> int:
        """Put the entries of a node, which is no root, with a new one at `index`, into the node and
        a new sibling: those from `begin` on, which `_middle` has found."""
        above = key if begin == index else page.key(begin - (begin > index))
        below = key if begin - 1 == index else page.key(begin - 1 - (begin - 1 > index))
        low, border = page.low(), page.fence_between(below, above)
        made, level = self._vacant(), page.level
        first, second = self._blank().page, self._blank().page
        first.reset(level, low, border, made)
        second.reset(level, border, page.high(), page.sibling())
        if index < begin:
            first.take(page, 0, begin - 1)
            first.insert(index, key, value, flags)
            second.take(page, begin - 1, page.count)
        else:
            first.take(page, 0, begin)
            second.take(page, begin, page.count)
            second.insert(index - begin, key, value, flags)
        self._write(made, second)
        self._write(at, first)
        self.made.append((level, border, made))
        return self.link_above(level + 1, [low, border], [at, made])

    def _raise_root(self, level: int, lows: list[bytes], nodes: list[int], appended: bool) -> int:
        """Write the root as a node of this level that links to these nodes, which begin at these
        fences. If there are too many, they get a level of their own below the root."""
        above = self._blank().page
        above.reset(level, lows[0], None, 0)
        entries = self._gather(above, GATHERED_MAX if len(nodes) > GATHERED else 0)
        for index in range(len(nodes)):
            entries.insert(index, lows[index], self._link(nodes[index]), 0)
        return self._put_all(self.trees.roots[self.tree], above, entries, appended)

    def link_above(self, level: int, lows: list[bytes], nodes: list[int]) -> int:
        """Link the node of that level to the nodes that follow the first of these. `lows`: where
        each begins."""
        leaf = self._inner(lows[1], level)
        at, page = leaf.at, leaf.page
        if len(nodes) == 2:
            return self._put(at, page, page.find(lows[1]), lows[1], self._link(nodes[1]), 0)
        entries, index, at_end = self._gather(page, GATHERED_MAX), 0, False
        for place in range(1, len(nodes)):
            if at_end:
                index = entries.count
            else:
                index = entries.find(lows[place])
                at_end = index == entries.count
                if entries.exact:
                    entries.remove(index)
            entries.insert(index, lows[place], self._link(nodes[place]), 0)
        return self._put_all(at, page, entries, index == entries.count - 1)

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
                    # ORDER: the pointer after the lock, from which it is locked.
                    self.endpoint.post_read(at, self.pair, 2)
                    self.endpoint.wait()
                    lock, pointer = self.pair[0], self.pair[1]
                    if not lock & LOCKED and is_vacant(pointer):
                        self.commit.expect(at, lock, pointer)
                        return at
        finally:
            self.endpoint.background(scope)
        raise trees.why_full(self.tree)

    def show_made(self) -> None:
        """Note the new leaves of a change that is committed, and the new nodes above leaves."""
        trees = self.trees
        for level, low, at in self.made:
            if level == 0:
                routes: Routes = trees.routes[self.tree]
                routes.note_leaf(low, at)
            elif level == 1 and trees.parents:
                routes = trees.parents[self.tree]
                routes.note_leaf(low, at)

    def show_merged(self, routes: Routes) -> None:
        """Note the leaf that a merge has left, which is committed: there are fewer leaves now."""
        for node in self.commit.all_written():
            page = node.page
            if page is not None and page.level == 0:
                routes.note_range(page.low(), node.at, page.high())

    # ---- merges ---------------------------------------------------------------------------------

    def run_shrink(self, key: bytes) -> int:
        """`shrink`, and commit that: DONE, or the outcome of the step that failed."""
        commit: Any = self.commit
        try:
            commit.begin(self.store.link)
            outcome: int = self.shrink(key)
            if outcome == DONE:
                outcome = commit.run()
        except BaseException:
            commit.abandon()
            raise
        finally:
            commit.give_back()
        if outcome == DONE:
            self.show_merged(self.trees.routes[self.tree])
        return outcome

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
        if page.level or page.count:
            return MISSING
        ticket = self.endpoint.post_load(root + POINTER)
        self.endpoint.wait()
        if is_vacant(self.endpoint.result(ticket)):
            return MISSING
        return self._write(root, None)

    # ---- finding --------------------------------------------------------------------------------

    def _leaf(self, key: bytes) -> Leaf:
        """The leaf in whose range the key is, and the key's place in it, with its page as it is
        staged."""
        trees = self.trees
        hashed = hash64(key)
        self.tree = trees.number_of(hashed)
        routes: Routes = trees.routes[self.tree]
        hint = routes.hinted(hashed)
        known = routes.hinted_leaf(hint) if hint else routes.find(key)
        place = NO_PLACE
        if hint:
            place = hint >> PLACE_SHIFT & PLACE_MASK
        leaf = self._walk(key, 0, known, place)
        if leaf.at != known and not self.commit.is_written(leaf.at):
            routes.note_leaf(leaf.page.low(), leaf.at)
        return leaf

    def _inner(self, key: bytes, level: int) -> Leaf:
        """The node of that level in whose range the key is."""
        trees = self.trees
        root = trees.roots[self.tree]
        if level != 1 or not trees.parents:
            return self._walk(key, level, root, NO_PLACE)
        parents: Routes = trees.parents[self.tree]
        known = parents.find(key)
        leaf = self._read(known)
        if leaf.page.level == level and leaf.page.has(key):
            return leaf
        if known != root and (leaf.page.level != level or leaf.page.low() != parents.low_at(key)):
            parents.drop(key)
        leaf = self._walk(key, level, trees.next_hop(leaf, key, level), NO_PLACE)
        parents.note_leaf(leaf.page.low(), leaf.at)
        return leaf

    def _walk(self, key: bytes, level: int, at: int, place: int) -> Leaf:
        """The node of that level in whose range the key is, and the key's place in it, by way of
        the node at `at`; `place`: where in that node the key was last, or NO_PLACE."""
        root = self.trees.roots[self.tree]
        rounds = aside = 0
        descended = at == root
        while rounds < ROUNDS_MAX:
            leaf = self._read(at)
            page = leaf.page
            if page.level == level:
                if place != NO_PLACE and page.is_at(place, key):
                    leaf.index = place
                    return leaf
                leaf.index = page.find(key)
                if page.has_looked_for(key):
                    return leaf
            place = NO_PLACE
            at = self.trees.next_hop(leaf, key, level)
            if page.level == level and not descended:
                aside += 1
                if aside == ASIDE_MAX:
                    at = root
            if at == root:
                descended = True
                rounds += 1
        raise Busy

    def _read(self, at: int) -> Leaf:
        """The staged node; otherwise a copy of it, whose version the transaction then expects: the
        one that its read of the node has made, if there is one."""
        page = self.commit.page_at(at)
        if page is not None:
            return as_staged(page, self.tree, at)
        reads = self.commit.reads
        kept = None if reads is None else reads.take_copy(at)
        if kept is None:
            leaf = self._read_copy(at)
        else:
            leaf = kept
            self.commit.lent.append(leaf)
        self.commit.expect(at, leaf.lock, leaf.pointer)
        return leaf

    def _blank(self) -> Leaf:
        """A leaf that nodes are copied to, which is given back when this is over."""
        leaf = self.trees.blank()
        self.commit.lent.append(leaf)
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
        if used + KEY_MOST <= room or index == begin:
            continue
        # The next entry may begin the next piece: then its border is the high fence of this one.
        if used + entries.border_most(index + 1) > room and (
            used > room or used + entries.border_size(index + 1) > room
        ):
            ends.append(index)
            begin = index
            used = entries.border_size(index) + entries.size_of(index)
    ends.append(entries.count)
    return ends


def _evened(entries: Page, room: int, low: int, high: int) -> list[int]:
    """Cut entries into as few pieces as fit nodes with `room` bytes for them and their fences, each
    of about as many bytes: where each piece ends. `low`, `high`: bytes of the outer fences. Raises
    StoreCorrupt if none do."""
    count = max(2, (entries.used() + low + high + room - 1) // room)
    while count <= entries.count:
        ends = _cut(entries, count, room, low, high)
        if ends is not None:
            return ends
        count += 1
    raise StoreCorrupt(f"an entry of {entries.used()} bytes is in no node: damaged")


def _cut(entries: Page, count: int, room: int, low: int, high: int) -> list[int] | None:
    """Cut entries into so many pieces of about as many bytes, none of them empty; None: one does
    not fit a node, with its fences."""
    ends: list[int] = []
    total, passed, begin, begun, pieces, fence = entries.used(), 0, 0, 0, 1, low
    for index in range(entries.count):
        size = entries.size_of(index)
        # A border is at the nearest end of an entry.
        if index > begin and pieces < count and (2 * passed + size) * count >= 2 * total * pieces:
            after = entries.border_size(index)
            if fence + passed - begun + after > room:
                return None
            ends.append(index)
            begin, begun, fence = index, passed, after
            pieces += 1
        passed += size
    if fence + passed - begun + high > room:
        return None
    ends.append(entries.count)
    return ends
