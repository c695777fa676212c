"""YCSB's mixes in virtual time: many clients of a store on the clock of a latency model.

The simulator is that of `limpet drill latency` (limpet/fault/explore/sim_time.py). Equal arguments
give equal figures on any machine. `said` and `load` are for the entries of papers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final

from limpet.bench.figures.entries import Point, Value
from limpet.bench.peers.ycsb import READ_SHARE
from limpet.fault.explore.sim_latency import model_with
from limpet.fault.explore.sim_time import TimedReport, Workload, run_timed
from limpet.shm.errors import ParameterError

INSERTS: Final = "I"
"""The mix of inserts alone, of new keys."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """One store, mix and number of clients; `report` has the figures."""

    store: str
    mix: str
    clients: int
    report: TimedReport


def run(
    stores: tuple[str, ...],
    mixes: tuple[str, ...],
    clients: tuple[int, ...],
    profile: str,
    *,
    changes: Mapping[str, float],
    parameters: Mapping[str, Any],
    **workload: Any,
) -> Iterator[Cell]:
    """Run each store with each mix and number of clients, and what else is in the workload.

    `changes` of the model; a parameter KIND.NAME is of stores of that kind.
    """
    model = model_with(profile, changes)
    if wrong := set(mixes) - {*READ_SHARE, INSERTS}:
        there = ", ".join((*READ_SHARE, INSERTS))
        raise ParameterError(f"there is no mix {min(wrong)}; there is {there}")
    if wrong := {name.partition(".")[0] for name in parameters if "." in name} - set(stores):
        raise ParameterError(f"a parameter is of {min(wrong)}, which is not run")
    cells = []
    for store in stores:
        own = {
            name.rpartition(".")[2]: value
            for name, value in parameters.items()
            if name.rpartition(".")[0] in ("", store)
        }
        for mix in mixes:
            for count in clients:
                one = Workload(
                    store,
                    count,
                    write_share=1 - READ_SHARE.get(mix, 0.0),
                    fresh=mix == INSERTS,
                    parameters=own,
                    **workload,
                )
                cells.append((store, mix, count, one.on_testbed()))
    for store, mix, count, one in cells:
        yield Cell(store, mix, count, run_timed(one, model))


# ---- points of entries ---------------------------------------------------------------------------

LOWER: Final[Value] = (0.0, 0.95)
HIGHER: Final[Value] = (1.06, 1000.0)
SAME: Final[Value] = (0.95, 1.05)
"""Bounds of a ratio to 1, where a text says which one is larger, and not by how much."""


def said(report: TimedReport) -> dict[str, Any]:
    """The parameters of a run."""
    one = report.workload
    return {"clients": one.clients, "operations of each": one.ops, "keys": one.keys}


def load(report: TimedReport, name: str) -> list[Point]:
    """The counts from which a throughput follows."""
    return [
        Point("bytes an operation", name, report.wire_bytes),
        Point("messages an operation", name, report.messages),
        Point("busiest node serves, share of the time", name, report.node_busy),
    ]


def over(group: str, values: Mapping[str, float], papers: Mapping[str, Value]) -> list[Point]:
    """The values over the first one, whose own is 1."""
    base = next(iter(values.values()))
    return [
        Point(group, name, value / base, papers.get(name) if number else 1.0)
        for number, (name, value) in enumerate(values.items())
    ]
