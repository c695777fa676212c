"""Output of `limpet demo`: a live table on a terminal, a line a second elsewhere, a summary."""

from __future__ import annotations

import collections
import dataclasses
import time
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from limpet.cli.common import size_text, table, time_text
from limpet.fault.drill.counters import GETS, PUTS, Snapshot
from limpet.fault.drill.demo import DemoParameters, Report
from limpet.fault.inject.supervisor import Progress

PERCENTILES = (50, 99)
WINDOW_S = 1.0
SHOW_EVERY_S = 0.1


class Rates:
    """Operations a second of each slot, over the last WINDOW_S."""

    def __init__(self, slots: int) -> None:
        self._past: collections.deque[tuple[float, list[int]]] = collections.deque()
        self._past.append((0.0, [0] * slots))

    def of(self, progress: Progress) -> list[float]:
        now, counts = progress.elapsed_s, operations(progress)
        while len(self._past) > 1 and self._past[1][0] <= now - WINDOW_S:
            self._past.popleft()
        then, before = self._past[0]
        self._past.append((now, counts))
        span = max(now - then, 1e-9)
        return [(count - past) / span for count, past in zip(counts, before, strict=True)]


class Silent:
    """Shows nothing."""

    def loading(self, done: int, total: int) -> None:
        """Nothing to show."""

    def running(self, progress: Progress) -> None:
        """Nothing to show."""

    def verifying(self, what: str) -> None:
        """Nothing to show."""


class Lines:
    """A line a second, for a log."""

    def __init__(self, console: Console, parameters: DemoParameters) -> None:
        self._console = console
        self._parameters = parameters
        self._rates = Rates(parameters.clients)
        self._next = 0.0

    def loading(self, done: int, total: int) -> None:
        now = time.monotonic()
        if done >= total or now >= self._next:
            self._next = now + 1
            self._console.print(f"loaded {size_text(done)} of {size_text(total)}")

    def running(self, progress: Progress) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + 1
        rate, snapshot = sum(self._rates.of(progress)), progress.snapshot
        self._console.print(
            f"{progress.elapsed_s:5.1f} s  {rate:,.0f} operations/s"
            f"  get p99 {time_text(snapshot.percentile_ns(GETS, 99))}"
            f"  put p99 {time_text(snapshot.percentile_ns(PUTS, 99))}"
            f"  kills {sum(progress.kills)}  repairs {progress.recovered}"
        )

    def verifying(self, what: str) -> None:
        self._console.print(what)


class Screen:
    """A live table. It has no thread, since a process with threads should not fork."""

    def __init__(self, console: Console, parameters: DemoParameters) -> None:
        self._parameters = parameters
        self._rates = Rates(parameters.clients)
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._next = 0.0
        self._table: RenderableType = Text()
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TimeElapsedColumn(),
            auto_refresh=False,
        )
        self._task = self._bar.add_task(f"loading {parameters.data}", total=None)

    def __enter__(self) -> Screen:
        self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.stop()

    def loading(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total)
        now = time.monotonic()
        if done >= total or now >= self._next:
            self._next = now + SHOW_EVERY_S
            self._show(self._bar.get_renderable())

    def running(self, progress: Progress) -> None:
        left = max(0.0, self._parameters.seconds - progress.elapsed_s)
        title = f"{_what(self._parameters)}; {left:.0f} s left"
        self._table = progress_table(title, progress, self._rates.of(progress))
        self._show(self._table)

    def verifying(self, what: str) -> None:
        self._show(Group(self._table, Text(f"{what} ...")))

    def _show(self, what: RenderableType) -> None:
        self._live.update(what, refresh=True)


def progress_table(
    title: str,
    progress: Progress,
    rates: list[float],
    row: str = "worker",
    kinds: tuple[str, str] = ("get", "put"),
) -> Table:
    """One row a worker, and their sum. Latencies are of the whole run."""
    latencies = [f"{kind} p{percent}" for kind in kinds for percent in PERCENTILES]
    columns = ("pid", "operations/s", *latencies, "kills", "repairs", "memory")
    made = table(title, row, *columns, right=columns)
    snapshot = progress.snapshot
    for slot, pid in enumerate(progress.pids):
        made.add_row(
            str(slot),
            str(pid),
            f"{rates[slot]:,.0f}",
            *_latencies(snapshot, slot),
            str(progress.kills[slot]),
            str(progress.repairs[slot]),
            size_text(progress.memory[slot]),
        )
    made.add_section()
    made.add_row(
        "all",
        "",
        f"{sum(rates):,.0f}",
        *_latencies(snapshot, None),
        str(sum(progress.kills)),
        str(progress.recovered),
        size_text(sum(progress.memory)),
    )
    return made


def print_summary(console: Console, report: Report) -> None:
    """What was done and whether it held."""
    seconds, verdict = report.seconds, report.verdict
    elapsed = report.last.elapsed_s
    rates = [count / elapsed for count in operations(report.last)]
    console.print(progress_table(_what(report.parameters), report.last, rates))
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


def to_dict(report: Report) -> dict[str, Any]:
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


def _what(parameters: DemoParameters) -> str:
    return (
        f"{parameters.store}: {parameters.clients} workers, {parameters.seconds:g} s, "
        f"{parameters.kill_rate:g} kills a second, seed {parameters.seed}"
    )


def operations(progress: Progress) -> list[int]:
    """Operations that each slot's workers have completed."""
    snapshot = progress.snapshot
    return [
        snapshot.operations(GETS, slot) + snapshot.operations(PUTS, slot)
        for slot in range(len(progress.pids))
    ]


def latencies_ns(
    snapshot: Snapshot, slot: int | None, kinds: tuple[str, str] = ("get", "put")
) -> dict[str, float | None]:
    """The percentiles of PERCENTILES, of gets and of writes, which are called as `kinds` says."""
    return {
        f"{name}_p{percent}": snapshot.percentile_ns(kind, percent, slot)
        for name, kind in zip(kinds, (GETS, PUTS), strict=True)
        for percent in PERCENTILES
    }


def _latencies(snapshot: Snapshot, slot: int | None) -> list[str]:
    return [time_text(ns) for ns in latencies_ns(snapshot, slot).values()]
