"""How many cache lines of shared memory an operation touches: counted, not timed.

A client with a hooked endpoint (shm/endpoint/hooked.py) does each operation many times, and notes
the address of each verb: which lines of 64 bytes it reads, and which it changes or tries to. A line
counts once in an operation. Lines of the control segment are most often the client's own slot, or
such that seldom change. Private memory does not count: tables of what a client knows, and Python.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import limpet
from limpet.bench.instructions import FEW, NODE_SIZE, NODES, work_of
from limpet.shm.endpoint.hooked import MUTATING, READS, HookedEndpoint
from limpet.shm.endpoint.layout import CONTROL_NODE

LINE_BITS: Final = 6
CONTROL_LINE: Final = CONTROL_NODE << 40 - LINE_BITS
"""The first line of the control segment."""


class Touched(NamedTuple):
    """Lines that an operation of a subject touches, on average; `changed`: those of them that it
    writes; `control`: those of them in the control segment."""

    subject: str
    operation: str
    lines: float
    changed: float
    control: float


class LinesEndpoint(HookedEndpoint, verbs=(*READS, *MUTATING)):
    """Notes the lines that are touched."""

    def __init__(self) -> None:
        self.touched: set[int] = set()
        self.changed: set[int] = set()

    def on_verb(self, verb: str, addr: int, words: int) -> int:
        last = (addr & ~7) + 8 * words - 1
        lines = range(addr >> LINE_BITS, (last >> LINE_BITS) + 1)
        self.touched.update(lines)
        if verb in MUTATING:
            self.changed.update(lines)
        return words


class LinesPool(limpet.Pool):
    """A pool with such an endpoint."""

    endpoint_class = LinesEndpoint


def run(pairs: Sequence[tuple[str, str]], ops: int) -> Iterator[Touched]:
    """Count each of these subjects' operations."""
    for subject, operation in pairs:
        yield _counted(subject, operation, ops)


def _counted(subject: str, operation: str, ops: int) -> Touched:
    url = f"shm://limpet-lines-{os.getpid()}"
    with limpet.create(url, nodes=NODES, node_size=NODE_SIZE) as made:
        try:
            with LinesPool.open(made.url) as pool:
                work = work_of(pool, subject, operation, FEW + ops)
                for number in range(FEW):
                    work(number)
                endpoint: Any = pool.endpoint
                lines = changed = control = 0
                for number in range(FEW, FEW + ops):
                    endpoint.touched.clear()
                    endpoint.changed.clear()
                    work(number)
                    lines += len(endpoint.touched)
                    changed += len(endpoint.changed)
                    control += sum(line >= CONTROL_LINE for line in endpoint.touched)
        finally:
            limpet.destroy(url)
    return Touched(subject, operation, lines / ops, changed / ops, control / ops)
