"""The base of the drills: a pool without a name, the supervisor's run, and the final checks.

The pool's segments have no name once it is made: however the drill ends, they are gone.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar

import limpet
from limpet.fault.drill.counters import Counters
from limpet.fault.drill.drill_report import AUDIT, MOVING, WORKERS, Observer, RunParameters
from limpet.fault.inject.interrupt import Interrupt
from limpet.fault.inject.supervisor import Progress, Supervisor
from limpet.fault.matrix.operations import Broken
from limpet.fault.matrix.testbed import within
from limpet.shm.errors import LimpetError
from limpet.shm.parameters import BLOCK_SIZE_MIN, KIB

BLOCK_SIZE: Final = 16 * KIB
HOLD_LEASES: Final = (0.02, 4.0)
LOOK_BLOCKED: Final = 30
"""Times `blocked_s`: a look at the whole store or pool that takes longer is blocked."""

assert BLOCK_SIZE >= BLOCK_SIZE_MIN

Parameters = TypeVar("Parameters", bound=RunParameters)


@contextlib.contextmanager
def nameless_pool(parameters: RunParameters, node_size: int) -> Generator[limpet.Pool, None, None]:
    """A pool that no other process can open, and that is gone with its last process."""
    pool = limpet.create(
        parameters.url,
        nodes=parameters.nodes,
        node_size=node_size,
        block_size=BLOCK_SIZE,
        lease_us=1000 * parameters.lease_ms,
        fence=parameters.fence,
    )
    with contextlib.closing(pool):
        limpet.destroy(parameters.url)
        yield pool


class DrillBase(Generic[Parameters]):
    """One drill. `checks` has what was wrong with each thing that it checks, in words."""

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
        """Have `client(slot, incarnation)` work in each slot, and suffer for the given time."""
        parameters = self.parameters
        lease_ns = parameters.lease_ms * 1_000_000

        def target(slot: int, incarnation: int) -> None:
            if slot == parameters.clients:
                for _ in self.pool.watch():
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
        """Recover what dead clients left."""
        self.look("recovering what dead clients left", AUDIT,
                  lambda: self.recovered.update(self.pool.recover()))  # fmt: skip

    def account(self) -> None:
        """Complain if bytes are leaked."""
        self.look("accounting for every byte", AUDIT,
                  lambda: self.audit.update(self.pool.audit()))  # fmt: skip
        if self.audit.get("leaked"):
            self.checks[AUDIT].append(f"{self.audit['leaked']} bytes are leaked: {self.audit}")

    def look(self, what: str, name: str, look: Callable[[], object]) -> None:
        """Have a look at the whole store or pool, which is part of the check `name`."""
        self.interrupt.check()
        self.observer.verifying(what)
        try:
            with within(LOOK_BLOCKED * self.parameters.blocked_s, f"the parent, {what},"):
                look()
        except LimpetError as error:
            self.checks[name].append(f"{type(error).__name__}: {error}")

    @contextlib.contextmanager
    def unblocked(self) -> Iterator[None]:
        """End the body, with a complaint, when something in it takes too long."""
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
