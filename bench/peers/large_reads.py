"""A transaction that reads very many keys, alone and beside processes that write without a pause.

A tree is scanned, a hash table is read key by key. Writers update keys that are drawn uniformly
from those that are read. They count their updates, so the report says how much they did, too.
"""

from __future__ import annotations

import ctypes
import dataclasses
import multiprocessing
import os
import random
import statistics
import time
from typing import Any, Final

import limpet
from limpet.fault.inject.children import die_with_parent
from limpet.stores.registry import store_class

VALUE: Final = b"v" * 32
LONGEST_S: Final = 60.0
"""A reader that has not ended by then gives up."""


@dataclasses.dataclass(frozen=True)
class LargeReads:
    """Medians of the rounds. `calls`: how often the function was called, beside the writers;
    `longest_update_us`: the longest update of a writer meanwhile."""

    store: str
    keys: int
    writers: int
    alone_s: float
    beside_s: float
    calls: float
    updates_per_s: float
    longest_update_us: float

    @property
    def ratio(self) -> float:
        """How many times as long it takes beside the writers."""
        return self.beside_s / self.alone_s


def run(store: str, keys: int, writers: int, rounds: int) -> LargeReads:
    """Raises TransactionConflict if the reader does not get through."""
    url = f"shm://limpet-large-reads-{os.getpid()}"
    with limpet.create(url, node_size="128MiB") as pool:
        try:
            made = pool.store(store, name="s", capacity=keys)
            names = [b"key %08d" % number for number in range(keys)]
            made.put_many([(name, VALUE) for name in names])
            alone = [_timed(pool, made, names)[0] for _ in range(rounds)]
            return _beside(url, pool, made, names, writers, rounds, statistics.median(alone))
        finally:
            limpet.destroy(url)


def _timed(pool: Any, store: Any, names: list[bytes]) -> tuple[float, int]:
    """Seconds that a transaction takes that reads all keys, and calls of its function."""
    calls = 0

    def work(tx: Any) -> int:
        nonlocal calls
        calls += 1
        if store_class(store.kind).ordered:
            return len(tx.scan(store))
        return len([tx.get(store, name) for name in names])

    begin = time.perf_counter()
    found = pool.transaction(work)
    took = time.perf_counter() - begin
    if found != len(names):
        raise limpet.LimpetError(f"{store!r}: {found} of {len(names)} keys were read")
    return took, calls


def _beside(
    url: str, pool: Any, store: Any, names: list[bytes], writers: int, rounds: int, alone_s: float
) -> LargeReads:
    context = multiprocessing.get_context("fork")
    counts = context.RawArray(ctypes.c_int64, writers)
    longest = context.RawArray(ctypes.c_int64, writers)
    processes = [
        context.Process(
            target=_write, args=(url, store.kind, names, number, counts, longest), daemon=True
        )
        for number in range(writers)
    ]
    try:
        for process in processes:
            process.start()
        until = time.monotonic() + LONGEST_S
        while not all(counts) and time.monotonic() < until:
            time.sleep(0.01)
        before, begin = sum(counts), time.perf_counter()
        found = [_timed(pool, store, names) for _ in range(rounds)]
        took = time.perf_counter() - begin
        updates = sum(counts) - before
    finally:
        for process in processes:
            process.kill()
            process.join()
    return LargeReads(
        store=store.kind,
        keys=len(names),
        writers=writers,
        alone_s=alone_s,
        beside_s=statistics.median(each for each, _ in found),
        calls=statistics.median(calls for _, calls in found),
        updates_per_s=updates / took,
        longest_update_us=max(longest, default=0) / 1000,
    )


def _write(url: str, kind: str, names: list[bytes], number: int, counts: Any, longest: Any) -> None:
    """Update keys until this process is killed."""
    die_with_parent()
    rng = random.Random(number)
    clock = time.perf_counter_ns
    with limpet.open(url) as pool:
        store = pool.store(kind, name="s")
        while True:
            name = names[rng.randrange(len(names))]
            begin = clock()
            store.update(name, VALUE)
            longest[number] = max(longest[number], clock() - begin)
            counts[number] += 1
