"""The end of a deleted key: its slot is vacated, and its register given up (SWARM section 5.3).

A DELETE decides by the slot: of several authors of tombstones, the one whose number the slot has in
the end has deleted the key. A client that meets a tombstone vacates the slot on behalf of an
author.
"""

from __future__ import annotations

from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.shm.errors import NodeFailed
from limpet.stores.fusee.growth import ReplicatedSplitter
from limpet.stores.fusee.links import OLD, PLACE_BITS
from limpet.stores.fusee.log import LoggedObjects
from limpet.stores.fusee.marks import DEATH
from limpet.stores.fusee.snapshot import ReplicatedSlot
from limpet.stores.fusee.tables import ReplicatedTables
from limpet.stores.race.index import Place
from limpet.stores.race.layout import FROZEN, OBJECT_MASK
from limpet.stores.swarm.recycling import Recycling


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
