"""The keys of a hash store in transactions, and its single operations beside them.

Transactions read and write keys by `HashKeys` (reads.py, parts.py). A look-up is RACE's own. It
rests on its *witness*: the pointer of the directory's entry, so that a split is seen, and the word
of the key's slot, or the words of all slots in which an absent key could be. A write keeps
the key's slot, or takes a vacant one.

A read has no pin where a get has none (race/glance.py). The epoch that was read before the first
look-up says for how long witnesses count (reads.py), and the client pins one only when there is
something to look at again.

Single operations (`TransactionSlots`; rTX sections 4.3, 4.5). RACE's own operations change a slot
by one CAS and lock nothing (Opt2: concurrency control is delegated to them). A transaction holds
each slot that it writes by a CAS, too (stores/transactions/parts.py), so a single operation that
expected another word fails and looks again. Of a held slot

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

Reads of a transaction leave nothing in memory, so they are looked at again
(stores/transactions/reads.py): the slot of the key, and that its subtable was not split, as what is
in that stands still then. That a key was absent all the while is seen by all slots in which it
could be having the same words; so a slot whose pair is deleted gets a word that none ever had
(stores/core/records.py), in place of RACE's 0. A slot that was vacant, or had a tentative word, and
is so with the same word, had no pair meanwhile: a tentative word becomes 0 or valid, and what is
valid never becomes 0.

A kill leaves behind: as in race/slots.py and race/splitter.py; of a transaction, what
stores/transactions/commit.py says.
"""

from __future__ import annotations

from array import array
from typing import Any

from limpet.shm.endpoint.words import ADDRESS_MASK, HELD, HELD_MASK, LINK_MASK, TENTATIVE
from limpet.shm.errors import LimpetError, NodeFailed, StoreCorrupt
from limpet.stores.core.status import AGAIN, UNPROVEN
from limpet.stores.race.glance import Glance
from limpet.stores.race.index import Holds, Index, Place, is_valid
from limpet.stores.race.layout import FROZEN, FROZEN_VACANT, OBJECT_MASK
from limpet.stores.race.slots import Slots
from limpet.stores.transactions.changes import begin_change, end_change
from limpet.stores.transactions.layout import (
    ABORT,
    AT_ONCE_MAX,
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
    WORDS,
)
from limpet.stores.transactions.lllock import LLLocks
from limpet.stores.transactions.reads import CHANGED, KeyRead, Reads, TxKeys


class TransactionHolds(Holds):
    """The meaning of slots that a transaction holds: as the log of its part says."""

    def __init__(self, name: str, objects: Any) -> None:
        super().__init__(name)
        self.objects = objects
        self.heap = objects.heap
        self.endpoint = objects.endpoint
        self.words = array("Q", bytes(8 * WORDS))
        """The head of the part that was read last, and some of its entries."""

    def held(self, place: Place, slot: int, word: int, key: bytes) -> int:
        part = word & ADDRESS_MASK
        entry = self.entry_of(part, slot)
        if not entry:
            raise StoreCorrupt(f"{self.name}: no log has the slot at {slot:#x}: {word:#x}")
        decided = self.decision()
        # ORDER: after the decision, before which the word after may be set.
        self.endpoint.post_read(entry + 8, self.words, 2)
        self.endpoint.wait()
        old, new = self.words[0], self.words[1]
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
            committed = entry and self.decision() == COMMITTED
            final = self.endpoint.load(entry + (16 if committed else 8)) if entry else 0
            # ORDER: after the part: it was one, if its slot is held still.
            held, word = word, self.endpoint.load(slot)
            if word == held:
                return final
        return word

    def entry_of(self, part: int, slot: int) -> int:
        """Address of a part's entry for a slot; 0: it has none. 1 round trip if that is the first
        one. Then `words` begins with the head of the part."""
        words = self.words
        # The head, and the first entry.
        self.endpoint.post_read(part, words, PART_ENTRIES + ENTRY_SIZE >> 3)
        self.endpoint.wait()
        count = words[PART_COUNT >> 3]
        if words[PART_ENTRIES >> 3] == slot and count:
            return part + PART_ENTRIES
        begin = 1
        while begin < count <= COUNT_MAX:
            here = min(count - begin, AT_ONCE_MAX)
            first = part + PART_ENTRIES + ENTRY_SIZE * begin
            self.endpoint.post_read(first, words, ENTRY_SIZE * here >> 3, PART_ENTRIES >> 3)
            self.endpoint.wait()
            for index in range(here):
                if words[PART_ENTRIES + ENTRY_SIZE * index >> 3] == slot:
                    return first + ENTRY_SIZE * index
            begin += here
        return 0

    def decision(self) -> int:
        """The decision in the log of the part that `entry_of` has read: COMMITTED, ABORT, or INIT,
        if no client can say. 1 round trip."""
        log, owner = self.words[PART_LOG >> 3], self.words[PART_OWNER >> 3]
        if not self.heap.plausible(log):
            return INIT
        log &= ADDRESS_MASK
        try:
            state_ticket = self.endpoint.post_load(log + STATE)
            # ORDER: after the state: the log is still that of this transaction.
            owner_ticket = self.endpoint.post_load(log + OWNER)
            self.endpoint.wait()
            state = self.endpoint.result(state_ticket)
            if self.endpoint.result(owner_ticket) != owner:
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
        self.objects.post_keyed(word & OBJECT_MASK, key)
        self.endpoint.wait()
        return self.objects.matches(key)


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
        """Keep the slots in `taken` from counting as `room` for the key, whose buckets were
        read."""
        for index in range(32):
            if index & 7 and self.index.address(place, index) in taken:
                self.index.words[index] = TENTATIVE

    def is_alone(self, place: Place, holds: TransactionHolds, key: bytes, slot: int) -> bool:
        """Whether no slot but this one, which we hold, has the key; an insert that is about to put
        it into another one is kicked out."""
        self.index.post_choose(place, key)
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
                # CRASH(kicked): the object's client frees it, or the one that recovers the client.
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


class NotedGlance(Glance):
    """Looks keys up without a pin, and notes their slots."""

    def __init__(self, index: Index) -> None:
        super().__init__(index)
        self.slot = 0
        """Of the key that was found last."""

    def note_found(self, place: Place, slot: int) -> None:
        self.slot = slot


class HashKeys(TxKeys):
    """The keys of an `rtx-race` store."""

    def __init__(
        self, store: Any, index: Index, writer: TransactionSlots, holds: TransactionHolds
    ) -> None:
        super().__init__(store, store.link)
        self.client = store.client
        self.endpoint = store.endpoint
        self.allocator = store.allocator
        self.index = index
        self.objects = index.objects
        self.writer = writer
        self.holds = holds
        self.glance = NotedGlance(index)
        self.place = Place()
        """Of the key that was looked up last, its slot, and its value."""
        self.slot = 0
        self.value: bytes | None = None
        self.cramped = 0
        """Pointer to the subtable in which `place_for` found no place."""

    # ---- reading --------------------------------------------------------------------------------

    def look_up(self, key: bytes) -> bytes | None:
        self.index.post_choose(self.place, key)
        self.slot = self.index.find(self.place, key)
        self.value = self.objects.value() if self.slot else None
        return self.value

    def busy_at(self) -> int:
        return self.place.busy

    def value_here(self) -> bytes | None:
        return self.value

    def read(self, reads: Reads, key: bytes) -> Any:
        store = self.store
        if store.glances and not self.endpoint.durable:
            found = self._glanced(reads, key)
            if found is not UNPROVEN:
                return found
        attempt = 0
        while True:
            self.client.enter()
            try:
                store.require_there()
                reads.count_first()
                found = self.look_up(key)
                busy = self.place.busy
                if not busy:
                    there = self.note(reads, key, found) and reads.hold_again()
                    return found if there else CHANGED
            finally:
                self.client.leave()
            attempt += 1
            store.retries += 1
            store.back_off(busy, 0, attempt)

    def _glanced(self, reads: Reads, key: bytes) -> Any:
        """As `get`, without a pin; UNPROVEN if that proves nothing."""
        client = self.client
        while self.endpoint.begin():
            client.rejoin()
        try:
            if client.ident:
                reads.count_first()
                self.glance.slot = 0
                found = self.glance.value(self.place, key, self.store.drops)
                if found is not UNPROVEN:
                    self.slot = self.glance.slot
                    self.value = found
                    there = self.note(reads, key, found) and reads.hold_unpinned()
                    # ORDER: after all reads, as in `unpin`: a client that was declared dead may
                    # have read another pool.
                    if not client.remotely_fenced or self.endpoint.load(client.slot) == client.word:
                        return found if there else CHANGED
        except LimpetError:
            pass  # perhaps of memory that was used again: the look-up with a pin says
        finally:
            self.endpoint.end()
        return UNPROVEN

    def attest(self, read: KeyRead) -> None:
        place = self.place
        read.hash = place.hash
        read.entry = place.entry
        read.pointer = place.pointer
        read.slot = self.slot
        read.word = place.word if self.slot else 0
        read.words = None
        if not self.slot and place.base:
            read.first = place.first
            read.second = place.second
            read.words = bytes(self.index.words[:32])

    def post_stands(self, read: KeyRead, row: int) -> None:
        if read.slot:
            read.ticket = self.endpoint.post_load(read.slot)
        elif read.words is not None:
            self.place.first = read.first
            self.place.second = read.second
            self.place.base = read.first
            self.index.post_row(self.place, row)
        # ORDER: after the words, on one node: of a subtable that is split they stand still,
        # whatever is written.
        read.entry_ticket = self.endpoint.post_load(read.entry)

    def stands(self, read: KeyRead, row: int) -> bool:
        if read.slot:
            if self.endpoint.result(read.ticket) != read.word:
                return False
        elif (
            read.words is not None
            and bytes(self.index.words[32 * row : 32 * row + 32]) != read.words
        ):
            return False
        return self.endpoint.result(read.entry_ticket) == read.pointer

    def is_writable(self, read: KeyRead) -> bool:
        """Whether a key that was read can be written in the slot that it had, if that has the word
        that it had: the hold of the slot will show that. In the epoch in which it was read.

        The directory needs no look: a split freezes all slots before it swings the pointer, and in
        this epoch the memory of a subtable that was split is not used again. So a slot that has its
        word, not frozen, is one of a subtable that is in use.
        """
        word = read.word
        return read.slot != 0 and word & HELD_MASK != HELD and not word & FROZEN

    def note(self, reads: Reads, key: bytes, value: Any) -> bool:
        read = reads.next_key()
        read.describe(self, key, value)
        self.attest(read)
        return reads.note_key(key, read)

    # ---- writing --------------------------------------------------------------------------------

    def refuse(self, key: bytes, value: bytes) -> None:
        self.objects.size_of(key, value)

    def place_for(self, key: bytes, taken: Any) -> tuple[int, int]:
        """The slot in which a key is, or can be put, but none of those `taken`; and its word.

        0, 0: there is none, or something is `busy`. Within an operation.
        """
        place = self.place
        self.look_up(key)
        if self.slot and place.word & HELD_MASK == HELD:
            place.busy = self.slot | SLOT
        if place.busy:
            return 0, 0
        if self.slot and not place.word & FROZEN:
            return self.slot, place.word
        self.writer.hide(place, taken)
        index = -1 if self.slot else self.index.room(place)
        if index < 0:
            self.cramped = place.pointer
            return 0, 0
        return self.index.address(place, index), self.index.words[index]

    def make_room(self, key: bytes, subtable: int) -> None:
        """Split the subtable in which there was no place for a key, if the key still belongs there;
        `subtable`: its pointer. Raises StoreFull."""
        splitter = self.store.splitter
        splitter.cramped = subtable
        try:
            self.store.grow(key)
        finally:
            splitter.cramped = 0
