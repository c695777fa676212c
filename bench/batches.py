"""Batches beside single operations, for every kind of store: `limpet bench batches`.

The same keys are read, updated and inserted by a call with MANY of them and by a loop over single
operations, in turn, round after round, on one pool: so both meet the same state of the machine. A
time is the median of the rounds; a ratio is the median of each round's ratio, since only these two
are near each other in time. Instructions of a key are exact (instructions.py). Round trips are
those of one call, as the store counts them; `-` in place of instructions: not counted.

With more than SOME keys, each way has other ones of them, drawn in each round: most of what it
meets is then in no cache.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from rich.table import Table

import limpet
from limpet.bench import instructions
from limpet.bench.instructions import MANY, NODE_SIZE, NODES, SINGLY, VALUE
from limpet.cli.common import table
from limpet.shm.errors import ParameterError, PoolNotFound
from limpet.shm.parameters import parse_size
from limpet.stores.registry import KINDS, store_class

SOME: Final = 64 * MANY
"""Keys of a round."""
ROUNDS: Final = 15
CALLS: Final = 16
"""Calls of which the instructions are counted."""
NEW: Final = "put_many, new keys"
EACH_SIZE: Final = 640
"""Bytes of a node for each key, more than a pair and its entry take."""


@dataclasses.dataclass(frozen=True)
class Batched:
    """One operation of a kind: us of a key by itself and in a call of MANY, the ratio of the two,
    the instructions of a key (0: not counted), and the round trips of MANY keys, singly and at
    once."""

    kind: str
    operation: str
    single_us: float
    many_us: float
    ratio: float
    single_instructions: float
    many_instructions: float
    single_trips: float
    many_trips: float


def run(kinds: Sequence[str], rounds: int, counted: bool, keys: int = SOME) -> Iterator[Batched]:
    """Measure every operation of these kinds, on stores with so many keys; `counted`: count
    instructions, too."""
    for kind in kinds:
        if kind not in KINDS:
            raise ParameterError(f"{kind!r} is no kind of store; {', '.join(KINDS)} are")
    for kind in kinds:
        url = f"shm://limpet-batches-{os.getpid()}"
        try:
            size = parse_size(NODE_SIZE) + (keys - SOME) * EACH_SIZE
            with limpet.create(url, nodes=NODES, node_size=size) as pool:
                timed = {name: _timed(pool, kind, name, rounds, keys) for name in SINGLY}
        finally:
            with contextlib.suppress(PoolNotFound):
                limpet.destroy(url)
        for name, singly in SINGLY.items():
            costs = (0.0, 0.0)
            if counted and kind not in instructions.UNCOUNTED:
                costs = (
                    instructions.of_a_key(kind, singly, CALLS),
                    instructions.of_a_key(kind, name, CALLS),
                )
            single_us, many_us, ratio, single_trips, many_trips = timed[name]
            yield Batched(
                kind, name, single_us, many_us, ratio, costs[0], costs[1], single_trips, many_trips
            )


def _timed(pool: Any, kind: str, name: str, rounds: int, count: int) -> tuple[float, ...]:
    """us of a key singly and in a call, the ratio, and round trips of MANY keys both ways."""
    sizes = {} if store_class(kind).grows else {"capacity": 3 * SOME + count}
    store = pool.store(kind, name=f"store {name}", **sizes)
    kept = [b"key %016d" % number for number in range(count)]
    draw = random.Random(count)
    store.put_many([(key, VALUE) for key in kept])
    store.put_many([(key, VALUE) for key in kept])
    store.get_many(kept)
    singles, manies, ratios, trips = [], [], [], [0, 0]
    for number in range(rounds + 1):
        took = []
        for way in (0, 1) if number & 1 else (1, 0):
            keys = kept if count == SOME else draw.sample(kept, SOME)
            if name == NEW:
                keys = [b"new %d %016d" % (way, each) for each in range(SOME)]
            before = store.stats()["round_trips"]
            took.append((way, _once(store, name, keys, way)))
            trips[way] = store.stats()["round_trips"] - before
            if name == NEW:
                for key in keys:
                    store.delete(key)
        by_way = dict(took)
        if number:  # the first round is for caches and memory
            singles.append(by_way[0])
            manies.append(by_way[1])
            ratios.append(by_way[0] / by_way[1])
    pool.drop(f"store {name}")
    each = 1e6 / SOME
    calls = SOME // MANY
    return (
        statistics.median(singles) * each,
        statistics.median(manies) * each,
        statistics.median(ratios),
        trips[0] / calls,
        trips[1] / calls,
    )


def _once(store: Any, name: str, keys: list[bytes], way: int) -> float:
    """Seconds that all keys take, singly (way 0) or MANY in a call."""
    chunks = [keys[first : first + MANY] for first in range(0, len(keys), MANY)]
    pairs = [[(key, VALUE) for key in chunk] for chunk in chunks]
    began = time.perf_counter()
    if way and name.startswith("pipeline"):
        for items in chunks if name.endswith("gets") else pairs:
            instructions.pipelined(store, items)
    elif SINGLY[name] == "gets":
        if way:
            for chunk in chunks:
                store.get_many(chunk)
        else:
            for key in keys:
                store.get(key)
    elif way:
        for some in pairs:
            store.put_many(some)
    else:
        for some in pairs:
            for key, value in some:
                store.put(key, value)
    return time.perf_counter() - began


def results_table(found: Sequence[Batched], keys: int) -> Table:
    """The results, on stores with so many keys, as a table to be printed."""
    shown = table(
        f"one key of {keys:,}: alone, and in a call of {MANY}", "store", "operation", "us",
        "in a call", "times as fast", "instructions", "in a call ", f"round trips of {MANY}",
        "in a call  ",
        right=("us", "in a call", "times as fast", "instructions", "in a call ",
               f"round trips of {MANY}", "in a call  "),
    )  # fmt: skip
    before = ""
    for one in found:
        counts = [
            f"{count:,.0f}" if count else "-"
            for count in (one.single_instructions, one.many_instructions)
        ]
        shown.add_row(
            one.kind if one.kind != before else "", one.operation, f"{one.single_us:.2f}",
            f"{one.many_us:.2f}", f"{one.ratio:.2f}", *counts,
            f"{one.single_trips:.0f}", f"{one.many_trips:.0f}",
        )  # fmt: skip
        before = one.kind
    return shown
