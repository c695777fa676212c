"""Output of `limpet demo`: a live table on a terminal, a line a second elsewhere, a summary."""

from __future__ import annotations

import dataclasses
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeElapsedColumn

from limpet.cli.common import size_text
from limpet.cli.live_view import LiveLines, LiveScreen, latencies_ns, operations, progress_table
from limpet.fault.drill.demo import DemoParameters, DemoReport
from limpet.fault.inject.supervisor import Progress

KINDS = ("get", "put")
"""Names of reading and writing operations in the output."""


class Silent:
    """Shows nothing."""

    def loading(self, done: int, total: int) -> None:
        """Nothing to show."""

    def running(self, progress: Progress) -> None:
        """Nothing to show."""

    def verifying(self, what: str) -> None:
        """Nothing to show."""


class Lines(LiveLines):
    """A line a second, for a log."""

    def __init__(self, console: Console, parameters: DemoParameters) -> None:
        super().__init__(console, parameters.clients, KINDS)

    def loading(self, done: int, total: int) -> None:
        if self._due(done >= total):
            self._console.print(f"loaded {size_text(done)} of {size_text(total)}")

    def faults(self, progress: Progress) -> str:
        return f"kills {sum(progress.kills)}  repairs {progress.recovered}"


class Screen(LiveScreen):
    """A bar while the store is loaded, then a live table."""

    def __init__(self, console: Console, parameters: DemoParameters) -> None:
        super().__init__(
            console, parameters.clients, "worker", KINDS, TextColumn("{task.description}"),
            BarColumn(), DownloadColumn(binary_units=True), TimeElapsedColumn(),
        )  # fmt: skip
        self._parameters = parameters
        self._task = self._bar.add_task(f"loading {parameters.data}", total=None)

    def loading(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total)
        if self._due(done >= total):
            self.show(self._bar.get_renderable())

    def running(self, progress: Progress) -> None:
        left = max(0.0, self._parameters.seconds - progress.elapsed_s)
        self._table = self.clients(f"{describe(self._parameters)}; {left:.0f} s left", progress)
        self.show(self._table)


def print_summary(console: Console, report: DemoReport) -> None:
    """Print the counts of the run and the verdict on each check."""
    seconds, verdict = report.seconds, report.verdict
    elapsed = report.last.elapsed_s
    rates = [count / elapsed for count in operations(report.last)]
    console.print(progress_table(describe(report.parameters), report.last, rates))
    console.print(
        f"{report.files} files, {size_text(report.size)}, loaded in {seconds['load']:.1f} s; "
        f"{verdict.reads} reads and {verdict.writes} writes in {seconds['run']:.1f} s, "
        f"{verdict.interrupted} of the writes interrupted; {report.kills} kills; "
        f"verified in {seconds['verify']:.1f} s ({report.build} build)",
        soft_wrap=True,
    )
    for text in report.skipped:
        console.print(f"skipped {text}", markup=False, soft_wrap=True)
    for name, failures in report.checks.items():
        console.print(f"[green]held  [/]  {name}" if not failures else f"[red]FAILED[/]  {name}")
        for text in failures:
            console.print(f"        {text}", markup=False, soft_wrap=True)
    console.print(
        "[bold green]Everything held.[/]" if report.ok else "[bold red]The demo failed.[/]"
    )


def to_dict(report: DemoReport) -> dict[str, Any]:
    """The report for --json; latencies in ns, sizes in bytes."""
    last, snapshot = report.last, report.last.snapshot
    return {
        "ok": report.ok,
        "parameters": report.parameters.to_dict(),
        "build": report.build,
        "files": report.files,
        "bytes": report.size,
        "skipped": report.skipped,
        "seconds": report.seconds,
        "kills": report.kills,
        "restarts": report.restarts,
        "repairs": last.recovered,
        "operations": sum(operations(last)),
        "operations_per_s": sum(operations(last)) / last.elapsed_s,
        "latency_ns": latencies_ns(snapshot, None),
        "workers": [
            {
                "pid": pid,
                "operations": operations(last)[slot],
                "latency_ns": latencies_ns(snapshot, slot),
                "kills": last.kills[slot],
                "repairs": last.repairs[slot],
                "memory": last.memory[slot],
            }
            for slot, pid in enumerate(last.pids)
        ],
        "verdict": dataclasses.asdict(report.verdict),
        "recovered": report.recovered,
        "audit": report.audit,
        "checks": {
            name: {"held": not texts, "failures": texts} for name, texts in report.checks.items()
        },
    }


def describe(parameters: DemoParameters) -> str:
    """The demo in a line."""
    return (
        f"{parameters.store}: {parameters.clients} workers, {parameters.seconds:g} s, "
        f"{parameters.kill_rate:g} kills a second, seed {parameters.seed}"
    )
