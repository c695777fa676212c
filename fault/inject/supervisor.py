"""The supervisor of a run's workers: it starts, kills, stops, replaces, watches and ends them.

Demo and drills share it. A worker may end in three ways only: by a kill that the supervisor sent;
by being fenced, if the supervisor had stopped it and the pool's policy is to kill; by itself, with
status 0, when it was asked to. Then a replacement takes its slot, while the run lasts. Any other
end is a failure, and ends the run. So is a worker that makes no progress for `blocked_s` while it
is not stopped, and a worker that does not end within that time when it is asked to.

The pool's events name the dead and the repairing clients, with the time of each repair. Delays are
measured from the moment before SIGKILL is sent, so they include the dying. Wall-clock times of
events are turned into CLOCK_MONOTONIC by the difference of the clocks at the moment of reading.
"""

from __future__ import annotations

import dataclasses
import gc
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import psutil

from limpet.fault.inject.counters import Counters, Snapshot
from limpet.fault.inject.interrupt import Interrupt
from limpet.fault.inject.killer import SECOND_NS, ProcessKiller, ProcessStopper, Sent, Victims
from limpet.fault.inject.workers import Exit, Workers
from limpet.shm.endpoint.layout import EVENTS

BLOCKED_S: Final = 30.0
REFRESH_NS: Final = SECOND_NS // 4


class Task(Protocol):
    """A task of a run at certain times, on CLOCK_MONOTONIC."""

    @property
    def due_ns(self) -> int | None:
        """The time of the next `step`; None: there is none."""

    def step(self, now_ns: int) -> object:
        """Do the work that is due at `now_ns`, if any."""


class Timer:
    """A task that calls `action` at `due_ns`, and again after each `interval_ns`; 0: not again."""

    def __init__(self, due_ns: int, action: Callable[[], object], interval_ns: int = 0) -> None:
        self.due_ns: int | None = due_ns
        self._interval_ns = interval_ns
        self._action = action

    def step(self, now_ns: int) -> None:
        if self.due_ns is not None and now_ns >= self.due_ns:
            self.due_ns = now_ns + self._interval_ns if self._interval_ns else None
            self._action()


@dataclasses.dataclass(frozen=True)
class Progress:
    """The workers at one moment of the run; the lists have one element a slot.

    `memory`: bytes of a worker's private memory, without the memory that it shares with the pool
    and the parent. `repairs`: dead clients that a worker has recovered; `recovered`: those of all
    workers; `killed`, `stops` and `fenced` count all processes.
    """

    elapsed_s: float
    snapshot: Snapshot
    pids: list[int]
    kills: list[int]
    memory: list[int]
    repairs: list[int]
    recovered: int
    killed: int = 0
    stops: int = 0
    fenced: int = 0


@dataclasses.dataclass
class Delays:
    """Times from SIGKILL, in ns, one element a death.

    dead: the parent saw it; noticed: a client began to recover the dead one; repaired: it was done.
    """

    dead: list[int] = dataclasses.field(default_factory=list)
    noticed: list[int] = dataclasses.field(default_factory=list)
    repaired: list[int] = dataclasses.field(default_factory=list)


class EventLog:
    """The pool's events, read before the ring overwrites them."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._lost = 0
        self._next = 0
        self._gaps: set[int] = set()

    def drain(self) -> list[dict[str, Any]]:
        """The events that were not drained before."""
        found = self._pool.events(min(self._gaps, default=self._next))
        new = [
            event
            for event in found
            if event["number"] >= self._next or event["number"] in self._gaps
        ]
        seen = {event["number"] for event in new}
        end = max([self._next, *(number + 1 for number in seen)])
        gaps = (self._gaps | set(range(self._next, end))) - seen
        self._gaps = {number for number in gaps if number >= end - EVENTS}
        self._lost += len(gaps) - len(self._gaps)
        self._next = end
        return new

    @property
    def missed(self) -> int:
        """Events before the last drained one that were overwritten, or never finished."""
        return self._lost + len(self._gaps)


class Supervisor:
    """One run's workers; each runs `target(slot, incarnation)`. A context manager.

    Slots count from 0. Those up to the number of rows in `counters` are workers that heed its stop
    flag; `endless` further ones do not, and are killed in the end.
    """

    def __init__(
        self,
        target: Callable[[int, int], None],
        pool: Any,
        counters: Counters,
        interrupt: Interrupt,
        *,
        seed: int,
        kill_rate: float,
        stop_rate: float = 0.0,
        hold_ns: tuple[float, float] = (1.0, 1.0),
        endless: int = 0,
        blocked_s: float = BLOCKED_S,
    ) -> None:
        self.pool = pool
        self.counters = counters
        self.clients = counters.slots
        self.slots = self.clients + endless
        self.victims = Victims()
        self.killer = ProcessKiller(self.victims, kill_rate, seed, self._note_kill)
        self.stopper = ProcessStopper(self.victims, stop_rate, seed, hold_ns)
        self.ends: list[str] = []
        """Wrong ends of workers, in words."""
        self.blocked: list[str] = []
        """Workers that made no progress, in words."""
        self.kills = [0] * self.slots
        self.fenced = 0
        self.restarts = 0
        self.start_ns = 0
        self.delays = Delays()
        self.events = EventLog(pool)
        self._workers = Workers(target)
        self._interrupt = interrupt
        self._blocked_ns = int(blocked_s * SECOND_NS)
        self._stopping = False
        self._killed: dict[int, int] = {}
        self._dismissed: set[int] = set()
        self._deaths: dict[int, int] = {}
        self._slot_of: dict[int, int] = {}
        self._repairs: dict[int, int] = {}
        self._moved: dict[int, tuple[int, int]] = {}

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *exc: object) -> None:
        gc.unfreeze()
        self._workers.end()
        self.victims.close()

    @property
    def failed(self) -> bool:
        return bool(self.ends or self.blocked)

    # ---- the run --------------------------------------------------------------------------------

    def run(
        self,
        seconds: float,
        observer: Callable[[Progress], None],
        planned: Sequence[tuple[float, Callable[[], object]]] = (),
    ) -> None:
        """Start a worker in each slot, and let them work under faults for so long.

        `observer` is called a few times a second; each of `planned` at its second of the run.
        Ends early when a worker fails.
        """
        gc.collect()
        gc.freeze()  # so that a worker's collector does not copy every page of its parent
        self.start_ns = time.monotonic_ns()
        for slot in range(self.slots):
            self._start(slot)
        self.killer.start(self.start_ns)
        self.stopper.start(self.start_ns)
        tasks: list[Task] = [self.killer, self.stopper]
        tasks.append(Timer(0, self._find_blocked, REFRESH_NS))
        tasks.append(Timer(0, lambda: observer(self.progress()), REFRESH_NS))
        tasks += [Timer(self.start_ns + int(at * SECOND_NS), action) for at, action in planned]
        end_ns = self.start_ns + int(seconds * SECOND_NS)
        while (now_ns := time.monotonic_ns()) < end_ns and not self.failed:
            due_ns = min((task.due_ns for task in tasks if task.due_ns is not None), default=end_ns)
            self._wait(min(due_ns, end_ns) - now_ns)
            now_ns = time.monotonic_ns()
            for task in tasks:
                task.step(now_ns)
        self.stopper.wake_all()
        self._settle()

    def stop(self, observer: Callable[[Progress], None]) -> Progress:
        """End all workers; returns the last progress, with pids and memory before the end."""
        self._stopping = True
        last = self.progress()
        self.counters.stop()
        for slot, pid in self._workers.pids.items():
            if slot >= self.clients and pid in self.victims.pids:
                self._dismissed.add(pid)
                self.victims.send(pid, signal.SIGKILL)
        deadline_ns = time.monotonic_ns() + self._blocked_ns
        while self._workers.pids and (left_ns := deadline_ns - time.monotonic_ns()) > 0:
            self._wait(left_ns)
        self.blocked += [
            f"worker {slot} (pid {pid}) is blocked: it did not end in "
            f"{self._blocked_ns / SECOND_NS:g} s"
            for slot, pid in self._workers.pids.items()
        ]
        final = dataclasses.replace(self.progress(), pids=last.pids, memory=last.memory)
        observer(final)
        return final

    def _wait(self, timeout_ns: int) -> None:
        for gone in self._workers.wait(timeout_ns / SECOND_NS, [self._interrupt.fd]):
            self._ended(gone)
        self._interrupt.check()

    def _settle(self) -> None:
        """Replace the killed workers that are still dying."""
        while self._killed and not self.failed:
            self._wait(SECOND_NS)

    def _start(self, slot: int) -> None:
        self.victims.add(self._workers.start(slot))

    def _note_kill(self, sent: Sent) -> None:
        self._killed[sent.pid] = self._deaths[sent.pid] = sent.time_ns

    def _ended(self, gone: Exit) -> None:
        was_stopped = self.stopper.has_stopped(gone.pid)
        self.victims.discard(gone.pid)
        self.stopper.discard(gone.pid)
        self.note_events()
        killed_ns = self._killed.pop(gone.pid, None)
        if killed_ns is not None and gone.status == -signal.SIGKILL:
            self.kills[gone.slot] += 1
            self.delays.dead.append(time.monotonic_ns() - killed_ns)
        elif gone.pid in self._dismissed:
            return
        elif self._may_be_fenced(gone, was_stopped):
            self.fenced += 1
        elif not (self._stopping and gone.status == 0):
            self._failed(gone)
            return
        if not self._stopping:
            self._start(gone.slot)
            self.restarts += 1

    def _may_be_fenced(self, gone: Exit, was_stopped: bool) -> bool:
        policy = self.pool.parameters.fence
        return bool(gone.status == -signal.SIGKILL and was_stopped and policy == "kill")

    def _failed(self, gone: Exit) -> None:
        how = f"ended with status {gone.status}"
        if gone.status < 0:
            name = signal.Signals(-gone.status).name
            how = f"was ended by {name}, which this run did not send; events: {self.pool.events()}"
        text = f"worker {gone.slot} (pid {gone.pid}) {how}\n{gone.traceback}"
        self.ends.append(text.rstrip())

    def _find_blocked(self) -> None:
        now_ns, snapshot = time.monotonic_ns(), self.counters.read()
        for slot, pid in self._workers.pids.items():
            if slot >= self.clients:
                continue
            count = snapshot.progress(slot)
            known, since_ns = self._moved.get(slot, (-1, 0))
            if known != count or pid in self.stopper.stopped:
                self._moved[slot] = (count, now_ns)
            elif now_ns - since_ns > self._blocked_ns:
                self.blocked.append(
                    f"worker {slot} (pid {pid}) is blocked: none of its operations came back for "
                    f"{(now_ns - since_ns) / SECOND_NS:.1f} s"
                )

    # ---- what is known --------------------------------------------------------------------------

    def note_events(self) -> None:
        """Read the recoveries from the pool's events, before a slot is reused."""
        snapshot = self.counters.read()
        for slot in range(self.clients):
            self._slot_of[snapshot.client(slot)] = slot
        clocks_ns = time.time_ns() - time.monotonic_ns()
        for event in self.events.drain():
            if event["kind"] != "recovered":
                continue
            self._repairs[event["subject"]] = event["by"]
            killed_ns = self._deaths.pop(event["pid"], None)
            if killed_ns is None:
                continue
            repaired_ns = event["time_ns"] - clocks_ns - killed_ns
            if repaired_ns >= 0:  # else fencing had killed it before
                self.delays.repaired.append(repaired_ns)
                self.delays.noticed.append(repaired_ns - event["took_ns"])

    def progress(self) -> Progress:
        """The present progress of the workers."""
        pids = [self._workers.pids.get(slot, 0) for slot in range(self.clients)]
        self.note_events()
        repairs = [0] * self.clients
        for client in self._repairs.values():
            if client in self._slot_of:
                repairs[self._slot_of[client]] += 1
        return Progress(
            elapsed_s=(time.monotonic_ns() - self.start_ns) / SECOND_NS,
            snapshot=self.counters.read(),
            pids=pids,
            kills=list(self.kills[: self.clients]),
            memory=[_memory(pid) for pid in pids],
            repairs=repairs,
            recovered=len(self._repairs),
            killed=sum(self.kills),
            stops=sum(sent.signal == signal.SIGSTOP for sent in self.stopper.sent),
            fenced=self.fenced,
        )


def _memory(pid: int) -> int:
    """Bytes in memory that a worker does not map from a file or segment; 0 if it is gone."""
    try:
        memory = psutil.Process(pid).memory_info()
    except psutil.NoSuchProcess:
        return 0
    return int(memory.rss - memory.shared)
