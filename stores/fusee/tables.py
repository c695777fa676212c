"""The replicated index: RACE's index on r memory nodes (FUSEE section 4.2), and its view.

Directories and subtables are those of `race` (stores/race/index.py), with r replicas. This r is
`index_replicas`; the objects of keys may have more or fewer. Directory t is a region on each of the
nodes t, t + 1, ... t + r - 1 (modulo the number of nodes). A subtable is an object with r replicas
(shm/replicas/replica_layout.py): their addresses follow from that of replica 0 (`head` in the
code), which need not be on node t. Of the replicas that are valid in the view
(shm/replicas/view.py), the first is the primary and the others are backups. All clients in an
operation have the same view.

A slot's value is that of the primary. Invariant: when no operation on a slot is unfinished, all
replicas are equal; when one is, the client journal of a pinned client names the slot (links.py),
and any client that meets it can complete it: `resolve`.

Vacant slots. 0 at first; later a number that never comes again (records.py). Objects' addresses do
not come again while a client is pinned that could have seen them. So no value comes back to a slot
as long as any client knows it, and a CAS that is too late fails (traps F1, F3). Leaders do write
the primary's value back to backups, in restoring.py and restoring.py: then no client is in the
midst of a round, as a parked client looks how its round ended before it begins another.

Entries of a directory need no rounds, since they only ever grow: 0, a pointer, SPLIT. The last
replica decides, by CAS, which pointer follows 0, and when SPLIT follows the pointer; then the next
client raises the others to its word, the primary last: `advance`. So all replicas have at least the
primary's word; and when nodes are lost, the greatest word of the replicas that are left is valid. A
client that links or unlinks a subtable names the entry in its journal.

Swaps. The word `lock` of entry 0 of each directory, which no key has, is 0 until a client is about
to make the first swap of the store, a change that depends on the value that it replaces; then it is
1 for good, on all replicas (`announce_swaps`). An update that has lost a round looks at it after
the round has ended: only while it is 0 has it happened just before the winner (slots.py).
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Callable
from typing import Any, Final

from limpet.shm.catalogue.directory import LINKING
from limpet.shm.catalogue.regions import PART
from limpet.shm.clients.unique_ids import Tickets
from limpet.shm.endpoint.layout import NODE_SHIFT, OFFSET_MASK, VIEW
from limpet.shm.endpoint.states import (
    EXCLUDED,
    FORMER,
    IN_SERVICE,
    RESTORING,
    former,
    generation_of,
    settled,
    state_of,
)
from limpet.shm.endpoint.words import ADDRESS_MASK, REPLICATED
from limpet.shm.errors import NodeFailed, StoreMismatch
from limpet.stores.core.records import vacant_word
from limpet.stores.fusee.links import (
    ENTRY,
    OFFSET_BITS,
    PLACE_BITS,
    REPLICAS_ROW,
    is_entry,
    is_slot,
)
from limpet.stores.race.index import Place, is_vacant
from limpet.stores.race.layout import DIRECTORY_ENTRY, FROZEN, FROZEN_VACANT, MASK, OBJECT_MASK
from limpet.stores.race.store import require_room

NODES: Final = 256


def identity(word: int) -> int:
    """The identity of a slot's word, frozen or not: its object, or its number."""
    if word & FROZEN and (is_vacant(word) or word == FROZEN_VACANT):
        return word
    return word & OBJECT_MASK


def region_name(name: str, table: int) -> str:
    return f"{name}{PART}{table}"


def obtain_directory(
    pool: Any, name: str, parameters: Any, table: int, replica: int = 0, pinned: bool = False
) -> Any:
    """The region of a directory's replica, made if it is not there. They are on adjacent nodes.

    `pinned`: as of `Regions.obtain`.
    """
    node = (table + replica) % pool.parameters.nodes
    return pool.regions.obtain(
        node, region_name(name, table), parameters.directory_size, pinned=pinned
    )


def make_directories(pool: Any, name: str, parameters: Any) -> None:
    """Make the regions of the replicas of all directories; zeros are an empty table."""
    if parameters.subtables % pool.parameters.nodes and parameters.subtables != 1:
        raise StoreMismatch(f"{name}: {parameters.subtables} subtables do not fit the nodes")
    require_room(pool, name, parameters, parameters.index_replicas)
    for subtable in range(parameters.subtables):
        for replica in range(parameters.index_replicas):
            node = (subtable + replica) % pool.parameters.nodes
            try:
                obtain_directory(pool, name, parameters, subtable, replica)
            except NodeFailed as error:
                if error.node != node:
                    raise
                # the node gets its replica when it is replaced
                pool.view.fail_if_lost(node)


def are_complete(pool: Any, name: str, parameters: Any) -> bool:
    """Whether each node in service has its replicas. NodeFailed: a subtable has none at all."""
    for subtable in range(parameters.subtables):
        found = 0
        for replica in range(parameters.index_replicas):
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


def unmake_directories(pool: Any, name: str, parameters: Any) -> None:
    for subtable in range(parameters.subtables):
        for replica in range(parameters.index_replicas):
            with contextlib.suppress(NodeFailed):  # then its region is gone with the node
                node = (subtable + replica) % pool.parameters.nodes
                pool.regions.discard(node, region_name(name, subtable))


class ReplicatedTables:
    """The replicas of a store's directories and subtables that count in the view."""

    def __init__(self, pool: Any, name: str, parameters: Any, number: int) -> None:
        self.pool = pool
        self.name = name
        self.parameters = parameters
        self.client = pool.client
        self.endpoint = pool.endpoint
        self.heap = pool.heap
        self.view = pool.view
        self.number_of_store = number
        self.subtables = parameters.subtables
        self.replicas = parameters.index_replicas
        """Of each directory and subtable."""
        self.directory_size = parameters.directory_size
        self.tickets = Tickets(self.client)
        nodes = [t % pool.parameters.nodes << NODE_SHIFT for t in range(parameters.subtables)]
        self.primaries = array("Q", nodes)
        """Addresses of the primaries of the directories."""
        self.bases = array("Q", bytes(8 * REPLICAS_ROW * parameters.subtables))
        self.counts = array("Q", bytes(8 * parameters.subtables))
        """Of the directories: addresses of the replicas that count, and how many do."""
        self.steps = array("Q", bytes(8 * REPLICAS_ROW * NODES))
        self.lives = array("Q", bytes(8 * NODES))
        """Of subtables with their heads on a node: how far it is from the head to each replica that
        counts, and how many do."""
        self.viewed = 0
        self.looked = False
        self.glanced = False
        """Whether operations may go by the view `viewed`; whether those may that only read."""
        self.swapped = self.announced = False
        """Whether clients swap, as far as is known in this view; whether this one has told all."""
        self.find_replicas()

    def forget(self) -> None:
        """Look at everything anew before the next operation."""
        self.tickets.forget()
        self.looked = self.glanced = False
        self.swapped = self.announced = False

    # ---- the view ---------------------------------------------------------------------------

    def select(self, place: Place) -> None:
        """Note which replicas the current subtable has."""
        place.head = place.pointer >> NODE_SHIFT & 0xFF
        place.backups = self.backups_of(place.head)

    def backups_of(self, head: int) -> int:
        """How many backups count of a subtable that has its head on that node."""
        return self.lives[head] - 1 if self.lives[head] else 0

    def base_of(self, pointer: int) -> int:
        """Where the primary is of the subtable that an entry points to."""
        return (pointer & ADDRESS_MASK) + self.steps[
            REPLICAS_ROW * (pointer >> NODE_SHIFT & 0xFF)
        ] & MASK

    def primary(self, address: int) -> int:
        """Where on the primary that is which has this address in the head of its subtable."""
        return address + self.steps[REPLICAS_ROW * (address >> NODE_SHIFT & 0xFF)] & MASK

    def agree(self) -> None:
        """In an operation: make sure that this client has the view that all others have."""
        if not self.looked or self.endpoint.load(VIEW) != self.viewed:
            self.renew()

    def renew(self) -> None:
        """Look at the view, in an operation; wait first until it is settled."""
        while not self.find_replicas() or self.view.unsettled():
            self.view.settle()
        self.looked = self.glanced = True

    def stands(self) -> bool:
        """Whether the view is the one that all operations have that this handle begins, and it was
        settled when the handle looked: for gets without a pin (glance.py)."""
        return self.looked and self.endpoint.load(VIEW) == self.viewed

    def agree_to_read(self) -> None:
        """As `agree`, in an operation that only reads: it waits for no client (trap F14)."""
        if not self.glanced or self.endpoint.load(VIEW) != self.viewed:
            self.glance()

    def glance(self) -> None:
        """Look at the view, in an operation that only reads, though it is being changed."""
        self.client.know_nodes()
        before = self.view.states()
        looked = self.find_replicas() and not self.view.unsettled()
        if not looked:
            # ORDER: the states before the look, and those after it: what was RESTORING may be
            # IN_SERVICE by now, and what was IN_SERVICE FAILED.
            self._bar(before, self.view.states())
        self.looked = looked
        self.glanced = True

    def _bar(self, before: list[int], after: list[int]) -> None:
        """Have each directory and subtable raise NodeFailed of which a change of the view may move
        the primary; the reader then waits.

        All others have the same primary before the change, during it and after it. The leader of
        the next change waits for this reader, which was pinned before it looked.
        """
        nodes, beside = len(after), self.heap.placement.beside
        # Nodes that were added between the looks were in service.
        before += [IN_SERVICE] * (nodes - len(before))
        changing = {n for n in range(nodes) if not settled([before[n], after[n]])}
        gone = {n for n in range(nodes) if after[n] == EXCLUDED} - changing
        for subtable in range(self.subtables):
            first = next((n for n in self.nodes_of(subtable) if n not in gone), -1)
            if first in changing:
                self.primaries[subtable] = first << NODE_SHIFT
        for node in range(nodes):
            k = next((k for k in range(self.replicas) if beside(node, k) not in gone), 0)
            if beside(node, k) in changing:
                self.steps[REPLICAS_ROW * node] = self.step(node, k)

    def find_replicas(self) -> bool:
        """Find the replicas on nodes in service; before the next operation, `renew` comes.

        Whether all states were settled that it went by. Others may not have left an older view yet.
        """
        viewed = self.view.number()
        # ORDER: the nodes after the number, which goes up when some are added.
        self.client.know_nodes()
        states = self.view.states()
        # ORDER: the memory after the states: what they say is in service is mapped, or lost again.
        self.view.remap()
        for subtable in range(self.subtables):
            found = [
                self._region(node, subtable)
                for node in self.nodes_of(subtable)
                if states[node] == IN_SERVICE
            ]
            bases = [base for base in found if base]
            self.counts[subtable] = len(bases)
            self.primaries[subtable] = bases[0] if bases else self._lost(subtable, states)
            for k, base in enumerate(bases or [self.primaries[subtable]]):
                self.bases[REPLICAS_ROW * subtable + k] = base
        for node in range(len(states)):
            steps = [
                self.step(node, k)
                for k in range(self.replicas)
                if states[self.heap.placement.beside(node, k)] == IN_SERVICE
            ]
            self.lives[node] = len(steps)
            for k, step in enumerate(steps or [0]):
                self.steps[REPLICAS_ROW * node + k] = step
        self.viewed = viewed
        self.looked = self.glanced = False
        # A node in service tells what a lost one could not.
        self.swapped = self.announced
        return settled(states)

    def step(self, node: int, k: int) -> int:
        """The distance of replica `k` of a subtable from its replica 0, which is on that node."""
        there = self.heap.placement.beside(node, k)
        region = self.heap.placement.region_blocks * self.heap.layout.block_size
        return ((there - node) << NODE_SHIFT) + k * region & MASK

    def _lost(self, subtable: int, states: list[int]) -> int:
        """An address for a subtable without a replica: every access raises NodeFailed."""
        places = self.nodes_of(subtable)
        lost = [node for node in places if states[node] not in (IN_SERVICE, RESTORING)]
        return lost[0] << NODE_SHIFT if lost else FORMER | places[0] << NODE_SHIFT

    def replaced(self, node: int) -> None:
        """`node` has new memory: forget the addresses on it; operations find them again."""
        for subtable in range(self.subtables):
            self.primaries[subtable] = former(self.primaries[subtable], node)
        for at in range(len(self.bases)):
            self.bases[at] = former(self.bases[at], node)
        self.looked = self.glanced = False

    def nodes_of(self, subtable: int) -> list[int]:
        """The nodes of a directory's replicas, in their order."""
        nodes = self.pool.parameters.nodes
        return [(subtable + k) % nodes for k in range(self.replicas)]

    def _region(self, node: int, subtable: int) -> int:
        """Address of the replica on that node; 0 when there is none, or the node is lost.

        PoolCorrupt: the node is in service, and has lost it.
        """
        name, word = region_name(self.name, subtable), self.view.word(node)
        try:
            found = self.pool.regions.find(node, name)
        except NodeFailed:
            self.view.fail_if_lost(node)  # perhaps no client knows that yet
            return 0
        if found is not None:
            return int(found.address)
        if self.replicas == 1 and generation_of(word):
            return 0  # it went with the memory that the node had before
        # ORDER: the region before the entry: in these states the store has all of its regions on
        # the nodes that were in service before and after that.
        if (
            self.pool.catalogue.at(self.number_of_store).state in LINKING
            and state_of(word) == IN_SERVICE
            and self.view.word(node) == word
        ):
            raise self.pool.regions.lost(node, name, self.parameters.directory_size)
        return 0

    def outlive(self, node: int) -> bool:
        """`node` was lost in the midst of an operation: wait for the view to change.

        False when it has not: more is lost than we survive.
        """
        # What was posted is done, or given up with the node; the look finds what else is lost.
        with contextlib.suppress(NodeFailed):
            self.endpoint.wait()
        if not self.looked:
            self.renew()
            return True
        before = self.viewed
        self.view.settle(node)
        self.renew()
        return bool(self.viewed != before)

    def outlived(self, within: Callable[..., Any], node: int) -> bool:
        """As `outlive`, between operations: `within` makes one of it."""
        return bool(within(lambda: self.outlive(node)))

    # ---- swaps ------------------------------------------------------------------------------

    def announce_swaps(self) -> None:
        """In an operation, before the first swap of this handle: tell all clients. A phase.

        It holds from then on: a directory that is made again is a copy.
        """
        # ORDER: the replicas that count now, and not those that this handle knew.
        self.agree()
        for subtable in range(self.subtables):
            for k in range(self.counts[subtable]):
                # CRASH(announced): clients that see it wait for rounds which they might pass over.
                self.endpoint.post_set(self._swaps_at(self.bases[REPLICAS_ROW * subtable + k]), 1)
        # ORDER: the words before any proposal of a swap.
        self.endpoint.wait()
        self.swapped = self.announced = True

    def post_swaps(self) -> int:
        """Post a look whether clients swap, unless that is known; a ticket for `saw_swaps`."""
        if self.swapped:
            return 0
        return self.endpoint.post_load(self._swaps_at(self._asked()))

    def saw_swaps(self, ticket: int) -> None:
        """The phase of `post_swaps` has ended. Without a result, as the node is lost, clients count
        as swapping until the view changes: that is never wrong."""
        if not self.swapped:
            lost = self.endpoint.lost(self._asked() >> NODE_SHIFT & 0xFF)
            self.swapped = lost or self.endpoint.result(ticket) != 0

    def _asked(self) -> int:
        """The directory whose word clients look at: the first that has a replica."""
        for subtable in range(self.subtables):
            if self.counts[subtable]:
                return self.primaries[subtable]
        return self.primaries[0]

    def _swaps_at(self, directory: int) -> int:
        return directory + self.directory_size - DIRECTORY_ENTRY

    # ---- names of slots ---------------------------------------------------------------------

    def backup(self, slot: int, head: int, k: int) -> int:
        """Address of a slot's replica on backup `k`, from 1 on; `head`: node of replica 0."""
        row = REPLICAS_ROW * head
        return slot - self.steps[row] + self.steps[row + k] & MASK

    def replica(self, address: int, k: int) -> int:
        """Where on the replica `k` that counts that is which has this address in the head."""
        return address + self.steps[REPLICAS_ROW * (address >> NODE_SHIFT & 0xFF) + k] & MASK

    def link_address(self, slot: int, head: int) -> int:
        """A slot's name in the client journal, in a subtable with its replica 0 on node `head`."""
        place = slot - self.steps[REPLICAS_ROW * head] & PLACE_BITS
        return self.number_of_store << 48 | place | REPLICATED

    def home_of_entry(self, table: int, entry: int) -> int:
        """The name in the client journal of an entry of a directory."""
        place = table << NODE_SHIFT | entry - self.primaries[table]
        return ENTRY | self.number_of_store << 48 | place | REPLICATED

    def is_named(self, link_address: int) -> bool:
        """Whether a name from a client journal can be one."""
        table, offset = link_address >> NODE_SHIFT & 0xFF, link_address & OFFSET_BITS
        if is_entry(link_address):
            return table < self.subtables and offset < self.parameters.directory_size
        block = ((offset & OFFSET_MASK) - self.heap.blocks) // self.heap.block_size
        return bool(
            is_slot(link_address)
            and table < self.heap.placement.nodes
            and 0 <= block < self.heap.block_count
            and (self.replicas == 1 or self.heap.placement.part(block, self.replicas) == 0)
        )

    def ticket(self) -> int:
        """A word for a vacant slot that has never been used."""
        return vacant_word(self.tickets.take())

    # ---- entries --------------------------------------------------------------------------------

    def advance(self, place: int, word: int, desired: int) -> int:
        """Change an entry of a directory, named as in a link, from `word` to `desired`, if it has
        `word`; its word then, on all replicas."""
        row = REPLICAS_ROW * (place >> NODE_SHIFT)
        offset = place & OFFSET_BITS
        backups = self.counts[place >> NODE_SHIFT] - 1 if self.counts[place >> NODE_SHIFT] else 0
        last = self.bases[row + backups] + offset
        if desired:
            # LINEARIZES: linking a subtable; unlinking it
            self.endpoint.cas(last, word, desired)
            # CRASH(entry-decided): the next client here raises the other replicas.
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
