"""Output of `limpet drill STORE`: a live table on a terminal, lines elsewhere, a summary."""

from __future__ import annotations

import dataclasses
from typing import Any

from rich.console import Console, Group
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from limpet.cli.common import table, time_text
from limpet.cli.live_view import LiveLines, LiveScreen, latencies_ns, operations, progress_table
from limpet.fault.drill.drill_base import PERCENTS, RunParameters, RunReport, distribution
from limpet.fault.drill.store_drill import DrillReport
from limpet.fault.inject.supervisor import Progress

KINDS = ("get", "write")
"""Names of reading and writing operations in the output."""


class Silent:
    """Shows nothing."""

    def running(self, progress: Progress) -> None:
        """Nothing to show."""

    def verifying(self, what: str) -> None:
        """Nothing to show."""

    def judging(self, done: int, total: int) -> None:
        """Nothing to show."""


class Lines(LiveLines):
    """A line a second, for a log."""

    def __init__(
        self, console: Console, parameters: RunParameters, kinds: tuple[str, str] = KINDS
    ) -> None:
        super().__init__(console, parameters.clients, kinds)

    def judging(self, done: int, total: int) -> None:
        if self._due():
            self._console.print(f"judged {done:,} of {total:,} operations")

    def faults(self, progress: Progress) -> str:
        return _faults(progress)


class Screen(LiveScreen):
    """A live table, then a bar while the history is judged."""

    def __init__(
        self, console: Console, parameters: RunParameters, kinds: tuple[str, str] = KINDS
    ) -> None:
        super().__init__(
            console, parameters.clients, "client", kinds, TextColumn("judging the history"),
            BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        )  # fmt: skip
        self._parameters = parameters
        self._task = self._bar.add_task("", total=None)

    def running(self, progress: Progress) -> None:
        left = max(0.0, self._parameters.seconds - progress.elapsed_s)
        clients = self.clients(f"{describe(self._parameters)}; {left:.0f} s left", progress)
        self._table = Group(clients, Text(_faults(progress)))
        self.show(self._table)

    def judging(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total)
        if self._due(done >= total):
            self.show(self._table, self._bar.get_renderable())


def describe(parameters: RunParameters) -> str:
    """The drill in a line."""
    return (
        f"{parameters.store}: {parameters.clients} clients, {parameters.seconds:g} s, "
        f"{parameters.kill_rate:g} kills and {parameters.stop_rate:g} stops a second, "
        f"seed {parameters.seed}"
    )


def _faults(progress: Progress) -> str:
    return (
        f"kills {progress.killed}  stops {progress.stops}  fenced {progress.fenced}"
        f"  repairs {progress.recovered}"
    )


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
    console.print(progress_table(describe(report.parameters), last, rates, "client", kinds))


def faults_text(report: RunReport, per_second: str = "") -> str:
    """The clients that the supervisor killed and stopped, in a line."""
    return (
        f"{report.kills} kills ({report.watcher_kills} of the watcher), "
        f"{per_second}{report.last.stops} stops, {report.fenced} fenced, "
        f"{report.restarts} restarts; {len(report.recovered.get('clients', ()))} clients left for "
        "the end to recover"
    )


def print_verdict(console: Console, report: RunReport, lines: list[str]) -> None:
    """The `lines`, how long recovery took, and what held."""
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
        "[bold green]Everything held.[/]" if report.ok else "[bold red]The drill failed.[/]"
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
