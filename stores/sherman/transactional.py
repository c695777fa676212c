"""The `rtx-sherman` store: a B-link tree whose operations are transactions (rTX section 5).

After Sherman (Wang et al., SIGMOD '22). Every tree node is the data of a TXObj
(stores/transactions/tx_object.py), so a client writes it anew and not in place, and swings the
pointer. The TXObjs of a tree are a region, the paper's meta pool (figure 6): the first is always
the root; one whose pointer stands for nothing (stores/core/records.py) is vacant. Each memory node
has a tree of its own, and a key's hash chooses the tree. So a lost node takes whole trees with it,
and no link to it is left. A scan merges the trees.

A write that changes one leaf and nothing else is a transaction without a log (Opt1;
leaf_writer.py):
    1. read the leaf's lock and pointer, and the node
    2. write the new node; CAS the lock from the version that was read
    3. CAS the pointer; CAS the lock to a new version
The CAS expects the version that was read, so the write needs no validation, and never gives up once
it has the lock.

An update, put or delete of a key that the client has met in a leaf locks the leaf before it reads
it (Opt2), so no client changes it in between:
    1. read the leaf's lock and pointer
    2. CAS the lock; read the node
    3. write the new node; CAS the pointer; CAS the lock to a new version
A client that finds the leaf locked in step 1 reads the leaf at its first attempt, as above: most
locks are gone by then. Later, others are waiting, too: it ends the attempt and waits, as a node
that it read or wrote meanwhile would most likely be out of date. Every wait for a lock ends, as
after some attempts the client repairs the lock of an owner that is late or dead
(stores/transactions/repair.py). The attempt before that reads the leaf again, as another client may
have split it since the key was met there: then it waits for the leaf that has the key, if at all.
If the key is not there any more, or the change takes a log, the client installs a copy of the node:
it must not release a lock with the pointer unchanged (lllock.py).

A value that is too long for the node is in an extent, which the client journal names, too.

All other writes, which split or merge nodes, are transactions with a log
(stores/transactions/commit.py) of all that they write. A split changes the node, its new sibling
and the parent at once, or a root and its two halves; so the tree is never seen half split. The
siblings are there for clients whose cached route (routes.py) is out of date, and for scans.

A write without a log that finds no room in its leaf goes on as such a transaction in the same
operation. It has read the leaf, and the transaction locks the leaf from the version that was read.
If memory is missing, or a client is in the way, the write begins again.

A run of sorted pairs (`put_many`) is put leaf by leaf. Where those of a leaf fit, they take a write
without a log; otherwise one transaction makes all the leaves that they fill, up to 48, and links
them to their parent at once (write_set.py). If there is no memory for so many, it makes two.

A kill of a write without a log leaves in the client journal: the new node, or its first word, with
the object that it is meant for; the old node; and extents. Recovery releases the lock
(stores/transactions/repair.py). In a pool of several hosts a dead client may still write, so the
new node must be whole before it is in the client journal. Therefore leaves are not locked before
they are read there, nor for a value with an extent in any pool.

Sherman's nodes are never merged. Here a delete that leaves a leaf empty, or less than a quarter
full, merges it with a neighbour, if there is room, by a transaction after its own; so a tree whose
keys are deleted takes no memory. A delete writes a node to free one, so some blocks are reserved
for deletes.

Further deviations: slotted pages with entries of any size, not sorted arrays of one size; a hash
puts keys on trees; a client that meets a lock waits for the lease, as in the paper, but not if the
lock's owner is known to be dead. Limits: keys have at most `key_size` bytes; nothing is replicated.

Round trips without conflict: get 2, update and delete 3, insert 4; with a leaf that is not locked
early, 4. A pointer that the client guesses right (tx_trees.py) saves one of those that read a node
without a lock: get 1, insert 3. All verbs are posted, so these are all exchanges with the memory
node. The paper's lock is a round trip of its own beside the read of the object, too; its node is
read, or written, in that of the lock, and it is unlocked in that of the pointer, as here.
"""

from __future__ import annotations

from typing import Any, Final

from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.words import REPLICATED
from limpet.shm.errors import StoreFull
from limpet.stores.core import regions
from limpet.stores.core.base import Store, as_bytes
from limpet.stores.core.feed import Feed
from limpet.stores.core.feed_layout import OPEN
from limpet.stores.core.inline import InlineStore
from limpet.stores.core.status import (
    AGAIN,
    DELETE,
    DONE,
    INSERT,
    LOGGED_WRITE,
    NO_MEMORY,
    PUT,
)
from limpet.stores.sherman.check import TreeCheck
from limpet.stores.sherman.layout import ELSEWHERE, SPARSE, UNTIDY
from limpet.stores.sherman.leaf_writer import LeafWriter
from limpet.stores.sherman.page import Page
from limpet.stores.sherman.parameters import ShermanParameters
from limpet.stores.sherman.routes import Routes
from limpet.stores.sherman.scans import Scans
from limpet.stores.sherman.tree_keys import TreeKeys
from limpet.stores.sherman.tx_trees import TxTrees
from limpet.stores.sherman.write_set import TreeWay, WriteSet, commit_staged, shrink
from limpet.stores.transactions.commit import Commit
from limpet.stores.transactions.layout import SPARED_BLOCKS
from limpet.stores.transactions.lllock import LLLocks
from limpet.stores.transactions.repair import Repair
from limpet.stores.transactions.try_commit import carry_out
from limpet.stores.transactions.tx_object import TXObj

RUN_MAX: Final = 4096
"""So many pairs of `put_many` are sorted at a time."""
NOTED_MAX: Final = 64
"""So many if the store has a feed: each attempt at a leaf notes all that are left of them."""
LEAVES_MAX: Final = 48
"""A run fills at most about so many leaves in one transaction, and fewer if they are large."""
LEAVES_FEW: Final = 2
"""So many leaves where there is no memory for more."""


class PairRun:
    """Pairs of one tree, in the order in which they were given until `sort`."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.values: list[bytes] = []
        self.last: bytes | None = None
        self.ascends = True
        """Whether each key is above the one before it."""

    def sort(self) -> None:
        """Sort the pairs by their keys. If a key is there twice, only its last value stays."""
        if not self.ascends:
            found = dict(zip(self.keys, self.values, strict=False))
            self.keys = sorted(found)
            self.values = [found[key] for key in self.keys]


class RtxSherman(InlineStore):
    """The `rtx-sherman` store. `ShermanParameters`."""

    Parameters = ShermanParameters
    ordered = True
    grows = True
    resolves = True
    transactional = True
    swaps = True
    watchable = True

    def __init__(self, pool: Any, kind: str, name: str, parameters: ShermanParameters) -> None:
        super().__init__(pool, kind, name, parameters)
        self.link = self.entry_number << 48 | REPLICATED
        self.objects.posts = True
        self.locks = LLLocks(pool, parameters.drift_us, parameters.each_us)
        self.index = self.trees = TxTrees(pool, name, parameters, self.objects)
        self.leaf = self.trees.leaf
        self.scans = Scans(self, self.trees, self.leaf)
        self.writer = LeafWriter(pool, self.trees, self.leaf, self.locks, self.link)
        self.repair = Repair(self, self.locks)
        self.tx_keys = TreeKeys(self, self.trees, self.scans)
        self.splits: WriteSet | None = None
        """For writes that split a leaf, and for merges; used within an operation only."""
        self.glance()
        self.run_sets: list[WriteSet] = []
        """For runs of `put_many`; one that is in use is not here."""
        self.opt1 = parameters.opt1
        self.opt2 = parameters.opt1 and parameters.opt2 and not self.client.remotely_fenced

    @staticmethod
    def make(pool: Any, name: str, parameters: ShermanParameters) -> None:
        """Make the regions of the trees' objects; zeros are empty trees."""
        regions.make(pool, name, parameters.trees, parameters.table_size)

    @staticmethod
    def unmake(pool: Any, name: str, parameters: ShermanParameters) -> None:
        regions.unmake(pool, name, parameters.trees)

    def replaced(self, node: int) -> None:
        self.trees.replaced(node)
        self.locks.forget()

    def forget(self) -> None:
        InlineStore.forget(self)
        self.trees.forget()
        self.locks.forget()

    # ---- steps of operations --------------------------------------------------------------------

    def _is_early(self, size: int, mode: int, way: Any) -> bool:
        """Whether a write tries to lock its leaf before it reads it. Not once it knows a reason
        against it: the lock would obstruct clients that split the leaf."""
        return way is None and self.opt2 and not size and mode != INSERT

    def _change_once(
        self, key: bytes, value: bytes, size: int, mode: int, attempt: int, at: int, way: Any
    ) -> int:
        if way is not None and way.commit is not None:
            return self._change_logged(key, value, mode, way)
        if not self.opt1:
            return LOGGED_WRITE
        if self._is_early(size, mode, way):
            outcome = self.writer.change_early(key, value, mode, attempt)
            if outcome != ELSEWHERE:
                return outcome
        outcome = self.writer.change(key, value, size, mode)
        return self._split_leaf(key, value, mode) if outcome == LOGGED_WRITE else outcome

    def _kept(self) -> WriteSet:
        """A write set that is used again and again; within operations only."""
        if self.splits is None:
            self.splits = self.staging(self.commit())
        return self.splits

    def _split_leaf(self, key: bytes, value: bytes, mode: int) -> int:
        """Go on, in the same operation, with a write that found no room in its leaf, which was
        read: DONE; AGAIN; LOGGED_WRITE: it takes an operation of its own, with memory ready."""
        staging, leaf = self._kept(), self.leaf
        cursor = self.trees.cursor
        outcome = commit_staged(self, staging, lambda: staging.stage_read(leaf, key, value, mode))
        if outcome == DONE:
            self._show(staging)
        else:
            self.trees.cursor = cursor  # what was to be used is vacant still
        return LOGGED_WRITE if outcome == NO_MEMORY else outcome

    def _change_logged(self, key: bytes, value: bytes, mode: int, way: TreeWay) -> int:
        """Make the same change by a transaction with a log."""
        stored = None if mode == DELETE else value
        staging = self.staging(way.commit)
        outcome = commit_staged(self, staging, lambda: staging.stage(key, stored, mode))
        if outcome == AGAIN:
            way.commit = None  # the next attempt may need no log
        return UNTIDY if outcome == DONE and mode == DELETE else outcome

    def put_many(self, pairs: Any) -> None:
        """`put` each (key, value) of `pairs`, a mapping or an iterable; not atomic as a whole.

        The pairs of a list, a tuple or a dict are sorted, and those that are in one leaf are put
        at once. If a key is there twice, only its last value is put.
        """
        if type(pairs) is dict:
            pairs = list(pairs.items())
        if not self.opt1 or type(pairs) not in (list, tuple):
            Store.put_many(self, pairs)
            return
        most = RUN_MAX if self.feed is None else NOTED_MAX
        for begin in range(0, len(pairs), most):
            runs: list[PairRun] = [PairRun() for _ in self.trees.roots]
            try:
                self._deal(pairs[begin : begin + most], runs)
            finally:  # what stands before an error is put
                for run in runs:
                    run.sort()
                    self._put_run(run.keys, run.values)

    def _deal(self, pairs: Any, runs: list[PairRun]) -> int:
        """Add each pair to the run of its tree."""
        run: PairRun = runs[0]
        is_single = len(runs) == 1
        last, keys, values = run.last, run.keys, run.values
        for key, value in pairs:
            put: bytes = key if type(key) is bytes else as_bytes("key", key)
            stored: bytes = value if type(value) is bytes else as_bytes("value", value)
            if len(put) > self.key_size or len(stored) > self.value_size:
                self.object_size(put, stored)
            if not is_single:
                run = runs[self.trees.tree_of(put)]
                last, keys, values = run.last, run.keys, run.values
                run.last = put
            if last is not None and put <= last:
                run.ascends = False
            last = put
            # ORDER: the value first: an interrupt leaves no key without one.
            values.append(stored)
            keys.append(put)
        return 0

    def _put_run(self, keys: list[bytes], values: list[bytes]) -> int:
        """Put the values of these keys, which are sorted and of one tree."""
        first = attempt = 0
        leaves = LEAVES_MAX
        staging = self.run_sets.pop() if self.run_sets else self.staging(self.commit())
        while first < len(keys):
            if len(values[first]) > self.value_size:
                self.put(keys[first], values[first])
                first += 1
                continue
            feed: Feed | None = None
            noted, concerned = OPEN, 0
            try:
                self.client.enter()
                try:
                    self.require_there()
                    if self.feed is not None:
                        feed = self.feed
                        feed.open_all(keys[first:], PUT)
                    outcome = self.writer.change_run(keys, values, first)
                    ended = self.writer.ended
                    commit: Any = None
                    nodes = 1
                    if outcome == LOGGED_WRITE:
                        outcome = self._put_logged(staging, keys, values, ended, leaves)
                        ended = staging.ended
                        if staging.wanted:
                            nodes = staging.wanted
                        else:
                            commit = staging.commit
                    noted = outcome
                    if outcome not in (AGAIN, NO_MEMORY, LOGGED_WRITE):
                        concerned = ended - first
                finally:
                    try:
                        if feed is not None:
                            feed.close_some(concerned, noted)
                    finally:
                        self.client.leave()
                if outcome == NO_MEMORY:
                    self.have_memory(keys[first], PUT, keys[first], 0, PUT, commit, nodes)
            except StoreFull:
                if leaves == LEAVES_FEW:
                    raise
                leaves = LEAVES_FEW
                continue
            if outcome == DONE:
                self._count(ended - first, ended - first)
                first, attempt = ended, 0
            elif outcome == AGAIN:
                attempt += 1
                self.await_holder(attempt, True)
        self.run_sets.append(staging)  # after an error it is not used again
        return 0

    def _put_logged(
        self, staging: WriteSet, keys: list[bytes], values: list[bytes], first: int, leaves: int
    ) -> int:
        """Go on, in the same operation, with a run that does not fit its leaf, which was read and
        has those before the first: put those that fill about so many leaves by a transaction with a
        log. DONE, AGAIN or NO_MEMORY."""
        leaf, cursor = self.leaf, self.trees.cursor
        outcome = commit_staged(
            self, staging, lambda: staging.stage_run(leaf, keys, values, first, leaves)
        )
        if outcome == DONE:
            self._show(staging)
        else:
            self.trees.cursor = cursor  # what was to be used is vacant still
        return outcome

    def _show(self, staging: WriteSet) -> int:
        """Note the nodes of a change that is committed, and where each is now."""
        staging.show_made()
        commit: Any = staging.commit
        routes: Routes = self.trees.routes[staging.tree]
        for index in range(staging.commit.changed):
            written: TXObj = commit.objects[index]
            page: Page | None = written.data
            if page is not None:
                routes.note_seen(written.at, written.new, page.count)
        return 0

    def _make_way(self, outcome: int, way: Any, key: bytes, size: int, mode: int) -> Any:
        if outcome == NO_MEMORY and way is None:
            try:
                self.have_memory(key, mode, key, size, mode, None, 1)
            except StoreFull:
                if not self._is_early(size, mode, way):
                    raise
                return TreeWay()  # nothing has been read: the key may be gone, and need none
            return None
        found = TreeWay() if way is None else way
        if outcome == NO_MEMORY:
            self.have_memory(key, mode, key, 0 if found.commit else size, mode, found.commit, 1)
        elif outcome == LOGGED_WRITE:
            found.commit = self.commit()
        else:  # SPARSE or UNTIDY
            if outcome == SPARSE:
                shrink(self, key, self._kept())
            else:
                self.tx_keys.tidy(key)
            return found.ended(DONE)
        return found.at_once()

    def find_memory(self, update: bool, *wanted: Any) -> Any:
        """`wanted`: key, bytes of its extent, mode, the transaction to have memory for, or None,
        and then for how many nodes."""
        key, size, mode, commit, nodes = wanted
        sizes = [self.trees.node_size] * nodes
        if size:
            sizes.append(size)
        sparing = 0 if mode == DELETE else SPARED_BLOCKS
        if commit is not None:
            return commit.replenish(sparing, update)
        return self.allocator.replenish_all(self.trees.node_of(key), sizes, 1, sparing, 0, update)

    def await_holder(self, attempt: int, writes: bool) -> None:
        """Wait a little for the object that was read last (repair.py)."""
        self.retries += 1
        self.repair.await_holder(self.leaf.at, attempt, writes)

    # ---- in transactions (stores/rtx/transaction.py) --------------------------------------------

    def commit(self) -> Commit:
        """A transaction of this store's client."""
        return Commit(self.pool, self.locks)

    def staging(self, commit: Commit) -> WriteSet:
        """The part of a commit's transaction that changes this store."""
        return WriteSet(self, commit)

    # ---- repair and recovery --------------------------------------------------------------------

    def carry_out(self, log: Any) -> bool:
        """Carry out a log that is decided; whether it was to commit."""
        return bool(carry_out(log))

    def copy_for(self, at: int, old: int, state: int) -> int:
        """A copy of the data at `old`, in the client journal, that begins with `state`; 0: no
        memory is ready."""
        reference = self.allocator.allocate(at >> NODE_SHIFT & 0xFF, self.trees.node_size, 1)
        if reference:
            self.copy(old, reference, state)
        return reference

    def copy(self, old: int, new: int, state: int) -> None:
        """Write to `new` a copy of the data at `old` that begins with `state`."""
        self.trees.copy(old, new, state)

    def is_linked(self, reference: int) -> bool:
        """Whether the entry of an extent's key has it, for a client journal."""
        look = self.repair.repair_if_held
        return bool(self.trees.is_linked(self.leaf, reference, lambda at: look(at, False)))

    def resolved(self, reference: int, link_address: int) -> bool:
        """Decide a pair of a client journal: for a dead client, or for ourselves (base.py)."""
        return bool(self.repair.resolved(reference, link_address))

    def listed(self, reference: int, link_address: int) -> list[int]:
        return list(self.repair.listed(reference, link_address))

    def stats(self) -> dict[str, Any]:
        """As of every store; `repairs`: locks that this handle has found at the end of their lease,
        and repaired. Some of their owners may live (rTX section 6.4)."""
        return {**super().stats(), "repairs": self.repair.repairs}

    def checker(self) -> TreeCheck:
        return TreeCheck(self)
