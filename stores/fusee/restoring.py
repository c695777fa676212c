"""The leader's steps for the tables of a replicated index when nodes are lost or replaced.

All others are parked meanwhile (shm/replicas/view.py). After a loss the leader puts the replicas in
order that are left: slots by the client journals that name them (`reconcile`), entries of
directories to the greatest word of all replicas. A node with new memory gets copies from the others
(`refill`).

A kill leaves behind: rounds that client journals name as before, so that the next leader begins
anew.

Slots that clients were changing: algorithm 3 of FUSEE, lines 5 to 7. No client is in the midst of a
round (shm/replicas/view.py); all slots whose replicas may differ are named in client journals. For
each that had a replica on a lost node:

    its primary is still there: all backups get its value. Proposals have no effect
    its primary is lost: all replicas that are left get the value that `chosen` picks from them, and
        the old objects of the round are marked with it. (A delete that others have completed, and
        that has yet to learn it, reads the mark of its own round, not of a later one.)

`chosen` works from the values of the backups. It never undoes a committed change, and never commits
a key twice:
    a frozen word         any of the proposals of the round will do, or it was committed; no client
                          has acted on it unless all have it
    all have one value    it was committed, or may be: a number; an object with a mark in its log
                          entry. An object without one is of an insert that was not decided
    an UPDATED object     the round replaces an object, and was not completed: any of its proposals
                          will do
    a number              the round was made void, or is that of a delete: it will do
    else                  the round fills a vacant slot, and was not completed: it is made void

An insert whose round was voided may have the mark INSERTED and still be on all backups. Then no
client has acted on the voiding, as a client does so only when the backups are cleared. So the
insert counts as decided, and its author finds it linked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.states import FAILED, IN_SERVICE
from limpet.shm.endpoint.words import ADDRESS_MASK, TENTATIVE
from limpet.shm.errors import NodeFailed, StoreFull
from limpet.shm.replacement import copy
from limpet.stores.fusee.links import BIRTH, DEATH, GONE, REPLICAS_ROW, UPDATED, Link, is_slot
from limpet.stores.fusee.log import LoggedObjects
from limpet.stores.fusee.tables import ReplicatedTables, identity, obtain_directory
from limpet.stores.race.check import Check
from limpet.stores.race.index import Index, is_frozen, is_vacant
from limpet.stores.race.layout import FROZEN_VACANT, MASK, OBJECT_MASK


def chosen(values: list[int], birth: Callable[[int], int], number: Callable[[], int]) -> int:
    """The value for a slot whose backups have `values`.

    `birth`: the mark of the object in a word; `number`: a new word for a vacant slot.
    """
    for value in values:
        if is_frozen(value):
            return value
    first = values[0]
    if all(value == first for value in values) and (is_vacant(first) or birth(first)):
        return first
    for value in values:
        if not is_vacant(value) and birth(value) == UPDATED:
            return value
    for value in values:
        if is_vacant(value):
            return value
    return number()


def reconcile(
    store: Any, links: list[tuple[int, Link]], failed: list[int], addresses: list[tuple[int, int]]
) -> None:
    """Put the replicas of one slot in order.

    `links`: the pairs of client journals that name it; `addresses`: node and address of each
    replica that was valid in the old view, the primary first; `failed`: the nodes that are lost
    now.
    """
    endpoint = store.endpoint
    left = [address for node, address in addresses if node not in failed]
    if len(left) == len(addresses) or not left:
        return
    values = [endpoint.load(address) for address in left]
    decided = addresses[0][0] in failed
    word = values[0]
    if decided:
        word = chosen(values, lambda value: store.mark_of(value, BIRTH), store.new_number)
    for address, value in zip(left, values, strict=True):
        if value != word:
            # CRASH(reconciling): the values then give the next leader an equally good choice.
            endpoint.store(address, word)
    # ORDER: the marks after the slot, or the next leader might choose another value than the marks.
    tell(store, links, word, decided)


def tell(store: Any, links: list[tuple[int, Link]], word: int, decided: bool) -> None:
    """Write into the log entries of old objects how the round of a slot with `word` has ended.

    An object that is still linked loses its mark: its round was undone. An object with a mark is of
    an earlier round, whose participants may not have looked yet, so the mark stays. `decided`: this
    leader has decided the round, and the others must learn it.
    """
    for reference, link in links:
        if not link.old:
            continue
        if reference == word & OBJECT_MASK:
            # The object of a frozen slot lives on in a half, and the mark is of a round there.
            if not is_frozen(word):
                store.logged.mark(reference, DEATH, 0)
        elif decided and store.mark_of(reference, DEATH) in (0, GONE):
            store.logged.mark(reference, DEATH, word)
    # ORDER: the marks before the view changes, by a word of the control segment: then the parked
    # participants look.
    store.endpoint.wait()


class Restoring:
    """Restores the tables of a replicated index. The leader of a change of the view has one."""

    def __init__(
        self, tables: ReplicatedTables, index: Index, check: Check, logged: LoggedObjects
    ) -> None:
        self.tables = tables
        self.index = index
        self.check = check
        self.logged = logged
        self.pool = tables.pool
        self.name = tables.name
        self.parameters = tables.parameters
        self.endpoint = tables.endpoint
        self.heap = tables.heap
        self.view = tables.view
        self.replicas = int(tables.replicas)
        """Of each directory and subtable."""
        self.subtables = int(tables.subtables)

    # ---- after the loss of a node ---------------------------------------------------------------

    def reconcile(self, pairs: list[tuple[int, int]], failed: list[int]) -> None:
        """Put the replicas of all slots in order that these pairs of client journals name; for a
        leader."""
        states = self.view.states()
        slots: dict[int, list[tuple[int, Link]]] = {}
        for reference, link_address in pairs:
            if is_slot(link_address) and self.tables.is_named(link_address):
                link = Link.of(link_address)
                slots.setdefault(link.place, []).append((reference, link))
        for place, links in slots.items():
            head = place >> NODE_SHIFT
            nodes = [self.heap.placement.beside(head, k) for k in range(self.replicas)]
            addresses = [
                (node, place + self.tables.step(head, k) & MASK)
                for k, node in enumerate(nodes)
                if node in failed or states[node] == IN_SERVICE
            ]
            reconcile(self, links, failed, addresses)
        self.tables.find_replicas()
        self._level_directories()

    def _level_directories(self) -> None:
        """Give all replicas of each entry their greatest word; no other client is at work."""
        for table in range(self.subtables):
            row = REPLICAS_ROW * table
            bases = [self.tables.bases[row + k] for k in range(self.tables.counts[table])]
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
        """Called by the leader, all others parked: make the replicas that belong on a node with new
        memory, after `require_replicas`.

        `pairs`: those of client journals that name slots of this store. Raises NodeFailed, with
        nothing lost, if all replicas of a directory are lost.
        """
        self._require_directories(node)
        self._level(pairs)
        self._level_directories()
        found = {"objects": 0, "blocks": 0, "regions": 0, "bytes": 0}
        for table in range(self.subtables):
            places = self.tables.nodes_of(table)
            if not self.tables.counts[table]:
                continue  # without replicas: its keys are gone, as with every other store
            if node in places:
                region = self._new_region(table, places.index(node))
                size = self.parameters.directory_size
                copy(self.pool.membership, self.tables.primaries[table], region.address, size)
                found["regions"] += 1
                found["bytes"] += size
            for pointer in self._subtables_of(table, node):
                found["bytes"] += self._refill_subtable(node, pointer & ADDRESS_MASK)
        return found

    def _subtables_of(self, table: int, node: int) -> list[int]:
        """Pointers to a directory's subtables; NodeFailed if one has no replica left."""
        try:
            return list(self.check.linked(table)[1].tolist())
        except NodeFailed as error:
            if self.view.states()[error.node] in (IN_SERVICE, FAILED):
                raise  # lost just now, and other replicas may be left: the replacement begins anew
            raise NodeFailed(
                node,
                f"all {self.replicas} replicas of a subtable of {self.name!r} are lost; save what "
                "is left, destroy the pool, and create it again",
            ) from error

    def _refill_subtable(self, node: int, address: int) -> int:
        """Copy a subtable to its replica on that node, if it has one there; how many bytes.

        The block is there already, with its contents from before the slots were put in order.
        """
        head = address >> NODE_SHIFT
        nodes = [self.heap.placement.beside(head, k) for k in range(self.replicas)]
        if node not in nodes:
            return 0
        k = nodes.index(node)
        self._clear_tentative(address)
        target = address + self.tables.step(head, k) & MASK
        copy(self.pool.membership, self.tables.primary(address), target, self.index.subtable_size)
        return self.index.subtable_size

    def _new_region(self, table: int, replica: int) -> Any:
        try:
            # ORDER: pinned all the time: a leader that unpins leads no more, but another client.
            return obtain_directory(self.pool, self.name, self.parameters, table, replica, True)
        except StoreFull as error:
            raise StoreFull(f"{error}, or delete entries and replace the node again") from error

    def _require_directories(self, node: int) -> None:
        """Raise NodeFailed if all replicas of a directory are lost: no client knows its entries."""
        self.tables.find_replicas()
        if self.replicas > 1 and 0 in list(self.tables.counts):
            raise NodeFailed(
                node,
                f"all {self.replicas} replicas of a part of the index of {self.name!r} are lost, "
                "more than it survives; save what is left, destroy the pool, and create it again",
            )

    def require_replicas(self, node: int, references: Callable[[], Any]) -> None:
        """Raise NodeFailed if the node had the last replica of one of these objects."""
        states, replicas = self.view.states(), self.parameters.replicas
        if sum(state != IN_SERVICE for state in states) < min(replicas, self.replicas):
            return
        gone = 0
        for count, reference in enumerate(references().tolist()):
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
                f"no client would know, since all of their replicas were lost ({replicas} of each "
                f"entry, {self.replicas} of the index); save what is left, drop the store, and "
                "replace the node then",
            )

    def _level(self, pairs: list[tuple[int, int]]) -> None:
        """Give all replicas of the slots that are being changed the value of the primary.

        As if a backup had been lost: proposals have no effect (restoring.py).
        """
        for reference, link_address in pairs:
            if not is_slot(link_address) or not self.tables.is_named(link_address):
                continue
            link = Link.of(link_address)
            head = link.place >> NODE_SHIFT
            if not self.tables.lives[head]:
                continue
            word = self.endpoint.load(self.tables.primary(link.place))
            for k in range(1, self.tables.lives[head]):
                replica = self.tables.replica(link.place, k)
                if self.endpoint.load(replica) != word:
                    # CRASH(levelling): client journals still name the slots whose replicas differ.
                    self.endpoint.store(replica, word)
            tell(self, [(reference, link)], word, False)

    def _clear_tentative(self, address: int) -> None:
        """Take back inserts that no client has decided, of a subtable that had one replica left."""
        words = self.index.slots_of(self.tables.primary(address)).ravel()
        tentative = (words & np.uint64(TENTATIVE) != 0) & (np.arange(len(words)) % 8 != 0)
        tentative &= words != FROZEN_VACANT
        for index in np.flatnonzero(tentative).tolist():
            number = self.new_number()
            for k in range(self.tables.lives[address >> NODE_SHIFT]):
                self.endpoint.store(self.tables.replica(address + 8 * index, k), number)

    def mark_of(self, word: int, offset: int) -> int:
        """A word of the log entry of the object in a slot word; 0 if the word is no reference.

        UPDATED when all of the object's replicas are lost, more than the store survives: the slot
        is left, so that a client that wants the key gets NodeFailed, and not that the key is
        missing.
        """
        reference = identity(word)
        if not self.heap.plausible(reference):
            return 0
        try:
            return int(self.logged.marked(reference, offset))
        except NodeFailed as error:
            if self.view.states()[error.node] == IN_SERVICE:
                raise  # no other client knows that yet
            return UPDATED

    def new_number(self) -> int:
        return self.tables.ticket()
