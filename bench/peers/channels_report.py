"""`limpet bench channels`: its table."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from limpet.bench.peers.channels import LIMPET, Result
from limpet.bench.peers.mpi import MPI
from limpet.cli.common import table, time_text


def results_table(found: Sequence[Result]) -> Table:
    """A row for each contender."""
    numbers = ("processes", "operations/s", "each", "limpet is")
    shown = table("channels against their peers", "case", "", *numbers, right=numbers)
    for one in found:
        ours = one.contender in (LIMPET, MPI)
        name = one.contender if ours else f"multiprocessing.{one.contender}"
        if one.per_second is None or one.each_us is None:
            shown.add_row(one.case, name, str(one.processes), "missing", "", "")
            continue
        shown.add_row(
            one.case, name, str(one.processes), f"{one.per_second:,.0f}",
            time_text(1000 * one.each_us), "" if one.ratio is None else f"{one.ratio:.1f}x",
        )  # fmt: skip
    shown.caption = (
        "Operations of all processes: an acquisition, a meeting of all, an item that one has put "
        "and another got, an item that was passed on, an item that was sent to all, an addition, "
        "a transfer. "
        "limpet is: so many times as fast, the median over rounds of one after the other."
    )
    return shown


def missing(found: Sequence[Result]) -> dict[str, str]:
    """Why a contender was not run and how to get it, by its name."""
    return {one.contender: one.missing for one in found if one.missing is not None}


def as_json(found: Sequence[Result]) -> list[dict[str, Any]]:
    """All of it."""
    return [dataclasses.asdict(one) for one in found]
