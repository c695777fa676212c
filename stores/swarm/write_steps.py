"""One attempt at a put, an insert or an update of a key: `WriteSteps`.

    the place of the key's register is remembered     WRITE to it
    it is not                                         look in the index; WRITE to the register there
    there is none, and it is no update                make a register (key_register.py), and link it
                                                      by SNAPSHOT (fusee/slots.py)

An INSERT makes its register first, so that it is written when the index is read.
"""

from __future__ import annotations

from limpet.shm.errors import NodeFailed
from limpet.stores.core.status import AGAIN, DONE, EXISTS, INSERT, MISSING, NO_MEMORY, UPDATE
from limpet.stores.fusee.links import FAILED, IDLE
from limpet.stores.fusee.slots import ReplicatedSlots
from limpet.stores.fusee.tables import ReplicatedTables
from limpet.stores.race.index import Place
from limpet.stores.swarm.finder import Finder
from limpet.stores.swarm.key_register import NewRegister
from limpet.stores.swarm.layout import DELETED
from limpet.stores.swarm.unmapping import Unmapping


class WriteSteps:
    """The steps of writes. All run within an operation."""

    def __init__(
        self, finder: Finder, made: NewRegister, writer: ReplicatedSlots, unmapping: Unmapping,
        tables: ReplicatedTables,
    ) -> None:  # fmt: skip
        self.finder = finder
        self.made = made
        self.writer = writer
        self.unmapping = unmapping
        self.tables = tables
        self.index = finder.index
        self.register = finder.register
        self.cache = finder.cache
        self.endpoint = finder.endpoint
        self.client = writer.client

    def write(
        self, place: Place, key: bytes, value: bytes, at: int, mode: int, attempt: int
    ) -> int:
        """DONE, EXISTS, MISSING, AGAIN, FULL, or NO_MEMORY, of `register.row.wanted`. `at`: as
        `Finder.prefetch` has it."""
        if self.finder.recall(self.register, key, at):
            outcome = self._write_to(value, mode, at)
            if outcome in (DONE, EXISTS, NO_MEMORY, AGAIN):
                return outcome
            self.cache.drop(key)
            if self.client.held:
                return AGAIN  # the steps below take places 0 and 1 of the client journal
        self.writer.round.doing = IDLE
        self.made.reference = 0
        try:
            self.index.choose(place, key)
            if mode == INSERT and not self.made.make(self.index.node_of(place.table), key, value):
                return NO_MEMORY
            self.index.read_buckets(place)
            slot = self.finder.seek(place, key)
        except NodeFailed as error:
            if not self.tables.outlive(error.node):
                raise
            return AGAIN
        if slot:
            return self._write_found(place, key, value, mode, slot)
        if mode == UPDATE:
            return MISSING
        try:
            return self._insert_new(place, key, value, attempt)
        except NodeFailed as error:
            outcome = self.writer.recall(error.node)
            if outcome == FAILED:
                raise
            return outcome

    def _write_to(self, value: bytes, mode: int, at: int) -> int:
        """WRITE to the current register, whose entry of the cache is `at`. DONE, EXISTS, NO_MEMORY,
        AGAIN, DELETED or GONE."""
        row = self.register.row
        if at >= 0:
            self.cache.words[at + 4] = 0  # until it is known how the WRITE has ended
        if mode == INSERT:
            outcome = self.register.max_register.presence()
            row.known = False
        else:
            outcome = self.register.protocol.write(value)
        self.finder.note_write(self.register, at)
        return EXISTS if mode == INSERT and outcome == DONE else outcome

    def _write_found(self, place: Place, key: bytes, value: bytes, mode: int, slot: int) -> int:
        """WRITE to the register of the slot that was found; its key may have been deleted."""
        outcome = self._write_to(value, mode, self.finder.remember_register(key))
        if outcome in (DONE, EXISTS, AGAIN):
            return outcome
        self.cache.drop(key)
        if outcome == NO_MEMORY:
            return NO_MEMORY  # the next attempt takes it here, where a key that is gone is unmapped
        if outcome == DELETED:
            ticket = self.register.quorum.ticket()
            if ticket:
                self.unmapping.unmap(place, slot, ticket)
        return AGAIN

    def _insert_new(self, place: Place, key: bytes, value: bytes, attempt: int) -> int:
        made = self.made
        if not made.reference:
            if not self.made.make(self.index.node_of(place.table), key, value):
                return NO_MEMORY
            self.endpoint.wait()
        desired = (place.hash & 0xFF) << 56 | made.reference
        # ORDER: all is written before the client journal says where it may be linked.
        self.client.retarget(1, self.register.place.link_address())
        outcome = self.writer.insert(place, key, desired, attempt)
        if outcome == DONE:
            self.client.drop(1)
            at = self.finder.remember_register(key)
            self.register.row.is_new(made.word)
            self.finder.note_write(self.register, at)
        else:
            # The register keeps its slot as link address: a tentative word may name it there.
            self.client.retarget(1, 0)
        return outcome
