"""Trees whose nodes are the data of TXObjs, as transactions have them (rTX section 5, figure 6).

A get reads the lock and the pointer of the leaf's TXObj, and then the node. It needs no validation:
a node is whole, and its pointer is that of a committed transaction. It waits only for a transaction
with a log that holds the leaf (stores/rtx/lllock.py says why).

Clients look at nodes in place (`Image`): a node is not changed while it is linked, and its memory
is not used again while a client is pinned. So a node that was read is valid only in the operation
that read it.
"""

from __future__ import annotations

from array import array
from typing import Any

from limpet.shm.endpoint.fabric import hash64
from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.shm.errors import StoreFull
from limpet.stores.records import Objects
from limpet.stores.rtx.layout import LOCKED, LOGGED, POINTER
from limpet.stores.sherman.layout import ENTRY_SIZE, GONE, PLACE_MASK, PLACE_SHIFT
from limpet.stores.sherman.page import Page
from limpet.stores.sherman.parameters import TreeParameters
from limpet.stores.sherman.routes import Routes
from limpet.stores.sherman.trees import Leaf, Trees, leaf_of
from limpet.stores.status import BATCH
from limpet.stores.vacant import is_vacant


class TxTrees(Trees):
    """The trees of a store whose nodes are data of TXObjs."""

    def __init__(self, pool: Any, name: str, parameters: TreeParameters, objects: Objects) -> None:
        self.node_size = parameters.node_size
        super().__init__(pool, name, parameters, objects)
        self.client = pool.client
        self.object_count = parameters.objects
        self.capacity = parameters.capacity
        self.cursor = self.client.ident
        """Where to look for the next vacant object; clients begin at different ones."""
        self.spares: list[Page] = []
        """Pages that transactions have used, for the next ones: within operations."""
        self.parents = [Routes(root, parameters.cache_size) for root in self.roots]
        self.reads_ahead = True
        self.hints = array("Q", bytes(8 * BATCH))
        self.pointers = array("Q", bytes(8 * BATCH))
        """Of each key of a batch: the leaf it may be in, and the node there; 0: not known."""

    def reader(self) -> Leaf:
        return Leaf(Page(self.endpoint, self.node_size, in_place=True))

    def blank(self) -> Leaf:
        if self.spares:
            return leaf_of(self.spares.pop())
        page = Page(self.endpoint, self.node_size)
        page.spares = self.spares
        return leaf_of(page)

    def read(self, leaf: Leaf, at: int, near: int) -> bool:
        """Read an object and its node; False: it is locked, and its transaction may be decided."""
        endpoint = self.endpoint
        page = leaf.page
        # ORDER: the lock before the pointer.
        leaf.lock = endpoint.load(at)
        leaf.at = at
        leaf.pointer = endpoint.load(at + POINTER)
        endpoint.wait()
        if leaf.lock & LOCKED and leaf.lock & LOGGED:
            return False
        if not is_vacant(leaf.pointer):
            if near:
                endpoint.prefetch((leaf.pointer & ADDRESS_MASK) + near, ENTRY_SIZE)
            else:
                endpoint.prefetch(leaf.pointer & ADDRESS_MASK, page.size)
            page.read(leaf.pointer & ADDRESS_MASK)
            endpoint.wait()
        else:
            page.reset(0 if at == self.roots[leaf.tree] else GONE, b"", None, 0)
        return True

    def pointer_at(self, at: int) -> int:
        """The pointer of an object; 0: it is vacant, or locked and may be decided."""
        endpoint = self.endpoint
        # ORDER: the lock before the pointer.
        lock = endpoint.load(at)
        pointer = endpoint.load(at + POINTER)
        if is_vacant(pointer) or (lock & LOCKED and lock & LOGGED):
            return 0
        return pointer

    def forget(self) -> None:
        super().forget()
        self.cursor = self.client.ident

    def next_vacant(self) -> int:
        """Number of the next object that may be vacant."""
        self.cursor = (self.cursor + 1) % self.object_count
        return self.cursor

    def why_full(self, tree: int) -> StoreFull:
        """The error to raise when a tree has no vacant object."""
        return StoreFull(
            f"{self.name}: all {self.object_count} nodes of tree {tree} are in use; the store was "
            f"made with capacity {self.capacity}"
        )

    def foresee(self, at: int) -> None:
        self.endpoint.foresee(at + POINTER, 0, self.node_size)

    def recall(self, leaf: Leaf, key: bytes) -> bool:
        """Read the node of an object, whose lock and pointer are known, and find a key in it;
        False: the key is not in its range.

        In the operation that read lock and pointer.
        """
        page = leaf.page
        if not is_vacant(leaf.pointer):
            page.read(leaf.pointer & ADDRESS_MASK)
        elif leaf.at == self.roots[leaf.tree]:
            page.reset(0, b"", None, 0)
        else:
            return False
        if page.level or not page.has(key):
            return False
        leaf.index = page.find(key)
        return True

    # ---- many keys ------------------------------------------------------------------------------

    def get_batch(self, keys: list[bytes], found: list[bytes | None]) -> list[int]:
        """Append the values of at most BATCH keys. For a key that is not where it was last met,
        append None, and return its place in `found`. The reads of a phase overlap.
        """
        missed: list[int] = []
        page = self.leaf.page
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
                    found.append(self.value(page, page.slot))
                    continue
            missed.append(len(found))
            found.append(None)
        self.endpoint.wait()
        return missed

    def _foresee(self, row: int, key: bytes) -> None:
        """Note in which leaf a key of a batch may be."""
        hashed = hash64(key)
        routes: Routes = self.routes[self.number_of(hashed)]
        hint = routes.hinted(hashed)
        self.hints[row] = hint
        self.pointers[row] = routes.hinted_leaf(hint) if hint else 0
        self.endpoint.prefetch(self.pointers[row], POINTER + 8)

    def _approach(self, row: int) -> int:
        """The pointer to the node in which a key of a batch may be; 0: it is not known."""
        pointer = self.pointer_at(self.pointers[row]) if self.pointers[row] else 0
        if pointer:
            node = pointer & ADDRESS_MASK
            self.endpoint.prefetch(node, ENTRY_SIZE)
            self.endpoint.prefetch(node + self.near(self.hints[row]), ENTRY_SIZE)
        return pointer

    # ---- copies ---------------------------------------------------------------------------------

    def copy(self, old: int, new: int, state: int) -> None:
        """Write to `new` a copy of the data at `old` that begins with `state`."""
        page = Page(self.endpoint, self.node_size)
        if is_vacant(old):
            page.reset(0, b"", None, 0)
        else:
            page.read(old & ADDRESS_MASK)
        page.write(new & ADDRESS_MASK, state)
