"""The crash matrix of `cache`: operations that only a cache has, and what it promises besides.

The cache is roomy in most rows: then it has to keep what any store keeps, and the rows are those of
crash_matrix.py. In the rows of FULL, it is full before each run, so the operation evicts; an entry
may be gone then, and no call may be refused.

Besides the demands of the matrix, at each step at which the victim is killed or stopped
    - the linked entries are within the bounds, in items and bytes, and within the ledger's counts;
      before any recovery, after it, and after the survivor's work
and in the end
    - no key is stuck in the computation of a dead client
    - the counts that the kill has left too high are right after three laps
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from limpet.fault.check.cache_state import bounds_fault, excess_fault, stuck_fault
from limpet.fault.inject.workers import Workers
from limpet.fault.matrix.crash_matrix import DIMENSIONS, LIMIT, Matrix
from limpet.fault.matrix.fault_profile import profile_of
from limpet.fault.matrix.matrix_result import MatrixResult
from limpet.fault.matrix.operations import (
    KEY,
    NEW,
    OLD,
    OPERATIONS,
    Operation,
    demand,
)
from limpet.fault.matrix.testbed import StoreTestbed, look_away, short
from limpet.stores.cache.flight import Computation, Flights, Seat
from limpet.stores.cache.layout import SWAP
from limpet.stores.cache.validity import Terms
from limpet.stores.core.status import DONE, INSERT, PUT
from limpet.stores.pool import Pool

TAG: Final = 5
LONG_MS: Final = 60_000
BRIEF: Final = Terms(1)
BRIEF_STALE: Final = Terms(1, stale=LONG_MS)
OVER_S: Final = 0.003
"""After this, an entry with the terms BRIEF has expired."""
NUMBER: Final = b"41"
SUM: Final = b"42"
FILLER: Final = b"f" * 2000
WIDE: Final = b"w" * 20_000
"""A value for which several of the others have to go."""
FULL_ITEMS: Final = 12
FULL_BYTES: Final = 40_000
FEWER_ITEMS: Final = 4
SPARED: Final = frozenset({"put over, hoarded memory", "make in vain"})
"""Rows of all other stores that say nothing of a cache: it evicts where they find no memory, and a
small one can always be made."""


def _refuse_unless(done: bool) -> None:
    """Tell the matrix that the victim's operation was refused."""
    if not done:
        raise KeyError(KEY)


def _added(pool: Pool, kv: Any) -> None:
    terms = Terms(LONG_MS, LONG_MS, 0, TAG)
    _refuse_unless(kv.write(KEY, NEW, INSERT, terms) == DONE)


def _swapped(pool: Pool, kv: Any) -> None:
    """As `Cache.cas` and `Cache.incr` do it."""
    found = kv.entry(KEY)
    _refuse_unless(found is not None and found[0] == NUMBER)
    _refuse_unless(kv.write(KEY, SUM, SWAP, Terms(checksum=found[1], keep=True)) == DONE)


def _computed(pool: Pool, kv: Any) -> None:
    """As `Cache.get_or_compute` does it."""
    seat = Flights(kv).board(Computation(kv, KEY, KEY, LONG_MS))
    _refuse_unless(seat.mine and kv.finish_flight(KEY, NEW, _landing(seat)))


def _landing(seat: Seat) -> Terms:
    return Terms(birth=seat.birth, flight=seat.flight)


def _given_up(pool: Pool, kv: Any) -> None:
    call = Computation(kv, KEY, KEY, LONG_MS)
    _refuse_unless(Flights(kv).board(call).mine)
    call.abandon()


def _flown_by_the_dead(pool: Pool, kv: Any) -> None:
    """Leave the key in the computation of a client that is dead, and recovered."""
    if KEY in kv:
        kv.delete(KEY)
    kv.purge(KEY)

    def die(slot: int, incarnation: int) -> None:
        look_away(pool)
        kv.begin_flight(KEY, 0, LONG_MS)
        os._exit(0)

    with Workers(die) as workers:
        workers.reap(workers.start(0))
    pool.recover()


def _expired(terms: Terms) -> Callable[[Pool, Any], None]:
    def set_up(pool: Pool, kv: Any) -> None:
        kv.write(KEY, OLD, PUT, terms)
        time.sleep(OVER_S)

    return set_up


def _tagged(pool: Pool, kv: Any) -> None:
    kv.write(KEY, OLD, PUT, Terms(tags=TAG))


def _invalidated(pool: Pool, kv: Any) -> None:
    kv.invalidate(TAG)
    _refuse_unless(KEY not in kv)  # set without the tag, while the victim stood still


def _rounds(pool: Pool, kv: Any) -> None:
    """Send the hand round, and have laps end."""
    for _ in range(6):
        kv.within(kv.hand.step, 0, False, True)


def _fill(kv: Any, terms: Terms) -> None:
    if KEY in kv:
        kv.delete(KEY)
    for number in range(kv.parameters.max_items):
        kv.write(b"filler %d" % number, FILLER, PUT, terms)


def _filled(pool: Pool, kv: Any) -> None:
    _fill(kv, kv.usual)


def _filled_once_more(pool: Pool, kv: Any) -> None:
    kv.resize(FULL_ITEMS, FULL_BYTES)
    _fill(kv, kv.usual)


def _filled_with_expired(pool: Pool, kv: Any) -> None:
    _fill(kv, BRIEF)
    time.sleep(OVER_S)


def _warm(pool: Pool, kv: Any) -> object:
    return OPERATIONS["insert"].warm(pool, kv)


def _own(name: str, run: Callable[[Pool, Any], object], before: Any, after: Any,
         set_up: Callable[[Pool, Any], object] | None = None) -> Operation:  # fmt: skip
    return Operation(name, run, before, after, _warm, set_up=set_up)


OWN: Final = {
    operation.name: operation
    for operation in (
        _own("add with tags, sliding", _added, None, NEW),
        _own("add over expired", _added, None, NEW, _expired(BRIEF)),
        _own("incr", _swapped, NUMBER, SUM),
        _own("take", lambda pool, kv: _refuse_unless(kv.take(KEY) is not None), OLD, None),
        _own("touch", lambda pool, kv: kv.touch(KEY, Terms(LONG_MS, LONG_MS)), OLD, OLD),
        _own("invalidate a tag", _invalidated, OLD, None, _tagged),
        _own("expire", lambda pool, kv: kv.purge(KEY), None, None, _expired(BRIEF)),
        _own("compute", _computed, None, NEW),
        _own("compute after the dead", _computed, None, NEW, _flown_by_the_dead),
        _own("compute anew", _computed, None, NEW, _expired(BRIEF_STALE)),
        _own("compute in vain", _given_up, None, None),
        _own("hand", _rounds, OLD, OLD),
    )
}
FULL: Final = {
    operation.name: operation
    for operation in (
        Operation("evict", lambda pool, kv: kv.put(KEY, NEW), None, NEW, set_up=_filled),
        Operation("evict many", lambda pool, kv: kv.put(KEY, WIDE), None, WIDE, set_up=_filled),
        Operation(
            "evict expired", lambda pool, kv: kv.put(KEY, NEW), None, NEW,
            set_up=_filled_with_expired,
        ),
        Operation(
            "resize", lambda pool, kv: kv.resize(FEWER_ITEMS, FULL_BYTES // 2), None, None,
            set_up=_filled_once_more,
        ),
    )
}  # fmt: skip
CACHE_OPERATIONS: Final[Mapping[str, Operation]] = {
    **{name: operation for name, operation in OPERATIONS.items() if name not in SPARED},
    **OWN,
    **FULL,
}


class CacheTestbed(StoreTestbed):
    """A pool with a cache that has room for all that the matrix does."""

    def within_bounds(self) -> None:
        self._demand_no(self.pool.exclusively(lambda: bounds_fault(self.store)))

    @staticmethod
    def _demand_no(fault: str) -> None:
        demand(not fault, fault)

    def work(self, possible: set[bytes | None]) -> bytes | None:
        self.within_bounds()
        found = super().work(possible)
        self.within_bounds()
        return found

    def aftermath(self, operation: Operation, possible: set[bytes | None], first: str) -> None:
        self.within_bounds()
        super().aftermath(operation, possible, first)

    def inspect(self, clients: int) -> None:
        self.within_bounds()
        self._demand_no(stuck_fault(self.store, KEY))
        if self.store.get(KEY) is None:
            with contextlib.suppress(KeyError):
                self.store.delete(KEY)  # an expired entry counts in len() of the store
        super().inspect(clients)
        self._demand_no(excess_fault(self.store))
        self.store.check()
        self.account(clients)


class FullTestbed(CacheTestbed):
    """A pool with a cache that is full before each run."""

    def __init__(self, url: str, kind: str, fence: str = "kill") -> None:
        super().__init__(url, kind, fence)
        self.pool.drop("store")
        self.bystanders = ()
        parameters = {**profile_of(kind).matrix_parameters, **FULL_BOUNDS}
        self.store = self.pool.store(kind, name="store", **parameters)

    def _work(self, possible: set[bytes | None]) -> bytes | None:
        """Set and delete the key: whatever is there or counted, a full cache refuses nothing."""
        kv = self.store
        first = kv.get(KEY)
        demand(first in possible, f"the key has {short(first)}")
        for value in (b"survivor 1", b"survivor 3"):
            kv.put(KEY, value)
            demand(kv.get(KEY) == value, "the survivor's put was lost")
        return first  # type: ignore[no-any-return]

    def inspect(self, clients: int) -> None:
        self.within_bounds()
        self.store.check()
        self.account(clients)
        self._demand_no(excess_fault(self.store))


FULL_BOUNDS: Final = {"max_items": FULL_ITEMS, "max_bytes": FULL_BYTES}


def run(
    kind: str,
    operations: list[str] | None = None,
    limit: int | None = LIMIT,
    dimensions: Sequence[str] | None = None,
    step: int | None = None,
    testbeds: tuple[Callable[..., StoreTestbed], ...] = (CacheTestbed, FullTestbed),
) -> Iterator[MatrixResult]:
    """A MatrixResult for every dimension of every operation of a cache. As crash_matrix.run.

    A successor's calls rely on what it wrote, so it has no row in a full cache.
    """
    roomy, full = (Matrix(kind, limit, testbed, step) for testbed in testbeds)
    chosen = DIMENSIONS if dimensions is None else dimensions
    for name in operations or list(CACHE_OPERATIONS):
        for dimension in chosen:
            if name not in FULL:
                yield roomy.run(CACHE_OPERATIONS[name], dimension)
            elif dimension not in ("succeeded", "node lost"):
                yield full.run(CACHE_OPERATIONS[name], dimension)
    if (not operations or "insert" in operations) and "killed twice" in chosen and step is None:
        yield roomy.past_the_dead()
