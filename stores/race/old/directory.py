"""The directory of a hash table that grows: which subtable a key is in (extendible hashing).

Each memory node has a directory, a region, and a key's hash chooses which. A directory is a binary
trie in an array: entry 1 is the root, the halves of entry k are entries 2k and 2k + 1, and further
bits of the hash choose between them. The last entry comes first in memory: so a transaction, which
works in the order of addresses, has set both halves before their parent is split. An entry is 16
bytes, a TXObj as of stores/rtx:

    0   lock       of growth by transactions (rtx/race.py), or under locks (locked.py,
                   dtx/race.py); else 0
    8   pointer    0        nothing yet; whoever inserts first makes a subtable
                   SPLIT    split for good: the keys are in its halves. So says any word that
                            stands for nothing (stores/vacant.py)
                   else     reference to the subtable with the keys, an object (words.py)

A store begins with the entries of depth `depth`, and all above them are never looked at. A handle
remembers how deep a key's entry is, and where its subtable was, so one round trip reads the entry
and the buckets.

A pinned client that has seen a pointer may use the subtable until it leaves. That is right though
it is split meanwhile: a slot is not changed any more from before the split on, so what is read in
it was so at some moment since the pointer was seen, before the split; and what is written to it
fails. An entry never has the same subtable twice.

A key has the same place in a half as it had before, so whoever goes through the groups of a
subtable that is split meanwhile goes on with the same group of both halves.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np

from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.shm.errors import NodeFailed, StoreCorrupt, StoreFull
from limpet.stores import regions
from limpet.stores.race.layout import DIRECTORY_ENTRY, MASK, MIX_DIRECTORY, UNSET
from limpet.stores.race.old.hash_store import HashStore
from limpet.stores.race.old.index import Index
from limpet.stores.race.old.table import Race
from limpet.stores.race.parameters import GROUP_SIZE, GrowingParameters
from limpet.stores.records import Objects
from limpet.stores.rtx.layout import POINTER
from limpet.stores.status import VACANT_CLASS


def is_split(pointer: int) -> bool:
    """Whether an entry with this pointer is split."""
    return pointer >> 48 & 0xFF == VACANT_CLASS


class Directory(Race):
    """Finding, iterating and checking in subtables of a directory. `GrowingParameters`."""

    Parameters: type[GrowingParameters] = GrowingParameters
    grows = True

    def __init__(self, pool: Any, kind: str, name: str, parameters: GrowingParameters) -> None:
        directories = regions.attach(pool, name, parameters.subtables, parameters.directory_size)
        objects = self._objects(pool.heap, parameters)
        HashStore.__init__(self, pool, kind, name, parameters, objects, directories)
        self._begin_search()

    @staticmethod
    def _objects(heap: Any, parameters: Any) -> Any:
        """What writes and reads the objects that slots link to."""
        return Objects(heap, in_place=True)

    def _begin_search(self) -> None:
        """Know no subtable yet."""
        parameters = self.parameters
        self.bucket_size = parameters.bucket_size
        self.subtable_size = parameters.subtable_size
        self.depth_first = parameters.depth
        self.depth_max = parameters.depth_max
        self.entries = (2 << parameters.depth_max) - 1
        """Of a directory; the number of its last one."""
        self.deepest = 0
        """The greatest depth that this handle has seen; by so many bits it remembers `depths`, and
        by the number of the entry the subtables, `known`."""
        self.depths = memoryview(bytearray())
        self.known = array("Q")
        self.depth = 0
        self.number = 0
        """Of the entry that the key at hand belongs to; its pointer's address, and the pointer."""
        self.entry = 0
        self.pointer = 0
        self.surprised = False
        """Whether buckets can be read only now, as an entry was not as remembered."""
        Directory.forget(self)

    @staticmethod
    def make(pool: Any, name: str, parameters: Any) -> None:
        """Make the directories; zeros are an empty table.

        Raises StoreFull when there cannot be room for the keys that are asked for.
        """
        regions.make(pool, name, parameters.subtables, parameters.directory_size)
        Directory.require_room(pool, name, parameters)

    @staticmethod
    def require_room(pool: Any, name: str, parameters: Any, replicas: int = 1) -> None:
        """Raise StoreFull when there cannot be room for the keys that are asked for."""
        wanted = 1 << parameters.depth
        room = pool.blocks.objects_max(parameters.subtable_size, replicas)
        if wanted > room:
            raise StoreFull(
                f"{pool.url}: node 0 has no room for the index of {name!r}: for "
                f"{parameters.capacity} keys it takes {wanted} subtables of "
                f"{parameters.subtable_size} bytes on each node (replicas: {replicas}), where at "
                f"most {room} fit; ask for a smaller capacity, as it grows, or create the pool "
                "with larger nodes"
            )

    @staticmethod
    def unmake(pool: Any, name: str, parameters: Any) -> None:
        regions.unmake(pool, name, parameters.subtables)

    def replaced(self, node: int) -> None:
        Index.replaced(self, node)
        self.forget()

    def forget(self) -> None:
        self.deepest = self.depth_first
        count = self.subtables << self.deepest
        self.depths = memoryview(bytearray([self.depth_first]) * count)
        self.known = array("Q", bytes(16 * count))

    # ---- finding ----------------------------------------------------------------------------

    def _place(self, hashed: int) -> None:
        self.hash = hashed
        self.table = (hashed >> 32) * self.subtables >> 32
        prefix = self._prefix(hashed)
        self.depth = self.depths[self._index(prefix)]
        while True:
            self.number = 1 << self.depth | prefix >> self.depth_max - self.depth
            self.entry = self._entry(self.table, self.number)
            self.pointer = self.endpoint.load(self.entry)
            if not is_split(self.pointer):
                break
            self._below(self.number)
            self.depth += 1
            if self.depth > self.deepest:
                self._look_deeper()
            self.depths[self._index(prefix)] = self.depth
        index = (self.table << self.deepest + 1) + self.number
        if self.pointer != self.known[index]:
            self.known[index] = self.pointer
            self.surprised = True
        if self.pointer:
            self._place_in(self._base_of(self.pointer))
        else:
            self.base = 0

    def _base_of(self, pointer: int) -> int:
        """Address of the subtable that an entry points to."""
        return pointer & ADDRESS_MASK

    def _index(self, prefix: int) -> int:
        """Where the depth of a key with these bits is remembered."""
        return self.table << self.deepest | prefix >> self.depth_max - self.deepest

    def _look_deeper(self) -> None:
        """Remember by one bit more."""
        known = np.frombuffer(self.known, dtype="<u8").reshape(self.subtables, -1)
        self.deepest += 1
        self.depths = memoryview(bytearray(np.repeat(np.frombuffer(self.depths, "u1"), 2)))
        self.known = array("Q", np.pad(known, ((0, 0), (0, known.shape[1]))).tobytes())

    def _below(self, number: int) -> int:
        """The number of the first half of an entry. Raises StoreCorrupt if it can have none."""
        if number >> self.depth_max:
            raise StoreCorrupt(f"{self.name}: entry {number} of a directory is said to be split")
        return 2 * number

    def _found_places(self) -> None:
        if self.surprised:
            self.surprised = False
            self.endpoint.wait()

    def _prefix(self, hashed: int) -> int:
        """The bits of a hash that choose an entry of the greatest depth."""
        return ((hashed * MIX_DIRECTORY & MASK) >> 32) >> 32 - self.depth_max

    def _entry(self, table: int, number: int) -> int:
        """Address of the pointer of an entry."""
        return self.tables[table] + DIRECTORY_ENTRY * (self.entries - number) + POINTER

    def _read_row(self, row: int) -> None:
        if self.base:
            Index._read_row(self, row)
        else:
            for index in range(32 * row, 32 * row + 32):
                self.slots[index] = 0

    def _room(self) -> int:
        return Index._room(self) if self.base else -1

    # ---- the whole table --------------------------------------------------------------------

    def _roots(self) -> range:
        """Numbers of the first entries of each directory."""
        return range(1 << self.depth_first, 2 << self.depth_first)

    def __len__(self) -> int:
        return self.pool.exclusively(
            lambda: sum(len(self._linked(table)[0]) for table in range(self.subtables))
        )

    def index_size(self) -> int:
        """Bytes of all subtables."""
        block = self.heap.layout.block_size
        spans = (self.subtable_size + block - 1) // block * block
        size = self.heap.sizes[self.heap.size_class(self.subtable_size)] or spans
        return self.pool.exclusively(
            lambda: size * sum(len(self._linked(table)[1]) for table in range(self.subtables))
        )

    def references(self) -> Any:
        return np.concatenate(self._linked_all())

    def _linked_all(self) -> tuple[Any, Any]:
        """References to all pairs, and to all subtables, as far as they are not lost."""
        pairs, tables = np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.uint64)
        for table in range(self.subtables):
            with contextlib.suppress(NodeFailed):  # the directory is lost
                found = self._linked(table, True)
                pairs, tables = np.append(pairs, found[0]), np.append(tables, found[1])
        return pairs, tables

    def _linked(self, table: int, lossy: bool = False) -> list[Any]:
        """References to the pairs of a directory, and to its subtables.

        NodeFailed if a subtable is lost; if `lossy`, its pairs are passed over.
        """
        below = []
        for number in self._roots():
            self.show_progress(0)
            below.append(self._linked_below(table, number, lossy))
        return [np.concatenate(some) for some in zip(*below, strict=True)]

    def _linked_below(self, table: int, number: int, lossy: bool) -> tuple[Any, Any]:
        """References to the pairs of an entry's subtables, and to the subtables. Does not pin."""
        pointer = self.endpoint.load(self._entry(table, number))
        while not is_split(pointer):
            pairs = np.empty(0, dtype=np.uint64)
            tables = []
            if pointer:
                try:
                    pairs = self._references(self._base_of(pointer))
                except NodeFailed:
                    if not lossy:
                        raise
                tables = [pointer, *self._halves(table, number)]
            # ORDER: after the words: an entry never has the same subtable again.
            before, pointer = pointer, self.endpoint.load(self._entry(table, number))
            if pointer == before:
                return pairs, np.array(tables, dtype=np.uint64)
        half = self._below(number)
        first, second = (self._linked_below(table, half + k, lossy) for k in (0, 1))
        return np.concatenate([first[0], second[0]]), np.concatenate([first[1], second[1]])

    def _halves(self, table: int, number: int) -> list[int]:
        """Pointers to the halves of an entry that are there already."""
        if number >> self.depth_max:
            return []
        pointers = [self.endpoint.load(self._entry(table, 2 * number + half)) for half in (0, 1)]
        return [pointer for pointer in pointers if pointer and not is_split(pointer)]

    def keys(self) -> Any:
        """Every key, a group at a time; as weakly consistent as `iter` says."""
        for table in range(self.subtables):
            for number in self._roots():
                yield from self._keys_below(table, number, 0)

    def _keys_below(self, table: int, number: int, group: int) -> Iterator[bytes]:
        """The keys below an entry, from this group of its subtables on."""
        for there in range(group, self.groups):
            found = self._keys_at(table, number, there)
            if found is None:
                # A key has the same group in the half, so those before have been met.
                half = self._below(number)
                yield from self._keys_below(table, half, there)
                yield from self._keys_below(table, half + 1, there)
                return
            yield from found

    def _keys_at(self, table: int, number: int, group: int) -> list[bytes] | None:
        """The keys of a group of an entry's subtable; None: it is split."""
        self.client.enter()
        try:
            self.require_there()
            return self._keys_there(table, number, group)
        finally:
            self.client.leave()

    def _keys_there(self, table: int, number: int, group: int) -> list[bytes] | None:
        """The same within an operation."""
        pointer = self.endpoint.load(self._entry(table, number))
        if is_split(pointer):
            return None
        return self._keys_here(self._base_of(pointer) + group * GROUP_SIZE) if pointer else []

    def check(self) -> None:
        seen: dict[bytes, int] = {}
        lost = None
        for table in range(self.subtables):
            try:
                for number in self._roots():
                    self._check_below(table, number, 0, seen)
            except NodeFailed as error:
                lost = error
        if lost is not None:
            raise lost

    def _check_below(self, table: int, number: int, group: int, seen: dict[bytes, int]) -> None:
        for there in range(group, self.groups):
            if not self._check_at(table, number, there, seen):
                half = self._below(number)
                self._check_below(table, half, there, seen)
                self._check_below(table, half + 1, there, seen)
                return

    def _check_here(self, number: int, base: int, group: int, seen: dict[bytes, int]) -> None:
        super()._check_here(number, base, group, seen)
        start = base + group * GROUP_SIZE
        if UNSET in np.frombuffer(self.endpoint.read(start, GROUP_SIZE), dtype="<u8").tolist():
            raise StoreCorrupt(
                f"{self.name}: subtable {number}, group {group} was not filled by the split that "
                "made it"
            )

    def _check_at(self, table: int, number: int, group: int, seen: dict[bytes, int]) -> bool:
        """Check a group of an entry's subtable; False: it is split."""
        entry = self._entry(table, number)
        self.client.enter()
        try:
            self.require_there()
            while True:
                pointer = self.endpoint.load(entry)
                if is_split(pointer):
                    return False
                if not pointer:
                    return True
                try:
                    if not self.heap.plausible(pointer) or not self.heap.used(pointer):
                        raise StoreCorrupt(
                            f"{self.name}: entry {number} of directory {table} points to no "
                            f"subtable in use: {pointer:#x}"
                        )
                    self._check_here(number, self._base_of(pointer), group, seen)
                    return True
                except StoreCorrupt:
                    if self.endpoint.load(entry) == pointer:
                        raise
        finally:
            self.client.leave()

    def _holds(self, slot: int, key: bytes) -> bool:
        # In a subtable that is split by now, it is not the key's slot any more.
        within = self.base and self.base <= slot < self.base + self.subtable_size
        return bool(within and Index._holds(self, slot, key))
