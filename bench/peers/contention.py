"""How fair a store is when processes want the same keys: one hot key, or keys drawn uniformly.

Each process updates for the same time. Jain's index of the numbers of updates is 1 when all are
equal, and 1/n when one process has done everything (Jain, Chiu, Hawe, "A quantitative measure of
fairness", DEC TR-301, 1984).
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from typing import Any, Final

import numpy as np

import limpet
from limpet.bench.peers.workers import Start
from limpet.fault.inject.children import die_with_parent

CHUNK: Final = 256
"""Keys are drawn so many at a time."""
VALUE: Final = b"v" * 64


@dataclasses.dataclass(frozen=True)
class Contention:
    """One combination. `shares`: updates of each process; `longest_us`: of one update."""

    store: str
    processes: int
    keys: int
    updates_per_s: float
    shares: tuple[int, ...]
    retries: int
    median_us: float
    longest_us: float

    @property
    def fairness(self) -> float:
        """Jain's index."""
        squares = sum(share * share for share in self.shares)
        return sum(self.shares) ** 2 / (len(self.shares) * squares)


def run(store: str, processes: int, keys: int, seconds: float, seed: int = 1) -> Contention:
    """Run one combination on a pool of its own, which is removed at the end."""
    url = f"shm://limpet-contention-{os.getpid()}"
    with limpet.create(url, nodes=3, node_size="64MiB") as pool:
        try:
            made = pool.store(store, name="s", capacity=max(keys, 64))
            for key in range(keys):
                made.put(b"key %d" % key, VALUE)
            return _run(url, store, processes, keys, seconds, seed)
        finally:
            limpet.destroy(url)


def _run(url: str, store: str, processes: int, keys: int, seconds: float, seed: int) -> Contention:
    answers = together(_work, processes, (url, store, keys, seconds, seed), seconds)
    times = np.concatenate([np.frombuffer(found, np.int64) for found, _ in answers])
    shares = tuple(len(found) // 8 for found, _ in answers)
    return Contention(
        store=store,
        processes=processes,
        keys=keys,
        updates_per_s=sum(shares) / seconds,
        shares=shares,
        retries=sum(retries for _, retries in answers),
        median_us=float(np.median(times)) / 1000,
        longest_us=float(times.max()) / 1000,
    )


def together(
    work: Callable[..., None], processes: int, arguments: tuple[Any, ...], seconds: float
) -> list[Any]:
    """The messages of processes that do `work`, each with these arguments, its number, a `Start`
    and a pipe. LimpetError: one has sent nothing a minute after these seconds."""
    context = multiprocessing.get_context("fork")
    start = Start(processes)
    pipes, ends, workers = [], [], []
    for number in range(processes):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(
            target=work, args=(*arguments, number, start, theirs), daemon=True
        )
        workers.append(process)
        pipes.append(ours)
        ends.append(theirs)
    try:
        for worker in workers:
            worker.start()
        for theirs in ends:
            theirs.close()
        return [_answer(pipe, worker, seconds) for pipe, worker in zip(pipes, workers, strict=True)]
    finally:
        for worker in workers:
            worker.kill()
            worker.join()


def _answer(pipe: Pipe, worker: Any, seconds: float) -> Any:
    if not pipe.poll(seconds + 60):
        raise limpet.LimpetError(f"process {worker.pid} did not come back: it was blocked")
    try:
        return pipe.recv()
    except EOFError:
        raise limpet.LimpetError(f"process {worker.pid} ended without an answer") from None


def _work(
    url: str,
    store: str,
    keys: int,
    seconds: float,
    seed: int,
    number: int,
    start: Start,
    pipe: Pipe,
) -> None:
    die_with_parent()
    names = [b"key %d" % key for key in range(keys)]
    rng = np.random.default_rng([seed, number])
    clock = time.perf_counter_ns
    times: list[int] = []
    with limpet.open(url) as pool:
        made = pool.store(store, name="s")
        start.meet()
        end = now = clock()
        end += int(seconds * 1e9)
        while now < end:
            for index in rng.integers(0, keys, CHUNK).tolist():
                begin = now
                made.update(names[index], VALUE)
                now = clock()
                times.append(now - begin)
        pipe.send((np.array(times, np.int64).tobytes(), made.retries))
