"""The index of RACE hashing: where a key's slot is, and how it is found (FUSEE section 4.2).

Zuo et al., "One-sided RDMA-conscious extendible hashing for disaggregated memory", ATC '21. This is
the part that all stores on the index share; how a slot is changed is theirs.

The index is cut into subtables, one on each memory node, chosen by the key's hash. A subtable is an
array of groups of 192 bytes:

    0     main bucket 0
    64    overflow bucket, shared by both
    128   main bucket 1

A bucket is 64 bytes: a header word (subtable number << 32 | group number, for `check`) and 7
slots. A key has two choices; each is a combined bucket, a main bucket with the overflow bucket
beside it, read as 128 adjacent bytes. So a key's pair is in one of 28 slots, and stays in the one
it was put into.

Slot word
    bits 56-63  fingerprint: 8 bits of the key's hash
    bit 55      frozen: the subtable is being split (store.py); never changed again
    bits 48-54  size class of the object: how much to read, in place of the paper's length
    bits 4-47   address of the object (records.py)
    bits 1-3    replicas of the object, less one; HELD: a transaction holds the slot, and the
                address is that of its part (stores/rtx/parts.py; only in `rtx-race`)
    bit 0       tentative: written by an insert that is not yet decided; readers pass over it
    vacant      0, or size class 255 and a number that no other word of the pool has

A slot is valid when it is neither vacant nor tentative. Invariant: of all valid slots, at most one
holds a given key.
"""

from __future__ import annotations

import contextlib
from array import array
from typing import Any

import numpy as np

from limpet.shm.endpoint.fabric import bit, hash64, lowest_bit, words_tagged
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.states import former
from limpet.shm.endpoint.words import ADDRESS_MASK, HELD, HELD_MASK, TENTATIVE
from limpet.shm.errors import NodeFailed, StoreCorrupt
from limpet.stores.base import Store
from limpet.stores.race.layout import MASK, MIX_FIRST, MIX_SECOND, OBJECT_MASK, SLOTS
from limpet.stores.race.parameters import (
    GROUP_SIZE,
    GROUP_WORDS,
    SLOTS_PER_BUCKET,
    RaceParameters,
)
from limpet.stores.status import BATCH, VACANT_CLASS


def is_vacant(word: int) -> bool:
    """Whether a slot with this word has room."""
    return word == 0 or word >> 48 & 0xFF == VACANT_CLASS


def is_valid(word: int) -> bool:
    """Whether a slot with this word has a pair that readers may see."""
    return word != 0 and not word & TENTATIVE and word >> 48 & 0xFF != VACANT_CLASS


class Index(Store):
    """Finding, iterating and checking; `tables` are the addresses of the subtables."""

    def __init__(
        self, pool: Any, kind: str, name: str, parameters: Any, objects: Any, tables: list[int]
    ) -> None:
        super().__init__(pool, kind, name, parameters)
        self.objects = objects
        self.groups = parameters.groups
        self.subtables = parameters.subtables
        self.tables = array("Q", tables)
        self.slots = memoryview(bytearray(256 * BATCH)).cast("Q")
        self.at = array("Q", [0, 0])
        self.bucket_size = SLOTS_PER_BUCKET
        self.base = 0
        self.word = 0
        self.hash = 0
        self.table = 0

    def replaced(self, node: int) -> None:
        for subtable in range(self.subtables):
            self.tables[subtable] = former(self.tables[subtable], node)

    # ---- finding ----------------------------------------------------------------------------

    def _choose(self, key: bytes) -> None:
        """Work out a key's hash, subtable and the addresses of its two combined buckets."""
        self._place(hash64(key))

    def _choose_to_read(self, key: bytes) -> None:
        """As `_choose`, in an operation that only reads."""
        self._place(hash64(key))

    def _place(self, hashed: int) -> None:
        self.hash = hashed
        self.table = (self.hash >> 32) * self.subtables >> 32
        self._place_in(self.tables[self.table])

    def _table_of(self, key: bytes) -> int:
        """Number of the subtable, or the directory, that a key is in."""
        return (hash64(key) >> 32) * self.subtables >> 32

    def _place_in(self, base: int) -> None:
        """Work out where the key's combined buckets are in the subtable at this address."""
        combined = 2 * self.groups
        first = ((self.hash * MIX_FIRST & MASK) >> 32) * combined >> 32
        second = ((self.hash * MIX_SECOND & MASK) >> 32) * combined >> 32
        if first >> 1 == second >> 1:
            # one group would give the key 14 slots instead of 28
            second = (second + 2) % combined
        self.base = base
        self.at[0] = base + (first >> 1) * GROUP_SIZE + (first & 1) * 64
        self.at[1] = base + (second >> 1) * GROUP_SIZE + (second & 1) * 64

    def _found_places(self) -> None:
        """End the phase that worked out where buckets are, if that took one."""

    def _read_buckets(self) -> None:
        """Read both combined buckets into row 0 of `slots`."""
        self._found_places()
        self._read_row(0)
        self.endpoint.wait()

    def _read_row(self, row: int) -> None:
        """A row of `slots`: words 0-15 the first combined bucket, 16-31 the second."""
        self.endpoint.read_words(self.at[0], self.slots, 16, 32 * row)
        self.endpoint.read_words(self.at[1], self.slots, 16, 32 * row + 16)

    def _find(self, key: bytes) -> int:
        """Read the buckets; address of the valid slot with this key, or 0.

        The image then has its pair.
        """
        self._read_buckets()
        return self._match(key, 0, True)

    def _match(self, key: bytes, row: int, phases: bool) -> int:
        """Of the slots in a row, the address of the valid one with this key, or 0.

        With `phases`, each object read is a round trip of its own.
        """
        left = self._candidates(row)
        while left:
            index = lowest_bit(left)
            left &= left - 1
            word = self.slots[32 * row + index]
            reference = word & OBJECT_MASK
            if word & HELD_MASK == HELD:
                reference = self._held(self._address(index), word, key)
                if not reference:
                    continue
            self.objects.load(reference)
            if phases:
                self.endpoint.wait()
            if self.objects.key_is(key):
                self.word = word
                return self._address(index)
        return 0

    def _candidates(self, row: int) -> int:
        """Of the slots in a row, those that are valid and have the key's fingerprint, as bits."""
        left = words_tagged(self.slots, 32 * row, 32, self.hash & 0xFF) & SLOTS
        found = left
        while left:
            index = lowest_bit(left)
            left &= left - 1
            if not is_valid(self.slots[32 * row + index]):
                found &= ~bit(index)
        return found

    def _held(self, slot: int, word: int, key: bytes) -> int:
        """Reference to the pair of a slot that a transaction holds, for a search; 0: it has none,
        or nobody can say yet."""
        raise StoreCorrupt(f"{self.name}: a transaction holds the slot at {slot:#x}: {word:#x}")

    def _settled(self, slot: int, word: int) -> int:
        """The word of a slot; of one that a transaction holds, what it is if that is over now."""
        return word

    def _address(self, index: int) -> int:
        """Address of the slot at this place of `slots`."""
        return self.at[index >> 4] + (index & 15) * 8

    def _room(self) -> int:
        """Place in `slots` of an empty slot, in the emptier main bucket if there is one; or -1."""
        best = -1
        most = 0
        for side in range(2):
            # the main bucket is the second half of a combined bucket if its group's second one
            main = 16 * side + (8 if self._is_second(side) else 0)
            empty = 0
            last = -1
            for index in range(main + 1, main + 1 + self.bucket_size):
                if is_vacant(self.slots[index]):
                    empty += 1
                    last = index
            if empty > most:
                most = empty
                best = last
        if best < 0:
            for index in range(32):
                if 0 < index & 7 <= self.bucket_size and is_vacant(self.slots[index]):
                    return index
        return best

    def _is_second(self, side: int) -> bool:
        """Whether combined bucket `side` is the overflow bucket and then main bucket 1."""
        return bool((self.at[side] - self.base) % GROUP_SIZE)

    # ---- the whole table --------------------------------------------------------------------

    def __len__(self) -> int:
        return self.pool.exclusively(
            lambda: sum(self._count(self.tables[subtable]) for subtable in range(self.subtables))
        )

    def _count(self, base: int) -> int:
        """How many valid slots the subtable there has."""
        return len(self._references(base))

    def _slots_of(self, base: int) -> Any:
        """A copy of the subtable there as an array of shape (groups, 3 buckets, 8 words)."""
        raw = self.endpoint.read(base, self.groups * GROUP_SIZE)
        return np.frombuffer(raw, dtype="<u8").reshape(self.groups, 3, 8)

    def references(self) -> Any:
        """References to all validly linked objects on nodes in service, as uint64; for audits."""
        found = [np.empty(0, dtype=np.uint64)]
        for subtable in range(self.subtables):
            with contextlib.suppress(NodeFailed):  # what it links to is on the same node
                found.append(self._references(self.tables[subtable]))
        return np.concatenate(found)

    def _references(self, base: int) -> Any:
        """References to all validly linked objects of the subtable there."""
        table = self._slots_of(base).ravel().copy()
        for index in np.flatnonzero(table & np.uint64(HELD_MASK) == HELD).tolist():
            if index & 7:
                table[index] = self._settled(base + 8 * index, int(table[index]))
        words = table.reshape(-1, 8)[:, 1:].ravel()
        vacant = words >> np.uint64(48) & np.uint64(0xFF) == VACANT_CLASS
        words = words[(words != 0) & ~vacant & (words & np.uint64(TENTATIVE) == 0)]
        return words & np.uint64(OBJECT_MASK)

    def keys(self) -> Any:
        """Every key, a group at a time; as weakly consistent as `iter` says."""
        for subtable in range(self.subtables):
            for group in range(self.groups):
                yield from self._keys_of(self.tables[subtable] + group * GROUP_SIZE)

    def _keys_of(self, group: int) -> list[bytes]:
        """The keys of the group at this address."""
        self.client.enter()
        try:
            self.require_there()
            return self._keys_here(group)
        finally:
            self.client.leave()

    def _keys_here(self, group: int) -> list[bytes]:
        """The same within an operation."""
        found = []
        self.endpoint.read_words(group, self.slots, GROUP_WORDS)
        for index in range(GROUP_WORDS):
            word = self._settled(group + 8 * index, self.slots[index]) if index & 7 else 0
            if is_valid(word):
                self.objects.load(word & OBJECT_MASK)
                found.append(self.objects.key())
        return found

    def check(self) -> None:
        """Verify every invariant of the table in memory; StoreCorrupt says what does not hold.

        Other clients may be at work. Nothing dead may be left unrecovered. NodeFailed: a subtable
        is lost with its node, and nothing is wrong with the others.
        """
        seen: dict[bytes, int] = {}
        lost = None
        for subtable in range(self.subtables):
            try:
                for group in range(self.groups):
                    self._check_group(subtable, self.tables[subtable], group, seen)
            except NodeFailed as error:
                lost = error
        if lost is not None:
            raise lost

    def _check_group(self, number: int, base: int, group: int, seen: dict[bytes, int]) -> None:
        """Check a group of the subtable of this number, which is at `base`."""
        self.client.enter()
        try:
            self.require_there()
            self._check_here(number, base, group, seen)
        finally:
            self.client.leave()

    def _check_here(self, number: int, base: int, group: int, seen: dict[bytes, int]) -> None:
        """The same within an operation."""
        start = base + group * GROUP_SIZE
        words = np.frombuffer(self.endpoint.read(start, GROUP_SIZE), dtype="<u8").tolist()
        for index in range(GROUP_WORDS):
            word = words[index]
            where = f"{self.name}: subtable {number}, group {group}, word {index} = {word:#x}"
            if index & 7 == 0:
                if word != number << 32 | group:
                    raise StoreCorrupt(f"{where}: not the bucket's header")
            elif is_valid(self._settled(start + 8 * index, word)):
                self._check_slot(start, start + 8 * index, word, where, seen)

    def _check_slot(
        self, group: int, slot: int, word: int, where: str, seen: dict[bytes, int]
    ) -> None:
        wrong = self._wrong_with(group, slot, word, seen)
        # Another client may have replaced what the slot held since we read it.
        if wrong and self.endpoint.load(slot) == word:
            raise StoreCorrupt(f"{where}: {wrong}")

    def _wrong_with(self, group: int, slot: int, word: int, seen: dict[bytes, int]) -> str:
        """What is wrong with a slot, or "" if nothing is."""
        word = self._settled(slot, word)
        reference = word & OBJECT_MASK
        if not self.heap.plausible(reference):
            return "points to no object"
        if not self.heap.used(reference):
            return "points to an object that is not in use"
        self.objects.load(reference)
        if not self.objects.fits(reference) or not self.objects.intact():
            return "the object's sizes or checksum do not hold"
        key = self.objects.key()
        self._choose(key)
        self._found_places()
        if word >> 56 != self.hash & 0xFF:
            return f"the fingerprint is not that of {key!r}"
        if slot not in [self._address(index) for index in range(32)]:
            return f"{key!r} does not belong into group {group:#x}"
        # A key that went and came again while we looked is met twice; its first slot has changed.
        if key in seen and self._holds(seen[key], key):
            return f"{key!r} is also in the slot at {seen[key]:#x}"
        seen[key] = slot
        return ""

    def _holds(self, slot: int, key: bytes) -> bool:
        word = self._settled(slot, self.endpoint.load(slot))
        if not is_valid(word):
            return False
        self.objects.load(word & OBJECT_MASK)
        return self.objects.key_is(key)


def region_name(name: str, subtable: int) -> str:
    return f"{name}/{subtable}"


def obtain_subtable(
    pool: Any, name: str, parameters: RaceParameters, subtable: int, replica: int = 0
) -> Any:
    """The region of a subtable's replica, made if it is not there. They are on adjacent nodes."""

    def fill(region: Any) -> None:
        headers = np.zeros((parameters.groups, 3, 8), dtype="<u8")
        headers[:, :, 0] = (np.arange(parameters.groups) | subtable << 32)[:, None]
        pool.endpoint.write(region.address, headers)

    return pool.regions.obtain(
        (subtable + replica) % pool.parameters.nodes,
        region_name(name, subtable),
        parameters.groups * GROUP_SIZE,
        fill,
    )


def attach(pool: Any, name: str, parameters: RaceParameters) -> list[int]:
    """Addresses of the subtables; of one that is lost, one that raises NodeFailed."""
    return [
        pool.regions.attach(
            subtable % pool.parameters.nodes,
            region_name(name, subtable),
            lambda subtable=subtable: obtain_subtable(pool, name, parameters, subtable).address,
        )
        for subtable in range(parameters.subtables)
    ]


assert ADDRESS_MASK >> NODE_SHIFT == 0xFF
