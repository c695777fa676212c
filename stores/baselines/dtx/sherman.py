"""The `dtx-sherman` store: a B-link tree by distributed transactions (rTX section 6, "DTX").

After DrTM+H (Wei et al., OSDI '18), as far as the paper compares itself with it: optimistic
concurrency control on nodes that have lock and version in themselves, whole nodes in the log,
changed in place, and a recovery that stops all clients. A baseline; the tree is that of `sherman`
(sherman/plain.py), and every change, also a split or a merge, is one transaction:

    1. read the leaf
    2. lock all nodes that are changed, and read lock and version of each again: the version must be
       the one that was read. The log, which names them, is in hand before
    3. write all of them to the log, and that it is decided
    4. write them in place; unlock

Table 2: reads 1 KiB and 16 bytes, writes 2 KiB and 8 bytes, one CAS, for each node; and a header of
the log. A get reads the leaf, and waits if that is locked: another value may be decided.

A kill leaves behind: the log in the hand. The client that recovers the dead one stops the tree
(stores/baselines/dtx/recovery.py), waits until nobody is in it, writes the nodes that are locked
once more if it was decided, unlocks them, and lets all go on.

Limits that are the paper's: a recovery waits for a client that stands still, and so do all, until
it is fenced, or, in a pool with fence="wait", until it goes on; conflicts abort.

Deviations: the log is an object for each change, and not a ring; DrTM+H replicates, which the paper
has switched off. In a pool of several hosts, a client of another host that was declared dead may
yet write in place.

Round trips without conflict: get 1, insert, update and delete 4.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from limpet.shm.clients.membership import hand_in
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.slots import INCARNATION_BITS
from limpet.shm.endpoint.words import ADDRESS_MASK, REPLICATED
from limpet.shm.errors import NodeFailed, StoreFull
from limpet.stores.baselines.dtx.recovery import Recovery
from limpet.stores.baselines.dtx.sherman_log import NodeLog
from limpet.stores.rtx.layout import DOING, EXTENT_PAIR
from limpet.stores.rtx.log import Entry, Log
from limpet.stores.sherman.in_place_commit import InPlaceCommit
from limpet.stores.sherman.in_place_layout import NODE_PAIR
from limpet.stores.sherman.in_place_node import Node
from limpet.stores.sherman.in_place_parameters import DtxParameters
from limpet.stores.sherman.plain import InPlace
from limpet.stores.status import AGAIN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet.stores.baselines.dtx.log import ValueLog

KEY_ROOM: Final = 8
"""Bytes that a key takes at least, in a node."""


class LoggedCommit(InPlaceCommit):
    """The write set of one change, and its commit by way of a log."""

    def begin(self, link: int) -> None:
        super().begin(link)
        self.log: NodeLog | None = None

    def _sizes(self) -> Iterator[tuple[int, int]]:
        size = max(self.store.parameters.node_size, Log.size(self._entry_count()))
        yield self._memory_node(), size
        for _ in range(len(self._changed()) or 1):
            yield self._memory_node(), self.store.parameters.node_size
        yield from super()._sizes()

    def _memory_node(self) -> int:
        return int(self.store.roots[self.store.tree]) >> NODE_SHIFT & 0xFF

    def _changed(self) -> list[int]:
        return [at for at in self.pages if at not in self.fresh]

    def _entry_count(self) -> int:
        return len(self.pages) + len(self.extents) + len(self.dropped)

    def _prepare(self) -> bool:
        """Have all memory in hand, and then in the log."""
        news = [*self.fresh.values()]
        for staged in self.extents:
            news.append(self._new_extent(*staged))
        sizes = self._sizes()
        reference = self.allocator.allocate(*next(sizes), 1)
        place = self.client.held - 1
        images = [self.allocator.allocate(*next(sizes), 1) for _ in self._changed()]
        if not all([*news, reference, *images]):
            return False
        log = NodeLog(self.store, reference)
        log.take_up(place, self.link)
        self.log = log
        for index, new in enumerate(news):
            log.add(Entry(0, 0, new), index)
        for old in self.dropped:
            log.add(Entry(0, old, 0))
        changed = [pair for pair in self._in_order() if pair[0] not in self.fresh]
        for index, (at, _) in enumerate(changed):
            old = self.store.reference(at) if at in self._going() else 0
            log.add(Entry(at, old, images[index]), place + 1 + index)
        self.changes = [(*pair, image) for pair, image in zip(changed, images, strict=True)]
        return True

    def _lock_rest(self) -> bool:
        locked = super()._lock_rest()
        self.store.pool.membership.progress()
        return locked

    def _decide(self) -> list[tuple[int, Node]]:
        assert self.log is not None
        # CRASH(node-locked): not decided; recovery unlocks.
        for at in self.fresh:
            node: Any = self.pages[at]
            node.put(at)
        for _, changed, image in self.changes:
            changed.put_image(image & ADDRESS_MASK)
        self.log.decide()
        # CRASH(decided): recovery writes the nodes in place.
        self.endpoint.wait()
        return [(at, node) for at, node, _ in self.changes]

    def _finish(self) -> None:
        assert self.log is not None
        # CRASH(unlocked): all is changed; recovery frees what was dropped.
        self.log.close(True)

    def give_up(self) -> None:
        """Nothing has happened, and nothing is left of it."""
        if self.log is None:
            super().give_up()
            return
        self.unlock_all()
        self.log.close(False)

    def abandon(self) -> None:
        # ORDER: with a log in hand, that is carried out or undone first, as the operation ends; and
        # it goes by the locks, and gives them back.
        if self.log is None:
            super().abandon()


class Dtx(InPlace):
    """The `dtx-sherman` store. `DtxParameters`."""

    Parameters = DtxParameters
    stops = True

    @staticmethod
    def make(pool: Any, name: str, parameters: Any) -> None:
        """Make the regions of the trees; StoreFull also if the keys will never fit."""
        InPlace.make(pool, name, parameters)
        room = pool.parameters.block_size
        for node in range(parameters.trees):
            keys = parameters.capacity // parameters.trees
            if pool.blocks.free_count(node) * room < keys * KEY_ROOM:
                raise StoreFull(f"node {node} has no room for its {keys} keys")

    def equip(self, parameters: Any) -> None:
        super().equip(parameters)
        self.recovery = Recovery(self, self.node_locks)

    def commit(self) -> Any:
        self.current = LoggedCommit(self)
        return self.current

    def read_object(self, at: int, page: Any, near: int = 0) -> bool:
        """Read a node; False: it is torn, or locked, and what is to be in it may be decided."""
        return super().read_object(at, page) and not page.lock

    # ---- stopped --------------------------------------------------------------------------------

    def _look(self, tree: int, hashed: int, key: bytes, leaf: int) -> int:
        """Read the leaf in whose range a key is. AGAIN also if the tree is stopped."""
        lane = self.endpoint.background(True)
        try:
            stopped = self.endpoint.load(self.roots[tree] + self.parameters.node_size)
        finally:
            self.endpoint.background(lane)
        if stopped:
            self.tree = tree
            self.at = self.roots[tree]
            return AGAIN
        return super()._look(tree, hashed, key, leaf)

    def look_for(self, tree: int, at: int) -> None:
        if not self.recovery.look_for(tree, at):
            self._look_after_torn(at)

    # ---- recovery -------------------------------------------------------------------------------

    def value_log(self, reference: int) -> NodeLog:
        """The log there."""
        return NodeLog(self, reference)

    def is_log(self, home: int) -> bool:
        """Whether a pair of a hand is a log of this store."""
        ours = home & REPLICATED and home >> 48 == self.link >> 48
        return bool(ours and not home & (EXTENT_PAIR | NODE_PAIR))

    def stop_words(self) -> list[int]:
        """Addresses of the words by which each tree is stopped (stores/baselines/dtx/stop.py)."""
        return [root + self.parameters.node_size for root in self.roots]

    def resolved(self, reference: int, home: int) -> bool:
        return not self.is_log(home) or self.recovery.resolved(reference)

    def listed(self, reference: int, home: int) -> list[int]:
        return self.recovery.listed(reference) if self.is_log(home) else []

    def image_of(self, at: int) -> int:
        """Address of what a node that is torn is to be, by the log of who writes it; or 0."""
        writer = self.node_locks.holder(at)
        # ORDER: only the log of who has locked it: the image in another one is not written yet.
        for slot, _ in self.pool.membership.occupied() if writer else ():
            for _, entries in self.recovery.logs_in(slot, writer):
                for entry in entries:
                    if entry.at == at:
                        return entry.new & ADDRESS_MASK
        return 0

    # ---- what a dead client left ----------------------------------------------------------------

    def left_by(self, ident: int) -> set[str]:
        found = {"stopped"} if self.recovery.has_stopped(ident) else set()
        slot = ident >> INCARNATION_BITS
        for log, entries in self.recovery.logs_in(slot, ident):
            with contextlib.suppress(NodeFailed):
                found |= self._left_with_log(log, entries, hand_in(self.endpoint, slot))
        return found

    def _left_with_log(
        self, log: ValueLog, entries: list[Entry], pairs: list[tuple[int, int]]
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
        read, size = self.endpoint.read, self.parameters.node_size
        written = [
            read(entry.at, size) == read(entry.new & ADDRESS_MASK, size)
            for entry in entries
            if entry.at
        ]
        return {"node-written"} if any(written) else {"decided"}
