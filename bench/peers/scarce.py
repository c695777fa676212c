"""Many processes with values of many sizes on little memory: what each pays for memory.

Half of the operations are gets, half puts of values of random sizes; all keys are there before. A
process has blocks of its own for each size class and node, so many processes and sizes make blocks
few, though most of the memory is free (trap F15); then clients take blocks from each other.

The rate is that of operations a second of processor time, over all processes. It does not depend on
how many processors there are; a client that waits for memory, or looks for it, lowers it. The
longest operation is given by the clock, which has in it the time that the system gave to other
processes, and in processor time.
"""

from __future__ import annotations

import dataclasses
import os
import time
from multiprocessing.connection import Connection as Pipe
from typing import Final

import numpy as np

import limpet
from limpet.bench.peers.contention import together
from limpet.bench.peers.workers import Start
from limpet.fault.inject.children import die_with_parent
from limpet.stores.registry import store_class

SIZES: Final = (16, 600)
"""Bytes of the values: from, up to."""
WARM: Final = 3000
"""Operations of each process that are not counted: it gets its first blocks."""
PATIENCE_S: Final = 120.0


@dataclasses.dataclass(frozen=True)
class Scarce:
    """One combination. `filled`: share of the memory that is in use by keys and values."""

    store: str
    processes: int
    node_size: str
    keys: int
    filled: float
    ops_per_cpu_s: float
    longest_us: float
    longest_cpu_us: float


def run(store: str, processes: int, node_size: str, keys: int, ops: int, seed: int = 1) -> Scarce:
    """Run one combination on two nodes of this size, on a pool that is removed at the end."""
    url = f"shm://limpet-scarce-{os.getpid()}"
    with limpet.create(url, nodes=2, node_size=node_size) as pool:
        try:
            more = {"replicas": 1 if store_class(store).majorities else 2}
            made = pool.store(store, name="s", **(more if store_class(store).replicated else {}))
            sizes = np.random.default_rng(seed).integers(*SIZES, keys).tolist()
            for key, size in enumerate(sizes):
                made.put(b"key %d" % key, bytes(size))
            answers = together(_work, processes, (url, store, keys, ops, seed), PATIENCE_S)
            pool.recover()  # the processes were ended
            audit = pool.audit()
        finally:
            limpet.destroy(url)
    longest, longest_cpu, spent = np.array(answers).T
    return Scarce(
        store=store,
        processes=processes,
        node_size=node_size,
        keys=keys,
        filled=audit["reachable"] / audit["total"],
        ops_per_cpu_s=processes * ops / float(spent.sum()) * 1e9,
        longest_us=float(longest.max()) / 1000,
        longest_cpu_us=float(longest_cpu.max()) / 1000,
    )


def _work(
    url: str, store: str, keys: int, ops: int, seed: int, number: int, start: Start, pipe: Pipe
) -> None:
    die_with_parent()
    rng = np.random.default_rng([seed, number])
    count = WARM + ops
    chosen = rng.integers(0, keys, count).tolist()
    sizes = rng.integers(*SIZES, count).tolist()
    puts = rng.integers(0, 2, count).tolist()
    value = bytes(SIZES[1])
    clock, cpu = time.perf_counter_ns, time.thread_time_ns
    longest = longest_cpu = began = used = 0
    with limpet.open(url) as pool:
        made = pool.store(store, name="s")
        start.meet()
        for index in range(count):
            if index == WARM:
                longest = longest_cpu = 0
                began = cpu()
            used, begin = cpu(), clock()
            if puts[index]:
                made.put(b"key %d" % chosen[index], value[: sizes[index]])
            else:
                made.get(b"key %d" % chosen[index])
            longest = max(longest, clock() - begin)
            longest_cpu = max(longest_cpu, cpu() - used)
        pipe.send((longest, longest_cpu, cpu() - began))
