"""A demo worker: recorded gets and rewrites of self-check values, with Zipfian keys."""

from __future__ import annotations

import dataclasses
import itertools
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from limpet.fault.check.recorder import Log, Operation, Result
from limpet.fault.check.self_check import Original, identify, identity, reseal
from limpet.fault.inject.counters import GETS, PUTS, Counter

BATCH: Final = 64


@dataclasses.dataclass(frozen=True)
class Entry:
    """A key, with size and digest of the content that it was loaded with."""

    key: bytes
    original: Original


def gets_and_puts(put_share: float) -> dict[Operation, float]:
    """The shares of a mix of gets and puts only."""
    return {Operation.GET: 1 - put_share, Operation.PUT: put_share}


class ZipfWorkload:
    """A stream of operations: keys from Zipf(theta), whose ranks `seed` shuffles over all keys;
    not `shuffled`: the key is the rank.

    `shares`: how often each operation comes; only the proportions matter. A forked process can draw
    at once: only the set-up uses numpy, whose first use in a process is slow.
    """

    def __init__(
        self,
        keys: int,
        theta: float,
        shares: Mapping[Operation, float],
        seed: int,
        shuffled: bool = True,
    ) -> None:
        self._weights: list[float] = np.cumsum(1.0 / np.arange(1, keys + 1) ** theta).tolist()
        self._key_of_rank: list[int] = list(range(keys))
        if shuffled:
            self._key_of_rank = np.random.default_rng(seed).permutation(keys).tolist()
        self._operations = list(shares)
        self._shares = list(itertools.accumulate(shares.values()))
        self._seed = seed

    def draw(self, incarnation: int) -> Iterator[tuple[int, Operation]]:
        """Keys, each with an operation, without end; every incarnation has its own."""
        source = random.Random(self._seed << 32 | incarnation)
        while True:
            keys = source.choices(self._key_of_rank, cum_weights=self._weights, k=BATCH)
            yield from zip(
                keys, source.choices(self._operations, cum_weights=self._shares, k=BATCH),
                strict=True,
            )  # fmt: skip


class DemoWorker:
    """One worker at work on `store`. A wrong value is noted, and not put back."""

    def __init__(
        self, store: Any, entries: Sequence[Entry], incarnation: int, log: Log, counter: Counter
    ) -> None:
        self._store = store
        self._entries = entries
        self._incarnation = incarnation
        self._sequence = 0
        self._log = log
        self._counter = counter

    def work(self, operations: Iterator[tuple[int, Operation]]) -> None:
        """Get, and rewrite where the operation is PUT, until the parent says stop."""
        for key, operation in operations:
            if self._counter.stopped:
                break
            value = self._get(key)
            if operation is Operation.PUT and value is not None:
                self._put(key, value)

    def _get(self, key: int) -> bytes | None:
        entry = self._entries[key]
        self._log.call(Operation.GET, key)
        start = time.perf_counter_ns()
        value = self._store.get(entry.key)
        took = time.perf_counter_ns() - start
        result, number = judge(value, entry.original, key)
        self._log.returned(result, number)
        if value is not None:
            self._counter.add(GETS, len(value), took)
        return value if result == Result.OK else None

    def _put(self, key: int, value: bytes) -> None:
        entry = self._entries[key]
        self._sequence += 1
        value = reseal(value, entry.original, key, self._incarnation, self._sequence)
        self._log.call(Operation.PUT, key, identity(self._incarnation, self._sequence))
        start = time.perf_counter_ns()
        self._store.put(entry.key, value)
        took = time.perf_counter_ns() - start
        self._log.returned(Result.OK)
        self._counter.add(PUTS, len(value), took)


def judge(value: bytes | None, original: Original, key: int) -> tuple[Result, int]:
    """The record of a get of `key`: its result, and the identity of the value."""
    if value is None:
        return Result.MISSING, 0
    number = identify(value, original, key)
    return (Result.TORN, 0) if number is None else (Result.OK, number)
