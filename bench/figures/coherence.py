"""The cost of each mode of coherence: one client's operations, in pools that differ only in that.

Modes
    coherent    a pool of one host
    hosts       `multi_host`: each step looks first whether the client still has its slot
    incoherent  `coherent=False`: writes behind the coherent range are written back, and lines are
                dropped from the cache before they are read (clwb, clflushopt, fences)

Times are those of the processor. The rounds of all modes are interleaved, so that whatever else the
machine does meets all of them.
A ratio is the median over the rounds of what a mode took to what "coherent" took in that round. The
CPU's caches are coherent here, so what is measured are the instructions of the other modes and the
misses that they make, not a device's latency.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import limpet
from limpet.shm.endpoint.fabric import flush_features
from limpet.shm.errors import ParameterError

NODE_SIZE: Final = 64 << 20
MODES: Final[dict[str, dict[str, Any]]] = {
    "coherent": {},
    "hosts": {"multi_host": True},
    "incoherent": {"coherent": False, "coherent_bytes": NODE_SIZE // 2},
}
STORES: Final = ("race", "fusee", "rcuckoo", "loco", "rtx-sherman")
"""Kinds that can be in incoherent memory."""
OPERATIONS: Final = ("get", "put")
KEYS: Final = 100


class Cost(NamedTuple):
    """What operations of one kind cost in one mode: ns of processor time, the ratio to the coherent
    mode, and how many cache lines each of them had written back or dropped, and fences."""

    store: str
    size: int
    operation: str
    mode: str
    ns: float
    ratio: float
    lines: float
    fences: float


def modes() -> tuple[str, ...]:
    """The modes that this CPU and build can be in."""
    able = limpet.build == "compiled" and "clflushopt" in flush_features()
    return tuple(MODES) if able else tuple(mode for mode in MODES if mode != "incoherent")


def run(
    stores: Sequence[str], sizes: Sequence[int], ops: int, rounds: int,
    advance: Callable[[str], None] = lambda text: None,
) -> Iterator[Cost]:  # fmt: skip
    """Costs of all stores, with values of these sizes in bytes; `ops` operations a round."""
    if unknown := set(stores) - set(STORES):
        raise ParameterError(f"no such stores here: {', '.join(sorted(unknown))}")
    for store in stores:
        for size in sizes:
            yield from _costs(store, size, ops, rounds)
            advance(f"{store}, {size} bytes")


def _costs(store: str, size: int, ops: int, rounds: int) -> Iterator[Cost]:
    with contextlib.ExitStack() as stack:
        pools = {mode: stack.enter_context(_pool(mode)) for mode in modes()}
        works = {mode: _Work(pool, store, size) for mode, pool in pools.items()}
        for operation in OPERATIONS:
            took: dict[str, list[float]] = {mode: [] for mode in works}
            for work in works.values():
                work.do(operation, ops)  # warm
                work.pool.endpoint.reset_counters()
            for _ in range(rounds):
                for mode, work in works.items():
                    took[mode].append(work.do(operation, ops))
            for mode, work in works.items():
                counted = work.pool.endpoint.counters()
                ratios = [
                    one / base for one, base in zip(took[mode], took["coherent"], strict=True)
                ]
                yield Cost(
                    store, size, operation, mode, statistics.median(took[mode]) / ops,
                    statistics.median(ratios), counted["lines_flushed"] / ops / rounds,
                    counted["fences"] / ops / rounds,
                )  # fmt: skip


class _Work:
    """Operations on a store in one pool."""

    def __init__(self, pool: Any, store: str, size: int) -> None:
        self.pool = pool
        self.store = pool.store(store, name="coherence", capacity=4 * KEYS)
        self.keys = [b"key-%04d" % number for number in range(KEYS)]
        self.values = [bytes([65 + number]) * size for number in range(2)]
        for key in self.keys:
            self.store.put(key, self.values[0])

    def do(self, operation: str, ops: int) -> int:
        """So many operations; how many ns of processor time they took."""
        keys = [self.keys[number % KEYS] for number in range(ops)]
        get, put, value = self.store.get, self.store.put, self.values[1]
        start = time.thread_time_ns()
        if operation == "get":
            for key in keys:
                get(key)
        else:
            for key in keys:
                put(key, value)
        return time.thread_time_ns() - start


@contextlib.contextmanager
def _pool(mode: str) -> Iterator[Any]:
    name = f"shm://limpet-coherence-{os.getpid()}-{mode}"
    with limpet.create(name, node_size=NODE_SIZE, **MODES[mode]) as pool:
        try:
            yield pool
        finally:
            limpet.destroy(name)
