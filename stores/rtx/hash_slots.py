"""Single operations of a hash store beside transactions over its keys (rTX sections 4.3, 4.5).

RACE's own operations change a slot by one CAS and lock nothing (Opt2: concurrency control is
delegated to them). A transaction holds each slot that it writes by a CAS, too
(stores/rtx/parts.py), so a single operation that expected another word fails and looks again. Of a
held slot

    get                reads by the log what is decided, and waits for what is not
    put, update, delete, insert of its key
                       wait until it is let go of
    a split            waits likewise until it is decided; then it has the slot let go of at once,
                       and never moves a held one

A key that is not there has no slot. A transaction puts one that it inserts into a vacant slot that
it holds, and a single insert puts its own into another one, tentatively (race/slots.py). Each of
them looks at all slots of the key after it has put down its own word, so at least one sees the
other: a transaction kicks out the tentative one, whose last CAS fails then; an insert that sees a
held slot with its key withdraws, and waits. Of two transactions at least one gives way.

Reads of a transaction leave nothing in memory, so they are looked at again (stores/rtx/reads.py):
the slot of the key, and that its subtable was not split, as what is in that stands still then. That
a key was absent all the while is seen by all slots in which it could be having the same words; so a
slot whose pair is deleted gets a word that none ever had (stores/vacant.py), in place of RACE's 0.
A slot that was vacant, or had a tentative word, and is so with the same word, had no pair
meanwhile: a tentative word becomes 0 or valid, and what is valid never becomes 0.

A kill leaves behind: as in race/slots.py and race/splitter.py; of a transaction, what
stores/rtx/commit.py says.
"""

from __future__ import annotations

from typing import Any

from limpet.shm.endpoint.words import ADDRESS_MASK, HELD, HELD_MASK, LINK_MASK, TENTATIVE
from limpet.shm.errors import NodeFailed, StoreCorrupt
from limpet.stores.race.index import Holds, Index, Place, is_valid
from limpet.stores.race.layout import FROZEN_VACANT, OBJECT_MASK
from limpet.stores.race.slots import Slots
from limpet.stores.rtx.changes import begin_change, end_change
from limpet.stores.rtx.layout import (
    ABORT,
    COMMITTED,
    COUNT_MAX,
    DOING,
    ENTRY_SIZE,
    INIT,
    OWNER,
    PART_COUNT,
    PART_ENTRIES,
    PART_LOG,
    PART_OWNER,
    SLOT,
    STATE,
    STATE_MASK,
)
from limpet.stores.rtx.lllock import LLLocks
from limpet.stores.status import AGAIN


class TransactionHolds(Holds):
    """The meaning of slots that a transaction holds: as the log of its part says."""

    def __init__(self, name: str, objects: Any) -> None:
        super().__init__(name)
        self.objects = objects
        self.heap = objects.heap
        self.endpoint = objects.endpoint

    def held(self, place: Place, slot: int, word: int, key: bytes) -> int:
        part = word & ADDRESS_MASK
        entry = self.entry_of(part, slot)
        if not entry:
            raise StoreCorrupt(f"{self.name}: no log has the slot at {slot:#x}: {word:#x}")
        decided = self.decision(part)
        old = self.endpoint.load(entry + 8)
        new = self.endpoint.load(entry + 16)
        if decided == INIT:
            if self.has(old, key) or self.has(new, key):
                place.busy = slot | SLOT
            return 0
        final = new if decided == COMMITTED else old
        return final & OBJECT_MASK if is_valid(final) else 0

    def settled(self, slot: int, word: int) -> int:
        while word & HELD_MASK == HELD:
            part = word & ADDRESS_MASK
            entry = self.entry_of(part, slot)
            committed = entry and self.decision(part) == COMMITTED
            final = self.endpoint.load(entry + (16 if committed else 8)) if entry else 0
            # ORDER: after the part: it was one, if its slot is held still.
            held, word = word, self.endpoint.load(slot)
            if word == held:
                return final
        return word

    def entry_of(self, part: int, slot: int) -> int:
        """Address of a part's entry for a slot; 0: it has none."""
        count = self.endpoint.load(part + PART_COUNT)
        if count <= COUNT_MAX:
            for index in range(count):
                entry = part + PART_ENTRIES + ENTRY_SIZE * index
                if self.endpoint.load(entry) == slot:
                    return entry
        return 0

    def decision(self, part: int) -> int:
        """The decision in the log of a part: COMMITTED, ABORT, or INIT, if no client can say."""
        log = self.endpoint.load(part + PART_LOG)
        if not self.heap.plausible(log):
            return INIT
        log &= ADDRESS_MASK
        try:
            state = self.endpoint.load(log + STATE)
            if self.endpoint.load(log + OWNER) != self.endpoint.load(part + PART_OWNER):
                return INIT
        except NodeFailed:
            return INIT
        if state & STATE_MASK == INIT:
            return INIT
        return COMMITTED if state & STATE_MASK == DOING or state & COMMITTED else ABORT

    def has(self, word: int, key: bytes) -> bool:
        """Whether the pair of a slot with this word, which no transaction holds, has the key."""
        if not is_valid(word):
            return False
        self.objects.load(word & OBJECT_MASK)
        return self.objects.key_is(key)


class TransactionSlots(Slots):
    """Changes slots by one CAS, unless a transaction holds them: then the slot is `busy`."""

    def __init__(self, index: Index, client: Any, locks: LLLocks) -> None:
        super().__init__(index, client)
        self.locks = locks

    def replace(self, place: Place, slot: int, desired: int) -> int:
        if place.word & HELD_MASK == HELD:
            place.busy = slot | SLOT
            return AGAIN
        begin_change(self.client)
        outcome = Slots.replace(self, place, slot, desired)
        end_change(self.client)
        return outcome

    def remove(self, place: Place, slot: int) -> int:
        if place.word & HELD_MASK == HELD:
            place.busy = slot | SLOT
            return AGAIN
        begin_change(self.client)
        outcome = Slots.remove(self, place, slot)
        end_change(self.client)
        return outcome

    def begin_changes(self) -> None:
        begin_change(self.client)

    def end_changes(self) -> None:
        end_change(self.client)

    def decide(self, slot: int, tentative: int, desired: int) -> bool:
        begin_change(self.client)
        done = Slots.decide(self, slot, tentative, desired)
        end_change(self.client)
        return done

    def rival(self, place: Place, key: bytes, slot: int, attempt: int) -> bool:
        return place.busy != 0 or Slots.rival(self, place, key, slot, attempt)

    def vacated(self, word: int) -> int:
        while True:
            vacant = self.locks.vacated()
            # A client that has the pair in the client journal is to see that it is not linked
            # (heap.py).
            if (vacant ^ word) & LINK_MASK:
                return vacant

    # ---- by a transaction -----------------------------------------------------------------------

    def hide(self, place: Place, taken: Any) -> None:
        """Have no slot that is `taken` be `room` for the key, whose buckets were read."""
        for index in range(32):
            if index & 7 and self.index.address(place, index) in taken:
                self.index.words[index] = TENTATIVE

    def is_alone(self, place: Place, holds: TransactionHolds, key: bytes, slot: int) -> bool:
        """Whether no slot but this one, which we hold, has the key; an insert that is about to put
        it into another one is kicked out."""
        self.index.choose(place, key)
        self.index.read_buckets(place)
        fingerprint = place.hash & 0xFF
        for index in range(32):
            word = self.index.words[index]
            other = self.index.address(place, index)
            if not index & 7 or word >> 56 != fingerprint or other == slot:
                continue
            if word == FROZEN_VACANT:
                continue  # a frozen one with a pair counts: a split may have been given up
            if word & TENTATIVE:
                # CRASH(kicked): whose object it is frees it, or whoever recovers that client.
                if holds.has(word & ~TENTATIVE, key) and not self.kick(other, word):
                    return False
            elif word & HELD_MASK == HELD:
                place.busy = 0
                reference = holds.held(place, other, word, key)
                if place.busy or (reference and holds.has(reference, key)):
                    return False
            elif holds.has(word, key):
                return False
        return True
