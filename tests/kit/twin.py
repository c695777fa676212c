"""A store kind for tests of matrix and explorer: two copies of a `race` store under one lock.

Each side is the source of `race`, made to put everything on one node. Writers hold the lock of
every node in service, and write the second side before the first; readers take the first side in
service, without a lock. So what is read is on all sides in service. A dead client's lock is taken
over, a stopped one is fenced.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from kit.mutants.race import race_from_source
from limpet.fault.matrix.fault_profile import FAULT_PROFILES, FaultProfile
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.errors import KeyExists, NodeFailed
from limpet.stores.base import Store
from limpet.stores.race.parameters import RaceParameters
from limpet.stores.registry import KINDS, Kind

NODES: Final = 2


EACH: Final = "for subtable in range(self.subtables)"
ITS: Final = "for subtable in (self.side,)"
AROUND: Final = (
    (EACH, ")\n        )\n"),
    (EACH, ":\n            with contextlib"),
    (EACH, ":\n            for group in range(self.groups):\n                yield"),
    (EACH, ":\n            try:"),
)
Side: Final = race_from_source(
    ("self.table = (self.hash >> 32) * self.subtables >> 32", "self.table = self.side"),
    ("return (hash64(key) >> 32) * self.subtables >> 32", "return self.side"),
    *((each + after, ITS + after) for each, after in AROUND),
)
"""Race, with all of its keys in the subtable `side`."""
SIDES: Final = tuple(type(f"Side{side}", (Side,), {"side": side}) for side in range(NODES))


class TwinParameters(RaceParameters):
    """Each side has room for `capacity` keys."""

    @classmethod
    def for_pool(cls, pool: Any, layout: Any, *, capacity: Any = None) -> TwinParameters:
        wanted = 64 if capacity is None else capacity
        room = RaceParameters.for_pool(pool, layout, capacity=wanted)
        room = RaceParameters.for_pool(pool, layout, capacity=NODES * room.capacity)
        return cls(wanted, room.subtables, room.groups)


class Twin(Store):  # type: ignore[misc]
    """Survives the loss of one of its two nodes."""

    Parameters = TwinParameters
    losses_survived = 1
    order: tuple[int, ...] = (1, 0)
    """In which the sides are written."""

    def __init__(self, pool: Any, kind: str, name: str, parameters: Any) -> None:
        super().__init__(pool, kind, name, parameters)
        self.sides = [side(pool, kind, name, parameters) for side in SIDES]
        self.locks = []
        for node in range(NODES):
            try:
                self.locks.append(_lock(pool, name, node))
            except NodeFailed:
                self.locks.append(node << NODE_SHIFT)

    @staticmethod
    def make(pool: Any, name: str, parameters: Any) -> None:
        Side.make(pool, name, parameters)
        for node in range(NODES):
            _lock(pool, name, node)

    @staticmethod
    def unmake(pool: Any, name: str, parameters: Any) -> None:
        Side.unmake(pool, name, parameters)
        for node in range(NODES):
            with contextlib.suppress(NodeFailed):
                pool.regions.discard(node, f"{name}/lock {node}")

    # ---- the lock -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of every node in service."""
        held: list[int] = []
        try:
            for lock in self.locks:
                with contextlib.suppress(NodeFailed):
                    self.pool.exclusively(lambda lock=lock: self._acquire(lock))
                    held.append(lock)
            yield
        finally:
            for lock in held:
                with contextlib.suppress(NodeFailed):
                    self.endpoint.cas(lock, self.pool.membership.ident, 0)

    def _acquire(self, lock: int) -> None:
        membership, attempt = self.pool.membership, 0
        while holder := self.endpoint.cas(lock, 0, membership.ident):
            if membership.gone(holder, "the lock of a store"):
                if self.endpoint.cas(lock, holder, membership.ident) == holder:
                    return
            else:
                attempt += 1
                self.endpoint.pause(attempt)

    # ---- operations -----------------------------------------------------------------------------

    def _first(self, work: Callable[[Any], Any]) -> Any:
        """Do `work` on the first side in service."""
        try:
            return work(self.sides[0])
        except NodeFailed:
            return work(self.sides[1])

    def _each(self, work: Callable[[Any], Any]) -> None:
        """Do `work` on every side in service."""
        failures = []
        for side in self.order:
            try:
                work(self.sides[side])
            except NodeFailed as error:
                failures.append(error)
        if len(failures) == NODES:
            raise failures[0]

    def get(self, key: Any, default: Any = None) -> Any:
        return self._first(lambda side: side.get(key, default))

    def put(self, key: Any, value: Any) -> None:
        with self._locked():
            self._each(lambda side: side.put(key, value))

    def insert(self, key: Any, value: Any) -> None:
        with self._locked():
            if self.get(key) is not None:
                raise KeyExists(f"{self.name}: the key {key!r} is there already")
            self._each(lambda side: side.put(key, value))

    def update(self, key: Any, value: Any) -> None:
        with self._locked():
            if self.get(key) is None:
                raise KeyError(key)
            self._each(lambda side: side.put(key, value))

    def delete(self, key: Any) -> None:
        def remove(side: Any) -> None:
            with contextlib.suppress(KeyError):  # a dead client had begun to
                side.delete(key)

        with self._locked():
            if self.get(key) is None:
                raise KeyError(key)
            self._each(remove)

    def __len__(self) -> int:
        return int(self._first(len))

    def keys(self) -> Any:
        return self._first(lambda side: list(side.keys()))

    def references(self) -> Any:
        return np.concatenate([side.references() for side in self.sides])

    def check(self) -> None:
        self._each(lambda side: side.check())


class FirstSideFirst(Twin):
    """Known to be bad: a value is read that is not yet on the other side."""

    order = (0, 1)


def _lock(pool: Any, name: str, node: int) -> int:
    return int(pool.regions.obtain(node, f"{name}/lock {node}", 64).address)


@contextlib.contextmanager
def registered(kind: str, cls: type) -> Iterator[None]:
    """Have a class of this module be a store kind meanwhile."""
    KINDS[kind] = Kind(__name__, cls.__name__)
    FAULT_PROFILES[kind] = FaultProfile(matrix_nodes=NODES, explorer_nodes=NODES)
    try:
        yield
    finally:
        del KINDS[kind], FAULT_PROFILES[kind]
