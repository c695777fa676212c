"""The replicated index: RACE's index on r memory nodes (FUSEE section 4.2), and its view.

Subtable t has its replicas on nodes t, t + 1, ... t + r - 1 (modulo the number of nodes), each a
region of the same name. Of those that are counted in the view (shm/view.py), the first is the
primary and the others are backups; whoever takes part in an operation has the same view.

A slot's value is what the primary has. Invariant: when no operation on a slot is unfinished, all
replicas are equal; when one is, the hand of some pinned client names the slot (links.py), and
whoever meets it can bring it to its end: `resolve`.

Vacant slots. 0 at first; later a number that never comes again (tickets.py). Objects' addresses do
not come again while a client is pinned that could have seen them. So no value comes back to a slot
as long as anybody knows it, and a CAS that comes too late does nothing (traps F1, F3). Leaders do
bring what the primary has back to backups, `_level` and reconcile.py: when nobody is in the midst
of a round, as whoever parks begins nothing again before it has looked how its round ended.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np

from limpet.shm.errors import NodeFailed, StoreCorrupt, StoreFull, StoreMismatch
from limpet.shm.layout import NODE_SHIFT, VIEW
from limpet.shm.replacement import copy
from limpet.shm.slots import INCARNATION_BITS
from limpet.shm.states import FORMER, IN_SERVICE, RESTORING, former, settled
from limpet.shm.tickets import Tickets
from limpet.shm.words import REFERENCE_MASK, REPLICATED, TENTATIVE
from limpet.stores.fusee.links import BUFFER, OFFSET_BITS, Link
from limpet.stores.fusee.log import LoggedObjects
from limpet.stores.fusee.marks import REPLICAS_ROW, UPDATED
from limpet.stores.fusee.reconcile import reconcile, tell
from limpet.stores.outcomes import VACANT_CLASS
from limpet.stores.race.hash_store import HashStore
from limpet.stores.race.index import Index, is_vacant, is_valid, obtain_subtable, region_name
from limpet.stores.race.parameters import GROUP_SIZE
from limpet.stores.race.table import Race


class ReplicatedTables(Race):
    """The tables of a replicated index, and the names of its slots in the hand."""

    replicated = True
    resolves = True

    def __init__(self, pool: Any, kind: str, name: str, parameters: Any) -> None:
        nodes = [t % pool.parameters.nodes << NODE_SHIFT for t in range(parameters.subtables)]
        objects = self._objects(pool.heap, parameters)
        HashStore.__init__(self, pool, kind, name, parameters, objects, nodes)
        self.logged = objects
        self.replicas = parameters.replicas
        self.entry = pool.catalogue.find(name.encode()).number
        self.view = pool.view
        self.tickets = Tickets(self.client)
        self.bases = array("Q", bytes(8 * REPLICAS_ROW * parameters.subtables))
        self.counts = array("Q", bytes(8 * parameters.subtables))
        self.backups = 0
        self.viewed = 0
        self.looked = False
        self._look()

    def _objects(self, heap: Any, parameters: Any) -> Any:
        """What writes and reads the objects that slots link to."""
        return LoggedObjects(heap, parameters.replicas)

    @property
    def losses_survived(self) -> int:  # type: ignore[override]  # that of others is a constant
        return int(self.parameters.replicas) - 1

    @staticmethod
    def make(pool: Any, name: str, parameters: Any) -> None:
        """Make the regions of all replicas, with the bucket headers written."""
        if parameters.subtables % pool.parameters.nodes and parameters.subtables != 1:
            raise StoreMismatch(f"{name}: {parameters.subtables} subtables do not fit the nodes")
        for subtable in range(parameters.subtables):
            for replica in range(parameters.replicas):
                node = (subtable + replica) % pool.parameters.nodes
                try:
                    obtain_subtable(pool, name, parameters, subtable, replica)
                except NodeFailed as error:
                    if error.node != node:
                        raise
                    # the node gets its replica when it is replaced
                    pool.view.fail_if_lost(node)

    @staticmethod
    def complete(pool: Any, name: str, parameters: Any) -> bool:
        """Whether each node in service has its replicas. NodeFailed: a subtable has none at all."""
        for subtable in range(parameters.subtables):
            found = 0
            for replica in range(parameters.replicas):
                node = (subtable + replica) % pool.parameters.nodes
                try:
                    if pool.regions.find(node, region_name(name, subtable)) is None:
                        return False
                    found += 1
                except NodeFailed as error:
                    pool.view.fail_if_lost(node)
                    lost = error
            if not found:
                raise lost
        return True

    @staticmethod
    def unmake(pool: Any, name: str, parameters: Any) -> None:
        for subtable in range(parameters.subtables):
            for replica in range(parameters.replicas):
                with contextlib.suppress(NodeFailed):  # then its region is gone with the node
                    node = (subtable + replica) % pool.parameters.nodes
                    pool.regions.discard(node, region_name(name, subtable))

    def forget(self) -> None:
        self.tickets.forget()
        self.looked = False

    # ---- the view ---------------------------------------------------------------------------

    def _place(self, hashed: int) -> None:
        if not self.looked or self.endpoint.load(VIEW) != self.viewed:
            self._renew()
        Index._place(self, hashed)
        self.backups = self.counts[self.table] - 1 if self.counts[self.table] else 0

    def _renew(self) -> None:
        """Look at the view, in an operation; wait first until it is settled."""
        while not self._look() or self.view.unsettled():
            self.view.settle()
        self.looked = True

    def _look(self) -> bool:
        """Find the replicas on nodes in service; before the next operation, `_renew` comes.

        Whether all states were settled that it went by. Others may not have left an older view yet.
        """
        viewed = self.view.number()
        states = self.view.states()
        # ORDER: the memory after the states: what they say is in service is mapped, or lost again.
        self.view.remap()
        for subtable in range(self.subtables):
            found = [
                self._region(node, subtable)
                for node in self._nodes(subtable)
                if states[node] == IN_SERVICE
            ]
            bases = [base for base in found if base]
            self.counts[subtable] = len(bases)
            self.tables[subtable] = bases[0] if bases else self._lost(subtable, states)
            for k, base in enumerate(bases):
                self.bases[REPLICAS_ROW * subtable + k] = base
        self.viewed = viewed
        self.looked = False
        return settled(states)

    def _lost(self, subtable: int, states: list[int]) -> int:
        """An address for a subtable that is lost altogether: every access raises NodeFailed."""
        places = self._nodes(subtable)
        lost = [node for node in places if states[node] not in (IN_SERVICE, RESTORING)]
        return lost[0] << NODE_SHIFT if lost else FORMER | places[0] << NODE_SHIFT

    def replaced(self, node: int) -> None:
        """What we know of the node holds no more; operations find it out anew."""
        for subtable in range(self.subtables):
            self.tables[subtable] = former(self.tables[subtable], node)
        self.looked = False

    def _nodes(self, subtable: int) -> list[int]:
        """The nodes of a subtable's replicas, in their order."""
        nodes = self.pool.parameters.nodes
        return [(subtable + k) % nodes for k in range(self.parameters.replicas)]

    def _region(self, node: int, subtable: int) -> int:
        """Address of the replica on that node; 0 when there is none, or the node is lost."""
        try:
            found = self.pool.regions.find(node, region_name(self.name, subtable))
        except NodeFailed:
            self.view.fail_if_lost(node)  # nobody may know that yet
            return 0
        return 0 if found is None else int(found.address)

    def _outlive(self, node: int) -> bool:
        """`node` was lost in the midst of an operation: wait for the view to change.

        False when it has not: more is lost than we survive.
        """
        if not self.looked:
            self._renew()
            return True
        before = self.viewed
        self.view.settle(node)
        self._renew()
        return bool(self.viewed != before)

    def _outlived(self, node: int) -> bool:
        """As `_outlive`, between operations."""
        self.client.enter()
        try:
            return self._outlive(node)
        finally:
            self.client.leave()

    def _backup(self, slot: int, k: int) -> int:
        """Address of the slot's replica on backup `k`, from 1 on."""
        return slot - self.tables[self.table] + self.bases[REPLICAS_ROW * self.table + k]

    # ---- names of slots ---------------------------------------------------------------------

    def _home(self, slot: int) -> int:
        """The slot's name in the hand."""
        offset = slot - self.tables[self.table]
        return self.entry << 48 | self.table << 40 | offset | REPLICATED

    def _go_to(self, home: int) -> int:
        """Make a link's subtable the current one; the address of its slot."""
        self.table = home >> 40 & 0xFF
        self.backups = self.counts[self.table] - 1 if self.counts[self.table] else 0
        return self.tables[self.table] + (home & OFFSET_BITS)

    def _ticket(self) -> int:
        """A word for a vacant slot that has never been used."""
        number: int = self.tickets.take()
        return VACANT_CLASS << 48 | number << 1

    def resolved(self, reference: int, home: int) -> bool:
        """Bring what concerns this pair of a hand to its end; whether its object is then linked.

        For a ticket, that stands for a slot being made vacant, True. What cannot be is linked, as
        far as anybody knows. Called pinned.
        """
        link = Link.of(home)
        ticket = reference >> 48 & 0xFF == VACANT_CLASS
        if link.subtable >= self.subtables or link.offset >= self.groups * GROUP_SIZE:
            return True
        if not ticket and not self.heap.plausible(reference):
            return True
        while True:
            try:
                if not self.looked or self.endpoint.load(VIEW) != self.viewed:
                    self._renew()
                return bool(self.resolve(reference, home, ticket)) or ticket
            except NodeFailed as error:
                if not self._outlive(error.node):
                    return ticket  # the link went with its nodes

    def resolve(self, reference: int, home: int, hurry: bool) -> bool:
        raise NotImplementedError

    # ---- after the loss of a node ---------------------------------------------------------------

    def reconcile(self, pairs: list[tuple[int, int]], failed: list[int]) -> None:
        """Put the replicas of all slots in order that these pairs of hands name; for a leader."""
        states = self.view.states()
        slots: dict[tuple[int, int], list[tuple[int, Link]]] = {}
        for reference, home in pairs:
            link = Link.of(home)
            if link.subtable < self.subtables and link.offset < self.groups * GROUP_SIZE:
                slots.setdefault((link.subtable, link.offset), []).append((reference, link))
        for (subtable, offset), links in slots.items():
            addresses = []
            for node in self._nodes(subtable):
                base = self._region(node, subtable)
                if node in failed or (states[node] == IN_SERVICE and base):
                    addresses.append((node, base + offset))
            reconcile(self, links, failed, addresses)

    # ---- after the replacement of a node --------------------------------------------------------

    def refill(self, node: int, pairs: list[tuple[int, int]]) -> dict[str, int]:
        """Make the replicas that belong on a node with new memory; for a leader, all others parked.

        `pairs`: those of hands that name slots of this store. Raises NodeFailed, with nothing lost,
        if the node had the last replica of an object.
        """
        self._require_replicas(node)
        self._level(pairs)
        found = {"objects": 0, "blocks": 0, "regions": 0, "bytes": 0}
        size = self.groups * GROUP_SIZE
        for subtable in range(self.subtables):
            places = self._nodes(subtable)
            if node not in places or not self.counts[subtable]:
                continue  # of what is lost altogether there is nothing to copy
            source = self.tables[subtable]
            self._clear_tentative(subtable)
            region = self._new_region(subtable, places.index(node))
            copy(self.pool.membership, source, region.address, size)
            found["regions"] += 1
            found["bytes"] += size
        return found

    def _new_region(self, subtable: int, replica: int) -> Any:
        try:
            return obtain_subtable(self.pool, self.name, self.parameters, subtable, replica)
        except StoreFull as error:
            raise StoreFull(f"{error}, or delete entries and replace the node again") from error

    def _require_replicas(self, node: int) -> None:
        states = self.view.states()
        if sum(state != IN_SERVICE for state in states) < self.replicas:
            return
        gone = 0
        for count, reference in enumerate(self.references().tolist()):
            if not count & 0xFFF:
                self.pool.membership.progress()
            places = [
                self.heap.replica(reference, k) >> NODE_SHIFT
                for k in range(self.heap.replicas(reference))
            ]
            gone += all(states[place] != IN_SERVICE for place in places)
        if gone:
            raise NodeFailed(
                node,
                f"with new memory there, {gone} entries of {self.name!r} would be missing and "
                "nobody would know, since all of their replicas were lost; save what is left, "
                "destroy the pool, and create it again",
            )

    def _level(self, pairs: list[tuple[int, int]]) -> None:
        """Give all replicas of the slots that are being changed what the primary has.

        As if a backup had been lost: what was proposed is not in force (reconcile.py).
        """
        for reference, home in pairs:
            link = Link.of(home)
            if link.subtable >= self.subtables or link.offset >= self.groups * GROUP_SIZE:
                continue
            if not self.counts[link.subtable]:
                continue
            word = self.endpoint.load(self.tables[link.subtable] + link.offset)
            for k in range(1, self.counts[link.subtable]):
                replica = self.bases[REPLICAS_ROW * link.subtable + k] + link.offset
                if self.endpoint.load(replica) != word:
                    # CRASH(levelling): the rounds that differ are named in hands as before.
                    self.endpoint.store(replica, word)
            tell(self, [(reference, link)], word, False)

    def _clear_tentative(self, subtable: int) -> None:
        """Take back inserts that nobody has decided, of a subtable that had one replica left."""
        words = self._slots_of(self.tables[subtable]).ravel()
        tentative = (words & np.uint64(TENTATIVE) != 0) & (np.arange(len(words)) % 8 != 0)
        for index in np.flatnonzero(tentative).tolist():
            for k in range(self.counts[subtable]):
                self.endpoint.store(
                    self.bases[REPLICAS_ROW * subtable + k] + 8 * index, self.new_number()
                )

    def mark_of(self, word: int, offset: int) -> int:
        """A word of the log entry of the object in a slot word; 0 of what can be no object.

        UPDATED when all of the object's replicas are lost, more than the store survives: it is left
        where it is, so that who wants it is told, not that there is none.
        """
        reference = word & REFERENCE_MASK
        if not self.heap.plausible(reference):
            return 0
        try:
            return int(self.logged.marked(reference, offset))
        except NodeFailed as error:
            if self.view.states()[error.node] == IN_SERVICE:
                raise  # nobody else knows that yet
            return UPDATED

    def new_number(self) -> int:
        return self._ticket()

    def left_by(self, ident: int) -> set[str]:
        """What the hand of a dead client shows of the rounds that it took part in."""
        found = set()
        for reference, home in self.view.hand(ident >> INCARNATION_BITS):
            link = Link.of(home)
            if link.entry != self.entry or home & BUFFER:
                continue
            bases = self.bases[REPLICAS_ROW * link.subtable :]
            count = self.counts[link.subtable]
            words = [self.endpoint.load(bases[k] + link.offset) for k in range(count)]
            named = [word & REFERENCE_MASK == reference for word in words]
            if reference >> 48 & 0xFF == VACANT_CLASS:
                found |= {"voided"} if named[0] else set()
            elif link.old:
                found |= {"won"} if named[0] and not any(named[1:]) else set()
                found |= set() if named[0] else {"replaced"}
            elif any(named[1:]) and not named[0]:
                found |= {"proposed", "inserting"} if is_vacant(words[0]) else {"proposed"}
        return found

    # ---- the whole table --------------------------------------------------------------------

    def __len__(self) -> int:
        return int(self._outliving(lambda: Index.__len__(self)))

    def _outliving(self, look: Callable[[], Any]) -> Any:
        """What `look` returns, by a view that is settled; again when a node is lost meanwhile."""
        while True:
            self.client.enter()
            try:
                self._renew()
            finally:
                self.client.leave()
            try:
                return look()
            except NodeFailed as error:
                if not self._outlived(error.node):
                    raise

    def references(self) -> Any:
        self._look()
        return Index.references(self)

    def keys(self) -> Any:
        """Every key, a group at a time; as weakly consistent as `iter` says."""
        for subtable in range(self.subtables):
            for group in range(self.groups):
                yield from self._keys_in(subtable, group)

    def _keys_in(self, subtable: int, group: int) -> list[bytes]:
        while True:
            try:
                return self._keys_of(self.tables[subtable] + group * GROUP_SIZE)
            except NodeFailed as error:
                if not self._outlived(error.node):
                    raise

    def check(self) -> None:
        """As of every index; and that replicas agree on all slots that nobody is changing."""
        self._outliving(self._check_all)

    def _check_all(self) -> None:
        Index.check(self)
        for subtable in range(self.subtables):
            for k in range(1, self.counts[subtable]):
                self._compare(subtable, k)

    def _compare(self, subtable: int, k: int) -> None:
        """Compare a subtable with its replica `k`."""
        size = self.groups * GROUP_SIZE
        base = self.bases[REPLICAS_ROW * subtable + k]
        there = np.frombuffer(self.endpoint.read(base, size), dtype="<u8")
        here = self._slots_of(self.tables[subtable]).ravel()
        for index in np.flatnonzero(here != there).tolist():
            self._explain(subtable, 8 * index, base)

    def _explain(self, subtable: int, offset: int, base: int) -> None:
        """Raise StoreCorrupt unless the replicas of a slot agree by now, or are being changed."""
        home = self.entry << 48 | subtable << 40 | offset | REPLICATED
        here = there = 0
        for attempt in range(64):
            # ORDER: hands before slots: who begins to change the slot has named it in the hand.
            named = any(
                Link.of(home)[:3] == Link.of(other)[:3] and not other & BUFFER
                for _, other in self.view.hands()
            )
            here = self.endpoint.load(self.tables[subtable] + offset)
            there = self.endpoint.load(base + offset)
            if here == there:
                return
            if not named:
                self.endpoint.pause(attempt)
        if not named:
            raise StoreCorrupt(
                f"{self.name}: subtable {subtable}, offset {offset}: the primary has {here:#x}, a "
                f"replica {there:#x}, and nobody is changing it"
            )

    def _wrong_with(self, group: int, slot: int, word: int, seen: dict[bytes, int]) -> str:
        wrong: str = Index._wrong_with(self, group, slot, word, seen)
        reference = word & REFERENCE_MASK
        if wrong or not is_valid(word):
            return wrong
        for k in range(self.heap.replicas(reference)):
            with contextlib.suppress(NodeFailed):
                if not self.heap.used_at(reference, k):
                    return f"replica {k} of the object is not in use"
                self.logged.load_at(reference, k)
                if not self.logged.fits(reference) or not self.logged.intact():
                    return f"the sizes or checksum of the object's replica {k} do not hold"
        return ""
