"""Gets, views and puts of values of several sizes, beside other stores: one table of one run.

One process, and for each size all stores at once. In each round every store is driven in turn, and
the order moves on by one from round to round; a loop runs as often as takes about `seconds`. The
median of the rounds is reported, and the ratio to LMDB is taken within a round.

    get    the value as bytes
    view   the value in place, of which the last byte is read: `store.view`, and LMDB with buffers
    put    a new value for a key that is there
"""

from __future__ import annotations

import dataclasses
import statistics
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from rich.table import Table

from limpet.bench.peers.drivers import Connection, Driver
from limpet.bench.peers.ycsb import Workload
from limpet.cli.common import size_text, table, time_text

BYTES: Final = 32 << 20
"""About so many bytes of values are stored."""
RECORDS: Final = (16, 2000)
"""At least, and at most, so many records."""
LOOPS: Final = ("get", "view", "put")
PEER: Final = "lmdb"
"""The store to which ratios are given."""
FIRST: Final = 8
"""Operations of the loop that finds out how long one takes."""


@dataclasses.dataclass(frozen=True)
class Result:
    """One loop of one store: the median of the rounds. `ratio`: how many times LMDB's rate it is;
    None without LMDB."""

    store: str
    size: int
    loop: str
    us: float
    ratio: float | None


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The results of a run; why a store was not run, or failed, by its name."""

    results: tuple[Result, ...]
    versions: dict[str, str]
    missing: dict[str, str]
    failed: dict[str, str]


def run(
    make: Callable[[], Iterable[Driver]],
    sizes: Sequence[int],
    rounds: int,
    seconds: float,
    advance: Callable[[str], None] = lambda text: None,
) -> Sizes:
    """Measure the stores that `make` gives, anew for each size. `advance` is called with a line of
    text before each round."""
    results: list[Result] = []
    versions: dict[str, str] = {}
    missing: dict[str, str] = {}
    failed: dict[str, str] = {}
    for size in sizes:
        drivers = [driver for driver in make() if driver.name not in failed]
        missing.update(
            (driver.name, reason) for driver in drivers if (reason := driver.missing()) is not None
        )
        there = [driver for driver in drivers if driver.name not in missing]
        times = _times(there, size, rounds, seconds, versions, failed, advance)
        results += _results(times, size)
    return Sizes(tuple(results), versions, missing, failed)


def _times(
    drivers: Sequence[Driver],
    size: int,
    rounds: int,
    seconds: float,
    versions: dict[str, str],
    failed: dict[str, str],
    advance: Callable[[str], None],
) -> dict[tuple[str, str], list[float]]:
    """Microseconds of each store and loop, of each round."""
    records = max(RECORDS[0], min(RECORDS[1], BYTES // size))
    workload = Workload(records, 24, size)
    pairs = workload.pairs()
    times: dict[tuple[str, str], list[float]] = {}
    connections: dict[str, Connection] = {}
    try:
        for driver in drivers:
            try:
                versions[driver.name] = driver.version()
                driver.start(workload)
                driver.load(pairs)
                connections[driver.name] = driver.attach()
            except Exception:
                failed[driver.name] = traceback.format_exc()
        names = list(connections)
        for round_ in range(rounds):
            advance(f"{size_text(size)}: round {round_ + 1} of {rounds}")
            shift = round_ % max(len(names), 1)
            for name in names[shift:] + names[:shift]:
                for loop, body in bodies(connections[name], pairs).items():
                    times.setdefault((name, loop), []).append(timed(body, seconds))
    finally:
        for connection in connections.values():
            connection.close()
        for driver in drivers:
            driver.stop()
    return times


def bodies(
    connection: Connection, pairs: Sequence[tuple[bytes, bytes]]
) -> dict[str, Callable[[int], None]]:
    """The loops of a store: each is called with the number of its operations."""
    keys = [key for key, _ in pairs]
    values = [pairs[0][1], pairs[-1][1]]
    # every store meets the keys in an order that is not that of its memory
    order = [keys[index * 7919 % len(keys)] for index in range(len(keys))]

    def loop_of(operation: Callable[[bytes], object]) -> Callable[[int], None]:
        def loop(count: int) -> None:
            for _ in range(count // len(order)):
                for key in order:
                    operation(key)
            for key in order[: count % len(order)]:
                operation(key)

        return loop

    put = connection.put

    def puts(count: int) -> None:
        for index in range(count):
            put(order[index % len(order)], values[index & 1])

    found = {"get": loop_of(connection.get)}
    if connection.view is not None:
        found["view"] = loop_of(connection.view)
    found["put"] = puts
    return found


def timed(body: Callable[[int], None], seconds: float) -> float:
    """Microseconds of one operation, of as many as take about so long."""
    clock = time.perf_counter_ns
    begin = clock()
    body(FIRST)
    each = max((clock() - begin) / FIRST, 1.0)
    count = max(FIRST, int(seconds * 1e9 / each))
    begin = clock()
    body(count)
    return (clock() - begin) / count / 1000


def _results(times: dict[tuple[str, str], list[float]], size: int) -> list[Result]:
    found = []
    for (name, loop), each in times.items():
        ratio = None
        if (PEER, loop) in times:
            theirs = times[PEER, loop]
            ratio = statistics.median(peer / mine for peer, mine in zip(theirs, each, strict=True))
        found.append(Result(name, size, loop, statistics.median(each), ratio))
    return found


def results_table(found: Sizes) -> Table:
    """A row for each size and store."""
    by = {(one.size, one.store, one.loop): one for one in found.results}
    columns = [title for loop in LOOPS for title in (loop, f"of {PEER}'s rate")]
    shown = table("values of several sizes")
    for column in ("value", "store"):
        shown.add_column(column, no_wrap=True)
    for column in columns:
        shown.add_column(column, justify="right")
    for size, store in dict.fromkeys((one.size, one.store) for one in found.results):
        cells = []
        for loop in LOOPS:
            one = by.get((size, store, loop))
            cells.append("" if one is None else time_text(one.us * 1000))
            cells.append("" if one is None or one.ratio is None else f"{one.ratio:.2f}")
        shown.add_row(size_text(size), store, *cells)
    return shown
