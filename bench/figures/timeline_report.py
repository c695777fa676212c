"""`limpet bench timeline`: its table, its charts of text, and the files that it writes."""

from __future__ import annotations

import csv
import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.table import Table

from limpet.bench.figures.timeline import BLOCKED_MS, GROWTH, INSERT, Result
from limpet.cli.common import table

BARS: Final = " ▁▂▃▄▅▆▇█"
BEFORE_MS: Final = 20
AFTER_MS: Final = 60
WIDTH: Final = 80
WITHOUT_POINT: Final = {INSERT: "half-way", GROWTH: "in a long one"}
PAPER: Final = {
    INSERT: "The paper (figure 14): rTX shows no collapse in 1 ms buckets, DTX a drop of about its "
    "detection interval, 8 ms; of Optimal, one client after another is blocked.",
    GROWTH: "The paper (figure 15): rTX recovers in 185 ms, and rehashes in 200 ms, RACE in 1.3 s; "
    "DTX is like rTX, and not drawn; of RACE (Optimal), one client after another is blocked.",
}


def results_table(found: Sequence[Result]) -> Table:
    """A row for each run."""
    numbers = ("before", "after", "gap", "unlocked", "recovered", "slowest", "blocked")
    first = found[0]
    shown = table(
        f"one of {first.clients} clients is killed in the midst of "
        f"{'an' if first.moment == INSERT else 'a'} {first.moment}; inserts/s",
        "store", "killed", *numbers, right=numbers,
    )  # fmt: skip
    for one in found:
        shown.add_row(
            one.store, one.point or WITHOUT_POINT[one.moment],
            f"{one.before:,.0f}", f"{one.after:,.0f}",
            f"{one.gap_ms} ({one.gap_before_ms}) ms", _ms(one.unlocked_ms), _ms(one.recovered_ms),
            f"{one.longest_after_ms:.1f} ({one.longest_before_ms:.1f}) ms",
            f"{one.blocked} of {one.clients - 1}",
        )  # fmt: skip
    shown.caption = (
        "gap: longest run of 1 ms buckets after the kill in which the survivors did less than half "
        "of their mean before it. unlocked, recovered: after the kill; a client must meet the lock "
        "first. slowest: insert of a survivor. In brackets: the same before the kill, which is the "
        f"scheduler's. blocked: survivors without an insert in the last {BLOCKED_MS} ms, or that "
        f"raised an error. {PAPER[first.moment]}"
    )
    return shown


def _ms(ms: float | None) -> str:
    return "-" if ms is None else f"{ms:.1f} ms"


def charts(one: Result) -> Iterator[str]:
    """Lines: the buckets around the kill, and the whole run; `|` is the kill."""
    kill = int(one.killed_ms)
    low, high = max(0, kill - BEFORE_MS), min(len(one.buckets), kill + AFTER_MS)
    top = max(1, int(np.percentile(one.buckets, 95)))
    yield f"{one.store}: 1 ms buckets, {kill - low} ms before the kill and {high - kill} after it"
    near = _bars(one.buckets[low:kill], top) + "|" + _bars(one.buckets[kill:high], top)
    yield f"  {near}  {BARS[-1]} = {top:,}"
    width = -(-len(one.buckets) // WIDTH)
    sums = np.add.reduceat(one.buckets, np.arange(0, len(one.buckets), width)) / width
    cut = kill // width
    all_of_it = _bars(sums[:cut], top) + "|" + _bars(sums[cut:], top)
    yield f"  {all_of_it}  all of it, {width} ms each"
    if one.blocked_at_ms:
        yield f"  blocked after {', '.join(f'{at:.1f}' for at in one.blocked_at_ms)} ms"
    for error, count in Counter(one.errors).items():
        yield f"  {count} of the survivors: {error}"


def _bars(counts: Sequence[float] | Any, top: int) -> str:
    levels = len(BARS) - 1
    return "".join(BARS[min(levels, int(np.ceil(levels * count / top)))] for count in counts)


def as_json(found: Sequence[Result]) -> list[dict[str, Any]]:
    """All of it."""
    return [dataclasses.asdict(one) for one in found]


def save_csv(found: Sequence[Result], path: Path) -> None:
    """A line for each bucket of each run; its time is from the kill on."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("store", "moment", "run", "ms", "inserts", "of survivors"))
        for number, one in enumerate(found):
            kill = int(one.killed_ms)
            for index, pair in enumerate(zip(one.buckets, one.survivors, strict=True)):
                writer.writerow((one.store, one.moment, number, index - kill, *pair))


def save_plot(found: Sequence[Result], path: Path) -> None:
    """The buckets around the kill, a panel for each run. Needs matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 2.2 * len(found)), layout="constrained")
    panels = figure.subplots(len(found), sharex=True, squeeze=False)[:, 0]
    for axes, one in zip(panels, found, strict=True):
        times = np.arange(len(one.buckets)) - one.killed_ms
        axes.plot(times, one.buckets, drawstyle="steps-post", lw=0.8, color="tab:blue")
        axes.axvline(0, color="tab:red", lw=1)
        axes.set(title=f"{one.store}, killed in its {one.moment}", ylabel="inserts a ms",
                 xlim=(-5 * BEFORE_MS, 5 * AFTER_MS), ylim=(0, None))  # fmt: skip
    panels[-1].set_xlabel("ms after the kill")
    figure.savefig(path, format="png", dpi=100)
