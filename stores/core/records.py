"""Out-of-place objects, their stamps, and the words of slots that link none.

An object is one key-value pair, written once, and never changed while it is linked (`Objects`).

Layout, in bytes from the object's address
    0     sizes      bits 0-15 length of the key, bits 16-63 length of the value
    8     checksum   `checksum` of the value, seeded with XXH64 of the key and the sizes
    16    key        padded with zeros to a multiple of 8
    then  value

Valid when it is linked: linking comes after the last word is written (release), and memory is not
used again while a pinned client may read it (epoch.py). The checksum is for `check()`, which finds
damaged memory by it, also where memory is not hardware-coherent; gets do not compute it. In `pdpm`,
which writes pairs in place, readers find a torn one by it.

Words of vacant slots (`vacant_word`), none of which ever comes again (trap F3). A slot whose pair
is deleted, or the pointer of an object that is given up, gets a word with a unique id, a number
that no client in the pool has used (shm/clients/unique_ids.py). So a CAS that expects one succeeds
once, however late it is, and a client that finds the same word again knows that the slot was vacant
meanwhile.

    bits 56-63  bits 47-54 of the number
    bits 48-55  VACANT_CLASS, which no reference to an object has
    bits 1-47   bits 0-46 of the number
    bit 0       0

The number is 2^55 - 1 less the unique id. So bits 4-47 begin as an address outside of all nodes:
code that took one of these words for a reference would get AddressError, and write to no memory.

A unique id is below 2^54: ten million a second last for 57 years, and then `take` raises
PoolCorrupt. So the word does not overflow, and bits 56-63 are not 0: it is neither SPLIT nor UNSET
(race/layout.py).

Stamps (`Stamps`), by which a get proves without a pin what it has read (race/glance.py). A stamp is
a unique id (shm/clients/unique_ids.py), scrambled; some kinds shift it, to have a mark in its
lowest bits (fusee/log.py). No stamp comes again in the pool. Memory that has become something else
holds a stamp that was there only by a chance of one in 2^62, since a scrambled number looks like
none that programs store. When no id is left, new objects have no stamp, but a word below LEAST, and
a get needs a pin to read them.

It is written with its object, before the object is linked, and does not change while it is linked.
Objects of some kinds begin with it (`StampedObjects`): 8 bytes, then the object as above.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from limpet.shm.clients.unique_ids import Tickets
from limpet.shm.endpoint.fabric import checksum, hash64, post_summed, write_summed
from limpet.shm.endpoint.words import ADDRESS_MASK, LARGE_CLASS
from limpet.shm.errors import KeyTooLarge, PoolCorrupt, ValueTooLarge
from limpet.stores.core.names import shown
from limpet.stores.core.object_layout import HEADER, IMAGE_SIZE, KEY_MAX
from limpet.stores.core.status import VACANT_CLASS

NUMBER_MAX: Final = 0x7F_FFFF_FFFF_FFFF
LOW_BITS: Final = 47
LOW_MASK: Final = 0x7FFF_FFFF_FFFF


def is_vacant(pointer: int) -> bool:
    """Whether an object with this pointer has no data."""
    return pointer == 0 or pointer >> 48 & 0xFF == VACANT_CLASS


def vacant_word(ticket: int) -> int:
    """The word with this unique id."""
    number = NUMBER_MAX - ticket
    return number >> LOW_BITS << 56 | VACANT_CLASS << 48 | (number & LOW_MASK) << 1


MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
SCRAMBLE: Final = 0x9E37_79B9_7F4A_7C15
"""An odd number: the product, modulo 2^64 or 2^62, is another one for each unique id."""
STAMP_SIZE: Final = 8
LEAST: Final = 4
"""A get takes a smaller word for none."""


class Stamps:
    """The stamps that one client gives to its objects."""

    def __init__(self, client: Any) -> None:
        self.tickets = Tickets(client)

    def forget(self) -> None:
        """Take new unique ids next time."""
        self.tickets.forget()

    def take(self) -> int:
        """A stamp that no object has had; 0: no unique id is left, and the object has no stamp."""
        try:
            return (self.tickets.take() + 1) * SCRAMBLE & MASK
        except PoolCorrupt:
            return 0


class Objects:
    """Writes objects, and reads them through one buffer, the image of the last object read."""

    def __init__(self, heap: Any, replicas: int = 1, in_place: bool = False) -> None:
        """`replicas`: of the objects that it writes; it bounds their size. `in_place`: every object
        that it loads is linked, and the client has been pinned since before (`Image`)."""
        self.heap = heap
        self.endpoint = heap.endpoint
        self.in_place = in_place
        self.image = heap.endpoint.image(IMAGE_SIZE, in_place)
        self.sizes = 0
        """The word `sizes` of the object in the image."""
        self.header = array("Q", [0, 0])
        self.value_max = heap.value_max(replicas)
        self.prefix = 0
        """Bytes of an object before its sizes: some stores have a log entry there, or a stamp."""
        self.stamps: Stamps | None = None
        """The source of the stamps in the first word of objects; None: they have none."""
        self.whole = False
        """Whether an object can only be written whole, with its value."""
        self.posts = False
        """Whether writes are posted: by stores that are written in phases (verbs.pyx)."""
        self.address = 0
        self.complete = False

    def reader(self) -> Objects:
        """Another reader of the same objects, with a buffer of its own."""
        made = Objects(self.heap, 1, self.in_place)
        made.prefix = self.prefix
        return made

    def forget(self) -> None:
        """Forget what was taken ahead for objects that are not written yet."""
        if self.stamps is not None:
            self.stamps.forget()

    def size_of(self, key: bytes, value: bytes) -> int:
        """Bytes of the object for this pair. Raises KeyTooLarge, ValueTooLarge."""
        if len(key) > KEY_MAX:
            raise KeyTooLarge(
                f"the key {shown(key)} has {len(key)} bytes; a key has at most {KEY_MAX}"
            )
        size = self.prefix + HEADER + (len(key) + 7 & ~7) + len(value)
        if size > self.value_max:
            raise ValueTooLarge(
                f"key and value take {size} bytes, with the key {shown(key)}; an object has room "
                f"for {self.value_max} here"
            )
        return size

    def size_for(self, key: bytes, size: int) -> int:
        """As `size_of`, for a value of `size` bytes that is not there yet."""
        whole = self.size_of(key, b"") + size
        if whole > self.value_max:
            raise ValueTooLarge(
                f"key and value take {whole} bytes, with the key {shown(key)}; an object has room "
                f"for {self.value_max} here"
            )
        return whole

    def write(self, reference: int, key: bytes, value: bytes) -> None:
        """Write the pair to the object; one write."""
        self.write_hashed(reference, key, value, hash64(key))

    def write_hashed(self, reference: int, key: bytes, value: bytes, hashed: int) -> None:
        """`write`, with the hash of the key."""
        sizes = len(key) | len(value) << 16
        self.header[0] = sizes
        seed = (hashed + sizes) & MASK
        if self.posts:
            post_summed(self.endpoint, reference & ADDRESS_MASK, self.header, 2, key, value, seed)
        else:
            write_summed(self.endpoint, reference & ADDRESS_MASK, self.header, 2, key, value, seed)

    def write_head(self, reference: int, key: bytes, size: int, digest: int) -> None:
        """Write all of a pair but its value, which has `size` bytes and this checksum, by the seed
        of `seed`."""
        self.header[0] = len(key) | size << 16
        self.header[1] = digest
        self.endpoint.write_gather(reference & ADDRESS_MASK, self.header, 2, key, b"")

    def seed(self, key: bytes, size: int) -> int:
        """The seed of the checksum of a value of `size` bytes."""
        return (hash64(key) + (len(key) | size << 16)) & MASK

    def load(self, reference: int) -> None:
        """Read the object, or the front of a large one, into the image; one read."""
        self._load_from(reference, reference & ADDRESS_MASK)

    def _load_from(self, reference: int, address: int) -> None:
        """As `load`, from the replica at this address."""
        self.address = address + self.prefix
        self.image.read(self.address, self._extent(reference))
        self.sizes = self.image.head

    def load_keyed(self, reference: int, key: bytes) -> bool:
        """`load`, then `key_is`."""
        if len(key) > IMAGE_SIZE - HEADER:
            self.load(reference)
            return self.key_is(key)
        self.address = (reference & ADDRESS_MASK) + self.prefix
        found = self.image.read_keyed(self.address, self._extent(reference), HEADER, key)
        self.sizes = self.image.head
        return found

    def replica_to_read(self, reference: int) -> int:
        """The address of an object, or of the replica of it that is read first."""
        return reference & ADDRESS_MASK

    def value_at(self, address: int, reference: int, key: bytes) -> bytes | None:
        """A phase of its own: read the object, or its replica at this address, into the image; the
        value, if it has this key, else None. Only the front of a large object is read, and the
        result is None."""
        self.address = address + self.prefix
        count = self._extent(reference)
        if self.complete and len(key) <= IMAGE_SIZE - HEADER:
            found: bytes | None = self.image.pair(self.address, count, HEADER, key)
            return found
        self.complete = False
        self.image.post(self.address, count)
        self.endpoint.wait()
        self.sizes = self.image.head
        return None

    def post(self, reference: int) -> None:
        """Post `load`: after `wait`, `arrived`."""
        self._post_from(reference, reference & ADDRESS_MASK)

    def _post_from(self, reference: int, address: int) -> None:
        """As `post`, from the replica at this address."""
        self.address = address + self.prefix
        self.image.post(self.address, self._extent(reference))

    def arrived(self) -> None:
        """The phase of `post` has ended: the object is in the image."""
        self.sizes = self.image.head

    def post_keyed(self, reference: int, key: bytes) -> None:
        """Post `load_keyed`: after `wait`, `matches` is its result."""
        if len(key) > IMAGE_SIZE - HEADER:
            self.post(reference)
        else:
            self.address = (reference & ADDRESS_MASK) + self.prefix
            self.image.post_keyed(self.address, self._extent(reference), HEADER, key)

    def matches(self, key: bytes) -> bool:
        """The phase of `post_keyed` has ended: the object is in the image. Whether it has this
        key."""
        self.sizes = self.image.head
        if len(key) > IMAGE_SIZE - HEADER:
            return self.key_is(key)
        return self.image.matched(HEADER, key)

    def _extent(self, reference: int) -> int:
        """How many words of an object to read into the image."""
        size = self.heap.sizes[reference >> 48 & 0xFF]  # 0: of LARGE_CLASS
        self.complete = 0 < size <= IMAGE_SIZE
        return size - self.prefix >> 3 if self.complete else IMAGE_SIZE >> 3

    def key_is(self, key: bytes) -> bool:
        """Whether the object in the image has this key."""
        if self.sizes & 0xFFFF != len(key):
            return False
        if HEADER + len(key) <= IMAGE_SIZE:
            return self.image.equal(HEADER, key)
        return self.endpoint.read(self.address + HEADER, len(key)) == key

    def key(self) -> bytes:
        """The key of the object in the image."""
        length = self.sizes & 0xFFFF
        if HEADER + length <= IMAGE_SIZE:
            return self.image.cut(HEADER, length)
        return self.endpoint.read(self.address + HEADER, length)

    def value(self) -> bytes:
        """The value of the object in the image; one more read for a large object."""
        start = HEADER + ((self.sizes & 0xFFFF) + 7 & ~7)
        length = self.sizes >> 16
        if self.complete or start + length <= IMAGE_SIZE:
            return self.image.cut(start, length)
        return self.endpoint.fetch(self.address + start, length)

    def length(self) -> int:
        """Bytes of the value of the object in the image."""
        return self.sizes >> 16

    def part(self, start: Any, stop: Any) -> bytes:
        """`value()[start:stop]`; of a large object, reads no more than that."""
        length = self.sizes >> 16
        first, last, _ = slice(start, stop).indices(length)
        if last <= first:
            return b""
        at = HEADER + ((self.sizes & 0xFFFF) + 7 & ~7)
        if self.complete or at + length <= IMAGE_SIZE:
            return self.image.cut(at + first, last - first)
        skip = first & 7
        data = self.endpoint.fetch(self.address + at + first - skip, last - first + skip)
        return data[skip:]

    def value_place(self) -> tuple[int, int]:
        """Where the value of the object in the image is in memory: address and bytes."""
        start = HEADER + ((self.sizes & 0xFFFF) + 7 & ~7)
        return self.address + start, self.sizes >> 16

    def fits(self, reference: int) -> bool:
        """Whether the sizes in the image are possible for an object of that class."""
        size = self.bytes_used()
        size_class = reference >> 48 & 0xFF
        return size <= (
            self.value_max if size_class == LARGE_CLASS else self.heap.sizes[size_class]
        )

    def bytes_used(self) -> int:
        """Bytes of the object in the image that are in use."""
        return self.prefix + HEADER + ((self.sizes & 0xFFFF) + 7 & ~7) + (self.sizes >> 16)

    def intact(self) -> bool:
        """Whether the checksum of the object in the image holds."""
        seed = (hash64(self.key()) + self.sizes) & MASK
        return self.image.word(1) == checksum(self.value(), seed)


class StampedObjects(Objects):
    """Objects with a stamp."""

    def __init__(self, heap: Any, client: Any) -> None:
        super().__init__(heap, in_place=True)
        self.prefix = STAMP_SIZE
        self.header = array("Q", [0, 0, 0])
        self.stamps = Stamps(client)

    def write_hashed(self, reference: int, key: bytes, value: bytes, hashed: int) -> None:
        """Write stamp and pair to the object; one write."""
        sizes = len(key) | len(value) << 16
        self.header[0] = self.stamps.take()  # type: ignore[union-attr]
        self.header[1] = sizes
        seed = (hashed + sizes) & MASK
        if self.posts:
            post_summed(self.endpoint, reference & ADDRESS_MASK, self.header, 3, key, value, seed)
        else:
            write_summed(self.endpoint, reference & ADDRESS_MASK, self.header, 3, key, value, seed)

    def write_head(self, reference: int, key: bytes, size: int, digest: int) -> None:
        self.header[0] = self.stamps.take()  # type: ignore[union-attr]
        self.header[1] = len(key) | size << 16
        self.header[2] = digest
        self.endpoint.write_gather(reference & ADDRESS_MASK, self.header, 3, key, b"")
