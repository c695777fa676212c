"""Results of the peers' benchmark as tables, as JSON and as a chart."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from limpet.bench.peers.drivers import SCAN_LENGTH
from limpet.bench.peers.measure import LOOPS, Outcome
from limpet.bench.peers.summary import Cell, cells
from limpet.bench.peers.workers import BATCHES, SCAN
from limpet.bench.peers.ycsb import READ_SHARE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMAT_VERSION: Final = 1
_COLORS: Final = ("#3b6ea5", "#d9822b", "#5a9e6f", "#a05a8c", "#7f7f7f")


def as_json(outcome: Outcome, machine: dict[str, Any]) -> dict[str, Any]:
    """Parameters, machine, versions, missing and failed stores, cells, and every round."""
    return {
        "benchmark": "peers",
        "format": FORMAT_VERSION,
        "parameters": dataclasses.asdict(outcome.options),
        "machine": machine,
        "versions": outcome.versions,
        "missing": outcome.missing,
        "failed": outcome.failed,
        "timer_ns": outcome.timer_ns,
        "cells": [dataclasses.asdict(cell) for cell in cells(outcome)],
        "measurements": [dataclasses.asdict(row) for row in outcome.measurements],
    }


def print_tables(outcome: Outcome, machine: dict[str, Any], console: Console) -> None:
    """The loops, the mixes, the missing stores, and the machine."""
    found = cells(outcome)
    if found:
        console.print(_loop_table(outcome, found))
        console.print(_batch_table(outcome, found))
    if found and outcome.options.mixes:
        console.print(_mix_table(outcome, found))
    workload = outcome.options.workload
    console.print(
        f"{workload.records} records, keys of {workload.key_bytes} bytes, values of "
        f"{workload.value_bytes}, {_drawn(workload.theta)} over the records, seed "
        f"{workload.seed}; medians of {outcome.options.rounds} rounds. Latencies include "
        f"{outcome.timer_ns:.0f} ns for the clock. vs LMDB: how many times as fast; vs dict: how "
        "many times the time; vs 1 p.: the rate over that of one process.",
        highlight=False,
    )
    console.print(
        f"{machine['cpu']}, {machine['cores']} cores, {machine['python']}, "
        f"limpet {machine['limpet_build']}. "
        + ", ".join(f"{name} {version}" for name, version in outcome.versions.items()),
        highlight=False,
    )
    for name, reason in outcome.missing.items():
        console.print(Text(f"missing: {name}: {reason}", style="yellow"))
    for name, reason in outcome.failed.items():
        console.print(Text(f"failed: {name}: {reason}", style="red"))


def _loop_table(outcome: Outcome, found: Sequence[Cell]) -> Table:
    scans = any(cell.loop == SCAN for cell in found)
    also = f", scans of {SCAN_LENGTH} keys" if scans else ""
    title = f"Gets only, updates only{also}: time of one in one process"
    return _times(title, outcome, found, LOOPS, scans)


def _batch_table(outcome: Outcome, found: Sequence[Cell]) -> Table:
    title = f"The same, {outcome.options.batch} in one call: time of one of them"
    return _times(title, outcome, found, BATCHES, False)


def _times(
    title: str, outcome: Outcome, found: Sequence[Cell], loops: Sequence[str], scans: bool
) -> Table:
    table = _table(title)
    for loop in loops:
        for heading in (f"{loop}\nus", "vs\nLMDB", "vs\ndict", "vs\n1 p."):
            table.add_column(heading, justify="right", no_wrap=True)
    for heading in (f"{SCAN}\nus", "vs\nLMDB") if scans else ():
        table.add_column(heading, justify="right", no_wrap=True)
    by_key = {(cell.store, cell.processes, cell.loop): cell for cell in found}
    for store in outcome.versions:
        for processes in outcome.options.processes:
            row = [store, str(processes)]
            for loop in loops:
                cell = by_key[store, processes, loop]
                row += [
                    number(cell.ns_per_op / 1000),
                    number(cell.speed_vs_lmdb),
                    number(cell.time_vs_dict),
                    number(cell.scaling),
                ]
            scan = by_key.get((store, processes, SCAN))
            if scans and scan is not None:
                row += [number(scan.ns_per_op / 1000), number(scan.speed_vs_lmdb)]
            table.add_row(*row, end_section=processes == outcome.options.processes[-1])
    _add_absent(table, outcome)
    return table


def _mix_table(outcome: Outcome, found: Sequence[Cell]) -> Table:
    table = _table("YCSB mixes: rate and latencies")
    for heading in (
        "mix",
        "kop/s",
        "vs\nLMDB",
        "vs\n1 p.",
        "get us\nmedian",
        "\np99",
        "update\nmedian",
        "\np99",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    mixes = outcome.options.mixes
    shown = [cell for cell in found if cell.loop in mixes]
    for cell in shown:
        table.add_row(
            cell.store,
            str(cell.processes),
            cell.loop,
            number(cell.kops),
            number(cell.speed_vs_lmdb),
            number(cell.scaling),
            number(cell.get_us_median),
            number(cell.get_us_p99),
            number(cell.update_us_median),
            number(cell.update_us_p99),
            end_section=cell.loop == mixes[-1],
        )
    _add_absent(table, outcome)
    return table


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    table.add_column("store", no_wrap=True)
    table.add_column("proc.", justify="right", no_wrap=True)
    return table


def _add_absent(table: Table, outcome: Outcome) -> None:
    """A line for every store that has no figures; why is said below the tables."""
    for word, names in (("missing", outcome.missing), ("failed", outcome.failed)):
        for name in names:
            table.add_row(name, word)


def number(value: float | None) -> str:
    """Two or three digits that count; a dash for None."""
    if value is None:
        return "-"
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:#.3g}" if value >= 0.1 else f"{value:#.2g}"


def save_chart(outcome: Outcome, machine: dict[str, Any], path: pathlib.Path) -> None:
    """A PNG: time of a get and of an update, and the rate of each mix, by store, on log scales."""
    from matplotlib.figure import Figure

    found = cells(outcome)
    stores = list(outcome.versions)
    least, most = min(outcome.options.processes), max(outcome.options.processes)
    by_key = {(cell.store, cell.processes, cell.loop): cell for cell in found}
    figure = Figure(figsize=(11, 8), layout="constrained")
    times, rates = figure.subplots(2, 1)
    _bars(
        times,
        stores,
        {loop: [by_key[store, least, loop].ns_per_op / 1000 for store in stores] for loop in LOOPS},
    )
    times.set_ylabel("time of an operation (us)")
    times.set_title(f"Gets only and updates only, {_processes(least)} (lower is better)")
    _bars(
        rates,
        stores,
        {
            f"mix {mix}": [by_key[store, most, mix].kops for store in stores]
            for mix in outcome.options.mixes
        },
    )
    rates.set_ylabel("rate of all processes (1000 op/s)")
    rates.set_title(f"YCSB mixes, {_processes(most)} (higher is better)")
    workload = outcome.options.workload
    figure.suptitle(
        f"{workload.records} records, {workload.key_bytes}-byte keys, {workload.value_bytes}-byte "
        f"values, {_drawn(workload.theta)}\n"
        f"{machine['cpu']}, {machine['cores']} cores, {machine['python']}, "
        f"limpet {machine['limpet_build']}",
        fontsize=10,
    )
    figure.savefig(path, format="png", dpi=120)


def save_lines(outcomes: Sequence[Outcome], machine: dict[str, Any], path: pathlib.Path) -> None:
    """A PNG: rates by the number of processes, a row of panels for each outcome, one for each mix.

    With skews 0 and 0.99 and the mixes C, A and W it is LOCO's figure 5.
    """
    from matplotlib.figure import Figure

    options = outcomes[0].options
    figure = Figure(
        figsize=(4 * len(options.mixes), 3.2 * len(outcomes) + 0.8), layout="constrained"
    )
    panels = figure.subplots(len(outcomes), len(options.mixes), squeeze=False)
    for row, outcome in zip(panels, outcomes, strict=True):
        by_key = {(cell.store, cell.processes, cell.loop): cell for cell in cells(outcome)}
        for axes, mix in zip(row, options.mixes, strict=True):
            for index, store in enumerate(outcome.versions):
                rates = [by_key[store, count, mix].kops for count in options.processes]
                color = _COLORS[index % len(_COLORS)]
                axes.plot(options.processes, rates, marker="o", label=store, color=color)
            drawn = _drawn(outcome.options.workload.theta)
            axes.set_title(f"{mix}: {100 * READ_SHARE[mix]:g} % reads, {drawn}")
            axes.set_xticks(options.processes)
            axes.set_ylim(bottom=0)
            axes.grid(linewidth=0.3)
        row[0].set_ylabel("1000 op/s of all processes")
        row[0].legend(fontsize=8)
    for axes in panels[-1]:
        axes.set_xlabel("processes")
    figure.suptitle(
        f"{options.workload.records} records, {options.workload.key_bytes}-byte keys, "
        f"{options.workload.value_bytes}-byte values; {machine['cpu']}, {machine['cores']} cores",
        fontsize=10,
    )
    figure.savefig(path, format="png", dpi=120)


def _drawn(theta: float) -> str:
    """How records are drawn."""
    return f"Zipfian {theta:g}" if theta else "uniform"


def _bars(axes: Axes, stores: Sequence[str], series: dict[str, list[float]]) -> None:
    """Groups of bars, one group a store and one bar a series, each with its figure on top."""
    width = 0.8 / max(len(series), 1)
    for index, (label, values) in enumerate(series.items()):
        places = [place + (index - (len(series) - 1) / 2) * width for place in range(len(stores))]
        bars = axes.bar(places, values, width, label=label, color=_COLORS[index % len(_COLORS)])
        axes.bar_label(bars, [number(value) for value in values], fontsize=7, padding=1)
    axes.set_yscale("log")
    axes.margins(y=0.15)
    axes.set_xticks(range(len(stores)), stores)
    axes.grid(axis="y", linewidth=0.3)
    axes.set_axisbelow(True)
    axes.legend()


def _processes(count: int) -> str:
    return f"{count} process{'es' if count > 1 else ''}"
