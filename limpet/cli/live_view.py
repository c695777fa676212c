"""The live view of the drills and the demo: a table on a terminal, a line a second elsewhere.

Each view is an `Observer` (fault/drill/drill_base.py, demo.py), which receives a drill's progress.
"""

from __future__ import annotations

import collections
import time
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from limpet.cli.common import size_text, table, time_text
from limpet.fault.drill.drill_base import RunParameters
from limpet.fault.inject.counters import GETS, PUTS, Snapshot
from limpet.fault.inject.supervisor import Progress

if TYPE_CHECKING:
    from typing_extensions import Self

PERCENTILES = (50, 99)
WINDOW_S = 1.0
SHOW_EVERY_S = 0.1


class Due:
    """Limits how often a view is updated: once in `interval_s`."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._next = 0.0

    def __call__(self, always: bool = False) -> bool:
        """Whether to show it now; `always`: in any case."""
        now = time.monotonic()
        if not always and now < self._next:
            return False
        self._next = now + self._interval_s
        return True


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

    def judging(self, done: int, total: int) -> None:
        """Nothing to show."""


class Lines:
    """A line a second, for a log. `kinds`: names of reading and writing operations."""

    def __init__(self, console: Console, parameters: RunParameters, kinds: tuple[str, str]) -> None:
        self._console = console
        self._kinds = kinds
        self._rates = Rates(parameters.clients)
        self._due = Due(1.0)

    def loading(self, done: int, total: int) -> None:
        if self._due(done >= total):
            self._console.print(f"loaded {size_text(done)} of {size_text(total)}")

    def running(self, progress: Progress) -> None:
        if self._due():
            read, write = self._kinds
            self._console.print(
                f"{progress.elapsed_s:5.1f} s  {sum(self._rates.of(progress)):,.0f} operations/s"
                f"  {read} p99 {time_text(progress.snapshot.percentile_ns(GETS, 99))}"
                f"  {write} p99 {time_text(progress.snapshot.percentile_ns(PUTS, 99))}"
                f"  {_faults(progress)}"
            )

    def verifying(self, what: str) -> None:
        self._console.print(what, markup=False)

    def judging(self, done: int, total: int) -> None:
        if self._due():
            self._console.print(f"judged {done:,} of {total:,} operations")


class Screen:
    """A live table, and a bar while a store is loaded or a history judged.

    It has no thread, since a process with threads should not fork. `kinds`: as of `Lines`.
    """

    def __init__(self, console: Console, parameters: RunParameters, kinds: tuple[str, str]) -> None:
        self._parameters = parameters
        self._kinds = kinds
        self._rates = Rates(parameters.clients)
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._due = Due(SHOW_EVERY_S)
        self._table: RenderableType = Text()
        self._bars: dict[str, Bar] = {}

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.stop()

    def loading(self, done: int, total: int) -> None:
        self._show_bar("loading", DownloadColumn(binary_units=True), done, total)

    def running(self, progress: Progress) -> None:
        left = max(0.0, self._parameters.seconds - progress.elapsed_s)
        title = f"{describe(self._parameters)}; {left:.0f} s left"
        rates = self._rates.of(progress)
        clients = progress_table(title, progress, rates, self._kinds)
        self._table = Group(clients, Text(_faults(progress)))
        self._show(self._table)

    def verifying(self, what: str) -> None:
        self._show(self._table, Text(f"{what} ..."))

    def judging(self, done: int, total: int) -> None:
        self._show_bar("judging the history", MofNCompleteColumn(), done, total)

    def _show_bar(self, what: str, count: ProgressColumn, done: int, total: int) -> None:
        """Show, below the table, how much is done."""
        bar = self._bars.get(what)
        if bar is None:
            columns = (TextColumn(what), BarColumn(), count, TimeElapsedColumn())
            bar = self._bars[what] = Bar(*columns, auto_refresh=False)
            bar.add_task("", total=total)
        bar.update(bar.task_ids[0], completed=done, total=total)
        if self._due(done >= total):
            self._show(self._table, bar.get_renderable())

    def _show(self, *parts: RenderableType) -> None:
        self._live.update(Group(*parts), refresh=True)


def describe(parameters: RunParameters) -> str:
    """The drill in a line."""
    stops = f" and {parameters.stop_rate:g} stops" if parameters.stop_rate else ""
    return (
        f"{parameters.store}: {parameters.clients} clients, {parameters.seconds:g} s, "
        f"{parameters.kill_rate:g} kills{stops} a second, seed {parameters.seed}"
    )


def _faults(progress: Progress) -> str:
    return (
        f"kills {progress.killed}  stops {progress.stops}  fenced {progress.fenced}"
        f"  repairs {progress.recovered}"
    )


def progress_table(
    title: str, progress: Progress, rates: list[float], kinds: tuple[str, str]
) -> Table:
    """One row a client, and their sum. Latencies are of the whole run."""
    latencies = [f"{kind} p{percent}" for kind in kinds for percent in PERCENTILES]
    columns = ("pid", "ops/s", *latencies, "kills", "repairs", "memory")
    made = table(title, "#", *columns, right=columns)
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


def operations(progress: Progress) -> list[int]:
    """Operations that each slot's clients have completed."""
    snapshot = progress.snapshot
    return [
        snapshot.operations(GETS, slot) + snapshot.operations(PUTS, slot)
        for slot in range(len(progress.pids))
    ]


def latencies_ns(
    snapshot: Snapshot, slot: int | None, kinds: tuple[str, str] = ("get", "put")
) -> dict[str, float | None]:
    """The percentiles of PERCENTILES, of gets and of writes, with the names in `kinds`."""
    return {
        f"{name}_p{percent}": snapshot.percentile_ns(kind, percent, slot)
        for name, kind in zip(kinds, (GETS, PUTS), strict=True)
        for percent in PERCENTILES
    }


def _latencies(snapshot: Snapshot, slot: int | None) -> list[str]:
    return [time_text(ns) for ns in latencies_ns(snapshot, slot).values()]
