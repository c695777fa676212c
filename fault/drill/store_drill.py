"""The drill: clients of a store are killed and stopped, lose a memory node, and are judged.

Clients insert, update, put, get and delete on a few thousand keys, and note each call, before it is
made, in memory that survives them (`recorder`). The supervisor kills and stops them at random and
replaces them. In the end it reads every key, recovers the dead clients, and reads every key again.
It demands that
    - the whole history, these reads included, is linearizable
    - every value read is whole, `check()` holds, and no memory is leaked
    - no client was blocked

The store sets how many lost nodes it survives (`Store.losses_survived`). Up to that many, no
operation may fail. With more, an operation may raise NodeFailed, naming a lost node, and then its
outcome is unknown; keys on other nodes must still be served, and `check()` may report that it
cannot tell.

StoreFull is allowed where clients are stopped, because a stopped client holds memory back. An
operation that raises it must have changed nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

import limpet
from limpet.fault.check.linearizability import LinearizabilityReport as Judged
from limpet.fault.check.recorder import NOTE, Notes, Operation, Recorder, Result
from limpet.fault.check.verify import FINAL
from limpet.fault.drill import drill_history
from limpet.fault.drill.drill_base import (
    AUDIT,
    BLOCK_SIZE,
    MOVING,
    WORKERS,
    DrillBase,
    Observer,
    RunParameters,
    RunReport,
    nameless_pool,
)
from limpet.fault.drill.drill_client import DrillClient, Values, judge
from limpet.fault.drill.timeline import Timeline
from limpet.fault.drill.workload import ZipfWorkload
from limpet.fault.inject.counters import GETS, PUTS, Counters
from limpet.fault.inject.interrupt import Interrupt
from limpet.fault.inject.killer import SECOND_NS
from limpet.fault.matrix.fault_profile import profile_of
from limpet.fault.matrix.testbed import within
from limpet.shm.endpoint.layout import NODE_STATES, slab_sizes
from limpet.shm.errors import LimpetError, NodeFailed, ParameterError, StoreFull
from limpet.shm.parameters import MIB

SERVED_SHARE: Final = 0.5
"""If keys were spread evenly, the nodes left would have a number of them; this share of it must be
served."""

WHOLE: Final = "every value read was whole"
HISTORY: Final = "the history is linearizable"
SERVED: Final = "what is on no lost node is served"
INVARIANTS: Final = "check(), and the keys listed are those that are there"
CHECKS: Final = (WORKERS, MOVING, WHOLE, HISTORY, SERVED, INVARIANTS, AUDIT)

MIX: Final = {
    Operation.GET: 40.0,
    Operation.PUT: 20.0,
    Operation.INSERT: 15.0,
    Operation.UPDATE: 15.0,
    Operation.DELETE: 10.0,
}


@dataclasses.dataclass(frozen=True)
class DrillParameters(RunParameters):
    """Parameters of a drill of a store.

    Keys are drawn from Zipf(theta); `mix` has the share of each operation;
    `parameters` are the store's, besides those of `fault/matrix/fault_profile.py`. `losses`:
    seconds into the run, and the node that is lost then.
    """

    losses: tuple[tuple[float, int], ...] = ()
    keys: int = 2000
    theta: float = 0.99
    mix: dict[Operation, float] = dataclasses.field(default_factory=lambda: dict(MIX))
    value_sizes: tuple[int, int] = (40, 400)

    def to_dict(self) -> dict[str, Any]:
        mix = {operation.name.lower(): share for operation, share in self.mix.items()}
        return {**super().to_dict(), "mix": mix}


@dataclasses.dataclass(frozen=True)
class Counts:
    """Operations of the run: all, and those whose result was not ok, by result.

    unknown: the client was killed, or a node was lost. full: no room, while clients were stopped.
    """

    operations: int
    missing: int
    exists: int
    unknown: int
    full: int


@dataclasses.dataclass(frozen=True)
class DrillReport(RunReport):
    """The result of a drill of a store."""

    parameters: DrillParameters
    counts: Counts
    kills_in_a_second: list[int]
    unserved: int
    judged: Judged
    timeline: Timeline


def node_size(parameters: DrillParameters) -> int:
    """Bytes of a node: twice its share of the largest values, and blocks of every client.

    A client has blocks of its own for each size class, and some for all large objects. The blocks
    of dead clients stay for a while, too, and so do freed objects that may still be read.
    """
    low, high = parameters.value_sizes
    classes = 1 + sum(low // 2 <= size <= 2 * high for size in slab_sizes(BLOCK_SIZE)[1:])
    blocks = -(-2 * high // BLOCK_SIZE)
    values = 2 * parameters.keys * (2 * high + 256) // parameters.nodes
    own = 4 * (parameters.clients + 2) * (classes + 2) * blocks * BLOCK_SIZE
    return -(-(values + own) // MIB) * MIB


def run(parameters: DrillParameters, observer: Observer, history: str | None = None) -> DrillReport:
    """Run a drill, and write its history to the file `history`; call it from the main thread.

    Raises Interrupted on Ctrl-C, SIGTERM and SIGHUP, LimpetError when the pool cannot be made.
    Whatever ends it, the clients have ended then and the pool is gone.
    """
    for at, node in parameters.losses:
        if not 0 <= node < parameters.nodes:
            raise ParameterError(f"there is no node {node}: the pool has {parameters.nodes} nodes")
        if at >= parameters.seconds:
            raise ParameterError(
                f"node {node} cannot be lost at {at:g} s: the run takes {parameters.seconds:g} s"
            )
    with contextlib.ExitStack() as stack:
        interrupt = stack.enter_context(Interrupt())
        size = parameters.node_size or node_size(parameters)
        pool = stack.enter_context(nameless_pool(parameters, size))
        recorder = stack.enter_context(Recorder(parameters.clients))
        store = pool.store(parameters.store, name="drill", **_store_parameters(parameters))
        drill = _Drill(parameters, observer, interrupt, pool, store, recorder)
        drill.work()
        return drill.verify(history)


def _store_parameters(parameters: DrillParameters) -> dict[str, Any]:
    kind = profile_of(parameters.store).parameters
    return {"capacity": 2 * parameters.keys, **kind, **parameters.parameters}


class _Drill(DrillBase[DrillParameters]):
    def __init__(
        self,
        parameters: DrillParameters,
        observer: Observer,
        interrupt: Interrupt,
        pool: limpet.Pool,
        store: Any,
        recorder: Recorder,
    ) -> None:
        super().__init__(parameters, observer, interrupt, pool, CHECKS)
        self.store = store
        self.recorder = recorder
        self.keys = [b"key-%06d" % number for number in range(parameters.keys)]
        self.exposed = len({node for _, node in parameters.losses}) > store.losses_survived
        self.losses: list[tuple[int, int]] = []

    # ---- the run --------------------------------------------------------------------------------

    def work(self) -> None:
        """Let the clients work for the given time, kill and stop them meanwhile, then end them."""
        counters = Counters(self.parameters.clients)
        self.run_clients(self._client(counters), counters, self._planned())
        if not self.supervisor.failed:
            self._check_done()

    def _check_done(self) -> None:
        """Complain unless there was work, and every node that was to be lost is lost."""
        if not any(self.last.snapshot.operations(kind) for kind in (GETS, PUTS)):
            self.checks[MOVING].append("no operation came back in the whole run")
        for node in {node for _, node in self.parameters.losses} - {n for _, n in self.losses}:
            self.checks[SERVED].append(f"node {node} was not lost: the run was over before")

    def _client(self, counters: Counters) -> Callable[[int, int], None]:
        parameters = self.parameters
        mix = ZipfWorkload(parameters.keys, parameters.theta, parameters.mix, parameters.seed)
        values = Values(parameters.value_sizes, parameters.seed)
        allowed: list[type[Exception]] = []
        if self.exposed:
            allowed.append(NodeFailed)
        if parameters.stop_rate:
            allowed.append(StoreFull)

        def client(slot: int, incarnation: int) -> None:
            log = self.recorder.log(slot, incarnation)
            counter = counters.counter(slot)
            counter.start(os.getpid(), self.pool.client_id)
            one = DrillClient(
                self.store, self.keys, values, incarnation, log, counter, tuple(allowed),
                lambda node: self.pool.endpoint.load(NODE_STATES + 8 * node) != 0,
            )  # fmt: skip
            one.work(mix.draw(incarnation))

        return client

    def _planned(self) -> list[tuple[float, Callable[[], None]]]:
        def lose(node: int) -> None:
            self.losses.append((time.monotonic_ns() - self.supervisor.start_ns, node))
            self.pool.mark_failed(node)

        return [(at, lambda node=node: lose(node)) for at, node in self.parameters.losses]  # type: ignore[misc]

    # ---- the verdict ----------------------------------------------------------------------------

    def verify(self, history: str | None) -> DrillReport:
        """Judge everything."""
        before = np.zeros(len(self.keys), NOTE)
        after = np.zeros(len(self.keys), NOTE)
        unserved = 0
        with self.timed("verify"), self.unblocked():
            self._read_all("reading every key", before)
            self.recover()
            self._read_all("reading every key again", after)
            unserved = self._check_served(before, after)
            self.look("checking the store's invariants", INVARIANTS,
                      lambda: self._check_store(after))  # fmt: skip
            self.account()
        noted = self.recorder.notes()
        notes = np.concatenate([noted, before[before["op"] > 0], after[after["op"] > 0]])
        self.checks[WHOLE] += drill_history.torn(notes, self.keys)
        with self.timed("judge"):
            self.observer.verifying("judging the history")
            judged = drill_history.judge(notes, self.keys, self._judging)
        self.checks[HISTORY] += [
            f"{key.key!r} is {key.verdict.value}: {key.detail}" for key in judged.bad()
        ]
        if history is not None:
            with self.timed("write"):
                self.observer.verifying(f"writing the history to {history}")
                drill_history.write(history, notes, self.keys)
        timeline = self._timeline(noted)
        return DrillReport(
            **self.outcome(),
            counts=_counts(noted),
            kills_in_a_second=_in_a_second(timeline),
            unserved=unserved,
            judged=judged,
            timeline=timeline,
        )

    def _judging(self, done: int, total: int) -> None:
        self.interrupt.check()
        self.observer.judging(done, total)

    def _read_all(self, what: str, notes: Notes) -> None:
        """Read every key into `notes`. A read that raises NodeFailed has no known outcome."""
        self.observer.verifying(what)
        lost = {node for _, node in self.losses}
        for number, name in enumerate(self.keys):
            self.interrupt.check()
            call_ns = time.monotonic_ns()
            result, read = Result.UNKNOWN, 0
            try:
                with within(self.parameters.blocked_s, f"the last reader of {name!r}"):
                    value = self.store.get(name)
                result, read, _ = judge(value, number)
            except NodeFailed as error:
                if not self.exposed or error.node not in lost:
                    self.checks[SERVED].append(f"{name!r}: {error}; lost nodes: {sorted(lost)}")
            except LimpetError as error:
                self.checks[SERVED].append(f"{name!r}: {type(error).__name__}: {error}")
            return_ns = time.monotonic_ns() if result else 0
            notes[number] = (FINAL, Operation.GET, result, number, 0, read, call_ns, return_ns)

    def _check_served(self, before: Notes, after: Notes) -> int:
        """Complain unless the same keys were served both times, and enough of them."""
        missed = before["result"] == Result.UNKNOWN, after["result"] == Result.UNKNOWN
        if changed := int((missed[0] != missed[1]).sum()):
            self.checks[SERVED].append(f"recover() changed whether {changed} keys are served")
        unserved = int(missed[1].sum())
        lost = len({node for _, node in self.losses}) if self.exposed else 0
        share = SERVED_SHARE * (1 - lost / self.parameters.nodes)
        if len(self.keys) - unserved < share * len(self.keys):
            self.checks[SERVED].append(
                f"{unserved} of {len(self.keys)} keys are not served, with {lost} of "
                f"{self.parameters.nodes} nodes lost"
            )
        return unserved

    def _check_store(self, found: Notes) -> None:
        try:
            self.store.check()
            listed = list(self.store)
        except NodeFailed:
            if self.exposed:
                return  # the keys of the lost node are unknown
            raise
        present = (found["result"] == Result.OK) | (found["result"] == Result.TORN)
        there = {self.keys[number] for number in found["key"][present]}
        if len(listed) != len(set(listed)) or set(listed) != there:
            raise limpet.StoreCorrupt(
                f"iteration gives {len(listed)} keys, {len(set(listed))} of them different; get "
                f"finds {len(there)}, {len(there - set(listed))} of which iteration does not give"
            )

    def _timeline(self, notes: Notes) -> Timeline:
        supervisor = self.supervisor
        start_ns = supervisor.start_ns
        stopped: dict[int, int] = {}
        stops: list[tuple[int, int]] = []
        for sent in supervisor.stopper.sent:
            if sent.signal == signal.SIGSTOP:
                stopped[sent.pid] = sent.time_ns
            else:
                stops.append((stopped.pop(sent.pid) - start_ns, sent.time_ns - start_ns))
        returns = notes["return_ns"][notes["result"] != Result.UNKNOWN]
        kills = np.array([sent.time_ns for sent in supervisor.killer.sent], np.int64)
        length_ns = int(self.last.elapsed_s * SECOND_NS)
        ended = {sent.pid: sent.time_ns - start_ns for sent in supervisor.killer.sent}
        stops += [(at - start_ns, ended.get(pid, at - start_ns)) for pid, at in stopped.items()]
        return Timeline(length_ns, returns - start_ns, kills - start_ns, stops, self.losses)


def _counts(notes: Notes) -> Counts:
    def count(result: Result) -> int:
        return int((notes["result"] == result).sum())

    return Counts(
        operations=len(notes),
        missing=count(Result.MISSING),
        exists=count(Result.EXISTS),
        unknown=count(Result.UNKNOWN),
        full=count(Result.FULL),
    )


def _in_a_second(timeline: Timeline) -> list[int]:
    """How many kills there were in each whole second of the run."""
    seconds = timeline.length_ns // SECOND_NS
    found = np.bincount(timeline.kills // SECOND_NS, minlength=seconds)
    return [int(count) for count in found[:seconds]]
