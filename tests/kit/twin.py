"""A store kind for the tests of the proof machinery: two copies of each pair under one lock.

The copies lie on both sides of a `race` store, one on each memory node: a key has a name on each
side, with the first number by which it belongs there. Writers hold the lock of every node in
service, and write the second side before the first; readers take the first side in service, without
a lock. So what is read is on all sides in service. A dead client's lock is taken over, a stopped
one is fenced.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final

from limpet.fault.matrix.fault_profile import FAULT_PROFILES, FaultProfile
from limpet.shm.catalogue.regions import PART
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.errors import KeyExists, NodeFailed
from limpet.stores.core.base import Store, made_for
from limpet.stores.race.store import Race
from limpet.stores.registry import KINDS, Kind

NODES: Final = 2


class Side:
    """The keys of a `race` store that belong on a memory node."""

    def __init__(self, race: Any, node: int) -> None:
        self.race = race
        self.node = node

    def named(self, key: bytes) -> bytes:
        """A key's name here."""
        names = (b"%s#%d" % (key, count) for count in itertools.count())
        return next(name for name in names if self.race.index.table_of(name) == self.node)

    def get(self, key: bytes, default: Any = None) -> Any:
        return self.race.get(self.named(key), default)

    def put(self, key: bytes, value: bytes) -> None:
        self.race.put(self.named(key), value)

    def delete(self, key: bytes) -> None:
        self.race.delete(self.named(key))

    def keys(self) -> list[bytes]:
        found = self.race.checker.keys_of(self.race.within, self.node)
        return [name.rpartition(b"#")[0] for name in found]

    def check(self) -> None:
        self.race.checker.check_of(self.race.within, self.node, {})


class Twin(Store):  # type: ignore[misc]
    """Survives the loss of one of its two nodes."""

    Parameters = Race.Parameters
    losses_survived = 1
    order: tuple[int, ...] = (1, 0)
    """In which the sides are written."""

    def __init__(self, pool: Any, kind: str, name: str, parameters: Any) -> None:
        super().__init__(pool, kind, name, parameters)
        given = (pool, kind, name, parameters)
        self.race = made_for(Race, self.entry_number, self.entry_word, *given)
        self.sides = [Side(self.race, node) for node in range(NODES)]
        self.locks = []
        for node in range(NODES):
            try:
                self.locks.append(_lock(pool, name, node))
            except NodeFailed:
                self.locks.append(node << NODE_SHIFT)

    @staticmethod
    def make(pool: Any, name: str, parameters: Any) -> None:
        Race.make(pool, name, parameters)
        for node in range(NODES):
            _lock(pool, name, node)

    @staticmethod
    def unmake(pool: Any, name: str, parameters: Any) -> None:
        Race.unmake(pool, name, parameters)
        for node in range(NODES):
            with contextlib.suppress(NodeFailed):
                pool.regions.discard(node, f"{name}{PART}lock {node}")

    # ---- the lock -------------------------------------------------------------------------------

    def replaced(self, node: int) -> None:
        self.race.replaced(node)

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
        return int(self._first(lambda side: len(side.keys())))

    def keys(self) -> Any:
        return self._first(lambda side: side.keys())

    def references(self) -> Any:
        return self.race.references()

    def check(self) -> None:
        self._each(lambda side: side.check())


class FirstSideFirst(Twin):
    """Known to be bad: a value is read that is not yet on the other side."""

    order = (0, 1)


def _lock(pool: Any, name: str, node: int) -> int:
    return int(pool.regions.obtain(node, f"{name}{PART}lock {node}", 64).address)


@contextlib.contextmanager
def registered(kind: str, cls: type) -> Iterator[None]:
    """Register a class of this module as a store kind for this block."""
    KINDS[kind] = Kind(__name__, cls.__name__)
    FAULT_PROFILES[kind] = FaultProfile(matrix_nodes=NODES, explorer_nodes=NODES)
    try:
        yield
    finally:
        del KINDS[kind], FAULT_PROFILES[kind]
