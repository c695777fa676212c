"""The result of `limpet bench cache --speed` as tables with bars."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, Final

from rich import box
from rich.bar import Bar
from rich.console import Console
from rich.table import Table
from rich.text import Text

from limpet.bench.peers.caches import OURS
from limpet.bench.peers.measure import Measurement, Outcome
from limpet.bench.peers.report import number
from limpet.bench.peers.workers import COMPUTE

TITLES: Final = {
    "get": "get, all hits: us in one process",
    "update": "set, of a key that is there: us in one process",
    COMPUTE: "get_or_compute, all misses: us in one process",
    "R": "90 % gets, 10 % sets, by Zipf's law: 1000 op/s of all processes",
}
TIMED: Final = ("get", "update", COMPUTE)
"""Loops of which the time in one process is shown; of the others, the rate of all."""
BAR_WIDTH: Final = 30


def print_tables(outcome: Outcome, machine: dict[str, Any], console: Console) -> None:
    """A table with bars for each loop, the missing stores, and the machine."""
    for loop in outcome.options.loops:
        console.print(_table(outcome, loop))
    options, workload = outcome.options, outcome.options.workload
    console.print(
        f"{workload.records:,} pairs, keys of {workload.key_bytes} bytes, values of "
        f"{workload.value_bytes}, Zipfian {workload.theta:g}, seed {workload.seed}; medians of "
        f"{options.rounds} interleaved rounds. x: time over that of limpet's cache in the same "
        "round, with as many processes; of the mix, its rate over theirs.",
    )
    console.print(
        f"{machine['cpu']}, {machine['cores']} cores, {machine['python']}, "
        f"limpet {machine['limpet_build']}. "
        + ", ".join(f"{name} {version}" for name, version in outcome.versions.items()),
    )
    for name, reason in (*outcome.missing.items(), *outcome.failed.items()):
        console.print(Text(f"not measured: {name}: {reason}", style="yellow"))


def _table(outcome: Outcome, loop: str) -> Table:
    """Bars of times are as long as the times, those of rates as the rates."""
    made = Table(title=TITLES[loop], title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1))
    made.add_column("processes", justify="right")
    made.add_column("of")
    made.add_column("op/ms" if loop not in TIMED else "us", justify="right")
    made.add_column("x", justify="right")
    made.add_column("", width=BAR_WIDTH)
    by_key = _measured(outcome, loop)
    for processes in outcome.options.processes:
        there = [name for name in outcome.versions if (name, processes) in by_key]
        values = {name: _value(by_key[name, processes], loop) for name in there}
        longest = max(values.values(), default=0.0)
        for name in there:
            ratio = times_as_long(by_key[name, processes], by_key.get((OURS, processes), ()), loop)
            made.add_row(
                str(processes),
                name,
                number(values[name]),
                number(ratio),
                Bar(longest, 0, values[name], width=BAR_WIDTH),
                end_section=name == there[-1],
            )
    return made


def _measured(outcome: Outcome, loop: str) -> dict[tuple[str, int], list[Measurement]]:
    found: dict[tuple[str, int], list[Measurement]] = {}
    for row in outcome.measurements:
        if row.loop == loop:
            found.setdefault((row.store, row.processes), []).append(row)
    return found


def _value(rows: Sequence[Measurement], loop: str) -> float:
    """us of an operation, or thousands of operations a second of a mix."""
    if loop in TIMED:
        return statistics.median(row.ns_per_op for row in rows) / 1000
    return statistics.median(row.kops for row in rows)


def times_as_long(
    rows: Sequence[Measurement], ours: Sequence[Measurement], loop: str
) -> float | None:
    """How many times the time of our cache these took: the median of the rounds' ratios."""
    by_round = {row.round: _cost(row, loop) for row in ours}
    ratios = [_cost(row, loop) / by_round[row.round] for row in rows if row.round in by_round]
    return statistics.median(ratios) if ratios else None


def _cost(row: Measurement, loop: str) -> float:
    return row.ns_per_op if loop in TIMED else 1 / row.kops
