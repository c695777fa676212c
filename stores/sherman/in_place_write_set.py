"""Changes of trees in place, as steps of a store's operations, and the tidying up after them.

The write set (write_set.py). The leaf is the one that the operation has read; if the store is not
optimistic, the operation has locked it before. New nodes have memory of their own, which no client
finds before the change is written.

A change is staged and committed (in_place_commit.py, or a commit by way of a log) in one operation.
After that the client links the nodes above to new nodes, if that was left for later, and merges a
leaf that is nearly empty. If this fails, siblings still lead to every node.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from limpet.shm.endpoint.fabric import hash64
from limpet.shm.errors import NodeFailed, StoreFull
from limpet.stores.core.status import (
    AGAIN,
    AT_ONCE,
    ATTEMPTS_PER_CHECK,
    DELETE,
    DONE,
    EXISTS,
    MISSING,
    NO_MEMORY,
    PUT,
)
from limpet.stores.sherman.in_place_commit import InPlaceCommit, Starved
from limpet.stores.sherman.in_place_parameters import VERSION
from limpet.stores.sherman.in_place_trees import InPlaceTrees
from limpet.stores.sherman.layout import SPARSE, UNTIDY
from limpet.stores.sherman.leaf_writer import is_sparse
from limpet.stores.sherman.trees import Leaf
from limpet.stores.sherman.write_set import (
    Busy,
    TreeWay,
    WriteSet,
    as_staged,
    commit_staged,
    shrink,
)
from limpet.stores.transactions.layout import SPARED_BLOCKS

if TYPE_CHECKING:
    from limpet.stores.sherman.page import Page


LEAF_ATTEMPTS: Final = 64
"""How often the way to a leaf may be out of date before the operation begins anew."""


class InPlaceStaging(WriteSet):
    """The changes of one operation to one store."""

    def __init__(self, store: Any, commit: InPlaceCommit) -> None:
        WriteSet.__init__(self, store, commit)
        self.own = commit
        self.in_place: InPlaceTrees = store.trees
        """`commit` and `trees` by their own types."""
        self.leaf = store.leaf
        self.optimistic: bool = store.parameters.optimistic
        self.shrinks = False
        """Whether it merges nodes: then it reads before it locks."""

    def stage(self, key: bytes, value: bytes | None, mode: int = PUT) -> int:
        """As for transactions; NO_MEMORY, too."""
        try:
            outcome = WriteSet.stage(self, key, value, mode)
        except Starved:
            outcome = NO_MEMORY
        if outcome != DONE:
            self.own.give_up()
        return outcome

    def change(self, tree: int, level: int, key: bytes, value: bytes) -> int:
        """Set an entry of the inner node of that level: DONE, AGAIN or NO_MEMORY."""
        self.tree = self.own.tree = tree
        try:
            leaf = self._locked(key, level)
            return self._put(leaf.at, leaf.page, leaf.page.find(key), key, value, 0)
        except Busy:
            outcome = AGAIN
        except Starved:
            outcome = NO_MEMORY
        self.own.give_up()
        return outcome

    def shrink(self, key: bytes) -> int:
        self.shrinks = True
        return WriteSet.shrink(self, key)

    def link_above(self, level: int, lows: list[bytes], nodes: list[int]) -> int:
        """Link to new nodes: at once, or, if not optimistic, later (a B-link tree's way)."""
        if self.optimistic:
            return WriteSet.link_above(self, level, lows, nodes)
        for index in range(1, len(nodes)):
            self.own.above.append((level, lows[index], nodes[index]))
        return DONE

    def _vacant(self) -> int:
        return self.own.new_node()

    def _vacate_root(self, page: Page) -> int:
        return MISSING

    # ---- finding --------------------------------------------------------------------------------

    def _leaf(self, key: bytes) -> Leaf:
        leaf: Leaf = self.leaf
        hashed = hash64(key)
        self.tree = self.own.tree = self.in_place.number_of(hashed)
        if not self.optimistic and not self.shrinks:
            return self._locked_leaf(key)
        self.own.open()
        if self.in_place.find_leaf(leaf, self.tree, hashed, key, 0) != DONE or leaf.lock:
            raise Busy
        words: Any = leaf.page.words
        self.own.expect(leaf.at, words[VERSION])
        return leaf

    def _locked_leaf(self, key: bytes) -> Leaf:
        """Lock and read the leaf where the key was last; search only if that leaf is wrong."""
        trees, leaf = self.in_place, self.leaf
        at = trees.remembered(self.tree, key)
        for _ in range(LEAF_ATTEMPTS):
            if not at:
                if trees.find_in(leaf, self.tree, key) != DONE:
                    raise Busy
                at = leaf.at
            if self._lock(leaf, at, key, 0):
                return leaf
            trees.forget_route(self.tree, key)
            at = 0
        raise Busy

    def _locked(self, key: bytes, level: int) -> Leaf:
        """Lock and read the node of that level in whose range the key is."""
        for _ in range(LEAF_ATTEMPTS):
            leaf = self._inner(key, level)
            if self._lock(leaf, leaf.at, key, level):
                return leaf
        raise Busy

    def _lock(self, leaf: Leaf, at: int, key: bytes, level: int) -> bool:
        """Lock a node and read it; False: it is not the one of that level with the key."""
        commit = self.own
        leaf.tree = self.tree
        self.leaf.at = at  # after a conflict, the client waits for this node
        if not commit.lock_and_read(leaf, at):
            raise Busy
        page = leaf.page
        if self.in_place.arrived(leaf, at) and page.level == level and page.has(key):
            words: Any = page.words
            commit.expect(at, words[VERSION])
            leaf.index = page.find(key)
            return True
        commit.unlock_all()
        return False

    def _read(self, at: int) -> Leaf:
        page = self.own.page_at(at)
        if page is not None:
            return as_staged(page, self.tree, at)
        leaf: Leaf = self._read_copy(at)
        if leaf.lock:
            raise Busy
        words: Any = leaf.page.words
        self.own.expect(at, words[VERSION])
        return leaf


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

    def await_holder(self, attempt: int) -> int:
        """Wait a little for the node that was met last; check its lock's holder now and then."""
        self.store.endpoint.pause(attempt)
        if attempt % ATTEMPTS_PER_CHECK == 0:
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
                self.store.await_holder(attempt, True)
        return commit

    def _link_once(
        self, commit: InPlaceCommit, tree: int, level: int, entry: tuple[bytes, bytes]
    ) -> int:
        staging: Any = self.store.staging(commit)
        with self.store.client:
            self.store.require_there()
            return commit_staged(self.store, staging, partial(staging.change, tree, level, *entry))
