"""Throughput before and after a client is killed in an operation (rTX 6.2, figures 14 and 15).

Client processes insert keys that were not there, each others, drawn evenly from all keys of 8
bytes. Each notes when an insert returned, on CLOCK_MONOTONIC, in memory that survives it; that is
all that they do besides, so 1 ms buckets are made afterwards. After a while one of them dies in
an insert (fault/inject/doomed.py): where it holds a lock, of a kind that has one, or where it grows
the index, also if that is only known by how long it takes. The survivors are not told, and no
process takes its place.

    gap       the longest run of buckets in which the survivors did less than half of their mean
              before the kill
    unlocked  from the kill until memory does not show the crash point any more: the lock is free. A
              client has to meet the lock first
    recovered from the kill until the pool's event that the dead client's memory is given back
    blocked   survivors of which no insert returned in the last BLOCKED_MS, or raised a LimpetError
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import mmap
import os
import re
import signal
import time
from array import array
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

import limpet
from limpet.fault.inject.doomed import Doom, DoomedPool
from limpet.fault.inject.interrupt import Interrupt
from limpet.fault.inject.workers import Exit, Workers
from limpet.fault.matrix.crash_points import defined
from limpet.fault.matrix.fault_profile import profile_of
from limpet.shm.errors import LimpetError, ParameterError
from limpet.stores.registry import kind_named

INSERT: Final = "insert"
GROWTH: Final = "growth"
POINTS: Final[Mapping[str, Mapping[str, str]]] = {
    INSERT: {
        **dict.fromkeys(("sherman", "dtx-sherman"), "node-locked"),
        "rtx-sherman": "leaf-locked",
    },
    GROWTH: {
        **dict.fromkeys(("race", "race-locks"), "freezing"),
        "dtx-race": "entry-locked",
        "rtx-sherman": "decided",
    },
}
"""Where the client dies by default; of other kinds half-way through an insert, or in one that
is far longer than the one before it, and so grows the index."""
BUCKET_NS: Final = 1_000_000
BLOCKED_MS: Final = 100
NODES: Final = 3
INSERTS_PER_S: Final = 1_000_000
"""Of one client, at most."""
ODD: Final = 0x9E37_79B9_7F4A_7C15
VALUE: Final = b"12345678"
START_NS: Final = 50_000_000
DEATH_SHARE: Final = 2.0
"""Of the time that is set, is over when the victim must be dead: growths come when they come."""
LATE_S: Final = 1.0
"""How long after the end a survivor may end."""
POLL_S: Final = 0.0005
_ERROR: Final = re.compile(r"^limpet\.\S*\.(\w+: .*)$", re.MULTILINE)
Times = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Setting:
    """Parameters. `point`: the crash point; None: as POINTS says. `parameters` of the store.

    `seconds`: half of it is over when the victim looks for its death, and as much follows that.
    """

    store: str
    moment: str = INSERT
    point: str | None = None
    clients: int = 3
    seconds: float = 2.0
    keys: int = 10_000
    node_size: str = "256MiB"
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def where(self) -> str | None:
        """The crash point at which the client dies; None: it has no such point, see POINTS."""
        point = self.point or POINTS[self.moment].get(self.store)
        return point if self.point or point in points_of(self.store) else None

    def check(self) -> None:
        """ParameterError if there is no such kind, or crash point of it."""
        points = points_of(self.store)
        if self.point is not None and self.point not in points:
            raise ParameterError(f"{self.store} has no crash point {self.point!r}")


def points_of(kind: str) -> frozenset[str]:
    """The named crash points of a kind. ParameterError if there is no such kind."""
    kind_named(kind)
    return profile_of(kind).not_met | defined(kind).keys()


@dataclasses.dataclass(frozen=True)
class Result:
    """The result. Rates are inserts a second; the module's docstring explains the rest.

    `buckets`: inserts of all clients in each ms; `survivors`: of those that were not killed;
    `killed_ms`: when that was; `blocked_at_ms`: from then until the last insert of each that is
    blocked. `gap_before_ms`: the longest such run before the kill, which is the
    scheduler's. `longest_...`: insert of a survivor.
    """

    store: str
    moment: str
    point: str | None
    clients: int
    killed_ms: float
    before: float
    survivors_before: float
    after: float
    gap_ms: int
    gap_at_ms: int
    gap_before_ms: int
    unlocked_ms: float | None
    recovered_ms: float | None
    blocked: int
    blocked_at_ms: tuple[float, ...]
    errors: tuple[str, ...]
    longest_before_ms: float
    longest_after_ms: float
    buckets: tuple[int, ...]
    survivors: tuple[int, ...]


def run(setting: Setting) -> Result:
    """Run it on a pool of its own; from the main thread.

    Raises LimpetError when the victim did not die, a worker failed, or the store is damaged.
    """
    setting.check()
    with _prepared(setting) as run:
        return run.play()


class _Shared:
    """A worker's report: when each of its inserts returned, and for the victim, when it died."""

    def __init__(self, inserts: int) -> None:
        self.memory = mmap.mmap(-1, 24 + 8 * inserts)
        self.words = memoryview(self.memory).cast("q")
        self.times = self.words[3:]

    def returns(self) -> Times:
        """When each insert returned, in ns."""
        times: Times = np.frombuffer(self.memory, np.int64)[3:]
        return times[: np.count_nonzero(times)]


class _TimelineRun:
    """A filled store, the victim's handle of it, and the reports of its clients."""

    def __init__(self, setting: Setting, pools: tuple[Any, Any], interrupt: Interrupt) -> None:
        self.setting = setting
        self.pool, self.doomed = pools
        self.interrupt = interrupt
        capacity = setting.keys
        if setting.moment == INSERT:
            capacity += int(setting.clients * setting.seconds * INSERTS_PER_S)
        parameters = {"capacity": capacity, **setting.parameters}
        self.store = self.pool.store(setting.store, name="s", **parameters)
        for number in range(setting.keys):
            interrupt.check()
            self.store.put(key_of(number), VALUE)
        self.victim = self.doomed.store(setting.store, name="s")
        room = int(2 * DEATH_SHARE * setting.seconds * INSERTS_PER_S)
        self.shared = [_Shared(room) for _ in range(setting.clients)]
        self.times = memoryview(mmap.mmap(-1, 16)).cast("q")
        """When the clients begin, and when they end."""

    # ---- the clients ----------------------------------------------------------------------------

    def client(self, slot: int, incarnation: int) -> None:
        """The life of a worker; the first is the victim."""
        gc.disable()
        self.store.get(key_of(0))
        if slot == 0:
            self.victim.get(key_of(0))
        while not (begin := self.times[0]):
            time.sleep(0.001)
        time.sleep(max(0, begin - time.monotonic_ns()) / 1e9)
        if slot:
            self._insert(slot, self.times[1:])
        else:
            half = memoryview(array("q", [begin + int(self.setting.seconds * 5e8)]))
            self._die(self._insert(slot, half))

    def _insert(self, slot: int, end: memoryview[int]) -> int:
        """Insert until the time that is there; how many."""
        times, clock, insert = self.shared[slot].times, time.monotonic_ns, self.store.insert
        number, step = self.setting.keys + slot, self.setting.clients
        now = done = 0
        while now < end[0]:
            insert((number * ODD & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8, "big"), VALUE)
            now = clock()
            times[done] = now
            done += 1
            number += step
        return done

    def _die(self, done: int) -> None:
        """Insert by the handle that is watched until that is our end."""
        words = self.shared[0].words

        def last_words() -> None:
            words[1], words[2] = time.monotonic_ns(), time.time_ns()

        setting = self.setting
        grows = setting.moment == GROWTH
        doom = Doom(self.victim, self.store, setting.where, last_words, grows)
        words[0] = doom.ident
        number = setting.keys + done * setting.clients
        while True:
            doom.comes(functools.partial(self.victim.insert, key_of(number), VALUE))
            self.shared[0].times[done] = time.monotonic_ns()
            done += 1
            number += setting.clients

    # ---- the run --------------------------------------------------------------------------------

    def play(self) -> Result:
        """Run the clients; the result."""
        with Workers(self.client) as workers:
            for slot in range(self.setting.clients):
                workers.start(slot)
            seconds = self.setting.seconds
            begun = time.monotonic_ns() + START_NS
            last = begun + int(DEATH_SHARE * seconds * 1e9)
            self.times[1] = last + int(seconds * 1e9)
            self.times[0] = begun
            ends = self._wait(workers, last, 1)
            if not any(end.slot == 0 and end.status == -signal.SIGKILL for end in ends):
                told = "".join(end.traceback for end in ends) or "it did not come by the point"
                raise LimpetError(f"{self.setting.store}: the victim was not killed: {told}")
            self.times[1] = self.shared[0].words[1] + int(seconds * 5e8)
            unlocked = self._unlocked()
            late = self.times[1] + int(LATE_S * 1e9)
            ends += self._wait(workers, late, self.setting.clients - len(ends))
            ends += workers.end()
        return self._result(ends, unlocked)

    def _wait(self, workers: Workers, end: int, count: int) -> list[Exit]:
        """Wait for so many to end, until then; those that did."""
        ends: list[Exit] = []
        while len(ends) < count and (left := end - time.monotonic_ns()) > 0:
            ends += workers.wait(left / 1e9, (self.interrupt.fd,))
            self.interrupt.check()
        return ends

    def _unlocked(self) -> int | None:
        """When the victim's crash point was not shown any more; None: it is to the end."""
        ident, point = self.shared[0].words[0], self.setting.where
        end = self.times[1]
        if point is None:
            return None

        def shown() -> bool:
            there = self.pool.membership.place(ident) is not None
            return there and point in self.store.left_by(ident)

        while (now := time.monotonic_ns()) < end:
            self.interrupt.check()
            if not self.pool.exclusively(shown):
                return now
            time.sleep(POLL_S)
        return None

    def _result(self, ends: list[Exit], unlocked: int | None) -> Result:
        returns = [shared.returns() for shared in self.shared]
        ident, killed, wall = (int(word) for word in self.shared[0].words[:3])
        errors = errors_of(ends)
        begun, finish = self.times
        late = finish - BLOCKED_MS * 1_000_000
        stuck = {end.slot for end in ends if end.slot and end.status}
        stuck |= {slot for slot, times in enumerate(returns) if slot and times[-1:].sum() < late}
        if not stuck:
            self.pool.recover()
            self.store.check()
        recovered = [
            event["time_ns"] for event in self.pool.events()
            if event["kind"] == "recovered" and event["subject"] == ident
        ]  # fmt: skip
        last = sorted(max(returns[slot][-1:].sum() - killed, 0) / 1e6 for slot in stuck)
        told = Told(begun, killed, finish, returns)
        return Result(
            store=self.setting.store,
            moment=self.setting.moment,
            point=self.setting.where,
            clients=self.setting.clients,
            killed_ms=(killed - begun) / 1e6,
            unlocked_ms=None if unlocked is None else (unlocked - killed) / 1e6,
            recovered_ms=(recovered[0] - wall) / 1e6 if recovered else None,
            blocked=len(stuck),
            blocked_at_ms=tuple(float(at) for at in last),
            errors=errors,
            **told.figures(),
        )


def errors_of(ends: list[Exit]) -> tuple[str, ...]:
    """Errors that survivors raised. Raises LimpetError if one has another cause than the death."""
    found = []
    for end in ends:
        if end.slot and end.status > 0:
            error = _ERROR.findall(end.traceback)
            if not error or error[-1].startswith("StoreFull"):
                raise LimpetError(f"a client failed: {end.traceback}")
            found.append(error[-1])
    return tuple(found)


@dataclasses.dataclass(frozen=True)
class Told:
    """When inserts returned: those of the victim first; when it all began, it died, it ended."""

    begun: int
    killed: int
    finish: int
    returns: list[Times]

    def figures(self) -> dict[str, Any]:
        """Fields of `Result`."""
        buckets, survivors = self._buckets(self.returns), self._buckets(self.returns[1:])
        kill = (self.killed - self.begun) // BUCKET_NS
        warm, settled = kill // 4, kill + (len(buckets) - kill) // 2
        few = float(survivors[warm:kill].mean()) / 2
        _, gap_before = longest_run(survivors[warm:kill] < few)
        at, gap = longest_run(survivors[kill:] < few)
        per_s = 1e9 / BUCKET_NS
        return {
            "before": float(buckets[warm:kill].mean()) * per_s,
            "survivors_before": float(survivors[warm:kill].mean()) * per_s,
            "after": float(survivors[settled:].mean()) * per_s,
            "gap_ms": gap,
            "gap_at_ms": at,
            "gap_before_ms": gap_before,
            "longest_before_ms": self._longest(self.begun, self.killed),
            "longest_after_ms": self._longest(self.killed, self.finish),
            "buckets": tuple(buckets.tolist()),
            "survivors": tuple(survivors.tolist()),
        }

    def _buckets(self, returns: list[Times]) -> Times:
        edges = np.arange(self.begun, self.finish + 1, BUCKET_NS)
        found: Times = np.histogram(np.concatenate(returns), edges)[0]
        return found

    def _longest(self, low: int, high: int) -> float:
        """The longest time, in ms, that an insert of a survivor took of this part of the run."""
        longest = 0
        for times in self.returns[1:]:
            inside = times[(times >= low) & (times <= high)]
            moments = np.concatenate(([low], inside, [high])) if high == self.finish else inside
            longest = max(longest, int(np.diff(moments).max(initial=0)))
        return longest / 1e6


def longest_run(low: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """Where the longest run of True begins, and how long it is."""
    best = (0, 0)
    begin = None
    for index, is_low in enumerate([*low.tolist(), False]):
        if is_low and begin is None:
            begin = index
        elif not is_low and begin is not None:
            if index - begin > best[1]:
                best = (begin, index - begin)
            begin = None
    return best


@contextlib.contextmanager
def _prepared(setting: Setting) -> Iterator[_TimelineRun]:
    """The pool is unlinked as soon as it is mapped, so nothing is left however this ends."""
    url = f"shm://limpet-timeline-{os.getpid()}"
    with contextlib.ExitStack() as stack:
        interrupt = stack.enter_context(Interrupt())
        pool = stack.enter_context(limpet.create(url, nodes=NODES, node_size=setting.node_size))
        try:
            doomed = stack.enter_context(DoomedPool.open(url))
        finally:
            limpet.destroy(url)
        yield _TimelineRun(setting, (pool, doomed), interrupt)


def key_of(number: int) -> bytes:
    """The key of a number: no two alike, in no order."""
    return (number * ODD & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8, "big")
