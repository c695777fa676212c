"""From measurements of single rounds to one line a cell: medians over rounds, and ratios.

A ratio compares two measurements of the same round and loop; reported is its median over the
rounds.

    speed_vs_lmdb   LMDB's time / this store's time, with as many processes: above 1 is faster
    time_vs_dict    this store's time / a plain dict's time, with as many processes
    scaling         this store's rate / its own rate with one process
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterable
from typing import Final

from limpet.bench.peers.measure import Measurement, Outcome
from limpet.bench.peers.workers import SCAN

BASELINE: Final = "lmdb"
FLOOR: Final = "dict"


@dataclasses.dataclass(frozen=True)
class Cell:
    """A store, a loop and a number of processes; None where there is nothing to say."""

    store: str
    loop: str
    processes: int
    rounds: int
    ns_per_op: float
    kops: float
    get_us_median: float | None
    get_us_p99: float | None
    update_us_median: float | None
    update_us_p99: float | None
    speed_vs_lmdb: float | None
    time_vs_dict: float | None
    scaling: float | None


def cells(outcome: Outcome) -> list[Cell]:
    """One cell for each store, number of processes and loop that was measured, in that order."""
    by_key = {(m.store, m.processes, m.loop, m.round): m for m in outcome.measurements}
    return [
        _cell(outcome, by_key, store, processes, loop)
        for store in outcome.versions
        for processes in outcome.options.processes
        for loop in (*outcome.options.loops, SCAN)
        if (store, processes, loop, 0) in by_key
    ]


def _cell(
    outcome: Outcome,
    by_key: dict[tuple[str, int, str, int], Measurement],
    store: str,
    processes: int,
    loop: str,
) -> Cell:
    rounds = range(outcome.options.rounds)
    own = [by_key[store, processes, loop, round_] for round_ in rounds]

    def ratio(
        other: str, others: int, compare: Callable[[Measurement, Measurement], float]
    ) -> float | None:
        pairs = [
            (mine, by_key[other, others, loop, mine.round])
            for mine in own
            if (other, others, loop, mine.round) in by_key
        ]
        return _median(compare(mine, theirs) for mine, theirs in pairs)

    return Cell(
        store=store,
        loop=loop,
        processes=processes,
        rounds=len(own),
        ns_per_op=statistics.median(m.ns_per_op for m in own),
        kops=statistics.median(m.kops for m in own),
        get_us_median=_median(m.get_us_median for m in own),
        get_us_p99=_median(m.get_us_p99 for m in own),
        update_us_median=_median(m.update_us_median for m in own),
        update_us_p99=_median(m.update_us_p99 for m in own),
        speed_vs_lmdb=ratio(BASELINE, processes, lambda a, b: b.ns_per_op / a.ns_per_op),
        time_vs_dict=ratio(FLOOR, processes, lambda a, b: a.ns_per_op / b.ns_per_op),
        scaling=ratio(store, 1, lambda a, b: a.kops / b.kops) if processes > 1 else None,
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
