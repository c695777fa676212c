"""The measuring: one loop drives every store, in rounds that are interleaved over the stores.

In each round each store is driven by each number of processes in turn; the order of the stores
moves on by one from round to round. A *set* is (round, store, processes): its worker processes are
forked, attach, warm up, and run the loops below one after another, each behind a barrier.

    loop       operations                        gives
    get        gets only                         time of a get
    update     puts to existing keys only        time of an update
    get_many   gets, `batch` of them a call      time of a get
    put_many   puts, likewise                    time of an update
    compute    gets or computes; all miss        time of one; the keys are deleted afterwards
    A, B, C, W the YCSB mixes, and updates only  throughput; latencies in a pass of their own
    scan       scans of 100 keys                 time of a scan; ordered stores and peers only, and
                                                 only if there is one of limpet's among them

The loops call a store's bound `get(key)` and `put(key, value)`, the same callables for each of
them, over operations made beforehand, and hold no timer: their time is one difference of
CLOCK_MONOTONIC, and includes the interpreter's loop. The latency pass reads the clock around each
operation and subtracts nothing; the cost of reading the clock is reported as `timer_ns`.

A slow store runs fewer operations of the same streams: as many as take about `seconds_per_cell`,
judged by the warm-up. Garbage collection is off in the workers. Ratios are taken within a round,
where both sides met the same machine, and then the median of the rounds is reported.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np

from limpet.bench.peers import ycsb
from limpet.bench.peers.drivers import DictDriver, Driver, DriverError, LimpetDriver
from limpet.bench.peers.embedded import DiskcacheDriver, LmdbDriver, SqliteDriver, UltraDictDriver
from limpet.bench.peers.servers import ManagerDriver, RedisDriver
from limpet.bench.peers.workers import BATCHES, COMPUTE, SCAN, Answer, Task, Workers, clock_cost_ns
from limpet.bench.peers.ycsb import Workload
from limpet.shm.errors import ParameterError

PEERS: Final[dict[str, type[Driver]]] = {
    "dict": DictDriver,
    "lmdb": LmdbDriver,
    "redis": RedisDriver,
    "manager": ManagerDriver,
    "sqlite": SqliteDriver,
    "diskcache": DiskcacheDriver,
    "ultradict": UltraDictDriver,
}
"""Everything but limpet's own stores, by name."""


LOOPS: Final = ("get", "update")
"""The loops of single gets and updates."""

OPERATIONS_MIN: Final = 100
LATENCY_SHARE: Final = 4
"""The latency pass has this many times fewer operations than the throughput pass."""
GETS_IN_A_SCAN: Final = 30
"""A scan takes about as long as so many gets."""
WARM_UP_SHARE: Final = 0.4
"""The warm-up takes this share of `seconds_per_cell` at most."""


@dataclasses.dataclass(frozen=True)
class Options:
    """How the stores are measured."""

    workload: Workload = dataclasses.field(default_factory=Workload)
    processes: tuple[int, ...] = (1, 2)
    mixes: tuple[str, ...] = ycsb.YCSB_MIXES
    rounds: int = 5
    seconds_per_cell: float = 1.0
    batch: int = 100
    basic: tuple[str, ...] = (*LOOPS, *BATCHES)
    """The loops that run before the mixes."""

    def __post_init__(self) -> None:
        if not self.processes or any(count < 1 for count in self.processes):
            raise ParameterError(f"processes must be counts of at least 1, not {self.processes}")
        unknown = [mix for mix in self.mixes if mix not in ycsb.READ_SHARE]
        if unknown:
            raise ParameterError(
                f"there is no mix {unknown[0]!r}; there are {', '.join(ycsb.READ_SHARE)}"
            )
        if self.rounds < 1:
            raise ParameterError(f"rounds must be at least 1, not {self.rounds}")
        if self.batch < 1:
            raise ParameterError(f"batch must be at least 1, not {self.batch}")
        if not self.seconds_per_cell > 0:
            raise ParameterError(f"seconds_per_cell must be above 0, not {self.seconds_per_cell}")

    @property
    def loops(self) -> tuple[str, ...]:
        return (*self.basic, *self.mixes)


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One loop of one set: `ns_per_op` in one process, `kops` of all processes together.

    The latencies, over all processes, are None for operations that the loop does not make or time.
    """

    store: str
    loop: str
    processes: int
    round: int
    operations: int
    ns_per_op: float
    kops: float
    get_us_median: float | None = None
    get_us_p99: float | None = None
    update_us_median: float | None = None
    update_us_p99: float | None = None


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a run. Every store is in just one of `versions`, `missing` and `failed`.

    `missing` says why and how to get it, `failed` what happened; only the others have measurements.
    """

    options: Options
    measurements: tuple[Measurement, ...]
    versions: dict[str, str]
    missing: dict[str, str]
    failed: dict[str, str]
    timer_ns: float


def drivers(stores: Sequence[str], peers: Sequence[str]) -> list[Driver]:
    """A driver for each of the `stores` (see LimpetDriver) and each of the `peers`."""
    unknown = [name for name in peers if name not in PEERS]
    if unknown:
        raise ParameterError(f"there is no peer {unknown[0]!r}; there are {', '.join(PEERS)}")
    return [LimpetDriver(kind) for kind in stores] + [PEERS[name]() for name in peers]


def scanned(drivers: Iterable[Driver]) -> frozenset[str]:
    """Names of the drivers whose scans are measured."""
    names = {driver.name: driver for driver in drivers if driver.ordered}
    ours = any(isinstance(driver, LimpetDriver) for driver in names.values())
    return frozenset(names) if ours else frozenset()


def run(
    options: Options,
    drivers: Iterable[Driver],
    advance: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Measure every driver; `advance` is called with a line of text before each step.

    A driver that fails is left out from there on and reported; the others go on. Whatever happens,
    every driver that was started is stopped.
    """
    drivers = list(drivers)
    scans = scanned(drivers)
    rows: list[Measurement] = []
    versions: dict[str, str] = {}
    missing: dict[str, str] = {}
    failed: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        running = []
        pairs = options.workload.pairs()
        for driver in drivers:
            reason = driver.missing()
            if reason is not None:
                missing[driver.name] = reason
                continue
            advance(f"loading {driver.name}")
            stack.callback(driver.stop)
            try:
                versions[driver.name] = driver.version()
                driver.start(options.workload)
                driver.load(pairs)
            except Exception:
                failed[driver.name] = traceback.format_exc()
            else:
                running.append(driver)
        for round_ in range(options.rounds):
            shift = round_ % max(len(running), 1)
            for driver in running[shift:] + running[:shift]:
                try:
                    for processes in options.processes:
                        if driver.alone and processes > 1:
                            continue
                        loops = (*options.loops, SCAN) if driver.name in scans else options.loops
                        rows += _run_set(options, driver, processes, round_, loops, advance)
                except DriverError as error:
                    failed[driver.name] = str(error)
                    running.remove(driver)
    return Outcome(
        options=options,
        measurements=tuple(row for row in rows if row.store not in failed),
        versions={name: version for name, version in versions.items() if name not in failed},
        missing=missing,
        failed=failed,
        timer_ns=clock_cost_ns(),
    )


def steps(options: Options, drivers: int, scanned: int = 0) -> int:
    """How often `run` calls `advance` for so many drivers, when none is missing, alone, and none
    fails; the scans of `scanned` of them are measured, too."""
    tasks = drivers * (len(options.basic) + 2 * len(options.mixes)) + scanned
    return drivers + options.rounds * len(options.processes) * tasks


def _run_set(
    options: Options,
    driver: Driver,
    processes: int,
    round_: int,
    loops: Sequence[str],
    advance: Callable[[str], None],
) -> list[Measurement]:
    """The loops of one set; DriverError if a worker fails, dies or does not answer."""
    label = f"round {round_ + 1} of {options.rounds}: {driver.name}, processes: {processes}"
    rows = []
    warm_up_s = options.seconds_per_cell * WARM_UP_SHARE
    with Workers(driver, options.workload, processes, warm_up_s) as workers:
        warm = workers.warm()
        for loop in loops:
            share = 1.0 if loop in ("get", "get_many") else ycsb.READ_SHARE.get(loop, 0.0)
            expected_ns = share * warm.get_ns + (1 - share) * warm.update_ns
            if loop == SCAN:
                expected_ns = GETS_IN_A_SCAN * warm.get_ns
            elif loop == COMPUTE:
                expected_ns = warm.get_ns + warm.update_ns
            fitting = int(options.seconds_per_cell * 1e9 / expected_ns)
            count = min(options.workload.operations, max(OPERATIONS_MIN, fitting))
            advance(f"{label}, {loop}")
            answers = workers.ask(Task(loop, count, batch=options.batch))
            latencies: dict[str, float | None] = {}
            if loop in options.mixes:
                advance(f"{label}, {loop} latencies")
                latencies = _latencies(
                    workers.ask(Task(loop, max(count // LATENCY_SHARE, 1), each=True))
                )
            elapsed = [answer.end_ns - answer.begin_ns for answer in answers]
            span = max(answer.end_ns for answer in answers) - min(
                answer.begin_ns for answer in answers
            )
            rows.append(
                Measurement(
                    store=driver.name,
                    loop=loop,
                    processes=processes,
                    round=round_,
                    operations=count * processes,
                    ns_per_op=statistics.fmean(elapsed) / count,
                    kops=count * processes * 1e6 / span,
                    **latencies,
                )
            )
    return rows


def _latencies(answers: Sequence[Answer]) -> dict[str, float | None]:
    """Median and 99th percentile of the gets and of the updates of all workers, in us."""
    found: dict[str, float | None] = {}
    for name in ("get", "update"):
        samples = np.concatenate([getattr(answer, f"{name}_ns") for answer in answers])
        if len(samples):
            median, p99 = np.percentile(samples, (50, 99)) / 1000
            found[f"{name}_us_median"] = float(median)
            found[f"{name}_us_p99"] = float(p99)
    return found
