"""Tables of `rcuckoo`, keys and single inserts, for the figures of the RCuckoo paper (cuckoo.py).

Each table is one region of a pool of its own, which has no name.
"""

from __future__ import annotations

import bisect
import contextlib
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
from limpet.shm.errors import ParameterError, StoreFull
from limpet.stores.rcuckoo.layout import SLOTS
from limpet.stores.rcuckoo.parameters import LOCALITY, RcuckooParameters

LOCALITIES: Final = (1.9, 2.1, 2.3, 2.5, 2.7)
INDEPENDENT: Final = 0.0
BOTH: Final = (LOCALITY, INDEPENDENT)
FULL: Final = 0.95
PREFILL: Final = 0.85
KEY_SIZE: Final = 7
VALUE: Final = bytes(8)
MIB: Final = 1 << 20
KEYS: Final = 1 << 8 * KEY_SIZE
ZEROS: Final = 32
COLUMNS: Final = (
    "full", "round_trips", "messages", "bytes_read", "bytes_written", "groups", "window", "locked",
    "path", "span", "ns",
)  # fmt: skip
"""Columns for an insert: whether there was no room; its cost; how many masked CAS would take its
locks, if each were a bit; whether one would if it could be at any byte; bytes of the rows under the
locks of the key's two rows; rows of its path, 0: none; how far the outermost of them are apart; its
time."""
MESSAGES: Final = ("reads", "writes", "cas", "atomics")

_numbers = itertools.count()


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
    """An empty store with one table of so many rows, which have sums, as on a fabric; in a pool
    that ends with it."""
    url = f"shm://limpet-cuckoo-{os.getpid()}-{next(_numbers)}"
    entry = 8 + 8 * (KEY_SIZE // 8 + 1) + len(VALUE)
    size = rows * (SLOTS * entry + 24) + 8 * MIB
    with limpet.create(url, nodes=1, node_size=-(-size // MIB) * MIB) as pool:
        limpet.destroy(url)
        yield pool.store(
            "rcuckoo", name="table", capacity=capacity_for(pool, rows), key_size=KEY_SIZE,
            value_size=len(VALUE), sums=True, **parameters,
        )  # fmt: skip


def keys_of(seed: int, table: int) -> Iterator[bytes]:
    """Keys without end, none twice; others for each seed and table."""
    start = random.Random(f"{seed} {table}").randrange(KEYS)
    return (((start + number) % KEYS).to_bytes(KEY_SIZE, "little") for number in itertools.count())


class Filling:
    """A table that one client fills, and the cost of each insert."""

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
            full, ns = self._insert(key)
            after = self._counts()
            found.append(full)
            found.extend(now - then for now, then in zip(after, before, strict=True))
            path = self._path() if not full and self.store.writer.journal.steps > 1 else []
            found.extend((self._groups(), self._in_a_window(), self._locked_bytes()))
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

    def _locks(self) -> list[int]:
        """The numbers of the locks that were taken last, in ascending order."""
        locks = self.store.lookup.locks
        return [(locks.words[index] - locks.base) // 8 for index in range(locks.count)]

    def _groups(self) -> int:
        """How many masked CAS on aligned words would take these, if each were a bit."""
        return len({lock // 64 for lock in self._locks()})

    def _in_a_window(self) -> bool:
        """Whether 64 bits from some byte on would have them all."""
        locks = self._locks()
        return locks[-1] - (locks[0] & ~7) < 64

    def _locked_bytes(self) -> int:
        """Bytes of the rows under the locks of the key's two rows: the paper reads them at once."""
        store = self.store
        each = store.parameters.rows_per_lock
        runs = 1 + (store.found.first // each != store.found.second // each)
        return int(8 * store.lookup.rows.row_words * each * runs)

    def _search(self) -> Any:
        return self.store.writer.search(self.store.found.table)

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


def column(found: npt.NDArray[np.int64], name: str) -> npt.NDArray[np.int64]:
    return found[:, COLUMNS.index(name)]


def means(found: npt.NDArray[np.int64]) -> dict[str, float]:
    return dict(zip(COLUMNS, found.mean(axis=0).tolist(), strict=True))


def percentiles(values: npt.NDArray[np.int64]) -> tuple[float, float]:
    """Median and 99th percentile."""
    usual, late = (float(p) for p in np.percentile(values, (50, 99)))
    return usual, late


def of_locality(locality: float) -> str:
    return "independent" if locality == INDEPENDENT else f"f = {locality:g}"
