"""The engine of drills: a fault for one subject, in a pool of its own.

A fault says which pool it needs, and what it does in each of its ways: `strike`. The engine makes
the pool, opens the subject (subjects.py), takes the steps at which the fault strikes, makes a
result of a broken demand, and takes the pool away.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Final

from limpet.fault.inject.stopping import StoppingPool
from limpet.fault.matrix.operations import Broken, demand
from limpet.fault.matrix.subjects import opened, pool_sizes
from limpet.shm.destroying import destroy
from limpet.shm.errors import LimpetError
from limpet.stores.pool import Pool

SHARE: Final = 6
STEPS_MAX: Final = 20_000
"""The limit of steps in a change, of which a long value to three replicas takes some thousand."""


@dataclasses.dataclass(frozen=True)
class Result:
    """The outcome of one way of a fault. `of`: its subject and way, as they are shown; `stopped`:
    how often the fault took place, where that is counted; `failure`: the broken demand, or ""."""

    of: Mapping[str, str]
    runs: int
    failure: str
    stopped: int | None = None

    @property
    def ok(self) -> bool:
        return not self.failure

    @property
    def counts(self) -> dict[str, int]:
        stopped = {} if self.stopped is None else {"stopped": self.stopped}
        return {"runs": self.runs, **stopped}


def steps(share: int) -> Iterator[int]:
    """The steps at which a drill stops or kills: from 1 on, closely at first. One in k / share of
    those behind step k; 0: every step. Broken: there are STEPS_MAX or more."""
    k = 1
    while k < STEPS_MAX:
        yield k
        k += 1 + (k // share if share else 0)
    raise Broken(f"a call has {STEPS_MAX} steps or more")


class Fault(abc.ABC):
    """A fault for one subject. In the main thread only.

    `share`: of the steps behind step k, one in k / share is taken; 0: every step.
    """

    word: ClassVar[str] = "way"
    """The name of a way, as it is shown."""
    counts_stops: ClassVar[bool] = False
    pool_class: ClassVar[type[Pool]] = StoppingPool
    broken: ClassVar[tuple[type[Exception], ...]] = (Broken, LimpetError)
    """Errors by which a run has failed."""

    def __init__(self, subject: str, url: str, share: int = SHARE) -> None:
        self.subject = subject
        self.url = url
        self.share = share
        self.runs = 0
        self.stopped = 0
        self.step = 0
        """The step of the present run."""
        self.pool: Any = None
        self.work: Any = None
        self.turn = 0

    def settings(self, way: str) -> dict[str, Any]:
        """The parameters of the pool."""
        return pool_sizes(self.subject)

    def open(self) -> Any:
        """The subject, by the handle of this process."""
        return opened(self.pool, self.subject)

    @abc.abstractmethod
    def strike(self, way: str) -> None:
        """Do it at each step. Broken or a LimpetError: a demand does not hold."""

    def run(self, way: str) -> Result:
        """Run one way; its result."""
        self.runs = self.stopped = self.step = 0
        failure = ""
        given = {"clients": 16, "fence": "kill", **self.settings(way)}
        pool = self.pool_class.create(self.url, **given)
        try:
            self.pool = pool
            self.work = self.open()
            self.strike(way)
        except self.broken as error:
            where = f"run {self.runs}, step {self.step}" if self.step else f"run {self.runs}"
            failure = f"{where}: {type(error).__name__}: {error}"
        finally:
            pool.close()
            with contextlib.suppress(LimpetError):
                destroy(self.url)
        stopped = self.stopped if self.counts_stops else None
        return Result({"subject": self.subject, self.word: way}, self.runs, failure, stopped)

    def steps(self) -> Iterator[int]:
        """The steps at which the fault strikes, one after the other."""
        for k in steps(self.share):
            self.step = k
            yield k

    def each_step(self, once: Callable[[int], bool]) -> None:
        """Do `once(k)` at each step, until it returns that there is no such step."""
        for k in self.steps():
            self.runs += 1
            if not once(k):
                return

    def turns(self, count: int) -> None:
        """Make so many turns of the subject."""
        for _ in range(count):
            self.work.write(self.turn)
            self.turn += 1


def demand_sound(pool: Any, held: bool = True) -> None:
    """Recover, and demand that stores are whole, and no memory is leaked, or `held`."""
    pool.recover()
    for store in pool.stores():
        pool.attached(store["kind"], store["name"])[0].check()
    audit = pool.audit()
    demand(not audit["leaked"], f"{audit['leaked']} bytes are leaked: {audit}")
    demand(not (held and audit["held"]), f"{audit['held']} bytes are held: {audit}")


def demand_unfenced(pool: Any) -> None:
    """Demand that no client was killed by another."""
    fenced = [event for event in pool.events() if event["kind"] == "fenced"]
    demand(not fenced, f"clients were killed: {fenced}")
