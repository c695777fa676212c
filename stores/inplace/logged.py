"""The `dtx-sherman` store: a B-link tree by distributed transactions (rtx.txt section 6, "DTX").

After DrTM+H (Wei et al., OSDI '18), as far as the paper compares itself with it: optimistic
concurrency control on nodes that have lock and version in themselves, whole nodes in the log,
changed in place, and a recovery that stops all clients. A baseline; the tree is that of `sherman`
(table.py), and every change, also a split or a merge, is one transaction:

    1. read the leaf
    2. lock all nodes that are changed, and read lock and version of each again: the version must be
       the one that was read. The log, which names them, is in hand before
    3. write all of them to the log, and that it is decided
    4. write them in place; unlock

Table 2: reads 1 KiB and 16 bytes, writes 2 KiB and 8 bytes, one CAS, for each node; and a header of
the log. A get reads the leaf, and waits if that is locked: another value may be decided.

What a kill leaves behind: the log in the hand. Who recovers the client stops the tree (stop.py),
waits until nobody is in it, writes the nodes that are locked once more if it was decided, unlocks
them, and lets all go on. It may be killed at that; the next one begins anew.

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

from limpet.shm.errors import AddressError, NodeFailed, StoreCorrupt, StoreFull
from limpet.shm.layout import NODE_SHIFT
from limpet.shm.membership import hand_in
from limpet.shm.slots import INCARNATION_BITS
from limpet.shm.words import ADDRESS_MASK, REPLICATED
from limpet.stores.inplace.commit import InPlaceCommit
from limpet.stores.inplace.fields import NODE_PAIR
from limpet.stores.inplace.log import ValueLog, give_back
from limpet.stores.inplace.node import Node
from limpet.stores.inplace.parameters import DtxParameters
from limpet.stores.inplace.stop import Stop
from limpet.stores.inplace.table import InPlace
from limpet.stores.outcomes import AGAIN
from limpet.stores.rtx.fields import DOING, EXTENT_PAIR
from limpet.stores.rtx.log import Entry, Log

if TYPE_CHECKING:
    from collections.abc import Iterator


KEY_ROOM: Final = 8
"""Bytes that a key takes at least, in a node."""


class LoggedCommit(InPlaceCommit):
    """The write set of one change, and its commit by way of a log."""

    def begin(self, link: int) -> None:
        super().begin(link)
        self.log: ValueLog | None = None
        self.place = 0
        """Of the log in the hand."""
        self.noted: list[Entry] = []

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
        self.place = self.client.held - 1
        images = [self.allocator.allocate(*next(sizes), 1) for _ in self._changed()]
        if not all([*news, reference, *images]):
            return False
        log = ValueLog(self.store, reference)
        log.open(self.client.ident)
        # ORDER: it is one before the hand says so.
        self.client.aim(self.place, self.link)
        self.log = log
        for index, new in enumerate(news):
            self._note(Entry(0, 0, new), index)
        for old in self.dropped:
            self._note(Entry(0, old, 0))
        changed = [pair for pair in self._in_order() if pair[0] not in self.fresh]
        for index, (at, _) in enumerate(changed):
            old = self.store.reference(at) if at in self._going() else 0
            self._note(Entry(at, old, images[index]), self.place + 1 + index)
        self.changes = [(*pair, image) for pair, image in zip(changed, images, strict=True)]
        return True

    def _note(self, entry: Entry, index: int = -1) -> None:
        """Note an entry; what it has at that place of the hand is in the log from then on."""
        assert self.log is not None
        self.log.note(len(self.noted), entry)
        self.noted.append(entry)
        if index >= 0:
            # CRASH(noted): it is in the log and in the hand; recovery frees it.
            self.client.keep(index)

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
        give_back(self.heap, self.noted, True)
        self.client.release(self.place)

    def give_up(self) -> None:
        """Nothing has happened, and nothing is left of it."""
        if self.log is None:
            super().give_up()
            return
        self.unlock_all()
        give_back(self.heap, self.noted, False)
        self.client.release(self.place)


class Dtx(InPlace):
    """The `dtx-sherman` store. `DtxParameters`."""

    Parameters = DtxParameters

    @staticmethod
    def make(pool: Any, name: str, parameters: Any) -> None:
        """Make the regions of the trees; StoreFull also if the keys will never fit."""
        InPlace.make(pool, name, parameters)
        room = pool.parameters.block_size
        for node in range(parameters.trees):
            keys = parameters.capacity // parameters.trees
            if pool.blocks.free_count(node) * room < keys * KEY_ROOM:
                raise StoreFull(f"node {node} has no room for its {keys} keys")

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
        membership = self.pool.membership
        membership.sweep_sometimes()
        stop = Stop(self, tree)
        holder = self.endpoint.load(stop.at)
        if holder:
            if membership.gone(holder, stop.what):
                self.endpoint.cas(stop.at, holder, 0)
            return
        holder = self.node_locks.holder(at)
        if holder:
            membership.gone(holder, f"the node at {at:#x} of {self.name!r}")
        else:
            self._look_after_torn(at)

    # ---- recovery -------------------------------------------------------------------------------

    def resolved(self, reference: int, home: int) -> bool:
        """Carry out or undo the change whose log this is: of a dead client, or our own."""
        if home & (EXTENT_PAIR | NODE_PAIR):
            return True
        log = ValueLog(self, reference)
        try:
            if log.owner() == self.client.ident:
                self._carry_out(log)
            else:
                self._recover(log)
        except (NodeFailed, StoreCorrupt, AddressError):
            return True  # it is lost with its memory node; or damaged, and recovery goes on
        return False

    def _carry_out(self, log: ValueLog) -> None:
        log.give_back(self.heap, log.settle())

    def _recover(self, log: ValueLog) -> None:
        stop = Stop(self, log.reference >> NODE_SHIFT & 0xFF)
        stop.take()
        try:
            self._carry_out(log)
        finally:
            with contextlib.suppress(NodeFailed):
                stop.give_back()

    def listed(self, reference: int, home: int) -> list[int]:
        if home & (EXTENT_PAIR | NODE_PAIR):
            return []
        try:
            entries = ValueLog(self, reference).entries()
        except StoreCorrupt:
            return []
        return [each for entry in entries for each in (entry.old, entry.new) if each]

    def image_of(self, at: int) -> int:
        """Address of what a node that is torn is to be, by the log of who writes it; or 0."""
        for slot, _ in self.pool.membership.occupied():
            for reference, home in hand_in(self.endpoint, slot):
                if home & REPLICATED and home >> 48 == self.link >> 48:
                    images = self._images(reference, home)
                    if at in images:
                        return images[at]
        return 0

    def _images(self, reference: int, home: int) -> dict[int, int]:
        if home & (EXTENT_PAIR | NODE_PAIR):
            return {}
        with contextlib.suppress(NodeFailed, StoreCorrupt, AddressError):
            entries = ValueLog(self, reference).entries()
            return {entry.at: entry.new & ADDRESS_MASK for entry in entries if entry.at}
        return {}

    # ---- what a dead client left ----------------------------------------------------------------

    def left_by(self, ident: int) -> set[str]:
        found: set[str] = set()
        for tree in range(len(self.roots)):
            with contextlib.suppress(NodeFailed):
                if self.endpoint.load(Stop(self, tree).at) == ident:
                    found.add("stopped")
        pairs = hand_in(self.endpoint, ident >> INCARNATION_BITS)
        for reference, home in pairs:
            if home & REPLICATED and not home & (EXTENT_PAIR | NODE_PAIR):
                with contextlib.suppress(NodeFailed, StoreCorrupt):
                    found |= self._left_with_log(ValueLog(self, reference), ident, pairs)
        return found

    def _left_with_log(self, log: ValueLog, ident: int, pairs: list[tuple[int, int]]) -> set[str]:
        if log.owner() != ident:
            return set()
        entries = log.entries()
        changed = [entry.at for entry in entries if entry.at]
        locked = [self.node_locks.holder(at) == ident for at in changed]
        if log.state() != DOING:
            news = {entry.new for entry in entries}
            if any(reference in news for reference, _ in pairs):
                return {"noted"}
            return {"node-locked"} if any(locked) else set()
        if not any(locked):
            return {"unlocked"}
        read, size = self.endpoint.read, log.node_size
        written = [
            read(entry.at, size) == read(entry.new & ADDRESS_MASK, size)
            for entry in entries
            if entry.at
        ]
        return {"node-written"} if any(written) else {"decided"}
