"""The `sherman` store: a B-link tree changed in place under locks (rTX section 6, "Optimal").

After Sherman (Wang et al., SIGMOD '22), with no transactions and no recovery: a baseline. On each
memory node there is a tree of its own, and a key's hash chooses; a scan merges the trees. The
region of a tree is its root node, which stays where it is for ever, so that nobody races for it
(R8), and a table of locks (locks.py). All other nodes are objects of the heap, linked by address.

Get: read the leaf, which the routes (stores/sherman/routes.py) lead to; a node that is torn is read
again.

Put, insert, update, delete: lock the leaf, read it, write it in place, unlock it. The unlocking is
a plain write in the same round trip as the node. So an insert that splits nothing reads 1 KiB,
writes 1 KiB and 8 bytes, and makes one CAS, as in table 2.

A leaf that overflows is split under its lock: the new sibling is written, then the leaf, which
links to it. It is unlocked, and then the node above is locked and gets its entry; if there is no
memory for that, or the client dies before, the siblings lead there. A root that overflows becomes
an inner node above two new ones.

Sherman's nodes are never merged. Here a delete that leaves a leaf nearly empty merges it with a
neighbour, by locking all that is changed (commit.py), so that a tree without keys takes no memory.

A kill leaves behind: locks that nobody gives back, a torn node, memory. A client that waits for a
dead one raises StoreStuck and does not hang; `rtx-sherman` and `dtx-sherman` recover.

The `dtx-sherman` store is the same engine, optimistic and with a log (logged.py).

Deviations, besides: slotted pages with entries of any size; a checksum beside the versions
(node.py); a lock word names its holder; the lock table has one word a node and no queues.

Round trips without conflict: get 1, insert, update and delete 3.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

from limpet.shm.endpoint.fabric import hash64
from limpet.shm.errors import (
    AddressError,
    NodeFailed,
    StoreCorrupt,
    StoreFull,
    StoreStuck,
)
from limpet.stores.base import Store
from limpet.stores.rtx.repair import PATIENCE
from limpet.stores.sherman.in_place_check import InPlaceSurvey
from limpet.stores.sherman.in_place_commit import InPlaceCommit
from limpet.stores.sherman.in_place_layout import NODE_PAIR
from limpet.stores.sherman.in_place_locks import NodeLocks
from limpet.stores.sherman.in_place_node import Node
from limpet.stores.sherman.in_place_parameters import InPlaceParameters
from limpet.stores.sherman.in_place_write_set import InPlaceStaging
from limpet.stores.sherman.layout import LOGGED_WRITE, SHRINK, SPARED_BLOCKS
from limpet.stores.sherman.transactional import Sherman
from limpet.stores.status import AGAIN, DONE, NO_MEMORY


class InPlace(Sherman):
    """The `sherman` store, or a step from it to `dtx-sherman`. `InPlaceParameters`."""

    Parameters: type[InPlaceParameters] = InPlaceParameters
    transactional = False

    def equip(self, parameters: Any) -> None:
        self.node_locks = NodeLocks(self)
        self.repair = self
        self.current: InPlaceCommit | None = None
        self.page = self.blank()

    def forget_tickets(self) -> None:
        """There are none: what goes in place leaves no vacant word."""

    def blank(self) -> Any:
        return Node(self)

    def reference(self, at: int) -> int:
        """The reference to the memory of a node at this address, which is not a root."""
        size_class = self.heap.size_class(self.parameters.node_size)
        return int(size_class) << 48 | at

    def image_of(self, at: int) -> int:
        """Address of what a node that is torn is to be; 0: nobody knows."""
        return 0

    # ---- reading --------------------------------------------------------------------------------

    def read_object(self, at: int, page: Any, near: int = 0) -> bool:
        """Read a node; False: it is torn, or is not a node."""
        self.at = at
        page.read(at)
        self.endpoint.wait()
        self.lock = page.lock
        return bool(page.whole)

    def get_many(self, keys: Any) -> list[bytes | None]:
        return Store.get_many(self, keys)

    def read_range(
        self, tree: int, start: bytes, high: bytes | None, leaf: int, ahead: int, count: int
    ) -> tuple[Any, bytes | None, int, int]:
        """The pairs from `start` on in the leaf with it; where the next one begins."""
        return *self.at_leaf(tree, start, functools.partial(self.range_here, high)), 0, 0

    def _look(self, tree: int, hashed: int, key: bytes, leaf: int) -> int:
        """Read the leaf in whose range a key is. AGAIN: a node on the way is torn, or no node."""
        outcome = int(super()._look(tree, hashed, key, leaf))
        if outcome == AGAIN and not self.page.is_whole():
            # ORDER: the next attempt goes by links, which lead to nodes only.
            self.forget_route(tree, key)
        return outcome

    def remembered(self, tree: int, key: bytes) -> int:
        """The leaf where the key is, as far as is remembered; 0: nothing is."""
        routes = self.routes[tree]
        hint = routes.hinted(hash64(key))
        if hint:
            return int(routes.hinted_leaf(hint))
        return int(routes.find(key)) if routes.lows else 0

    def forget_route(self, tree: int, key: bytes) -> None:
        """Forget what `remembered` says."""
        self.routes[tree].unhint(hash64(key))
        self.routes[tree].drop(key)

    # ---- changing -------------------------------------------------------------------------------

    def commit(self) -> Any:
        self.current = InPlaceCommit(self)
        return self.current

    def staging(self, commit: Any) -> Any:
        return InPlaceStaging(self, commit)

    def _change_once(self, key: bytes, value: bytes, size: int, mode: int, early: bool) -> int:
        return LOGGED_WRITE

    def _with_log(self, key: bytes, value: bytes, mode: int) -> int:
        outcome = int(super()._with_log(key, value, mode))
        if outcome == DONE:
            self._link_all_above()
        return outcome

    def tidy(self, key: bytes) -> Any:
        """After a key was deleted: merge its leaf, if that is sparse."""
        if self._is_sparse():
            self._shrink(key)
        return DONE

    def _logged_once(self, commit: Any, key: bytes, value: bytes, mode: int) -> int:
        commit.shrinks = mode == SHRINK
        return int(super()._logged_once(commit, key, value, mode))

    def _link_all_above(self) -> None:
        """Have the nodes above link to those that splits have made. If that fails, siblings do."""
        assert self.current is not None
        above = self.current.above
        with contextlib.suppress(StoreFull, NodeFailed):
            while above:
                above += self._link_above(*above.pop()).above

    def _link_above(self, level: int, fence: bytes, right: int) -> InPlaceCommit:
        commit = InPlaceCommit(self)
        entry = (fence, right.to_bytes(8, "little"), 0)
        attempt = 0
        while (outcome := self._link_once(commit, level, entry)) != DONE:
            if outcome == NO_MEMORY:
                commit.replenish(SPARED_BLOCKS)
            else:
                attempt += 1
                self.stay(attempt, True)
        return commit

    def _link_once(self, commit: InPlaceCommit, level: int, entry: tuple[bytes, bytes, int]) -> int:
        with self.client:
            self.require_there()
            try:
                commit.begin(self.link)
                outcome = self.staging(commit).change(level, entry)
                return commit.run() if outcome == DONE else outcome
            except BaseException:
                commit.abandon()
                raise

    # ---- waiting --------------------------------------------------------------------------------

    def stay(self, attempt: int, writes: bool) -> Any:
        """Wait a little for the node that was met last; look now and then whom we wait for."""
        self.retries += 1
        self.endpoint.pause(attempt)
        if attempt % PATIENCE == 0:
            at, tree = self.at, self.tree
            self.pool.exclusively(lambda: self.look_for(tree, at))
        return 0

    def look_for(self, tree: int, at: int) -> None:
        """Look whom we wait for, at this node. Outside of operations."""
        self.look_whether_there()
        self.pool.membership.sweep_sometimes()
        self.look(at, True)

    def look(self, at: int, writes: bool) -> int:
        """Look whom we wait for, at this node; in place of `Repair.look` of trees that repair."""
        lane = self.endpoint.background(True)
        try:
            holder = self.node_locks.holder(at)
            if holder:
                self._look_after_holder(at, holder)
            else:
                self._look_after_torn(at)
        finally:
            self.endpoint.background(lane)
        return DONE

    def _look_after_holder(self, at: int, holder: int) -> None:
        """Raise StoreStuck if who holds a lock is dead."""
        if self.pool.membership.lives(holder):
            return
        # ORDER: after the look at the client, which may have unlocked it and left.
        if self.node_locks.holder(at) == holder:
            raise StoreStuck(
                f"{self.name}: client {holder:#x} died with the lock of the node at {at:#x} in "
                f"{self.pool.url}; a {self.kind} store recovers nothing; rtx-sherman and "
                "dtx-sherman stores do"
            )

    def _look_after_torn(self, at: int) -> None:
        node = self.blank()
        node.read(at)
        if not node.whole and self.pool.membership.overdue(("torn", at), node.version):
            raise StoreCorrupt(f"{self.name}: the node at {at:#x} is torn, and nobody writes it")

    def is_linked(self, reference: int) -> bool:
        """Whether the entry of an extent's key has it, for a hand; it may have, if none can say."""
        try:
            return bool(super().is_linked(reference))
        except (StoreStuck, StoreCorrupt, AddressError, NodeFailed):
            return True

    def resolved(self, reference: int, home: int) -> bool:
        """Whether a pair of a hand is linked, or may be."""
        return bool(home & NODE_PAIR) or self.is_linked(reference)

    def listed(self, reference: int, home: int) -> list[int]:
        return []

    def stats(self) -> dict[str, Any]:
        return Store.stats(self)

    def survey(self) -> InPlaceSurvey:
        return InPlaceSurvey(self)
