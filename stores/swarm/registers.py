"""The object that a slot of the index links to: a key, and the words of its register (register.py).

As every object of a replicated index it has a log entry in front (stores/fusee/log.py); its
checksum covers the key and the sizes, as the words change. It is written once, to all replicas,
before the slot is changed: with the first value of the key in a buffer, in place, and in every word
of the metadata array, VERIFIED. So a key is there, with its value, when the index says so.
"""

from __future__ import annotations

from typing import Any

from limpet.shm.endpoint.fabric import hash64
from limpet.shm.endpoint.words import ADDRESS_MASK, LARGE_CLASS
from limpet.shm.errors import KeyTooLarge, ValueTooLarge
from limpet.stores.fusee.log import LoggedObjects
from limpet.stores.names import shown
from limpet.stores.object_layout import HEADER as OBJECT_HEADER
from limpet.stores.object_layout import IMAGE_SIZE, KEY_MAX
from limpet.stores.swarm.layout import HEADER, IN_PLACE_LEAST, IN_PLACE_MAX
from limpet.stores.swarm.register import area_of


class Registers(LoggedObjects):
    """Objects with a register, whose words without a value in place take `rest` bytes.

    `in_place`: whether there is room for a value.
    """

    def __init__(self, heap: Any, replicas: int, rest: int, in_place: bool) -> None:
        super().__init__(heap, replicas)
        self.rest = rest
        self.in_place = in_place

    def size_of(self, key: bytes, value: bytes) -> int:
        """Bytes of the buffer for this value. Raises KeyTooLarge, ValueTooLarge."""
        if len(key) > KEY_MAX:
            raise KeyTooLarge(
                f"the key {shown(key)} has {len(key)} bytes; a key has at most {KEY_MAX}"
            )
        if area_of(len(key)) + self.rest > self.value_max:
            raise KeyTooLarge(
                f"the key {shown(key)} has {len(key)} bytes, which leaves no room for its register "
                f"in an object of {self.value_max} bytes"
            )
        if HEADER + len(value) > self.value_max:
            raise ValueTooLarge(
                f"the value and its header take {HEADER + len(value)} bytes, with the key "
                f"{shown(key)}; an object has room for {self.value_max} here"
            )
        return HEADER + len(value)

    def capacity(self, key: bytes, value: bytes) -> int:
        """Bytes in place for the values of a key whose first one this is; a multiple of 8.

        As much as there is in the register's object anyway.
        """
        if not self.in_place:
            return 0
        least = area_of(len(key)) + self.rest
        wanted = IN_PLACE_LEAST
        if IN_PLACE_LEAST < len(value) <= IN_PLACE_MAX:
            wanted = len(value) + 7 & ~7
        if least + wanted > self.value_max:
            return self.value_max - least & ~7
        size_class = self.heap.size_class(least + wanted)
        if size_class != LARGE_CLASS:
            wanted = self.heap.sizes[size_class] - least & ~7
        return min(wanted, IN_PLACE_MAX)

    def write_hashed(self, reference: int, key: bytes, value: bytes, hashed: int) -> None:
        """Write entry, key and the register's words, `value`, to every replica in service."""
        sizes = len(key) | len(value) << 16
        self._begin(sizes)
        self.header[3] = self._checksum(key, sizes)
        self.endpoint.write_gather(reference & ADDRESS_MASK, self.header, 4, key, value)
        self._write_backups(reference, key, value)

    def word_after_key(self, index: int) -> int:
        """Word 0, the ident, or 1, the capacity, of the register in the image."""
        at = OBJECT_HEADER + ((self.sizes & 0xFFFF) + 7 & ~7) + 8 * index
        if at < IMAGE_SIZE:
            return self.image.word(at >> 3)
        return self.endpoint.load(self.address + at)

    def _checksum(self, key: bytes, sizes: int) -> int:
        return hash64(key, sizes)

    def intact(self) -> bool:
        """Whether the checksum of the object in the image holds."""
        return self.image.word(1) == self._checksum(self.key(), self.sizes)
