"""The memory of channels: regions by name, in blocks of the pool (LOCO section 4.2, A.2).

A `race` store of the pool, `.channels`, has a key for each region, its full name. The value is the
region, in place, which channels change by verbs; its address stays, as it is never updated, until
it is deleted. Its object's checksum covers the name and the sizes only.

A value, in bytes from its start
    0     mark         a number that is never used again; 0: the region is being removed
    8     bits 0-31    size of the description
          bits 32-63   0, or 1 + the node on which the memory lies, as the part `..memory`
    16    description  JSON: what kind of channel it is, and its parameters
    then  memory       from the next multiple of 64 of the address on
Mark
    bits 40-63  how often nodes of the pool had been replaced, as the number of a directory
    bits 1-39   a random number
    bit 0       1

A region may have links (stores/channels/region.py): words that are 0 or a reference to an object,
which are known to audits, and freed with the region.

Invariant: a region lies on the node of its key's directory. A part that is to lie on a certain node
has `~` and a number before its mark, the first one by which the key belongs there; a channel's own
region keeps its name, and where that belongs elsewhere, its memory is a part. So names and regions
are lost together, and no slot leads to memory that was replaced.

A node that was replaced is given a new directory (renewal.py). What is not found in there
    of a part        was lost, if the channel's mark is older than the directory; else it is missing
    of a channel     was lost, if it has parts: each has the part `..name` in the next directory
    of a channel without parts, if the next directory was replaced, too, nobody can tell
A channel that was lost, or may have been, is not begun anew: NodeFailed, until it is removed, which
is possible without its own region. Where nobody can tell, that counts for the process that does it.

A client that uses a region is pinned and has seen its mark since: then the region is not removed
and used again before the client is unpinned.

A kill leaves behind: what `race` says; a channel whose mark is 0, with some of its parts and
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

from limpet.shm.endpoint.fabric import hash64
from limpet.shm.endpoint.states import FORMERLY
from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.shm.errors import (
    AddressError,
    KeyExists,
    NodeFailed,
    ParameterError,
    PoolCorrupt,
    StoreMismatch,
    ValueTooLarge,
)
from limpet.stores.channels.layout import DESCRIPTION, DESCRIPTION_SIZE, LINE
from limpet.stores.channels.region import Region
from limpet.stores.channels.renewal import Renewing
from limpet.stores.object_layout import HEADER
from limpet.stores.race.parameters import GrowingParameters
from limpet.stores.records import Objects
from limpet.stores.status import AGAIN, DONE, FULL, MISSING

CAPACITY: Final = 64
DEPTH_MAX: Final = 10
MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
SIZE_MASK: Final = 0xFFFF_FFFF
NODE_OF_MEMORY: Final = 32
RANDOM_BITS: Final = 39
REPLACEMENTS: Final = 40


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

    def write(self, reference: int, key: bytes, value: bytes) -> None:
        sizes = len(key) | len(value) << 16
        self.header[0] = sizes
        self.header[1] = (hash64(key) + sizes) & MASK
        self.endpoint.write_gather(reference & ADDRESS_MASK, self.header, 2, key, value)

    def intact(self) -> bool:
        return self.image.word(1) == (hash64(self.key()) + self.sizes) & MASK


class ChannelMemory(Renewing):
    """The regions of a pool's channels."""

    Parameters = ChannelParameters

    def __init__(self, pool: Any, kind: str, name: str, parameters: Any) -> None:
        super().__init__(pool, kind, name, parameters)
        self.objects = RegionObjects(pool.heap)
        self.allocator = pool.allocator.coherent()

    def find_memory(self, update: bool, *wanted: Any) -> Any:
        return super().find_memory(True, *wanted)  # channels take little, and have to work

    # ---- what was lost ------------------------------------------------------------------------

    def _cannot_tell(self, table: int) -> bool:
        """Whether parts `..name` of channels that belong into that directory may be lost, too."""
        beside = (table + 1) % self.subtables
        return self._is_away(beside) or self._number(beside) > 0

    def _was_lost(self, name: str, table: int, of: int) -> bool:
        """Whether what is not in its directory may have been lost."""
        number = self._number(table)
        if of:
            return of >> REPLACEMENTS < number
        if not number or self.pool.given_up.get(name) == number:
            return False
        return bool(self._parts(name)) or self._cannot_tell(table)

    def is_lost(self, name: str) -> bool:
        """Whether the own region of a channel that has parts was lost."""
        table = self._belongs(name.encode())
        return self._is_away(table) or (self._number(table) > 0 and not self.mark(name))

    # ---- regions ------------------------------------------------------------------------------

    def _key(self, name: str, of: int, node: int | None) -> bytes:
        """The key of a region that is to lie on `node`, if it is a part."""
        if not of:
            return name.encode()
        key, count = f"{name}@{of:x}".encode(), 0
        while node is not None and self._belongs(key) != node:
            count += 1
            key = f"{name}~{count}@{of:x}".encode()
        return key

    def locate(self, key: bytes) -> int:
        """Address of the value of a key; 0: there is none. Pinned."""
        self._choose(key)
        return self._value(key) if self._find(key) else 0

    def _value(self, key: bytes) -> int:
        """Address of the value of the key that was found last."""
        return self.objects.address + HEADER + (len(key) + 7 & ~7)

    def region(
        self,
        name: str,
        size: int,
        description: dict[str, Any],
        of: int = 0,
        node: int | None = None,
        anew: bool = False,
    ) -> Region:
        """The region of that name, made with zeros if it is not there.

        `of`: the mark of the channel that it is a part of. `node`: where it is to lie, of a part
        the same for all who ask for it. `anew`: make it also if it was lost. Raises StoreMismatch
        when it was made with another size or description, StoreFull, NodeFailed, KeyTooLarge,
        ValueTooLarge, ParameterError (size < 0, or there is no such node).
        """
        if size < 0:
            raise ParameterError(f"{name!r} cannot have {size} bytes of memory")
        if size > self.objects.value_max:
            raise ValueTooLarge(
                f"{name!r} takes {size} bytes of memory; one region has at most "
                f"{self.objects.value_max} here"
            )
        if node is not None and not 0 <= node < self.subtables:
            raise ParameterError(f"{name!r} cannot lie on node {node} of {self.subtables}")
        key = self._key(name, of, node)
        table = self._belongs(key)
        described = json.dumps({"size": size, **description}, sort_keys=True).encode()
        while True:
            self._renew(table, True)
            found = self._look(key, described)
            if found is None and not anew and self._was_lost(name, table, of):
                # ORDER: after the parts: they may be those of a channel that was made meanwhile.
                found = self._look(key, described)
                if found is None:
                    raise NodeFailed(table, f"{FORMERLY}; remove the channel to begin it anew")
            if found is not None:
                break
            if not of:
                # ORDER: before the mark has a number: so parts on these nodes are not older.
                self._renew_all()
            apart = 0 if node is None or node == table else 1 + node
            with contextlib.suppress(KeyExists):
                self.insert(key, self._value_of(described, apart, 0 if apart else size))
        at, mark, sizes = found
        if sizes >> NODE_OF_MEMORY:
            memory = self.region(f"{name}..memory", size, {}, mark, (sizes >> NODE_OF_MEMORY) - 1)
            return Region(memory.address, size, at, mark)
        return Region(_memory(at, sizes & SIZE_MASK), size, at, mark)

    def _value_of(self, described: bytes, apart: int, size: int) -> bytes:
        """The value of a new region, with `size` bytes of memory."""
        # ORDER: the number before the region: a part on a node that is replaced then is lost.
        number = self.pool.exclusively(self._replacements)
        mark = number << REPLACEMENTS | secrets.randbits(RANDOM_BITS) << 1 | 1
        sizes = apart << NODE_OF_MEMORY | len(described)
        words = mark.to_bytes(8, "little") + sizes.to_bytes(8, "little")
        return words + described + bytes(LINE + size)

    def _look(self, key: bytes, described: bytes) -> tuple[int, int, int] | None:
        """Address of a region's value, its mark, and the word with its sizes."""
        name = key.decode()
        self.client.enter()
        try:
            value = self.locate(key)
            mark = self.endpoint.load(value) if value else 0
            if mark:
                sizes = self.endpoint.load(value + DESCRIPTION_SIZE)
                there = self.endpoint.read(value + DESCRIPTION, sizes & SIZE_MASK)
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
        return value, mark, sizes

    def describe(self, key: bytes) -> dict[str, Any]:
        """What kind of channel a region belongs to, its parameters, bytes of memory in there; {} if
        it is gone."""
        self.client.enter()
        try:
            value = self.locate(key)
            if not value or not self.endpoint.load(value):
                return {}
            sizes = self.endpoint.load(value + DESCRIPTION_SIZE)
            found = json.loads(self.endpoint.read(value + DESCRIPTION, sizes & SIZE_MASK))
            if not isinstance(found, dict) or type(found.get("size")) is not int:
                raise ValueError("it is no description")
            if sizes >> NODE_OF_MEMORY:
                found["size"] = 0
            return found
        except (ValueError, RecursionError) as error:
            raise PoolCorrupt(
                f"{self.pool.url}: what the channel region {key!r} says of itself is damaged; "
                "remove the channel"
            ) from error
        finally:
            self.client.leave()

    def mark(self, name: str) -> int:
        """The mark of a channel; 0: there is none, it is being removed, or its region was lost."""
        if self._is_away(self._belongs(name.encode())):
            return 0
        self.client.enter()
        try:
            value = self.locate(name.encode())
            return self.endpoint.load(value) if value else 0
        finally:
            self.client.leave()

    def remove(self, name: str) -> bool:
        """Remove a channel's own region and those of its parts, as far as they are not lost.

        Whether there was any, or may have been.
        """
        table = self._belongs(name.encode())
        found = not self._is_away(table) and self._unmark(name.encode())
        if self.clear(name):
            found = True
        return self._give_up(name, table, found) or found

    def _unmark(self, key: bytes) -> bool:
        self.client.enter()
        try:
            value = self.locate(key)
            if value:
                # CRASH(unmarked): whoever asks for the name next removes the rest.
                self.endpoint.store(value, 0)
            return value != 0
        finally:
            self.client.leave()

    def _give_up(self, name: str, table: int, found: bool) -> bool:
        """If nobody can tell whether a channel was lost, let it be begun anew; whether that is so.

        Raises NodeFailed while its node is lost, unless something was `found`.
        """
        if not self._cannot_tell(table):
            return False
        try:
            self._renew(table, True)
            number = self._number(table)
        except NodeFailed:
            if found:
                return False
            raise
        if number:
            self.pool.given_up[name] = number
        return number != 0

    def clear(self, name: str) -> bool:
        """Remove what is left of channels of that name that have no mark; whether there were parts.

        The own region last: as long as it is there, whoever asks for the name goes on with this.
        """
        parts = self._parts(name)
        # ORDER: after the parts: those of a channel that was made since then have this mark.
        mark = self.mark(name) if parts else 0
        stale = [part for part in parts if not part.endswith(f"@{mark:x}".encode())]
        for part in stale:
            # Somebody else was first, or it is lost by now.
            with contextlib.suppress(KeyError, NodeFailed):
                self.delete(part)
        if not self._is_away(self._belongs(name.encode())):
            self._sweep(name.encode())
        return bool(stale)

    def _parts(self, name: str) -> list[bytes]:
        """The full names of the parts of all channels of that name, whatever their marks."""
        starts = (f"{name}/".encode(), f"{name}.".encode())
        return [key for key in self.keys() if key.startswith(starts)]

    def __len__(self) -> int:
        return sum(1 for _ in self.keys())

    def keys(self) -> Any:
        """The full names of all regions, of those that are not lost."""
        for table in range(self.subtables):
            with contextlib.suppress(NodeFailed):
                self._renew(table, False)
                for number in self._roots():
                    yield from self._keys_below(table, number, 0)

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
        start = _memory(value, length) + first
        return [start + stride * number for number in range(count)]

    def references(self) -> Any:
        found = [np.empty(0, dtype=np.uint64)]
        for table in range(self.subtables):
            with contextlib.suppress(NodeFailed):
                pairs, tables = self._linked(table)
                found += [pairs, tables]
                for pair in pairs.tolist():
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


def _memory(value: int, length: int) -> int:
    """Address of the memory of a region whose value, with so long a description, is there."""
    return value + DESCRIPTION + length + LINE - 1 & ~(LINE - 1)
