"""The trees of a store, and where a key is in them: a neutral B-link base (Sherman, rTX section 5).

The tree stores hold it: `sherman` (plain.py), `rtx-sherman` (transactional.py) and `dtx-sherman`
(stores/baselines/dtx/sherman.py). Each memory node has a tree, and a key's hash chooses the tree.
A search ends with a node that has been read, and the key's place in it: a `Leaf`. A class derived
from `Trees` reads a node: by way of its TXObj (tx_trees.py), or in place (in_place_trees.py).

A client goes to a leaf by the routes (routes.py), or down from the root; from a node to the left of
the key, siblings lead on. The leaf's fences show whether it is the right one.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, Final

from limpet.shm.endpoint.fabric import hash64
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.states import former
from limpet.shm.errors import StoreCorrupt
from limpet.stores.core import regions
from limpet.stores.core.inline import InlineIndex
from limpet.stores.core.records import Objects
from limpet.stores.core.status import AGAIN, DONE, MISSING
from limpet.stores.sherman.layout import (
    EXTENT,
    GONE,
    LINE_MASK,
    LINE_SHIFT,
    PLACE_MASK,
    PLACE_SHIFT,
)
from limpet.stores.sherman.page import Page, link_of
from limpet.stores.sherman.parameters import TreeParameters
from limpet.stores.sherman.routes import Routes
from limpet.stores.transactions.layout import OBJECT_SIZE
from limpet.stores.transactions.staged import Borrowed

HOPS_MAX: Final = 1 << 20


class Leaf(Borrowed):
    """A node that was read, and the entry looked for in it.

    `page`: the node; in a store's own leaf it is a view in place, valid only in the operation that
    has read it. `tree`: the number of its tree. `at`: its object, or its address where nodes have
    no objects. `lock`, `pointer`: of the object when the node was read. `index`: of the first entry
    at or above the key looked for; `page.exact`: whether that entry has the key.
    """

    def __init__(self, page: Page) -> None:
        self.use_page(page)

    def use_page(self, page: Page) -> None:
        """Use this page, of which nothing is known yet. Constructors call it, as that is
        compiled."""
        self.page = page
        self.tree = 0
        self.at = 0
        self.lock = 0
        self.pointer = 0
        self.index = 0
        self.spares = None


def leaf_of(page: Page) -> Leaf:
    """A leaf with this page. It takes less time than the constructor, when compiled."""
    made = Leaf.__new__(Leaf)
    made.use_page(page)
    return made


class Trees(InlineIndex):
    """The trees of a store, for one client. `leaf`: the leaf the current operation reads to."""

    def __init__(self, pool: Any, name: str, parameters: TreeParameters, objects: Objects) -> None:
        """`objects`: reads extents."""
        super().__init__()
        self.name = name
        self.endpoint = pool.endpoint
        self.objects = objects
        self.key_size = parameters.key_size
        self.value_size = parameters.value_size
        self.table_size = parameters.table_size
        self.roots = array("Q", regions.attach(pool, name, parameters.trees, self.table_size))
        self.routes = [Routes(root, parameters.cache_size) for root in self.roots]
        self.parents: list[Routes] = []
        """Of each tree, where the nodes above leaves are, as far as they were met; empty: a client
        looks for them from the root."""
        self.reads_ahead = False
        """Whether leaves have pointers by which they are prefetched."""
        self.leaf = self.reader()
        self.run = [self.leaf]
        """The leaves that an operation of a scan reads to, the first of them `leaf`."""

    def reader(self) -> Leaf:
        """The leaf that a handle's own operations read to."""
        return self.blank()

    def blank(self) -> Leaf:
        """A leaf that nodes are copied to, and changed in."""
        raise NotImplementedError

    def read(self, leaf: Leaf, at: int, near: int) -> bool:
        """Read a node to `leaf`; False: it cannot be read now.

        If there is no node, the level is GONE; a root is then an empty leaf. `near`: a guess of the
        offset that the caller wants in the node.
        """
        raise NotImplementedError

    def read_run(
        self, tree: int, known: int, hashed: int, start: bytes, high: bytes | None, wanted: int,
        most: int,
    ) -> int:  # fmt: skip
        """Read the leaf with `start` and those after it into `run`, if that can be done at once;
        how many, from the first on. They are the right ones only if their fences say so."""
        return 0

    def prefetch_node(self, at: int) -> None:
        """Prefetch the node of this object, which is read soon."""

    def replaced(self, node: int) -> None:
        """From now on, this memory node has other memory."""
        for tree, root in enumerate(self.roots):
            self.roots[tree] = former(root, node)
        for some in (self.routes, self.parents):
            for routes, root in zip(some, self.roots, strict=False):
                routes.root = root
        self.forget()

    def forget(self) -> None:
        """Forget which leaves there are."""
        for some in (self.routes, self.parents):
            for routes in some:
                routes.forget()

    def has_object(self, tree: int, at: int) -> bool:
        """Whether this is the address of an object of a tree."""
        offset = at - self.roots[tree]
        return 0 <= offset < self.table_size and offset % OBJECT_SIZE == 0

    # ---- steps of operations --------------------------------------------------------------------

    def find_once(self, key: bytes, attempt: int) -> int:
        hashed = hash64(key)
        if self.find_leaf(self.leaf, self.number_of(hashed), hashed, key, 0) == AGAIN:
            return AGAIN
        return DONE if self.leaf.page.exact else MISSING

    def is_object(self) -> bool:
        return self.leaf.page.slot & EXTENT != 0

    def value_found(self) -> bytes:
        page = self.leaf.page
        if page.slot & EXTENT:
            return self.value(page, page.slot)
        return page.value_of(page.slot)

    # ---- where a key is -------------------------------------------------------------------------

    def tree_of(self, key: bytes) -> int:
        """The tree that a key is in; on the memory node of the same number."""
        return self.number_of(hash64(key))

    def number_of(self, hashed: int) -> int:
        """The tree of a key with this hash."""
        return (hashed >> 32) * len(self.roots) >> 32

    def node_of(self, key: bytes) -> int:
        """The memory node of a key's tree."""
        return self.roots[self.tree_of(key)] >> NODE_SHIFT & 0xFF

    def find(self, leaf: Leaf, key: bytes) -> int:
        """Read the leaf in whose range a key is, of the tree that it is in. DONE or AGAIN."""
        hashed = hash64(key)
        return self.find_leaf(leaf, self.number_of(hashed), hashed, key, 0)

    def find_in(self, leaf: Leaf, tree: int, key: bytes) -> int:
        """Read the leaf of this tree in whose range a key is. DONE or AGAIN."""
        return self.find_leaf(leaf, tree, hash64(key), key, 0)

    def find_leaf(self, leaf: Leaf, tree: int, hashed: int, key: bytes, known: int) -> int:
        """Read the leaf in whose range a key is, and find its entry: `index`, and `page.exact`.

        `known`: the leaf as far as is known; 0: use the hint. If an entry has the key, the fences
        are not checked. AGAIN: a node on the way cannot be read now.
        """
        page = leaf.page
        routes: Routes = self.routes[tree]
        leaf.tree = tree
        hint = 0 if known else routes.hinted(hashed)
        place = hint >> PLACE_SHIFT & PLACE_MASK
        if hint:
            known = routes.hinted_leaf(hint)
        hinted = known != 0
        at = routed = known if hinted else routes.find(key)
        descended = at == routes.root
        for _ in range(HOPS_MAX):
            if not self.read(leaf, at, self.near(hint)):
                return AGAIN
            if hinted and page.level == 0 and page.is_at(place, key):
                leaf.index = place
                return DONE
            leaf.index = page.find(key) if page.level == 0 else 0
            if self._is_its_leaf(page, key, hinted):
                if not hinted and (at != routed or routes.is_empty()):
                    routes.note_leaf(page.low(), at)
                if page.exact:
                    self.note_place(leaf, routes, hashed)
                return DONE
            if hinted:
                hinted = False
                at = routed = routes.find(key)
                descended = at == routes.root
            elif at == routed and at != routes.root and page.low() != routes.low_at(key):
                routes.drop(key)
                at = routed = routes.root
                descended = True
            elif at != routed and not descended:
                # Far to the left of it: few leaves are known yet.
                at = routes.root
                descended = True
            else:
                if page.level == 1 and page.has(key):
                    self._note_children(leaf, routes)
                at = self.next_hop(leaf, key, 0)
        raise StoreCorrupt(f"{self.name}: the nodes of tree {tree} lead round in a circle")

    def _is_its_leaf(self, page: Page, key: bytes, hinted: bool) -> bool:
        """Whether a node that was read is the leaf of this key, also if a hint led there."""
        return page.level == 0 and (page.exact or page.has_looked_for(key))

    def near(self, hint: int) -> int:
        """About where in the node an entry is, by a hint."""
        return (hint >> LINE_SHIFT & LINE_MASK) << 6

    def note_place(self, leaf: Leaf, routes: Routes, hashed: int) -> None:
        """Note where the entry is that was found, of the key with this hash."""
        if routes.is_new(hashed):
            self._hint_all(leaf, routes)
        routes.hint(hashed, leaf.at, leaf.index, leaf.page.offset(leaf.index))

    def _hint_all(self, leaf: Leaf, routes: Routes) -> None:
        """Note the places of all keys of a leaf for which no other hint is noted."""
        page = leaf.page
        for index in range(page.count):
            hashed = hash64(page.key(index))
            if routes.is_new(hashed):
                routes.hint(hashed, leaf.at, index, page.offset(index))

    def _note_children(self, leaf: Leaf, routes: Routes) -> None:
        """Note all leaves below an inner node."""
        page = leaf.page
        if not page.count:
            raise StoreCorrupt(f"{self.name}: an inner node of tree {leaf.tree} is empty: damaged")
        lows = [page.key(index) for index in range(page.count)]
        leaves = [page.link(index) for index in range(page.count)]
        routes.note_leaves(lows, leaves, page.high())

    def next_hop(self, leaf: Leaf, key: bytes, level: int) -> int:
        """The next node on the way to a key's node on that level, from a node that is not it.

        It is the root if the way there was out of date.
        """
        page = leaf.page
        if page.level == GONE or page.level < level or page.is_above(key):
            return self.roots[leaf.tree]
        if page.is_below(key):
            return page.sibling()
        return page.child(key)

    def find_leaf_below(self, leaf: Leaf, tree: int, end: bytes | None) -> int:
        """Read the leaf of a tree with the keys just below `end`, which is not empty; None: the
        last leaf. DONE; AGAIN: a node on the way cannot be read now."""
        page = leaf.page
        routes: Routes = self.routes[tree]
        leaf.tree = tree
        at = routes.find_below(end)
        for _ in range(HOPS_MAX):
            if not self.read(leaf, at, 0):
                return AGAIN
            if page.level == GONE or (end is not None and not page.begins_below(end)):
                at = routes.root
            elif page.ends_below(end):
                at = page.sibling()
            elif page.level == 0:
                return DONE
            else:
                if page.level == 1:
                    self._note_children(leaf, routes)
                at = page.child_below(end)
        raise StoreCorrupt(f"{self.name}: the nodes of tree {tree} lead round in a circle")

    # ---- values ---------------------------------------------------------------------------------

    def value(self, page: Page, slot: int) -> bytes:
        """The value of the entry of a leaf that has this slot."""
        value = page.value_of(slot)
        if not slot & EXTENT:
            return value
        self.objects.post(link_of(value))
        self.endpoint.wait()
        self.objects.arrived()
        return self.objects.value()

    def is_linked(self, leaf: Leaf, reference: int, look: Callable[[int], Any]) -> bool:
        """Whether the entry of an extent's key has the extent; for a client journal. The extent is
        unchanged, since the client that has it in its journal is pinned. `look`: handles the lock
        at an address that delays the search."""
        objects = self.objects
        objects.load(reference)
        if not objects.fits(reference):
            return False  # it was not written yet
        key = objects.key()
        node, home = reference >> NODE_SHIFT & 0xFF, self.node_of(key)
        # what belongs on the node of a tree may lie on one that was added
        if len(key) > self.key_size or (node != home and node < len(self.roots)):
            return False
        if node != home and self.endpoint.failed(self.roots[home]):
            return False  # the link went with its node
        attempt = 0
        while self.find(leaf, key) == AGAIN:
            look(leaf.at)
            attempt += 1
            self.endpoint.pause(attempt)
        page, index = leaf.page, leaf.index
        return page.exact and page.has_extent(index) and page.link(index) == reference
