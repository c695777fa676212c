"""FUSEE under the explorer: kinds, replicas, lost nodes; and every step of a change of the view."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kit.mutants.fusee import LARGE, SMALL, crowded
from kit.parts import is_fair, runs_of

from limpet.fault.explore.explorer import Exploration, ExplorerReport, explore
from limpet.fault.explore.schedule import Schedule, parse_schedule, schedule_text
from limpet.fault.explore.sim_cluster import SimulatedCluster
from limpet.fault.explore.sim_program import parse_program
from limpet.fault.explore.sim_run import Run, replay
from limpet.shm.endpoint.fabric import BUILD

pytestmark = pytest.mark.either_build(
    "the same lines on either build", but=["test_fusee_holds_with_one_replica"]
)

COMPILED = BUILD == "compiled"
KINDS = ["fusee", "fusee-cr", "fusee-nc"]


def explored(
    kind: str, runs: int, replicas: int, lost: int, size: int = LARGE, **more: Any
) -> ExplorerReport:
    """Explore with so many replicas and lost nodes; all keys are in one subtable."""
    chosen = {
        "value_size": 40, "crashes": 1, "stalls": 1, "seed": 7, "nodes": max(2, replicas), **more,
    }  # fmt: skip
    parameters = {"replicas": replicas, **chosen.pop("parameters", {})}
    with crowded(size):
        return explore(
            Exploration(
                store=kind, schedules=runs_of(runs),
                node_failures=lost, parameters=parameters, **chosen,
            )
        )  # fmt: skip


@pytest.mark.exhaustive("more replicas", quick=["fusee-nc-2"])
@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_fusee_holds_with_all_but_one_replica_lost(kind: str, replicas: int) -> None:
    report = explored(kind, 500 if kind == "fusee" else 200, replicas, replicas - 1)
    assert report.failures == ()
    assert is_fair(report.node_failures, report.schedules)
    assert is_fair(report.crashes, report.schedules)


@pytest.mark.exhaustive("hundreds of runs")
def test_fusee_holds_with_five_replicas() -> None:
    report = explored("fusee", 100, 5, 4, clients=4, crashes=2)
    assert report.failures == ()
    assert is_fair(report.node_failures, report.schedules)


def test_stage_has_room_for_many_clients_and_replicas() -> None:
    """Its preparation raised StoreFull."""
    parameters = Exploration(
        store="fusee", clients=6, schedules=5, seed=1, nodes=5, parameters={"replicas": 5}
    )
    assert explore(parameters).failures == ()


def test_stage_has_room_where_subtables_are_split_at_first() -> None:
    """Pairs and subtables take groups of their own; its preparation raised StoreFull."""
    parameters = Exploration(
        store="fusee", clients=4, ops=3, schedules=3, seed=1, nodes=5, value_size=40,
        parameters={"replicas": 4, "bucket_size": 1},
    )  # fmt: skip
    assert explore(parameters).failures == ()


@pytest.mark.exhaustive("hundreds of runs", quick=["1-2-1"])
@pytest.mark.parametrize(
    ("index_replicas", "replicas", "lost"),
    [(1, 2, 0), (2, 1, 0), (3, 2, 1), (2, 3, 1), (1, 2, 1), (2, 1, 1), (3, 2, 2)],
)
def test_fusee_holds_where_the_index_has_replicas_of_its_own(
    index_replicas: int, replicas: int, lost: int
) -> None:
    """Also with one node lost more than the smaller number survives. One run of some hundreds meets
    a round that is left as it was: the lost node has a replica of the object, and none of the
    slot."""
    runs = 1000 if 1 < index_replicas < replicas else 200
    report = explored(
        "fusee", runs, replicas, lost, parameters={"index_replicas": index_replicas}, nodes=3
    )
    assert report.failures == ()
    assert not lost or is_fair(report.node_failures, report.schedules)


def test_fusee_holds_with_one_replica() -> None:
    assert explored("fusee", 200, 1, 0).failures == ()


@pytest.mark.exhaustive("hundreds of runs")
def test_fusee_holds_where_memory_is_scarce() -> None:
    report = explored("fusee", 400, 2, 1, SMALL, value_size=3400, ops=3)
    assert report.failures == ()


@pytest.mark.exhaustive("hundreds of runs")
def test_fusee_holds_where_clients_take_memory_from_each_other() -> None:
    """Memory on its way from one client to another was not seen by a third: StoreFull."""
    parameters = Exploration(
        store="fusee", clients=4, schedules=runs_of(250), seed=3, scarce=True, crashes=2, stalls=2
    )
    assert explore(parameters).failures == ()


@pytest.mark.exhaustive("hundreds of runs")
def test_fusee_holds_where_nobody_may_be_fenced() -> None:
    assert explored("fusee", 300, 3, 1, stalls=2, fence="wait").failures == ()


def test_fusee_with_more_lost_than_it_survives_fails_only_of_that() -> None:
    report = explored("fusee", 300, 2, 2, seed=8)
    assert report.failures == ()
    assert is_fair(report.node_failures, report.schedules)


@pytest.mark.soak("every step, a minute")
def test_every_moment_to_lose_a_node() -> None:
    with crowded(LARGE):
        report = explore(
            Exploration(
                store="fusee", clients=2, program="da|ua", strategy="exhaustive", bound=0,
                crashes=0, node_failures=1, schedules=100_000 if COMPILED else 40, value_size=40,
                parameters={"replicas": 2}, nodes=2,
            )
        )  # fmt: skip
    assert report.failures == ()
    assert report.schedules > 100 or not COMPILED


@pytest.mark.parametrize("lost", ["f0", "f1"])
def test_delete_that_others_completed_takes_effect_once(lost: str) -> None:
    """Its client stands still meanwhile, and wakes up to a lost node and the key inserted again.

    The leader gave what the slot has now for the end of that earlier round, too, and the delete
    began again.
    """
    calls = parse_program("da|ua ia ga gb")
    helped = 0
    with crowded(LARGE), SimulatedCluster("fusee", 2, nodes=2, value_size=40) as made:
        for step in range(1, 60, 1 if COMPILED else 4):
            schedule = f"0.0.{step}s0,1.2.1{lost},1.2.2w0"
            run = replay(made, calls, parse_schedule(schedule))
            assert run.failure == "", schedule
            results = [(record.op, record.result) for record in run.history[:3]]
            helped += results[-1] == ("insert", "ok")
    assert helped > (3 if COMPILED else 0)


# ---- a change of the view, at its every step -----------------------------------------------------

CHANGE = 400
"""More steps than a client takes in an operation with a change of the view."""


@pytest.fixture(scope="module")
def stage() -> Iterator[SimulatedCluster]:
    """Three replicas on three nodes; two of them may be lost."""
    with (
        crowded(LARGE),
        SimulatedCluster("fusee", 3, nodes=3, parameters={"replicas": 3}, value_size=40) as made,
    ):
        yield made


def swept(
    stage: SimulatedCluster, program: str, schedule: str, moment: str, step: int
) -> tuple[int, int]:
    """Run with the schedule and a departure more, `moment`, at steps of client 0 from `step` on.

    Until it comes too late. How many took place, and how many runs there were.
    """
    base = parse_schedule(schedule)
    calls = parse_program(program)
    took = runs = 0
    stride = 3 if COMPILED else 23
    for at in range(step, step + CHANGE, stride):
        more = parse_schedule(f"0.0.{at}{moment}")
        both = parse_schedule(schedule_text({**more, **base}))
        run = replay(stage, calls, both)
        assert run.failure == "", (schedule_text(both), run.failure)
        runs += 1
        if not _taken(run, more):
            break
        took += 1
    return took, runs


def _taken(run: Run, more: Schedule) -> bool:
    ((point, _),) = more.items()
    return point in run.schedule


FIRST_LOOK = 30
"""A step of client 0 after which it has pinned, and met nothing yet."""


@pytest.mark.exhaustive("every step", quick=["x0-m0-*"])
@pytest.mark.parametrize("program", ["ua|ga ua|da", "ic|ic gc|id"])
@pytest.mark.parametrize("lost", ["f0", "m0", "f1", "m2"])
@pytest.mark.parametrize("moment", ["x0", "s0", "f2", "m1", ">1"])
def test_every_step_of_a_change_of_the_view(
    stage: SimulatedCluster, program: str, lost: str, moment: str
) -> None:
    """The leader dies, stands still and is fenced, loses another node, or others come in.

    A client that meets a node whose memory is gone marks it; no other client can mark it after
    that.
    """
    took, runs = swept(stage, program, f"0.0.{FIRST_LOOK}{lost}", moment, FIRST_LOOK + 1)
    is_soon_marked = (lost, moment) == ("m2", "f2")
    assert runs >= took > (8 if COMPILED and not is_soon_marked else 0)


@pytest.mark.skipif(not COMPILED, reason="some hundred runs")
def test_an_insert_that_stands_still_at_any_step_undoes_no_other() -> None:
    """It may have proposed to one backup, been made void, and find another one's on the next."""
    took = 0
    with SimulatedCluster("fusee", 2, nodes=3, parameters={"replicas": 3}, value_size=40) as stage:
        for step in range(1, 400):
            schedule = parse_schedule(f"0.0.{step}s0")
            run = replay(stage, parse_program("ic|ic"), schedule)
            assert run.failure == "", (step, run.failure)
            took += run.schedule == schedule
    assert took > 50
