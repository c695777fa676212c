"""The `raw` store: the lower bound of SWARM section 7, RAW.

The index is that of `race`. A pair is overwritten in place, and a handle remembers its place, so a
get or an update is one round trip; no store needs less. There is no concurrency control: a read
during a write may return half of each value, two concurrent writes may leave parts of both, and so
may a kill. The store serves only as a measure for others.

Round trips where the place is remembered: 1 for a get, an update and a put, 2 for a delete;
otherwise one or two more, for the index. A key's first insert is that of `race`, 3, and remembers
the place, too; its memory stays its own after a delete.

A pair that is overwritten in place is as in records.py, with room for any value of the store:

    0     sizes   bits 0-15 length of the key, bits 16-62 of the value; bit 63: it was deleted
    8     0       (no checksum: readers do not check whether a value is whole)
    16    key, then value

A get reads as much of it as the pair took when the handle saw it last; a longer one costs one more
round trip.

The object belongs to its key as long as the store exists, also while the key is deleted. So a
handle can remember its place, and a late write hits no other key.
"""

from __future__ import annotations

from typing import Any

from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.shm.errors import ValueTooLarge
from limpet.stores.baselines.raw.parameters import DELETED, PREFETCH_SIZE, SIZES_MASK, RawParameters
from limpet.stores.core.names import shown
from limpet.stores.core.object_layout import HEADER, IMAGE_SIZE
from limpet.stores.core.records import Objects
from limpet.stores.core.status import DELETE, DONE, EXISTS, INSERT, MISSING, NO_MEMORY, UPDATE
from limpet.stores.race.check import Check
from limpet.stores.race.hash_store import HashStore
from limpet.stores.race.index import Holds, Index, Place
from limpet.stores.race.layout import OBJECT_MASK
from limpet.stores.race.slots import Slots
from limpet.stores.race.splitter import Splitter
from limpet.stores.race.store import attach, make_directories, unmake_directories
from limpet.stores.swarm.cache import LocationCache


class RawObjects(Objects):
    """Objects with `room` bytes for a value."""

    def __init__(self, heap: Any, room: int) -> None:
        super().__init__(heap)
        self.room = room
        self.empty = bytes(room)

    def size_of(self, key: bytes, value: bytes) -> int:
        """Bytes of the object for this key. Raises KeyTooLarge, ValueTooLarge."""
        if len(value) > self.room:
            raise ValueTooLarge(
                f"the value of {shown(key)} has {len(value)} bytes; the store was made with "
                f"room={self.room}"
            )
        return Objects.size_of(self, key, self.empty)

    def write_hashed(self, reference: int, key: bytes, value: bytes, hashed: int) -> None:
        """Overwrite the object with the pair; one write."""
        self.header[0] = len(key) | len(value) << 16
        self.header[1] = 0
        self.endpoint.write_gather(reference & ADDRESS_MASK, self.header, 2, key, value)

    def load_known(self, reference: int, size: int) -> None:
        """Read an object, of which the pair took `size` bytes when it was seen last; one phase, or
        two if it takes more by now."""
        self.address = reference & ADDRESS_MASK
        self.complete = True
        self.image.post(self.address, min(size + 7, IMAGE_SIZE) >> 3)
        self.endpoint.wait()
        self.sizes = self.image.head
        if size < min(self.taken(), IMAGE_SIZE):
            self.post(reference)
            self.endpoint.wait()
            self.arrived()
        self.complete = self.taken() <= IMAGE_SIZE

    def taken(self) -> int:
        """Bytes that the pair in the image takes."""
        sizes = self.sizes & SIZES_MASK
        return HEADER + ((sizes & 0xFFFF) + 7 & ~7) + min(sizes >> 16, self.room)

    def deleted(self) -> bool:
        """Whether the pair in the image was deleted."""
        return self.sizes & DELETED != 0

    def value(self) -> bytes:
        """The value of the object in the image, as far as its sizes are possible."""
        self.sizes &= SIZES_MASK
        if self.sizes >> 16 > self.room:
            self.sizes = self.sizes & 0xFFFF | self.room << 16
        return Objects.value(self)

    def fits(self, reference: int) -> bool:
        """Whether the sizes in the image are possible for an object of that class."""
        return self.sizes & SIZES_MASK <= self.room << 16 | 0xFFFF

    def intact(self) -> bool:
        """Always True: a pair has no checksum."""
        return True


class Raw(HashStore):
    """A store without replicas and without concurrency control. `RawParameters`."""

    Parameters = RawParameters

    def __init__(self, pool: Any, kind: str, name: str, parameters: RawParameters) -> None:
        super().__init__(pool, kind, name, parameters)
        self.prefetches = True
        self.batches_gets = False
        self.pairs = RawObjects(pool.heap, parameters.room)
        self.cache = LocationCache(parameters.cache_size, 0)
        tables = attach(pool, name, parameters)
        index = Index(pool, name, parameters, self.pairs, tables, Holds(name))
        slots = Slots(index, pool.client)
        self.hold_parts(index, slots, Splitter(pool, index, parameters), Check(pool, index))

    make = staticmethod(make_directories)
    unmake = staticmethod(unmake_directories)

    def replaced(self, node: int) -> None:
        self.index.replaced(node)
        self.cache.forget()

    # ---- places ---------------------------------------------------------------------------------

    def _known(self, key: bytes) -> int:
        """Reference to the key's pair, if we know where it is; else 0."""
        at = self.cache.locate(key)
        if at < 0:
            return 0
        reference = self.cache.words[at + 1]
        self.endpoint.prefetch(reference & ADDRESS_MASK, PREFETCH_SIZE)
        return reference if self.cache.holds(at, key) else 0

    def _remember(self, key: bytes, reference: int, size: int) -> None:
        """Remember the place of a key, whose pair takes `size` bytes."""
        at = self.cache.locate(key)
        if at < 0 or self.cache.words[at + 1] != reference:
            at = self.cache.add(key)
        if at >= 0:
            self.cache.words[at + 1] = reference
            self.cache.words[at + 2] = size

    def _seek(self, place: Place, key: bytes) -> int:
        """Reference to the key's pair, from the index; 0 when it has none. The image has it."""
        self.index.post_choose(place, key)
        if not self.index.find(place, key):
            return 0
        reference = place.word & OBJECT_MASK
        self._remember(key, reference, self.pairs.taken())
        return reference

    def _prefetch_keys(self, keys: list[bytes]) -> None:
        for key in keys:
            self.cache.prefetch(key)
        for key in keys:
            at = self.cache.locate(key)
            if at >= 0:
                reference = self.cache.words[at + 1]
                self.endpoint.prefetch(reference & ADDRESS_MASK, PREFETCH_SIZE)

    # ---- operations -----------------------------------------------------------------------------

    def search_once(self, place: Place, key: bytes) -> Any:
        """1 round trip if the place is remembered, else 2."""
        reference = self._known(key)
        if reference:
            at = self.cache.locate(key)
            size = self.cache.words[at + 2]
            self.pairs.load_known(reference, size)
            if self.pairs.taken() != size:
                self.cache.words[at + 2] = self.pairs.taken()
        elif not self._seek(place, key):
            return None
        return None if self.pairs.deleted() else self.pairs.value()

    def _change_once(
        self, key: bytes, value: bytes, size: int, mode: int, attempt: int, at: int, way: Any
    ) -> int:
        place = self.place
        if mode == DELETE:
            return self.delete_once(place, key)
        if way is not None:
            size = self.resume(way)
        reference = self._known(key) or self._seek(place, key)
        if reference:
            return self._write_over(reference, key, value, mode)
        if mode == UPDATE:
            return MISSING
        made = self.make_object(place, key, value, size, None)
        if not made:
            return NO_MEMORY
        outcome = self.slots.insert(place, key, (place.hash & 0xFF) << 56 | made, attempt)
        if outcome == DONE:
            self._remember(key, made, HEADER + (len(key) + 7 & ~7) + len(value))
        return outcome

    def _write_over(self, reference: int, key: bytes, value: bytes, mode: int) -> int:
        at = reference & ADDRESS_MASK
        deleted = 0
        ticket = self.endpoint.post_load(at)
        if mode == INSERT:
            self.endpoint.wait()
            deleted = self.endpoint.result(ticket) & DELETED
            if not deleted:
                return EXISTS
        # ORDER: after the look, on the same node.
        self.pairs.write(reference, key, value)
        self._remember(key, reference, HEADER + (len(key) + 7 & ~7) + len(value))
        self.endpoint.wait()
        if mode == UPDATE:
            deleted = self.endpoint.result(ticket) & DELETED
            if deleted:
                self.endpoint.store(at, len(key) | DELETED)
                self.endpoint.wait()
        return MISSING if deleted and mode == UPDATE else DONE

    def delete_once(self, place: Place, key: bytes) -> int:
        """2 round trips if the place is remembered."""
        reference = self._known(key) or self._seek(place, key)
        at = reference & ADDRESS_MASK
        if not reference:
            return MISSING
        ticket = self.endpoint.post_load(at)
        self.endpoint.wait()
        if self.endpoint.result(ticket) & DELETED:
            return MISSING
        self.endpoint.store(at, len(key) | DELETED)
        self.endpoint.wait()
        return DONE

    # ---- the whole table ------------------------------------------------------------------------

    def __len__(self) -> int:
        """The number of keys; reads all of them."""
        return sum(1 for _ in self.keys())

    def keys(self) -> Any:
        """Every key, a group at a time; as weakly consistent as `iter` says."""
        for key in HashStore.keys(self):
            if self.get(key) is not None:
                yield key
