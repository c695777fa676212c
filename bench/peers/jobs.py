"""Queues of jobs, and executors, against their peers: `limpet bench jobs`.

Three cases, with N worker processes
    jobs       one process puts jobs of 64 bytes, the workers get and acknowledge them
    latency    a job is put while all workers wait: how long until a worker has it
    calls      an executor maps a function that does nothing

multiprocessing's queue and executors know no acknowledgement that survives a worker: a job whose
worker is killed is lost, or breaks the pool. Redis streams (a group of consumers; XACK, then XDEL)
do; huey on Redis takes a job off its list when a worker gets it.

Each round times every contender once, one after another, so that other work of the machine hits all
of them alike. Medians of the rounds are reported, and the median of the ratios of a round.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Final

from rich.table import Table

from limpet.bench.peers.drivers import package_missing
from limpet.bench.peers.servers import RedisDriver
from limpet.bench.peers.ycsb import Workload
from limpet.cli.common import table, time_text
from limpet.executor import Executor
from limpet.fault.inject.children import die_with_parent
from limpet.shm.errors import LimpetError, ParameterError
from limpet.stores.pool import Pool

CASES: Final = ("jobs", "latency", "calls")
LIMPET: Final = "limpet"
JOB: Final = bytes(64)
STOP: Final = b"stop"
PLACES: Final = 1024
PAUSE_S: Final = 0.002
"""Between jobs, in which a worker has fallen asleep."""
ANSWER_WAIT_S: Final = 120.0


class Contender:
    """A queue of jobs. `attach` is called in each process, before its first job."""

    name = ""

    def missing(self) -> str | None:
        """Why it cannot be run, and how to get it; None: it can."""
        return None

    def start(self) -> None:
        """Begin, in the process that measures."""

    def attach(self) -> None:
        """Connect this process."""

    def put(self, job: bytes) -> None:
        """Put a job."""
        raise NotImplementedError

    def take(self) -> tuple[bytes, Callable[[], object]]:
        """Wait for a job: its bytes, and what acknowledges it."""
        raise NotImplementedError

    def stop(self) -> None:
        """End."""


class LimpetJobs(Contender):
    """`pool.queue(acks=True)`."""

    name = LIMPET

    def start(self) -> None:
        self.url = f"shm://limpet-jobs-{os.getpid()}"
        # It goes away with its last client, also if this is interrupted.
        self.pool = Pool.create(self.url, nodes=1, node_size=16 << 20, ephemeral=True)
        self.jobs = self.pool.queue("jobs", PLACES, codec="bytes", acks=True)

    def put(self, job: bytes) -> None:
        self.jobs.put(job)

    def take(self) -> tuple[bytes, Callable[[], object]]:
        delivery = self.jobs.get()
        return delivery.value, delivery.ack

    def stop(self) -> None:
        self.pool.close()


class JoinableQueue(Contender):
    """multiprocessing's queue with `task_done`."""

    name = "multiprocessing.JoinableQueue"

    def start(self) -> None:
        self.queue: Any = multiprocessing.get_context("fork").JoinableQueue(PLACES)

    def put(self, job: bytes) -> None:
        self.queue.put(job)

    def take(self) -> tuple[bytes, Callable[[], object]]:
        return self.queue.get(), self.queue.task_done

    def stop(self) -> None:
        self.queue.close()
        self.queue.join_thread()


class RedisStream(Contender):
    """A stream of Redis with a group of consumers."""

    name = "Redis stream"
    key = "jobs"

    def __init__(self) -> None:
        self.driver = RedisDriver()
        self.client: Any = None

    def missing(self) -> str | None:
        return self.driver.missing()

    def start(self) -> None:
        self.driver.start(Workload())
        self.attach()
        self.client.xgroup_create(self.key, "workers", mkstream=True)

    def attach(self) -> None:
        self.client = self.driver.connect()

    def put(self, job: bytes) -> None:
        self.client.xadd(self.key, {"job": job})

    def take(self) -> tuple[bytes, Callable[[], object]]:
        ((_, ((ident, fields),)),) = self.client.xreadgroup(
            "workers", str(os.getpid()), {self.key: ">"}, count=1, block=0
        )

        def ack() -> None:
            self.client.xack(self.key, "workers", ident)
            self.client.xdel(self.key, ident)

        return fields[b"job"], ack

    def stop(self) -> None:
        self.driver.stop()


class Huey(RedisStream):
    """huey's queue on Redis; a job is gone when a worker has got it."""

    name = "huey on Redis"

    def missing(self) -> str | None:
        return package_missing("huey") or super().missing()

    def start(self) -> None:
        self.driver.start(Workload())
        self.attach()

    def attach(self) -> None:
        storage = importlib.import_module("huey.storage")
        self.client = storage.RedisStorage(
            "jobs", blocking=True, url=f"unix://{self.driver.socket}"
        )

    def put(self, job: bytes) -> None:
        self.client.enqueue(job)

    def take(self) -> tuple[bytes, Callable[[], object]]:
        job = None
        while job is None:
            job = self.client.dequeue()
        return job, int


CONTENDERS: Final[tuple[type[Contender], ...]] = (LimpetJobs, JoinableQueue, RedisStream, Huey)


@dataclasses.dataclass(frozen=True)
class Result:
    """Medians: jobs a second, us for each, and how many times as fast limpet is."""

    case: str
    workers: int
    contender: str
    per_second: float | None
    each_us: float | None
    ratio: float | None
    missing: str | None = None


# ---- loops --------------------------------------------------------------------------------------


def _work(contender: Contender, pipe: Any) -> None:
    """A worker: how long after its time stamp it had each job, in ns."""
    die_with_parent()
    contender.attach()
    pipe.send(None)
    spans = []
    while True:
        job, ack = contender.take()
        now = time.monotonic_ns()
        ack()
        if job == STOP:
            break
        spans.append(now - int.from_bytes(job[:8], "little"))
    pipe.send((time.monotonic_ns(), spans))


def _seconds_each(contender: Contender, workers: int, count: int, alone: bool) -> float:
    """Seconds for a job: of all of them together, or, `alone`, the median until one is got."""
    context = multiprocessing.get_context("fork")
    contender.start()
    started = []
    try:
        for _ in range(workers):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(contender, theirs), daemon=True)
            process.start()
            theirs.close()
            started.append((process, ours))
        for one in started:
            _answer(*one)
        begin = time.monotonic_ns()
        for _ in range(count):
            if alone:
                time.sleep(PAUSE_S)
            contender.put(time.monotonic_ns().to_bytes(8, "little") + JOB[8:])
        for _ in range(workers):
            contender.put(STOP)
        answers = [_answer(*one) for one in started]
    finally:
        for process, ours in started:
            process.kill()
            process.join()
            ours.close()
        contender.stop()
    if alone:
        return float(statistics.median(span for _, spans in answers for span in spans)) / 1e9
    return float(max(end for end, _ in answers) - begin) / 1e9 / count


def _answer(process: Any, pipe: Any) -> Any:
    with contextlib.suppress(EOFError):
        if pipe.poll(ANSWER_WAIT_S):
            return pipe.recv()
    raise LimpetError(f"process {process.pid} has ended, or does not answer")


def nothing(number: int) -> int:
    """The function that is called."""
    return number


def _ours(workers: int, count: int) -> float:
    with Executor(workers) as executor:
        return _mapped(executor.map, workers, count)


def _theirs(workers: int, count: int) -> float:
    with ProcessPoolExecutor(workers) as executor:
        return _mapped(executor.map, workers, count)


def _pool(workers: int, count: int) -> float:
    with multiprocessing.Pool(workers) as pool:
        return _mapped(pool.imap, workers, count)


def _mapped(mapped: Callable[..., Any], workers: int, count: int) -> float:
    list(mapped(nothing, range(10 * workers)))  # all workers have started
    begin = time.monotonic()
    list(mapped(nothing, range(count)))
    return (time.monotonic() - begin) / count


EXECUTORS: Final[dict[str, Callable[[int, int], float]]] = {
    "limpet.Executor": _ours,
    "ProcessPoolExecutor": _theirs,
    "multiprocessing.Pool": _pool,
}


# ---- rounds -------------------------------------------------------------------------------------


def run(
    cases: Sequence[str], workers: Sequence[int], jobs: int, rounds: int
) -> Iterator[tuple[str, list[Result]]]:
    """Progress, and then the results of each case and number of workers."""
    for case in cases:
        if case not in CASES:
            raise ParameterError(f"there is no case {case!r}; there is {', '.join(CASES)}")
    for case in cases:
        for number in workers:
            yield f"{case}, {number} workers", _case(case, number, jobs, rounds)


def _case(case: str, workers: int, jobs: int, rounds: int) -> list[Result]:
    timed: dict[str, Callable[[], float]] = {}
    absent: dict[str, str] = {}
    if case == "calls":
        timed = {
            name: lambda call=call: call(workers, jobs)  # type: ignore[misc]
            for name, call in EXECUTORS.items()
        }
    else:
        for cls in CONTENDERS:
            reason = cls().missing()
            if reason is not None:
                absent[cls.name] = reason
            else:
                alone = case == "latency"
                count = max(1, jobs // 10) if alone else jobs
                timed[cls.name] = lambda cls=cls, count=count, alone=alone: (  # type: ignore[misc]
                    _seconds_each(cls(), workers, count, alone)
                )
    took: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(rounds):
        for name, once in timed.items():
            took[name].append(once())
    ours = took[next(iter(took))]
    found = []
    for name, each in took.items():
        median = statistics.median(each)
        ratio = None
        if each is not ours:
            pairs = zip(each, ours, strict=True)
            ratio = statistics.median(theirs / own for theirs, own in pairs)
        found.append(Result(case, workers, name, 1 / median, 1e6 * median, ratio))
    return found + [
        Result(case, workers, name, None, None, None, reason) for name, reason in absent.items()
    ]


def results_table(found: Sequence[Result]) -> Table:
    """A row for each contender."""
    numbers = ("workers", "a second", "each", "limpet is")
    shown = table("jobs against their peers", "case", "", *numbers, right=numbers)
    for one in found:
        if one.per_second is None or one.each_us is None:
            shown.add_row(one.case, one.contender, str(one.workers), "missing", "", "")
            continue
        shown.add_row(
            one.case, one.contender, str(one.workers),
            "" if one.case == "latency" else f"{one.per_second:,.0f}",
            time_text(1000 * one.each_us), "" if one.ratio is None else f"{one.ratio:.1f}x",
        )  # fmt: skip
    shown.caption = (
        "jobs: put by one process, got and acknowledged by the workers. latency: from the put "
        "until a worker that waited has the job. calls: a function that does nothing, mapped. "
        "limpet is: so many times as fast, the median over rounds of one after the other."
    )
    return shown


def missing(found: Sequence[Result]) -> dict[str, str]:
    """Why a contender was not run and how to get it, by its name."""
    return {one.contender: one.missing for one in found if one.missing is not None}


def as_json(found: Sequence[Result]) -> list[dict[str, Any]]:
    """All of it."""
    return [dataclasses.asdict(one) for one in found]
