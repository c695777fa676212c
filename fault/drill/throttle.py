"""The drill of throttled processes: no client that makes progress is ever killed (traps G9, G10,
G11).

Clients work on one subject (subjects.py) while each of them stands still now and then, for a time
that may be longer than the pool's lease: at a random step of a turn, in the middle of an operation
(stopping.py), and, by SIGSTOP, anywhere. Another client may fence it if it stood still for a lease
in an operation for which others wait. It must not be fenced if one of its turns has come back
within a lease before the kill: then two separate holds were taken for one long one.

    - `kill_rate`: clients are also killed, and others recover them
    - `busy`: one more client is neither stopped nor killed, and works all the time, beside every
      repair. No client has a reason to kill it

A client notes after each turn the time at which it came back, in memory that survives the client.
The pool's event, which is written after the kill, dates the last look at the client before it. So a
client that is named here was killed without a reason, even on the slowest machine.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
import random
import signal
import time
from typing import Any, Final

import limpet
from limpet.fault.drill.engine import demand_sound
from limpet.fault.inject.counters import GETS, PUTS, Counters
from limpet.fault.inject.interrupt import Interrupt
from limpet.fault.inject.killer import SECOND_NS
from limpet.fault.inject.stopping import StoppingPool
from limpet.fault.inject.supervisor import BLOCKED_S, Progress, Supervisor
from limpet.fault.inject.workers import Exit
from limpet.fault.matrix.operations import Broken
from limpet.fault.matrix.subjects import StoreSubject, opened, pool_sizes
from limpet.shm.errors import ParameterError

STOPS_S: Final = (0.05, 0.3)
STOPS_EACH: Final = 0.5
HALTS_EACH: Final = 3.0
"""Times a second that each client is stopped, and that it stands still at a step."""
STEPS_MAX: Final = 24
NO_TURN: Final = "no turn came back in the whole run"
INCARNATIONS_MAX: Final = 1 << 16
READS_EVERY: Final = 3


@dataclasses.dataclass(frozen=True)
class ThrottleParameters:
    """Parameters of the drill. `stops_s`: the shortest stop and the longest one, in seconds."""

    subject: str
    seed: int
    url: str
    clients: int = 4
    seconds: float = 10.0
    lease_ms: int = 200
    stops_s: tuple[float, float] = STOPS_S
    kill_rate: float = 0.0
    busy: bool = False
    blocked_s: float = BLOCKED_S

    def __post_init__(self) -> None:
        if not 0 < self.stops_s[0] <= self.stops_s[1]:
            raise ParameterError(f"stops last longer than 0 s, the shortest first: {self.stops_s}")


@dataclasses.dataclass(frozen=True)
class ThrottleReport:
    """The result. `halts`: times that a client stopped during an operation;
    `blamed`: kills without a reason; `failures`: all that did not hold."""

    parameters: ThrottleParameters
    turns: int
    halts: int
    stops: int
    kills: int
    fenced: int
    blamed: tuple[str, ...]
    failures: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.failures


class _Notes:
    """For each incarnation: its pid, and when its last turn came back (CLOCK_MONOTONIC, ns)."""

    def __init__(self) -> None:
        self._words = memoryview(mmap.mmap(-1, 16 * INCARNATIONS_MAX)).cast("q")

    def begin(self, incarnation: int) -> None:
        self._words[2 * incarnation] = os.getpid()

    def came_back(self, incarnation: int, now_ns: int) -> None:
        self._words[2 * incarnation + 1] = now_ns

    def halted(self) -> None:
        """Count a stop of this process at a step. Of two counts at once, one may be lost."""
        self._words[0] += 1

    @property
    def halts(self) -> int:
        return self._words[0]

    def last_of(self, pid: int) -> int:
        """When the last turn of the last incarnation with that pid came back; 0: none has."""
        for incarnation in range(INCARNATIONS_MAX - 1, 0, -1):
            if self._words[2 * incarnation] == pid:
                return self._words[2 * incarnation + 1]
        return 0


class _Halts:
    """Stops this process at random steps of its operations."""

    def __init__(
        self, endpoint: Any, notes: _Notes, seed: int, stops_s: tuple[float, float]
    ) -> None:
        self._endpoint = endpoint
        self._notes = notes
        self._random = random.Random(seed)
        self._stops_s = stops_s
        self._due_s = 0.0
        endpoint.interrupt = self._stand
        self._plan()

    def _plan(self) -> None:
        self._due_s = time.monotonic() + self._random.uniform(0.5, 1.5) / HALTS_EACH

    def _stand(self) -> None:
        low, high = self._stops_s
        time.sleep(low * (high / low) ** self._random.random())
        self._notes.halted()
        self._plan()

    def before_a_turn(self) -> None:
        if time.monotonic() >= self._due_s and not self._endpoint.stop_at:
            self._endpoint.stop_at = self._random.randint(1, STEPS_MAX)


class _SparingSupervisor(Supervisor):
    """Leaves the worker of one slot alone. Others may be fenced."""

    spared: int = -1

    def _may_be_fenced(self, gone: Exit, was_stopped: bool) -> bool:
        return gone.status == -signal.SIGKILL and gone.slot != self.spared

    def _start(self, slot: int) -> None:
        if slot == self.spared:
            self._workers.start(slot)
        else:
            super()._start(slot)


def run(parameters: ThrottleParameters) -> ThrottleReport:
    """Run the drill; call it from the main thread. When it ends, clients and pool are gone.

    Raises Interrupted on Ctrl-C, SIGTERM and SIGHUP.
    """
    workers = parameters.clients + parameters.busy
    with Interrupt() as interrupt:
        pool = StoppingPool.create(
            parameters.url, lease=parameters.lease_ms / 1000, fence="kill",
            **pool_sizes(parameters.subject),
        )  # fmt: skip
        limpet.destroy(parameters.url)
        try:
            opened(pool, parameters.subject).read(0)
            return _run(parameters, pool, interrupt, Counters(workers))
        finally:
            pool.close()


def _run(
    parameters: ThrottleParameters, pool: Any, interrupt: Interrupt, counters: Counters
) -> ThrottleReport:
    notes = _Notes()

    def target(slot: int, incarnation: int) -> None:
        counter = counters.counter(slot)
        counter.start(os.getpid(), pool.client_id)
        notes.begin(incarnation)
        subject = opened(pool, parameters.subject)
        if isinstance(subject, StoreSubject):
            subject.phased = True
        halts = _Halts(pool.endpoint, notes, incarnation, parameters.stops_s)
        busy = slot == parameters.clients
        number = slot
        while not counter.stopped:
            if not busy:
                halts.before_a_turn()
            start_ns = time.perf_counter_ns()
            reads = number % READS_EVERY == 0
            (subject.read if reads else subject.write)(number)
            notes.came_back(incarnation, time.monotonic_ns())
            counter.add(GETS if reads else PUTS, 0, time.perf_counter_ns() - start_ns)
            number += 1
        pool.close()

    low, high = parameters.stops_s
    supervisor = _SparingSupervisor(
        target, pool, counters, interrupt,
        seed=parameters.seed,
        kill_rate=parameters.kill_rate,
        stop_rate=STOPS_EACH * parameters.clients,
        hold_ns=(low * SECOND_NS, high * SECOND_NS),
        blocked_s=parameters.blocked_s,
    )  # fmt: skip
    if parameters.busy:
        supervisor.spared = parameters.clients
    with supervisor:
        supervisor.run(parameters.seconds, lambda progress: None)
        last = supervisor.stop(lambda progress: None)
    return _report(parameters, pool, supervisor, last, notes)


def _report(
    parameters: ThrottleParameters, pool: Any, supervisor: Supervisor, last: Progress, notes: _Notes
) -> ThrottleReport:
    clocks_ns = time.time_ns() - time.monotonic_ns()
    lease_ns = 1_000_000 * parameters.lease_ms
    blamed = []
    # Several clients may report that they have fenced the same one.
    events = reversed(pool.events())
    fenced = {event["pid"]: event for event in events if event["kind"] == "fenced"}
    for event in fenced.values():
        looked_ns = event["time_ns"] - event["took_ns"] - clocks_ns
        since_ns = looked_ns - notes.last_of(event["pid"])
        if since_ns < lease_ns:
            blamed.append(
                f"process {event['pid']} was killed as standing still {since_ns / 1e6:.1f} ms "
                f"after a turn of it had come back; the lease is {parameters.lease_ms} ms"
            )
    failures = [*supervisor.ends, *supervisor.blocked, *blamed]
    turns = sum(last.snapshot.operations(kind) for kind in (GETS, PUTS))
    if not failures:
        try:
            demand_sound(pool, held=False)
        except Broken as error:
            failures.append(str(error))
    if not turns:
        failures.append(NO_TURN)
    return ThrottleReport(
        parameters,
        turns=turns,
        halts=notes.halts,
        stops=sum(sent.signal == signal.SIGSTOP for sent in supervisor.stopper.sent),
        kills=sum(supervisor.kills),
        fenced=len(fenced),
        blamed=tuple(blamed),
        failures=tuple(failures),
    )
