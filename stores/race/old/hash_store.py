"""The operations of a hash store on the index of index.py.

Search, update and delete are RACE's: read both combined buckets, read the objects whose fingerprint
matches, change the slot. Pairs are written out of place (records.py), never changed while linked.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from limpet.shm.endpoint.fabric import lowest_bit
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.words import LINK_MASK
from limpet.shm.errors import StoreFull
from limpet.stores.base import as_bytes
from limpet.stores.race.old.index import Index
from limpet.stores.status import (
    AGAIN,
    BATCH,
    DONE,
    EXISTS,
    FULL,
    INSERT,
    MISSING,
    NO_MEMORY,
    UPDATE,
)

PREFETCH_SIZE: Final = 192


class HashStore(Index):
    """The operations of a hash store, and all that only reads. A subclass gives

    _replace(slot, word, desired)       change a valid slot from `word` to `desired`
    _insert(key, desired, attempt)      put `desired` into one of the key's vacant slots, if no
                                        other has the key
    _remove(slot, word)                 make a valid slot vacant
    each of which returns DONE, AGAIN (start the operation again), or FULL. `word` is in hand.
    """

    def __init__(
        self, pool: Any, kind: str, name: str, parameters: Any, objects: Any, tables: list[int]
    ) -> None:
        super().__init__(pool, kind, name, parameters, objects, tables)
        self.places = array("Q", bytes(32 * BATCH))
        """Of the keys of a batch: hash, subtable, and the two combined buckets."""
        self.replicas = 1

    # ---- operations -------------------------------------------------------------------------

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of `key`, or `default`. 2 round trips; 1 when no fingerprint matches."""
        if type(key) is not bytes:
            key = as_bytes("key", key)
        self.operations += 1
        self.client.enter()
        try:
            self.require_there()
            self._choose(key)
            if self._find(key):
                return self.objects.value()
            return default
        finally:
            self.client.leave()

    def get_many(self, keys: Any) -> list[bytes | None]:
        """The values of `keys`, in their order; None for each that is missing."""
        wanted = [key if type(key) is bytes else as_bytes("key", key) for key in keys]
        found: list[bytes | None] = []
        self.operations += len(wanted)
        for start in range(0, len(wanted), BATCH):
            # one pin a batch: a pin held for long looks like a process that stands still
            self.client.enter()
            try:
                self.require_there()
                self._get_batch(wanted[start : start + BATCH], found)
            finally:
                self.client.leave()
        return found

    def _get_batch(self, keys: list[bytes], found: list[bytes | None]) -> None:
        """Append the values of at most BATCH keys: the reads of a phase overlap."""
        for row, key in enumerate(keys):
            self._choose_to_read(key)
            self._keep_place(row)
        self._found_places()
        for row in range(len(keys)):
            self._turn_to_row(row)
            self._read_row(row)
            self._expect_objects(row)
        self.endpoint.wait()
        for row, key in enumerate(keys):
            self._turn_to_row(row)
            found.append(self.objects.value() if self._match(key, row, False) else None)
        self.endpoint.wait()

    def _keep_place(self, row: int) -> None:
        """Keep the place of a key of a batch, for `_turn_to_row`; its buckets are read next."""
        self.places[4 * row] = self.hash
        self.places[4 * row + 1] = self.base
        for side in range(2):
            self.places[4 * row + 2 + side] = self.at[side]
            self.endpoint.prefetch(self.at[side], 128)

    def _turn_to_row(self, row: int) -> None:
        self.hash = self.places[4 * row]
        self.base = self.places[4 * row + 1]
        self.at[0] = self.places[4 * row + 2]
        self.at[1] = self.places[4 * row + 3]

    def _expect_objects(self, row: int) -> None:
        """What is in a row of `slots` says which objects are read next."""
        left = self._candidates(row)
        while left:
            word = self.slots[32 * row + lowest_bit(left)]
            left &= left - 1
            size = self.heap.sizes[word >> 48 & 0x7F]
            if not 0 < size < PREFETCH_SIZE:
                size = PREFETCH_SIZE
            self.endpoint.prefetch(word & LINK_MASK, size)

    def delete(self, key: Any) -> None:
        """Delete; KeyError if the key is not there. 3 round trips."""
        data = as_bytes("key", key)
        self.operations += 1
        attempt = 0
        while True:
            self.client.enter()
            try:
                self.require_there()
                outcome = self._delete_once(data)
            finally:
                self.client.leave()
            if outcome == MISSING:
                raise KeyError(key)
            if outcome == DONE:
                return
            if outcome == FULL:
                self._make_room(data, False)
            attempt += 1
            self.retries += 1
            self._give_way(attempt)

    # ---- changing ---------------------------------------------------------------------------

    def _write(self, key: Any, value: Any, mode: int) -> int:
        if type(key) is not bytes:
            key = as_bytes("key", key)
        if type(value) is not bytes:
            value = as_bytes("value", value)
        size = exact = self.objects.size_of(key, value)
        self.operations += 1
        attempt = 0
        swept = widened = False
        while True:
            self.client.enter()
            try:
                self.require_there()
                outcome = self._write_once(key, value, size, mode, attempt)
            finally:
                self.client.leave()
            if outcome == NO_MEMORY:
                if size == exact and not widened and self.allocator.coarse:
                    # First an object of a size that many others share, if there is one.
                    widened = True
                    size = self.allocator.coarsened(exact)
                elif not self._obtain_memory(key, mode, size, size == exact):
                    size = exact
            elif outcome == AGAIN:
                attempt += 1
                self.retries += 1
                self.endpoint.pause(attempt)
                self._give_way(attempt)
            elif outcome == FULL:
                self._make_room(key, swept)
                swept = True
            else:
                return outcome

    def _obtain_memory(self, key: bytes, mode: int, size: int, last: bool) -> bool:
        """Have memory ready; False: there is none, of that size. Raises StoreFull if it is the
        `last` size to be tried."""
        try:
            self.have_memory(key, mode, key, size)
        except StoreFull:
            if last:
                raise
            return False
        return True

    def _give_way(self, attempt: int) -> None:
        """After AGAIN, wait for who is in the way, where somebody can be."""

    def _make_room(self, key: bytes, swept: bool) -> None:
        """None of the key's slots can be filled; `swept`: nor could they before we were called.

        Raises StoreFull if there is nothing to be done about it.
        """
        if swept:
            raise StoreFull(
                f"{self.name}: no free slot for the key {key!r} among its 28; the store was made "
                f"with capacity {self.parameters.capacity}"
            )
        # a dead client's tentative slots are room
        self.pool.recover()

    def _write_once(self, key: bytes, value: bytes, size: int, mode: int, attempt: int) -> int:
        self._choose(key)
        reference = self._make(key, value, size)
        if not reference:
            return NO_MEMORY
        desired = (self.hash & 0xFF) << 56 | reference
        slot = self._find(key)
        if slot:
            if mode == INSERT:
                return EXISTS
            return self._replace(slot, self.word, desired)
        if mode == UPDATE:
            return MISSING
        return self._insert(key, desired, attempt)

    def _make(self, key: bytes, value: bytes, size: int) -> int:
        """A new object with this pair, at place 0 of the hand; 0: there is no memory ready."""
        node = self.tables[self.table] >> NODE_SHIFT & 0xFF
        reference = self.allocator.allocate(node, size, self.replicas)
        if reference:
            self.objects.write(reference, key, value)
        return reference

    def find_memory(self, update: bool, *wanted: Any) -> Any:
        """Have memory ready for an object: `wanted` is its key, by which its node is found, and its
        size in bytes.

        Outside of operations, so that the subtable at hand may be another thread's.
        """
        key, size = wanted
        node = self.tables[self._table_of(key)] >> NODE_SHIFT & 0xFF
        return self.allocator.replenish(node, size, self.replicas, 0, 0, update)

    def _delete_once(self, key: bytes) -> int:
        self._choose(key)
        slot = self._find(key)
        return self._remove(slot, self.word) if slot else MISSING

    def _replace(self, slot: int, word: int, desired: int) -> int:
        raise NotImplementedError

    def _insert(self, key: bytes, desired: int, attempt: int) -> int:
        raise NotImplementedError

    def _remove(self, slot: int, word: int) -> int:
        raise NotImplementedError
