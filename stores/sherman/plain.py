"""The `sherman` store: a B-link tree changed in place under locks (rTX section 6, "Optimal").

After Sherman (Wang et al., SIGMOD '22), with no transactions and no recovery: a baseline. Each
memory node has a tree of its own, and a key's hash chooses the tree; a scan merges the trees. The
region of a tree has its root node, which never moves, so no client races for it (R8), and a table
of locks (in_place_commit.py). All other nodes are objects of the heap, linked by address.

Get: read the leaf, to which the routes (stores/sherman/routes.py) lead; read a torn node again.

Put, insert, update, delete: lock the leaf and read it in one round trip; write it in place and
unlock it, by a plain write, in another. (Sherman combines commands to one memory node likewise: the
node does them in order.) So an insert that splits nothing reads 1 KiB, writes 1 KiB and 8 bytes,
and makes one CAS, as in table 2.

A leaf that overflows is split under its lock: the client writes the new sibling, then the leaf,
which links to it. It unlocks the leaf, then locks the node above and adds an entry there. If there
is no memory for that, or the client dies before, the leaf's sibling link leads to the new node. A
root that overflows becomes an inner node above two new ones.

Sherman's nodes are never merged. Here a delete that leaves a leaf nearly empty merges it with a
neighbour, and locks all nodes that this changes (in_place_commit.py). So a tree without keys takes
no memory.

A kill leaves behind: locks that no client gives back, a torn node, memory. A client that waits for
a dead one raises StoreStuck and does not hang; `rtx-sherman` and `dtx-sherman` recover.

The `dtx-sherman` store (stores/baselines/dtx/sherman.py) holds the same parts; it is optimistic and
has a log.

Further deviations: slotted pages with entries of any size; a checksum beside the versions
(in_place_trees.py); a lock word names its holder; the lock table has one word a node and no queues.

Round trips without conflict, which are all exchanges with the memory node: get 1, insert, update
and delete 2.
"""

from __future__ import annotations

from typing import Any

from limpet.shm.endpoint.words import REPLICATED
from limpet.shm.errors import AddressError, NodeFailed, StoreCorrupt, StoreStuck
from limpet.stores.core import regions
from limpet.stores.core.inline import InlineStore
from limpet.stores.sherman.in_place_check import InPlaceCheck
from limpet.stores.sherman.in_place_commit import InPlaceCommit, NodeLocks
from limpet.stores.sherman.in_place_parameters import NODE_PAIR, InPlaceParameters
from limpet.stores.sherman.in_place_trees import InPlaceTrees, look_after_torn
from limpet.stores.sherman.in_place_write_set import InPlaceStaging, InPlaceWriter
from limpet.stores.sherman.scans import Scans


class Sherman(InlineStore):
    """The `sherman` store. `InPlaceParameters`."""

    Parameters = InPlaceParameters
    ordered = True
    grows = True
    resolves = True

    def __init__(self, pool: Any, kind: str, name: str, parameters: InPlaceParameters) -> None:
        super().__init__(pool, kind, name, parameters)
        self.link = self.entry_number << 48 | REPLICATED
        self.objects.posts = True
        self.batches_gets = False
        self.index = self.trees = InPlaceTrees(pool, name, parameters, self.objects, self.link)
        self.leaf = self.trees.leaf
        self.scans = Scans(self, self.trees, self.leaf)
        self.node_locks = NodeLocks(self)
        self.writer = InPlaceWriter(self, InPlaceCommit)

    @staticmethod
    def make(pool: Any, name: str, parameters: InPlaceParameters) -> None:
        """Make the regions of the trees: roots and locks. Zeros are empty trees."""
        regions.make(pool, name, parameters.trees, parameters.table_size)

    @staticmethod
    def unmake(pool: Any, name: str, parameters: InPlaceParameters) -> None:
        regions.unmake(pool, name, parameters.trees)

    def replaced(self, node: int) -> None:
        self.trees.replaced(node)

    def forget(self) -> None:
        self.trees.forget()

    # ---- steps of operations --------------------------------------------------------------------

    def _first_way(self) -> Any:
        return self.writer.first_way()

    def _change_once(
        self, key: bytes, value: bytes, size: int, mode: int, attempt: int, at: int, way: Any
    ) -> int:
        return self.writer.change_once(way, key, value, mode)

    def _make_way(self, outcome: int, way: Any, key: bytes, size: int, mode: int) -> Any:
        return self.writer.go_on(outcome, way, key, mode)

    def find_memory(self, update: bool, *wanted: Any) -> Any:
        return self.writer.find_memory(update, *wanted)

    def await_holder(self, attempt: int, writes: bool) -> None:
        self.retries += 1
        self.writer.await_holder(attempt)

    def commit(self) -> InPlaceCommit:
        """The write set of a change."""
        made: InPlaceCommit = self.writer.commit(self)
        return made

    def staging(self, commit: InPlaceCommit) -> InPlaceStaging:
        """The part of this write set that changes this store."""
        return InPlaceStaging(self, commit)

    def look_for(self, tree: int, at: int) -> None:
        """Check the client that we wait for, at this node of a tree. Outside of operations."""
        self.pool.membership.sweep_sometimes()
        self.while_there(self._check_node, at)

    def checker(self) -> InPlaceCheck:
        return InPlaceCheck(self)

    # ---- waiting --------------------------------------------------------------------------------

    def _check_node(self, at: int) -> None:
        scope = self.endpoint.background(True)
        try:
            holder = self.node_locks.holder(at)
            if holder:
                self._look_after_holder(at, holder)
            else:
                look_after_torn(self, at)
        finally:
            self.endpoint.background(scope)

    def _look_after_holder(self, at: int, holder: int) -> None:
        """Raise StoreStuck if the client that holds a lock is dead."""
        if self.pool.membership.lives(holder):
            return
        # ORDER: after the check of the client, which may have unlocked the node and left.
        if self.node_locks.holder(at) == holder:
            raise StoreStuck(
                f"{self.name}: client {holder:#x} died with the lock of the node at {at:#x} in "
                f"{self.pool.url}; a {self.kind} store recovers nothing; rtx-sherman and "
                "dtx-sherman stores do"
            )

    # ---- recovery -------------------------------------------------------------------------------

    def resolved(self, reference: int, link_address: int) -> bool:
        """Whether a pair of a client journal is linked, or may be, if that cannot be decided."""
        if link_address & NODE_PAIR:
            return True
        try:
            return bool(self.trees.is_linked(self.leaf, reference, self._check_node))
        except (StoreStuck, StoreCorrupt, AddressError, NodeFailed):
            return True

    def image_of(self, at: int) -> int:
        """Address of the new contents of a torn node; 0: no log has them."""
        return 0
