"""A pair that is overwritten in place: as in records.py, with room for any value of the store.

    0     sizes   bits 0-15 length of the key, bits 16-62 of the value; bit 63: it was deleted
    8     0       (no checksum: readers do not check whether a value is whole)
    16    key, then value

The object belongs to its key as long as the store exists, also while the key is deleted. So a
handle can remember its place, and a late write hits no other key.
"""

from __future__ import annotations

from typing import Any

from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.shm.errors import ValueTooLarge
from limpet.stores.baselines.raw.layout import DELETED, SIZES_MASK
from limpet.stores.names import shown
from limpet.stores.records import Objects


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
