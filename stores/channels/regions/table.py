"""The table of regions: a `race` store from full names to objects that are changed in place.

The catalogue (catalogue.py) uses the hash table by this interface alone: `locate` an object,
`insert` one, `take_out` one, list the names and the references of a directory. The value of a pair
is the region itself, which channels change by verbs, so its object's checksum covers the name and
the sizes only. Its address stays: a pair is never updated, only deleted.

A value, in bytes from its start
    0     mark         a number that is never used again; 0: the region is being removed
    8     bits 0-31    size of the description
          bits 32-63   0, or 1 + the node on which the memory lies, as the part `..memory`
    16    description  JSON: the kind of channel, and its parameters
    then  memory       from the next multiple of 64 of the address on

A region may have links (links.py): words that are 0 or a reference to an object, which audits
follow and which are freed with the region. The description has their places.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from limpet.shm.endpoint.fabric import hash64
from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.shm.errors import AddressError, NodeFailed
from limpet.stores.channels.layout import DESCRIPTION, DESCRIPTION_SIZE, LINE, MASK, SIZE_MASK
from limpet.stores.channels.regions.links import unlink
from limpet.stores.object_layout import HEADER
from limpet.stores.race.index import Place
from limpet.stores.race.layout import OBJECT_MASK
from limpet.stores.race.store import Race
from limpet.stores.records import Objects
from limpet.stores.status import DONE, FULL


class RegionObjects(Objects):
    """Pairs whose values are changed in place."""

    def __init__(self, heap: Any) -> None:
        super().__init__(heap, in_place=True)

    def write_hashed(self, reference: int, key: bytes, value: bytes, hashed: int) -> None:
        sizes = len(key) | len(value) << 16
        self.header[0] = sizes
        self.header[1] = (hashed + sizes) & MASK
        self.endpoint.write_gather(reference & ADDRESS_MASK, self.header, 2, key, value)

    def intact(self) -> bool:
        return self.image.word(1) == (hash64(self.key()) + self.sizes) & MASK


class RegionTable:
    """The regions of a pool's channels, by their full names."""

    def __init__(self, pool: Any, race: Race) -> None:
        """`race`: a new handle of the store, whose objects are `RegionObjects`."""
        self.client = pool.client
        self.endpoint = pool.endpoint
        self.race = race
        self.race.allocator = pool.allocator.coherent()
        self.place = Place()

    def node_of(self, key: bytes) -> int:
        """The node to whose directory a key belongs; its region lies there."""
        return int(self.race.index.table_of(key))

    def insert(self, key: bytes, value: bytes) -> None:
        """Add a region. Raises KeyExists, StoreFull, KeyTooLarge, NodeFailed."""
        self.race.insert(key, value)

    def locate(self, key: bytes) -> int:
        """Address of the value of a key; 0: there is none. In an operation."""
        return self._value(key) if self._find(key) else 0

    def reference(self) -> int:
        """Reference to the object of the key that was located last."""
        return self.place.word & OBJECT_MASK

    def _find(self, key: bytes) -> int:
        """Address of the slot with the key, or 0; the table's image then has the pair."""
        self.race.index.choose(self.place, key)
        return self.race.index.find(self.place, key)

    def _value(self, key: bytes) -> int:
        """Address of the value of the key that was found last."""
        return self.race.objects.address + HEADER + (len(key) + 7 & ~7)

    def take_out(self, key: bytes, unmarked: bool) -> bool:
        """Remove a region with its links; False: there is none.

        `unmarked`: only if it has no mark any more. Else its mark is cleared first.
        """
        while True:
            self.client.enter()
            try:
                self.race.require_there()
                slot = self._find(key)
                value = self._value(key) if slot else 0
                if not slot or (unmarked and self.endpoint.load(value)):
                    return False
                if not unmarked:
                    self.endpoint.store(value, 0)
                for link in self._links(self.race.objects.address):
                    unlink(self.client, link)
                outcome = self.race.slots.remove(self.place, slot)
            finally:
                self.client.leave()
            if outcome == DONE:
                return True
            if outcome == FULL:
                self.race.grow(key)

    # ---- all regions of a directory -----------------------------------------------------------

    def keys(self, node: int) -> Iterator[bytes]:
        """The full names of the regions in the directory of a node."""
        return self.race.checker.keys_of(self.race.within, node)

    def references(self, node: int) -> Any:
        """References to all objects that the directory of a node leads to."""
        pairs, tables = self.race.checker.linked(node)
        linked = [self._linked_by(pair & ADDRESS_MASK) for pair in pairs.tolist()]
        return np.concatenate([pairs, tables, *linked])

    def _linked_by(self, at: int) -> Any:
        """References to the objects that a region has links to."""
        try:
            words = [self.endpoint.load(link) for link in self._links(at)]
        except (NodeFailed, AddressError):
            words = []  # lost with it; or it is no region any more
        return np.array([word for word in words if word], dtype=np.uint64)

    def _links(self, at: int) -> list[int]:
        """Addresses of the links of a region, by its object's address.

        An audit calls it without a pin, and does not rely on the result: the region may be gone.
        """
        sizes = self.endpoint.load(at)
        value = at + HEADER + ((sizes & 0xFFFF) + 7 & ~7)
        length = self.endpoint.load(value + DESCRIPTION_SIZE) & SIZE_MASK
        if DESCRIPTION + length + LINE > sizes >> 16:
            return []
        described = self.endpoint.read(value + DESCRIPTION, length)
        try:
            first, stride, count = map(int, json.loads(described).get("links", (0, 0, 0)))
        except (ValueError, TypeError, AttributeError):
            return []
        if min(first, count) < 0 or stride < 8 or first + stride * count > sizes >> 16:
            return []
        start = memory_of(value, length) + first
        return [start + stride * number for number in range(count)]


def memory_of(value: int, length: int) -> int:
    """Address of the memory of a region whose value, with so long a description, is there."""
    return value + DESCRIPTION + length + LINE - 1 & ~(LINE - 1)
