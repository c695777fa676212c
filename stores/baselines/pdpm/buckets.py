"""The table of a `pdpm` store (store.py has its layout): finding keys, and looks at all of it."""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from limpet.shm.endpoint.fabric import hash64
from limpet.shm.endpoint.states import former
from limpet.shm.endpoint.words import REFERENCE_MASK
from limpet.shm.errors import NodeFailed, StoreCorrupt
from limpet.stores.baselines.pdpm.parameters import (
    BUCKET_SIZE,
    BUCKET_WORDS,
    SLOTS_PER_BUCKET,
    PdpmParameters,
)
from limpet.stores.core import regions
from limpet.stores.core.base import Store
from limpet.stores.core.names import shown
from limpet.stores.core.records import Objects
from limpet.stores.core.whole import check_each

REDO: Final = 8
FIRST_SLOT: Final = 2
MIX_FIRST: Final = 0x9E37_79B9_7F4A_7C15
MIX_SECOND: Final = 0xD1B5_4A32_D192_ED03
MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
LOOKS_MAX: Final = 16
"""After so many reads that are not whole, with no update under way, a pair is damaged."""


class BucketPair(NamedTuple):
    """Where a key belongs: node, addresses of its two buckets, the first with its lock."""

    node: int
    home: int
    other: int
    fingerprint: int


class Buckets(Store):
    """The buckets on all nodes. A subclass gives the operations."""

    def __init__(self, pool: Any, kind: str, name: str, parameters: PdpmParameters) -> None:
        super().__init__(pool, kind, name, parameters)
        self.membership = pool.membership
        size = parameters.buckets * BUCKET_SIZE
        self.tables = regions.attach(pool, name, parameters.tables, size)
        self.objects = Objects(pool.heap)
        self.words = array("Q", bytes(2 * BUCKET_SIZE))
        """The two buckets that were read last."""

    @staticmethod
    def make(pool: Any, name: str, parameters: PdpmParameters) -> None:
        """Make one region a table; zeros are an empty one."""
        regions.make(pool, name, parameters.tables, parameters.buckets * BUCKET_SIZE)

    @staticmethod
    def unmake(pool: Any, name: str, parameters: PdpmParameters) -> None:
        regions.unmake(pool, name, parameters.tables)

    def replaced(self, node: int) -> None:
        self.tables = [former(table, node) for table in self.tables]

    # ---- finding --------------------------------------------------------------------------------

    def _place(self, key: bytes) -> BucketPair:
        hashed = hash64(key)
        tables, buckets = self.parameters.tables, self.parameters.buckets
        table = (hashed >> 32) * tables >> 32
        first = ((hashed * MIX_FIRST & MASK) >> 32) * buckets >> 32
        second = ((hashed * MIX_SECOND & MASK) >> 32) * buckets >> 32
        if first == second:
            second = (second + 1) % buckets
        base = self.tables[table]
        return BucketPair(
            table, base + first * BUCKET_SIZE, base + second * BUCKET_SIZE, hashed & 0xFF
        )

    def _read(self, place: BucketPair) -> None:
        # ORDER: the home first: `redo` before the slots, and those before the objects.
        self.endpoint.post_read(place.home, self.words, BUCKET_WORDS)
        self.endpoint.post_read(place.other, self.words, BUCKET_WORDS, BUCKET_WORDS)
        self.endpoint.wait()

    def _slots(self, place: BucketPair) -> Iterator[tuple[int, int]]:
        """Address and word of each slot in the buckets that were read."""
        for start, bucket in ((0, place.home), (BUCKET_WORDS, place.other)):
            for index in range(FIRST_SLOT, BUCKET_WORDS):
                yield bucket + 8 * index, self.words[start + index]

    def _match(self, place: BucketPair, key: bytes) -> tuple[int, int]:
        """Address and word of the slot with this key, of the buckets that were read; or zeros.

        The image then has its pair.
        """
        for slot, word in self._slots(place):
            if word and word >> 56 == place.fingerprint:
                self.objects.post(word & REFERENCE_MASK)
                self.endpoint.wait()
                self.objects.arrived()
                if self.objects.key_is(key):
                    return slot, word
        return 0, 0

    def _vacant(self, place: BucketPair) -> int:
        """Address of an empty slot, in the emptier of the buckets that were read; or 0."""
        empty: tuple[list[int], list[int]] = [], []
        for slot, word in self._slots(place):
            if not word:
                empty[not place.home <= slot < place.home + BUCKET_SIZE].append(slot)
        found = max(empty, key=len)
        return found[0] if found else 0

    # ---- the whole table ------------------------------------------------------------------------

    def _table(self, table: int) -> Any:
        """A copy of a table as an array of shape (buckets, 16 words)."""
        raw = self.endpoint.read(self.tables[table], self.parameters.buckets * BUCKET_SIZE)
        return np.frombuffer(raw, dtype="<u8").reshape(-1, BUCKET_WORDS)

    def __len__(self) -> int:
        tables = (self.within(self._table, table) for table in range(self.parameters.tables))
        return sum(int(np.count_nonzero(table[:, FIRST_SLOT:])) for table in tables)

    def references(self) -> Any:
        """References to all pairs and redo copies on nodes in service, as uint64; for audits."""
        found = [np.empty(0, dtype=np.uint64)]
        for table in range(self.parameters.tables):
            with contextlib.suppress(NodeFailed):  # its pairs are on the same node
                words = self._table(table)[:, 1:].ravel()
                found.append(words[words != 0] & np.uint64(REFERENCE_MASK))
        return np.concatenate(found)

    def _buckets(self) -> Iterator[int]:
        """The address of every bucket."""
        for table in self.tables:
            for bucket in range(self.parameters.buckets):
                yield table + bucket * BUCKET_SIZE

    def keys(self) -> Any:
        """Every key, a bucket at a time; as weakly consistent as `iter` says."""
        for bucket in self._buckets():
            yield from self._keys_of(bucket)

    def _keys_of(self, bucket: int) -> list[bytes]:
        found = []
        with self.client:
            self.require_there()
            self.endpoint.read_words(bucket, self.words, BUCKET_WORDS)
            for word in self.words[FIRST_SLOT:BUCKET_WORDS]:
                if word:
                    self.objects.load(word & REFERENCE_MASK)
                    found.append(self.objects.key())
        return found

    # ---- checking -------------------------------------------------------------------------------

    def check(self) -> None:
        """Verify every invariant of the table in memory; StoreCorrupt names one that fails.

        Other clients may be at work. NodeFailed: a table is lost with its node, and no fault was
        found in the others.
        """
        seen: dict[bytes, int] = {}
        check_each(self._buckets(), lambda bucket: self._check_bucket(bucket, seen))

    def _check_bucket(self, bucket: int, seen: dict[bytes, int]) -> None:
        with self.client:
            self.require_there()
            words = np.frombuffer(self.endpoint.read(bucket, BUCKET_SIZE), dtype="<u8").tolist()
            for index, word in enumerate(words[1:], 1):
                at = bucket + 8 * index
                wrong = self._wrong_with(at, word, index == 1, seen) if word else ""
                # Another client may have changed the word since we read it.
                if wrong and self.endpoint.load(at) == word:
                    raise StoreCorrupt(f"{self.name}: the word {word:#x} at {at:#x}: {wrong}")

    def _wrong_with(self, at: int, word: int, redo: bool, seen: dict[bytes, int]) -> str:
        """The fault found in a slot, or in `redo`, or "" if there is none."""
        reference = word & REFERENCE_MASK
        if not self.heap.plausible(reference):
            return "points to no object"
        if not self.heap.used(reference):
            return "points to an object that is not in use"
        self.objects.load(reference)
        if not self.objects.fits(reference):
            return "the object's sizes are impossible"
        key = self.objects.key()
        place = self._place(key)
        if not self._settled(reference, 0 if redo else place.home):
            return "the object's checksum does not hold"
        if redo:
            return "" if at == place.home + REDO else f"{shown(key)} has another home"
        if word >> 56 != place.fingerprint:
            return f"the fingerprint is not that of {shown(key)}"
        if at not in [slot for slot, _ in self._slots(place)]:
            return f"{shown(key)} does not belong there"
        # A key deleted and inserted again meanwhile is met twice; its first slot has changed.
        if key in seen and self._holds(seen[key], key):
            return f"{shown(key)} is also in the slot at {seen[key]:#x}"
        seen[key] = at
        return ""

    def _settled(self, reference: int, home: int) -> bool:
        """Whether the object is whole, or the holder of the lock at `home` is writing it."""
        for _ in range(LOOKS_MAX):
            if self.objects.intact() or (home and self.endpoint.load(home + REDO)):
                return True
            self.objects.load(reference)
        return False

    def _holds(self, slot: int, key: bytes) -> bool:
        word = self.endpoint.load(slot)
        if not word:
            return False
        self.objects.load(word & REFERENCE_MASK)
        return bool(self.objects.key_is(key))

    def left_by(self, ident: int) -> set[str]:
        found = set()
        for table in range(self.parameters.tables):
            with contextlib.suppress(NodeFailed):
                words = self._table(table)
                held = words[words[:, 0] == ident]
                found |= {"committed" if redo else "locked" for redo in held[:, 1].tolist()}
        return found


assert BUCKET_WORDS == FIRST_SLOT + SLOTS_PER_BUCKET
