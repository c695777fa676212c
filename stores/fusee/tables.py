"""The replicated index: RACE's index on r memory nodes (FUSEE section 4.2), and its view.

Directories and subtables are those of `race` (stores/race/directory.py), with replicas. Directory t
is a region on each of the nodes t, t + 1, ... t + r - 1 (modulo the number of nodes). A subtable is
an object with r replicas (shm/mirrors.py): where they lie follows from the address of the first
one, the head, which need not be on node t. Of the replicas that are counted in the view
(shm/view.py), the first is the primary and the others are backups; whoever takes part in an
operation has the same view.

A slot's value is what the primary has. Invariant: when no operation on a slot is unfinished, all
replicas are equal; when one is, the hand of some pinned client names the slot (links.py), and
whoever meets it can bring it to its end: `resolve`.

Vacant slots. 0 at first; later a number that never comes again (tickets.py). Objects' addresses do
not come again while a client is pinned that could have seen them. So no value comes back to a slot
as long as anybody knows it, and a CAS that comes too late does nothing (traps F1, F3). Leaders do
bring what the primary has back to backups, `_level` and reconcile.py: when nobody is in the midst
of a round, as whoever parks begins nothing again before it has looked how its round ended.

Entries of a directory need no rounds, since they only ever grow: 0, a pointer, SPLIT. The last
replica decides, by CAS, which pointer comes after 0, and when SPLIT after that; then whoever comes
by raises the others to what it has, the primary last: `_advance`. So what the primary has, all
have; and when nodes are lost, the greatest word that any replica has left is in force. The hand of
who links or unlinks a subtable names the entry.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from limpet.shm.errors import NodeFailed, StoreCorrupt, StoreFull, StoreMismatch
from limpet.shm.layout import NODE_SHIFT, OFFSET_MASK, VIEW
from limpet.shm.replacement import copy
from limpet.shm.slots import INCARNATION_BITS
from limpet.shm.states import FORMER, IN_SERVICE, RESTORING, former, settled
from limpet.shm.tickets import Tickets
from limpet.shm.words import ADDRESS_MASK, REPLICATED, TENTATIVE
from limpet.stores.fusee.links import ENTRY, OFFSET_BITS, PLACE_BITS, Link, is_entry, is_slot
from limpet.stores.fusee.log import LoggedObjects
from limpet.stores.fusee.marks import REPLICAS_ROW, UPDATED
from limpet.stores.fusee.reconcile import reconcile, tell
from limpet.stores.outcomes import VACANT_CLASS
from limpet.stores.race.directory import Directory
from limpet.stores.race.fields import FROZEN, FROZEN_VACANT, MASK, OBJECT_MASK
from limpet.stores.race.growth import Growing
from limpet.stores.race.hash_store import HashStore
from limpet.stores.race.index import Index, is_vacant, is_valid, region_name
from limpet.stores.race.parameters import GROUP_SIZE

NODES: Final = 256


def identity(word: int) -> int:
    """What a slot's word is known by, frozen or not: its object, or its number."""
    if word & FROZEN and (is_vacant(word) or word == FROZEN_VACANT):
        return word
    return word & OBJECT_MASK


def obtain_directory(pool: Any, name: str, parameters: Any, table: int, replica: int = 0) -> Any:
    """The region of a directory's replica, made if it is not there. They are on adjacent nodes."""
    node = (table + replica) % pool.parameters.nodes
    return pool.regions.obtain(node, region_name(name, table), parameters.directory_size)


class ReplicatedTables(Growing):
    """The tables of a replicated index, and the names of its slots in the hand."""

    replicated = True
    resolves = True

    def __init__(self, pool: Any, kind: str, name: str, parameters: Any) -> None:
        nodes = [t % pool.parameters.nodes << NODE_SHIFT for t in range(parameters.subtables)]
        objects = self._objects(pool.heap, parameters)
        HashStore.__init__(self, pool, kind, name, parameters, objects, nodes)
        self.logged = objects
        self.replicas = parameters.replicas
        self.number_of_store = pool.catalogue.find(name.encode()).number
        self.view = pool.view
        self.tickets = Tickets(self.client)
        self.bases = array("Q", bytes(8 * REPLICAS_ROW * parameters.subtables))
        self.counts = array("Q", bytes(8 * parameters.subtables))
        """Of the directories: addresses of the replicas that count, and how many do."""
        self.steps = array("Q", bytes(8 * REPLICAS_ROW * NODES))
        self.lives = array("Q", bytes(8 * NODES))
        """Of subtables with their heads on a node: how far it is from the head to each replica that
        counts, and how many do."""
        self.head = 0
        """The node of the head of the subtable at hand."""
        self.backups = 0
        self.viewed = 0
        self.looked = False
        self._begin_search()
        self._look()

    @staticmethod
    def _objects(heap: Any, parameters: Any) -> Any:
        return LoggedObjects(heap, parameters.replicas)

    @property
    def losses_survived(self) -> int:  # type: ignore[override]  # that of others is a constant
        return int(self.parameters.replicas) - 1

    @staticmethod
    def make(pool: Any, name: str, parameters: Any) -> None:
        """Make the regions of the replicas of all directories; zeros are an empty table."""
        if parameters.subtables % pool.parameters.nodes and parameters.subtables != 1:
            raise StoreMismatch(f"{name}: {parameters.subtables} subtables do not fit the nodes")
        for subtable in range(parameters.subtables):
            for replica in range(parameters.replicas):
                node = (subtable + replica) % pool.parameters.nodes
                try:
                    obtain_directory(pool, name, parameters, subtable, replica)
                except NodeFailed as error:
                    if error.node != node:
                        raise
                    # the node gets its replica when it is replaced
                    pool.view.fail_if_lost(node)
        Directory.require_room(pool, name, parameters, parameters.replicas)

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
        Growing.forget(self)
        self.tickets.forget()
        self.looked = False

    # ---- the view ---------------------------------------------------------------------------

    def _place(self, hashed: int) -> None:
        if not self.looked or self.endpoint.load(VIEW) != self.viewed:
            self._renew()
        Growing._place(self, hashed)
        self.head = self.pointer >> NODE_SHIFT & 0xFF
        self.backups = self.lives[self.head] - 1 if self.lives[self.head] else 0

    def _turn_to_head(self, address: int) -> None:
        """Have the subtable with this address, or pointer, be the one at hand."""
        self.head = address >> NODE_SHIFT & 0xFF
        self.backups = self.lives[self.head] - 1 if self.lives[self.head] else 0

    def _base_of(self, pointer: int) -> int:
        return (pointer & ADDRESS_MASK) + self.steps[
            REPLICAS_ROW * (pointer >> NODE_SHIFT & 0xFF)
        ] & MASK

    def _primary(self, address: int) -> int:
        """Where on the primary that is which has this address in the head of its subtable."""
        return address + self.steps[REPLICAS_ROW * (address >> NODE_SHIFT & 0xFF)] & MASK

    def _agree(self) -> None:
        """Be sure, in an operation, to have the view that all others have."""
        if not self.looked or self.endpoint.load(VIEW) != self.viewed:
            self._renew()

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
            for k, base in enumerate(bases or [self.tables[subtable]]):
                self.bases[REPLICAS_ROW * subtable + k] = base
        for node in range(len(states)):
            steps = [
                self._step(node, k)
                for k in range(self.replicas)
                if states[(node + k) % len(states)] == IN_SERVICE
            ]
            self.lives[node] = len(steps)
            for k, step in enumerate(steps or [0]):
                self.steps[REPLICAS_ROW * node + k] = step
        self.viewed = viewed
        self.looked = False
        return settled(states)

    def _step(self, node: int, k: int) -> int:
        """How far replica `k` is from the head of a subtable, which is on that node."""
        there = (node + k) % self.pool.parameters.nodes
        region = self.heap.placement.region_blocks * self.heap.layout.block_size
        return ((there - node) << NODE_SHIFT) + k * region & MASK

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
        """The nodes of a directory's replicas, in their order."""
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
        row = REPLICAS_ROW * self.head
        return slot - self.steps[row] + self.steps[row + k] & MASK

    def _replica(self, address: int, k: int) -> int:
        """Where on the replica `k` that counts that is which has this address in the head."""
        return address + self.steps[REPLICAS_ROW * (address >> NODE_SHIFT & 0xFF) + k] & MASK

    # ---- names of slots ---------------------------------------------------------------------

    def _home(self, slot: int) -> int:
        """The slot's name in the hand."""
        place = slot - self.steps[REPLICAS_ROW * self.head] & PLACE_BITS
        return self.number_of_store << 48 | place | REPLICATED

    def _go_to(self, home: int) -> int:
        """Have the subtable of a slot that is named be the one at hand; the slot's address."""
        self._turn_to_head(home & PLACE_BITS)
        return self._primary(home & PLACE_BITS)

    def _home_of_entry(self, entry: int) -> int:
        """The name in the hand of an entry of the directory at hand."""
        place = self.table << NODE_SHIFT | entry - self.tables[self.table]
        return ENTRY | self.number_of_store << 48 | place | REPLICATED

    def _is_named(self, home: int) -> bool:
        """Whether a name from a hand can be one."""
        table, offset = home >> NODE_SHIFT & 0xFF, home & OFFSET_BITS
        if is_entry(home):
            return table < self.subtables and offset < self.parameters.directory_size
        block = (offset & OFFSET_MASK) - self.heap.blocks >> self.heap.block_shift
        return bool(
            is_slot(home)
            and table < self.pool.parameters.nodes
            and 0 <= block < self.heap.block_count
            and (self.replicas == 1 or self.heap.placement.part(block, self.replicas) == 0)
        )

    def _ticket(self) -> int:
        """A word for a vacant slot that has never been used."""
        number: int = self.tickets.take()
        # the first two are SPLIT and UNSET
        return VACANT_CLASS << 48 | (number << 1) + 4

    def resolved(self, reference: int, home: int) -> bool:
        """Bring what concerns this pair of a hand to its end; whether its object is then linked.

        For a ticket, that stands for a slot being made vacant, True. What cannot be is linked, as
        far as anybody knows. Called pinned.
        """
        ticket = reference & FROZEN != 0
        if not self._is_named(home) or (not ticket and not self.heap.plausible(reference)):
            return True
        while True:
            try:
                self._agree()
                if is_entry(home):
                    return self._advance(home & PLACE_BITS, 0, 0) == reference
                return bool(self.resolve(reference, home, ticket)) or ticket
            except NodeFailed as error:
                if not self._outlive(error.node):
                    return ticket  # the link went with its nodes

    def resolve(self, reference: int, home: int, hurry: bool) -> bool:
        raise NotImplementedError

    # ---- entries --------------------------------------------------------------------------------

    def _advance(self, place: int, word: int, desired: int) -> int:
        """Have an entry of a directory, named as in a link, go from `word` to `desired`, if it has
        `word`; what it has then, on all replicas."""
        row = REPLICAS_ROW * (place >> NODE_SHIFT)
        offset = place & OFFSET_BITS
        backups = self.counts[place >> NODE_SHIFT] - 1 if self.counts[place >> NODE_SHIFT] else 0
        last = self.bases[row + backups] + offset
        if desired:
            # LINEARIZES: linking a subtable; unlinking it
            self.endpoint.cas(last, word, desired)
            # CRASH(entry-decided): whoever comes by raises the other replicas.
        decided = self.endpoint.load(last)
        self.endpoint.wait()
        for k in range(backups - 1, -1, -1):
            replica = self.bases[row + k] + offset
            there = self.endpoint.load(replica)
            while there < decided:
                was = self.endpoint.cas(replica, there, decided)
                there = decided if was == there else was
            self.endpoint.wait()
        return decided

    # ---- after the loss of a node ---------------------------------------------------------------

    def reconcile(self, pairs: list[tuple[int, int]], failed: list[int]) -> None:
        """Put the replicas of all slots in order that these pairs of hands name; for a leader."""
        states = self.view.states()
        slots: dict[int, list[tuple[int, Link]]] = {}
        for reference, home in pairs:
            if is_slot(home) and self._is_named(home):
                link = Link.of(home)
                slots.setdefault(link.place, []).append((reference, link))
        nodes = len(states)
        for place, links in slots.items():
            head = place >> NODE_SHIFT
            addresses = [
                ((head + k) % nodes, place + self._step(head, k) & MASK)
                for k in range(self.replicas)
                if (head + k) % nodes in failed or states[(head + k) % nodes] == IN_SERVICE
            ]
            reconcile(self, links, failed, addresses)
        self._look()
        self._level_directories()

    def _level_directories(self) -> None:
        """Give all replicas of each entry the greatest word that one has; nobody else is at it."""
        for table in range(self.subtables):
            row = REPLICAS_ROW * table
            bases = [self.bases[row + k] for k in range(self.counts[table])]
            if len(bases) < 2:
                continue
            size = self.parameters.directory_size
            words = [np.frombuffer(self.endpoint.read(base, size), dtype="<u8") for base in bases]
            greatest = np.maximum.reduce(words)
            for base, there in zip(bases, words, strict=True):
                for index in np.flatnonzero(there != greatest).tolist():
                    # CRASH(levelling): the next leader finds the same word the greatest.
                    self.endpoint.store(base + 8 * index, int(greatest[index]))

    # ---- after the replacement of a node --------------------------------------------------------

    def refill(self, node: int, pairs: list[tuple[int, int]]) -> dict[str, int]:
        """Make the replicas that belong on a node with new memory; for a leader, all others parked.

        `pairs`: those of hands that name slots of this store. Raises NodeFailed, with nothing lost,
        if the node had the last replica of an object.
        """
        self._require_replicas(node)
        self._level(pairs)
        self._level_directories()
        found = {"objects": 0, "blocks": 0, "regions": 0, "bytes": 0}
        for table in range(self.subtables):
            places = self._nodes(table)
            if not self.counts[table]:
                continue  # of what is lost altogether there is nothing to copy
            if node in places:
                region = self._new_region(table, places.index(node))
                size = self.parameters.directory_size
                copy(self.pool.membership, self.tables[table], region.address, size)
                found["regions"] += 1
                found["bytes"] += size
            for pointer in self._subtables_of(table, node):
                found["bytes"] += self._refill_subtable(node, pointer & ADDRESS_MASK)
        return found

    def _subtables_of(self, table: int, node: int) -> list[int]:
        """Pointers to a directory's subtables; NodeFailed if one has no replica left."""
        try:
            return list(self._linked(table)[1].tolist())
        except NodeFailed as error:
            if self.view.states()[error.node] == IN_SERVICE:
                raise  # lost just now: the replacement begins anew
            raise NodeFailed(
                node,
                f"all replicas of a subtable of {self.name!r} are lost; save what is left, destroy "
                "the pool, and create it again",
            ) from error

    def _refill_subtable(self, node: int, address: int) -> int:
        """Copy a subtable to its replica on that node, if it has one there; how many bytes.

        The block is there already, with what was in it before the slots were put in order.
        """
        head = address >> NODE_SHIFT
        k = (node - head) % self.pool.parameters.nodes
        if k >= self.replicas:
            return 0
        self._clear_tentative(address)
        target = address + self._step(head, k) & MASK
        copy(self.pool.membership, self._primary(address), target, self.subtable_size)
        return self.subtable_size

    def _new_region(self, table: int, replica: int) -> Any:
        try:
            return obtain_directory(self.pool, self.name, self.parameters, table, replica)
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
            if not is_slot(home) or not self._is_named(home):
                continue
            link = Link.of(home)
            head = link.place >> NODE_SHIFT
            if not self.lives[head]:
                continue
            word = self.endpoint.load(self._primary(link.place))
            for k in range(1, self.lives[head]):
                replica = self._replica(link.place, k)
                if self.endpoint.load(replica) != word:
                    # CRASH(levelling): the rounds that differ are named in hands as before.
                    self.endpoint.store(replica, word)
            tell(self, [(reference, link)], word, False)

    def _clear_tentative(self, address: int) -> None:
        """Take back inserts that nobody has decided, of a subtable that had one replica left."""
        words = self._slots_of(self._primary(address)).ravel()
        tentative = (words & np.uint64(TENTATIVE) != 0) & (np.arange(len(words)) % 8 != 0)
        tentative &= words != FROZEN_VACANT
        for index in np.flatnonzero(tentative).tolist():
            number = self.new_number()
            for k in range(self.lives[address >> NODE_SHIFT]):
                self.endpoint.store(self._replica(address + 8 * index, k), number)

    def mark_of(self, word: int, offset: int) -> int:
        """A word of the log entry of the object in a slot word; 0 of what can be no object.

        UPDATED when all of the object's replicas are lost, more than the store survives: it is left
        where it is, so that who wants it is told, not that there is none.
        """
        reference = identity(word)
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
            if link.entry != self.number_of_store or not self._is_named(home):
                continue
            if is_entry(home):
                found |= self._left_at_entry(link, reference)
                continue
            count = self.lives[link.place >> NODE_SHIFT]
            words = [self.endpoint.load(self._replica(link.place, k)) for k in range(count)]
            named = [identity(word) == reference for word in words]
            frozen = [word & FROZEN != 0 and not is_vacant(word) for word in words]
            if any(frozen):
                found |= {"slot-frozen"} if all(frozen) else {"slot-freezing"}
            if reference & FROZEN:
                found |= {"voided"} if named[0] and not frozen[0] else set()
            elif link.old:
                found |= {"won"} if named[0] and not any(named[1:]) else set()
                found |= set() if named[0] else {"replaced"}
            elif any(named[1:]) and not named[0]:
                found |= {"proposed", "inserting"} if is_vacant(words[0]) else {"proposed"}
        return found

    def _left_at_entry(self, link: Link, reference: int) -> set[str]:
        """What a pair of a hand shows that names an entry of a directory."""
        row = REPLICAS_ROW * (link.place >> NODE_SHIFT)
        offset = link.place & OFFSET_BITS
        count = self.counts[link.place >> NODE_SHIFT]
        words = [self.endpoint.load(self.bases[row + k] + offset) for k in range(count)]
        if min(words) != max(words):
            return {"entry-decided"}
        if link.old:
            return {"split"} if words[0] != reference else {"freezing"}
        return {"subtable-made"} if words[0] == reference else set()

    # ---- the whole table --------------------------------------------------------------------

    def __len__(self) -> int:
        return int(self._outliving(lambda: Growing.__len__(self)))

    def index_size(self) -> int:
        """Bytes of all subtables, of one replica."""
        return int(self._outliving(lambda: Growing.index_size(self)))

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
        return Growing.references(self)

    def pairs(self) -> Any:
        """References to what slots link to, as far as it is not lost."""
        self._look()
        return self._linked_all()[0]

    def _keys_at(self, table: int, number: int, group: int) -> list[bytes] | None:
        self.client.enter()
        try:
            while True:
                try:
                    self._agree()
                    return self._keys_there(table, number, group)
                except NodeFailed as error:
                    if not self._outlive(error.node):
                        raise
        finally:
            self.client.leave()

    def check(self) -> None:
        """As of every index; and that replicas agree on all slots that nobody is changing."""
        self._outliving(lambda: Growing.check(self))

    def _check_here(self, number: int, base: int, group: int, seen: dict[bytes, int]) -> None:
        super()._check_here(number, base, group, seen)
        start = base + group * GROUP_SIZE
        head = self._head_of(base)
        for k in range(1, self.lives[head]):
            replica = start - self.steps[REPLICAS_ROW * head] + self.steps[REPLICAS_ROW * head + k]
            self._compare(start, replica & MASK, head)

    def _head_of(self, base: int) -> int:
        """The node of the head of the subtable that has its primary there."""
        node = base >> NODE_SHIFT
        block = (base & OFFSET_MASK) - self.heap.blocks >> self.heap.block_shift
        part = self.heap.placement.part(block, self.replicas)
        return (node - part) % int(self.pool.parameters.nodes)

    def _compare(self, start: int, replica: int, head: int) -> None:
        """Compare a group with its replica."""
        there = np.frombuffer(self.endpoint.read(replica, GROUP_SIZE), dtype="<u8")
        here = np.frombuffer(self.endpoint.read(start, GROUP_SIZE), dtype="<u8")
        for index in np.flatnonzero(here != there).tolist():
            self._explain(start + 8 * index, replica + 8 * index, head)

    def _explain(self, slot: int, replica: int, head: int) -> None:
        """Raise StoreCorrupt unless the replicas of a slot agree by now, or are being changed."""
        place = slot - self.steps[REPLICAS_ROW * head] & PLACE_BITS
        here = there = 0
        for attempt in range(64):
            # ORDER: hands before slots: who begins to change the slot has named it in the hand.
            named = any(
                is_slot(home) and Link.of(home)[:2] == (self.number_of_store, place)
                for _, home in self.view.hands()
            )
            here = self.endpoint.load(slot)
            there = self.endpoint.load(replica)
            if here == there:
                return
            if not named:
                self.endpoint.pause(attempt)
        if not named:
            raise StoreCorrupt(
                f"{self.name}: the slot at {slot:#x}: the primary has {here:#x}, a replica "
                f"{there:#x}, and nobody is changing it"
            )

    def _wrong_with(self, group: int, slot: int, word: int, seen: dict[bytes, int]) -> str:
        wrong: str = Index._wrong_with(self, group, slot, word, seen)
        reference = word & OBJECT_MASK
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
