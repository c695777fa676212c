"""The `dtx-sherman` store: a B-link tree by distributed transactions (rTX section 6, "DTX").

A baseline after DrTM+H (Wei et al., OSDI '18), as far as the paper compares itself with it:
optimistic concurrency control on nodes that contain their lock and version, whole nodes in the log,
changes in place, and a recovery that stops all clients. Its trees are like those of `sherman`
(stores/sherman/in_place_trees.py), and every change, also a split or a merge, is one transaction:

    1. write the header of a log; read the leaf
    2. write to the log which nodes are changed, and have the client journal name it. Lock these
       nodes, and read lock and version of each again: the version must be the one that was read
    3. write the new nodes to the log, and then the decision
    4. write them in place; unlock
Each of these is a phase. A tree, with its logs, is on one memory node, which does the verbs of a
phase in the order in which they were posted.

Table 2: reads 1 KiB and 16 bytes, writes 2 KiB and 8 bytes, one CAS, for each node; and a header of
the log. A get reads the leaf, and waits if that is locked: another value may be decided.

A kill leaves behind: the log in the client journal. The recovering client stops the tree
(stores/baselines/dtx/recovery.py) and waits until no client is in it. If the change was decided, it
writes the locked nodes once more. Then it unlocks them, and lets all clients go on.

Limits of the paper: a recovery waits for a client that has stopped, and so do all other clients,
until it is fenced or, in a pool with fence="wait", until it goes on; conflicts abort.

Deviations: the log is an object for each change, and not a ring; DrTM+H replicates, which the paper
has switched off. In a pool of several hosts, a client of another host that was declared dead may
still write in place.

Round trips without conflict, which are all exchanges with the memory node: get 1, insert, update
and delete 4.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from limpet.shm.clients.membership import journal_of
from limpet.shm.endpoint.slots import INCARNATION_BITS
from limpet.shm.endpoint.words import ADDRESS_MASK, REPLICATED
from limpet.shm.errors import NodeFailed, StoreFull
from limpet.stores.baselines.dtx.log import NodeLog
from limpet.stores.baselines.dtx.recovery import Recovery
from limpet.stores.baselines.dtx.sherman_commit import LoggedCommit
from limpet.stores.baselines.dtx.sherman_parameters import DtxParameters
from limpet.stores.core import regions
from limpet.stores.core.inline import InlineStore
from limpet.stores.sherman.in_place_check import InPlaceCheck
from limpet.stores.sherman.in_place_commit import InPlaceCommit, NodeLocks
from limpet.stores.sherman.in_place_parameters import NODE_PAIR
from limpet.stores.sherman.in_place_trees import InPlaceTrees, look_after_torn
from limpet.stores.sherman.in_place_write_set import InPlaceStaging, InPlaceWriter
from limpet.stores.sherman.scans import Scans
from limpet.stores.transactions.layout import DOING, EXTENT_PAIR

if TYPE_CHECKING:
    from limpet.stores.baselines.dtx.log import ValueLog
    from limpet.stores.transactions.entry_log import LogEntry

KEY_ROOM: Final = 8
"""Bytes that a key takes at least, in a node."""


class DtxSherman(InlineStore):
    """The `dtx-sherman` store. `DtxParameters`."""

    Parameters = DtxParameters
    ordered = True
    grows = True
    resolves = True
    stops = True

    def __init__(self, pool: Any, kind: str, name: str, parameters: DtxParameters) -> None:
        super().__init__(pool, kind, name, parameters)
        self.link = self.entry_number << 48 | REPLICATED
        self.objects.posts = True
        self.batches_gets = False
        self.index = self.trees = InPlaceTrees(
            pool, name, parameters, self.objects, self.link, stops=True
        )
        self.leaf = self.trees.leaf
        self.scans = Scans(self, self.trees, self.leaf)
        self.node_locks = NodeLocks(self)
        self.writer = InPlaceWriter(self, LoggedCommit)
        self.recovery = Recovery(self, self.node_locks)

    @staticmethod
    def make(pool: Any, name: str, parameters: DtxParameters) -> None:
        """Make the regions of the trees; StoreFull also if the keys will never fit."""
        regions.make(pool, name, parameters.trees, parameters.table_size)
        room = pool.layout.block_size
        for node in range(parameters.trees):
            keys = parameters.capacity // parameters.trees
            if pool.blocks.free_count(node) * room < keys * KEY_ROOM:
                raise StoreFull(f"node {node} has no room for its {keys} keys")

    @staticmethod
    def unmake(pool: Any, name: str, parameters: DtxParameters) -> None:
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
        if not self.recovery.look_for(tree, at):
            self.while_there(look_after_torn, self, at)

    def checker(self) -> InPlaceCheck:
        return InPlaceCheck(self)

    # ---- recovery -------------------------------------------------------------------------------

    def value_log(self, reference: int) -> NodeLog:
        """The log there."""
        return NodeLog(self, reference)

    def is_log(self, link_address: int) -> bool:
        """Whether a pair of a client journal is a log of this store."""
        ours = link_address & REPLICATED and link_address >> 48 == self.link >> 48
        return bool(ours and not link_address & (EXTENT_PAIR | NODE_PAIR))

    def stop_words(self) -> list[int]:
        """Addresses of the words by which each tree is stopped (recovery.py)."""
        return [self.trees.stop_word(tree) for tree in range(len(self.trees.roots))]

    def resolved(self, reference: int, link_address: int) -> bool:
        return not self.is_log(link_address) or self.recovery.resolved(reference)

    def listed(self, reference: int, link_address: int) -> list[int]:
        return self.recovery.listed(reference) if self.is_log(link_address) else []

    def image_of(self, at: int) -> int:
        """Address of the new contents of a torn node, by the log of its writer; or 0."""
        writer = self.node_locks.holder(at)
        # ORDER: only the log of the lock's holder: in another one the image is not written yet.
        for slot, _ in self.pool.membership.occupied() if writer else ():
            for _, entries in self.recovery.logs_in(slot, writer):
                for entry in entries:
                    if entry.at == at:
                        return entry.new & ADDRESS_MASK
        return 0

    # ---- evidence of a dead client --------------------------------------------------------------

    def left_by(self, ident: int) -> set[str]:
        found = {"stopped"} if self.recovery.has_stopped(ident) else set()
        slot = ident >> INCARNATION_BITS
        for log, entries in self.recovery.logs_in(slot, ident):
            with contextlib.suppress(NodeFailed):
                found |= self._left_with_log(log, entries, journal_of(self.endpoint, slot))
        return found

    def _left_with_log(
        self, log: ValueLog, entries: list[LogEntry], pairs: list[tuple[int, int]]
    ) -> set[str]:
        changed = [entry.at for entry in entries if entry.at]
        locked = [self.node_locks.holder(at) == log.owner() for at in changed]
        if log.state() != DOING:
            news = {entry.new for entry in entries}
            if any(reference in news for reference, _ in pairs):
                return {"noted"}
            return {"node-locked"} if any(locked) else set()
        if not any(locked):
            return {"unlocked"}
        size = self.parameters.node_size
        for entry in entries:
            if entry.at:
                node = self.endpoint.read(entry.at, size)
                if node == self.endpoint.read(entry.new & ADDRESS_MASK, size):
                    return {"node-written"}
        return {"decided"}
