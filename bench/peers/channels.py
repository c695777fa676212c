"""Channels against what multiprocessing and Open MPI have, driven by the same loops.

Cases that are timed, with N processes
    lock       each acquires and releases one lock, time and again
    barrier    all meet at a barrier
    queue      half of them put items into one queue, the others get them
    pass       pairs pass an item to and fro, over two queues: how long one way takes
    ring       one sends items to all others; multiprocessing has a queue for each of them
    ring pass  as pass, over two rings
    number     each adds to one number, under its lock
    transfer   each moves money from an account to another, with the locks of both, in their order;
               accounts are an array's elements

The last two are those of the paper's figure 4 (section 7.1), with fewer accounts. Open MPI's
windows (mpi.py) are their contender there, and here too, where it is installed.

Each round times every contender once, one after another, so that other work of the machine hits all
of them alike; medians of the rounds are reported. How often a loop runs is found out first, so that
it takes about `seconds`. Loops begin together, and count from the first begin to the last end. By
then each process is a client of the pool, which takes longer than thousands of locks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import queue
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, Final

from rich.table import Table

from limpet.bench.peers import mpi
from limpet.bench.peers.mpi import MPI
from limpet.cli.common import table, time_text
from limpet.fault.inject.children import die_with_parent
from limpet.shm.destroying import destroy
from limpet.shm.errors import LimpetError, ParameterError
from limpet.stores.pool import Pool

LIMPET: Final = "limpet"
LOCK: Final = "Lock"
BARRIER: Final = "Barrier"
QUEUE: Final = "Queue"
SIMPLE: Final = "SimpleQueue"
ACCOUNTS: Final = 64
ITEM: Final = bytes(64)
FIRST: Final = 50
"""Operations of the first loop that finds out how long one takes."""
GROWTH: Final = 20
"""So many times as many does the next one of these loops do at most."""
QUEUE_MAX: Final = 256
ANSWER_WAIT_S: Final = 120.0
LOW, HIGH = 20, 1_000_000

Made = Any
Body = Callable[[Made, int, int, int], None]
"""Called with the objects, the number of this process, the number of all, and how often."""


@dataclasses.dataclass(frozen=True)
class Case:
    """`makers`: for each contender, by its name, the function that makes the objects.

    `body` is the loop; `ready` is done before it. `per_round`: operations, of all, each time.
    `total`: the sum of all accounts in the end, by processes and rounds; Open MPI runs such a case.
    """

    makers: Mapping[str, Callable[[Pool, int], Made]]
    body: Body
    per_round: Callable[[int], float]
    ready: Callable[[Made, int, int], None] = lambda made, index, processes: None
    total: Callable[[int, int], int] | None = None

    @property
    def contenders(self) -> tuple[str, ...]:
        """Their names."""
        return (*self.makers, *(() if self.total is None else (MPI,)))


@dataclasses.dataclass(frozen=True)
class Result:
    """Medians: operations a second of all processes, and us of the clock for each."""

    case: str
    processes: int
    contender: str
    per_second: float | None
    each_us: float | None
    ratio: float | None
    """How many times as fast limpet is."""
    missing: str | None = None
    """Why it was not run, and how to get it."""


# ---- the loops ----------------------------------------------------------------------------------


def _locks(made: Made, index: int, processes: int, count: int) -> None:
    for _ in range(count):
        made.acquire()
        made.release()


def _meets(made: Made, index: int, processes: int, count: int) -> None:
    for _ in range(count):
        made.wait()


def _flows(made: Made, index: int, processes: int, count: int) -> None:
    if index < processes // 2:
        for _ in range(count):
            made.put(ITEM)
    else:
        for _ in range(count):
            made.get()


def _passes(made: Made, index: int, processes: int, count: int) -> None:
    there, back = made[index // 2]
    for _ in range(count):
        if index % 2:
            there.get()
            back.put(ITEM)
        else:
            there.put(ITEM)
            back.get()


def _casts(made: Made, index: int, processes: int, count: int) -> None:
    if index == 0:
        for _ in range(count):
            for one in made:
                one.put(ITEM)
    else:
        mine = made[(index - 1) % len(made)]
        for _ in range(count):
            mine.get()


def _adds(made: Made, index: int, processes: int, count: int) -> None:
    locks, accounts = made
    for _ in range(count):
        locks[0].acquire()
        accounts.add(0, 1)
        locks[0].release()


def _transfers(made: Made, index: int, processes: int, count: int) -> None:
    locks, accounts = made
    rng = random.Random(index)
    for _ in range(count):
        one, other = sorted(rng.sample(range(ACCOUNTS), 2))
        locks[one].acquire()
        locks[other].acquire()
        accounts.add(one, -1)
        accounts.add(other, 1)
        locks[other].release()
        locks[one].release()


# ---- the objects --------------------------------------------------------------------------------


class _Ring:
    """A ring as one end of a queue."""

    def __init__(self, ring: Any) -> None:
        self.put = ring.send
        self.get = ring.receive
        self.receive_nowait = ring.receive_nowait

    def join(self) -> None:
        """The program of a reader."""
        with contextlib.suppress(queue.Empty):
            self.receive_nowait()


def _ring(pool: Pool, name: str) -> _Ring:
    return _Ring(pool.ring(name))


def _listens(made: Made, index: int, processes: int) -> None:
    for one in made if index else ():
        if isinstance(one, _Ring):
            one.join()


def _listens_in_pairs(made: Made, index: int, processes: int) -> None:
    one = made[index // 2][1 - index % 2]
    if isinstance(one, _Ring):
        one.join()


def _pairs(make: Callable[[Pool, str], Made]) -> Callable[[Pool, int], Made]:
    return lambda pool, processes: [
        tuple(make(pool, f"q{pair}-{way}") for way in range(2)) for pair in range(processes // 2)
    ]


def _theirs(name: str) -> Callable[[Pool, int], Made]:
    return lambda pool, processes: getattr(multiprocessing, name)()


def _queues(name: str) -> Callable[[Pool, int], Made]:
    return lambda pool, processes: [getattr(multiprocessing, name)() for _ in range(processes - 1)]


def _accounts(pool: Pool, processes: int) -> Made:
    locks = [pool.lock(f"account{number}") for number in range(ACCOUNTS)]
    return locks, pool.array("accounts", ACCOUNTS)


class _Accounts:
    """An array; the holder of an element's lock adds to it."""

    def __init__(self) -> None:
        self.array = multiprocessing.RawArray("q", ACCOUNTS)

    def add(self, index: int, delta: int) -> None:
        self.array[index] += delta


def _their_accounts(pool: Pool, processes: int) -> Made:
    locks = [multiprocessing.Lock() for _ in range(ACCOUNTS)]
    return locks, _Accounts()


CASES: Final[Mapping[str, Case]] = {
    "lock": Case(
        {LIMPET: lambda pool, processes: pool.lock("lock"), LOCK: _theirs(LOCK)},
        _locks, lambda processes: processes,
    ),
    "barrier": Case(
        {
            LIMPET: lambda pool, processes: pool.barrier("barrier", processes),
            BARRIER: lambda pool, processes: multiprocessing.Barrier(processes),
        },
        _meets, lambda processes: 1,
    ),
    "queue": Case(
        {
            LIMPET: lambda pool, processes: pool.queue("queue", QUEUE_MAX),
            QUEUE: _theirs(QUEUE), SIMPLE: _theirs(SIMPLE),
        },
        _flows, lambda processes: processes // 2,
    ),
    "pass": Case(
        {
            LIMPET: _pairs(lambda pool, name: pool.queue(name, QUEUE_MAX)),
            QUEUE: _pairs(lambda pool, name: multiprocessing.Queue()),
            SIMPLE: _pairs(lambda pool, name: multiprocessing.SimpleQueue()),
        },
        _passes, lambda processes: 2 * (processes // 2),
    ),
    "ring": Case(
        {
            LIMPET: lambda pool, processes: [_ring(pool, "ring")],
            QUEUE: _queues(QUEUE), SIMPLE: _queues(SIMPLE),
        },
        _casts, lambda processes: 1, _listens,
    ),
    "ring pass": Case(
        {
            LIMPET: _pairs(_ring),
            QUEUE: _pairs(lambda pool, name: multiprocessing.Queue()),
            SIMPLE: _pairs(lambda pool, name: multiprocessing.SimpleQueue()),
        },
        _passes, lambda processes: 2 * (processes // 2), _listens_in_pairs,
    ),
    "number": Case(
        {LIMPET: _accounts, LOCK: _their_accounts}, _adds, lambda processes: processes,
        total=lambda processes, count: processes * count,
    ),
    "transfer": Case(
        {LIMPET: _accounts, LOCK: _their_accounts}, _transfers, lambda processes: processes,
        total=lambda processes, count: 0,
    ),
}  # fmt: skip


# ---- timing -------------------------------------------------------------------------------------


def _work(
    case: Case, made: Made, index: int, processes: int, count: int, pool: Pool, meet: Any,
    pipe: Connection,
) -> None:  # fmt: skip
    die_with_parent()
    assert pool.client_id
    case.ready(made, index, processes)
    meet.wait(ANSWER_WAIT_S)
    begin = time.monotonic_ns()
    case.body(made, index, processes, count)
    pipe.send((begin, time.monotonic_ns()))


def seconds_of(case: Case, contender: str, processes: int, count: int) -> float:
    """How long the loops of so many processes take. LimpetError when one of them fails."""
    context = multiprocessing.get_context("fork")
    url = f"shm://limpet-channels-{os.getpid()}"
    with Pool.create(url, nodes=1, node_size=32 << 20) as pool:
        started = []
        try:
            made = case.makers[contender](pool, processes)
            meet = context.Barrier(processes)
            for index in range(processes):
                ours, theirs = context.Pipe(duplex=False)
                arguments = (case, made, index, processes, count, pool, meet, theirs)
                process = context.Process(target=_work, args=arguments, daemon=True)
                process.start()
                theirs.close()
                started.append((process, ours))
            spans = [_answer(*one) for one in started]
        finally:
            destroy(url)
            for process, ours in started:
                process.kill()
                process.join()
                ours.close()
    return (max(end for _, end in spans) - min(begin for begin, _ in spans)) / 1e9


def _answer(process: Any, pipe: Connection) -> tuple[int, int]:
    try:
        if pipe.poll(ANSWER_WAIT_S):
            begin, end = pipe.recv()
            return begin, end
    except EOFError:
        pass
    raise LimpetError(f"process {process.pid} has ended, or does not answer")


def run(
    names: tuple[str, ...], processes: tuple[int, ...], seconds: float, rounds: int
) -> Iterator[tuple[str, list[Result]]]:
    """Progress, and then the results of each case; see `steps`."""
    for name in names:
        if name not in CASES:
            raise ParameterError(f"there is no case {name!r}; there is {', '.join(CASES)}")
    if min(processes, default=0) < 2 or any(one % 2 for one in processes):
        raise ParameterError("numbers of processes must be even, and at least 2")
    absent = {MPI: reason} if (reason := mpi.missing()) is not None else {}
    for name in names:
        for number in processes:
            there = [one for one in CASES[name].contenders if one not in absent]
            took: dict[str, list[float]] = {one: [] for one in there}
            counts = {one: _count(name, one, number, seconds) for one in there}
            for _ in range(rounds):
                for one, each in took.items():
                    each.append(_seconds(name, one, number, counts[one]) / counts[one])
            yield f"{name}, {number} processes", _results(name, number, took, absent)


def _seconds(name: str, contender: str, processes: int, count: int) -> float:
    if contender == MPI:
        return mpi.seconds_of(name, processes, count, ANSWER_WAIT_S)
    return seconds_of(CASES[name], contender, processes, count)


def _count(name: str, contender: str, processes: int, seconds: float) -> int:
    """How often the loops run so that they take about that long: from one that takes a quarter."""
    count = FIRST
    while True:
        took = max(_seconds(name, contender, processes, count), 1e-6)
        wanted = max(LOW, min(HIGH, int(count * seconds / took)))
        if took > seconds / 4 or wanted <= count or count == HIGH:
            return wanted
        count = min(wanted, GROWTH * count)


def _results(
    name: str, processes: int, took: Mapping[str, list[float]], absent: Mapping[str, str]
) -> list[Result]:
    found = []
    for contender in CASES[name].contenders:
        if contender in absent:
            found.append(Result(name, processes, contender, None, None, None, absent[contender]))
            continue
        each = took[contender]
        per_round = CASES[name].per_round(processes)
        median = statistics.median(each)
        ratio = None
        if contender != LIMPET:
            pairs = zip(each, took[LIMPET], strict=True)
            ratio = statistics.median(theirs / ours for theirs, ours in pairs)
        found.append(
            Result(name, processes, contender, per_round / median, 1e6 * median / per_round, ratio)
        )
    return found


def results_table(found: Sequence[Result]) -> Table:
    """A row for each contender."""
    numbers = ("processes", "operations/s", "each", "limpet is")
    shown = table("channels against their peers", "case", "", *numbers, right=numbers)
    for one in found:
        ours = one.contender in (LIMPET, MPI)
        name = one.contender if ours else f"multiprocessing.{one.contender}"
        if one.per_second is None or one.each_us is None:
            shown.add_row(one.case, name, str(one.processes), "missing", "", "")
            continue
        shown.add_row(
            one.case, name, str(one.processes), f"{one.per_second:,.0f}",
            time_text(1000 * one.each_us), "" if one.ratio is None else f"{one.ratio:.1f}x",
        )  # fmt: skip
    shown.caption = (
        "Operations of all processes: an acquisition, a meeting of all, an item that one has put "
        "and another got, an item that was passed on, an item that was sent to all, an addition, "
        "a transfer. "
        "limpet is: so many times as fast, the median over rounds of one after the other."
    )
    return shown


def missing(found: Sequence[Result]) -> dict[str, str]:
    """Why a contender was not run and how to get it, by its name."""
    return {one.contender: one.missing for one in found if one.missing is not None}


def as_json(found: Sequence[Result]) -> list[dict[str, Any]]:
    """All of it."""
    return [dataclasses.asdict(one) for one in found]
