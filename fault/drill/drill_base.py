"""The base of the drills that run clients under a supervisor: parameters, run, checks, report.

The pool's segments have no name once it is made, so they are gone whatever ends the drill.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

import limpet
from limpet.fault.inject.counters import Counters
from limpet.fault.inject.interrupt import Interrupt
from limpet.fault.inject.supervisor import Delays, Progress, Supervisor
from limpet.fault.matrix.operations import Broken
from limpet.fault.matrix.testbed import within
from limpet.shm.errors import LimpetError
from limpet.shm.parameters import BLOCK_SIZE_MIN, KIB

BLOCK_SIZE: Final = 16 * KIB
HOLD_LEASES: Final = (0.02, 4.0)
LOOK_BLOCKED: Final = 30
"""Times `blocked_s`: a check of the whole store or pool that takes longer counts as blocked."""

assert BLOCK_SIZE >= BLOCK_SIZE_MIN

WORKERS: Final = "clients ended only as the drill ended them"
MOVING: Final = "no client was blocked"
AUDIT: Final = "audit() after recover(): 0 bytes leaked"
PERCENTS: Final = (50, 90, 99, 100)


@dataclasses.dataclass(frozen=True)
class RunParameters:
    """Parameters of every drill. Rates are per second; sizes are in bytes.

    `node_size` 0: as large as the other parameters need. A stop lasts from a fiftieth of the lease
    to four leases. `watch`: one more process recovers dead clients, as `limpet watch` does, and is
    a victim like the others. `blocked_s`: a client that is not stopped, and none of whose
    operations comes back for this long, counts as blocked.
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


Parameters = TypeVar("Parameters", bound=RunParameters)


class Observer(Protocol):
    """Receives the drill's progress, to show it."""

    def running(self, progress: Progress) -> None:
        """Called a few times a second, and once when all clients have ended."""

    def verifying(self, what: str) -> None:
        """A step of the verification begins."""

    def judging(self, done: int, total: int) -> None:
        """`done` of `total` operations have been judged."""


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


def distribution(samples: list[int]) -> dict[str, float | int | None]:
    """Count, and the percentiles of PERCENTS, of times in ns."""
    found: dict[str, float | int | None] = {"count": len(samples)}
    times: npt.NDArray[np.int64] = np.array(samples, np.int64)
    for percent in PERCENTS:
        found[f"p{percent}"] = float(np.percentile(times, percent)) if samples else None
    return found


@contextlib.contextmanager
def nameless_pool(parameters: RunParameters, node_size: int) -> Generator[limpet.Pool, None, None]:
    """A pool that no other process can open, and that is gone with its last process."""
    pool = limpet.create(
        parameters.url,
        nodes=parameters.nodes,
        node_size=node_size,
        block_size=BLOCK_SIZE,
        lease=parameters.lease_ms / 1000,
        fence=parameters.fence,
    )
    with contextlib.closing(pool):
        limpet.destroy(parameters.url)
        yield pool


class DrillBase(Generic[Parameters]):
    """One drill. `checks` has the faults that each check has found, in words."""

    supervisor: Supervisor
    last: Progress

    def __init__(
        self,
        parameters: Parameters,
        observer: Observer,
        interrupt: Interrupt,
        pool: limpet.Pool,
        checks: Iterable[str],
    ) -> None:
        self.parameters = parameters
        self.observer = observer
        self.interrupt = interrupt
        self.pool = pool
        self.checks: dict[str, list[str]] = {name: [] for name in checks}
        self.seconds: dict[str, float] = {}
        self.recovered: dict[str, Any] = {}
        self.audit: dict[str, int] = {}

    def run_clients(
        self,
        client: Callable[[int, int], None],
        counters: Counters,
        planned: Sequence[tuple[float, Callable[[], object]]] = (),
    ) -> None:
        """Run `client(slot, incarnation)` in each slot for the given time, and kill and stop it."""
        parameters = self.parameters
        lease_ns = parameters.lease_ms * 1_000_000

        def target(slot: int, incarnation: int) -> None:
            if slot == parameters.clients:
                for _ in self.pool.watch(until_destroyed=False):
                    pass
            client(slot, incarnation)
            self.pool.close()

        with (
            self.timed("run"),
            Supervisor(
                target, self.pool, counters, self.interrupt,
                seed=parameters.seed,
                kill_rate=parameters.kill_rate,
                stop_rate=parameters.stop_rate,
                hold_ns=(HOLD_LEASES[0] * lease_ns, HOLD_LEASES[1] * lease_ns),
                endless=int(parameters.watch),
                blocked_s=parameters.blocked_s,
            ) as supervisor,
        ):  # fmt: skip
            self.supervisor = supervisor
            supervisor.run(parameters.seconds, self.observer.running, planned)
            self.last = supervisor.stop(self.observer.running)
        self.checks[WORKERS] += supervisor.ends
        self.checks[MOVING] += supervisor.blocked

    def recover(self) -> None:
        """Recover the dead clients."""
        self.look("recovering what dead clients left", AUDIT,
                  lambda: self.recovered.update(self.pool.recover()))  # fmt: skip

    def account(self) -> None:
        """Complain if bytes are leaked."""
        self.look("accounting for every byte", AUDIT,
                  lambda: self.audit.update(self.pool.audit()))  # fmt: skip
        if self.audit.get("leaked"):
            self.checks[AUDIT].append(f"{self.audit['leaked']} bytes are leaked: {self.audit}")

    def look(self, what: str, name: str, look: Callable[[], object]) -> None:
        """Look at the whole store or pool, as part of the check `name`."""
        self.interrupt.check()
        self.observer.verifying(what)
        try:
            with within(LOOK_BLOCKED * self.parameters.blocked_s, f"the parent, {what},"):
                look()
        except LimpetError as error:
            self.checks[name].append(f"{type(error).__name__}: {error}")

    @contextlib.contextmanager
    def unblocked(self) -> Iterator[None]:
        """End the body, with a complaint, when it takes too long."""
        try:
            yield
        except Broken as error:
            self.checks[MOVING].append(f"after the run: {error}")

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - start

    def outcome(self) -> dict[str, Any]:
        """The fields of a RunReport."""
        supervisor = self.supervisor
        return {
            "parameters": self.parameters,
            "build": limpet.build,
            "seconds": self.seconds,
            "last": self.last,
            "kills": sum(supervisor.kills),
            "watcher_kills": sum(supervisor.kills[self.parameters.clients :]),
            "restarts": supervisor.restarts,
            "fenced": supervisor.fenced,
            "delays": supervisor.delays,
            "events_missed": supervisor.events.missed,
            "recovered": self.recovered,
            "audit": self.audit,
            "checks": self.checks,
        }
