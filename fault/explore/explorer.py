"""The explorer: the shipped code of a store under many schedules of a few clients, with crashes.

Each schedule is a run on a simulated cluster (sim_cluster.py): a small program, drawn or given, and
departures from the default order of steps (schedule.py). A channel may be in the place of the store
(sim_channels.py). After each run, when the living clients
have finished, the explorer recovers the dead clients, and demands that
    - no operation raised NodeFailed, unless more memory nodes failed than the store survives
    - every client came to its end within a bounded number of steps, and raised no unforeseen error
    - the history is linearizable, with reads by a survivor before and after recovery
    - `check()` holds, and `audit()` finds no leaked memory, and none held without a living client

One seed drives everything: run NUMBER of SEED is the same wherever and however often it is run. A
run that fails is shrunk to a shorter program and fewer departures that fail alike. The report has
the command that replays it.

Strategies
    random      random walk
    pct         priorities with points of change
    mixed       random for even numbers, pct for odd ones
    exhaustive  for each program all schedules with up to `bound` preemptions, one crash, and
                `node_failures` (sim_exhaustive.py)
"""

from __future__ import annotations

import dataclasses
import json
import mmap
import multiprocessing
import os
import random
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import Any, Final

from limpet.fault.explore.schedule import (
    CRASH,
    FAIL,
    GONE,
    STALL,
    STRATEGIES,
    Action,
    Chooser,
    Faults,
    Longest,
    Point,
    Priorities,
    RandomWalk,
    Schedule,
    draw_faults,
    schedule_text,
)
from limpet.fault.explore.sim_cache import CacheCluster, draw_calls
from limpet.fault.explore.sim_channels import ChannelCluster
from limpet.fault.explore.sim_cluster import SimulatedCluster
from limpet.fault.explore.sim_exhaustive import Budget, exhaustive
from limpet.fault.explore.sim_names import NamesCluster, draw_names
from limpet.fault.explore.sim_program import (
    ADD,
    OF_CACHES,
    OF_NAMES,
    REPLACE,
    SWAP,
    TRANSACT,
    VALUE_SIZE,
    Call,
    Program,
    draw_program,
    parse_program,
    program_text,
)
from limpet.fault.explore.sim_run import Run, replay, run_of
from limpet.fault.explore.sim_shrink import NOT_REPEATABLE, shrink
from limpet.fault.explore.sim_subjects import CHANNELS
from limpet.fault.explore.sim_trace import trace_lines
from limpet.fault.inject.children import end_with_parent
from limpet.fault.matrix.fault_profile import profile_of
from limpet.shm.errors import ParameterError
from limpet.stores.registry import CACHES, KINDS, store_class

OP_STEPS_MIN: Final = 40
"""Faults are drawn from the steps that an operation takes, or from this many."""
MEASURED: Final = "ua ic ga da"
"""Operations whose steps are counted, to know how many steps an operation takes."""
REPLACED: Final = Call(REPLACE)
ADDED: Final = Call(ADD)
BATCH: Final = 500
TRANSACTION_STEPS: Final = 4
"""A transaction takes this many times the steps of an operation."""


@dataclasses.dataclass(frozen=True)
class Exploration:
    """Parameters of an exploration. `program` and the drawn ones: see `sim_program`.

    `schedules`: number of runs; with the exhaustive strategy, the most for each of `programs`.
    `crashes`, `stalls`, `node_failures`: the most in one run. `nodes`: of the pool; by default as
    many as suit the kind, and one more than fail. `durable`: the pool is, and in each run its power
    is cut, after which it is opened again (sim_power.py). `parameters` of the store, besides those
    that suit the kind. `transactions`: half of the operations are transactions on all keys, each of
    which is in a leaf of its own in a tree (sim_transactions.py). `names`: operations make,
    drop, rename and look at stores (sim_names.py). `replace`: nodes that fail are given new memory.
    `add_nodes`: nodes are added. `value_size`: of each value, in bytes; by default so large that
    memory is used again at once. `scarce`: no block is free, and clients take blocks from each
    other. `remote`: the clients are (shm/clients/lasting.py). `fence`: the pool's policy.
    `failures_max`: failures after which to stop.
    """

    store: str = "race"
    clients: int = 3
    ops: int = 2
    schedules: int = 1000
    seed: int = 0
    strategy: str = "mixed"
    crashes: int = 1
    stalls: int = 1
    node_failures: int = 0
    replace: bool = False
    add_nodes: bool = False
    transactions: bool = False
    names: bool = False
    nodes: int = 0
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    bound: int = 2
    programs: int = 1
    program: str = ""
    value_size: int = VALUE_SIZE
    fence: str = "kill"
    coherent: bool = True
    scarce: bool = False
    durable: bool = False
    remote: bool = False
    processes: int = 1
    failures_max: int = 1

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ParameterError(
                f"there is no strategy {self.strategy!r}; there is {', '.join(STRATEGIES)}"
            )
        for name, low, high in (
            ("clients", 1, 16), ("ops", 1, 64), ("schedules", 1, 1 << 40), ("bound", 0, 8),
            ("programs", 1, 1 << 30), ("processes", 1, 1024), ("failures_max", 1, 1000),
            ("crashes", 0, 64), ("stalls", 0, 64), ("value_size", 16, VALUE_SIZE),
            ("nodes", 0, 16), ("node_failures", 0, self.node_count),
        ):  # fmt: skip
            if not low <= getattr(self, name) <= high:
                raise ParameterError(
                    f"{name} must be from {low} to {high}, not {getattr(self, name)}"
                )
        if not self.coherent and (self.replace or "n" in self.program):
            raise ParameterError(
                "nodes are not replaced where clients have caches of their own: simulated caches "
                "cover the memory that nodes have at first"
            )
        if self.durable and (not self.coherent or self.replace or self.node_failures):
            raise ParameterError(
                "power is cut where memory is coherent and no node fails: leave the others out"
            )
        if self.remote and (not self.coherent or self.durable):
            raise ParameterError("remote clients have no caches, and are in no durable pool")
        if self.program and len(self.parse(self.program)) != self.clients:
            raise ParameterError(
                f"the program {self.program!r} is not one for {self.clients} clients"
            )
        if (self.add_nodes or ADDED in self._calls()) and (
            not self.coherent or self.durable or self.remote
        ):
            raise ParameterError(
                "nodes are added to pools that are not durable, by clients that are not remote; "
                "simulated caches do not cover them"
            )
        if self.store in CHANNELS:
            self._check_channel()
        else:
            self._check_store()

    def _check_channel(self) -> None:
        for name, given in (
            ("durable", self.durable), ("without coherence", not self.coherent),
            ("with transactions", self.transactions), ("with names", self.names),
            ("where nodes fail", self.replace or self.node_failures),
            ("where nodes are added", self.add_nodes),
        ):  # fmt: skip
            if given:
                raise ParameterError(f"channels are not explored {name}: leave that out")

    def _check_store(self) -> None:
        if self.durable and not store_class(self.store).durable:
            raise ParameterError(f"{self.store} stores are not made in durable pools; race is")
        transacts = self.transactions or "t" in self.program
        if transacts and not store_class(self.store).transactional:
            kinds = " and ".join(sorted(kind for kind in KINDS if store_class(kind).transactional))
            raise ParameterError(f"{self.store} stores take part in no transactions; {kinds} do")
        calls = {call.kind for call in self._calls()}
        if self.store in CACHES and (self.node_failures or self.replace or not self.coherent):
            raise ParameterError("a cache is not replicated, and is explored in coherent memory")
        if self.add_nodes and (self.store in CACHES or self.names):
            raise ParameterError("caches and names are not explored where nodes are added")
        if self.store not in CACHES and calls & OF_CACHES:
            raise ParameterError(f"{self.store} has no {', '.join(sorted(calls & OF_CACHES))}")
        if SWAP in calls and self.store not in CACHES and not store_class(self.store).swaps:
            raise ParameterError(f"{self.store} stores cannot swap a value for another")
        if calls & OF_NAMES and not self.names:
            raise ParameterError(f"{', '.join(sorted(calls & OF_NAMES))}: explore with names")
        if self.names and (self.store in CACHES or self.durable or self.node_failures):
            raise ParameterError("names are explored with stores, where no node fails")

    def _calls(self) -> set[Call]:
        program = self.parse(self.program) if self.program else ()
        return {call for part in program for call in part}

    def parse(self, text: str) -> Program:
        """The program of a text, in the words of the store, or of the channel; ParameterError."""
        if self.store in CHANNELS:
            return CHANNELS[self.store].parse(text)
        return parse_program(text)

    @property
    def node_count(self) -> int:
        """How many memory nodes the pool has."""
        least = self.node_failures + 1 if self.node_failures else 1
        return self.nodes or max(profile_of(self.store).explorer_nodes, least)


@dataclasses.dataclass(frozen=True)
class Failure:
    """A run that broke a promise: the promise, and the shrunk program and schedule that repeat it.

    `number`: of the run (exhaustive: of the program). `digest` is that of the shrunk run.
    """

    number: int
    what: str
    program: str
    schedule: str
    command: str
    digest: str
    trace: tuple[str, ...] = ()

    @property
    def repeatable(self) -> bool:
        """Whether the command repeats it. If not, the explorer is at fault."""
        return not self.what.startswith(NOT_REPEATABLE)


@dataclasses.dataclass(frozen=True)
class ExplorerReport:
    """The result of an exploration. `crashes`, `stalls`, `node_failures`, `replaced` (nodes that
    were given new memory), `added` (rings of nodes): those that took place.

    `unfinished`: exhaustive programs that have more schedules than were run.
    """

    parameters: Exploration
    schedules: int
    steps: int
    crashes: int
    stalls: int
    node_failures: int
    replaced: int
    added: int
    power_cuts: int
    seconds: float
    failures: tuple[Failure, ...]
    unfinished: int = 0

    @property
    def ok(self) -> bool:
        return not self.failures and self.schedules > 0


@dataclasses.dataclass
class Tally:
    """Counts of a batch of runs, and the runs of it that failed."""

    schedules: int = 0
    steps: int = 0
    crashes: int = 0
    stalls: int = 0
    node_failures: int = 0
    replaced: int = 0
    added: int = 0
    power_cuts: int = 0
    unfinished: int = 0
    failed: list[tuple[int, str, Program, Schedule]] = dataclasses.field(default_factory=list)

    def add(self, number: int, run: Run) -> None:
        self.schedules += 1
        self.steps += run.steps
        self.replaced += run.replaced
        self.added += run.added
        self.power_cuts += run.cut is not None
        for actions in run.schedule.values():
            for action in actions:
                self.crashes += action.kind == CRASH
                self.stalls += action.kind == STALL
                self.node_failures += action.kind in (FAIL, GONE)
        if run.failure:
            self.failed.append((number, run.failure, run.program, run.schedule))

    def merge(self, other: Tally) -> None:
        self.schedules += other.schedules
        self.steps += other.steps
        self.crashes += other.crashes
        self.stalls += other.stalls
        self.node_failures += other.node_failures
        self.replaced += other.replaced
        self.added += other.added
        self.power_cuts += other.power_cuts
        self.unfinished += other.unfinished
        self.failed += other.failed


# ---- single runs ---------------------------------------------------------------------------------


def cluster_of(parameters: Exploration) -> SimulatedCluster:
    """The cluster on which runs with these parameters take place."""
    subject: Any = parameters.store
    make: Any = CacheCluster if subject in CACHES else SimulatedCluster
    if subject in CHANNELS:
        make, subject = ChannelCluster, CHANNELS[subject]
    elif parameters.names:
        make = NamesCluster
    made: SimulatedCluster = make(
        subject,
        parameters.clients,
        nodes=parameters.node_count,
        parameters=parameters.parameters,
        fence=parameters.fence,
        value_size=parameters.value_size,
        coherent=parameters.coherent,
        scarce=parameters.scarce,
        apart=parameters.transactions,
        durable=parameters.durable,
        remote=parameters.remote,
    )
    return made


def numbered_run(cluster: SimulatedCluster, parameters: Exploration, number: int) -> Run:
    """Run `number` of the parameters' seed, with a random strategy."""
    rng, program = _draw(parameters, number)
    op_steps = _op_steps(cluster)
    drawn = {call for calls in program for call in calls}
    longer: dict[object, int] = {
        call: _memory_steps(cluster, call) for call in (REPLACED, ADDED) if call in drawn
    }
    added = cluster.ring if ADDED in drawn else 0
    counts = Faults(
        parameters.crashes,
        parameters.stalls,
        parameters.node_failures,
        cluster.nodes + added,
        int(parameters.durable),
    )
    for call in {call for call in drawn if call.kind == TRANSACT}:
        longer[call] = TRANSACTION_STEPS * op_steps
    if isinstance(cluster, NamesCluster):
        named = {call for call in drawn if call.kind in OF_NAMES}
        longer.update((call, cluster.steps_of(call)) for call in named)
    faults: Schedule = draw_faults(rng, program, counts, op_steps, longer)
    chooser: Chooser
    if parameters.strategy == "random" or (parameters.strategy == "mixed" and not number & 1):
        chooser = RandomWalk(rng, faults)
    else:
        length = sum(longer.get(call, op_steps) for calls in program for call in calls)
        chooser = Priorities(rng, faults, len(program), rng.randint(1, 5), length)
    return run_of(cluster, program, chooser).go()


def _op_steps(cluster: SimulatedCluster) -> int:
    """The most steps of an operation without interference."""
    if not cluster.op_steps:
        watch = Longest({})
        run_of(cluster, parse_program(MEASURED), watch).go()
        cluster.op_steps = max(OP_STEPS_MIN, watch.steps)
    return cluster.op_steps


def _memory_steps(cluster: SimulatedCluster, call: Call) -> int:
    """Steps of replacing or adding nodes without interference."""
    if call not in cluster.memory_steps:
        lost = (Action(FAIL, cluster.nodes - 1),)
        watch = Longest({Point(0, 0, 1): lost} if call == REPLACED else {})
        Run(cluster, ((call,),), watch).go()
        cluster.memory_steps[call] = watch.steps
    return cluster.memory_steps[call]


def _draw(parameters: Exploration, number: int) -> tuple[random.Random, Program]:
    rng = random.Random(f"{parameters.seed}:{number}")
    counts = parameters.clients, parameters.ops, parameters.crashes > 0
    if parameters.store in CHANNELS:
        drawn = CHANNELS[parameters.store].draw(rng, *counts)
    elif parameters.store in CACHES:
        drawn = draw_calls(rng, *counts)
    elif parameters.names:
        drawn = draw_names(rng, *counts)
    else:
        found = store_class(parameters.store)
        # Those of a transactional store are transactions.
        swaps = found.swaps and not found.transactional
        memory = parameters.replace, parameters.add_nodes
        drawn = draw_program(rng, *counts, *memory, parameters.transactions, swaps)
    return rng, parameters.parse(parameters.program) if parameters.program else drawn


# ---- many runs -----------------------------------------------------------------------------------


def run_batch(parameters: Exploration, numbers: range) -> Tally:
    """The runs of these numbers (exhaustive: of these programs), on a cluster of their own.

    Ends after `failures_max` failures, or when the caller stops iterating.
    """
    tally = Tally()
    with cluster_of(parameters) as cluster:
        for number in numbers:
            for run in _runs(cluster, parameters, number, tally):
                tally.add(number, run)
                if len(tally.failed) >= parameters.failures_max or _unwanted[0]:
                    return tally
    return tally


def _runs(
    cluster: SimulatedCluster, parameters: Exploration, number: int, tally: Tally
) -> Iterator[Run]:
    if parameters.strategy != "exhaustive":
        yield numbered_run(cluster, parameters, number)
        return
    _, program = _draw(parameters, number)
    budget = Budget(parameters.bound, min(1, parameters.crashes), parameters.node_failures)
    complete = yield from exhaustive(cluster, program, budget, parameters.schedules)
    tally.unfinished += not complete


_unwanted: bytes | mmap.mmap = bytes(1)
"""Its first byte is set when the batches in this process are not needed any more."""


def _begin_process(parent: int, unwanted: mmap.mmap) -> None:
    global _unwanted
    end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _unwanted = unwanted


def _tallies(parameters: Exploration) -> Iterator[Tally]:
    """The tallies of all batches, in the order in which they finish."""
    count, size = parameters.schedules, BATCH
    if parameters.strategy == "exhaustive":
        count, size = parameters.programs, 1
    size = max(1, min(size, -(-count // parameters.processes)))
    batches = (range(start, min(start + size, count)) for start in range(0, count, size))
    if parameters.processes == 1:
        for numbers in batches:
            yield run_batch(parameters, numbers)
        return
    unwanted = mmap.mmap(-1, 1)
    with ProcessPoolExecutor(
        parameters.processes, multiprocessing.get_context("fork"),
        _begin_process, (os.getpid(), unwanted),
    ) as executor:  # fmt: skip
        running: set[Future[Tally]] = set()
        try:
            for numbers in batches:
                running.add(executor.submit(run_batch, parameters, numbers))
                if len(running) >= 2 * parameters.processes:
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in done)
            yield from (future.result() for future in running)
        finally:
            unwanted[0] = 1
            executor.shutdown(cancel_futures=True)


def explore(
    parameters: Exploration, progress: Callable[[Tally], object] = lambda tally: None
) -> ExplorerReport:
    """Explore; `progress` is told the counts so far after each batch."""
    start = time.monotonic()
    total = Tally()
    for tally in _tallies(parameters):
        total.merge(tally)
        progress(total)
        if len(total.failed) >= parameters.failures_max:
            break
    seconds = time.monotonic() - start
    failures: tuple[Failure, ...] = ()
    if total.failed:
        with cluster_of(parameters) as cluster:
            failures = tuple(
                describe(cluster, parameters, *failed)
                for failed in sorted(total.failed, key=lambda f: f[0])[: parameters.failures_max]
            )
    return ExplorerReport(
        parameters, total.schedules, total.steps, total.crashes, total.stalls,
        total.node_failures, total.replaced, total.added, total.power_cuts, seconds, failures,
        total.unfinished,
    )  # fmt: skip


# ---- failures ------------------------------------------------------------------------------------


def command_of(parameters: Exploration, program: str, schedule: str) -> str:
    """The command that runs this program with this schedule."""
    words = [
        "limpet", "drill", "explore", parameters.store, "--clients", str(parameters.clients),
        "--program", program, "--schedule", schedule,
    ]  # fmt: skip
    if parameters.node_count != profile_of(parameters.store).explorer_nodes:
        words += ["--nodes", str(parameters.node_count)]
    for name, value in parameters.parameters.items():
        words += ["--parameter", f"{name}={json.dumps(value)}"]
    if parameters.value_size != VALUE_SIZE:
        words += ["--value-size", str(parameters.value_size)]
    if parameters.fence != "kill":
        words += ["--fence", parameters.fence]
    if not parameters.coherent:
        words.append("--incoherent")
    if parameters.scarce:
        words.append("--scarce")
    if parameters.durable:
        words.append("--durable")
    if parameters.remote:
        words.append("--remote")
    if parameters.transactions:
        words.append("--transactions")
    if parameters.names:
        words.append("--names")
    return shlex.join(words)


def describe(
    cluster: SimulatedCluster,
    parameters: Exploration,
    number: int,
    what: str,
    program: Program,
    schedule: Schedule,
) -> Failure:
    """Shrink a run that failed; the failure, with the command that repeats it."""
    run = shrink(cluster, program, schedule, what)
    texts = program_text(run.program), schedule_text(run.schedule)
    return Failure(
        number, run.failure, *texts, command_of(parameters, *texts), run.digest(),
        tuple(trace_lines(cluster, run.trace)),
    )  # fmt: skip


def explore_one(parameters: Exploration, schedule: Schedule) -> tuple[Run, list[str]]:
    """Run the parameters' program with a schedule; the run, and its steps as text."""
    with cluster_of(parameters) as cluster:
        run = replay(cluster, parameters.parse(parameters.program), schedule)
        return run, trace_lines(cluster, run.trace)
