"""Memory a key, and how long inserts take while a store grows.

Memory is what the system has given: pages of the segments of a pool, of LMDB's file, Redis's
`used_memory`, and what Python allocates for a dict. The keys are inserted one by one by one client
into a store that was made for few; so what is measured holds what growing leaves behind, and the
blocks that the client keeps.

Each insert is timed by two clocks: the wall's, and the processor time of the thread, in which there
is no time that the system gave to other processes.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import pathlib
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from rich.table import Table

import limpet
from limpet.bench.peers.drivers import SHARED_MEMORY, Driver
from limpet.bench.peers.embedded import LmdbDriver
from limpet.bench.peers.servers import RedisDriver
from limpet.bench.peers.ycsb import Workload
from limpet.cli.common import table, time_text
from limpet.stores.registry import store_class

FEW: Final = 1000
"""The capacity for which a store is made that grows."""


@dataclasses.dataclass(frozen=True)
class Footprint:
    """Bytes a key, and the inserts: median, percentiles, the longest; `cpu`: by processor time."""

    store: str
    keys: int
    bytes_a_key: float
    median_ns: float
    p99_ns: float
    p999_ns: float
    longest_ns: float
    cpu_p999_ns: float
    cpu_longest_ns: float


def run(
    stores: tuple[str, ...], peers: tuple[str, ...], keys: int, key_bytes: int, value_bytes: int
) -> Iterator[Footprint]:
    """Insert `keys` pairs into each of them, but for peers that are missing."""
    workload = Workload(keys, key_bytes, value_bytes)
    for store in stores:
        yield _of_store(store, workload)
    absent = missing(peers)
    for name in peers:
        if name not in absent:
            yield PEERS[name](workload)


def missing(peers: tuple[str, ...]) -> dict[str, str]:
    """Of these peers, those that are not installed: why, and how to get them."""
    reasons = {name: driver().missing() for name, driver in DRIVERS.items() if name in peers}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def inserted(put: Callable[[bytes, bytes], object], workload: Workload) -> np.ndarray[Any, Any]:
    """Put every pair; nanoseconds of each, in row 0 by the clock, in row 1 of processor time."""
    clock, cpu = time.perf_counter_ns, time.thread_time_ns
    times = np.zeros((2, workload.records), np.int64)
    value = os.urandom(workload.value_bytes)
    gc.disable()
    try:
        for index in range(workload.records):
            key = workload.key(index)
            used = cpu()
            begin = clock()
            put(key, value)
            times[0, index] = clock() - begin
            times[1, index] = cpu() - used
    finally:
        gc.enable()
    return times


def _footprint(store: str, workload: Workload, used: float, times: Any) -> Footprint:
    median, p99, p999 = map(float, np.percentile(times[0], (50, 99, 99.9)))
    longest, cpu_longest = map(float, times.max(axis=1))
    return Footprint(
        store, workload.records, used / workload.records, median, p99, p999, longest,
        float(np.percentile(times[1], 99.9)), cpu_longest,
    )  # fmt: skip


def _of_store(name: str, workload: Workload) -> Footprint:
    kind, _, replicas = name.partition(":")
    of_kind = store_class(kind)
    nodes = int(replicas or (3 if of_kind.majorities else 2)) if of_kind.replicated else 1
    record = workload.key_bytes + workload.value_bytes + 64
    size = max(64 << 20, 1 << (6 * workload.records * record).bit_length())
    url = f"shm://limpet-footprint-{os.getpid()}"
    with limpet.create(url, nodes=nodes, node_size=size) as pool:
        try:
            more = {"replicas": nodes} if of_kind.replicated else {}
            capacity = FEW if of_kind.grows else workload.records
            before = _pages(url)
            store = pool.store(kind, name="s", capacity=capacity, **more)
            times = inserted(store.insert, workload)
            return _footprint(name, workload, _pages(url) - before, times)
        finally:
            limpet.destroy(url)


def _pages(url: str) -> int:
    """Bytes of the pages of a pool's segments."""
    name = url.removeprefix("shm://")
    return sum(512 * path.stat().st_blocks for path in SHARED_MEMORY.glob(f"*{name}*"))


def _of_dict(workload: Workload) -> Footprint:
    made: dict[bytes, bytes] = {}
    tracemalloc.start()
    try:
        for index in range(workload.records):
            made[workload.key(index)] = bytes(bytearray(workload.value_bytes))
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    made.clear()
    return _footprint("dict", workload, used, inserted(made.__setitem__, workload))


def _driven(driver: Driver, workload: Workload, used: Callable[[], int]) -> Footprint:
    try:
        driver.start(workload)
        driver.load([])
        before = used()
        connection = driver.attach()
        try:
            times = inserted(connection.put, workload)
            return _footprint(driver.name, workload, used() - before, times)
        finally:
            connection.close()
    finally:
        driver.stop()


def _of_lmdb(workload: Workload) -> Footprint:
    driver = LmdbDriver()

    def used() -> int:
        assert driver.directory is not None
        data = pathlib.Path(driver.directory.path) / "data.mdb"
        return 512 * data.stat().st_blocks

    return _driven(driver, workload, used)


def _of_redis(workload: Workload) -> Footprint:
    driver = RedisDriver()
    return _driven(driver, workload, driver.used_memory)


DRIVERS: Final[dict[str, type[Driver]]] = {"lmdb": LmdbDriver, "redis": RedisDriver}
"""Peers that may have to be installed."""
PEERS: Final[dict[str, Callable[[Workload], Footprint]]] = {
    "lmdb": _of_lmdb,
    "redis": _of_redis,
    "dict": _of_dict,
}


def results_table(found: list[Footprint]) -> Table:
    """A row for each store."""
    numbers = (
        "keys", "bytes a key", "p50 of an insert", "p99", "p99.9", "longest", "p99.9, processor",
        "longest, processor",
    )  # fmt: skip
    shown = table("memory a key, and inserts while a store grows", "store", *numbers, right=numbers)
    for one in found:
        shown.add_row(
            one.store, f"{one.keys:,}", f"{one.bytes_a_key:,.0f}", time_text(one.median_ns),
            time_text(one.p99_ns), time_text(one.p999_ns), time_text(one.longest_ns),
            time_text(one.cpu_p999_ns), time_text(one.cpu_longest_ns),
        )  # fmt: skip
    return shown
