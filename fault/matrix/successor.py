"""The dimension of the crash matrix in which a new client takes the victim's slot.

The survivor of the other dimensions has a slot of its own, so it never meets the traces that the
victim left for the next client of its slot: rows, journals, logs and pins that belong to a slot,
and not to a process. Here the survivor recovers the victim, and a new process opens the pool, takes
the slot and runs every operation of the store, beginning with each of them, on the victim's key and
on another one. Then it leaves, and the demands of `StoreTestbed.inspect` must hold.

A successor that hangs is a verdict, not a drill that hangs (watched.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

from limpet.fault.matrix.operations import (
    BYSTANDER,
    KEY,
    LARGE,
    NEW,
    OLD,
    Broken,
    Operation,
    demand,
)
from limpet.fault.matrix.testbed import PATIENCE_S, StoreTestbed, short, within
from limpet.fault.matrix.watched import run_watched
from limpet.shm.endpoint.slots import INCARNATION_BITS
from limpet.stores.pool import Pool

STEPS_MAX: Final = 100_000
"""The most memory steps of a successor: twenty times as many as it takes."""
OTHER: Final = b"other"
LONGER: Final = b"the successor's value" * 9
CALLS: Final = ("get", "insert", "update", "put", "delete", "put large")
FIRST: Final = {f", its successor begins with {call}": call for call in CALLS}


def one_run(testbed: StoreTestbed, operation: Operation, k: int, first: str) -> bool:
    """Let a victim die at step k, and a successor begin with `first`. Raises Broken.

    Returns whether the operation has that step.
    """
    died = testbed.run(testbed.victim(operation, k))
    ident = testbed.told(0)
    possible = {operation.before, operation.after} if died else {operation.after}
    with within(PATIENCE_S, "the survivor, which recovers the victim"):
        testbed.pool.recover()
    slot = _succeed(testbed, operation, possible, first)
    if ident and ident >> INCARNATION_BITS != testbed.pool.membership.ident >> INCARNATION_BITS:
        demand(
            slot == ident >> INCARNATION_BITS,
            f"the successor has slot {slot}, the victim had {ident >> INCARNATION_BITS}",
        )
    with within(PATIENCE_S, "the survivor, after the successor"):
        testbed.pool.recover()
        testbed.inspect(len(testbed.handles))
        testbed.work({None, NEW, LONGER, LARGE})
        testbed.inspect(len(testbed.handles))
    return died


def _succeed(
    testbed: StoreTestbed, operation: Operation, possible: set[bytes | None], first: str
) -> int:
    """Run a successor to its end; its slot. Broken when it failed or did not end."""
    testbed.shared[:] = bytes(64)
    late = possible if len(possible) > 1 and testbed.store.replicated else set()

    def work(tell: Callable[[str], None]) -> None:
        tell("opening the pool")
        pool = Pool.open(testbed.url)
        testbed.tell(0, pool.membership.ident)
        pool.endpoint.fuse = STEPS_MAX
        store = pool.store(testbed.kind, name="store")
        calls = _Successor(store, tell)
        calls.go(KEY, set(possible), late, first)
        calls.go(OTHER, {None}, set(), first)
        demand(store.get(BYSTANDER) == OLD, f"the successor found {BYSTANDER!r} damaged")
        with contextlib.suppress(KeyError):
            store.delete(OTHER)
        tell(f"the end of {operation.name!r}")
        operation.finish(pool, store)
        tell("leaving")
        store.check()
        pool.close()

    def slot() -> int:
        return testbed.told(0) >> INCARNATION_BITS

    run_watched(work, lambda what: f"the successor, in slot {slot()}, in {what},", STEPS_MAX)
    return slot()


class _Successor:
    """Runs every call on a key, and demands a result that is possible for one of these values.

    `tell`: called with each call before it is made.
    """

    def __init__(self, store: Any, tell: Callable[[str], None]) -> None:
        self.store = store
        self.tell = tell
        self.possible: set[bytes | None] = set()

    def go(
        self, key: bytes, possible: set[bytes | None], late: set[bytes | None], first: str
    ) -> None:
        """Two laps from `first` on. `late`: values that may appear once, at any time: those of an
        operation that others complete."""
        self.possible = possible
        before = CALLS.index(first)
        for call in (CALLS[before:] + CALLS[:before]) * 2:
            self.tell(f"{call!r} of {key!r}")
            self._call(call, key)
            self.tell(f"'get' of {key!r}")
            value = self.store.get(key)
            if value not in self.possible and value in late:
                self.possible, late = {value}, set()
            demand(
                value in self.possible, f"after the successor's {call} the key has {short(value)}"
            )
            self.possible = {value}

    def _call(self, call: str, key: bytes) -> None:
        store, value = self.store, NEW if call == "insert" else LONGER
        there = self.possible - {None}
        try:
            if call == "get":
                return
            if call == "insert":
                store.insert(key, value)
                demand(None in self.possible, "an insert put itself over a value")
            elif call == "update":
                store.update(key, value)
                demand(bool(there), "an update found a key that is not there")
            elif call == "delete":
                store.delete(key)
                demand(bool(there), "a delete found a key that is not there")
            else:
                value = LARGE if call == "put large" else value
                store.put(key, value)
        except KeyError as error:
            refusals = there if call == "insert" else self.possible & {None}
            if call.startswith("put") or not refusals:
                raise Broken(f"the successor's {call} was refused: {error!r}") from error
            self.possible = set(refusals)
            return
        self.possible = {None} if call == "delete" else {value}
