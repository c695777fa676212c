"""Transactions of limpet beside those of LMDB, SQLite and Redis, driven by the same loop.

A *transfer* of n keys reads n keys and writes to each the value that another one had; a *read* of n
keys reads them at one moment. Keys are drawn uniformly from all records, or from few that are hot
(`HOT_KEYS`). Each peer does it in the way in which a program would:

    rtx-race, rtx-sherman   `pool.transaction`, with a get and a put for each key
    lmdb                    one transaction of LMDB, which has one writer at a time
    sqlite                  BEGIN IMMEDIATE or BEGIN, a SELECT and an UPDATE for each key, COMMIT
    redis-multi             WATCH, MGET, MULTI, MSET, EXEC; again if another client was faster
    redis-lua               a script, which the server runs alone

Rounds are interleaved: in each, every peer runs each case once, so that a slow moment of the
machine meets all of them. The rate of several processes is all their transactions by the time from
the first start to the last end. Medians are of the rounds; ratios are taken in each round, and then
their median.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection as Pipe
from typing import Any, Final

import numpy as np

from limpet.bench.peers.drivers import Driver, DriverError, LimpetDriver
from limpet.bench.peers.embedded import LmdbDriver, SqliteDriver
from limpet.bench.peers.servers import RedisDriver
from limpet.bench.peers.workers import ANSWER_WAIT_S, Start
from limpet.bench.peers.ycsb import Workload
from limpet.fault.inject.children import die_with_parent
from limpet.shm.errors import ParameterError

Transact = Callable[[list[bytes]], object]
PEERS: Final = ("rtx-race", "rtx-sherman", "lmdb", "sqlite", "redis-multi", "redis-lua")
READS: Final = (10, 1000)
HOT_KEYS: Final = 128
"""Keys that are drawn from when they are hot, or as many as a transaction takes, if more."""
DRAWN: Final = 256
"""Transactions whose keys are drawn before the clock is read, and which are repeated."""
CHUNK_S: Final = 0.002
"""About so long a process works between two looks at the clock."""


@dataclasses.dataclass(frozen=True)
class Case:
    """`writes`: a transfer, else a read; of so many keys; of hot ones, or of any."""

    writes: bool
    keys: int
    hot: bool

    def name(self) -> str:
        """As it is printed."""
        what = "transfer" if self.writes else "read"
        return f"{what} of {self.keys:,}, {'hot' if self.hot else 'uniform'}"


@dataclasses.dataclass(frozen=True)
class Found:
    """Transactions a second of each round; none if the peer is `missing`."""

    peer: str
    case: Case
    processes: int
    rates: tuple[float, ...]
    missing: str = ""


def cases(transfers: Sequence[int], reads: Sequence[int]) -> list[Case]:
    """Those numbers of keys, uniform and hot."""
    return [
        Case(writes, count, hot)
        for writes, counts in ((True, transfers), (False, reads))
        for count in counts
        for hot in (False, True)
    ]


# ---- the peers -----------------------------------------------------------------------------------


def _rotated(values: list[Any]) -> list[Any]:
    return [*values[1:], values[0]]


@dataclasses.dataclass(frozen=True)
class Transactions:
    """One process's way to do transactions."""

    transfer: Transact
    read: Transact


def _of_limpet(driver: Any) -> Transactions:
    import limpet

    pool = limpet.open(driver.url)
    store = driver._store(pool)

    def transfer(keys: list[bytes]) -> None:
        def work(tx: Any) -> None:
            values = [tx.get(store, key) for key in keys]
            for key, value in zip(keys, _rotated(values), strict=True):
                tx.put(store, key, value)

        pool.transaction(work)

    def read(keys: list[bytes]) -> Any:
        return pool.transaction(lambda tx: [tx.get(store, key) for key in keys])

    return Transactions(transfer, read)


def _of_lmdb(driver: Any) -> Transactions:
    environment = driver._open()
    begin = environment.begin

    def transfer(keys: list[bytes]) -> None:
        transaction = begin(None, None, True)
        values = [transaction.get(key) for key in keys]
        for key, value in zip(keys, _rotated(values), strict=True):
            transaction.put(key, value)
        transaction.commit()

    def read(keys: list[bytes]) -> Any:
        transaction = begin()
        found = [transaction.get(key) for key in keys]
        transaction.abort()
        return found

    return Transactions(transfer, read)


def _of_sqlite(driver: Any) -> Transactions:
    database = driver._open()
    execute = database.execute
    select = "SELECT value FROM kv WHERE key = ?"
    update = "UPDATE kv SET value = ? WHERE key = ?"

    def transfer(keys: list[bytes]) -> None:
        execute("BEGIN IMMEDIATE")
        values = [execute(select, (key,)).fetchone()[0] for key in keys]
        for key, value in zip(keys, _rotated(values), strict=True):
            execute(update, (value, key))
        execute("COMMIT")

    def read(keys: list[bytes]) -> Any:
        execute("BEGIN")
        found = [execute(select, (key,)).fetchone()[0] for key in keys]
        execute("COMMIT")
        return found

    return Transactions(transfer, read)


def _of_redis_multi(driver: Any) -> Transactions:
    import redis

    client = driver.connect()

    def transfer(keys: list[bytes]) -> None:
        with client.pipeline() as pipe:
            while True:
                try:
                    pipe.watch(*keys)
                    values = pipe.mget(keys)
                    pipe.multi()
                    pipe.mset(dict(zip(keys, _rotated(values), strict=True)))
                    pipe.execute()
                    return
                except redis.WatchError:
                    continue

    return Transactions(transfer, client.mget)


ROTATE: Final = """
local values = redis.call('MGET', unpack(KEYS))
local pairs = {}
for at = 1, #KEYS do
    pairs[2 * at - 1] = KEYS[at]
    pairs[2 * at] = values[at % #KEYS + 1]
end
redis.call('MSET', unpack(pairs))
"""


def _of_redis_lua(driver: Any) -> Transactions:
    client = driver.connect()
    rotate = client.register_script(ROTATE)
    return Transactions(lambda keys: rotate(keys=keys), client.mget)


_WAYS: Final[dict[str, tuple[Callable[[], Driver], Callable[[Any], Transactions]]]] = {
    "rtx-race": (lambda: LimpetDriver("rtx-race"), _of_limpet),
    "rtx-sherman": (lambda: LimpetDriver("rtx-sherman"), _of_limpet),
    "lmdb": (LmdbDriver, _of_lmdb),
    "sqlite": (SqliteDriver, _of_sqlite),
    "redis-multi": (RedisDriver, _of_redis_multi),
    "redis-lua": (RedisDriver, _of_redis_lua),
}


# ---- measuring -----------------------------------------------------------------------------------


def run(
    peers: Sequence[str],
    wanted: Sequence[Case],
    processes: Sequence[int],
    rounds: int,
    seconds: float,
    workload: Workload,
    advance: Callable[[str], object] = lambda text: None,
) -> list[Found]:
    """Run every case on every peer, with each number of processes; `seconds` for each.

    A peer that is not installed has no rates. Raises ParameterError, DriverError.
    """
    for peer in peers:
        if peer not in _WAYS:
            raise ParameterError(f"{peer!r} is no peer; {', '.join(_WAYS)} are")
    largest = max(case.keys for case in wanted)
    if largest > workload.records:
        raise ParameterError(f"a transaction of {largest} keys needs as many records")
    rates: dict[tuple[str, Case, int], list[float]] = {}
    absent: dict[str, str] = {}
    for turn in range(rounds):
        for peer in [*peers[turn % len(peers) :], *peers[: turn % len(peers)]]:
            made, way = _WAYS[peer]
            driver = made()
            if reason := driver.missing():
                absent[peer] = reason
                continue
            try:
                driver.start(workload)
                driver.load(workload.pairs())
                for count in processes:
                    for case, rate in _measured(driver, way, wanted, count, seconds, workload):
                        rates.setdefault((peer, case, count), []).append(rate)
            finally:
                driver.stop()
            advance(f"round {turn + 1}: {peer}")
    return [
        Found(peer, case, count, tuple(rates.get((peer, case, count), ())), absent.get(peer, ""))
        for case in wanted
        for count in processes
        for peer in peers
    ]


def ratio(found: Found, other: Found) -> float | None:
    """How many times as fast as another one: the median of the rounds."""
    pairs = list(zip(found.rates, other.rates, strict=False))
    return statistics.median(mine / theirs for mine, theirs in pairs) if pairs else None


def _measured(
    driver: Driver,
    way: Callable[[Any], Transactions],
    wanted: Sequence[Case],
    processes: int,
    seconds: float,
    workload: Workload,
) -> Iterator[tuple[Case, float]]:
    """The rate of each case, with so many processes."""
    context = multiprocessing.get_context("fork")
    start = Start(processes)
    pipes, theirs, workers = [], [], []
    for number in range(processes):
        ours, end = context.Pipe(duplex=False)
        arguments = (driver, way, wanted, seconds, workload, number, start, end)
        workers.append(context.Process(target=_work, args=arguments, daemon=True))
        pipes.append(ours)
        theirs.append(end)
    try:
        for worker in workers:
            worker.start()
        for end in theirs:
            end.close()
        for case in wanted:
            answers = [_answer(driver, pipe) for pipe in pipes]
            begun = min(begin for begin, _, _ in answers)
            ended = max(end for _, end, _ in answers)
            yield case, sum(done for _, _, done in answers) / (ended - begun) * 1e9
    finally:
        for worker in workers:
            worker.kill()
            worker.join()


def _answer(driver: Driver, pipe: Pipe) -> tuple[int, int, int]:
    if not pipe.poll(ANSWER_WAIT_S):
        raise DriverError(f"{driver.name}: a worker gave no answer for {ANSWER_WAIT_S} s")
    try:
        answer: tuple[int, int, int] = pipe.recv()
    except EOFError:
        raise DriverError(f"{driver.name}: a worker died; its error is above") from None
    return answer


def _work(
    driver: Driver,
    way: Callable[[Any], Transactions],
    wanted: Sequence[Case],
    seconds: float,
    workload: Workload,
    number: int,
    start: Start,
    pipe: Pipe,
) -> None:
    """Life of a worker process: begin, end and number of transactions of each case."""
    die_with_parent()
    ways = way(driver)
    keys = workload.keys()
    for index, case in enumerate(wanted):
        rng = np.random.default_rng([workload.seed, number, index])
        among = max(HOT_KEYS, case.keys) if case.hot else workload.records
        among = min(among, workload.records)
        drawn = [
            [keys[at] for at in rng.permutation(among)[: case.keys].tolist()]
            if case.keys > among // 4
            else [keys[at] for at in rng.choice(among, case.keys, replace=False).tolist()]
            for _ in range(DRAWN if case.keys < READS[-1] else DRAWN // 16)
        ]
        call = ways.transfer if case.writes else ways.read
        call(drawn[0])
        start.meet()
        pipe.send(_timed(call, drawn, seconds))


def _timed(call: Transact, drawn: list[list[bytes]], seconds: float) -> tuple[int, int, int]:
    """Transactions for so long: begin, end, and their number."""
    clock = time.perf_counter_ns
    begin = now = clock()
    last = begin + int(seconds * 1e9)
    done, few = 0, 1
    while now < last:
        for each in range(done, done + few):
            call(drawn[each % len(drawn)])
        done += few
        before, now = now, clock()
        if now - before < CHUNK_S * 1e9 / 2:
            few *= 2
    return begin, now, done
