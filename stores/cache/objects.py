"""Objects of a cache: a head (layout.py), then the pair as records.py says.

`heading` is the next object's head; a store sets it within the operation that writes the object.
The words of a head that change are read and written by atomic verbs, at `at`.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from limpet.shm.endpoint.fabric import checksum
from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.stores.cache.layout import PREFIX, UNIT
from limpet.stores.object_layout import HEADER
from limpet.stores.records import Objects

MASK: Final = 0xFFFF_FFFF_FFFF_FFFF


class CacheObjects(Objects):
    """Writes objects with a head, and reads them."""

    def __init__(self, heap: Any) -> None:
        super().__init__(heap, 1, True)
        self.prefix = PREFIX
        self.whole = True
        self.heading = array("Q", bytes(64))
        """Life, deadline, times, birth, tags and flight; then sizes and checksum."""

    def write_hashed(self, reference: int, key: bytes, value: bytes, hashed: int) -> None:
        """Write head and pair; one write."""
        sizes = len(key) | len(value) << 16
        self.heading[6] = sizes
        self.heading[7] = checksum(value, (hashed + sizes) & MASK)
        self.endpoint.write_gather(reference & ADDRESS_MASK, self.heading, 8, key, value)

    def at(self) -> int:
        """Address of the head of the object in the image."""
        return self.address - PREFIX

    def checksum(self) -> int:
        """Of the pair in the image."""
        return self.image.word(1)

    def units_of(self, sizes: int) -> int:
        """Units of an object with these sizes."""
        return (PREFIX + HEADER + ((sizes & 0xFFFF) + 7 & ~7) + (sizes >> 16) + UNIT - 1) // UNIT

    def units(self) -> int:
        """Units of the object in the image."""
        return self.units_of(self.sizes)
