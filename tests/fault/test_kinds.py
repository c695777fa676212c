"""Any kind of store is proved by registering it: a replicated one goes through all of it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from kit import twin
from kit.parts import is_fair, runs_of

import limpet
from limpet.__main__ import main
from limpet.fault.explore.explorer import (
    Exploration,
    ExplorerReport,
    cluster_of,
    explore,
    numbered_run,
)
from limpet.fault.explore.schedule import FAIL, GONE, parse_schedule
from limpet.fault.explore.sim_cluster import SimulatedCluster
from limpet.fault.explore.sim_latency import PRESETS
from limpet.fault.explore.sim_program import parse_program
from limpet.fault.explore.sim_run import replay
from limpet.fault.explore.sim_time import Workload, run_timed
from limpet.fault.matrix.crash_matrix import Matrix, uncovered
from limpet.fault.matrix.fault_profile import profile_of
from limpet.fault.matrix.matrix_result import MatrixResult
from limpet.fault.matrix.node_loss import WAYS, Way
from limpet.fault.matrix.operations import OPERATIONS
from limpet.shm.endpoint.fabric import BUILD
from limpet.stores.race.parameters import GrowingParameters
from limpet.stores.race.store import Race
from limpet.stores.registry import KINDS, Kind, store_class

pytestmark = pytest.mark.either_build("the same lines on either build")

COMPILED = BUILD == "compiled"
READS_BESIDE_A_WRITE = Exploration(
    store="twin", program="ua|ga ga|ga", node_failures=1, crashes=0, stalls=0, value_size=40,
    seed=4, schedules=30_000,
)  # fmt: skip


@pytest.fixture
def replicated() -> Iterator[None]:
    with twin.registered("twin", twin.Twin):
        yield


class Boastful(Race):
    """Says that it survives the loss of a node, and does not."""

    losses_survived = 1


@pytest.fixture
def boastful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "boastful", Kind(__name__, "Boastful"))


# ---- variants of a class, by parameters ----------------------------------------------------------


def test_a_variant_has_its_fixed_parameters(pools: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fixed = Kind("limpet.stores.race.store", "Race", {"capacity": 77})
    monkeypatch.setitem(KINDS, "race-77", fixed)
    pool = pools()
    store = pool.store("race-77", name="s")
    assert (store.kind, store.parameters.capacity) == ("race-77", 77)
    store.put(b"k", b"v")
    assert pools.again(pool).store("race-77", name="s").get(b"k") == b"v"
    with pytest.raises(limpet.ParameterError, match="capacity"):
        pool.store("race-77", name="other", capacity=5)
    with pytest.raises(limpet.StoreMismatch, match="race-77"):
        pool.store("race", name="s")


def test_a_kind_without_a_row_is_proved_with_the_defaults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(KINDS, "another", Kind("limpet.stores.race.store", "Race"))
    assert store_class("another").Parameters is GrowingParameters
    assert explore(Exploration(store="another", schedules=30, seed=1, node_failures=1)).ok
    result = Matrix("another", 12).killed(OPERATIONS["update"])
    assert (result.store, result.failures) == ("another", ())
    # the names of the crash points are those of its package and of the memory below
    assert "updated" in uncovered([dataclasses.replace(result, seen=frozenset())])


# ---- a replicated kind ---------------------------------------------------------------------------


@pytest.mark.soak("a whole matrix")
@pytest.mark.usefixtures("replicated")
@pytest.mark.parametrize("name", ["insert", "update", "delete"])
def test_matrix_of_a_replicated_kind(name: str) -> None:
    matrix = Matrix("twin", 24 if COMPILED else 8)
    operation = OPERATIONS[name]
    for result in (
        matrix.killed(operation),
        matrix.killed_twice(operation),
        matrix.stopped(operation, "kill"),
        matrix.node_lost(operation),
    ):
        assert result.failures == ()
        assert result.verdict == "ok"


def _explored(**changes: Any) -> ExplorerReport:
    return explore(Exploration(store="twin", schedules=runs_of(300), seed=3, **changes))


@pytest.mark.exhaustive("hundreds of runs")
@pytest.mark.usefixtures("replicated")
def test_explorer_of_a_replicated_kind() -> None:
    report = _explored(node_failures=1)
    assert report.failures == ()
    assert is_fair(report.node_failures, report.schedules)
    # beyond what it survives, it may fail, but only of that
    assert _explored(node_failures=2).failures == ()


@pytest.mark.exhaustive("hundreds of runs")
@pytest.mark.usefixtures("replicated")
def test_every_failure_of_a_node_is_explored() -> None:
    report = explore(
        Exploration(
            store="twin", program="ua|ga", clients=2, strategy="exhaustive", bound=0, crashes=0,
            node_failures=1, schedules=100_000 if COMPILED else 60,
        )
    )  # fmt: skip
    assert report.failures == ()
    assert report.node_failures


@pytest.mark.exhaustive("hundreds of runs")
@pytest.mark.skipif(not COMPILED, reason="caught by many runs")
def test_mutant_that_writes_what_is_read_first_is_caught() -> None:
    with twin.registered("twin", twin.FirstSideFirst):
        report = explore(READS_BESIDE_A_WRITE)
        (failure,) = report.failures
        assert failure.what.startswith("history: ")
        assert "f" in failure.schedule or "m" in failure.schedule
        command = shlex.split(failure.command)
        repeated = CliRunner().invoke(main, [*command[1:], "--json"])
        assert repeated.exit_code == 1
        assert json.loads(repeated.output)["digest"] == failure.digest
    with twin.registered("twin", twin.Twin):
        assert CliRunner().invoke(main, command[1:]).exit_code == 0


@pytest.mark.usefixtures("replicated")
def test_latency_of_another_kind() -> None:
    report = run_timed(Workload(store="twin", clients=2, ops=5, keys=20, nodes=2), PRESETS["rdma"])
    assert sum(kind.count for kind in report.kinds) == 10


# ---- node loss -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("boastful")
def test_mutant_that_does_not_survive_what_it_says_is_caught() -> None:
    report = explore(Exploration(store="boastful", schedules=30_000, seed=1, node_failures=1))
    assert report.failures[0].what.startswith("node: ")
    assert "--nodes 2" in report.failures[0].command
    result: MatrixResult = Matrix("boastful", 36).node_lost(OPERATIONS["update"])
    assert result.verdict == "FAILED"
    assert any("NodeFailed" in failure for failure in result.failures)


@pytest.mark.parametrize("kind", [FAIL, GONE])
def test_operations_on_a_lost_node_have_an_unknown_outcome(kind: str) -> None:
    with SimulatedCluster("race", 2, nodes=2) as stage:
        program = parse_program("ua ub|ga gb")
        found = {}
        for node in (0, 1):
            run = replay(stage, program, parse_schedule(f"0.0.1{kind}{node}"))
            assert run.failure == ""
            assert run.failed == {node}
            found[node] = {record.key for record in run.history if record.result == "unknown"}
        # a and b are on one node, or on one each
        assert found[0] | found[1] == {b"a", b"b"}
        assert not found[0] & found[1]
        assert replay(stage, program, {}).history[-1].result == "ok"


def test_a_node_that_is_not_there_does_not_fail() -> None:
    with SimulatedCluster("race", 1) as stage:
        assert replay(stage, parse_program("ua"), parse_schedule("0.0.1f1,0.0.2m7")).failed == set()


def test_pools_have_a_node_more_than_fail() -> None:
    assert Exploration().node_count == profile_of("race").explorer_nodes
    assert Exploration(node_failures=2).node_count == 3
    with pytest.raises(limpet.ParameterError, match="node_failures"):
        Exploration(nodes=1, node_failures=2)


def test_every_way_to_lose_a_node_is_different() -> None:
    possible = {Way(*bits) for bits in itertools.product((False, True), repeat=3)}
    # a client loses it: the victim, dying or not, or the next client after its death
    assert len(WAYS) == 6
    assert set(WAYS) == {way for way in possible if way.by_victim or way.killed}
    assert len({str(way) for way in WAYS}) == len(WAYS)


# ---- nodes that are lost, and replaced -----------------------------------------------------------


@pytest.mark.exhaustive("every kind", quick=["race", "fusee", "swarm"])
@pytest.mark.parametrize(
    "kind",
    [
        "race", "rtx-race", "dtx-race", "fusee", "swarm", "rcuckoo", "rtx-sherman", "dtx-sherman",
        "loco", "pdpm", "clover",
    ],
)  # fmt: skip
def test_kind_holds_while_nodes_are_lost_and_replaced(kind: str) -> None:
    """A handle of `loco` stayed in its operation when a node was lost as it had got a lock."""
    report = explore(
        Exploration(
            store=kind, schedules=runs_of(120), seed=11, node_failures=1, replace=True,
            value_size=40,
        )
    )  # fmt: skip
    assert report.failures == ()
    assert report.replaced or not COMPILED


@pytest.mark.exhaustive("every kind", quick=["loco", "rcuckoo"])
@pytest.mark.parametrize("kind", ["rtx-race", "fusee", "rcuckoo", "rtx-sherman", "loco"])
def test_a_run_is_the_same_whatever_was_run_before(kind: str) -> None:
    """A handle of `loco` remembered that a client which then died in a run waited for a lock."""
    numbers = list(range(35 if COMPILED else 3))
    parameters = Exploration(store=kind, seed=9, crashes=2, stalls=2, scarce=True)
    with cluster_of(parameters) as stage:
        there = [numbered_run(stage, parameters, number).digest() for number in numbers]
        back = [numbered_run(stage, parameters, number).digest() for number in reversed(numbers)]
    assert there == back[::-1]
