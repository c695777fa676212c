"""The final output and report of the drills. live_view.py shows them while they run."""

from __future__ import annotations

import dataclasses
from typing import Any

from rich.console import Console

from limpet.cli.common import table, time_text
from limpet.cli.live_view import describe, latencies_ns, operations, progress_table
from limpet.fault.drill.drill_base import PERCENTS, RunReport, distribution
from limpet.fault.drill.store_drill import DrillReport

KINDS = ("get", "write")
"""Names of reading and writing operations in the output."""


def print_summary(console: Console, report: DrillReport) -> None:
    """Print the counts of the run and the verdict on each check."""
    last, seconds, counts = report.last, report.seconds, report.counts
    print_clients(console, report, KINDS)
    lines = [
        f"{counts.operations:,} operations in {last.elapsed_s:.1f} s: {counts.missing:,} missing, "
        f"{counts.exists:,} exists, {counts.unknown:,} unknown, {counts.full:,} full",
        faults_text(report, _per_second(report)),
    ]
    lines += [
        f"node {node} lost at {at / 1e9:.2f} s; {report.unserved} of {report.parameters.keys} keys "
        "were on lost nodes"
        for at, node in report.timeline.losses
    ]
    lines.append(
        f"history of {report.judged.operations:,} operations judged in {seconds['judge']:.1f} s: "
        f"{report.judged.verdict.value} ({report.build} build)"
    )
    print_verdict(console, report, lines)


def print_clients(console: Console, report: RunReport, kinds: tuple[str, str]) -> None:
    """Print a row for each client slot."""
    last = report.last
    rates = [count / last.elapsed_s for count in operations(last)]
    console.print(progress_table(describe(report.parameters), last, rates, kinds))


def faults_text(report: RunReport, per_second: str = "") -> str:
    """The clients that the supervisor killed and stopped, in a line."""
    return (
        f"{report.kills} kills ({report.watcher_kills} of the watcher), "
        f"{per_second}{report.last.stops} stops, {report.fenced} fenced, "
        f"{report.restarts} restarts; {len(report.recovered.get('clients', ()))} clients left for "
        "the end to recover"
    )


def print_verdict(
    console: Console, report: RunReport, lines: list[str], what: str = "drill"
) -> None:
    """Print the `lines`, the delays of recovery, and each check's verdict. `what`: the drill."""
    if report.events_missed:
        lines = [*lines, f"{report.events_missed} events of the pool were missed: delays lack them"]
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)
    columns = ("deaths", *(f"p{percent}" if percent < 100 else "max" for percent in PERCENTS))
    delays = table("from SIGKILL until the client was", "", *columns, right=columns)
    for name, found in _delays(report).items():
        times = (time_text(found[f"p{percent}"]) for percent in PERCENTS)
        delays.add_row(name, str(found["count"]), *times)
    console.print(delays)
    for name, failures in report.checks.items():
        console.print(f"[green]held  [/]  {name}" if not failures else f"[red]FAILED[/]  {name}")
        for text in failures:
            console.print(f"        {text}", markup=False, soft_wrap=True)
    console.print(
        "[bold green]Everything held.[/]" if report.ok else f"[bold red]The {what} failed.[/]"
    )


def _per_second(report: DrillReport) -> str:
    counts = report.kills_in_a_second
    return f"{min(counts)} to {max(counts)} in each second, " if counts else ""


def _delays(report: RunReport) -> dict[str, dict[str, float | int | None]]:
    return {
        name: distribution(samples) for name, samples in dataclasses.asdict(report.delays).items()
    }


def to_dict(report: DrillReport) -> dict[str, Any]:
    """The report for --json; times in ns, sizes in bytes."""
    return {
        **run_dict(report, KINDS),
        "counts": dataclasses.asdict(report.counts),
        "operations_per_s": report.counts.operations / report.last.elapsed_s,
        "kills_in_a_second": report.kills_in_a_second,
        "losses": [{"at_ns": at, "node": node} for at, node in report.timeline.losses],
        "unserved_keys": report.unserved,
        "history": report.judged.as_dict(),
    }


def run_dict(report: RunReport, kinds: tuple[str, str]) -> dict[str, Any]:
    """The JSON fields that every drill reports."""
    return {
        "ok": report.ok,
        "parameters": report.parameters.to_dict(),
        "build": report.build,
        "seconds": report.seconds,
        "elapsed_s": report.last.elapsed_s,
        "latency_ns": latencies_ns(report.last.snapshot, None, kinds),
        "kills": report.kills,
        "watcher_kills": report.watcher_kills,
        "stops": report.last.stops,
        "fenced": report.fenced,
        "restarts": report.restarts,
        "delays_ns": _delays(report),
        "events_missed": report.events_missed,
        "recovered": report.recovered,
        "audit": report.audit,
        "checks": {
            name: {"held": not texts, "failures": texts} for name, texts in report.checks.items()
        },
    }
