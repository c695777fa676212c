"""Where a key is in a tree store, and gets (scans.py has scans, transactional.py what changes it).

A get reads the lock and the pointer of the leaf's TXObj, and then the node (rTX section 5). It
needs no validation: a node is whole, and its pointer is that of a committed transaction. It waits
only for a transaction with a log that holds the leaf (stores/rtx/lllock.py says why).

Nodes are looked at in place (`Image`): they are not changed while they are linked, nor is their
memory used again while a client is pinned. So what was read is for the operation that read it only.

What is kept here between `enter` and `leave` is of the operation that is inside.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, Final

from limpet.shm.endpoint.fabric import hash64
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.states import former
from limpet.shm.endpoint.words import ADDRESS_MASK, REPLICATED
from limpet.shm.errors import StoreCorrupt
from limpet.stores import regions
from limpet.stores.base import as_bytes
from limpet.stores.inline import InlineStore
from limpet.stores.rtx.layout import LOCKED, LOGGED, OBJECT_SIZE, POINTER
from limpet.stores.rtx.lllock import LLLocks, is_vacant
from limpet.stores.rtx.reads import ObjectRead
from limpet.stores.rtx.repair import Repair
from limpet.stores.sherman.check import Survey
from limpet.stores.sherman.layout import (
    ENTRY_SIZE,
    EXTENT,
    GONE,
    LINE_MASK,
    LINE_SHIFT,
    PLACE_MASK,
    PLACE_SHIFT,
)
from limpet.stores.sherman.page import Page, link_of
from limpet.stores.sherman.parameters import ShermanParameters, TreeParameters
from limpet.stores.sherman.routes import Routes
from limpet.stores.status import AGAIN, BATCH, DONE

HOPS_MAX: Final = 1 << 20


class Lookup(InlineStore):
    """The trees of a store, and finding keys in them. `ShermanParameters`."""

    Parameters: type[TreeParameters] = ShermanParameters
    ordered = True
    grows = True
    resolves = True
    transactional = True

    def __init__(self, pool: Any, kind: str, name: str, parameters: TreeParameters) -> None:
        super().__init__(pool, kind, name, parameters)
        self.link = pool.entry_of(name)[0] << 48 | REPLICATED
        roots = regions.attach(pool, name, parameters.trees, parameters.table_size)
        self.roots = array("Q", roots)
        self.routes = [Routes(root, parameters.cache_size) for root in roots]
        self.equip(parameters)
        self.tree = 0
        self.at = 0
        """The object that was read last, its lock and its pointer."""
        self.lock = 0
        self.pointer = 0
        self.index = 0
        """Of the first entry of the leaf that was read last at or above the key looked for."""
        self.hints = array("Q", bytes(8 * BATCH))
        self.pointers = array("Q", bytes(8 * BATCH))
        """Of a batch of keys: where they may be, and the nodes there; 0: it is not known."""

    def equip(self, parameters: Any) -> None:
        """Have what nodes are locked and read with."""
        self.locks = LLLocks(self.pool, parameters.drift_us, parameters.each_us)
        self.repair: Any = Repair(self, self.locks)
        self.page = Page(self.endpoint, parameters.node_size, in_place=True)

    def blank(self) -> Page:
        """A copy of no node yet."""
        return Page(self.endpoint, self.parameters.node_size)

    @staticmethod
    def make(pool: Any, name: str, parameters: TreeParameters) -> None:
        """Make the regions of the trees' objects; zeros are empty trees."""
        regions.make(pool, name, parameters.trees, parameters.table_size)

    @staticmethod
    def unmake(pool: Any, name: str, parameters: TreeParameters) -> None:
        regions.unmake(pool, name, parameters.trees)

    def replaced(self, node: int) -> None:
        for tree, root in enumerate(self.roots):
            self.roots[tree] = former(root, node)
            self.routes[tree].root = self.roots[tree]
        self.forget()

    def forget(self) -> None:
        for routes in self.routes:
            routes.forget()

    # ---- operations -----------------------------------------------------------------------------

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of `key`, or `default`. 2 round trips; 3 if it is in an extent."""
        if type(key) is not bytes:
            key = as_bytes("key", key)
        self.operations += 1
        attempt = 0
        while True:
            self.client.enter()
            try:
                self.require_there()
                if self._find_leaf(key) == DONE:
                    return self._value(self.page.slot) if self.page.exact else default
            finally:
                self.client.leave()
            attempt += 1
            self.stay(attempt, False)

    def _get_batch(self, keys: list[bytes], found: list[bytes | None]) -> list[int]:
        """Append the values of at most BATCH keys that are where they were when they were last
        met; the places in `found` of the others, for which None is appended. The reads of a phase
        overlap.
        """
        missed: list[int] = []
        page = self.page
        for row in range(len(keys)):
            self._foresee(row, keys[row])
        for row in range(len(keys)):
            self.pointers[row] = self._approach(row)
        self.endpoint.wait()
        for row in range(len(keys)):
            place = self.hints[row] >> PLACE_SHIFT & PLACE_MASK
            if self.pointers[row]:
                page.read(self.pointers[row] & ADDRESS_MASK)
                if page.level == 0 and page.is_at(place, keys[row]):
                    found.append(self._value(page.slot))
                    continue
            missed.append(len(found))
            found.append(None)
        self.endpoint.wait()
        return missed

    def _foresee(self, row: int, key: bytes) -> None:
        """Note in which leaf a key of a batch may be."""
        hashed = hash64(key)
        routes: Routes = self.routes[self._tree_of(hashed)]
        hint = routes.hinted(hashed)
        self.hints[row] = hint
        self.pointers[row] = routes.hinted_leaf(hint) if hint else 0
        self.endpoint.prefetch(self.pointers[row], POINTER + 8)

    def _approach(self, row: int) -> int:
        """The pointer to the node in which a key of a batch may be; 0: it is not known."""
        pointer = self._pointer_at(self.pointers[row]) if self.pointers[row] else 0
        if pointer:
            node = pointer & ADDRESS_MASK
            self.endpoint.prefetch(node, ENTRY_SIZE)
            self.endpoint.prefetch(node + self._near(self.hints[row]), ENTRY_SIZE)
        return pointer

    def _pointer_at(self, at: int) -> int:
        """The pointer of an object; 0: it is vacant, or locked and may be decided."""
        endpoint = self.endpoint
        # ORDER: the lock before the pointer.
        lock = endpoint.load(at)
        pointer = endpoint.load(at + POINTER)
        if is_vacant(pointer) or (lock & LOCKED and lock & LOGGED):
            return 0
        return pointer

    def _near(self, hint: int) -> int:
        """Where in the node an entry is, about, by a hint."""
        return (hint >> LINE_SHIFT & LINE_MASK) << 6

    def at_leaf(self, tree: int, key: bytes, work: Callable[[], Any]) -> Any:
        """What `work` returns, called in an operation when the leaf in whose range the key is has
        been read."""
        attempt = 0
        while True:
            self.client.enter()
            try:
                self.require_there()
                if self.find_leaf_of(tree, key) == DONE:
                    return work()
            finally:
                self.client.leave()
            attempt += 1
            self.stay(attempt, False)

    def at_key(self, key: bytes, work: Callable[[], Any]) -> Any:
        """What `work` returns, called in an operation when the leaf with the key has been read."""
        return self.at_leaf(self.tree_of(key), key, work)

    def note(self, reads: Any, key: bytes, value: Any) -> bool:
        """Note the leaf that was read last in a transaction's read set."""
        found = ObjectRead(self.lock, self.pointer, self, key)
        return bool(reads.note_object(self.at, found))

    def has_object(self, tree: int, at: int) -> bool:
        """Whether this is the address of an object of a tree."""
        offset = at - self.roots[tree]
        return 0 <= offset < self.parameters.table_size and offset % OBJECT_SIZE == 0

    def recall(self, tree: int, at: int, lock: int, pointer: int, key: bytes) -> bool:
        """Have the node of an object, with this lock and pointer, be the leaf that was read last;
        False: it is not the one in whose range the key is. In the operation that found it so."""
        page = self.page
        self.tree = tree
        self.at = at
        self.lock = lock
        self.pointer = pointer
        if not is_vacant(pointer):
            page.read(pointer & ADDRESS_MASK)
        elif at == self.roots[tree]:
            page.reset(0, b"", None, 0)
        else:
            return False
        if page.level or not page.has(key):
            return False
        self.index = page.find(key)
        return True

    def value_here(self) -> bytes | None:
        """The value of the key looked for, in the leaf that was read; None: it has none."""
        return self._value(self.page.slot) if self.page.exact else None

    # ---- where a key is -------------------------------------------------------------------------

    def _find_leaf(self, key: bytes) -> int:
        """Read the leaf in whose range a key is, of the tree that it is in."""
        hashed = hash64(key)
        return self._look(self._tree_of(hashed), hashed, key, 0)

    def tree_of(self, key: bytes) -> int:
        """The tree that a key is in; on the memory node of the same number."""
        return self._tree_of(hash64(key))

    def _tree_of(self, hashed: int) -> int:
        return (hashed >> 32) * len(self.roots) >> 32

    def find_leaf_of(self, tree: int, key: bytes) -> int:
        """Read the leaf in whose range a key is. AGAIN: it is locked, and may be decided."""
        return self._look(tree, hash64(key), key, 0)

    def _look(self, tree: int, hashed: int, key: bytes, leaf: int) -> int:
        """Read the leaf in whose range a key is, and find its entry: `index`, and `page.exact`.

        `leaf`: the object of the leaf, as far as is known; 0: what is hinted at. An entry with the
        key needs no look at the fences. AGAIN: it is locked, and may be decided.
        """
        page = self.page
        routes: Routes = self.routes[tree]
        self.tree = tree
        hint = 0 if leaf else routes.hinted(hashed)
        place = hint >> PLACE_SHIFT & PLACE_MASK
        if hint:
            leaf = routes.hinted_leaf(hint)
        hinted = leaf != 0
        at = known = leaf if hinted else routes.find(key)
        descended = at == routes.root
        for _ in range(HOPS_MAX):
            if not self.read_object(at, page, self._near(hint)):
                return AGAIN
            if hinted and page.level == 0 and page.is_at(place, key):
                self.index = place
                return DONE
            self.index = page.find(key) if page.level == 0 else 0
            if page.level == 0 and (page.exact or page.has(key)):
                if not hinted and (at != known or not routes.lows):
                    routes.learn(page.low(), at)
                if page.exact:
                    if routes.is_new(hashed):
                        self._hint_all(routes)
                    routes.hint(hashed, at, self.index, page.offset(self.index))
                return DONE
            if hinted:
                hinted = False
                at = known = routes.find(key)
                descended = at == routes.root
            elif at == known and at != routes.root and page.low() != routes.low_at(key):
                routes.drop(key)
                at = known = routes.root
                descended = True
            elif at != known and not descended:
                # Far to the left of it: few leaves are known yet.
                at = routes.root
                descended = True
            else:
                if page.level == 1 and page.has(key):
                    self._learn_children(routes)
                at = self.next_hop(page, key, 0)
        raise StoreCorrupt(f"{self.name}: the nodes of tree {tree} lead round in a circle")

    def _hint_all(self, routes: Routes) -> None:
        """Note where all keys of the leaf that was read are, as far as nothing else is noted."""
        page = self.page
        for index in range(page.count):
            hashed = hash64(page.key(index))
            if routes.is_new(hashed):
                routes.hint(hashed, self.at, index, page.offset(index))

    def _learn_children(self, routes: Routes) -> None:
        """Note all leaves below the inner node that was read."""
        page = self.page
        if not page.count:
            raise StoreCorrupt(f"{self.name}: an inner node of tree {self.tree} is empty: damaged")
        lows = [page.key(index) for index in range(page.count)]
        leaves = [page.link(index) for index in range(page.count)]
        routes.learn_all(lows, leaves, page.high())

    def next_hop(self, page: Page, key: bytes, level: int) -> int:
        """Where to look for a key's node on that level, from a node that is not it.

        The root, if the way there was out of date.
        """
        if page.level == GONE or page.level < level or page.is_above(key):
            return self.roots[self.tree]
        if page.is_below(key):
            return page.sibling()
        return page.child(key)

    def read_object(self, at: int, page: Page, near: int = 0) -> bool:
        """Read an object and its node; False: it is locked, and its transaction may be decided.

        The level is GONE if it was vacated; a root is an empty leaf then. `near`: what is looked
        for in the node may be there.
        """
        endpoint = self.endpoint
        # ORDER: the lock before the pointer.
        self.lock = endpoint.load(at)
        self.at = at
        self.pointer = endpoint.load(at + POINTER)
        endpoint.wait()
        if self.lock & LOCKED and self.lock & LOGGED:
            return False
        if not is_vacant(self.pointer):
            if near:
                endpoint.prefetch((self.pointer & ADDRESS_MASK) + near, ENTRY_SIZE)
            else:
                endpoint.prefetch(self.pointer & ADDRESS_MASK, page.size)
            page.read(self.pointer & ADDRESS_MASK)
            endpoint.wait()
        else:
            page.reset(0 if at == self.roots[self.tree] else GONE, b"", None, 0)
        return True

    def _value(self, slot: int) -> bytes:
        """The value of the entry of the leaf that has this slot."""
        value = self.page.value_of(slot)
        if not slot & EXTENT:
            return value
        self.objects.load(link_of(value))
        self.endpoint.wait()
        return self.objects.value()

    # ---- waiting --------------------------------------------------------------------------------

    def node_of(self, key: bytes) -> int:
        """The memory node of a key's tree."""
        return self.roots[self.tree_of(key)] >> NODE_SHIFT & 0xFF

    def stay(self, attempt: int, writes: bool) -> None:
        """Wait a little for the object that was read last (repair.py)."""
        self.retries += 1
        self.repair.stay(self.at, attempt, writes)

    def carry_out(self, log: Any) -> bool:
        """Carry out a log that is decided; whether it was to commit."""
        return bool(log.finish())

    def copy_for(self, at: int, old: int, state: int) -> int:
        """A copy of the data at `old`, in hand, that begins with `state`; 0: no memory is ready."""
        reference = self.allocator.allocate(at >> NODE_SHIFT & 0xFF, self.page.size, 1)
        if reference:
            self.copy(old, reference, state)
        return reference

    def copy(self, old: int, new: int, state: int) -> None:
        """Write to `new` a copy of the data at `old` that begins with `state`."""
        page = Page(self.endpoint, self.page.size)
        if is_vacant(old):
            page.reset(0, b"", None, 0)
        else:
            page.read(old & ADDRESS_MASK)
        page.write(new & ADDRESS_MASK, state)

    def is_linked(self, reference: int) -> bool:
        """Whether the entry of an extent's key has it; for a hand. It is as it was: who has it in
        hand is pinned."""
        objects = self.objects
        objects.load(reference)
        if not objects.fits(reference):
            return False  # it was not written yet
        key = objects.key()
        if len(key) > self.key_size or self.node_of(key) != reference >> NODE_SHIFT & 0xFF:
            return False
        attempt = 0
        while self._find_leaf(key) == AGAIN:
            self.repair.look(self.at, False)
            attempt += 1
            self.endpoint.pause(attempt)
        page, index = self.page, self.index
        return page.exact and page.has_extent(index) and page.link(index) == reference

    def resolved(self, reference: int, home: int) -> bool:
        """Decide a pair of a hand: for a dead client, or for ourselves (base.py)."""
        return self.repair.resolved(reference, home)

    def listed(self, reference: int, home: int) -> list[int]:
        return self.repair.listed(reference, home)

    def stats(self) -> dict[str, Any]:
        """As of every store; `repairs`: locks that this handle has found at the end of their lease,
        and seen to. The owners of some may live (rTX section 6.4)."""
        return {**super().stats(), "repairs": self.repair.repairs}

    def survey(self) -> Survey:
        return Survey(self)
