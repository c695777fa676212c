"""Where a key is in a tree store, and the operations that only read (table.py has the rest).

A get reads the lock and the pointer of the leaf's TXObj, and then the node (rtx.txt section 5). It
needs no validation: a node is whole, and its pointer is that of a committed transaction. It waits
only for a transaction with a log that holds the leaf (stores/rtx/lllock.py says why).

What is kept here between `enter` and `leave` is of the operation that is inside.
"""

from __future__ import annotations

import functools
import heapq
from array import array
from collections.abc import Callable, Iterator
from typing import Any, Final

from limpet.shm.errors import StoreCorrupt
from limpet.shm.fabric import hash64
from limpet.shm.layout import NODE_SHIFT
from limpet.shm.states import former
from limpet.shm.words import ADDRESS_MASK, REPLICATED
from limpet.stores import regions
from limpet.stores.contract import Store, as_bytes
from limpet.stores.objects import Objects
from limpet.stores.outcomes import AGAIN, DONE, NO_MEMORY
from limpet.stores.rtx.fields import EXTENT_PAIR, LOCKED, LOGGED, OBJECT_MASK, POINTER
from limpet.stores.rtx.lllock import LLLocks, is_vacant
from limpet.stores.rtx.log import Log
from limpet.stores.rtx.repair import Repair
from limpet.stores.sherman.fields import GONE
from limpet.stores.sherman.page import Page
from limpet.stores.sherman.parameters import ShermanParameters
from limpet.stores.sherman.routes import Routes
from limpet.stores.sherman.survey import Survey

PATIENCE: Final = 4
"""After so many attempts, and as many more each time, a client looks whom it waits for."""
HOPS_MAX: Final = 1 << 20


class Lookup(Store):
    """The trees of a store, and finding keys in them. `ShermanParameters`."""

    Parameters = ShermanParameters
    ordered = True
    resolves = True
    transactional = True

    def __init__(self, pool: Any, kind: str, name: str, parameters: ShermanParameters) -> None:
        super().__init__(pool, kind, name, parameters)
        self.link = pool.catalogue.find(name.encode()).number << 48 | REPLICATED
        roots = regions.attach(pool, name, parameters.trees, parameters.table_size)
        self.roots = array("Q", roots)
        self.routes = [Routes(root, parameters.cache_size) for root in roots]
        self.key_size = parameters.key_size
        self.value_size = parameters.value_size
        self.objects = Objects(pool.heap)
        self.locks = LLLocks(pool, parameters.drift_us, parameters.each_us)
        self.repair = Repair(self, self.locks)
        self.page = Page(pool.endpoint, parameters.node_size)
        self.tree = 0
        self.at = 0
        """The object that was read last, its lock and its pointer."""
        self.lock = 0
        self.pointer = 0

    @staticmethod
    def make(pool: Any, name: str, parameters: ShermanParameters) -> None:
        """Make the regions of the trees' objects; zeros are empty trees."""
        regions.make(pool, name, parameters.trees, parameters.table_size)

    @staticmethod
    def unmake(pool: Any, name: str, parameters: ShermanParameters) -> None:
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
                if self._find_leaf(key) == DONE:
                    value = self.value_here(key)
                    return default if value is None else value
            finally:
                self.client.leave()
            attempt += 1
            self.stay(attempt, False)

    def scan(self, low: Any = None, high: Any = None) -> Any:
        """The pairs with low <= key < high, in the order of keys; None: from the first, to the
        last. A key that stays is met once; each node is as it was at one moment. To see all at one
        moment, scan in a transaction.
        """
        first = b"" if low is None else as_bytes("key", low)
        last = None if high is None else as_bytes("key", high)
        trees = [self._pairs_of(tree, first, last) for tree in range(len(self.roots))]
        return heapq.merge(*trees)

    def keys(self) -> Any:
        """Every key, in order; as weakly consistent as `scan`."""
        return (key for key, _ in self.scan())

    def items(self) -> Any:
        return self.scan()

    def read_leaf(self, tree: int, start: bytes) -> tuple[int, bytes | None]:
        """How many keys from `start` on are in the leaf with it, and where the next one begins."""
        page = self.page
        return self.at_leaf(tree, start, lambda: (page.count - page.find(start), page.high()))

    def _pairs_of(self, tree: int, low: bytes, high: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        start: bytes | None = low
        while start is not None and (high is None or start < high):
            found, start = self.read_range(tree, start, high)
            yield from found

    def read_range(
        self, tree: int, start: bytes, high: bytes | None
    ) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """The pairs from `start` on in the leaf with it, and where the next leaf begins."""
        return self.at_leaf(tree, start, functools.partial(self.range_here, start, high))

    def at_leaf(self, tree: int, key: bytes, work: Callable[[], Any]) -> Any:
        """What `work` returns, called in an operation when the leaf in whose range the key is has
        been read."""
        attempt = 0
        while True:
            self.client.enter()
            try:
                if self.find_leaf_of(tree, key) == DONE:
                    return work()
            finally:
                self.client.leave()
            attempt += 1
            self.stay(attempt, False)

    def range_here(
        self, start: bytes, high: bytes | None
    ) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """The pairs from `start` on in the leaf that was read, and where the next one begins."""
        page = self.page
        found: list[tuple[bytes, bytes]] = []
        for index in range(page.find(start), page.count):
            key = page.key(index)
            if high is not None and key >= high:
                return found, None
            found.append((key, self._value(index)))
        return found, page.high()

    def value_here(self, key: bytes) -> bytes | None:
        """The value of a key that is in the range of the leaf that was read; None: it has none."""
        index = self.page.find(key)
        return self._value(index) if self.page.exact else None

    # ---- where a key is -------------------------------------------------------------------------

    def _find_leaf(self, key: bytes) -> int:
        """Read the leaf in whose range a key is, of the tree that it is in."""
        return self.find_leaf_of(self.tree_of(key), key)

    def tree_of(self, key: bytes) -> int:
        """The tree that a key is in; on the memory node of the same number."""
        return (hash64(key) >> 32) * len(self.roots) >> 32

    def find_leaf_of(self, tree: int, key: bytes) -> int:
        """Read the leaf in whose range a key is. AGAIN: it is locked, and may be decided."""
        page = self.page
        routes: Routes = self.routes[tree]
        self.tree = tree
        hashed = hash64(key)
        at = known = routes.hinted(hashed)
        hinted = at != 0
        if not hinted:
            at = known = routes.find(key)
        for _ in range(HOPS_MAX):
            if not self.read_object(at, page):
                return AGAIN
            if page.level == 0 and page.has(key):
                if not hinted:
                    routes.hint(hashed, at)
                    if at != known or not routes.lows:
                        routes.learn(page.low(), at)
                return DONE
            if hinted:
                hinted = False
                at = known = routes.find(key)
            elif at == known and at != routes.root and page.low() != routes.low_at(key):
                routes.drop(key)
                at = known = routes.root
            else:
                at = self.next_hop(page, key, 0)
        raise StoreCorrupt(f"{self.name}: the nodes of tree {tree} lead round in a circle")

    def next_hop(self, page: Page, key: bytes, level: int) -> int:
        """Where to look for a key's node on that level, from a node that is not it.

        The root, if the way there was out of date.
        """
        if page.level == GONE or page.level < level or page.is_above(key):
            return self.roots[self.tree]
        if page.is_below(key):
            return page.sibling()
        return page.child(key)

    def read_object(self, at: int, page: Page) -> bool:
        """Read an object and its node; False: it is locked, and its transaction may be decided.

        The level is GONE if it was vacated; a root is an empty leaf then.
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
            page.read(self.pointer & ADDRESS_MASK)
            endpoint.wait()
        else:
            page.reset(0 if at == self.roots[self.tree] else GONE, b"", None, 0)
        return True

    def _value(self, index: int) -> bytes:
        """The value of an entry of the leaf."""
        page = self.page
        if not page.has_extent(index):
            return page.value(index)
        self.objects.load(page.link(index))
        self.endpoint.wait()
        return self.objects.value()

    # ---- waiting --------------------------------------------------------------------------------

    def node_of(self, key: bytes) -> int:
        """The memory node of a key's tree."""
        return self.roots[self.tree_of(key)] >> NODE_SHIFT & 0xFF

    def stay(self, attempt: int, writes: bool) -> None:
        """Wait a little for the object that was read last; look now and then whom we wait for.

        Who only reads does not wait for a lock without a log, so needs no memory to repair it.
        """
        self.retries += 1
        self.endpoint.pause(attempt)
        if attempt % PATIENCE == 0:
            at = self.at
            self.pool.exclusively(self.pool.membership.sweep_sometimes)
            self._look_until_seen(at, writes)

    def _look_until_seen(self, at: int, writes: bool) -> None:
        outcome = NO_MEMORY
        while outcome == NO_MEMORY:
            self.client.enter()
            try:
                outcome = self._look_after(at, writes)
            finally:
                self.client.leave()
            if outcome == NO_MEMORY:
                self.allocator.replenish(at >> NODE_SHIFT & 0xFF, self.page.size)

    def _look_after(self, at: int, writes: bool) -> int:
        lane = self.endpoint.background(True)
        try:
            state = self.endpoint.load(at)
            if not state & LOCKED or not (writes or state & LOGGED):
                return DONE
            return self.repair.look_after(at, state)
        finally:
            self.endpoint.background(lane)

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
            self._look_after(self.at, False)
            attempt += 1
            self.endpoint.pause(attempt)
        index = self.page.find(key)
        return (
            self.page.exact and self.page.has_extent(index) and (self.page.link(index) == reference)
        )

    def resolved(self, reference: int, home: int) -> bool:
        """Decide a pair of a hand: for a dead client, or for ourselves (contract.py)."""
        return self.repair.resolved(reference, home)

    def listed(self, reference: int, home: int) -> list[int]:
        if home & (OBJECT_MASK | EXTENT_PAIR):
            return []
        try:
            entries = Log(self.locks, reference).entries()
        except StoreCorrupt:
            return []  # of a client that is past it
        pointers = [pointer for entry in entries for pointer in (entry.old, entry.new)]
        return [pointer for pointer in pointers if not is_vacant(pointer)]

    # ---- the whole store ------------------------------------------------------------------------

    def __len__(self) -> int:
        return Survey(self).count()

    def references(self) -> Any:
        """References to all nodes and extents on memory nodes in service, as uint64."""
        return Survey(self).references()

    def check(self) -> None:
        """Verify every invariant of the trees in memory; StoreCorrupt says what does not hold."""
        Survey(self).check()

    def left_by(self, ident: int) -> set[str]:
        return Survey(self).left_by(ident)
