"""The worker processes of a set, and the loops that they time.

A worker attaches to the store, warms up, and then answers tasks that come through its pipe. It
makes a task's operations first, meets the other workers at a barrier, and only then looks at the
clock. Workers die with the process that started them; one that dies, fails or falls silent is a
DriverError.
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import multiprocessing
import multiprocessing.connection
import signal
import statistics
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection as Pipe
from multiprocessing.context import ForkProcess
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from limpet.bench.peers import ycsb
from limpet.bench.peers.drivers import Compute, Connection, Driver, DriverError, Get, Put, Scan
from limpet.bench.peers.ycsb import Operation, Workload
from limpet.fault.inject.children import die_with_parent

ANSWER_WAIT_S: Final = 120
"""A worker that has not answered for this long has failed."""

START_DELAY_NS: Final = 2_000_000
"""From the meeting of the workers to their start: time for all of them to wake up."""

SCAN: Final = "scan"
"""The loop of scans."""

COMPUTE: Final = "compute"
"""The loop of gets that compute what is not there."""

BATCHES: Final = ("get_many", "put_many")
"""The loops of batches of gets, and of updates."""

_CHUNK: Final = 64
"""The warm-up looks at the clock once in this many operations."""


@dataclasses.dataclass(frozen=True)
class Task:
    """`count` operations of a loop; with `each`, the clock is read around every one of them.

    Of a loop of batches, each is of `batch` operations.
    """

    loop: str
    count: int
    each: bool = False
    batch: int = 1


@dataclasses.dataclass(frozen=True)
class Answer:
    """When a worker began and ended a task (CLOCK_MONOTONIC); with `each`, every time between."""

    begin_ns: int
    end_ns: int
    get_ns: npt.NDArray[np.int64]
    update_ns: npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Warm:
    """About how long an operation takes, from the warm-up."""

    get_ns: float
    update_ns: float


@dataclasses.dataclass(frozen=True)
class _Failure:
    text: str


class Start:
    """Where the workers of a set meet, so that they begin within a microsecond or so.

    Waking up from a barrier takes each its own time, so the last to come to it sets a moment soon
    after, and all spin until then.
    """

    def __init__(self, processes: int) -> None:
        context = multiprocessing.get_context("fork")
        self._moment_ns = context.RawValue(ctypes.c_int64)
        self._barrier = context.Barrier(processes, self._set_moment)

    def _set_moment(self) -> None:
        self._moment_ns.value = time.perf_counter_ns() + START_DELAY_NS

    def meet(self) -> None:
        """Return when all have come; BrokenBarrierError if one stays away."""
        self._barrier.wait(ANSWER_WAIT_S)
        while time.perf_counter_ns() < self._moment_ns.value:
            pass


class Workers:
    """The worker processes of one set: started on entry, ended on exit, killed if need be."""

    def __init__(
        self, driver: Driver, workload: Workload, processes: int, warm_up_s: float
    ) -> None:
        context = multiprocessing.get_context("fork")
        start = Start(processes)
        self.name = driver.name
        self.pipes: list[Pipe] = []
        self.processes: list[ForkProcess] = []
        self.theirs: list[Pipe] = []
        for stream in range(processes):
            ours, theirs = context.Pipe()
            self.pipes.append(ours)
            self.theirs.append(theirs)
            arguments = (driver, workload, stream, warm_up_s, start, theirs)
            self.processes.append(context.Process(target=_work, args=arguments, daemon=True))

    def __enter__(self) -> Workers:
        try:
            for process in self.processes:
                process.start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.ask(None)
                for process in self.processes:
                    process.join(ANSWER_WAIT_S)
                    if process.exitcode != 0:
                        raise DriverError(
                            f"{self.name}: a worker did not end well: {process.exitcode}"
                        )
        finally:
            self._end()

    def _end(self) -> None:
        for process in self.processes:
            if process.pid is not None:
                process.kill()
                process.join()
            process.close()
        for pipe in (*self.pipes, *self.theirs):
            pipe.close()

    def warm(self) -> Warm:
        """The slowest worker's warm-up; to be called once, before any `ask`."""
        answers: list[Warm] = self._answers()
        return Warm(max(a.get_ns for a in answers), max(a.update_ns for a in answers))

    def ask(self, task: Task | None) -> list[Answer]:
        """Give every worker a task and wait for all answers. None asks them to detach and end."""
        for pipe in self.pipes:
            pipe.send(task)
        return self._answers()

    def _answers(self) -> list[Any]:
        answers: dict[int, Any] = {}
        while len(answers) < len(self.pipes):
            waited = [index for index in range(len(self.pipes)) if index not in answers]
            sources = [self.pipes[index] for index in waited]
            sentinels = [self.processes[index].sentinel for index in waited]
            if not multiprocessing.connection.wait([*sources, *sentinels], ANSWER_WAIT_S):
                raise DriverError(f"{self.name}: a worker gave no answer for {ANSWER_WAIT_S} s")
            for index in waited:
                # Asked before the pipe: what a worker sent before it ended is still there.
                status = self.processes[index].exitcode
                if self.pipes[index].poll():
                    answer = self.pipes[index].recv()
                    if isinstance(answer, _Failure):
                        raise DriverError(answer.text)
                    answers[index] = answer
                elif status is not None:
                    raise DriverError(f"{self.name}: a worker died, exit status {status}")
        return [answers[index] for index in range(len(self.pipes))]


def _work(
    driver: Driver, workload: Workload, stream: int, warm_up_s: float, start: Start, pipe: Pipe
) -> None:
    """Life of a worker process."""
    die_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        connection = driver.attach()
        start.meet()
        pipe.send(_warm_up(connection, workload, stream, warm_up_s))
        while (task := pipe.recv()) is not None:
            pipe.send(_measure(connection, workload, stream, task, start))
        connection.close()
        pipe.send(None)
    except Exception:
        pipe.send(_Failure(traceback.format_exc()))


def _warm_up(connection: Connection, workload: Workload, stream: int, limit_s: float) -> Warm:
    """Touch the records, or as many as there is time for, and check that they are whole.

    Half of the time is for gets, of every record in a random order; half for updates.
    """
    keys = workload.keys()
    order = np.random.default_rng([workload.seed, stream]).permutation(workload.records).tolist()
    pairs = ycsb.updates(workload, stream, min(workload.records, workload.operations))
    get, size = connection.get, workload.value_bytes

    def check(key: bytes) -> None:
        value = get(key)
        if value is None or len(value) != size:
            raise DriverError(f"get({key!r}) gave {value!r}, not a value of {size} bytes")

    check(keys[0])  # the first operation may have to catch up with a shared log
    get_ns = _timed_for(limit_s / 2, check, [(keys[index],) for index in order])
    update_ns = _timed_for(limit_s / 2, connection.put, pairs)
    return Warm(get_ns, update_ns)


def _timed_for(
    limit_s: float, call: Callable[..., object], arguments: Sequence[tuple[bytes, ...]]
) -> float:
    """Make the calls, but stop after about `limit_s`; returns the mean time of a call in ns."""
    done = 0
    begin = time.perf_counter_ns()
    for done, argument in enumerate(arguments, 1):
        call(*argument)
        if done % _CHUNK == 0 and time.perf_counter_ns() - begin > limit_s * 1e9:
            break
    return (time.perf_counter_ns() - begin) / done


def _measure(
    connection: Connection, workload: Workload, stream: int, task: Task, start: Start
) -> Answer:
    """Make a task's operations, meet the other workers, run and time."""
    get, put = connection.get, connection.put
    get_ns: list[int] = []
    update_ns: list[int] = []
    if task.loop == "get":
        keys = ycsb.gets(workload, stream, task.count)
        start.meet()
        begin, end = time_gets(get, keys)
    elif task.loop == SCAN:
        assert connection.scan is not None
        keys = ycsb.gets(workload, stream, task.count)
        start.meet()
        begin, end = time_scans(connection.scan, keys)
    elif task.loop == COMPUTE:
        begin, end = _compute_new(connection, workload, stream, task.count, start)
    elif task.loop == "get_many":
        batches = _batches(ycsb.gets(workload, stream, task.count), task.batch)
        start.meet()
        begin, end = time_batches(connection.gets(), batches)
    elif task.loop == "put_many":
        batches = _batches(ycsb.updates(workload, stream, task.count), task.batch)
        start.meet()
        begin, end = time_batches(connection.puts(), batches)
    elif task.loop == "update":
        pairs = ycsb.updates(workload, stream, task.count)
        start.meet()
        begin, end = time_updates(put, pairs)
    else:
        operations = ycsb.mixed(workload, task.loop, stream, task.count)
        start.meet()
        if task.each:
            begin, end = time_each(get, put, operations, get_ns, update_ns)
        else:
            begin, end = time_mixed(get, put, operations)
    return Answer(begin, end, np.array(get_ns, np.int64), np.array(update_ns, np.int64))


def time_gets(get: Get, keys: Sequence[bytes]) -> tuple[int, int]:
    """When the gets began and ended."""
    begin = time.perf_counter_ns()
    for key in keys:
        get(key)
    return begin, time.perf_counter_ns()


def time_scans(scan: Scan, keys: Sequence[bytes]) -> tuple[int, int]:
    """When the scans from these keys on began and ended."""
    begin = time.perf_counter_ns()
    for key in keys:
        scan(key)
    return begin, time.perf_counter_ns()


def _compute_new(
    connection: Connection, workload: Workload, stream: int, count: int, start: Start
) -> tuple[int, int]:
    """When the computations of so many keys, that no other worker has, began and ended."""
    assert connection.delete is not None
    keys = [b"new %d %d" % (stream, number) for number in range(count)]
    value = bytes(workload.value_bytes)
    start.meet()
    begin, end = time_computes(connection.computes(), keys, lambda: value)
    for key in keys:
        connection.delete(key)
    return begin, end


def time_computes(
    compute: Compute, keys: Sequence[bytes], function: Callable[[], bytes]
) -> tuple[int, int]:
    """When the calls, each of which computes a value, began and ended."""
    begin = time.perf_counter_ns()
    for key in keys:
        compute(key, function)
    return begin, time.perf_counter_ns()


def _batches(operations: Sequence[Any], size: int) -> list[list[Any]]:
    return [list(operations[at : at + size]) for at in range(0, len(operations), size)]


def time_batches(
    call: Callable[[list[Any]], object], batches: Sequence[list[Any]]
) -> tuple[int, int]:
    """When the calls with a batch each began and ended."""
    begin = time.perf_counter_ns()
    for batch in batches:
        call(batch)
    return begin, time.perf_counter_ns()


def time_updates(put: Put, pairs: Sequence[tuple[bytes, bytes]]) -> tuple[int, int]:
    """When the updates began and ended."""
    begin = time.perf_counter_ns()
    for key, value in pairs:
        put(key, value)
    return begin, time.perf_counter_ns()


def time_mixed(get: Get, put: Put, operations: Sequence[Operation]) -> tuple[int, int]:
    """When the operations began and ended."""
    begin = time.perf_counter_ns()
    for key, value in operations:
        if value is None:
            get(key)
        else:
            put(key, value)
    return begin, time.perf_counter_ns()


def time_each(
    get: Get, put: Put, operations: Sequence[Operation], get_ns: list[int], update_ns: list[int]
) -> tuple[int, int]:
    """When the operations began and ended; appends the time of each to `get_ns` or `update_ns`."""
    clock = time.perf_counter_ns
    first = clock()
    for key, value in operations:
        if value is None:
            begin = clock()
            get(key)
            end = clock()
            get_ns.append(end - begin)
        else:
            begin = clock()
            put(key, value)
            end = clock()
            update_ns.append(end - begin)
    return first, clock()


def clock_cost_ns() -> float:
    """The time that reading the clock adds to each operation of a latency pass."""
    clock = time.perf_counter_ns
    costs = []
    for _ in range(10_000):
        begin = clock()
        end = clock()
        costs.append(end - begin)
    return statistics.median(costs)
