"""The keys of a tree store, as transactions read and write them (stores/transactions/reads.py).

A read of a key, or of a range, rests on the version of the leaf's object, so that goes into the
read set, and not the key. A write is staged in the leaf (write_set.py): in the copy that the read
has made of it, as in the paper, so the commit reads no leaf again. Only the first leaves of a
transaction are copied, as one that reads many seldom writes all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from limpet.shm.errors import NodeFailed
from limpet.stores.core.records import is_vacant
from limpet.stores.core.status import DONE
from limpet.stores.sherman.leaf_writer import is_sparse
from limpet.stores.sherman.write_set import shrink
from limpet.stores.transactions.layout import LOCKED
from limpet.stores.transactions.reads import Reads, TxKeys, Visitor

if TYPE_CHECKING:
    from limpet.stores.sherman.scans import Scans
    from limpet.stores.sherman.trees import Leaf
    from limpet.stores.sherman.tx_trees import TxTrees


COPIES_MAX: Final = 8
"""So many leaves of a transaction are copied when they are read."""


class TreeKeys(TxKeys):
    """The keys of an `rtx-sherman` store."""

    def __init__(self, store: Any, trees: TxTrees, scans: Scans) -> None:
        super().__init__(store, store.link)
        self.client = store.client
        self.trees = trees
        self.leaf = trees.leaf
        """That was read last."""
        self.scans = scans

    # ---- reading --------------------------------------------------------------------------------

    def at_key(self, key: bytes, visitor: Visitor) -> Any:
        store = self.store
        attempt = 0
        while True:
            self.client.enter()
            try:
                store.require_there()
                visitor.before()
                if self.trees.find(self.leaf, key) == DONE:
                    return visitor.visit()
            finally:
                self.client.leave()
            attempt += 1
            store.await_holder(attempt, False)

    def at_leaf(self, tree: int, key: bytes, visitor: Visitor) -> Any:
        """Read the leaf of that tree in whose range the key is, then call `visitor` in the same
        operation; its result."""
        return self.scans.at_leaf(tree, key, visitor)

    def value_here(self) -> bytes | None:
        return self.trees.value_found() if self.leaf.page.exact else None

    def range_here(self, high: bytes | None) -> Any:
        """The pairs from the key looked for on in the leaf that was read, and where the next one
        begins."""
        return self.scans.range_here(high)

    def note(self, reads: Reads, key: bytes, value: Any) -> bool:
        leaf = self.leaf
        if not reads.note_object(leaf.at, leaf.lock, leaf.pointer, self.store, key):
            return False
        if (
            reads.objects_count <= COPIES_MAX
            and not leaf.lock & LOCKED
            and not is_vacant(leaf.pointer)
        ):
            reads.keep(leaf.at, leaf.lock, self)
        return True

    def copied(self) -> Leaf:
        """A copy of the leaf that was read last."""
        leaf = self.leaf
        made = self.trees.blank()
        made.page.copy(leaf.page)
        made.tree, made.at, made.lock, made.pointer = leaf.tree, leaf.at, leaf.lock, leaf.pointer
        return made

    def recall(self, tree: int, at: int, lock: int, pointer: int, key: bytes) -> bool:
        """Take the node of an object with this lock and pointer as the leaf that was read last.
        False: the key is not in its range. Within the operation that read lock and pointer."""
        leaf = self.leaf
        leaf.tree, leaf.at, leaf.lock, leaf.pointer = tree, at, lock, pointer
        return bool(self.trees.recall(leaf, key))

    def busy_at(self) -> int:
        return self.leaf.at

    def tree_here(self) -> int:
        return self.leaf.tree

    # ---- writing --------------------------------------------------------------------------------

    def refuse(self, key: bytes, value: bytes) -> None:
        store = self.store
        store.object_size(key, value)

    def tidy(self, key: bytes) -> None:
        """Merge the key's leaf, if that is sparse."""
        store = self.store
        scope = store.endpoint.background(True)
        try:
            with store.client:
                store.require_there()
                found = self.trees.find(self.leaf, key) == DONE
                sparse = found and is_sparse(self.leaf.page)
            if sparse:
                shrink(store, key)
        except NodeFailed:
            pass  # the key is deleted; the rest can wait
        finally:
            store.endpoint.background(scope)
