"""The figures of the RCuckoo paper, counted on `rcuckoo` stores (3.3, 3.4.1, 5.3, 5.5).

Each table is one region of a pool of its own, which has no name. What is counted follows from the
arguments, on any machine; times are what this machine takes.

    distances   figure 4(a): how far apart a key's two rows are
    fills       figure 4(b): how full a table is when the first insert fails
    spans       figure 4(c): how many rows the cuckoo path of an insert lies in
    buckets     figures 7(c) and (d): what inserts cost as the table fills
    contended   figure 5: round trips of an insert, of eight clients, in virtual time
    grains      figure 8(b): round trips of an insert into a table that is nearly full
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import itertools
import os
import random
import time
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

import limpet
from limpet.fault.explore.sim_latency import PRESETS
from limpet.fault.explore.sim_time import KindResult, Workload, run_timed
from limpet.shm.endpoint.fabric import hash64
from limpet.shm.errors import ParameterError, StoreFull
from limpet.stores.rcuckoo.dependent_hash import DependentHash
from limpet.stores.rcuckoo.layout import SLOTS
from limpet.stores.rcuckoo.parameters import RcuckooParameters

LOCALITIES: Final = (1.9, 2.1, 2.3, 2.5, 2.7)
INDEPENDENT: Final = 0.0
WITHIN: Final = (1, 2, 5, 10, 32, 256)
WITHIN_SPANS: Final = (32, 256)
FAR: Final = 2048
FULL: Final = 0.95
PREFILL: Final = 0.85
BUCKET: Final = 0.05
ROWS_PER_LOCK: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
LOCKS_PER_MESSAGE: Final = (1, 2, 4, 8, 16, 32, 64)
CLIENTS: Final = 8
SMALL_ROWS: Final = 512
KEY_SIZE: Final = 7
VALUE: Final = bytes(8)
MIB: Final = 1 << 20
KEYS: Final = 1 << 8 * KEY_SIZE
ZEROS: Final = 32

PAPER_WITHIN: Final = 0.68
"""Of the paper: the share of keys whose rows are within five, at f = 2.3."""
PAPER_FILL: Final = 0.95
"""Of the paper: how full a table is, at least, when the first insert fails, at f = 2.3."""
PAPER_SPANS: Final = (0.5, 0.95, 0.99)
"""Of the paper, at f = 2.3: inserts without a path, within 32 rows, within 256."""
PAPER_ONE_MCAS: Final = 0.99
PAPER_FACTORS: Final = (2.0, 1.5)
"""Of the paper: bytes and messages of an insert into a full table, over an empty one; at most."""

_numbers = itertools.count()


# ---- tables and keys ----------------------------------------------------------------------------


def capacity_for(pool: limpet.Pool, rows: int) -> int:
    """The largest capacity for which a table has so many rows."""

    def rows_of(capacity: int) -> int:
        return RcuckooParameters.for_pool(pool.parameters, pool.layout, capacity=capacity).rows

    capacity = bisect.bisect_right(range(1, SLOTS * rows), rows, key=rows_of)
    if capacity == 0 or rows_of(capacity) != rows:
        raise ParameterError(f"no table has {rows} rows: they are an even number, from 4 on")
    return capacity


@contextlib.contextmanager
def table_of(rows: int, **parameters: Any) -> Iterator[Any]:
    """An empty store with one table of so many rows, in a pool that ends with it."""
    url = f"shm://limpet-cuckoo-{os.getpid()}-{next(_numbers)}"
    entry = 8 + 8 * (KEY_SIZE // 8 + 1) + len(VALUE)
    size = rows * (SLOTS * entry + 24) + 8 * MIB
    with limpet.create(url, nodes=1, node_size=-(-size // MIB) * MIB) as pool:
        limpet.destroy(url)
        yield pool.store(
            "rcuckoo", name="table", capacity=capacity_for(pool, rows), key_size=KEY_SIZE,
            value_size=len(VALUE), **parameters,
        )  # fmt: skip


def keys_of(seed: int, table: int) -> Iterator[bytes]:
    """Keys without end, none twice; others for each seed and table."""
    start = random.Random(f"{seed} {table}").randrange(KEYS)
    return (((start + number) % KEYS).to_bytes(KEY_SIZE, "little") for number in itertools.count())


# ---- figure 4(a) --------------------------------------------------------------------------------


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


# ---- figure 4(b) --------------------------------------------------------------------------------


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


# ---- inserts, one by one ------------------------------------------------------------------------

COLUMNS: Final = (
    "full", "round_trips", "messages", "bytes_read", "bytes_written", "groups", "window", "locked",
    "path", "span", "ns",
)  # fmt: skip
"""Of an insert: whether there was no room; its cost; groups of locks; whether they would be one if
a masked CAS could be at any byte; bytes of the rows under the locks of the key's two rows; rows of
its path, 0: none; how far the outermost of them are apart; its time."""
MESSAGES: Final = ("reads", "writes", "cas", "atomics")


class Filling:
    """A table of one client that is being filled, and what each insert has cost."""

    def __init__(self, store: Any, seed: int) -> None:
        self.store = store
        self.entries = SLOTS * store.parameters.rows
        self.done = 0
        self._keys = keys_of(seed, 0)

    def prefill(self, share: float) -> None:
        """Insert until the table is so full, and count nothing."""
        insert = self.store.insert
        for key in itertools.islice(self._keys, self._upto(share)):
            with contextlib.suppress(StoreFull):
                insert(key, VALUE)

    def fill(self, share: float) -> npt.NDArray[np.int64]:
        """Insert until the table is so full; a row of COLUMNS for each insert."""
        found = array("q")
        before = self._counts()
        for key in itertools.islice(self._keys, self._upto(share)):
            searches = self._search().searches
            full, ns = self._insert(key)
            after = self._counts()
            found.append(full)
            found.extend(now - then for now, then in zip(after, before, strict=True))
            path = self._path() if not full and self._search().searches != searches else []
            found.extend((self.store.locks.count, self._in_a_window(), self._locked_bytes()))
            found.extend((len(path), self._span(path), ns))
            before = after
        return np.frombuffer(found, np.int64).reshape(-1, len(COLUMNS))

    def _upto(self, share: float) -> int:
        count = int(share * self.entries) - self.done
        self.done += count
        return count

    def _insert(self, key: bytes) -> tuple[bool, int]:
        begin = time.perf_counter_ns()
        try:
            self.store.insert(key, VALUE)
        except StoreFull:
            return True, time.perf_counter_ns() - begin
        return False, time.perf_counter_ns() - begin

    def _counts(self) -> tuple[int, int, int, int]:
        counts = self.store.endpoint.counters()
        messages = sum(counts[name] for name in MESSAGES)
        return counts["round_trips"], messages, counts["bytes_read"], counts["bytes_written"]

    def _in_a_window(self) -> bool:
        """Whether 64 bits from some byte on have all the locks that were taken last."""
        locks = self.store.locks
        last = locks.count - 1
        low, high = int(locks.bits[0]), int(locks.bits[last])
        first = 8 * (locks.words[0] - locks.base) + (low & -low).bit_length() - 1
        end = 8 * (locks.words[last] - locks.base) + high.bit_length()
        return bool(end - (first & ~7) <= 64)

    def _locked_bytes(self) -> int:
        """Bytes of the rows under the locks of the key's two rows: what the paper reads at once."""
        store = self.store
        each = store.parameters.rows_per_lock
        runs = 1 + (store.first // each != store.second // each)
        return int(8 * store.rows.row_words * each * runs)

    def _search(self) -> Any:
        return self.store.search()

    def _path(self) -> Sequence[int]:
        """The rows of the path that was found last."""
        search = self._search()
        return sorted(search.path_rows[: search.length])

    def _span(self, path: Sequence[int]) -> int:
        """How far the outermost rows of a path are from each other; tables are circles."""
        rows = self.store.parameters.rows
        if not path:
            return 0
        gaps = [after - before for before, after in itertools.pairwise(path)]
        return int(rows - max(*gaps, rows - path[-1] + path[0]))


def _column(found: npt.NDArray[np.int64], name: str) -> npt.NDArray[np.int64]:
    return found[:, COLUMNS.index(name)]


def _means(found: npt.NDArray[np.int64]) -> dict[str, float]:
    return dict(zip(COLUMNS, found.mean(axis=0).tolist(), strict=True))


def _percentiles(values: npt.NDArray[np.int64]) -> tuple[float, float]:
    """Median and 99th percentile."""
    usual, late = (float(p) for p in np.percentile(values, (50, 99)))
    return usual, late


# ---- figures 4(c) and 7 -------------------------------------------------------------------------


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
    """Fill a table to 95 %; what each insert has cost, by shares of 5 % of its entries."""
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
    done = every[_column(every, "full") == 0]
    span = _column(done, "span")
    moved = span[_column(done, "path") > 0]
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
        one_mcas=float((_column(done, "groups") == 1).mean()),
        one_window=float(_column(done, "window").mean()),
    )


def buckets(found: Sequence[npt.NDArray[np.int64]]) -> Iterator[Bucket]:
    """The cost of inserts as the table fills."""
    first = _means(found[0])
    least = first["bytes_read"] + first["bytes_written"]
    locked = first["locked"] + first["bytes_written"]
    for number, some in enumerate(found):
        mean = _means(some)
        usual, late = _percentiles(_column(some, "round_trips"))
        moved = mean["bytes_read"] + mean["bytes_written"]
        yield Bucket(
            low=round(BUCKET * number, 2),
            high=round(BUCKET * (number + 1), 2),
            inserts=len(some),
            full=int(_column(some, "full").sum()),
            round_trips=mean["round_trips"],
            round_trips_p50=usual,
            round_trips_p99=late,
            no_path=float((_column(some, "path") == 0).mean()),
            one_mcas=float((_column(some, "groups") == 1).mean()),
            bytes_read=mean["bytes_read"],
            bytes_written=mean["bytes_written"],
            messages=mean["messages"],
            bytes_factor=moved / least,
            locked_factor=moved / locked,
            messages_factor=mean["messages"] / first["messages"],
            per_second=1e9 / mean["ns"],
        )


# ---- figure 5 -----------------------------------------------------------------------------------


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
        value_size=len(VALUE), write_share=1.0, seed=seed, fresh=True,
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


# ---- figure 8(b) --------------------------------------------------------------------------------


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
    """Round trips of the inserts into a table that is nearly full."""
    with table_of(rows, locality=locality, rows_per_lock=rows_per_lock) as store:
        filling = Filling(store, seed)
        filling.prefill(PREFILL)
        found = filling.fill(FULL)
        store.check()
    trips = _column(found, "round_trips")
    usual, late = _percentiles(trips)
    full = int(_column(found, "full").sum())
    alone = float((_column(found, "groups") == 1).mean())
    mean = float(trips.mean())
    return Grain(rows_per_lock, locality, len(found), full, mean, usual, late, alone)
