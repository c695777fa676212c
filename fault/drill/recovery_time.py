"""The time until a dead client is replaced, step by step (FUSEE, table 1).

A child updates a number of keys and is killed during the next update, at a random step. Another
client recovers it, and a new one takes its place. The steps, beside the paper's:

    open      map the pool and join it           Recover connection & MR
    attach    find the store                     Get Metadata
    journal   read the dead client's journal     Traverse Log
    objects   resolve its objects                Recover KV Requests
    blocks    give back its blocks; their used   Construct Free List
              bits show the next owners which
              objects are free
    slot      let the epoch go on without it     -
"""

from __future__ import annotations

import dataclasses
import os
import random
import statistics
import time
import traceback
from typing import Any, Final

import limpet
from limpet.fault.inject.children import die_with_parent
from limpet.shm.recovery import recover_client

STEPS: Final = ("open", "attach", "journal", "objects", "blocks", "slot")
PAPER_MS: Final = {"open": 163.1, "attach": 0.3, "journal": 3.5, "objects": 3.5, "blocks": 6.6}
"""Table 1 of the paper; 177.0 ms in all."""
FUSE_MAX: Final = 40
"""About as many steps as an update has: some clients die just after it."""
KEYS: Final = 1000
VALUE: Final = b"v" * 64


@dataclasses.dataclass(frozen=True)
class RecoveryTime:
    """Medians over `rounds`, in ms, of each step; `settled`: objects freed, over all rounds."""

    store: str
    updates: int
    rounds: int
    steps_ms: dict[str, float]
    settled: int
    leaked: int

    @property
    def total_ms(self) -> float:
        return sum(self.steps_ms.values())


def run(store: str, updates: int = 1000, rounds: int = 20, seed: int = 1) -> RecoveryTime:
    """Measure on a pool of its own, which is removed at the end."""
    url = f"shm://limpet-recovery-{os.getpid()}"
    rng = random.Random(seed)
    times: dict[str, list[int]] = {step: [] for step in STEPS}
    settled = 0
    with limpet.create(url, nodes=3, node_size="32MiB") as pool:
        try:
            made = pool.store(store, name="s", capacity=4 * KEYS)
            for key in range(KEYS):
                made.put(b"key %d" % key, VALUE)
            for _ in range(rounds):
                _die_in_update(url, store, updates, rng.randrange(1, FUSE_MAX))
                settled += _recover(pool, times)["objects"]
                _replace(url, store, times)
            made.check()
            leaked = pool.audit()["leaked"]
        finally:
            limpet.destroy(url)
    return RecoveryTime(
        store=store,
        updates=updates,
        rounds=rounds,
        steps_ms={step: statistics.median(found) / 1e6 for step, found in times.items()},
        settled=settled,
        leaked=leaked,
    )


def _die_in_update(url: str, store: str, updates: int, fuse: int) -> None:
    """Let a child make its updates and die at step `fuse` of another update."""
    pid = os.fork()
    if pid == 0:
        try:
            die_with_parent()
            victim = limpet.open(url)
            made = victim.store(store, name="s")
            for number in range(updates):
                made.update(b"key %d" % (number % KEYS), VALUE)
            victim.endpoint.fuse = fuse
            for number in range(FUSE_MAX):
                made.update(b"key %d" % number, VALUE)
        except BaseException:
            traceback.print_exc()
        os._exit(1)  # the fuse has not killed us
    _, status = os.waitpid(pid, 0)
    if not os.WIFSIGNALED(status):
        raise limpet.LimpetError(f"process {pid} should have died of its fuse: status {status}")


def _recover(pool: Any, times: dict[str, list[int]]) -> dict[str, int]:
    """Recover the only dead client, and note the time of each step."""
    last = 0

    def lap(step: str) -> None:
        nonlocal last
        now = time.perf_counter_ns()
        times[step].append(now - last)
        last = now

    def work() -> dict[str, int]:
        nonlocal last
        ((slot, word),) = [
            (slot, word)
            for slot, word in pool.membership.occupied()
            if not pool.membership.ours(slot)
        ]
        inside = (pool.client, pool.blocks, pool.regions, pool.grace)
        last = time.perf_counter_ns()
        return recover_client(*inside, slot, word, lap)

    found: dict[str, int] = pool.exclusively(work)
    return found


def _replace(url: str, store: str, times: dict[str, list[int]]) -> None:
    """Join as the client that takes its place."""
    begin = time.perf_counter_ns()
    with limpet.open(url) as pool:
        opened = time.perf_counter_ns()
        pool.store(store, name="s")
        attached = time.perf_counter_ns()
    times["open"].append(opened - begin)
    times["attach"].append(attached - opened)
