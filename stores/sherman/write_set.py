"""What a transaction is going to do to trees: nodes are read, and changed copies of them staged.

Within one operation, by `Commit` (stores/rtx/commit.py). A leaf is found by the way that get
goes; it counts for the transaction in the version in which it was read. The inner nodes on the way
need not: a leaf's fences say that it is the right one. A node that overflows is split as often as
it takes, each time with one more entry for its parent, which is then found from the root.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from limpet.stores.rtx.layout import EXTENT_PAIR, LOCKED, OBJECT_SIZE, POINTER
from limpet.stores.rtx.lllock import is_vacant
from limpet.stores.rtx.reads import Place
from limpet.stores.sherman.layout import EXTENT, SLOTS
from limpet.stores.sherman.page import Page
from limpet.stores.status import AGAIN, DONE, EXISTS, INSERT, MISSING, PUT, UPDATE

if TYPE_CHECKING:
    from limpet.stores.rtx.commit import Commit

Entries = list[tuple[bytes, bytes, int]]


MERGED_SHARE: Final = 0.75
"""Nodes that both have entries are merged if no more than this share of the new one is taken."""
ROUNDS_MAX: Final = 4
"""How often the way to a node may lead back to the root: what is staged may be out of date."""


class Busy(Exception):
    """A node that is needed is locked by somebody else, or has changed since it was read."""


class Staging:
    """The changes of one transaction to one store."""

    def __init__(self, store: Any, commit: Commit) -> None:
        self.store = store
        self.commit = commit
        self.endpoint = store.endpoint
        self.key = b""
        """That is staged, or was last."""

    def stage(self, key: bytes, value: bytes | None, mode: int = PUT) -> int:
        """Stage one key's value, None to delete it: DONE, EXISTS, MISSING or AGAIN."""
        store = self.store
        self.key = key
        try:
            at, page = self._leaf(key)
        except Busy:
            return AGAIN
        index = page.find(key)
        if not page.exact and (mode == UPDATE or value is None):
            return MISSING if self._read_as_absent(at, key) else AGAIN
        if page.exact and mode == INSERT:
            return EXISTS
        if page.exact and page.has_extent(index):
            self.commit.dropped[page.link(index)] = store.link | EXTENT_PAIR
        if value is None:
            page.remove(index)
            return self._write(at, page)
        flags = 0
        if len(value) > store.value_size:
            self.commit.extents.append((self, at, key, value))
            value, flags = bytes(8), EXTENT
        try:
            return self._put(at, page, index, (key, value, flags))
        except Busy:
            return AGAIN

    def _read_as_absent(self, at: int, key: bytes) -> bool:
        """Note that a key is not in its leaf, the object `at`, which was read last; False: that
        has changed since the transaction read it.

        The transaction writes nothing for that key, so nothing but its read set can show that the
        key was absent when it committed. A leaf that is staged will be locked as it was read.
        """
        reads = self.commit.reads
        if reads is None or at in self.commit.pages:
            return True
        return bool(self.store.note(reads, key, None))

    def _put(self, at: int, page: Page, index: int, entry: tuple[bytes, bytes, int]) -> int:
        """Set an entry of a node, the one at `index` if it has the key."""
        key, value, flags = entry
        if page.exact:
            if page.set_value(index, value, flags):
                return self._write(at, page)
            page.remove(index)
        elif page.fits(key, len(value)):
            page.insert(index, key, value, flags)
            return self._write(at, page)
        entries = page.entries()
        entries.insert(index, entry)
        return self._split(at, page, entries)

    def _write(self, at: int, page: Page | None) -> int:
        self.commit.owners[at] = Place(self.store, self.key, at)
        self.commit.write(at, page)
        return DONE

    def place(self, at: int, key: bytes, reference: int) -> None:
        """Have the entry of a key name that; when it was staged, it was in this object's node."""
        while True:
            page = self.commit.pages[at]
            assert page is not None
            if page.level == 0 and page.has(key):
                page.set_value(page.find(key), _link(reference), EXTENT)
                return
            at = self.store.next_hop(page, key, 0)

    # ---- splits ---------------------------------------------------------------------------------

    def _split(self, at: int, page: Page, entries: Entries) -> int:
        """Put these entries, too many for it, into a node and a new sibling of it."""
        root = self.store.roots[self.store.tree]
        middle = _middle(entries)
        fence = entries[middle][0]
        low, high, sibling = page.low(), page.high(), page.sibling()
        right = self._vacant()
        left = self._vacant() if at == root else at
        self._make(right, page.level, (fence, high), sibling, entries[middle:])
        self._make(left, page.level, (low, fence), right, entries[:middle])
        if at == root:
            children = [(low, _link(left), 0), (fence, _link(right), 0)]
            return self._make(at, page.level + 1, (low, None), 0, children)
        return self.link_above(page.level + 1, fence, right)

    def link_above(self, level: int, fence: bytes, right: int) -> int:
        """Have the node of that level link to a new one, which begins at this fence."""
        parent, above = self._inner(fence, level)
        return self._put(parent, above, above.find(fence), (fence, _link(right), 0))

    def _make(
        self,
        at: int,
        level: int,
        fences: tuple[bytes, bytes | None],
        sibling: int,
        entries: Entries,
    ) -> int:
        page = self.store.blank()
        page.reset(level, *fences, sibling)
        page.fill(entries)
        return self._write(at, page)

    def _vacant(self) -> int:
        """A vacant object of the tree. Raises StoreFull when there is none."""
        store = self.store
        root, objects = store.roots[store.tree], store.parameters.objects
        lane = self.endpoint.background(True)
        try:
            for _ in range(objects):
                number = store.next_vacant()
                at = root + number * OBJECT_SIZE
                if number and at not in self.commit.pages:
                    lock = self.endpoint.load(at)
                    # ORDER: the pointer after the lock, from which it is locked.
                    if not lock & LOCKED and is_vacant(self.endpoint.load(at + POINTER)):
                        self.commit.expect(at, lock)
                        return at
        finally:
            self.endpoint.background(lane)
        raise store.why_full(store.tree)

    # ---- merges ---------------------------------------------------------------------------------

    def shrink(self, key: bytes) -> int:
        """Merge the leaf in whose range the key is, or what is above it, with a neighbour.

        DONE; MISSING: there is nothing to merge; AGAIN.
        """
        try:
            return self._merge(*self._leaf(key), key)
        except Busy:
            return AGAIN

    def _merge(self, at: int, page: Page, key: bytes) -> int:
        root = self.store.roots[self.store.tree]
        if at == root:
            return self._vacate_root(page)
        parent, above = self._inner(key, page.level + 1)
        if above.count == 1:
            return self._merge(parent, above, key)
        index = above.find(key)
        left = max(0, index - 1) if above.exact else max(0, index - 2)
        first_at, second_at = above.link(left), above.link(left + 1)
        first, second = self._page(first_at), self._page(second_at)
        if first.sibling() != second_at or first.level != page.level:
            return AGAIN
        low, high, sibling = first.low(), second.high(), second.sibling()
        used = first.used() + second.used() + len(low) + len(high or b"") + 8 * SLOTS
        if used > page.size * (MERGED_SHARE if first.count and second.count else 1):
            return MISSING
        entries = first.entries() + second.entries()
        self.commit.write(second_at, None)
        if parent == root and above.count == 2:
            if high is not None:
                return AGAIN  # there is another one, to which the root does not link yet
            self.commit.write(first_at, None)
            return self._make(root, page.level, (b"", None), 0, entries)
        self._make(first_at, page.level, (low, high), sibling, entries)
        above.remove(left + 1)
        return self._write(parent, above)

    def _vacate_root(self, page: Page) -> int:
        root = self.store.roots[self.store.tree]
        if page.level or page.count or is_vacant(self.endpoint.load(root + POINTER)):
            return MISSING
        return self._write(root, None)

    # ---- finding --------------------------------------------------------------------------------

    def _leaf(self, key: bytes) -> tuple[int, Page]:
        """The leaf in whose range the key is: its object, and its page as it is staged."""
        tree = self.store.tree_of(key)
        self.store.tree = tree
        routes = self.store.routes[tree]
        known = routes.find(key)
        at, page = self._walk(key, 0, known)
        if at != known and at not in self.commit.pages:
            routes.learn(page.low(), at)
        return at, page

    def _inner(self, key: bytes, level: int) -> tuple[int, Page]:
        """The node of that level in whose range the key is."""
        return self._walk(key, level, self.store.roots[self.store.tree])

    def _walk(self, key: bytes, level: int, at: int) -> tuple[int, Page]:
        root, rounds = self.store.roots[self.store.tree], 0
        while rounds < ROUNDS_MAX:
            page = self._page(at)
            if page.level == level and page.has(key):
                return at, page
            at = self.store.next_hop(page, key, level)
            rounds += at == root
        raise Busy

    def _page(self, at: int) -> Page:
        """A node as it is staged; else a copy of it, whose version the transaction then expects."""
        page = self.commit.pages.get(at)
        if page is None:
            page = self.store.blank()
            if not self.store.read_object(at, page) or self.store.lock & LOCKED:
                raise Busy
            self.commit.expect(at, self.store.lock)
        return page


def _link(at: int) -> bytes:
    return at.to_bytes(8, "little")


def _middle(entries: Entries) -> int:
    """Where to cut, so that both halves have about as many bytes."""
    sizes = [8 + len(key) + len(value) for key, value, _ in entries]
    half, total = sum(sizes) / 2, 0.0
    for index, size in enumerate(sizes):
        total += size
        if total > half:
            return max(1, min(index if total - half > size / 2 else index + 1, len(entries) - 1))
    return len(entries) - 1
