"""Looks at the whole of a tree store: counting, audits, checking.

They read a node at a time, and other clients may be at work. They go through leaves by their
fences, so a split meanwhile makes them meet no key twice, and miss none.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from limpet.shm.clients.membership import journal_of
from limpet.shm.endpoint.slots import INCARNATION_BITS
from limpet.shm.endpoint.words import ADDRESS_MASK, REFERENCE_MASK, REPLICATED
from limpet.shm.errors import AddressError, NodeFailed, StoreCorrupt
from limpet.stores.core.object_layout import POINTER
from limpet.stores.core.records import is_vacant
from limpet.stores.core.status import ATTEMPTS_PER_CHECK
from limpet.stores.core.whole import check_each
from limpet.stores.sherman.layout import KEY_SHIFT, LENGTH_MASK, SLOTS, VALUE_SHIFT
from limpet.stores.sherman.page import Page
from limpet.stores.transactions import layout as fields
from limpet.stores.transactions.layout import (
    ABORT,
    DOING,
    LOCKED,
    LOGGED,
    OBJECT_MASK,
    OBJECT_SIZE,
    PART,
    STATE_MASK,
    VERSION_MASK,
)
from limpet.stores.transactions.lllock import slot_of
from limpet.stores.transactions.log import Log


class TreeCheck:
    """Looks by a store's handle, one operation at a time."""

    looks_max = 200
    """How often it looks again at words that other clients are changing."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.endpoint = store.endpoint
        self.size = store.leaf.page.size

    # ---- all of it ------------------------------------------------------------------------------

    def count(self) -> int:
        """How many keys there are, leaf by leaf."""
        scope = self.endpoint.background(True)
        try:
            return sum(self._count(tree) for tree in range(len(self.store.trees.roots)))
        finally:
            self.endpoint.background(scope)

    def _count(self, tree: int) -> int:
        total, start = 0, b""
        while start is not None:
            found, start = self.store.scans.read_leaf(tree, start)
            total += found
        return total

    def references(self) -> Any:
        """References to all nodes and extents on memory nodes in service, as uint64."""
        found: list[int] = []
        for tree in range(len(self.store.trees.roots)):
            with contextlib.suppress(NodeFailed):  # its objects are gone with its nodes
                for at, pointer in enumerate(self._words(tree)[:, 1].tolist()):
                    self.store.show_progress(at)
                    if not is_vacant(pointer):
                        found += self._references(tree, at, pointer)
        return np.array(found, dtype=np.uint64)

    def _words(self, tree: int) -> Any:
        """Locks and pointers of a tree's objects: a copy, as an array of shape (objects, 2)."""
        root, objects = self.store.trees.roots[tree], self.store.parameters.objects
        raw = self.endpoint.read(root, objects * OBJECT_SIZE)
        return np.frombuffer(raw, dtype="<u8").reshape(objects, 2)

    def _references(self, tree: int, number: int, pointer: int) -> list[int]:
        """The node of an object, and the extents that it links to, as of one moment."""
        at = self.store.trees.roots[tree] + number * OBJECT_SIZE
        page = Page(self.endpoint, self.size)
        for _ in range(self.looks_max):
            try:
                page.read(pointer & ADDRESS_MASK)
                links = [page.link(i) for i in range(page.count) if page.has_extent(i)]
                whole = page.is_whole()
            except (StoreCorrupt, AddressError, NodeFailed):
                whole, links = False, []
            # ORDER: after the node: it stayed linked, so its memory had no other use.
            again = self.endpoint.load(at + POINTER)
            if whole and again == pointer:
                return [pointer & REFERENCE_MASK, *(link & REFERENCE_MASK for link in links)]
            if is_vacant(again):
                return []
            pointer = again
        return [pointer & REFERENCE_MASK]  # damaged, as `check` says, or lost

    # ---- checking -------------------------------------------------------------------------------

    def check(self) -> None:
        """Verify every invariant of the trees in memory; StoreCorrupt names one that does not hold.

        Other clients may be at work. NodeFailed: a tree is lost with its memory node, and no fault
        was found in the others.
        """
        trees = range(len(self.store.trees.roots))
        check_each(trees, self._check_tree)

    def _check_tree(self, tree: int) -> None:
        for attempt in range(self.looks_max):
            seen: set[int] = set()
            before = self._versions(tree)
            wrong = self._wrong_below(tree, self.store.trees.roots[tree], b"", None, None, seen)
            if not wrong:
                wrong = self._wrong_locks(tree, seen)
            # Words that other clients were changing may look wrong.
            if not wrong or (self._versions(tree) == before and not self._waits_for(tree)):
                break
            self.endpoint.pause(attempt)
        if wrong:
            raise StoreCorrupt(f"{self.store.name}: tree {tree}: {wrong}")

    def _waits_for(self, tree: int) -> bool:
        """Whether a transaction with a log has locked objects of a tree: some may be new by now,
        and others not. It is seen to if its lease is over."""
        logged = LOCKED | LOGGED
        held = np.flatnonzero(self._words(tree)[:, 0] & np.uint64(logged) == logged)
        for number in held.tolist():
            at = self.store.trees.roots[tree] + number * OBJECT_SIZE
            self.store.repair.await_holder(at, ATTEMPTS_PER_CHECK, True)
        return len(held) > 0

    def _versions(self, tree: int) -> bytes:
        return bytes(self._words(tree).tobytes())

    def _wrong_below(
        self, tree: int, at: int, low: bytes, high: bytes | None, level: int | None, seen: set[int]
    ) -> str:
        """The fault found in or below the node of an object, if it has these fences, or ""."""
        seen.add(at)
        page = self.store.trees.blank().page
        with self.store.client:
            scope = self.endpoint.background(True)
            try:
                wrong = self._wrong_with(tree, at, page, low, high, level)
            finally:
                self.endpoint.background(scope)
        children = page.entries() if page.level and not wrong else []
        ends = [key for key, _, _ in children[1:]] + [high]
        for index, (key, value, _) in enumerate(children):
            child = int.from_bytes(value, "little")
            wrong = wrong or self._wrong_link(tree, child, seen)
            wrong = wrong or self._wrong_below(tree, child, key, ends[index], page.level - 1, seen)
        return wrong

    def _wrong_link(self, tree: int, at: int, seen: set[int]) -> str:
        root = self.store.trees.roots[tree]
        inside = root < at < root + self.store.parameters.objects * OBJECT_SIZE
        if not inside or (at - root) % OBJECT_SIZE:
            return f"a node links to {at:#x}, which is no object of the tree"
        return f"two nodes link to the object at {at:#x}" if at in seen else ""

    def _wrong_with(
        self, tree: int, at: int, page: Page, low: bytes, high: bytes | None, level: int | None
    ) -> str:
        """The fault found in a node itself, or "" if there is none."""
        where = f"the node of object {at:#x}"
        wrong = self._wrong_memory(at, page, level is None)
        if wrong:
            return f"{where} {wrong}"
        if page.low() != low or page.high() != high:
            return f"{where} is from {page.low()!r} to {page.high()!r}, not {low!r} to {high!r}"
        if level is not None and page.level != level:
            return f"{where} is on level {page.level}, not {level}"
        if not _is_compact(page):
            return f"the entries of {where} do not fill the bytes that it has for them"
        keys = [page.key(index) for index in range(page.count)]
        if keys != sorted(set(keys)):
            return f"the keys of {where} are not in order"
        if keys and (keys[0] < low or (high is not None and keys[-1] >= high)):
            return f"{where} has keys beyond its fences"
        if page.level:
            return "" if keys and keys[0] == low else f"{where} does not begin with its low fence"
        extents = (self._wrong_extent(page, index) for index in range(page.count))
        return next(filter(None, (*extents, self._wrong_places(tree, keys))), "")

    def _wrong_memory(self, at: int, page: Page, is_root: bool) -> str:
        """Read the node of an object; the fault found in its place, or "" if there is none."""
        pointer = self.endpoint.load(at + POINTER)
        if is_vacant(pointer):
            page.reset(0, b"", None, 0)
            return "" if is_root else "is missing"
        if not self.store.heap.plausible(pointer) or not self.store.heap.used(pointer):
            return f"is at {pointer:#x}, which is no object in use"
        page.read(pointer & ADDRESS_MASK)
        return "" if page.is_whole() else "does not match its checksum"

    def _wrong_places(self, tree: int, keys: list[bytes]) -> str:
        wrong = next((key for key in keys if self.store.trees.tree_of(key) != tree), None)
        return "" if wrong is None else f"{wrong!r} belongs into another tree"

    def _wrong_extent(self, page: Page, index: int) -> str:
        """The fault found in the extent of an entry, or "" if there is none."""
        key = page.key(index)
        if not page.has_extent(index):
            fits = len(page.value(index)) <= self.store.value_size
            return "" if fits else f"{key!r} has a value in its node that is too long for it"
        reference, objects = page.link(index), self.store.objects
        if not self.store.heap.plausible(reference) or not self.store.heap.used(reference):
            return f"the extent of {key!r} is no object in use"
        objects.load(reference)
        if not objects.fits(reference) or not objects.intact() or objects.key() != key:
            return f"the extent of {key!r} is not what was written"
        return ""

    def _wrong_locks(self, tree: int, seen: set[int]) -> str:
        """The fault found in the objects' words: a node without a link to it, or a stray lock."""
        root = self.store.trees.roots[tree]
        for number, (lock, pointer) in enumerate(self._words(tree).tolist()):
            at = root + number * OBJECT_SIZE
            if not is_vacant(pointer) and at not in seen:
                return f"no node links to the object at {at:#x}"
            if lock & LOCKED and not self._is_client(slot_of(lock)):
                return f"the object at {at:#x} is locked by no client: {lock:#x}"
            if not lock & LOCKED and lock & ~VERSION_MASK:
                return f"the object at {at:#x} has the lock {lock:#x}"
        return ""

    def _is_client(self, slot: int) -> bool:
        return any(slot == occupied for occupied, _ in self.store.pool.membership.occupied())

    # ---- evidence of a dead client --------------------------------------------------------------

    def left_by(self, ident: int) -> set[str]:
        """The named crash points that a dead client shows."""
        found: set[str] = set()
        pairs = journal_of(self.endpoint, ident >> INCARNATION_BITS)
        for reference, link_address in pairs:
            if link_address & REPLICATED:
                with contextlib.suppress(NodeFailed):
                    if link_address & OBJECT_MASK:
                        found |= self._left_without_log(reference, link_address & OBJECT_MASK)
                    else:
                        found |= self._left_with_log(reference, pairs)
        return found

    def _left_without_log(self, reference: int, at: int) -> set[str]:
        state = self.endpoint.load(reference & ADDRESS_MASK)
        if self.endpoint.load(at) != state:
            return set()
        if self.endpoint.load(at + POINTER) == reference:
            return {"leaf-installed"}
        return {"leaf-locked" if self._is_whole(reference) else "leaf-locked-early"}

    def _is_whole(self, reference: int) -> bool:
        """Whether there is a whole node there; one left by an earlier use counts, too."""
        page = Page(self.endpoint, self.size)
        try:
            page.read(reference & ADDRESS_MASK)
            return bool(page.is_whole())
        except (StoreCorrupt, AddressError):
            return False

    def _left_with_log(self, reference: int, pairs: list[tuple[int, int]]) -> set[str]:
        log = Log(self.store.locks, reference)
        state = log.owner()
        if not state & LOGGED:
            return set()
        entries = [entry for entry in log.entries() if entry.at]
        locked = [self.endpoint.load(entry.at) == state for entry in entries]
        new = [self.endpoint.load(entry.at + POINTER) == entry.new for entry in entries]
        decided = log.state() & STATE_MASK
        if decided == fields.INIT:
            # A part that is not in use may be whole (stores/transactions/log.py).
            news = {
                entry.new
                for entry in log.entries()
                if entry.at != PART and not is_vacant(entry.new)
            }
            if not all(self.store.pool.heap.used(new) for new in news):
                return {"written"}
            if any(r in news for r, _ in pairs):
                return {"noted"}
            return {"locked"} if any(locked) else {"published"}
        if decided == DOING and all(locked):
            return {"installing"} if any(new) else {"decided"}
        if decided == ABORT:
            return {"aborted"} if any(locked) else {"releasing"}
        return {"releasing"} if decided == DOING and any(locked) else {"over"}


def _is_compact(page: Page) -> bool:
    """Whether the entries of a page take all bytes from its heap to its fences, and no others."""
    slots = [page.image.word(SLOTS + index) for index in range(page.count)]
    ends = [
        (slot & LENGTH_MASK)
        + (slot >> KEY_SHIFT & LENGTH_MASK)
        + (slot >> VALUE_SHIFT & LENGTH_MASK)
        for slot in slots
    ]
    starts = [slot & LENGTH_MASK for slot in slots]
    inside = all(page.heap <= start for start in starts) and all(end <= page.end for end in ends)
    return inside and sum(ends) - sum(starts) == page.end - page.heap
