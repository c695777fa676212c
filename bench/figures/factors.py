"""The cost of each step from Sherman to rTX in an insert (rTX section 6.3, figures 16 and 17).

All clients do nothing but insert keys that were not there. Reads, writes and atomics are counted,
times are virtual (limpet/fault/explore/sim_time.py), so equal arguments give equal figures on any
machine. As in the paper, latency is of one client that has the nodes to itself, throughput of many.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.table import Table

from limpet.bench.figures.overhead import BLOCK_SIZE, NODE_SIZE
from limpet.cli.common import table, time_text
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
    """The effect of a step: on an insert by one client, and on all clients together.

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
        fresh=True, scattered=True, seed=seed, node_size=NODE_SIZE, block_size=BLOCK_SIZE,
        parameters={"value_size": VALUE_SIZE, **step.parameters},
    )  # fmt: skip
    report = run_timed(workload, PRESETS[profile])
    return next(kind for kind in report.kinds if kind.kind == "insert"), report.throughput


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
        "clients, which meet each other. DTX is no step: the log without the idempotent commit, as "
        "in table 2. The paper's +Opt1 is with +Opt2."
    )
    return shown


def _factor(factor: float | None) -> str:
    return "-" if factor is None else f"{factor:.2f}"
