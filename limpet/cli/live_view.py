"""Live views of demo and drills: a table on a terminal, a line a second elsewhere."""

from __future__ import annotations

import collections
import time
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import Progress as Bar
from rich.progress import ProgressColumn
from rich.table import Table
from rich.text import Text

from limpet.cli.common import size_text, table, time_text
from limpet.fault.drill.counters import GETS, PUTS, Snapshot
from limpet.fault.inject.supervisor import Progress

if TYPE_CHECKING:
    from typing_extensions import Self

PERCENTILES = (50, 99)
WINDOW_S = 1.0
SHOW_EVERY_S = 0.1


class Due:
    """Limits how often something is shown: once in `interval_s`."""

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


class LiveLines:
    """A line a second, for a log."""

    def __init__(self, console: Console, clients: int, kinds: tuple[str, str]) -> None:
        self._console = console
        self._kinds = kinds
        self._rates = Rates(clients)
        self._due = Due(1.0)

    def running(self, progress: Progress) -> None:
        if self._due():
            read, write = self._kinds
            self._console.print(
                f"{progress.elapsed_s:5.1f} s  {sum(self._rates.of(progress)):,.0f} operations/s"
                f"  {read} p99 {time_text(progress.snapshot.percentile_ns(GETS, 99))}"
                f"  {write} p99 {time_text(progress.snapshot.percentile_ns(PUTS, 99))}"
                f"  {self.faults(progress)}"
            )

    def verifying(self, what: str) -> None:
        self._console.print(what, markup=False)

    def faults(self, progress: Progress) -> str:
        """The faults so far, in a line."""
        raise NotImplementedError


class LiveScreen:
    """A live table. It has no thread, since a process with threads should not fork.

    `row`: the name of the rows' clients. `kinds`: names of reading and writing operations.
    """

    def __init__(
        self, console: Console, clients: int, row: str, kinds: tuple[str, str],
        *columns: str | ProgressColumn,
    ) -> None:  # fmt: skip
        self._row = row
        self._kinds = kinds
        self._rates = Rates(clients)
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._due = Due(SHOW_EVERY_S)
        self._table: RenderableType = Text()
        self._bar = Bar(*columns, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.stop()

    def verifying(self, what: str) -> None:
        self.show(self._table, Text(f"{what} ..."))

    def clients(self, title: str, progress: Progress) -> Table:
        """The table of the clients."""
        rates = self._rates.of(progress)
        return progress_table(title, progress, rates, self._row, self._kinds)

    def show(self, *parts: RenderableType) -> None:
        self._live.update(Group(*parts), refresh=True)


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
    """The percentiles of PERCENTILES, of gets and of writes, with the names in `kinds`."""
    return {
        f"{name}_p{percent}": snapshot.percentile_ns(kind, percent, slot)
        for name, kind in zip(kinds, (GETS, PUTS), strict=True)
        for percent in PERCENTILES
    }


def _latencies(snapshot: Snapshot, slot: int | None) -> list[str]:
    return [time_text(ns) for ns in latencies_ns(snapshot, slot).values()]
