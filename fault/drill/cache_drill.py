"""The drill of the cache: workers that expire, evict, invalidate and compute, and are killed.

The cache has room for a fortieth of the keys. A worker sets, adds and reads entries with a short
time to live, counts, deletes and invalidates tags; and it asks for values that take a while to
compute.
The keys of these are only computed. The supervisor kills workers at random and replaces them. It
demands that
    - the bounds were kept, in items and bytes: once a second all workers stand still, and the
      table is counted
    - no value was served after its deadline: each worker notes in memory that survives it when it
      began to set a key, and when it had set it; a read that was called later than every deadline
      of the key must find nothing
    - no value was computed by two living workers at a time
    - in the end no key is stuck in a computation, the counts are right after three laps, `check()`
      holds, and no memory is leaked
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import mmap
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from limpet.fault.check.cache_state import bounds_fault, excess_fault, stuck_fault
from limpet.fault.drill.drill_base import (
    AUDIT,
    MOVING,
    WORKERS,
    DrillBase,
    Observer,
    RunParameters,
    RunReport,
    nameless_pool,
)
from limpet.fault.inject.counters import GETS, PUTS, Counter, Counters
from limpet.fault.inject.interrupt import Interrupt
from limpet.fault.inject.killer import Victims
from limpet.shm.errors import StoreCorrupt

BOUNDS: Final = "the bounds were kept, in items and bytes"
DEADLINES: Final = "no value was served after its deadline"
FLIGHTS: Final = "no value was computed by two living workers at a time"
STUCK: Final = "no key is stuck in a computation"
INVARIANTS: Final = "check(), and after three laps the counts are right"
CHECKS: Final = (WORKERS, MOVING, BOUNDS, DEADLINES, FLIGHTS, STUCK, INVARIANTS, AUDIT)
NAME: Final = "cache"
TTLS_S: Final = (0.02, 0.2, 3.0)
COMPUTED_TTL_S: Final = 0.02
STALE_S: Final = 0.01
COMPUTE_S: Final = 0.001
TAGS: Final = 40
LOOK_EVERY_S: Final = 1.0
STILL_S: Final = 5.0
DYING_S: Final = 1.0
"""A killed process that has given up its place may take so long until the kernel has ended it."""


@dataclasses.dataclass(frozen=True)
class CacheDrillParameters(RunParameters):
    """Parameters of the drill; `parameters` are the cache's. `keys`: of each of the two sorts."""

    store: str = "cache"
    clients: int = 8
    kill_rate: float = 50.0
    stop_rate: float = 0.0
    nodes: int = 1
    node_size: int = 32 << 20
    keys: int = 300
    value_size: int = 400

    @property
    def max_items(self) -> int:
        return max(8, self.keys // 20)

    @property
    def max_bytes(self) -> int:
        """Three quarters of what so many items take on average."""
        return max(4096, self.max_items * (64 + 40 + self.value_size // 2) * 3 // 4)


@dataclasses.dataclass(frozen=True)
class CacheDrillReport(RunReport):
    """The result. `stats`: those of the cache; `looks`: how often the table was counted."""

    parameters: CacheDrillParameters
    stats: dict[str, int]
    looks: int


class Notes:
    """The notes of workers for each other, in memory that outlives them: arrays of 64-bit words."""

    def __init__(self, slots: int, keys: int) -> None:
        size = slots * keys
        words = np.frombuffer(mmap.mmap(-1, 8 * (2 * size + keys + 3 * slots)), np.int64)
        self.setting = words[:size].reshape(slots, keys)
        """Whether the worker of a slot is setting a key."""
        self.until = words[size : 2 * size].reshape(slots, keys)
        """The deadline of the last value that it set, or a later time, in us."""
        self.computing = words[2 * size : 2 * size + keys]
        """The pid that computes a key."""
        self.late, self.twice, self.reads = words[2 * size + keys :].reshape(3, slots)


def run(parameters: CacheDrillParameters, observer: Observer) -> CacheDrillReport:
    """Run the drill; call it from the main thread. As bank.run."""
    with contextlib.ExitStack() as stack:
        interrupt = stack.enter_context(Interrupt())
        pool = stack.enter_context(nameless_pool(parameters, parameters.node_size))
        drill = CacheDrill(parameters, observer, interrupt, pool)
        drill.work()
        return drill.verify()


class CacheDrill(DrillBase[CacheDrillParameters]):
    """One drill of the cache."""

    def __init__(
        self, parameters: CacheDrillParameters, observer: Observer, interrupt: Interrupt, pool: Any
    ) -> None:
        super().__init__(parameters, observer, interrupt, pool, CHECKS)
        given = {"max_items": parameters.max_items, "max_bytes": parameters.max_bytes}
        self.cache = pool.cache(NAME, **{**given, **parameters.parameters})
        self.notes = Notes(parameters.clients, parameters.keys)
        self.looks = 0

    def work(self) -> None:
        """Let the workers work for the given time, and kill them meanwhile."""
        counters = Counters(self.parameters.clients)

        def client(slot: int, incarnation: int) -> None:
            counter = counters.counter(slot)
            counter.start(os.getpid(), self.pool.client_id)
            rng = random.Random(self.parameters.seed << 32 | incarnation)
            CacheWorker(self.cache, self.parameters, self.notes, slot, rng, counter).work()

        looks = int(self.parameters.seconds / LOOK_EVERY_S)
        planned = [(LOOK_EVERY_S * number, self._look_at_bounds) for number in range(1, looks)]
        self.run_clients(client, counters, planned)
        if not self.supervisor.failed and not self.last.snapshot.operations(GETS):
            self.checks[MOVING].append("no entry was read in the whole run")

    def _look_at_bounds(self) -> None:
        """Count the table while all workers stand still."""
        victims = self.supervisor.victims
        pids = [pid for pid in list(victims.pids) if _sent(victims, pid, signal.SIGSTOP)]
        try:
            if all(_stands_still(pid) for pid in pids):
                fault = self.pool.exclusively(lambda: bounds_fault(self.cache.store))
                self.looks += 1
                if fault and len(self.checks[BOUNDS]) < 5:
                    self.checks[BOUNDS].append(fault)
        finally:
            for pid in pids:
                _sent(victims, pid, signal.SIGCONT)

    def verify(self) -> CacheDrillReport:
        """Judge everything."""
        notes = self.notes
        if notes.late.sum():
            self.checks[DEADLINES].append(f"{notes.late.sum()} reads got a value that had expired")
        if notes.twice.sum():
            self.checks[FLIGHTS].append(f"{notes.twice.sum()} computations of a living worker's")
        if not self.looks:
            self.checks[BOUNDS].append("the workers never stood still for a count")
        stats = dict(self.cache.stats())
        with self.timed("verify"), self.unblocked():
            self.look("looking for stuck keys", STUCK, self._find_stuck)
            self.recover()
            self.look("checking the invariants", INVARIANTS, self._check)
            self.account()
        return CacheDrillReport(**self.outcome(), stats=stats, looks=self.looks)

    def _find_stuck(self) -> None:
        store, codec = self.cache.store, self.cache.codec
        for number in range(self.parameters.keys):
            fault = stuck_fault(store, codec.encode_key(("computed", number)))
            if fault:
                self.checks[STUCK].append(fault)

    def _check(self) -> None:
        store = self.cache.store
        fault = bounds_fault(store) or excess_fault(store)
        store.check()
        if fault:
            raise StoreCorrupt(fault)


class CacheWorker:
    """A worker: calls of the cache, each with its result looked at."""

    def __init__(
        self, cache: Any, parameters: CacheDrillParameters, notes: Notes, slot: int,
        rng: random.Random, counter: Counter,
    ) -> None:  # fmt: skip
        self.cache = cache
        self.parameters = parameters
        self.notes = notes
        self.slot = slot
        self.rng = rng
        self.counter = counter
        self.acts: list[Callable[[int], object]] = [
            *[self.read] * 6, *[self.write] * 3, *[self.compute] * 4, self.add, self.count,
            self.delete, self.invalidate,
        ]  # fmt: skip

    def work(self) -> None:
        """Work until the parent says stop."""
        for number in np.flatnonzero(self.notes.setting[self.slot]).tolist():
            self._have_set(
                number, max(TTLS_S)
            )  # the worker before this one was killed as it set this key
        while not self.counter.stopped:
            act = self.rng.choice(self.acts)
            number = min(int(self.rng.paretovariate(0.5)), self.parameters.keys) - 1
            began = time.perf_counter_ns()
            act(number)
            kind = GETS if act in (self.read, self.compute) else PUTS
            self.counter.add(kind, self.parameters.value_size, time.perf_counter_ns() - began)

    def read(self, number: int) -> None:
        called_us = time.time_ns() // 1000
        if self.cache.get(("set", number)) is None:
            return
        notes = self.notes
        self.notes.reads[self.slot] += 1
        if not notes.setting[:, number].any() and called_us > notes.until[:, number].max():
            # Looked at after the read, so a set that has begun since then is noted.
            notes.late[self.slot] += 1

    def write(self, number: int) -> None:
        self._set(number, self.cache.set)

    def add(self, number: int) -> None:
        self._set(number, self.cache.add)

    def _set(self, number: int, call: Callable[..., object]) -> None:
        value = bytes(self.rng.randrange(self.parameters.value_size))
        ttl = self.rng.choice(TTLS_S)
        self.notes.setting[self.slot, number] = 1
        call(("set", number), value, ttl=ttl, tags=[f"tag {number % TAGS}"])
        self._have_set(number, ttl)

    def _have_set(self, number: int, ttl: float) -> None:
        # An earlier value may outlive this one, if a set of it was refused.
        until = max(
            int(self.notes.until[self.slot, number]), time.time_ns() // 1000 + int(1e6 * ttl)
        )
        self.notes.until[self.slot, number] = until
        self.notes.setting[self.slot, number] = 0

    def count(self, number: int) -> None:
        self.cache.incr(("count", number), initial=0, ttl=min(TTLS_S))

    def delete(self, number: int) -> None:
        self.cache.delete(("set", number))

    def invalidate(self, number: int) -> None:
        self.cache.invalidate(f"tag {number % TAGS}")

    def compute(self, number: int) -> None:
        self.cache.get_or_compute(
            ("computed", number),
            functools.partial(self._computed, number),
            ttl=COMPUTED_TTL_S,
            stale=STALE_S,
        )

    def _computed(self, number: int) -> bytes:
        computing = self.notes.computing
        other = int(computing[number])
        if other and other != os.getpid() and self._lives(other, number):
            self.notes.twice[self.slot] += 1
        computing[number] = os.getpid()
        time.sleep(COMPUTE_S)
        computing[number] = 0
        return bytes(self.rng.randrange(self.parameters.value_size))

    def _lives(self, other: int, number: int) -> bool:
        """Whether a worker that was computing lives: it comes to its end, or is no zombie soon."""
        end = time.monotonic() + DYING_S
        while time.monotonic() < end:
            if _state(other) in ("", "Z", "X"):
                return False
            if int(self.notes.computing[number]) != other:
                return True
            time.sleep(0.0005)
        return True


def _state(pid: int) -> str:
    """The state of a process, as the kernel names it; "": there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _sent(victims: Victims, pid: int, number: signal.Signals) -> bool:
    """Send a signal; False: the process has ended."""
    try:
        victims.send(pid, number)
    except ProcessLookupError:
        return False
    return True


def _stands_still(pid: int) -> bool:
    """Wait until a process that was sent SIGSTOP stands still, or has ended."""
    end = time.monotonic() + STILL_S
    while _state(pid) not in ("T", "t", "Z", "X", ""):
        if time.monotonic() > end:
            return False
        time.sleep(0.0002)
    return True
