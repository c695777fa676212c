"""The keys of a hash store, as transactions read and write them (reads.py, parts.py).

A look-up is RACE's own. What it rests on, its *witness*, is the pointer of the directory's entry,
so that a split is seen, and the word of the key's slot, or the words of all slots in which an
absent key could be (hash_slots.py). A write keeps the key's slot, or takes a vacant one.

A read has no pin where a get has none (race/glance.py). The epoch that was read before the first
look-up says for how long witnesses count (reads.py), and the client pins one only when there is
something to look at again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from limpet.shm.endpoint.words import HELD, HELD_MASK
from limpet.shm.errors import LimpetError
from limpet.stores.race.glance import Glance
from limpet.stores.race.index import Place
from limpet.stores.race.layout import FROZEN
from limpet.stores.rtx.layout import SLOT
from limpet.stores.rtx.reads import CHANGED, KeyRead, Reads, TxKeys
from limpet.stores.status import UNPROVEN

if TYPE_CHECKING:
    from limpet.stores.race.index import Index
    from limpet.stores.rtx.hash_slots import TransactionHolds, TransactionSlots


class NotedGlance(Glance):
    """Looks keys up without a pin, and notes their slots."""

    def __init__(self, index: Index) -> None:
        super().__init__(index)
        self.slot = 0
        """Of the key that was found last."""

    def learn(self, place: Place, slot: int) -> None:
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
        if store.glance is not None and not self.endpoint.durable:
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
            store.give_way(busy, 0, attempt)

    def _glanced(self, reads: Reads, key: bytes) -> Any:
        """The same without a pin, or UNPROVEN."""
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

    def stands(self, read: KeyRead) -> bool:
        if read.slot:
            if self.endpoint.load(read.slot) != read.word:
                return False
        elif read.words is not None:
            self.place.first = read.first
            self.place.second = read.second
            self.place.base = read.first
            self.index.read_row(self.place, 0)
            if bytes(self.index.words[:32]) != read.words:
                return False
        # ORDER: after the words: of a subtable that is split they stand still, whatever is written.
        return self.endpoint.load(read.entry) == read.pointer

    def is_writable(self, read: KeyRead) -> bool:
        """Whether a key that was read has the slot and the word that it had, so that it can be
        written there. Within an operation, in the epoch in which it was read.

        The directory needs no look: a split freezes all slots before it swings the pointer, and in
        this epoch the memory of a subtable that was split is not used again. So a slot that has its
        word, not frozen, is one of a subtable that is in use.
        """
        word = read.word
        if not read.slot or word & HELD_MASK == HELD or word & FROZEN:
            return False
        return self.endpoint.load(read.slot) == word

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
