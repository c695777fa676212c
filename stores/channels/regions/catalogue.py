"""The catalogue of channels: regions by name, in blocks of the pool (LOCO section 4.2, A.2).

The table of the store `.channels` (table.py) has an entry for each region, under its full name. The
entry's value is the region: its mark, its description, and its memory.

Mark
    bits 40-63  how many nodes of the pool had been replaced, as the number of a directory
    bits 1-39   a random number
    bit 0       1

Sizes (the word after the mark)
    bits 62-63  of a channel's own region, the state: 0 made, or MAKING, or GIVEN_UP
    bits 32-47  1 + the node of the part that is the memory, or 0
    bits 0-31   bytes of the description

    MAKING -> made        by CAS, by each client that has found or made all parts (`confirm`)
    MAKING -> GIVEN_UP    by CAS, by a client that had no room for one, or whose node is lost; it
                          removes the channel (`give_up`)

The CAS decides between two clients of which one has found room and the other has not: no client
uses a channel that is then removed, and where a client has told its caller that the channel cannot
be made, nothing is left. A client gives up, or removes for want of room, only the channel with the
mark that it was making: there may be one of another client by then, of the same name. A client
whose channel was given up by another begins anew.

Invariant: a region lies on the node of its key's directory. A part for a certain node has `~` and a
number before its mark: the first number with which the key belongs to that node. A channel's own
region keeps its name; if the key belongs to another node than its memory shall be on, the memory is
a part. So names and regions are lost together, and no slot leads to memory that was replaced.

A node that was replaced is given a new directory (table.py). A key that is not found in there
    of a part        was lost, if the channel's mark is older than the directory; else it is missing
    of a channel     was lost, if it has parts: each has the part `..name` in the next directory
    of a channel without parts: if the next directory was replaced, too, no client can tell
A channel that was lost, or may have been, is not made anew: NodeFailed, until it is removed, which
is possible without its own region. Where no client can tell, the removal counts only for the
process that makes it.

A client that uses a region is pinned, and has seen its mark since, or that DROPS is as it was when
it last saw the mark: then the region is not used again before the client is unpinned.

A kill leaves behind: the same as in `race`; a channel in MAKING with some of its parts, which the
next client that opens it completes; one in GIVEN_UP, or whose mark is 0, with some of its parts and
links, which the next client that asks for its name removes; and a part that was made when its
channel was removed already, which the next removal of that name takes with it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import secrets
import weakref
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from limpet.shm.endpoint.states import FORMERLY
from limpet.shm.errors import (
    ChannelRemoved,
    KeyExists,
    NodeFailed,
    ParameterError,
    PoolCorrupt,
    StoreFull,
    StoreMismatch,
    ValueTooLarge,
)
from limpet.stores.channels.layout import DESCRIPTION, DESCRIPTION_SIZE, LINE, SIZE_MASK
from limpet.stores.channels.regions.region import Region
from limpet.stores.channels.regions.table import Directories, RegionObjects, RegionTable, memory_of
from limpet.stores.core.base import made_for
from limpet.stores.race.parameters import GrowingParameters
from limpet.stores.race.store import Race

CAPACITY: Final = 64
DEPTH_MAX: Final = 10
NODE_OF_MEMORY: Final = 32
NODE_MASK: Final = 0xFFFF
MAKING: Final = 1 << 62
GIVEN_UP: Final = 2 << 62
STATES: Final = 3 << 62
RANDOM_BITS: Final = 39
REPLACEMENTS: Final = 40

_given_up: weakref.WeakKeyDictionary[Any, dict[str, int]] = weakref.WeakKeyDictionary()
"""For each pool handle: names of channels that were removed where no client can tell whether they
were lost, and the number of the directory for which this counts."""


def _words(description: bytes) -> str:
    """A region's description in words."""
    try:
        found = json.loads(description)
        kind, size, given = found.get("kind"), found["size"], found.get("parameters") or {}
        text = ", ".join(f"{name} {value!r}" for name, value in given.items())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return f"{description!r}, which is damaged"
    if not kind:
        return f"a part of {size} bytes"
    return f"{_one(kind)}{' with ' + text if text else ''}"


def _kind(description: bytes) -> str:
    """The kind of a region's channel; "": it has none, or is damaged."""
    try:
        return str(json.loads(description).get("kind") or "")
    except (ValueError, AttributeError, RecursionError):
        return ""


def _one(kind: str) -> str:
    return f"{'an' if kind[:1] in 'aeiou' else 'a'} {kind or 'part'}"


class ChannelParameters(GrowingParameters):
    """Parameters of the table of regions: little memory, room for many channels."""

    @classmethod
    def for_pool(cls, pool: Any, layout: Any, **given: Any) -> ChannelParameters:
        base = GrowingParameters.for_pool(pool, layout, capacity=CAPACITY, **given)
        fields = dataclasses.asdict(base)
        return cls(**{**fields, "depth_max": max(base.depth, min(base.depth_max, DEPTH_MAX))})


class ChannelCatalogue:
    """The regions of a pool's channels. It is in the pool's catalogue as stores are."""

    Parameters = ChannelParameters
    entries_max = Race.entries_max
    replicated = Race.replicated
    resolves = Race.resolves
    stops = Race.stops
    transactional = False
    durable = False
    make = staticmethod(Race.make)
    unmake = staticmethod(Race.unmake)
    complete = staticmethod(Race.complete)

    entry_number: int
    entry_word: int

    def __init__(self, pool: Any, kind: str, name: str, parameters: Any) -> None:
        self.pool = pool
        self.client = pool.client
        self.endpoint = pool.endpoint
        given = (pool, kind, name, parameters, RegionObjects(pool.heap))
        self.race = made_for(Race, self.entry_number, self.entry_word, *given)
        self.table = RegionTable(pool, self.race)
        self.directories = Directories(pool, self.race)

    # ---- as a store of the pool -----------------------------------------------------------------

    def __len__(self) -> int:
        return sum(1 for _ in self.keys())

    def __iter__(self) -> Iterator[bytes]:
        return self.keys()

    def keys(self) -> Iterator[bytes]:
        """The full names of all regions, of those that are not lost."""
        for node in range(self.directories.count):
            with contextlib.suppress(NodeFailed):
                self.directories.renew(node, False)
                yield from self.table.keys(node)

    def references(self) -> Any:
        """References to the objects of regions, and of their links, on nodes in service."""
        found = [np.empty(0, dtype=np.uint64)]
        for node in range(self.directories.count):
            with contextlib.suppress(NodeFailed):
                found.append(self.table.references(node))
        return np.concatenate(found)

    def check(self) -> None:
        """Verify the table; StoreCorrupt says what does not hold."""
        self.race.check()

    def replaced(self, node: int) -> None:
        self.race.replaced(node)

    def let_go(self) -> None:
        self.race.let_go()

    def left_by(self, ident: int) -> set[str]:
        """The named crash points of the table at which the dead client `ident` may have been."""
        return self.race.left_by(ident)

    # ---- losses -------------------------------------------------------------------------------

    def _cannot_tell(self, node: int) -> bool:
        """Whether parts `..name` of channels that belong to that directory may be lost, too."""
        beside = (node + 1) % self.directories.count
        return self.directories.is_away(beside) or self.directories.number(beside) > 0

    def _was_lost(self, name: str, node: int, of: int) -> bool:
        """Whether a region that is not in its directory may have been lost."""
        number = self.directories.number(node)
        if of:
            return of >> REPLACEMENTS < number
        if not number or _given_up.get(self.pool, {}).get(name) == number:
            return False
        return bool(self._parts(name)) or self._cannot_tell(node)

    def is_lost(self, name: str) -> bool:
        """Whether the own region of a channel that has parts was lost."""
        node = self.node_of(name.encode())
        return self.directories.is_away(node) or (
            self.directories.number(node) > 0 and not self.mark(name)
        )

    def require_not_lost(self, name: str) -> None:
        """Raise NodeFailed if a channel that is not found was lost, or may have been."""
        node = self.node_of(name.encode())
        self.directories.renew(node, True)
        if not self.mark(name) and self._was_lost(name, node, 0):
            raise NodeFailed(node, f"{FORMERLY}; remove the channel to begin it anew")

    # ---- regions ------------------------------------------------------------------------------

    def node_of(self, key: bytes) -> int:
        """The node on which the region of that full name lies."""
        return self.table.node_of(key)

    def key_of(self, name: str, of: int, node: int | None) -> bytes:
        """The key of a region that is to lie on `node`, if it is a part: the mark `of` is not 0."""
        if not of:
            return name.encode()
        key, count = f"{name}@{of:x}".encode(), 0
        while node is not None and self.node_of(key) != node:
            count += 1
            key = f"{name}~{count}@{of:x}".encode()
        return key

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

        `of`: the mark of the channel, for a part. `node`: the memory node for it; for a part, every
        caller must give the same. `anew`: make it also if it was lost. Raises StoreMismatch when it
        was made with another size or description, StoreFull, NodeFailed, KeyTooLarge,
        ValueTooLarge, ParameterError (size < 0, or there is no such node).
        """
        self._check_given(name, size, node)
        key = self.key_of(name, of, node)
        own = self.node_of(key)
        described = json.dumps({"size": size, **description}, sort_keys=True).encode()
        while True:
            self.directories.renew(own, True)
            found = self._read_entry(key, described)
            if found is None and not anew and self._was_lost(name, own, of):
                # ORDER: after the parts, which may be those of a channel that was made meanwhile.
                found = self._read_entry(key, described)
                if found is None:
                    raise NodeFailed(own, f"{FORMERLY}; remove the channel to begin it anew")
            if found is not None:
                break
            if not of:
                # ORDER: before the mark has a number, so that parts on these nodes are not older.
                self.directories.renew_all()
            apart = 0 if node is None or node == own else 1 + node
            with contextlib.suppress(KeyExists):
                value = self._value_of(described, 0 if of else MAKING, apart, 0 if apart else size)
                self.table.insert(key, value)
        at, mark, sizes = found
        if beside := sizes >> NODE_OF_MEMORY & NODE_MASK:
            try:
                memory = self.region(f"{name}..memory", size, {}, mark, beside - 1)
            except (StoreFull, ValueTooLarge, NodeFailed):
                with contextlib.suppress(StoreFull, NodeFailed):
                    if not of:
                        self.give_up(name, mark)  # the caller does not know its mark yet
                raise
            return Region(memory.address, size, at, mark)
        return Region(memory_of(at, sizes & SIZE_MASK), size, at, mark)

    def _check_given(self, name: str, size: int, node: int | None) -> None:
        if size < 0:
            raise ParameterError(f"{name!r} cannot have {size} bytes of memory")
        most = self.race.objects.value_max
        if size > most:
            raise ValueTooLarge(
                f"{name!r} takes {size} bytes of memory; one region has at most {most} here"
            )
        if node is not None and not 0 <= node < self.directories.count:
            raise ParameterError(f"{name!r} cannot lie on node {node} of {self.directories.count}")

    def _value_of(self, described: bytes, state: int, apart: int, size: int) -> bytes:
        """The value of a new region, with `size` bytes of memory."""
        # ORDER: the number before the region: a part on a node that is replaced then is lost.
        number = self.pool.exclusively(self.directories.replacements)
        mark = number << REPLACEMENTS | secrets.randbits(RANDOM_BITS) << 1 | 1
        sizes = state | apart << NODE_OF_MEMORY | len(described)
        words = mark.to_bytes(8, "little") + sizes.to_bytes(8, "little")
        return words + described + bytes(LINE + size)

    def _read_entry(self, key: bytes, described: bytes) -> tuple[int, int, int] | None:
        """Address of a region's value, its mark, and the word with its sizes."""
        with self.client:
            value = self.table.locate(key)
            mark = self.endpoint.load(value) if value else 0
            if mark:
                sizes = self.endpoint.load(value + DESCRIPTION_SIZE)
                if sizes & STATES == GIVEN_UP:
                    self.endpoint.store(value, 0)
                    mark = 0
            if mark:
                there = self.endpoint.read(value + DESCRIPTION, sizes & SIZE_MASK)
        if not mark:
            if value:
                self.clear(key.decode())
            return None
        if there != described:
            raise StoreMismatch(f"{self.pool.url}: {self._why_not(key.decode(), there, described)}")
        return value, mark, sizes

    def _why_not(self, name: str, there: bytes, described: bytes) -> str:
        """Why a region that is there is not the one that was asked for."""
        kind, wanted = _kind(there), _kind(described)
        if not kind or kind == wanted:
            return (
                f"{name!r} is there as {_words(there)}, and was asked for as {_words(described)}; "
                "take another name for the new one"
            )
        way = f"open it with pool.{kind}({name!r}), or " * hasattr(self.pool, kind)
        return f"{name!r} is {_one(kind)}, not {_one(wanted)}; {way}take another name"

    def describe(self, key: bytes) -> dict[str, Any]:
        """The kind and the parameters of a region's channel, and the bytes of its memory; {}: the
        region is gone."""
        try:
            with self.client:
                value = self.table.locate(key)
                if not value or not self.endpoint.load(value):
                    return {}
                sizes = self.endpoint.load(value + DESCRIPTION_SIZE)
                if sizes & STATES == GIVEN_UP:
                    return {}
                found = json.loads(self.endpoint.read(value + DESCRIPTION, sizes & SIZE_MASK))
                if not isinstance(found, dict) or type(found.get("size")) is not int:
                    raise ValueError("it is no description")
                if sizes >> NODE_OF_MEMORY & NODE_MASK:
                    found["size"] = 0
                return found
        except (ValueError, RecursionError) as error:
            raise PoolCorrupt(
                f"{self.pool.url}: the description of the channel region {key!r} is damaged; "
                "remove the channel"
            ) from error

    def reference_of(self, name: str, of: int, node: int | None) -> int:
        """Reference to the object with the memory of a region, as of `region`; 0: it is gone. In an
        operation."""
        value = self.table.locate(self.key_of(name, of, node))
        if not value:
            return 0
        beside = self.endpoint.load(value + DESCRIPTION_SIZE) >> NODE_OF_MEMORY & NODE_MASK
        if beside:
            mark = of or self.endpoint.load(value)
            return self.reference_of(f"{name}..memory", mark, beside - 1)
        return int(self.table.reference())

    def address_of(self, name: str, of: int = 0, node: int | None = None) -> int:
        """Address of the memory of a region, as of `region`; 0: it is not there, or not complete.
        In an operation."""
        value = self.table.locate(self.key_of(name, of, node))
        mark = self.endpoint.load(value) if value else 0
        if not mark:
            return 0
        sizes = self.endpoint.load(value + DESCRIPTION_SIZE)
        if sizes & STATES:
            return 0
        if beside := sizes >> NODE_OF_MEMORY & NODE_MASK:
            return self.address_of(f"{name}..memory", of or mark, beside - 1)
        return memory_of(value, sizes & SIZE_MASK)

    def mark(self, name: str) -> int:
        """The mark of a channel; 0: there is none, it is being removed, or its region was lost."""
        if self.directories.is_away(self.node_of(name.encode())):
            return 0
        with self.client:
            value = self.table.locate(name.encode())
            return self.endpoint.load(value) if value else 0

    # ---- what is made of several regions ------------------------------------------------------

    def confirm(self, channel: Any) -> bool:
        """Say that all parts of a channel are there; False: another client had no room for it, and
        nothing is left. Raises ChannelRemoved."""
        channel.marked.doubt()
        with channel.operation():
            # LINEARIZES: the channel is there, or another client had no room for it.
            if self._decide(channel.mark_address, 0) != GIVEN_UP:
                return True
        self.take_back(channel)
        return False

    def take_back(self, channel: Any) -> None:
        """Remove a channel that was given up, and not another one of its name."""
        with contextlib.suppress(ChannelRemoved, NodeFailed), channel.operation():
            # ORDER: in one operation, or another client's channel may lie at this address.
            self.endpoint.store(channel.mark_address, 0)
        self.clear(channel.name)

    def give_up(self, name: str, making: int) -> bool:
        """Remove the channel with this mark, for which this client has no room, if no client can
        use it yet. `making`: 0 if it had no room for the first region already.

        Whether there is one of that name that clients can use.
        """
        key = name.encode()
        if self.directories.is_away(self.node_of(key)):
            return False
        with self.client:
            value = self.table.locate(key)
            mark = self.endpoint.load(value) if value else 0
            if not mark:
                return False  # what is left of a lost channel stays, and shows that there was one
            if mark != making:
                return not self.endpoint.load(value + DESCRIPTION_SIZE) & STATES
            # LINEARIZES: the channel will not be there, or another client had room for it.
            if self._decide(value, GIVEN_UP) == 0:
                return True
            # CRASH(given-up-channel): the next client that asks for the name removes it.
            # ORDER: in one operation, or another client's channel may lie at this address.
            self.endpoint.store(value, 0)
        self.clear(name)
        return False

    def _decide(self, value: int, state: int) -> int:
        """Change the state of a channel from MAKING to `state`; the old one. In an operation."""
        at = value + DESCRIPTION_SIZE
        sizes = self.endpoint.load(at)
        if sizes & STATES == MAKING:
            sizes = self.endpoint.cas(at, sizes, sizes & ~STATES | state)
        return sizes & STATES

    # ---- removal --------------------------------------------------------------------------------

    def remove(self, name: str) -> bool:
        """Remove a channel's own region and those of its parts, as far as they are not lost.

        Whether there was any, or may have been.
        """
        node = self.node_of(name.encode())
        found = not self.directories.is_away(node) and self._unmark(name.encode())
        if self.clear(name):
            found = True
        return self._give_up(name, node, found) or found

    def _unmark(self, key: bytes) -> bool:
        with self.client:
            value = self.table.locate(key)
            if value:
                # CRASH(unmarked): the next client that asks for the name removes the rest.
                self.endpoint.store(value, 0)
            return value != 0

    def _give_up(self, name: str, node: int, found: bool) -> bool:
        """If no client can tell whether a channel was lost, allow a new one; whether that is so.

        Raises NodeFailed while its node is lost, unless something was `found`.
        """
        if not self._cannot_tell(node):
            return False
        try:
            self.directories.renew(node, True)
            number = self.directories.number(node)
        except NodeFailed:
            if found:
                return False
            raise
        if number:
            _given_up.setdefault(self.pool, {})[name] = number
        return number != 0

    def clear(self, name: str) -> bool:
        """Remove the rest of channels of that name that have no mark; whether there were parts.

        The own region last: as long as it is there, the next client that asks for the name goes on
        with the removal.
        """
        parts = self._parts(name)
        # ORDER: after the parts: those of a channel that was made since then have this mark.
        mark = self.mark(name) if parts else 0
        stale = [part for part in parts if not part.endswith(f"@{mark:x}".encode())]
        for part in stale:
            with contextlib.suppress(NodeFailed):  # it is lost by now
                self.table.take_out(part, False)
        if not self.directories.is_away(self.node_of(name.encode())):
            self.table.take_out(name.encode(), True)
        return bool(stale)

    def _parts(self, name: str) -> list[bytes]:
        """The full names of the parts of all channels of that name, whatever their marks."""
        starts = (f"{name}/".encode(), f"{name}.".encode())
        return [key for key in self.keys() if key.startswith(starts)]
