"""The `fusee` store: its operations, with the index cache (FUSEE sections 4.5 and 4.6).

Phases, one round trip each:
    search, the cache knows the key      read the slot and the object                             1
    search                               read both buckets; read the object                       2
    update, the cache knows the key      write the new object, read the slot and the old one;
                                         CAS backups; log; CAS primary                            4
    update, delete                       also read both buckets first                             5
    insert                               write the object, read both buckets; CAS backups, read
                                         the buckets there; log; CAS primary                      4

The slot is read before the object, whoever says where they are: what is linked in the slot stands
still while we are pinned, so an object that has been used again since the cache met it is not taken
for the old one (trap F7). The key is compared in any case.

Losing operations begin again with an object of their own that nobody has seen (trap F2).
"""

from __future__ import annotations

from typing import Any, Final

from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.shm.errors import NodeFailed
from limpet.stores.base import as_bytes
from limpet.stores.fusee.cache import IndexCache
from limpet.stores.fusee.growth import ReplicatedGrowth
from limpet.stores.fusee.marks import BIRTH, ENTRY_SIZE, FAILED, IDLE, UPDATED
from limpet.stores.fusee.parameters import FuseeParameters
from limpet.stores.race.old.hash_store import HashStore
from limpet.stores.race.old.index import is_valid
from limpet.stores.race.layout import OBJECT_MASK
from limpet.stores.status import DONE, EXISTS, INSERT, MISSING, NO_MEMORY, PUT, UPDATE

EXPECTED_SIZE: Final = 128
"""So many bytes of a pair are fetched while its slot is read."""


class Fusee(ReplicatedGrowth):
    """A key-value store on r memory nodes, of which r - 1 may be lost. `FuseeParameters`."""

    Parameters = FuseeParameters

    def __init__(self, pool: Any, kind: str, name: str, parameters: FuseeParameters) -> None:
        super().__init__(pool, kind, name, parameters)
        self.sequential = parameters.sequential
        self.cache = IndexCache(parameters.cache_size, parameters.cache_threshold)

    def forget(self) -> None:
        ReplicatedGrowth.forget(self)
        self.cache.forget()

    # ---- search -----------------------------------------------------------------------------

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of `key`, or `default`. 1 round trip if the cache knows the key, else 2."""
        if type(key) is not bytes:
            key = as_bytes("key", key)
        self.operations += 1
        self.client.enter()
        try:
            self.require_there()
            while True:
                try:
                    return self._search(key, default)
                except NodeFailed as error:
                    if not self._outlive(error.node):
                        raise
        finally:
            self.client.leave()

    def _search(self, key: bytes, default: Any) -> Any:
        self._choose_to_read(key)
        if self._guess(key):
            return self.objects.value()
        slot = self._find(key)
        if not slot:
            return default
        self._learn(slot, self.word)
        return self.objects.value()

    def _get_batch(self, keys: list[bytes], found: list[bytes | None]) -> None:
        before = len(found)
        while len(found) == before:
            try:
                HashStore._get_batch(self, keys, found)
            except NodeFailed as error:
                del found[before:]
                if not self._outlive(error.node):
                    raise

    # ---- the cache --------------------------------------------------------------------------

    def _guess(self, key: bytes) -> int:
        """The slot, if the cache knows the key and is right; `word` and the image are its pair."""
        place = self.cache.find(self.hash)
        if place < 0 or not self.cache.trusts(place):
            return 0
        guess = self.cache.word(place)
        if not is_valid(guess):  # the slot was vacant when we last looked
            return 0
        # The pair is on its way while the slot is read.
        self.endpoint.prefetch(guess & ADDRESS_MASK, EXPECTED_SIZE)
        if self.surprised:
            self._found_places()
        slot = self._address(self.cache.index(place))
        self.word = self.endpoint.load(slot)
        # ORDER: the object after the slot. On another node, that takes a round trip of its own.
        if (slot ^ guess) >> NODE_SHIFT & 0xFF:
            self.endpoint.wait()
        self.objects.load(guess & OBJECT_MASK)
        self.endpoint.wait()
        self.cache.judge(place, self.word)
        if self.word != guess:
            if not is_valid(self.word) or self.word >> 56 != self.hash & 0xFF:
                return 0
            self.objects.load(self.word & OBJECT_MASK)
            self.endpoint.wait()
        return slot if self.objects.key_is(key) else 0

    def _learn(self, slot: int, word: int) -> None:
        """Tell the cache what a search has found."""
        place = self.cache.find(self.hash)
        if place >= 0:
            self.cache.judge(place, word)
        self.cache.remember(self.hash, self._index_of(slot), word)

    def _index_of(self, slot: int) -> int:
        """Which of the words of the key's buckets the slot is."""
        first = self.at[0]
        if first <= slot < first + 128:
            return slot - first >> 3
        return 16 + (slot - self.at[1] >> 3)

    # ---- changing ---------------------------------------------------------------------------

    def _write_once(self, key: bytes, value: bytes, size: int, mode: int, attempt: int) -> int:
        self.doing = IDLE
        try:
            return self._attempt(key, value, size, mode, attempt)
        except NodeFailed as error:
            outcome = self._recall(error.node)
            if outcome == FAILED:
                raise
            return outcome

    def _attempt(self, key: bytes, value: bytes, size: int, mode: int, attempt: int) -> int:
        self._choose(key)
        place = self.cache.find(self.hash)
        known = mode != INSERT and place >= 0 and self.cache.trusts(place)
        # Without backups nobody asks for the mark before it must be there; an update has it always.
        updates = known or mode == UPDATE or not self.backups
        self.logged.birth = UPDATED if updates else 0
        if known:
            self._expect(place)
        reference = self._make(key, value, size)
        if not reference:
            return NO_MEMORY
        desired = (self.hash & 0xFF) << 56 | reference
        slot = self._guess(key) if known else 0
        if not slot:
            self._read_buckets()
            if mode == PUT and not updates and self._candidate():
                self.logged.mark(reference, BIRTH, UPDATED)
                updates = True
            slot = self._match(key, 0, True)
            if slot and place >= 0 and not known:
                # a client that only writes comes to trust a key again, too (trap F13)
                self.cache.judge(place, self.word)
        if slot:
            if mode == INSERT:
                return EXISTS
            outcome = self._replace(slot, self.word, desired)
        elif mode == UPDATE:
            return MISSING
        else:
            if updates and self.backups:
                self.logged.mark(reference, BIRTH, 0)
                self.endpoint.wait()
            outcome = self._insert(key, desired, attempt)
        if outcome == DONE and self.backups:
            slot = self._go_to(self.at_home)
        if outcome == DONE and slot:
            self.cache.remember(self.hash, self._index_of(slot), desired)
        return outcome

    def _expect(self, place: int) -> None:
        """Have memory on its way that an update touches besides its own object."""
        slot = self._address(self.cache.index(place))
        old = self.cache.word(place) & OBJECT_MASK
        self.endpoint.prefetch(slot, 8, True)
        self.endpoint.prefetch(old & ADDRESS_MASK, EXPECTED_SIZE, True)
        for k in range(1, self.backups + 1):
            self.endpoint.prefetch(self._backup(slot, k), 8, True)
            self.endpoint.prefetch(self._replica(old & ADDRESS_MASK, k), ENTRY_SIZE, True)

    def _candidate(self) -> bool:
        """Whether a slot that was read has the key's fingerprint."""
        fingerprint = self.hash & 0xFF
        for index in range(32):
            word = self.slots[index]
            if word >> 56 == fingerprint and index & 7 and is_valid(word):
                return True
        return False

    def find_memory(self, update: bool, *wanted: Any) -> Any:
        try:
            HashStore.find_memory(self, update, *wanted)
        except NodeFailed as error:
            if not self._outlived(error.node):
                raise

    def _delete_once(self, key: bytes) -> int:
        self.doing = IDLE
        try:
            return self._try_delete(key)
        except NodeFailed as error:
            outcome = self._recall(error.node)
            if outcome == FAILED:
                raise
            return outcome

    def _try_delete(self, key: bytes) -> int:
        self._choose(key)
        slot = self._guess(key)
        if not slot:
            slot = self._find(key)
            if slot:
                self._learn(slot, self.word)
        return self._remove(slot, self.word) if slot else MISSING
