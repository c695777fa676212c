"""Counters and latency histograms of worker processes, in memory that they share with their parent.

One anonymous shared mapping, made before the fork, one row of 64-bit words a slot:

    word               content
    0                  pid of the worker
    1                  its client id in the pool
    2, 3               gets, bytes they returned
    4, 5               puts (and other writes), bytes they wrote
    6                  operations that raised an error which the run allows
    8 .. 8+H-1         latency histogram of the gets
    8+H .. 8+2H-1      latency histogram of the puts

and before the rows one row whose word 0 is the stop flag, set by the parent. A row is written by
its slot's worker alone, of which there is one at a time; the parent reads it meanwhile. A kill
loses at most the operation in flight. A reader sees each word as of a different moment, which is
good enough for a display, and exact once the workers have ended.

A histogram's bucket b holds latencies from 2^(b/16) to 2^((b+1)/16) ns, so a percentile, given as
the middle of its bucket, is within 2.2 % of the sample it stands for.
"""

from __future__ import annotations

import math
import mmap
from typing import Final

import numpy as np
import numpy.typing as npt

PER_OCTAVE: Final = 16
BUCKETS: Final = 40 * PER_OCTAVE
GETS: Final = 2
PUTS: Final = 4
_PID: Final = 0
_CLIENT: Final = 1
_REFUSED: Final = 6
_HISTOGRAMS: Final = 8
_ROW: Final = _HISTOGRAMS + 2 * BUCKETS

Words = npt.NDArray[np.int64]


class Counter:
    """The writing end of one slot's row, in its worker."""

    def __init__(self, row: memoryview, stop: memoryview) -> None:
        self._row = row
        self._stop = stop

    @property
    def stopped(self) -> bool:
        """Whether the parent asks the workers to end."""
        return bool(self._stop[0])

    def start(self, pid: int, client: int) -> None:
        """A worker takes the row over; its counts stay."""
        self._row[_PID] = pid
        self._row[_CLIENT] = client

    def add(self, kind: int, size: int, ns: int) -> None:
        """Count an operation of `kind` (GETS or PUTS) on `size` bytes that took `ns`."""
        row = self._row
        row[kind] += 1
        row[kind + 1] += size
        bucket = min(int(math.log2(max(ns, 1)) * PER_OCTAVE), BUCKETS - 1)
        row[_HISTOGRAMS + (BUCKETS if kind == PUTS else 0) + bucket] += 1

    def refuse(self) -> None:
        """Count an operation that raised an error which the run allows."""
        self._row[_REFUSED] += 1


class Counters:
    """The rows of all slots, in the parent."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._words = memoryview(mmap.mmap(-1, (slots + 1) * _ROW * 8)).cast("q")
        self._rows = np.frombuffer(self._words, np.int64).reshape(slots + 1, _ROW)

    def counter(self, slot: int) -> Counter:
        """The row of `slot`, for its next worker."""
        start = (slot + 1) * _ROW
        return Counter(self._words[start : start + _ROW], self._words[:1])

    def stop(self) -> None:
        """Ask the workers to end."""
        self._words[0] = 1

    def read(self) -> Snapshot:
        """The counters as they are now."""
        return Snapshot(self._rows[1:].copy())


class Snapshot:
    """Counters at one moment. An index `slot` picks a slot; None means all together."""

    def __init__(self, rows: Words) -> None:
        self._rows = rows

    def pid(self, slot: int) -> int:
        return int(self._rows[slot, _PID])

    def client(self, slot: int) -> int:
        return int(self._rows[slot, _CLIENT])

    def operations(self, kind: int, slot: int | None = None) -> int:
        return self._sum(slot, kind)

    def refused(self, slot: int | None = None) -> int:
        """Operations that raised an error which the run allows."""
        return self._sum(slot, _REFUSED)

    def progress(self, slot: int) -> int:
        """Operations of the slot that came back, with a result or an error."""
        return sum(self._sum(slot, word) for word in (GETS, PUTS, _REFUSED))

    def size(self, kind: int, slot: int | None = None) -> int:
        """Bytes that the operations of `kind` moved."""
        return self._sum(slot, kind + 1)

    def percentile_ns(self, kind: int, percent: float, slot: int | None = None) -> float | None:
        """Latency that `percent` of the operations of `kind` do not exceed; None without any."""
        start = _HISTOGRAMS + (BUCKETS if kind == PUTS else 0)
        rows = self._rows if slot is None else self._rows[slot : slot + 1]
        return percentile_ns(rows[:, start : start + BUCKETS].sum(axis=0), percent)

    def _sum(self, slot: int | None, word: int) -> int:
        return int(self._rows[:, word].sum() if slot is None else self._rows[slot, word])


def percentile_ns(histogram: Words, percent: float) -> float | None:
    """The middle of the bucket in which the `percent`-th percentile lies; None if all are empty."""
    total = int(histogram.sum())
    if total == 0:
        return None
    rank = max(1, math.ceil(total * percent / 100))
    bucket = int(np.searchsorted(np.cumsum(histogram), rank))
    return float(2.0 ** ((bucket + 0.5) / PER_OCTAVE))
