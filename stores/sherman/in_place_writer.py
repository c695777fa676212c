"""Changes of trees in place, as steps of a store's operations, and the tidying up after them.

A change is staged (in_place_write_set.py) and committed (in_place_commit.py, or a commit by way of
a log) in one operation. After that the client links the nodes above to new nodes, if that was left
for later, and merges a leaf that is nearly empty. If this fails, siblings still lead to every node.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

from limpet.shm.errors import NodeFailed, StoreFull
from limpet.stores.rtx.repair import PATIENCE
from limpet.stores.sherman.in_place_commit import InPlaceCommit
from limpet.stores.sherman.in_place_write_set import InPlaceStaging
from limpet.stores.sherman.layout import SPARED_BLOCKS, SPARSE, UNTIDY
from limpet.stores.sherman.leaf_writer import is_sparse
from limpet.stores.sherman.write_set import TreeWay, commit_staged, shrink
from limpet.stores.status import AT_ONCE, DELETE, DONE, EXISTS, MISSING, NO_MEMORY


class InPlaceWay(TreeWay):
    """The state of a write, with its write set."""

    def __init__(self, staging: InPlaceStaging) -> None:
        TreeWay.__init__(self, staging.own)
        self.staging: Any = staging
        self.own = staging.own


class InPlaceWriter:
    """Changes by one handle of a store. `commit`: makes a write set, for the store."""

    def __init__(self, store: Any, commit: Callable[[Any], InPlaceCommit]) -> None:
        self.store = store
        self.leaf = store.leaf
        self.commit = commit
        self.spares: list[InPlaceWay] = []
        """Ways of writes that are over, for the next ones."""

    def first_way(self) -> InPlaceWay:
        """The state in which a write begins."""
        try:
            # ORDER: one step, as another thread may begin a write, too.
            return self.spares.pop()
        except IndexError:
            return InPlaceWay(InPlaceStaging(self.store, self.commit(self.store)))

    def change_once(self, way: InPlaceWay, key: bytes, value: bytes, mode: int) -> int:
        """Attempt a write: DONE, EXISTS, MISSING, AGAIN, or an outcome for `go_on`. Pinned."""
        stored = None if mode == DELETE else value
        stage = partial(way.staging.stage, key, stored, mode)
        outcome = commit_staged(self.store, way.staging, stage)
        if outcome == DONE:
            if mode == DELETE and is_sparse(self.leaf.page):
                return SPARSE
            if way.own.above:
                return UNTIDY
        if outcome in (DONE, EXISTS, MISSING) and way.outcome == AT_ONCE:
            way.own.wanted = 0
            self.spares.append(way)
        return outcome

    def go_on(self, outcome: int, way: InPlaceWay, key: bytes, mode: int) -> TreeWay:
        """Get the memory that an attempt lacked; or tidy up after one, which ends the write."""
        if outcome == NO_MEMORY:
            self.store.have_memory(key, mode, way.commit, mode)
            return way.at_once()
        if outcome == SPARSE:
            shrink(self.store, key)
        else:
            self._link_all_above(way.commit)
        return way.ended(DONE)

    def stay(self, attempt: int) -> int:
        """Wait a little for the node that was met last; check its lock's holder now and then."""
        self.store.endpoint.pause(attempt)
        if attempt % PATIENCE == 0:
            look_for = partial(self.store.look_for, self.leaf.tree, self.leaf.at)
            self.store.pool.exclusively(look_for)
        return 0

    def find_memory(self, update: bool, *wanted: Any) -> Any:
        """`wanted`: the write set to have memory for, and the mode of the write."""
        commit, mode = wanted
        return commit.replenish(0 if mode == DELETE else SPARED_BLOCKS, update)

    def _link_all_above(self, commit: InPlaceCommit) -> None:
        """Link the nodes above to the nodes of splits. If this fails, siblings still lead there."""
        above = commit.above
        with contextlib.suppress(StoreFull, NodeFailed):
            while above:
                above += self._link_above(commit.tree, *above.pop()).above

    def _link_above(self, tree: int, level: int, fence: bytes, right: int) -> InPlaceCommit:
        commit = InPlaceCommit(self.store)
        entry = (fence, right.to_bytes(8, "little"))
        attempt = 0
        while (outcome := self._link_once(commit, tree, level, entry)) != DONE:
            if outcome == NO_MEMORY:
                commit.replenish(SPARED_BLOCKS)
            else:
                attempt += 1
                self.store.stay(attempt, True)
        return commit

    def _link_once(
        self, commit: InPlaceCommit, tree: int, level: int, entry: tuple[bytes, bytes]
    ) -> int:
        staging: Any = self.store.staging(commit)
        with self.store.client:
            self.store.require_there()
            return commit_staged(self.store, staging, partial(staging.change, tree, level, *entry))
