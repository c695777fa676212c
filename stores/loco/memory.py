"""The memory of channels: regions by name, in blocks of the pool (LOCO section 4.2, A.2).

A `race` store of the pool, `.channels`, has a key for each region, its full name. The value is the
region, in place, which channels change by verbs; its address stays, as it is never updated, until
it is deleted. Its object's checksum covers the name and the sizes only.

A value, in bytes from its start
    0     mark         a number that is never used again; 0: the region is being removed
    8     size of the description
    16    description  JSON: what kind of channel it is, and its parameters
    then  memory       from the next multiple of 64 of the address on

A region may have links (stores/loco/region.py): words that are 0 or a reference to an object, which
are known to audits, and freed with the region.

A region is gone with the memory of its node. The name may be on another node: then it raises
NodeFailed, also when the node was replaced. No region is put on such a node again, so that none is
taken for what an old name stands for.

Whoever uses a region is pinned and has seen its mark since: then it is not removed and used again
before it is unpinned.

What a kill leaves behind: what `race` says; a channel whose mark is 0, with some of its parts and
links, which the next one who asks for its name removes; and a part that was made when its channel
was removed already, which the next removal of that name takes with it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import secrets
from typing import Any, Final

import numpy as np

from limpet.shm.errors import (
    AddressError,
    KeyExists,
    NodeFailed,
    ParameterError,
    PoolCorrupt,
    StoreMismatch,
    ValueTooLarge,
)
from limpet.shm.fabric import hash64
from limpet.shm.layout import NODE_SHIFT
from limpet.shm.states import FORMER, FORMERLY
from limpet.shm.words import ADDRESS_MASK
from limpet.stores.loco.fields import DESCRIPTION, DESCRIPTION_SIZE, LINE
from limpet.stores.loco.region import Region
from limpet.stores.object_layout import HEADER
from limpet.stores.objects import Objects
from limpet.stores.outcomes import AGAIN, DONE, FULL, MISSING
from limpet.stores.race.growth import Growing
from limpet.stores.race.parameters import GrowingParameters

CAPACITY: Final = 64
DEPTH_MAX: Final = 10
MASK: Final = 0xFFFF_FFFF_FFFF_FFFF


class ChannelParameters(GrowingParameters):
    """Those of the table of regions: it takes little memory, and many channels."""

    @classmethod
    def for_pool(cls, pool: Any, layout: Any, **given: Any) -> ChannelParameters:
        base = GrowingParameters.for_pool(pool, layout, capacity=CAPACITY, **given)
        fields = dataclasses.asdict(base)
        return cls(**{**fields, "depth_max": max(base.depth, min(base.depth_max, DEPTH_MAX))})


class RegionObjects(Objects):
    """Pairs whose values are changed in place."""

    def __init__(self, heap: Any) -> None:
        super().__init__(heap, in_place=True)
        self.gone = bytearray(1 << 8)
        """Of each node, whether what pairs it had is gone, as its memory was replaced."""

    def load(self, reference: int) -> None:
        node = reference >> NODE_SHIFT & 0xFF
        if self.gone[node]:
            raise NodeFailed(node, FORMERLY)
        Objects.load(self, reference)

    def write(self, reference: int, key: bytes, value: bytes) -> None:
        sizes = len(key) | len(value) << 16
        self.header[0] = sizes
        self.header[1] = (hash64(key) + sizes) & MASK
        self.endpoint.write_gather(reference & ADDRESS_MASK, self.header, 2, key, value)

    def intact(self) -> bool:
        return self.image.word(1) == (hash64(self.key()) + self.sizes) & MASK


class ChannelMemory(Growing):
    """The regions of a pool's channels."""

    Parameters = ChannelParameters

    def __init__(self, pool: Any, kind: str, name: str, parameters: Any) -> None:
        super().__init__(pool, kind, name, parameters)
        self.objects = objects = RegionObjects(pool.heap)
        self.gone = objects.gone
        for node, base in enumerate(self.tables):
            self.gone[node] = base >= FORMER
        self.allocator = pool.allocator.coherent()
        self.node = -1
        """Where the next object is to lie, unless that was replaced; -1: with its subtable."""

    def replaced(self, node: int) -> None:
        Growing.replaced(self, node)
        self.gone[node] = True

    def _make(self, key: bytes, value: bytes, size: int) -> int:
        reference = self.allocator.allocate(self._node(), size, 1)
        if reference:
            self.objects.write(reference, key, value)
        return reference

    def _replenish(self, size: int) -> None:
        self.allocator.replenish(self._node(), size, 1)

    def _node(self) -> int:
        if self.node >= 0 and not self.gone[self.node]:
            return self.node
        return self.tables[self.table] >> NODE_SHIFT & 0xFF

    def locate(self, key: bytes) -> int:
        """Address of the value of a key; 0: there is none. Pinned."""
        self._choose(key)
        return self._value(key) if self._find(key) else 0

    def _value(self, key: bytes) -> int:
        """Address of the value of the key that was found last."""
        return self.objects.address + HEADER + (len(key) + 7 & ~7)

    def region(
        self, name: str, size: int, description: dict[str, Any], node: int | None = None
    ) -> Region:
        """The region of that name, made with zeros if it is not there.

        `node`: where it is to lie. Raises StoreMismatch when it was made with another size or
        description, StoreFull, NodeFailed, KeyTooLarge, ValueTooLarge, ParameterError (size < 0).
        """
        if size < 0:
            raise ParameterError(f"{name!r} cannot have {size} bytes of memory")
        if size > self.objects.value_max:
            raise ValueTooLarge(
                f"{name!r} takes {size} bytes of memory; one region has at most "
                f"{self.objects.value_max} here"
            )
        key = name.encode()
        described = json.dumps({"size": size, **description}, sort_keys=True).encode()
        while True:
            found = self._look(key, name, size, described)
            if found is not None:
                return found
            value = (secrets.randbits(63) | 1).to_bytes(8, "little")
            value += len(described).to_bytes(8, "little") + described
            value += bytes(LINE + size)
            self.node = -1 if node is None else node
            try:
                self.insert(key, value)
            except KeyExists:
                continue

    def _look(self, key: bytes, name: str, size: int, described: bytes) -> Region | None:
        self.client.enter()
        try:
            value = self.locate(key)
            mark = self.endpoint.load(value) if value else 0
            if mark:
                length = self.endpoint.load(value + DESCRIPTION_SIZE)
                there = self.endpoint.read(value + DESCRIPTION, length)
        finally:
            self.client.leave()
        if not mark:
            if value:
                self.clear(name)
            return None
        if there != described:
            raise StoreMismatch(
                f"{self.pool.url}: {name!r} is there as {there.decode(errors='replace')}, not as "
                f"{described.decode()}"
            )
        address = value + DESCRIPTION + length + LINE - 1 & ~(LINE - 1)
        return Region(address, size, value, mark)

    def describe(self, key: bytes) -> dict[str, Any]:
        """What kind of channel a region belongs to, its parameters and size; {} if it is gone."""
        self.client.enter()
        try:
            value = self.locate(key)
            if not value or not self.endpoint.load(value):
                return {}
            length = self.endpoint.load(value + DESCRIPTION_SIZE)
            return dict(json.loads(self.endpoint.read(value + DESCRIPTION, length)))
        except ValueError as error:
            raise PoolCorrupt(
                f"{self.pool.url}: what the channel region {key!r} says of itself is damaged; "
                "remove the channel"
            ) from error
        finally:
            self.client.leave()

    def mark(self, name: str) -> int:
        """The mark of a region; 0: there is none, or it is being removed."""
        self.client.enter()
        try:
            value = self.locate(name.encode())
            return self.endpoint.load(value) if value else 0
        finally:
            self.client.leave()

    def remove(self, name: str) -> bool:
        """Remove a channel's own region and those of its parts; whether there was any."""
        self.client.enter()
        try:
            value = self.locate(name.encode())
            if value:
                # CRASH(unmarked): whoever asks for the name next removes the rest.
                self.endpoint.store(value, 0)
        finally:
            self.client.leave()
        return self.clear(name) or bool(value)

    def clear(self, name: str) -> bool:
        """Remove what is left of channels of that name that have no mark; whether there were parts.

        The own region last: as long as it is there, whoever asks for the name goes on with this.
        """
        full = [key.decode() for key in self.keys()]
        parts = [key for key in full if key.startswith((f"{name}/", f"{name}."))]
        # ORDER: after the parts: those of a channel that was made since then have this mark.
        mark = self.mark(name) if parts else 0
        stale = [part for part in parts if not part.endswith(f"@{mark:x}")]
        for part in stale:
            with contextlib.suppress(KeyError):  # somebody else was first
                self.delete(part.encode())
        self._sweep(name.encode())
        return bool(stale)

    def _delete_once(self, key: bytes) -> int:
        self._choose(key)
        slot = self._find(key)
        if not slot:
            return MISSING
        self.endpoint.store(self._value(key), 0)
        self._unlink()
        return self._remove(slot, self.word)

    def _unlink(self) -> None:
        """Free what the region that was found last has links to."""
        for link in self._links(self.objects.address):
            self.unlink(link)

    def unlink(self, link: int) -> None:
        """Free what a link names, in an operation; anybody else may do so at the same time."""
        reference = self.endpoint.load(link)
        if reference:
            index = self.client.hold(reference, link)
            # CRASH(unlinking): linked, or not and in the hand; settling frees it then.
            if self.endpoint.cas(link, reference, 0) == reference:
                self.client.release(index)
            else:
                self.client.keep(index)

    def _links(self, at: int) -> list[int]:
        """Addresses of the links of a region, by its object's address.

        Audits ask without a pin, and do not rely on it then: it may be no region any more.
        """
        sizes = self.endpoint.load(at)
        value = at + HEADER + ((sizes & 0xFFFF) + 7 & ~7)
        length = self.endpoint.load(value + DESCRIPTION_SIZE)
        if DESCRIPTION + length + LINE > sizes >> 16:
            return []
        described = self.endpoint.read(value + DESCRIPTION, length)
        try:
            first, stride, count = json.loads(described).get("links", (0, 0, 0))
        except ValueError:
            return []
        start = (value + DESCRIPTION + length + LINE - 1 & ~(LINE - 1)) + first
        return [start + stride * number for number in range(count)]

    def references(self) -> Any:
        found = [np.empty(0, dtype=np.uint64)]
        for table in range(self.subtables):
            with contextlib.suppress(NodeFailed):
                pairs, tables = self._linked(table)
                there = [
                    pair for pair in pairs.tolist() if not self.gone[pair >> NODE_SHIFT & 0xFF]
                ]
                found += [np.array(there, dtype=np.uint64), tables]
                for pair in there:
                    found.append(self._linked_by(pair & ADDRESS_MASK))
        return np.concatenate(found)

    def _linked_by(self, at: int) -> Any:
        """References to what a region has links to."""
        try:
            words = [self.endpoint.load(link) for link in self._links(at)]
        except (NodeFailed, AddressError):
            words = []  # lost with it; or it is no region any more
        return np.array([word for word in words if word], dtype=np.uint64)

    def _sweep(self, key: bytes) -> None:
        """Remove a region whose mark is gone."""
        outcome = AGAIN
        while outcome != DONE:
            self.client.enter()
            try:
                self._choose(key)
                slot = self._find(key)
                outcome = DONE
                if slot and not self.endpoint.load(self._value(key)):
                    self._unlink()
                    outcome = self._remove(slot, self.word)
            finally:
                self.client.leave()
            if outcome == FULL:
                self._make_room(key, False)
