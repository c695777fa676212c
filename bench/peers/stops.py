"""Processes that are stopped for some milliseconds: how many of their locks expire meanwhile.

The real counterpart of expiry.py. Processes update the same few keys of
`rtx-sherman`, with a round trip as long as RDMA's; a random one is stopped so many times a
second (SIGSTOP), for times drawn from an exponential distribution, and goes on. They have one
clock, so what a lease must allow for is how long its owner stands still: stopped, or without a
core. Counted are the `repairs` of `stats()`, as there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import mmap
import os
import random
import signal
import time
from typing import Any, Final

import limpet
from limpet.fault.inject.interrupt import Interrupt
from limpet.fault.inject.workers import Workers

KEYS: Final = 8
VALUE: Final = b"v" * 24
LOOK: Final = 64
"""A worker looks at the clock once in so many updates."""


@dataclasses.dataclass(frozen=True)
class Stops:
    """The result of one drift. `expired`: locks of living clients that others released."""

    drift_us: int
    processes: int
    stop_ms: float
    stops: int
    expired: int
    updates: int
    updates_per_s: float


def run(drift_us: int, processes: int, seconds: float, stop_ms: float, seed: int = 0) -> Stops:
    """Run one drift on a pool of its own; from the main thread."""
    url = f"shm://limpet-stops-{os.getpid()}"
    with contextlib.ExitStack() as stack:
        interrupt = stack.enter_context(Interrupt())
        pool = stack.enter_context(limpet.create(url, nodes=1, node_size="64MiB", latency="rdma"))
        limpet.destroy(url)
        store = pool.store("rtx-sherman", name="s", capacity=1000, drift_us=drift_us)
        for number in range(KEYS):
            store.put(b"key %d" % number, VALUE)
        words = memoryview(mmap.mmap(-1, 16 * processes)).cast("Q")
        end = time.monotonic() + seconds

        def work(slot: int, incarnation: int) -> None:
            words[2 * slot] = _update(store, end, random.Random(f"{seed}, {slot}"))
            words[2 * slot + 1] = store.stats()["repairs"]

        workers = stack.enter_context(Workers(work))
        for slot in range(processes):
            workers.start(slot)
        stops = _stop_some(workers, interrupt, end, stop_ms, random.Random(seed))
        _join(workers, interrupt)
        store.check()
        counts = words.tolist()
    return Stops(
        drift_us, processes, stop_ms, stops, sum(counts[1::2]), sum(counts[::2]),
        sum(counts[::2]) / seconds,
    )  # fmt: skip


def _update(store: Any, end: float, dice: random.Random) -> int:
    """Update keys until then; how many."""
    names = [b"key %d" % number for number in range(KEYS)]
    done = 0
    while time.monotonic() < end:
        for name in dice.choices(names, k=LOOK):
            store.update(name, VALUE)
        done += LOOK
    return done


def _stop_some(
    workers: Workers, interrupt: Interrupt, end: float, stop_ms: float, dice: random.Random
) -> int:
    """Stop one worker after another until then, about half of the time; how many."""
    done = 0
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, dice.expovariate(1000 / stop_ms)))
        interrupt.check()
        pid = dice.choice(sorted(workers.pids.values()))
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(dice.expovariate(1 / stop_ms) / 1000)
        finally:
            os.kill(pid, signal.SIGCONT)
        done += 1
    return done


def _join(workers: Workers, interrupt: Interrupt) -> None:
    """Wait for all; LimpetError if one failed."""
    while workers.pids:
        ends = workers.wait(None, (interrupt.fd,))
        interrupt.check()
        for ended in ends:
            if ended.status:
                raise limpet.LimpetError(f"a process ended with {ended.status}: {ended.traceback}")
