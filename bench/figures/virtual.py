"""YCSB's mixes in virtual time: many clients of a store on the clock of a latency model.

The simulator is that of `limpet drill latency` (limpet/fault/explore/sim_time.py). Equal arguments
give equal figures on any machine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from limpet.bench.peers.ycsb import READ_SHARE
from limpet.fault.explore.sim_latency import PRESETS
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
    ops: int,
    keys: int,
    nodes: int,
    seed: int,
    parameters: Mapping[str, Any],
) -> Iterator[Cell]:
    """Run each store with each mix and number of clients; `ops` operations of each client."""
    if wrong := set(mixes) - set(READ_SHARE):
        raise ParameterError(f"there is no mix {min(wrong)}; there is {', '.join(READ_SHARE)}")
    for store in stores:
        for mix in mixes:
            for count in clients:
                workload = Workload(
                    store, count, ops, keys, write_share=1 - READ_SHARE[mix], nodes=nodes,
                    seed=seed, parameters=parameters,
                )  # fmt: skip
                yield Cell(store, mix, count, run_timed(workload, PRESETS[profile]))
