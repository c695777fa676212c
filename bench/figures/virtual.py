"""YCSB's mixes in virtual time: many clients of a store on the clock of a latency model.

The simulator is that of `limpet drill latency` (limpet/fault/explore/sim_time.py). Equal arguments
give equal figures on any machine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from limpet.bench.peers.ycsb import READ_SHARE
from limpet.fault.explore.sim_latency import model_with
from limpet.fault.explore.sim_time import TimedReport, Workload, run_timed
from limpet.shm.errors import ParameterError


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
    if wrong := set(mixes) - set(READ_SHARE):
        raise ParameterError(f"there is no mix {min(wrong)}; there is {', '.join(READ_SHARE)}")
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
                    store, count, write_share=1 - READ_SHARE[mix], parameters=own, **workload
                )
                cells.append((store, mix, count, one.on_testbed()))
    for store, mix, count, one in cells:
        yield Cell(store, mix, count, run_timed(one, model))
