"""The end of a deleted key: its slot is vacated, and its register given up (SWARM section 5.3).

A DELETE decides by the slot: of several authors of tombstones, the one whose number the slot has in
the end has deleted the key. A client that meets a tombstone vacates the slot on behalf of an
author.

`Recycling` looks at registers as client journals name them. A buffer is linked when its register is
in use, has its ident, and names it (row.py).

A WRITE is one phase: if its client dies in it, a pointer may name the buffer on one node, and its
used bit be missing on another, where the block's next owner would allocate it again. So whether a
buffer is linked is asked of a client that sets these bits (`names`).

A register is given up with its key: a tombstone is at a majority by then, and no slot of the index
names it. A client clears its ident on every replica, then frees the buffers that its pointers name,
of all rows, then the register. Another client may be linking a buffer at that moment: either the
first client sees the pointer, or the second one sees the ident cleared and frees the buffer itself.
Or it is writing to its buffer again: then it has read the ident before, under its pin, which keeps
the buffer from being used for something else. A kill leaves the register in the client journal.
"""

from __future__ import annotations

from typing import Any

from limpet.shm.endpoint.words import ADDRESS_MASK, REFERENCE_MASK, replica_bits
from limpet.shm.errors import NodeFailed
from limpet.stores.core.status import VACANT_CLASS
from limpet.stores.fusee.growth import ReplicatedSplitter
from limpet.stores.fusee.links import DEATH, ENTRY_SIZE, OLD, PLACE_BITS
from limpet.stores.fusee.log import LoggedObjects
from limpet.stores.fusee.snapshot import ReplicatedSlot
from limpet.stores.fusee.tables import ReplicatedTables
from limpet.stores.race.index import Place
from limpet.stores.race.layout import FROZEN, OBJECT_MASK
from limpet.stores.swarm.quorum import Quorum


class Recycling:
    """Whole registers of a store. `visit` selects one, and the others work on the one selected."""

    def __init__(self, pool: Any, quorum: Quorum) -> None:
        self.client = pool.client
        self.endpoint = pool.endpoint
        self.heap = pool.heap
        self.quorum = quorum
        self.register = self.quorum.register

    def visit(self, reference: int) -> bool:
        """Select a register of which only the reference is known; False if there can be none."""
        count = self.register.replicas
        if not self.heap.plausible(reference) or self.heap.replicas(reference) != count:
            return False
        for k in range(count):
            address = self.heap.replica(reference, k) + ENTRY_SIZE
            if self.endpoint.failed(address):
                continue
            try:
                sizes = self.endpoint.load(address)
            except NodeFailed:
                continue
            if self.register.open(reference, sizes):
                return True
        return False

    def visit_home(self, link_address: int) -> bool:
        """`visit` the register that a buffer's link_address names."""
        bits = replica_bits(self.register.replicas)
        return self.visit(link_address >> 56 << 48 | link_address & ADDRESS_MASK | bits)

    def names(self, reference: int, link_address: int) -> bool:
        """Whether a buffer is linked whose pair in a client journal has this link_address; then it
        is in use on all replicas in service. Called pinned."""
        if not self._is_named(reference, link_address):
            return False
        if self.heap.is_whole(reference, False):
            return True
        # ORDER: in our client journal before a bit is set: another client may free it meanwhile.
        held = self.client.log(reference, link_address)
        self.heap.is_whole(reference, True)
        # A kill here leaves it in our client journal, whose recovery looks again.
        linked = self._is_named(reference, link_address)
        if linked:
            self.client.drop(held)
        else:
            self.client.release(held)
        return linked

    def _is_named(self, reference: int, link_address: int) -> bool:
        try:
            return (
                self.visit_home(link_address)
                and self.heap.used(self.register.reference)
                and self._is_linked(reference)
            )
        except NodeFailed:
            return False

    def _is_linked(self, reference: int) -> bool:
        """Whether the register, which may be damaged, names a buffer."""
        self.quorum.read_all()
        for replica in self.quorum.replicas:
            if replica.word(0):
                for row in range(self.register.writers):
                    for side in range(2):
                        if replica.named(row, side) == reference:
                            return True
        return False

    def dispose(self, reference: int) -> None:
        """Give up the buffers of a register that no slot names, but not itself. Called pinned."""
        if self.visit(reference):
            self.quorum.read_words()
            # ORDER: the ident before the pointers: a writer that links a buffer reads it
            # afterwards. On every replica before a buffer is freed: a writer that uses its buffer
            # again has read the ident of one.
            for replica in self.quorum.replicas:
                ident = replica.word(0)
                if ident:
                    try:
                        self.endpoint.cas(self.register.address(replica.k), ident, 0)
                    except NodeFailed:
                        continue
            # CRASH(register-given-up): the client journal names it; its recovery goes on.
            for buffer in self.buffers_named():
                self.heap.free(buffer)

    def buffers_named(self) -> set[int]:
        """References to all buffers that the register names, on any node in service."""
        found = set()
        self.quorum.read_pointers()
        last = 0
        for replica in self.quorum.replicas:
            for at in range(2 * self.register.writers):
                word = replica.pointers[at]
                if word >> 48 & 0xFF == VACANT_CLASS:
                    continue  # empty, or the number of a tombstone
                reference = word & REFERENCE_MASK
                if reference and reference != last and self.heap.plausible(reference):
                    found.add(reference)
                    last = reference
        return found


class Unmapping:
    """Vacates the slots of deleted keys."""

    def __init__(
        self,
        tables: ReplicatedTables,
        splitter: ReplicatedSplitter,
        logged: LoggedObjects,
        recycling: Recycling,
    ) -> None:
        self.tables = tables
        self.splitter = splitter
        self.client = tables.client
        self.endpoint = tables.endpoint
        self.recycling = recycling
        self.slot = ReplicatedSlot(tables, logged)

    def unmap(self, place: Place, slot: int, ticket: int) -> bool:
        """Vacate the slot of a deleted key, which has `place.word`; whether `ticket` is the number
        it has then, or had.

        The client acts for the author of the tombstone with that number.
        """
        word = place.word & ~FROZEN
        reference = word & OBJECT_MASK
        self.slot.select(slot, place.head)
        pointer = place.pointer
        offset = (self.slot.link_address & PLACE_BITS) - (pointer & ADDRESS_MASK)
        won = False
        self.slot.current = place.word
        while True:
            held = self.client.log(reference, self.slot.link_address | OLD)
            try:
                if not self.slot.is_frozen_at(word):
                    if self.slot.backups:
                        won = self.slot.write(word, ticket)
                    else:
                        won = self._vacate_alone(word, ticket)
                # ORDER: after the round: a slot frozen by now goes on in a half, whichever client
                # has won.
                if not self.slot.is_frozen_at(word):
                    break
                address = self.splitter.follow(place, pointer, offset)
                pointer = place.pointer
                self.client.drop(held)
                self.slot.select(address, place.head)
            except NodeFailed as error:
                if not self.tables.outlive(error.node):
                    raise
                self.slot.go_to(self.slot.link_address)
            # No look yet at the slot in the half, or on the nodes that are left: the round finds
            # out whether it is frozen.
            self.slot.current = word
        self.recycling.dispose(reference)
        self.client.release(held)
        return won

    def _vacate_alone(self, word: int, ticket: int) -> bool:
        """A round without backups: the register's log entry says which client has won."""
        at = self.recycling.heap.replica(word & OBJECT_MASK, 0) + DEATH
        winner = self.endpoint.cas(at, 0, ticket) or ticket
        self.endpoint.wait()
        self.slot.current = self.endpoint.cas(self.slot.address, word, winner)
        self.endpoint.wait()
        return winner == ticket
