"""The `race` store: RACE hashing that grows by splitting subtables, without locks.

The paper locks directory entries, and moves pairs one after another; who is killed holding a lock
blocks all. Here anybody who finds no room, or a frozen slot, does all of

    1. make the two halves, all of whose slots are UNSET, and CAS the halves' entries from 0 to them
    2. freeze each slot: by CAS set FROZEN, or a vacant or undecided one to FROZEN_VACANT
    3. CAS each slot of both halves from UNSET to what the frozen slot at the same place says: its
       word, if the key belongs there, else vacant
    4. CAS the entry (directory.py) from the subtable to SPLIT; free the subtable

Any number of clients may be at it, each for itself. A frozen slot is never changed, so all see the
same and write the same, and step 3 fills each slot once: a half is not written by others before
step 4, and no slot is UNSET after it. A writer's CAS on a slot of the old subtable fails once it is
frozen, so nothing is lost that came late (trap R7); an undecided insert starts again in the half.
Memory is taken before anything is frozen, so nobody is ever stuck because memory is full.

A kill leaves behind: before the CAS of step 1 a half in the hand, aimed at its entry; later
nothing but a subtable, partly frozen, and halves that the next one goes on with; after the CAS of
step 4 the old subtable in the hand.

Limits: subtables are not merged again, and what they take is not given back.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from limpet.shm.clients.membership import hand_in
from limpet.shm.endpoint.fabric import hash64
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.slots import INCARNATION_BITS
from limpet.shm.endpoint.words import ADDRESS_MASK, HELD, HELD_MASK, REFERENCE_MASK
from limpet.shm.errors import NodeFailed, StoreFull
from limpet.stores.race.layout import (
    DIRECTORY_ENTRY,
    FROZEN,
    FROZEN_VACANT,
    OBJECT_MASK,
    SPLIT,
    UNSET,
)
from limpet.stores.race.old.directory import Directory, is_split
from limpet.stores.race.old.index import is_valid
from limpet.stores.race.old.table import Race
from limpet.stores.race.parameters import GROUP_WORDS
from limpet.stores.status import DONE, FULL, NO_MEMORY, VACANT_CLASS


def is_frozen(word: int) -> bool:
    """Whether a slot with this word is frozen."""
    return word & FROZEN != 0 and word >> 48 & 0xFF != VACANT_CLASS


class Growing(Directory):
    """The `race` store: unreplicated RACE hashing. `GrowingParameters`."""

    def _begin_search(self) -> None:
        super()._begin_search()
        self.objects_needed = 2
        """Objects of the size of a subtable that a split takes."""
        self.cramped = 0
        """Pointer to a subtable that is to be split though there is room for the key."""

    def _replace(self, slot: int, word: int, desired: int) -> int:
        return FULL if word & FROZEN else Race._replace(self, slot, word, desired)

    def _remove(self, slot: int, word: int) -> int:
        return FULL if word & FROZEN else Race._remove(self, slot, word)

    def _make_room(self, key: bytes, swept: bool) -> None:
        lane = self.endpoint.background(True)
        attempt = 0
        try:
            outcome = self._grow(key)
            while outcome != DONE:
                if outcome == NO_MEMORY:
                    self._find_memory(key)
                else:
                    attempt += 1
                    self._wait(attempt)
                outcome = self._grow(key)
        finally:
            self.endpoint.background(lane)

    def _find_memory(self, key: bytes) -> None:
        """Have memory ready for a split of the key's subtable, or for its first one.

        Outside of operations, so that the subtable at hand may be another thread's; if it makes us
        ask for too little, we ask again.
        """
        node = self.tables[self._table_of(key)] >> NODE_SHIFT & 0xFF
        sizes = [self.subtable_size] * (self.objects_needed if self.pointer else 1)
        update = not self.spares
        self.allocator.coherent().replenish_all(node, sizes, self.replicas, 0, 0, update)

    def _wait(self, attempt: int) -> None:
        """Wait a little for who is in the way, where somebody can be."""

    def _grow(self, key: bytes) -> int:
        """Split the subtable of a key, or make it, if it still has to be. DONE or NO_MEMORY."""
        self.client.enter()
        try:
            self.require_there()
            self._choose(key)
            self._found_places()
            self._read_row(0)
            if not self.pointer:
                return DONE if self._obtain(self.number, 0) else NO_MEMORY
            enough = not self._is_frozen() and self.pointer != self.cramped
            # A key that is there needs no room.
            if enough and (self._room() >= 0 or self._match(key, 0, False)):
                return DONE
            if self.depth == self.depth_max:
                raise StoreFull(
                    f"{self.name}: the subtable of the key {key!r} is full and cannot be split, as "
                    f"it was {self.depth} times; the store was made with capacity="
                    f"{self.parameters.capacity} and limit={self.parameters.limit}, 0 being none"
                )
            return self._split()
        finally:
            self.client.leave()

    def _is_frozen(self) -> bool:
        """Whether a slot of the buckets that were read is frozen."""
        frozen = 0
        for index in range(32):
            frozen += index & 7 != 0 and is_frozen(self.slots[index])
        return frozen != 0

    def _split(self) -> int:
        """Split the subtable that was read last."""
        entry, old = self.entry, self.pointer
        first = self._obtain(2 * self.number, UNSET)
        second = self._obtain(2 * self.number + 1, UNSET) if first else 0
        if not second:
            return NO_MEMORY
        if self.endpoint.load(entry) != old:
            return DONE
        # CRASH(freezing): whoever wants to write here goes on; readers do not mind.
        self._freeze(old & ADDRESS_MASK)
        self._move(old & ADDRESS_MASK, first & ADDRESS_MASK, second & ADDRESS_MASK)
        self.client.hold(old & REFERENCE_MASK, entry)
        self.endpoint.cas(entry, old, SPLIT)
        # CRASH(split): the old subtable is in the hand and no longer linked.
        self.endpoint.wait()
        return DONE

    def _obtain(self, number: int, word: int) -> int:
        """The pointer of an entry; if it is 0, to a new subtable with this word in each slot.

        0: there is no memory ready.
        """
        entry = self._entry(self.table, number)
        pointer = self.endpoint.load(entry)
        if pointer:
            return pointer
        node = self.tables[self.table] >> NODE_SHIFT & 0xFF
        new = self.allocator.coherent().allocate(node, self.subtable_size, 1)
        if not new:
            return 0
        self.endpoint.write(new & ADDRESS_MASK, self._filled(number, word))
        self.client.aim(self.client.held - 1, entry)
        pointer = self.endpoint.cas(entry, 0, new)
        # CRASH(subtable-made): it is linked, and whoever needs it goes on.
        self.endpoint.wait()
        return pointer or new

    def _filled(self, number: int, word: int) -> Any:
        """A subtable of this number with the same word in each slot."""
        words = np.full((self.groups, GROUP_WORDS // 8, 8), word, dtype="<u8")
        words[:, :, 0] = (np.arange(self.groups, dtype="<u8") | np.uint64(number << 32))[:, None]
        return words

    def freeze(self, pointer: int) -> int:
        """Freeze the subtable that a pointer leads to; the first slot that is held, or 0."""
        return self._freeze(pointer & ADDRESS_MASK)

    def _freeze(self, base: int) -> int:
        """Freeze all slots of the subtable there; the first one that a transaction holds, or 0."""
        for index in range(self.groups * GROUP_WORDS):
            slot = base + 8 * index
            while index & 7:
                word = self.endpoint.load(slot)
                if is_frozen(word):
                    break
                if word & HELD_MASK == HELD:
                    return slot
                frozen = word | FROZEN if is_valid(word) else FROZEN_VACANT
                if self.endpoint.cas(slot, word, frozen) == word:
                    break
        return 0

    def halves_of(self, old: int, numbers: list[int]) -> list[Any]:
        """What the halves with these numbers are, of the frozen subtable that was read last."""
        shift = self.depth_max - self.depth - 1
        halves = [self._filled(number, 0).reshape(-1) for number in numbers]
        words = np.frombuffer(
            self.endpoint.read(old & ADDRESS_MASK, self.subtable_size), dtype="<u8"
        ).tolist()
        for index in range(self.groups * GROUP_WORDS):
            word = words[index]
            if index & 7 and is_valid(word):
                self.objects.load(word & OBJECT_MASK)
                half = self._prefix(hash64(self.objects.key())) >> shift & 1
                halves[half][index] = word & ~FROZEN
        return halves

    def _move(self, base: int, first: int, second: int) -> None:
        """Fill both halves from the frozen subtable at `base`."""
        shift = self.depth_max - self.depth - 1
        for index in range(self.groups * GROUP_WORDS):
            if not index & 7:
                continue
            word = self.endpoint.load(base + 8 * index)
            half = 2
            if is_valid(word):
                self.objects.load(word & OBJECT_MASK)
                half = self._prefix(hash64(self.objects.key())) >> shift & 1
            self._set(first + 8 * index, 0 if half else word & ~FROZEN)
            self._set(second + 8 * index, word & ~FROZEN if half == 1 else 0)

    def _set(self, slot: int, word: int) -> None:
        self.endpoint.cas(slot, UNSET, word)

    # ---- what the dead leave --------------------------------------------------------------------

    def left_by(self, ident: int) -> set[str]:
        found: set[str] = set()
        for reference, home in hand_in(self.endpoint, ident >> INCARNATION_BITS):
            for table, directory in enumerate(self.tables):
                if 0 <= home - directory < self.parameters.directory_size:
                    try:
                        found |= self._left_at(table, reference, home)
                    except NodeFailed:
                        continue
        return found

    def _left_at(self, table: int, reference: int, entry: int) -> set[str]:
        """What a pair of a hand shows that is aimed at this entry."""
        pointer = self.endpoint.load(entry)
        if is_split(pointer):
            return {"split"}
        if pointer != reference:
            return set()
        parent = self.entries - (entry - self.tables[table]) // DIRECTORY_ENTRY >> 1
        halves = len(self._halves(table, parent)) if parent >> self.depth_first else 0
        return {"subtable-made", "freezing"} if halves == 2 else {"subtable-made"}
