"""Finding the register of a key: where it is remembered, and where the index has it: `Finder`.

`prefetch` and `recall` are for a key that the cache of places has (cache.py); `seek` is for any
other. `recall` and `seek` select the register (key_register.py), which the next phase looks at.
"""

from __future__ import annotations

from typing import Any

from limpet.shm.endpoint.layout import VIEW
from limpet.stores.fusee.index import ReplicatedIndex
from limpet.stores.fusee.tables import ReplicatedTables
from limpet.stores.race.index import Place, is_valid
from limpet.stores.race.layout import OBJECT_MASK
from limpet.stores.swarm.cache import LocationCache
from limpet.stores.swarm.key_register import KeyRegister
from limpet.stores.swarm.layout import (
    AREA_SHIFT,
    CAPACITY_MASK,
    DONE,
    IN_PLACE_LEAST,
    PLACED_MASK,
    PLACED_SHIFT,
)
from limpet.stores.swarm.register import Registers, area_of, first_of
from limpet.stores.swarm.row import Row


class Finder:
    """Finds registers, and remembers in `cache` where they are. `parameters`: the store's."""

    def __init__(
        self, index: ReplicatedIndex, tables: ReplicatedTables, logged: Registers,
        register: KeyRegister, parameters: Any,
    ) -> None:  # fmt: skip
        self.index = index
        self.logged = logged
        self.register = register
        self.endpoint = logged.endpoint
        self.replicas = parameters.replicas
        self.cache = LocationCache(parameters.cache_size, parameters.replicas)
        self.guesses = parameters.guess
        self.view = tables.view
        self.seen_view = -1
        self.shared = parameters.buffers < parameters.writers

    def forget(self) -> None:
        """Remember nothing."""
        self.cache.forget()
        self.seen_view = -1

    def attend(self) -> None:
        """Use replaced nodes, and wait while one is filled; does not wait for a new view."""
        while self.endpoint.load(VIEW) != self.seen_view:
            viewed = self.view.number()
            self.view.wait_stable()
            self.seen_view = viewed

    # ---- remembered places ----------------------------------------------------------------------

    def prefetch(self, key: bytes) -> int:
        """Where the cache may have the key's place; prefetches its register.

        Called before the operation begins, because no prefetch gets past the pin. Other threads may
        be in an operation then, so this changes nothing, and `recall` looks again.
        """
        at = self.cache.locate(key)
        if at >= 0:
            reference = self.cache.words[at + 1]
            shape = self.cache.words[at + 3]
            area = shape >> AREA_SHIFT & 0xFF_FFFF
            length = shape >> PLACED_SHIFT & CAPACITY_MASK
            self.register.quorum.prefetch(
                reference, area, length, first_of(reference, self.replicas)
            )
        return at

    def recall(self, register: KeyRegister, key: bytes, at: int) -> bool:
        """Select the key's register, if we know where it is: `prefetch` has said where."""
        if at < 0 or not self.cache.holds(at, key):
            return False
        self.select(register, at)
        return True

    def select(self, register: KeyRegister, at: int) -> None:
        """Select the register of an entry of the cache that `holds` its key."""
        reference = self.cache.words[at + 1]
        ident = self.cache.words[at + 2]
        shape = self.cache.words[at + 3]
        area = shape >> AREA_SHIFT & 0xFF_FFFF
        length = shape >> PLACED_SHIFT & CAPACITY_MASK
        capacity = shape & CAPACITY_MASK
        first = first_of(reference, self.replicas)
        register.select(reference, area, ident, capacity, length, first)
        register.row.recall(self.cache.words, at)

    def remember_register(self, key: bytes) -> int:
        """Remember the current register as the key's; its entry of the cache, or NOWHERE."""
        register = self.register.place
        at = self.cache.add(key)
        if at >= 0:
            self.cache.words[at + 1] = register.reference
            self.cache.words[at + 2] = register.ident
            self.cache.words[at + 3] = (
                register.area << AREA_SHIFT | register.length << PLACED_SHIFT | register.capacity
            )
        return at

    def note_write(self, register: KeyRegister, at: int) -> None:
        """Remember, in an entry of the cache, our row and the value's length after a WRITE."""
        register.row.turns.unnoted = False
        if at >= 0:
            register.row.note(self.cache.words, at)
            self.note_length(register.place.length, at)

    def note_length(self, length: int, at: int) -> None:
        """Remember, in an entry of the cache, the length of the value in place; 0: it is not."""
        shape = self.cache.words[at + 3]
        if shape >> PLACED_SHIFT & CAPACITY_MASK != length:
            self.cache.words[at + 3] = shape & ~PLACED_MASK | length << PLACED_SHIFT

    def note_read(self, register: KeyRegister, outcome: int, at: int) -> None:
        """Remember, in an entry of the cache, the value's length after a READ of a register, and
        the state of our row, so that the next WRITE need not read it."""
        row = register.row
        if row.wrote:
            if at >= 0:
                self.cache.words[at + 4] = 0  # there is a copy in our row
            row.turns.unnoted = False
        if at >= 0 and outcome == DONE:
            self.note_length(register.place.length, at)
            if self.guesses and not row.wrote and row.is_writer():  # else a WRITE looks in any case
                self._note_row(row, at)

    def _note_row(self, row: Row, at: int) -> None:
        """Remember what the words read show of our row. If there is a tuple in it, its pointers are
        read in the background. If others have its word of M, too, only that word is remembered,
        unless its pointers were read."""
        if self.shared:
            if row.known:
                row.renew_words()
            elif row.register.asks:
                row.known = row.take_metadata()
            row.note(self.cache.words, at)
        elif not row.known:
            if not row.infer():
                scope = self.endpoint.background(True)
                row.known = row.take_metadata()
                self.endpoint.background(scope)
            row.note(self.cache.words, at)

    # ---- places in the index --------------------------------------------------------------------

    def seek(self, place: Place, key: bytes) -> int:
        """Of the slots that were read, the one with this key, or 0; its register is selected.

        Its register has not been looked at; the next phase does.
        """
        fingerprint = place.hash & 0xFF
        for index in range(32):
            word = self.index.words[index]
            if index & 7 and word >> 56 == fingerprint and is_valid(word):
                reference = word & OBJECT_MASK
                # The register is prefetched while the keys are compared.
                area = area_of(len(key))
                first = first_of(reference, self.replicas)
                self.register.quorum.prefetch(reference, area, IN_PLACE_LEAST, first)
                self.logged.load(reference)
                if self.logged.key_is(key):
                    place.word = word
                    self.register.open(self.logged, reference)
                    return self.index.address(place, index)
                self.endpoint.wait()
        return 0
