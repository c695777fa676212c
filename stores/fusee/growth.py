"""Splitting subtables that have replicas, without locks: stores/race/splitter.py with rounds.

A client that finds no room, or a frozen slot, takes all of these steps:

    1. make the two halves, all of whose slots are UNSET on every replica, and change the halves'
       entries from 0 to them (tables.py)
    2. freeze each slot. A slot with a pair: by a round of SNAPSHOT that sets FROZEN. A vacant slot:
       as a round is made void, but by FROZEN_VACANT, on the primary and then on the backups
    3. for each pair, CAS the slot at the same place of its half, on every replica, from UNSET to
       the pair's word. The other slots stay UNSET, which is vacant to all who use a half
    4. change the entry from the subtable to SPLIT; free the subtable

Any number of clients may take them at the same time. No client goes on to step 3 before each slot
is frozen on every replica. So its word is the same for all clients, now and after any loss of
nodes, and late changes fail: a proposal finds its old value on no backup, an insert does not find
it on the primary. No other client writes to a half before step 4; by then no slot that gets a pair
is UNSET on any replica, and no slot becomes UNSET again. Memory is taken before anything is frozen,
so a client that meets a frozen slot can always go on, within its operation.

A round that freezes a slot works as one of an update: any of its participants may win, and any
client may complete it. It leaves no mark in the log entry of the pair, which stays linked. A client
that loses to it sees that by the primary, as a frozen slot never changes, and begins again.

A kill leaves behind: in the client journal a subtable, with its entry; or a pair, or FROZEN_VACANT,
with the slot that was being frozen. `resolved` completes either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.shm.errors import NodeFailed, StoreCorrupt
from limpet.stores.core.status import AGAIN, DONE, NO_MEMORY
from limpet.stores.fusee.links import OLD, PLACE_BITS
from limpet.stores.fusee.snapshot import ReplicatedSlot
from limpet.stores.fusee.tables import ReplicatedTables
from limpet.stores.race.index import Index, Place, is_frozen, is_valid
from limpet.stores.race.layout import (
    FROZEN,
    FROZEN_VACANT,
    OBJECT_MASK,
    PREFETCH_SIZE,
    SPLIT,
    UNSET,
)
from limpet.stores.race.splitter import Splitter


class ReplicatedSplitter(Splitter):
    """Splits the subtables of a replicated index. `slot`: to freeze one slot after another."""

    def __init__(
        self, pool: Any, index: Index, parameters: Any, tables: ReplicatedTables,
        slot: ReplicatedSlot,
    ) -> None:  # fmt: skip
        Splitter.__init__(self, pool, index, parameters, parameters.index_replicas)
        self.tables = tables
        self.slot = slot

    def grow(self, place: Place, key: bytes) -> int:
        try:
            return Splitter.grow(self, place, key)
        except NodeFailed as error:
            if not self.tables.outlive(error.node):
                raise
            return AGAIN

    def begin(self, place: Place) -> int:
        link_address = self.tables.home_of_entry(place.table, place.entry)
        if not self.tables.advance(link_address & PLACE_BITS, 0, 0):
            new = self.make(place, place.number, 0)
            if not new:
                return NO_MEMORY
            held = self.client.held - 1
            # out of the journal at once, as in `settle_halves`
            if self.link(new, link_address) == new:
                self.client.drop(held)
            else:
                self.client.release(held)
        return DONE

    def find_memory(self, key: bytes, objects: int, update: bool) -> None:
        try:
            Splitter.find_memory(self, key, objects, update)
        except NodeFailed as error:
            if not self.tables.outlived(self._within, error.node):
                raise

    def _within(self, step: Callable[[], Any]) -> Any:
        """Run a step as an operation of its own; its result."""
        self.client.enter()
        try:
            return step()
        finally:
            self.client.leave()

    def split(self, place: Place) -> int:
        old = place.pointer
        before = self.client.held
        first = self.obtain(place, 2 * place.number, UNSET)
        second = self.obtain(place, 2 * place.number + 1, UNSET) if first else 0
        if not second or self.endpoint.load(place.entry) != old:
            self.settle_halves(before, first, second)
            return DONE if second else NO_MEMORY
        # CRASH(freezing): the next client that wants to write here goes on; readers are not
        # concerned.
        self.freeze(old)
        self.fill_pairs(place.depth, first & ADDRESS_MASK, second & ADDRESS_MASK)
        link_address = self.tables.home_of_entry(place.table, place.entry)
        held = self.client.log(old, link_address | OLD)
        now = self.tables.advance(link_address & PLACE_BITS, old, SPLIT)
        # CRASH(split): the old subtable is in the client journal and no longer linked.
        if now != old:
            self.client.release(held)
            self.settle_halves(before, first, second)
        return DONE

    def settle_halves(self, before: int, first: int, second: int) -> None:
        """Take the halves that this client has made out of its journal, whose places from `before`
        on name them; `first` and `second` are those that the entries point to.

        As `Client.settle`, which has to ask a handle of the store that is made for it: that takes
        a thousand times as long.
        """
        index = self.client.held
        while index > before:
            index -= 1
            made = self.client.references[index]
            if made in (first, second):
                self.client.drop(index)
            elif made:
                self.client.release(index)

    def obtain(self, place: Place, number: int, word: int) -> int:
        entry = self.index.entry(place.table, number)
        link_address = self.tables.home_of_entry(place.table, entry)
        pointer = self.tables.advance(link_address & PLACE_BITS, 0, 0)
        if pointer:
            return pointer
        new = self.make(place, number, word)
        return self.link(new, link_address) if new else 0

    def make(self, place: Place, number: int, word: int) -> int:
        """A new subtable of this number, in the client journal, with this word in each slot; 0:
        there is no memory ready."""
        tables = self.tables
        node = self.index.node_of(place.table)
        new = self.allocator.allocate(node, self.index.subtable_size, self.replicas)
        if not new:
            return 0
        filled = self.filled(number, word)
        for k in range(tables.lives[new >> NODE_SHIFT & 0xFF]):
            self.endpoint.write_words(tables.replica(new & ADDRESS_MASK, k), filled, len(filled))
        self.endpoint.wait()
        return new

    def link(self, new: int, link_address: int) -> int:
        """Point an entry to a new subtable, unless it points to another one already; its
        pointer."""
        self.client.retarget(self.client.held - 1, link_address)
        # CRASH(subtable-made): it is linked, and the next client that needs it goes on.
        return self.tables.advance(link_address & PLACE_BITS, 0, new)

    def freeze(self, pointer: int) -> int:
        base, head = self.index.base_of(pointer), pointer >> NODE_SHIFT & 0xFF
        self.read_words(base)
        words = self.words
        for index in range(len(words)):
            if index & 7:
                self.slot.select(base + 8 * index, head)
                words[index] = self._freeze_slot(words[index])
        return 0

    def _freeze_slot(self, word: int) -> int:
        """Freeze the current slot on every replica. `word`: what its primary had; its word then."""
        self.endpoint.prefetch(word & ADDRESS_MASK, PREFETCH_SIZE)
        if is_frozen(word):
            # No CAS confirms it, and a long read may be cut between two bytes.
            word = self.slot.read()
        while not is_frozen(word):
            if is_valid(word):
                if self._freeze_pair(word):
                    return word | FROZEN
            elif self._freeze_vacant(word):
                return FROZEN_VACANT
            word = self.slot.read()
        # ORDER: all backups before any client takes the slot for frozen by the primary.
        self.slot.even_out(word)
        return word

    def _freeze_pair(self, word: int) -> bool:
        """Freeze it if it has this word; whether it is frozen, on every replica."""
        if not self.slot.backups:
            return self.endpoint.cas(self.slot.address, word, word | FROZEN) == word
        held = self.client.log(word & OBJECT_MASK, self.slot.link_address | OLD)
        frozen = self.slot.write(word, word | FROZEN)
        # CRASH(slot-frozen): the pair stays linked there, and is in a half, or will be.
        self.client.drop(held)
        return frozen

    def _freeze_vacant(self, word: int) -> bool:
        """Freeze the slot, which has no pair, if it has this word; whether it is frozen."""
        held = self.client.log(FROZEN_VACANT, self.slot.link_address) if self.slot.backups else -1
        frozen = self.endpoint.cas(self.slot.address, word, FROZEN_VACANT) == word
        if frozen:
            # CRASH(slot-freezing): the backups still have the old word, or a proposal.
            self.slot.even_out(FROZEN_VACANT)
        if held >= 0:
            self.client.drop(held)
        return frozen

    def fill(self, slot: int, word: int) -> None:
        """As of every splitter, on every replica; `slot`: its address in replica 0."""
        for k in range(self.tables.lives[slot >> NODE_SHIFT]):
            self.endpoint.post_cas(self.tables.replica(slot, k), UNSET, word)

    def follow(self, place: Place, old: int, offset: int) -> int:
        """The slot of a key's half at the place of a frozen slot of the subtable `old`; split that
        first, if no client has. `place` is then the key's in the half.
        """
        self.index.locate(place, place.hash)
        while place.pointer == old:
            if self.split(place) == NO_MEMORY:
                raise StoreCorrupt(
                    f"{self.pool.url}, store {self.index.name!r}: a slot of the subtable at "
                    f"{old:#x} is frozen, and the halves that it is to be split into were never "
                    "made: memory was damaged. Save what is left, and make the store again"
                )
            self.index.locate(place, place.hash)
        return place.base + offset
