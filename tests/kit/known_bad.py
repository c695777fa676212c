"""Known-bad variants, and the searches that find them: the rows of fault/test_known_bad.py.

A row is a variant of a store, a search, and the verdicts that show its fault. A search ends when it
has found a fault, or at its bound: no row names a seed or a step, which the next change would move.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple

import pytest

import limpet
from kit import transaction_runs
from limpet.fault.explore.explorer import Exploration, cluster_of, numbered_run
from limpet.fault.explore.schedule import IN_WAIT, Point, parse_schedule
from limpet.fault.explore.sim_cluster import SimulatedCluster
from limpet.fault.explore.sim_program import parse_program
from limpet.fault.explore.sim_run import Run, replay
from limpet.fault.matrix import crash_matrix, matrix_result, testbed

SCHEDULES_MAX: Final = 30_000
"""Random runs that a search makes, at most: they end before a test is taken for one that hangs."""
TOLD: Final = ("AssertionError", "StoreCorrupt")
"""How scenes say that something does not hold."""

Search = Callable[[Any, tuple[str, ...]], str]
"""The fault that it has found, of pools that a maker of them makes; "" when it has found nothing.
One that takes what comes first goes on when that is not of the foreseen kind."""


class Subject(NamedTuple):
    """A store of which there are variants. `in_force` makes pools have one; `unchanged` changes
    nothing, and is run as the variants are."""

    name: str
    in_force: Callable[[Any], AbstractContextManager[Any]]
    unchanged: Any


class Variant(NamedTuple):
    """A row of the table. `says`: how a verdict that shows the fault begins; () for any."""

    of: Subject
    mutant: Any
    search: Any
    says: tuple[str, ...] = ()

    def name(self) -> str:
        return f"{self.of.name}-{self.mutant.name}-{self.search}"


@dataclasses.dataclass(frozen=True)
class Steps:
    """A scene, step by step. `ships`: what is like the variant without its fault."""

    scene: Callable[[Any], object]
    ships: Any = None

    def __str__(self) -> str:
        return self.scene.__name__.lstrip("_")

    def __call__(self, pools: Any, says: tuple[str, ...] = ()) -> str:
        try:
            self.scene(pools)
        except (AssertionError, limpet.LimpetError) as error:
            wrong = isinstance(error, AssertionError)
            return f"{'AssertionError' if wrong else type(error).__name__}: {error}"
        return ""


@dataclasses.dataclass(frozen=True)
class Schedules:
    """Random schedules of a program, until one fails. `around`: what holds meanwhile."""

    parameters: Exploration
    around: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext

    def __str__(self) -> str:
        return "schedules"

    def __call__(self, pools: Any, says: tuple[str, ...] = ()) -> str:
        with self.around():
            return first_failure(self.parameters, says)


@dataclasses.dataclass(frozen=True)
class Transactions:
    """Random schedules of transactions, which are judged as a whole."""

    program: str
    kind: str = "rtx-sherman"
    crashes: int = 2

    def __str__(self) -> str:
        return "transactions"

    def __call__(self, pools: Any, says: tuple[str, ...] = ()) -> str:
        return transaction_runs.explore(
            SCHEDULES_MAX, crashes=self.crashes, stalls=2, program=self.program, kind=self.kind
        ).failure


@dataclasses.dataclass(frozen=True)
class LateVerbs:
    """Each posted verb of an operation of client 0 in turn is late, done in its `wait` at the
    earliest; and its client dies some steps later, and others go on.

    `stride`: of the verbs. `operation`: number of the operation, from 0. `dies`: after so many
    steps."""

    store: str
    program: str
    nodes: int
    parameters: Mapping[str, Any]
    stride: int = 1
    operation: int = 0
    dies: Sequence[int] = (1, 2, 3, 5, 8)

    def __str__(self) -> str:
        return "late verbs"

    def runs(self) -> Iterator[Run]:
        calls = parse_program(self.program)
        with SimulatedCluster(
            self.store, len(calls), nodes=self.nodes, parameters=self.parameters, value_size=40
        ) as stage:
            for step in itertools.count(1, self.stride):
                ended = True
                for dies in self.dies:
                    at = f"0.{self.operation}."
                    text = f"{at}{step}d{IN_WAIT},{at}{step + dies}x0"
                    run = replay(stage, calls, parse_schedule(text))
                    ended = ended and not run.schedule
                    if Point(0, self.operation, step) not in run.schedule:
                        break  # no posted verb
                    if len(run.schedule) == 2:
                        yield run
                if ended:
                    return

    def __call__(self, pools: Any, says: tuple[str, ...] = ()) -> str:
        return next((run.failure for run in self.runs() if run.failure), "")


@dataclasses.dataclass(frozen=True)
class Kills:
    """A client is killed at each step of an operation, until something does not hold."""

    failures: Callable[[], tuple[str, ...]]

    def __str__(self) -> str:
        return "kills"

    def __call__(self, pools: Any, says: tuple[str, ...] = ()) -> str:
        with pytest.MonkeyPatch.context() as patch:
            for module in (testbed, crash_matrix):
                patch.setattr(module, "PATIENCE_S", 3.0)
            patch.setattr(matrix_result, "FAILURES_MAX", 1)
            return next(iter(self.failures()), "")


def first_failure(parameters: Exploration, says: tuple[str, ...] = ()) -> str:
    """What a run says that fails as foreseen. It is not shrunk, which takes longest. The test fails
    if there is none, or ten fail otherwise."""
    others: list[str] = []
    runs = 0
    with cluster_of(parameters) as cluster:
        while runs < parameters.schedules and len(others) < 10:
            if failure := numbered_run(cluster, parameters, runs).failure:
                if failure.startswith(says or failure):
                    return failure
                others.append(failure)
            runs += 1
    pytest.fail(f"{runs} runs have not shown it; {len(others)} failed otherwise: {others[-1:]}")


def explored(of: Subject, mutants: Iterable[Any]) -> list[Variant]:
    """Variants that say what they are explored with, and how they fail."""
    return [
        Variant(of, mutant, Schedules(mutant.parameters(SCHEDULES_MAX)), mutant.says)
        for mutant in mutants
    ]


def stepped(of: Subject, steps: Iterable[tuple[Any, Callable[[Any], object]]]) -> list[Variant]:
    """Variants and their scenes."""
    return [Variant(of, mutant, Steps(scene), TOLD) for mutant, scene in steps]


def scheduled(store: str, program: str, **chosen: Any) -> Schedules:
    """A search by schedules of a program, of variants that do not say it themselves."""
    around = chosen.pop("around", contextlib.nullcontext)
    chosen = {"value_size": 40, "crashes": 1, "stalls": 1, "seed": 7, **chosen}
    clients = program.count("|") + 1
    return Schedules(
        Exploration(
            store=store, program=program, clients=clients, schedules=SCHEDULES_MAX, **chosen
        ),
        around,
    )
