"""`limpet bench overhead`: its tables, beside the paper's numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from rich.table import Table

from limpet.bench.figures.overhead import DESIGNS, DTX, OF_FIGURE_13, OPTIMAL, RTX, Row
from limpet.cli.common import table, time_text


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """All of it."""
    return [dataclasses.asdict(row) for row in rows]


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Figures 11 and 12, what one client waits, and figure 13."""
    most = max(row.clients for row in rows)
    yield _throughput([row for row in rows if row.clients == most], most)
    yield _alone([row for row in rows if row.clients == 1])
    curve = [row for row in rows if (row.index, row.mix) == OF_FIGURE_13]
    if curve:
        yield _curve(curve)


def _throughput(rows: Sequence[Row], clients: int) -> Table:
    numbers = ("Optimal, ops/s", "DTX", "rTX", "paper: rTX", "rTX / DTX", "paper")
    shown = table(
        f"figures 11 and 12: throughput of {_clients(clients)}, and shares of Optimal's",
        "index", "keys", "mix", *numbers, right=numbers,
    )  # fmt: skip
    for row in rows:
        paper = row.paper
        shown.add_row(
            row.index, _drawn(row.theta), row.mix, f"{row.throughput[OPTIMAL]:,.0f}",
            f"{row.share[DTX]:.0%}", f"{row.share[RTX]:.0%}",
            "-" if paper.share is None else f"{paper.share:.0%}",
            f"{row.share[RTX] / row.share[DTX]:.2f}", paper.over_dtx or "-",
        )  # fmt: skip
    shown.caption = (
        "Virtual time. Modelled: a memory node is one queue, which serves so many verbs and bytes "
        "a second; atomics on one word wait for each other. Not modelled: that they keep reads "
        "waiting, too, to which the paper puts down its skewed A and B; computing. All clients "
        "are at work: the time counts until the first is done. -: the paper's text has no number."
    )
    return shown


def _alone(rows: Sequence[Row]) -> Table:
    numbers = ("Optimal", "DTX", "rTX", "paper: rTX")
    shown = table(
        "one client: mean latency, and over Optimal's",
        "index", "keys", "mix", *numbers, right=numbers,
    )  # fmt: skip
    for row in rows:
        shown.add_row(
            row.index, _drawn(row.theta), row.mix, time_text(row.latency_ns[OPTIMAL]),
            f"{row.times[DTX]:.2f}", f"{row.times[RTX]:.2f}", row.paper_latency or "-",
        )  # fmt: skip
    return shown


def _curve(rows: Sequence[Row]) -> Table:
    numbers = ("clients", *(f"{design}{unit}" for design in DESIGNS for unit in (", ops/s", "")))
    shown = table(
        "figure 13: trees, mix A, throughput and mean latency", "keys", *numbers, right=numbers
    )
    for row in rows:
        shown.add_row(
            _drawn(row.theta), str(row.clients),
            *(
                text
                for design in DESIGNS
                for text in (f"{row.throughput[design]:,.0f}", time_text(row.latency_ns[design]))
            ),
        )  # fmt: skip
    return shown


def _drawn(theta: float) -> str:
    return f"Zipf {theta:g}" if theta else "uniform"


def _clients(count: int) -> str:
    return "one client" if count == 1 else f"{count} clients"
