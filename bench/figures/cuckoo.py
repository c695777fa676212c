"""The cost of inserts into `rcuckoo` tables, for figures 4, 5, 7 and 8 of the RCuckoo paper.

Each table is one region of a pool of its own, which has no name (cuckoo_tables.py). Counts follow
from the arguments, on any machine; times are those of this machine, but for `contended`, which is
in virtual time.

    distances   figure 4(a): how far apart a key's two rows are
    fills       figure 4(b): how full a table is when the first insert fails
    spans       figure 4(c): how many rows the cuckoo path of an insert lies in
    contended   figure 5: round trips of an insert, of eight clients
    buckets     figures 7(c) and (d): the cost of inserts as the table fills
    grain       figure 8(b): round trips of an insert into a table that is nearly full
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from limpet.bench.figures.cuckoo_tables import (
    FULL,
    INDEPENDENT,
    LOCALITIES,
    PREFILL,
    VALUE,
    ZEROS,
    Filling,
    column,
    keys_of,
    means,
    percentiles,
    table_of,
)
from limpet.fault.explore.sim_latency import PRESETS
from limpet.fault.explore.sim_time import KindResult, Workload, run_timed
from limpet.shm.endpoint.fabric import hash64
from limpet.shm.errors import StoreFull
from limpet.stores.rcuckoo.layout import SLOTS
from limpet.stores.rcuckoo.rows import DependentHash

WITHIN: Final = (1, 2, 5, 10, 32, 256)
WITHIN_SPANS: Final = (32, 256)
FAR: Final = 2048
BUCKET: Final = 0.05
CLIENTS: Final = 8
MASKED: Final = 64
"""Locks that one masked CAS takes in the paper."""
SMALL_ROWS: Final = 512
CACHED: Final = 4
"""`grain` caches one row of so many. (In the paper it is one of 14,000. With all of them, a client
that is alone knows each path before its first attempt, however its keys are hashed.)"""


@dataclasses.dataclass(frozen=True)
class Distances:
    """The share of keys whose rows are at most so far apart: counted, and by the paper's formula.

    `same`: by the formula, the share of keys both of whose rows are the same.
    """

    locality: float
    keys: int
    counted: dict[int, float]
    printed: dict[int, float]
    same: float


def distances(rows: int, keys: int, seed: int) -> Iterator[Distances]:
    """How far apart a key's rows are, for each locality."""
    hashes = [hash64(key) for key in itertools.islice(keys_of(seed, 0), keys)]
    for locality in LOCALITIES:
        places = DependentHash(rows, locality)
        found = array("q")
        for hashed in hashes:
            places.place(hashed)
            found.append(abs(places.first - places.second))
        apart = np.frombuffer(found, np.int64)
        apart = np.minimum(apart, rows - apart)
        counted = {within: float((apart <= within).mean()) for within in WITHIN}
        printed = {within: _printed(locality, within) for within in WITHIN}
        yield Distances(locality, keys, counted, printed, _printed(locality, 0))


def _printed(locality: float, within: int) -> float:
    """The share of keys with d <= `within`, where d = h2 mod floor(f^(f + Z))."""
    return sum(
        0.5 ** (zeros + 1) * min(1, (within + 1) / int(locality ** (locality + zeros)))
        for zeros in range(ZEROS)
    )


@dataclasses.dataclass(frozen=True)
class Fill:
    """How full tables are when the first insert fails, as a share of their entries."""

    locality: float
    rows: int
    tables: int
    mean: float
    least: float
    most: float


def fills(rows: int, tables: int, seed: int) -> Iterator[Fill]:
    """How full tables are when the first insert fails, for each locality."""
    for locality in (*LOCALITIES, INDEPENDENT):
        found = [_first_failure(rows, locality, seed, table) for table in range(tables)]
        mean = float(np.mean(found))
        yield Fill(locality, rows, tables, mean, min(found), max(found))


def _first_failure(rows: int, locality: float, seed: int, table: int) -> float:
    with table_of(rows, locality=locality) as store:
        count = 0
        with contextlib.suppress(StoreFull):
            for key in keys_of(seed, table):
                store.insert(key, VALUE)
                count += 1
        return count / (SLOTS * rows)


@dataclasses.dataclass(frozen=True)
class Spans:
    """Paths of the inserts that fill a table from `low` to 95 %; `within`: shares of all inserts.

    Of those that need a path, `path_median` is the median of the rows that it spans, `beyond` the
    share that spans more than 2048. `one_mcas`: the share whose locks were one group;
    `one_window`: would be, if a masked CAS could be at any byte, as in the paper.
    """

    locality: float
    low: float
    rows: int
    inserts: int
    full: int
    no_path: float
    within: dict[int, float]
    path_median: float
    beyond: float
    one_mcas: float
    one_window: float


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Inserts while the table was from `low` to `high` full; means, but for the percentiles.

    `bytes_factor`, `messages_factor`: how many times those of the first bucket. `locked_factor`:
    how many times the bytes of an insert without a path that, as in the paper, reads all rows under
    its locks. `per_second` is measured; all else is counted.
    """

    low: float
    high: float
    inserts: int
    full: int
    round_trips: float
    round_trips_p50: float
    round_trips_p99: float
    no_path: float
    one_mcas: float
    bytes_read: float
    bytes_written: float
    messages: float
    bytes_factor: float
    locked_factor: float
    messages_factor: float
    per_second: float


def fill_up(
    rows: int, locality: float, seed: int, **parameters: Any
) -> list[npt.NDArray[np.int64]]:
    """Fill a table to 95 %; the cost of each insert, by shares of 5 % of its entries."""
    with table_of(rows, locality=locality, **parameters) as store:
        filling = Filling(store, seed)
        found = [filling.fill(BUCKET * number) for number in range(1, round(FULL / BUCKET) + 1)]
        store.check()
        return found


def spans(
    rows: int, locality: float, found: Sequence[npt.NDArray[np.int64]], low: float = 0.0
) -> Spans:
    """The paths of those inserts of `fill_up` that were made when the table was so full."""
    every = np.concatenate(found[round(low / BUCKET) :])
    done = every[column(every, "full") == 0]
    span = column(done, "span")
    moved = span[column(done, "path") > 0]
    return Spans(
        locality=locality,
        low=low,
        rows=rows,
        inserts=len(every),
        full=len(every) - len(done),
        no_path=float(1 - len(moved) / len(done)),
        within={limit: float((span <= limit).mean()) for limit in WITHIN_SPANS},
        path_median=float(np.median(moved)) if len(moved) else 0.0,
        beyond=float((moved > FAR).mean()) if len(moved) else 0.0,
        one_mcas=float((column(done, "groups") == 1).mean()),
        one_window=float(column(done, "window").mean()),
    )


def buckets(found: Sequence[npt.NDArray[np.int64]]) -> Iterator[Bucket]:
    """The cost of inserts as the table fills."""
    first = means(found[0])
    least = first["bytes_read"] + first["bytes_written"]
    locked = first["locked"] + first["bytes_written"]
    for number, some in enumerate(found):
        mean = means(some)
        usual, late = percentiles(column(some, "round_trips"))
        moved = mean["bytes_read"] + mean["bytes_written"]
        yield Bucket(
            low=round(BUCKET * number, 2),
            high=round(BUCKET * (number + 1), 2),
            inserts=len(some),
            full=int(column(some, "full").sum()),
            round_trips=mean["round_trips"],
            round_trips_p50=usual,
            round_trips_p99=late,
            no_path=float((column(some, "path") == 0).mean()),
            one_mcas=float((column(some, "groups") == 1).mean()),
            bytes_read=mean["bytes_read"],
            bytes_written=mean["bytes_written"],
            messages=mean["messages"],
            bytes_factor=moved / least,
            locked_factor=moved / locked,
            messages_factor=mean["messages"] / first["messages"],
            per_second=1e9 / mean["ns"],
        )


@dataclasses.dataclass(frozen=True)
class Contended:
    """Inserts of eight clients that fill a table of 512 rows to 95 % together, in round trips."""

    rows_per_lock: int
    locks_per_message: int
    inserts: int
    full: int
    round_trips: float
    round_trips_p50: float
    round_trips_p99: float
    p99_ns: float


def contended(rows_per_lock: int, locks_per_message: int, seed: int) -> Contended:
    """Fill the small table with eight clients, in virtual time."""
    inserts = int(FULL * SLOTS * SMALL_ROWS)
    ops = inserts // CLIENTS
    workload = Workload(
        "rcuckoo", CLIENTS, ops=ops, keys=inserts - CLIENTS * ops or 1, key_size=12,
        value_size=len(VALUE), warm_up=0, write_share=1.0, seed=seed, fresh=True,
        parameters={
            "capacity": _small_capacity(), "key_size": 15, "value_size": len(VALUE),
            "rows_per_lock": rows_per_lock, "locks_per_message": locks_per_message,
        },
    )  # fmt: skip
    kinds = {kind.kind: kind for kind in run_timed(workload, PRESETS["rdma"]).kinds}
    done: KindResult = kinds["insert"]
    return Contended(
        rows_per_lock, locks_per_message, done.count,
        kinds["full"].count if "full" in kinds else 0,
        done.round_trips, done.round_trips_p50, done.round_trips_p99, done.p99_ns,
    )  # fmt: skip


def _small_capacity() -> int:
    with table_of(SMALL_ROWS) as store:
        return int(store.parameters.capacity)


@dataclasses.dataclass(frozen=True)
class Grain:
    """Inserts that fill a table from 85 % to 95 %, by how many rows a lock has."""

    rows_per_lock: int
    locality: float
    inserts: int
    full: int
    round_trips: float
    round_trips_p50: float
    round_trips_p99: float
    one_mcas: float


def grain(rows: int, rows_per_lock: int, locality: float, seed: int) -> Grain:
    """Round trips of the inserts into a table that is nearly full, with a round trip for each
    masked CAS of the paper, and a cache of some of its rows."""
    more = {
        "rows_per_lock": rows_per_lock, "locks_per_message": MASKED,
        "cache_rows": max(1, rows // CACHED),
    }  # fmt: skip
    with table_of(rows, locality=locality, **more) as store:
        filling = Filling(store, seed)
        filling.prefill(PREFILL)
        found = filling.fill(FULL)
        store.check()
    trips = column(found, "round_trips")
    usual, late = percentiles(trips)
    full = int(column(found, "full").sum())
    alone = float((column(found, "groups") == 1).mean())
    mean = float(trips.mean())
    return Grain(rows_per_lock, locality, len(found), full, mean, usual, late, alone)
