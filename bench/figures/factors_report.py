"""`limpet bench factors`: its table, beside the paper's numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from limpet.bench.figures.factors import DTX, Factor
from limpet.cli.common import table, time_text


def as_json(found: Sequence[Factor]) -> list[dict[str, Any]]:
    """All of it."""
    return [dataclasses.asdict(one) for one in found]


def factors_table(found: Sequence[Factor]) -> Table:
    """Figures 16 and 17."""
    numbers = (
        "RTT", "read B", "written", "CAS", "latency", "x", "paper", "inserts/s", "x ", "paper ",
        "RTT ",
    )  # fmt: skip
    title = f"figures 16 and 17: 100 % inserts, one client and {found[0].clients}, virtual time"
    shown = table(title, "step", "store", *numbers, right=numbers)
    before: Factor | None = None
    for one in found:
        alone, step = one.alone, one.step
        if step is DTX:
            before = None
        shown.add_row(
            step.name, step.kind, f"{alone.round_trips:.2f}", f"{alone.bytes_read:,.0f}",
            f"{alone.bytes_written:,.0f}", f"{alone.atomics:.2f}", time_text(alone.mean_ns),
            _factor(alone.mean_ns / before.alone.mean_ns if before else None),
            _factor(step.latency), f"{one.throughput:,.0f}",
            _factor(one.throughput / before.throughput if before else None),
            _factor(step.throughput), f"{one.together.round_trips:.2f}",
        )  # fmt: skip
        before = one
    shown.caption = (
        "Up to latency: means of an insert by one client, with splits, the log's header, and what "
        "is done twice because no memory was ready. x: over the step before. Last RTT: with all "
        "clients, who meet each other. DTX is no step: the log without the idempotent commit, as "
        "in table 2. The paper's +Opt1 is with +Opt2."
    )
    return shown


def _factor(factor: float | None) -> str:
    return "-" if factor is None else f"{factor:.2f}"
