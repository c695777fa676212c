"""The cache in the simulator: its own programs, its clock, and what it promises.

The cache is full at first, so that clients evict; its clock is fast, so that deadlines pass while
clients are at work. The calls of a program, besides those of any store (sim_program.py):

    e   set, for TTL_MS
    s   set, for TTL_MS, sliding
    v   invalidate all entries, as `Cache.clear` does
    b   resize the cache, to fewer items or back to those that it was made for
    f   as `get_or_compute`: wait for the value, or compute it
    k   as `incr`: compare and set

The survivors demand, besides what they demand of any store (explorer.py)
    - at each atomic step of each client the bounds are kept, in items and bytes, and the ledger
      counts no less than there is
    - no get or computation that was called after the deadline of a value returned it
    - no key was computed by two living clients at a time, unless it was set, deleted or invalidated
      meanwhile
    - in the end no key is stuck in a computation, and after three laps the counts are right
    - the history is that of registers that may lose their value at any time: a miss is a write of
      nothing. Sliding entries are left out: a read that is late may put off a deadline that another
      client has seen pass
"""

from __future__ import annotations

import contextlib
import functools
import random
from typing import Any, Final, NamedTuple

from limpet.fault.check.cache_state import bounds_fault, excess_fault, stuck_fault
from limpet.fault.check.history import Record
from limpet.fault.check.linearizability import check
from limpet.fault.explore.schedule import Chooser
from limpet.fault.explore.sim_cluster import INITIAL, SimulatedCluster
from limpet.fault.explore.sim_program import ABSENT, KINDS, PRESENT, RECOVER, Call, Program
from limpet.fault.explore.sim_run import Run
from limpet.shm.endpoint.simulated import SimulatedEndpoint
from limpet.shm.errors import KeyExists, LimpetError
from limpet.stores.cache.layout import LANDED, MINE, SWAP, pilot_of
from limpet.stores.cache.validity import Terms
from limpet.stores.core.status import DONE, PUT

SPEED: Final = 64
"""The cache's clock goes so many times as fast as the leases' clock."""
TTL_MS: Final = 2
PATIENCE_MS: Final = 1 << 24
TAG: Final = 7
NEVER: Final = 1 << 62
ATOMIC: Final = frozenset(("cas", "faa"))
WAITS_MAX: Final = 200
"""Looks of a client that waits for a computation, at most; then it gives up, as it may."""
_DRAWN: Final = "eeesgggggdpuifffkvb"
_OF_FLIGHTS: Final = "ffffgg"
FEWER: Final = 3
"""Items by which a resize makes the cache smaller."""
NOTHING: Final = b"nothing"
"""The value that a miss writes, in the history of registers."""
USUAL: Final = Terms(tags=TAG)
BRIEF: Final = Terms(TTL_MS, tags=TAG)
SLIDING: Final = Terms(TTL_MS, TTL_MS, tags=TAG)


class Write(NamedTuple):
    """A value that was set: the key, whether it slides, and its time to live in us."""

    key: bytes
    slides: bool
    ttl_us: int


class CacheCluster(SimulatedCluster):
    """A cluster with a cache, whose clients share one fast clock."""

    def now_us(self) -> int:
        """The cache's clock, from a time on at which all simulated clocks have begun."""
        return int(self.clock * 1e6 * SPEED)

    def _prepare(self) -> None:
        for pool in self.pools:
            pool.endpoint.now_us = self.now_us
        super()._prepare()


class CacheRun(Run):
    """One run of a program of calls of a cache."""

    cluster: CacheCluster

    def __init__(self, cluster: CacheCluster, program: Program, chooser: Chooser) -> None:
        super().__init__(cluster, program, chooser)
        self.written: dict[bytes, Write] = {}
        self.lives_until: dict[bytes, int] = {}
        """By label, the latest deadline that the value can have had."""
        self.computing: dict[bytes, tuple[int, int]] = {}
        """By key, the client that computes its value, and the number of changes before that."""
        self.changes: dict[bytes, int] = {}
        """By key, how many operations that end a computation have begun or ended."""
        self.changing: dict[bytes, int] = {}
        """How many of them have begun and not ended."""

    def turn(self, endpoint: SimulatedEndpoint, verb: str, addr: int, words: int) -> int:
        if verb in ATOMIC and not self.failure:
            fault = bounds_fault(self.cluster.store)
            if fault:
                self.failure = f"bounds: {fault}"
        return super().turn(endpoint, verb, addr, words)

    # ---- the clients ----------------------------------------------------------------------------

    def perform(self, store: Any, client: int, kind: str, key: bytes, label: Any) -> None:
        number = len(self.history)
        label = b"%d.%d" % (client, number)
        called = Record(client, "get", key, None, "unknown", None, self._tick(), None)
        if kind not in ("get", "compute"):
            self._change(key, 1)
            called = called._replace(op="put", value=NOTHING)
        self.history.append(called)
        began = self.cluster.now_us()
        op, value = self._done(store, client, kind, key, label, number, began)
        if kind not in ("get", "compute"):
            self._change(key, -1)
        if op:
            read = value if op == "get" else None
            written = value if op == "put" else None
            self.history[number] = called._replace(
                op=op, value=written, result="ok", read=read, return_ns=self._tick()
            )
        else:
            self.history[number] = called._replace(op="", return_ns=self._tick())

    def _done(
        self, store: Any, client: int, kind: str, key: bytes, label: bytes, number: int, began: int
    ) -> tuple[str, bytes]:
        """Do a call: its effect as a register's, "get" or "put", and the value; "" if none."""
        if kind == "get":
            return self._got(store.get(key), key, began)
        if kind == "compute":
            return self._computed(store, client, key, label, number, began)
        if kind == "delete":
            with contextlib.suppress(KeyError):
                store.delete(key)
            return "put", NOTHING
        if kind == "resize":
            made = store.parameters.max_items
            store.resize(made if store.limits()[0] != made else made - FEWER, None)
            return "", b""
        if kind == "invalidate":
            for other in PRESENT + ABSENT:
                self._change(other, 1)
            store.invalidate(0)
            for other in PRESENT + ABSENT:
                self._change(other, -1)
            return "put", NOTHING
        terms, mode = {"set briefly": (BRIEF, PUT), "set sliding": (SLIDING, PUT)}.get(
            kind, (USUAL, PUT)
        )
        self._write(number, key, label, terms)
        data = self.cluster.value_of(label)
        if kind == "swap":
            found = store.entry(key)
            if found is None:
                return self._missed(number)
            self._got(found[0], key, began)
            swap = Terms(checksum=found[1], keep=True)
            if store.write(key, data, SWAP, swap) != DONE:
                return "", b""
            # its deadline and tags are those of the value that it replaces
            replaced = self.cluster.label_of(found[0])
            slides = replaced in self.written and self.written[replaced].slides
            self.written[label] = Write(key, slides, 0)
            self.lives_until[label] = max(NEVER if slides else 0, self._until(replaced))
            return "put", label
        try:
            if kind in ("insert", "update"):
                getattr(store, kind)(key, data)
            else:
                store.write(key, data, mode, terms)
        except KeyExists:
            return "", b""
        except KeyError:
            return self._missed(number)
        self._lives(label)
        return "put", label

    def _missed(self, number: int) -> tuple[str, bytes]:
        return "put", NOTHING

    def _write(self, number: int, key: bytes, label: bytes, terms: Terms) -> None:
        """Note what is about to be written: its client may die before it tells more."""
        self.history[number] = self.history[number]._replace(op="put", value=label)
        self.written[label] = Write(key, bool(terms.slide), terms.span * 1000)
        self.lives_until[label] = NEVER

    def _lives(self, label: bytes) -> None:
        """The value was set, or its deadline put off, by now."""
        ttl = self.written[label].ttl_us
        self.lives_until[label] = self.cluster.now_us() + ttl if ttl else NEVER

    def _until(self, label: bytes) -> int:
        return self.lives_until.get(label, NEVER)

    def _got(self, data: bytes | None, key: bytes, began: int) -> tuple[str, bytes]:
        """The effect of a read that was called then; a value after its deadline is a failure."""
        if data is None:
            return "put", NOTHING
        label = self.cluster.label_of(data)
        write = self.written.get(label)
        if write is None and label != INITIAL:
            self._fail_with(f"value: {key!r} has {label!r}, which no client has set")
        elif began >= self._until(label):
            late = began - self._until(label)
            self._fail_with(f"deadline: {label!r} of {key!r} was served {late} us after it")
        elif write is not None and write.slides:
            self._lives(label)
        return "get", label

    def _fail_with(self, what: str) -> None:
        self.failure = self.failure or what

    # ---- computing ------------------------------------------------------------------------------

    def _change(self, key: bytes, more: int) -> None:
        self.changes[key] = self.changes.get(key, 0) + 1
        self.changing[key] = self.changing.get(key, 0) + more

    def _computed(
        self, store: Any, client: int, key: bytes, label: bytes, number: int, began: int
    ) -> tuple[str, bytes]:
        """As `get_or_compute`, with a wait that costs no real time."""
        dead = 0
        for attempt in range(WAITS_MAX):
            # before the flight begins: what is invalidated from now on may end it
            changes = self.changes.get(key, 0)
            how, data, birth, flight = store.begin_flight(key, dead, PATIENCE_MS)
            if how == LANDED:
                return self._got(data, key, began)
            if how == MINE:
                break
            lives = functools.partial(store.pool.membership.lives, pilot_of(flight))
            alive = store.pool.exclusively(lives)
            dead = 0 if alive else flight
            if alive:
                store.endpoint.pause(attempt)
            began = self.cluster.now_us()
        else:
            return "", b""
        self._begin_computing(client, key, changes)
        store.endpoint.pause(0)
        if self.computing.get(key, (None, 0))[0] == client:
            del self.computing[key]
        self._write(number, key, label, BRIEF)
        terms = Terms(TTL_MS, tags=TAG, birth=birth, flight=flight)
        if not store.finish_flight(key, self.cluster.value_of(label), terms):
            return "", b""
        self._lives(label)
        return "put", label

    def _begin_computing(self, client: int, key: bytes, before: int) -> None:
        """`before`: how many changes of the key had begun when the client asked for the flight."""
        changes = self.changes.get(key, 0)
        other, since = self.computing.get(key, (client, changes))
        quiet = since == changes and not self.changing.get(key)
        if quiet and other != client and not self.clients[other].dead:
            self._fail_with(f"computed twice: {key!r}, by the living clients {other} and {client}")
        self.computing[key] = client, before

    # ---- the end --------------------------------------------------------------------------------

    def _inspect(self) -> str:
        setup_client, store = self.cluster.setup_client, self.cluster.store
        keys = sorted({record.key for record in self.history if record.key})
        try:
            for look in ("before recovery", "after recovery"):
                for key in keys:
                    self.perform(store, len(self.clients), "get", key, None)
                if look == "before recovery":
                    setup_client.recover()
            wrong = self.failure or self._wrong_registers()
            for key in keys:
                wrong = wrong or stuck_fault(store, key)
            wrong = wrong or bounds_fault(store) or excess_fault(store)
            store.check()
            audit = setup_client.audit()
        except LimpetError as error:
            return f"check: {type(error).__name__}: {error}"
        if wrong:
            return wrong
        if audit["leaked"] or audit["held"]:
            return f"leaked: {audit}"
        return ""

    def _wrong_registers(self) -> str:
        """The fault in the history of the keys that no sliding value was set for, as text."""
        sliding = {write.key for write in self.written.values() if write.slides}
        records = []
        for record in self.history:
            if record.op and record.key not in sliding:
                records.append(record)
        for record in list(records):
            if record.key == b"":
                records.remove(record)
                records += [record._replace(key=key) for key in PRESENT + ABSENT]
        report = check(records, initial=dict.fromkeys(PRESENT, INITIAL), processes=1)
        return "" if report.ok else f"history: {report.bad()[0].detail}"


def draw_calls(rng: random.Random, clients: int, ops: int, recover: bool) -> Program:
    """A random program on one or two keys; every third is of computations only."""
    keys = rng.sample(PRESENT + ABSENT, 1 if rng.random() < 0.6 else 2)
    drawn = _OF_FLIGHTS if rng.random() < 0.33 else _DRAWN
    if drawn == _OF_FLIGHTS:
        keys = [rng.choice(ABSENT)]

    def call() -> Call:
        kind = KINDS[rng.choice(drawn)]
        return Call(kind, b"" if kind in ("invalidate", "resize") else rng.choice(keys))

    program = [[call() for _ in range(ops)] for _ in range(clients)]
    if recover and rng.random() < 0.2:
        rng.choice(program)[rng.randrange(ops)] = Call(RECOVER)
    return tuple(tuple(calls) for calls in program)


CacheCluster.run_class = CacheRun
