"""Splitting subtables that have replicas, without locks: stores/race/store.py with rounds.

A client that finds no room, or a frozen slot, does all of

    1. make the two halves, all of whose slots are UNSET on every replica, and have the halves'
       entries go from 0 to them (tables.py)
    2. freeze each slot. One with a pair: by a round of SNAPSHOT that sets FROZEN. One that is
       vacant: as a round is made void, but by FROZEN_VACANT, on the primary and then on the backups
    3. CAS each slot of both halves, on every replica, from UNSET to what the frozen slot at the
       same place says: its word, if the key belongs there, else vacant
    4. have the entry go from the subtable to SPLIT; free the subtable

Any number of clients may be at it, each for itself. Nobody goes on to step 3 before each slot is
frozen on every replica. So what it says is the same to all, now and after any loss of nodes, and
what comes late fails: a proposal finds its old value on no backup, an insert not on the primary. A
half is not written by others before step 4, and no slot is UNSET after it. Memory is taken before
anything is frozen, so who meets a frozen slot can always go on, within its operation.

A round that freezes a slot is one as those of updates: any of its participants may win, and anybody
may complete it. It leaves no mark in the log entry of the pair, which stays linked; who loses to it
sees that by the primary, for a frozen slot never changes, and begins again.

A kill leaves behind: in the hand a subtable, with its entry; or a pair, or FROZEN_VACANT, with
the slot that was being frozen. `resolved` brings either to its end.
"""

from __future__ import annotations

from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.shm.errors import NodeFailed, StoreCorrupt
from limpet.stores.fusee.links import OLD, PLACE_BITS
from limpet.stores.fusee.snapshot import Snapshot
from limpet.stores.race.old.index import is_valid
from limpet.stores.race.layout import FROZEN, FROZEN_VACANT, OBJECT_MASK, SPLIT, UNSET
from limpet.stores.race.parameters import GROUP_WORDS
from limpet.stores.race.old.store import Growing, is_frozen
from limpet.stores.status import AGAIN, DONE, NO_MEMORY


class ReplicatedGrowth(Snapshot):
    """A replicated index that grows."""

    def _grow(self, key: bytes) -> int:
        try:
            return Growing._grow(self, key)
        except NodeFailed as error:
            if not self._outlived(error.node):
                raise
            return AGAIN

    def _find_memory(self, key: bytes) -> None:
        try:
            Growing._find_memory(self, key)
        except NodeFailed as error:
            if not self._outlived(error.node):
                raise

    def _split(self) -> int:
        """Split the subtable at hand."""
        old = self.pointer
        first = self._obtain(2 * self.number, UNSET)
        second = self._obtain(2 * self.number + 1, UNSET) if first else 0
        if not second:
            return NO_MEMORY
        if self.endpoint.load(self.entry) != old:
            return DONE
        base = self._base_of(old)
        # CRASH(freezing): whoever wants to write here goes on; readers do not mind.
        self._freeze(base)
        self._move(base, first & ADDRESS_MASK, second & ADDRESS_MASK)
        self.endpoint.wait()
        home = self._home_of_entry(self.entry)
        self.client.hold(old, home | OLD)
        self._advance(home & PLACE_BITS, old, SPLIT)
        # CRASH(split): the old subtable is in the hand and no longer linked.
        return DONE

    def _obtain(self, number: int, word: int) -> int:
        """The pointer of an entry; if it is 0, to a new subtable with this word in each slot.

        0: there is no memory ready.
        """
        home = self._home_of_entry(self._entry(self.table, number))
        pointer = self._advance(home & PLACE_BITS, 0, 0)
        if pointer:
            return pointer
        node = self.tables[self.table] >> NODE_SHIFT & 0xFF
        new = self.allocator.coherent().allocate(node, self.subtable_size, self.replicas)
        if not new:
            return 0
        filled = self._filled(number, word)
        for k in range(self.lives[node]):
            self.endpoint.write(self._replica(new & ADDRESS_MASK, k), filled)
        self.endpoint.wait()
        self.client.aim(self.client.held - 1, home)
        # CRASH(subtable-made): from then on it is linked, and whoever needs it goes on.
        return self._advance(home & PLACE_BITS, 0, new)

    def _freeze(self, base: int) -> int:
        for index in range(self.groups * GROUP_WORDS):
            if index & 7:
                self._freeze_slot(base + 8 * index)
        return 0

    def _freeze_slot(self, slot: int) -> None:
        """Freeze a slot, on every replica."""
        word = self.endpoint.load(slot)
        while not is_frozen(word):
            if is_valid(word):
                self._freeze_pair(slot, word)
            else:
                self._freeze_vacant(slot, word)
            word = self.endpoint.load(slot)
        # ORDER: all backups before anybody goes by what the primary has.
        self._even_out(slot, word)

    def _freeze_pair(self, slot: int, word: int) -> None:
        if self.backups:
            held = self.client.hold(word & OBJECT_MASK, self._home(slot) | OLD)
            self._round(slot, word, word | FROZEN)
            # CRASH(slot-frozen): the pair is linked there for ever, and in a half, or will be.
            self.client.keep(held)
        else:
            self.endpoint.cas(slot, word, word | FROZEN)

    def _freeze_vacant(self, slot: int, word: int) -> None:
        held = self.client.hold(FROZEN_VACANT, self._home(slot)) if self.backups else -1
        if self.endpoint.cas(slot, word, FROZEN_VACANT) == word:
            # CRASH(slot-freezing): the backups still have what was there, or a proposal.
            self._even_out(slot, FROZEN_VACANT)
        if held >= 0:
            self.client.keep(held)

    def _set(self, slot: int, word: int) -> None:
        """Fill a slot of a half, which has this address in the head, on every replica."""
        for k in range(self.lives[slot >> NODE_SHIFT]):
            self.endpoint.cas(self._replica(slot, k), UNSET, word)

    def _follow(self, old: int, offset: int) -> int:
        """The slot of the half that the key at hand belongs to, at the same place as a frozen one
        of the subtable `old`; split that first, if nobody has."""
        self._place(self.hash)
        while self.pointer == old:
            if self._split() == NO_MEMORY:
                raise StoreCorrupt(
                    f"{self.pool.url}, store {self.name!r}: a slot of the subtable at {old:#x} is "
                    "frozen, and the halves that it is to be split into were never made: memory "
                    "was damaged. Save what is left, and make the store again"
                )
            self._place(self.hash)
        self._found_places()
        return self.base + offset
