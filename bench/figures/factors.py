"""What each step from Sherman to rTX costs an insert (rTX section 6.3, figures 16 and 17).

All clients do nothing but insert keys that were not there. Reads, writes and atomics are counted,
times are virtual (limpet/fault/explore/sim_time.py), so equal arguments give equal figures on any
machine. As in the paper, latency is of one client that has the nodes to itself, throughput of many.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final

from limpet.fault.explore.sim_latency import PRESETS
from limpet.fault.explore.sim_time import KindResult, Workload, run_timed

KEY_SIZE: Final = 12
VALUE_SIZE: Final = 8


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


@dataclasses.dataclass(frozen=True)
class Factor:
    """What a step gave: of an insert by one client, and of all clients together.

    `writes` and `atomics` include those of the log; `throughput` is in inserts a virtual second.
    """

    step: Step
    clients: int
    alone: KindResult
    together: KindResult
    throughput: float


def run(clients: int, ops: int, keys: int, profile: str, seed: int) -> Iterator[Factor]:
    """Take each step, and DTX; `ops` inserts of each client."""
    for step in (*STEPS, DTX):
        alone, _ = _inserts(step, 1, ops, keys, profile, seed)
        together, throughput = _inserts(step, clients, ops, keys, profile, seed)
        yield Factor(step, clients, alone, together, throughput)


def _inserts(
    step: Step, clients: int, ops: int, keys: int, profile: str, seed: int
) -> tuple[KindResult, float]:
    workload = Workload(
        step.kind, clients, ops, keys, KEY_SIZE, VALUE_SIZE, warm_up=1, theta=0, write_share=1,
        fresh=True, scattered=True, seed=seed,
        parameters={"value_size": VALUE_SIZE, **step.parameters},
    )  # fmt: skip
    report = run_timed(workload, PRESETS[profile])
    return next(kind for kind in report.kinds if kind.kind == "insert"), report.throughput
