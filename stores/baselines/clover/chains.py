"""The chains of a `clover` store (store.py has their layout): following them, and looks at all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from limpet.shm.clients.membership import journal_of
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.slots import INCARNATION_BITS
from limpet.shm.endpoint.states import former
from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.shm.errors import NodeFailed, StoreCorrupt
from limpet.stores.baselines.clover.parameters import CloverParameters
from limpet.stores.baselines.clover.server import ROW, heads_in, table_of
from limpet.stores.core import regions
from limpet.stores.core.base import Store
from limpet.stores.core.whole import check_each
from limpet.stores.fusee.links import DEATH
from limpet.stores.fusee.log import LoggedObjects

NEWER: Final = DEATH
DELETED: Final = 1


def newer_of(version: int) -> int:
    """Address of the word of a version that names the next one."""
    return (version & ADDRESS_MASK) + NEWER


def is_version(word: int) -> bool:
    """Whether this word of a shortcut leads to a version."""
    return word != 0 and not word & 1


class Walk:
    """One walk along a chain. Damage can make a chain a ring, which has no end: R. P. Brent's
    search for a cycle, one comparison a step. Pinned, no version comes twice otherwise."""

    def __init__(self) -> None:
        self._mark = 0
        self._steps = 0
        self._limit = 1

    def step(self, version: int) -> None:
        """Go on to `version`. Raises StoreCorrupt in a ring."""
        if version == self._mark:
            raise StoreCorrupt(f"the chain of version {version:#x} is a ring: memory was damaged")
        self._steps += 1
        if self._steps == self._limit:
            self._mark = version
            self._limit *= 2


class Chains(Store):
    """The heads on all nodes and their chains. A subclass gives the operations."""

    def __init__(self, pool: Any, kind: str, name: str, parameters: CloverParameters) -> None:
        super().__init__(pool, kind, name, parameters)
        self.tables = regions.attach(pool, name, parameters.tables, ROW * parameters.heads)
        self.objects = LoggedObjects(pool.heap, 1)

    @staticmethod
    def make(pool: Any, name: str, parameters: CloverParameters) -> None:
        """Make one region a table; zeros are an empty one."""
        regions.make(pool, name, parameters.tables, ROW * parameters.heads)

    @staticmethod
    def unmake(pool: Any, name: str, parameters: CloverParameters) -> None:
        regions.unmake(pool, name, parameters.tables)

    def replaced(self, node: int) -> None:
        self.tables = [former(table, node) for table in self.tables]

    def _follow(self, version: int) -> int:
        """The newest version of this chain, read to the image; 0: its key is deleted."""
        walk = Walk()
        while True:
            self.objects.post(version)
            ticket = self.endpoint.post_load(newer_of(version))
            self.endpoint.wait()
            self.objects.arrived()
            newer = self.endpoint.result(ticket)
            if newer in (0, DELETED):
                return version if newer == 0 else 0
            version = newer
            walk.step(version)

    # ---- all chains -----------------------------------------------------------------------------

    def _table(self, table: int) -> Any:
        """A copy of the heads of a table."""
        raw = self.endpoint.read(self.tables[table], ROW * self.parameters.heads)
        return heads_in(raw)

    def _heads(self) -> Iterator[int]:
        """The address of every head that has a chain."""
        for table, start in enumerate(self.tables):
            words = self.pool.exclusively(lambda table=table: self._table(table))
            for index in np.flatnonzero(words).tolist():
                yield start + ROW * index

    def __len__(self) -> int:
        return sum(1 for _ in self.keys())

    def keys(self) -> Any:
        """Every key, a chain at a time; as weakly consistent as `iter` says."""
        for head in self._heads():
            with self.client:
                self.require_there()
                version = self.endpoint.load(head)
                key = self.objects.key() if version and self._last_of(version) else None
            if key is not None:
                yield key

    def _last_of(self, version: int) -> int:
        """The newest version, read to the image; for looks at all chains."""
        walk = Walk()
        while True:
            newer = self.endpoint.load(newer_of(version))
            if newer in (0, DELETED):
                self.objects.load(version)
                return version if newer == 0 else 0
            version = newer
            walk.step(version)

    def references(self) -> Any:
        """References to all versions on nodes in service, as uint64; for audits."""
        found: list[int] = []
        for table, start in enumerate(self.tables):
            with contextlib.suppress(NodeFailed):  # its versions are on the same node
                for index in np.flatnonzero(self._table(table)).tolist():
                    self.show_progress(index)
                    found += self._chain(start + ROW * index)
        return np.array(found, dtype=np.uint64)

    def _chain(self, head: int) -> list[int]:
        """The versions of a chain, oldest first; perhaps not pinned."""
        while True:
            found = []
            first = version = self.endpoint.load(head)
            while self.heap.plausible(version) and version not in found:
                found.append(version)
                version = self.endpoint.load(newer_of(version))
            # No version was freed that comes after the head's present one.
            if self.endpoint.load(head) == first:
                return found

    def check(self) -> None:
        """Verify every invariant of the chains in memory; StoreCorrupt names one that fails.

        Other clients may be at work. NodeFailed: a table is lost with its node, and no fault was
        found in the others.
        """
        seen: dict[bytes, int] = {}

        def check(table: int) -> None:
            words = self.within(self._table, table)
            for index in np.flatnonzero(words).tolist():
                self._check_chain(table, self.tables[table] + ROW * index, seen)

        check_each(range(self.parameters.tables), check)

    def _check_chain(self, table: int, head: int, seen: dict[bytes, int]) -> None:
        with self.client:
            self.require_there()
            version = self.endpoint.load(head)
            keys = set()
            walk = Walk()
            while version not in (0, DELETED):
                wrong = self._wrong_with(version)
                if wrong:
                    raise StoreCorrupt(f"{self.name}: version {version:#x} of {head:#x}: {wrong}")
                keys.add(self.objects.key())
                walk.step(version)
                version = self.endpoint.load(newer_of(version))
            if len(keys) > 1:
                raise StoreCorrupt(f"{self.name}: the chain of {head:#x} has the keys {keys}")
            for key in keys:
                if table_of(key, self.parameters.tables) != table:
                    raise StoreCorrupt(f"{self.name}: {key!r} does not belong to table {table}")
                # A key deleted and inserted again meanwhile has a new head; its old one is empty.
                if key in seen and self._has(seen[key], key) and self._has(head, key):
                    raise StoreCorrupt(f"{self.name}: {key!r} also has the head {seen[key]:#x}")
                seen[key] = head

    def _wrong_with(self, version: int) -> str:
        """The fault found in a version, or "" if there is none."""
        if not self.heap.plausible(version):
            return "points to no object"
        used = self.heap.used(version)
        self.objects.load(version)
        if not self.objects.fits(version) or not self.objects.intact():
            return "the object's sizes or checksum do not hold"
        # A version that is not the newest may have been collected since we read the one before.
        if not used and self.endpoint.load(newer_of(version)) == 0:
            return "points to an object that is not in use"
        return ""

    def _has(self, head: int, key: bytes) -> bool:
        version = self.endpoint.load(head)
        if not version:
            return False
        self.objects.load(version)
        return bool(self.objects.key_is(key))

    def left_by(self, ident: int) -> set[str]:
        found = set()
        for version, link_address in journal_of(self.endpoint, ident >> INCARNATION_BITS):
            if link_address and self.heap.used(version):
                mine = self._is_head(link_address)
                linked = self.endpoint.load(link_address) == version
                if linked and not mine:
                    found.add("appended")
                if mine and not linked and self.endpoint.load(newer_of(version)):
                    found.add("retired")
        return found

    def _is_head(self, address: int) -> bool:
        at = address - self.tables[address >> NODE_SHIFT]
        return 0 <= at < ROW * self.parameters.heads and at % ROW == 0
