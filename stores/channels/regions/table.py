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

Directories (`Directories`) are made anew on nodes that were replaced. The entries of the former
directory are lost; the catalogue says what it means that a key is not found (catalogue.py). The new
directory is made, empty, by the first client that needs it, and has a number: how often nodes of
the pool had been replaced by then. The number lies in entry 0, which has no other use, in place of
the lock. So whatever has a smaller number is older than this directory. A directory that was made
with the table has number 0. Before a region is given its number, the directories of all nodes in
service are made (`renew_all`), so none of them has a greater number; with a node that is not in
service then, the region counts as older.

A handle knows a directory by its address; that of a lost one is FORMER (shm/endpoint/states.py)
until the handle has found the new one.

A kill leaves behind: the same as a region that is being made (shm/catalogue/regions.py).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from limpet.shm.endpoint.fabric import hash64
from limpet.shm.endpoint.field_ends import LASTS, Field
from limpet.shm.endpoint.layout import DROPS, REMOTES
from limpet.shm.endpoint.states import FORMER, generation_of
from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.shm.errors import AddressError, NodeFailed, StoreFull
from limpet.stores.channels.layout import DESCRIPTION, DESCRIPTION_SIZE, LINE, MASK, SIZE_MASK
from limpet.stores.channels.regions.links import unlink
from limpet.stores.core.object_layout import HEADER
from limpet.stores.core.records import Objects
from limpet.stores.core.status import DONE, FULL
from limpet.stores.race.index import Place
from limpet.stores.race.layout import DIRECTORY_ENTRY, OBJECT_MASK
from limpet.stores.race.store import Race

NUMBER_MAX: Final = 0xFF_FFFF
"""A mark has room for this; no node is replaced so often in 30 years, once a minute."""
FIELDS: Final = (
    Field(
        "mark of a channel: replacements of nodes",
        NUMBER_MAX,
        0.017,
        LASTS,
        "it stays; then parts that were lost count as missing",
    ),
)
GONE: Final = ("failed", "being replaced")
"""States of a node whose memory is lost to all."""


class Directories:
    """The directories of `race`, one on each memory node. Not to be called in an operation."""

    def __init__(self, pool: Any, race: Race) -> None:
        self.pool = pool
        self.race = race
        self.count: int = race.index.subtables

    def renew(self, node: int, make: bool) -> None:
        """Find the directory on a node that was replaced; `make`: make it if there is none."""
        self.pool.exclusively(lambda: self._attach(node, make))

    def renew_all(self) -> None:
        """Have a directory on each node that is in service and has room for it."""
        for node in range(self.count):
            with contextlib.suppress(NodeFailed, StoreFull):
                self.renew(node, True)

    def _attach(self, node: int, make: bool) -> None:
        if self.race.index.tables[node] < FORMER:
            return
        regions = self.pool.regions
        region = regions.find(node, self.race.name)
        # A node that was not replaced has lost the directory: its entries may be elsewhere.
        if region is None and make and generation_of(self.pool.view.word(node)):
            # CRASH(renewed): the region is made by the next client, or is complete.
            size = self.race.parameters.directory_size
            region = regions.obtain(node, self.race.name, size, self._write_number)
        if region is not None:
            self.race.index.tables[node] = region.address

    def _number_at(self, address: int) -> int:
        """Address of the number of the directory at this address: it is in entry 0, the last."""
        return address + self.race.parameters.directory_size - DIRECTORY_ENTRY

    def _write_number(self, region: Any) -> None:
        self.pool.endpoint.store(self._number_at(region.address), self.replacements())

    def replacements(self) -> int:
        """How often nodes were replaced."""
        view = self.pool.view
        words = [view.word(node) for node in range(self.count)]
        return min(sum(generation_of(word) for word in words), NUMBER_MAX)

    def number(self, node: int) -> int:
        """The number of a directory that was made on a node that was replaced; else 0."""
        self.pool.client.enter()
        try:
            return self.pool.endpoint.load(self._number_at(self.race.index.tables[node]))
        finally:
            self.pool.client.leave()

    def is_away(self, node: int) -> bool:
        """Whether the entries of that directory are lost, and there is no new directory."""
        with contextlib.suppress(NodeFailed):
            self.renew(node, False)
        return self.race.index.tables[node] >= FORMER or self.pool.nodes()[node]["state"] in GONE


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
                # ORDER: after the mark, and before any memory can be used again: an operation that
                # pins after that looks at the mark (channel.py).
                remote = self.endpoint.faa(DROPS, 1) & REMOTES
                for link in self._links(self.race.objects.address):
                    unlink(self.client, link)
                outcome = self.race.slots.remove(self.place, slot)
            finally:
                self.client.leave()
            if remote:
                # Remote clients have copies of DROPS: the channel is there for them until then.
                self.client.exclusively(self.client.await_copies)
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
