"""Parameters, progress and reports of the drills that run clients under a supervisor."""

from __future__ import annotations

import dataclasses
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from limpet.fault.check.linearizability import Report as Judged
from limpet.fault.check.recorder import Operation
from limpet.fault.drill.timeline import Timeline
from limpet.fault.inject.supervisor import Delays, Progress

WORKERS: Final = "clients ended only as the drill ended them"
MOVING: Final = "no client was blocked"
WHOLE: Final = "every value read was whole"
HISTORY: Final = "the history is linearizable"
SERVED: Final = "what is on no lost node is served"
INVARIANTS: Final = "check(), and the keys listed are those that are there"
AUDIT: Final = "audit() after recover(): 0 bytes leaked"
CHECKS: Final = (WORKERS, MOVING, WHOLE, HISTORY, SERVED, INVARIANTS, AUDIT)

MIX: Final = {
    Operation.GET: 40.0,
    Operation.PUT: 20.0,
    Operation.INSERT: 15.0,
    Operation.UPDATE: 15.0,
    Operation.DELETE: 10.0,
}


@dataclasses.dataclass(frozen=True)
class RunParameters:
    """Parameters of every drill. Rates are per second; sizes are in bytes.

    `node_size` 0: as the rest needs. A stopped client stands still for a time from a fiftieth of
    the lease to four leases. `watch`: one more process recovers the dead, as `limpet watch` does,
    and is a victim like the others. `blocked_s`: a client none of whose operations comes back for
    so long, unless it is stopped, is blocked.
    """

    url: str
    seed: int
    store: str = "race"
    clients: int = 4
    seconds: float = 10.0
    kill_rate: float = 20.0
    stop_rate: float = 2.0
    parameters: dict[str, Any] = dataclasses.field(default_factory=dict)
    nodes: int = 3
    node_size: int = 0
    fence: str = "kill"
    lease_ms: int = 250
    watch: bool = True
    blocked_s: float = 10.0

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class DrillParameters(RunParameters):
    """Parameters of a drill of a store.

    Keys are drawn from Zipf(theta); `mix` has the share of each operation;
    `parameters` are the store's, besides those of `fault/matrix/fault_profile.py`. `losses`:
    seconds into the run, and the node that is lost then.
    """

    losses: tuple[tuple[float, int], ...] = ()
    keys: int = 2000
    theta: float = 0.99
    mix: dict[Operation, float] = dataclasses.field(default_factory=lambda: dict(MIX))
    value_sizes: tuple[int, int] = (40, 400)

    def to_dict(self) -> dict[str, Any]:
        mix = {operation.name.lower(): share for operation, share in self.mix.items()}
        return {**super().to_dict(), "mix": mix}


class Observer(Protocol):
    """Is told what the drill is doing, to show it."""

    def running(self, progress: Progress) -> None:
        """A few times a second, and once when all clients have ended."""

    def verifying(self, what: str) -> None:
        """A step of the verification begins."""

    def judging(self, done: int, total: int) -> None:
        """`done` of `total` operations have been judged."""


@dataclasses.dataclass(frozen=True)
class Counts:
    """Operations of the run: all, and those that did not come back as ok, by how they did.

    unknown: the client was killed, or a node was lost. full: no room, while others stood still.
    """

    operations: int
    missing: int
    exists: int
    unknown: int
    full: int


@dataclasses.dataclass(frozen=True)
class RunReport:
    """The result of any drill. `checks`: for each check, the faults that it found."""

    parameters: RunParameters
    build: str
    seconds: dict[str, float]
    last: Progress
    kills: int
    watcher_kills: int
    restarts: int
    fenced: int
    delays: Delays
    events_missed: int
    recovered: dict[str, Any]
    audit: dict[str, int]
    checks: dict[str, list[str]]

    @property
    def ok(self) -> bool:
        """Whether everything held."""
        return not any(self.checks.values())


@dataclasses.dataclass(frozen=True)
class Report(RunReport):
    """The result of a drill of a store."""

    parameters: DrillParameters
    counts: Counts
    kills_in_a_second: list[int]
    unserved: int
    judged: Judged
    timeline: Timeline


PERCENTS: Final = (50, 90, 99, 100)


def distribution(samples: list[int]) -> dict[str, float | int | None]:
    """Count, and the percentiles of PERCENTS, of times in ns."""
    found: dict[str, float | int | None] = {"count": len(samples)}
    times: npt.NDArray[np.int64] = np.array(samples, np.int64)
    for percent in PERCENTS:
        found[f"p{percent}"] = float(np.percentile(times, percent)) if samples else None
    return found
