"""Synthetic histories that are linearizable by construction, for tests and for timing.

Clients take turns at random in virtual time. Each operation takes effect at a random moment between
its call and its return, on a plain dict, and its client then calls the next one. A kill cuts an
operation before or after that moment, and a new client takes the place.

Run as a program it times the checker: `python -m limpet.fault.check.synthetic --help`.
"""

from __future__ import annotations

import argparse
import dataclasses
import heapq
import itertools
import random
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

from limpet.fault.check.history import Record, read_history, write_history
from limpet.fault.check.linearizability import check

T = TypeVar("T")

SHARES: Final = {"get": 0.5, "put": 0.3, "update": 0.1, "insert": 0.05, "delete": 0.05}


@dataclasses.dataclass(frozen=True)
class Shape:
    """Parameters of a synthetic history. Keys are drawn from Zipf(theta); times are in ns.

    kill_share: of operations cut by a kill; half of those have taken effect. values: how many
    different values there are; 0: every write has its own.
    """

    operations: int
    keys: int = 5000
    clients: int = 8
    theta: float = 0.99
    kill_share: float = 0.003
    values: int = 0
    shares: dict[str, float] = dataclasses.field(default_factory=lambda: dict(SHARES))
    took_ns: int = 2000
    idle_ns: int = 500
    seed: int = 1


def synthesize(shape: Shape) -> list[Record]:
    """A linearizable history of this shape, in no particular order; the same for the same shape."""
    rng = random.Random(shape.seed)
    names = [b"key-%d" % number for number in range(shape.keys)]
    weights = itertools.accumulate((rank + 1) ** -shape.theta for rank in range(shape.keys))
    keys = _draws(rng, names, list(weights))
    ops = _draws(rng, list(shape.shares), list(itertools.accumulate(shape.shares.values())))
    store: dict[bytes, bytes] = {}
    history: list[Record] = []
    incarnations = itertools.count(1)
    queue = [(rng.randrange(shape.took_ns), next(incarnations)) for _ in range(shape.clients)]
    heapq.heapify(queue)
    pending: dict[int, Record] = {}
    for number in itertools.count():
        now, client = heapq.heappop(queue)
        open_record = pending.pop(client, None)
        if open_record is not None:
            # The moment at which the operation takes effect.
            if rng.random() < shape.kill_share:
                if rng.random() < 0.5:
                    apply(store, open_record)
                history.append(open_record)
                client = next(incarnations)
            else:
                end = now + 1 + int(rng.expovariate(2 / shape.took_ns))
                history.append(apply(store, open_record)._replace(return_ns=end))
                now = end
            if len(history) == shape.operations:
                return history
            now += 1 + int(rng.expovariate(1 / shape.idle_ns))
        op = next(ops)
        value = None
        if op not in ("get", "delete"):
            value = b"%d" % (rng.randrange(shape.values) if shape.values else number)
        pending[client] = Record(client, op, next(keys), value, "unknown", None, now, None)
        heapq.heappush(queue, (now + 1 + int(rng.expovariate(2 / shape.took_ns)), client))
    raise AssertionError("count() ended")


def apply(store: dict[bytes, bytes], record: Record) -> Record:
    """Let the operation take effect on `store`; the record with its result."""
    present = record.key in store
    if record.op == "get":
        return record._replace(result="ok" if present else "missing", read=store.get(record.key))
    if record.op == "insert" and present:
        return record._replace(result="exists")
    if record.op in ("update", "delete") and not present:
        return record._replace(result="missing")
    if record.value is None:
        del store[record.key]
    else:
        store[record.key] = record.value
    return record._replace(result="ok")


def _draws(rng: random.Random, population: list[T], cumulated: list[float]) -> Iterator[T]:
    while True:
        yield from rng.choices(population, cum_weights=cumulated, k=1024)


def main(arguments: Sequence[str] | None = None) -> int:
    """Time the checker on a synthetic history; the exit status is the report's."""
    parser = argparse.ArgumentParser("limpet.fault.check.synthetic", description=main.__doc__)
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=Shape.keys)
    parser.add_argument("--clients", type=int, default=Shape.clients)
    parser.add_argument("--kill-share", type=float, default=Shape.kill_share)
    parser.add_argument("--values", type=int, default=Shape.values)
    parser.add_argument("--took-ns", type=int, default=Shape.took_ns)
    parser.add_argument("--idle-ns", type=int, default=Shape.idle_ns)
    parser.add_argument("--seed", type=int, default=Shape.seed)
    parser.add_argument("--processes", type=int, help="default: one for each CPU")
    parser.add_argument("--file", help="write the history there, and read it back")
    options = vars(parser.parse_args(arguments))
    processes, path = options.pop("processes"), options.pop("file")
    clock = [time.perf_counter()]

    def lap(what: str) -> None:
        clock.append(time.perf_counter())
        print(f"{what}: {clock[-1] - clock[-2]:.1f} s")

    history = synthesize(Shape(**options))
    lap(f"made {len(history):,} operations, {sum(r.return_ns is None for r in history):,} unknown")
    if path is not None:
        write_history(path, history)
        lap("written")
        history = read_history(path)
        lap("read")
    report = check(history, processes=processes)
    lap(f"checked {len(report.keys):,} keys: {report.verdict.value}")
    for key in report.bad():
        print(key.detail)
    return report.exit_status


if __name__ == "__main__":
    sys.exit(main())
