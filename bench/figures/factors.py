"""The cost of each step from Sherman to rTX in an insert (rTX section 6.3, figures 16 and 17).

All clients do nothing but insert keys that were not there. Reads, writes and CASes are counted,
times are virtual (limpet/fault/explore/sim_time.py), so equal arguments give equal figures on any
machine. As in the paper, latency is of one client that has the nodes to itself, throughput of many.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from limpet.bench.figures.overhead import BLOCK_SIZE, KEY_SIZE, NODE_SIZE, VALUE_SIZE
from limpet.fault.explore.sim_latency import PRESETS
from limpet.fault.explore.sim_time import KindResult, Workload, run_timed


@dataclasses.dataclass(frozen=True)
class Step:
    """A step, and the store that takes it and all before.

    The paper's factors over the step before, of throughput and latency, where its text has them;
    those of +Opt1 are with +Opt2, the lock of the leaf before it is read, which inserts here go
    without.
    """

    name: str
    kind: str
    parameters: Mapping[str, Any]
    throughput: float | None = None
    latency: float | None = None


STEPS: Final = (
    Step("Optimal", "sherman", {}),
    Step("+OCC", "sherman", {"optimistic": True}, 0.67, 1.35),
    Step("+ICommit", "sherman", {"optimistic": True, "idempotent": True}, 0.86),
    Step("+Log", "dtx-sherman", {"idempotent": True}, 0.74, 1.7),
    Step("+Separate", "rtx-sherman", {"opt1": False}, 1.06, 1.0),
    Step("+Opt1", "rtx-sherman", {}, 1.43, 0.7),
)
DTX: Final = Step("DTX", "dtx-sherman", {})
"""Not one of the paper's steps: its log without its idempotent commit."""


def inserts(step: Step, clients: int, ops: int, keys: int, seed: int) -> tuple[KindResult, float]:
    """The inserts of a step, of each client so many, and how many a virtual second."""
    workload = Workload(
        step.kind, clients, ops, keys, KEY_SIZE, VALUE_SIZE, warm_up=1, theta=0, write_share=1,
        fresh=True, scattered=True, seed=seed, node_size=NODE_SIZE, block_size=BLOCK_SIZE,
        parameters={"value_size": VALUE_SIZE, **step.parameters},
    )  # fmt: skip
    report = run_timed(workload, PRESETS["rdma"])
    return next(kind for kind in report.kinds if kind.kind == "insert"), report.throughput
