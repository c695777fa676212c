"""The cost of repairable transactions under YCSB's mixes (rTX section 6.2, figures 11-13).

Of each index there are the three designs that the paper compares: as it was ("Optimal"), by
distributed transactions ("DTX") and by repairable ones ("rTX"). The mixes are those of its table 1:

    mix   reads                  writes
    A     50 %                   50 % updates
    B     90 %                   10 % updates; YCSB itself has 5 %
    C     100 %
    D     95 %                   5 % inserts of keys that were not there
    E     95 %, they are scans   likewise; trees only

The key is drawn from Zipf(theta); 0 is uniform. In D the draw counts back from the key that was
inserted last, by whichever client: YCSB's "latest". A scan begins at the key that was drawn, and
has 1 to 100 keys, each number as often.

The shipped code runs in virtual time (limpet/fault/explore/sim_time.py), so equal arguments give
equal figures on any machine. Blocks are so large that those of the warm-up last for all that is
counted: a claim reads the table of blocks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from limpet.fault.explore.sim_latency import PRESETS
from limpet.fault.explore.sim_time import TimedReport, Workload, run_timed

KEY_SIZE: Final = 12
VALUE_SIZE: Final = 8
"""In bytes; the paper's keys have 8, too, which is less than the simulator's."""
SCAN_MAX: Final = 100
NODE_SIZE: Final = 128 << 20
BLOCK_SIZE: Final = 128 << 10
"""512 clients can have blocks of their own, each of which has 126 nodes of a tree. If no size is
given, the blocks of such a pool are four times as large."""
SKEWED: Final = 0.99
OPTIMAL, DTX, RTX = "Optimal", "DTX", "rTX"


@dataclasses.dataclass(frozen=True)
class Index:
    """An index, and the kinds of stores that are its designs.

    `met_share`: so many of the keys are enough for a client to meet all leaves, or subtables.
    """

    kinds: Mapping[str, str]
    met_share: float
    parameters: Mapping[str, Any]


INDEXES: Final = {
    "tree": Index(
        {OPTIMAL: "sherman", DTX: "dtx-sherman", RTX: "rtx-sherman"},
        met_share=0.05,
        parameters={"value_size": VALUE_SIZE},
    ),
    "hash": Index(
        {OPTIMAL: "race-locks", DTX: "dtx-race", RTX: "rtx-race"}, met_share=0.01, parameters={}
    ),
}
MIXES: Final[dict[str, dict[str, Any]]] = {
    "A": {"write_share": 0.5},
    "B": {"write_share": 0.1},
    "C": {"write_share": 0.0},
    "D": {"write_share": 0.05, "fresh": True, "latest": True},
    "E": {"write_share": 0.05, "fresh": True, "scan_max": SCAN_MAX},
}
"""The same mixes in the simulator's parameters."""


def designs(
    index: str, mix: str, theta: float, clients: int, ops: int, keys: int, seed: int
) -> dict[str, TimedReport]:
    """The report of each design; `ops` operations of each client."""
    found = INDEXES[index]
    return {
        design: run_timed(
            Workload(
                kind, clients, ops, keys, KEY_SIZE, VALUE_SIZE, theta=theta, scattered=True,
                met_share=found.met_share, seed=seed, node_size=NODE_SIZE, block_size=BLOCK_SIZE,
                parameters=found.parameters, **MIXES[mix],
            ),
            PRESETS["rdma"],
        )
        for design, kind in found.kinds.items()
    }  # fmt: skip


def latency_ns(report: TimedReport) -> float:
    """The mean of all operations."""
    total = sum(kind.count for kind in report.kinds)
    return sum(kind.count * kind.mean_ns for kind in report.kinds) / total
