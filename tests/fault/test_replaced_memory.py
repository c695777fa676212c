"""Memory nodes that are replaced and added under the explorer: what a client that stood still
meanwhile finds there, what is in the new memory, and whether replacements are explored as all else
is."""

from __future__ import annotations

import random
from typing import Any

import pytest

from limpet.fault.explore.explorer import Exploration, cluster_of, explore, numbered_run
from limpet.fault.explore.schedule import FAIL, GONE, Faults, draw_faults, parse_schedule
from limpet.fault.explore.sim_cluster import SimulatedCluster
from limpet.fault.explore.sim_program import REPLACE, Call, parse_program
from limpet.fault.explore.sim_run import replay
from limpet.shm import replacement
from limpet.shm.endpoint.fabric import BUILD
from limpet.stores.contents import StoreContents

pytestmark = pytest.mark.either_build("the same lines on either build")

COMPILED = BUILD == "compiled"


def insert_through_a_replacement() -> list[str]:
    """The failures when a node is lost in the midst of an insert, and its client stands still
    until another client has replaced the pair, and the node."""
    program = parse_program("pd|ud n")
    broken = []
    with SimulatedCluster("fusee", 2, nodes=2, value_size=40) as stage:
        steps = sum(step[0] == 0 for step in replay(stage, program, {}).trace)
        for step in range(1 if COMPILED else steps - 20, steps):
            lost_and_parked = f"0.0.{step}m0,0.0.{step}>1,0.0.{step + 14}s0"
            run = replay(stage, program, parse_schedule(lost_and_parked))
            assert run.replaced == 1
            broken += [run.failure] if run.failure else []
    return broken


@pytest.mark.exhaustive("every step")
def test_who_stood_still_finds_in_new_memory_what_became_of_its_object() -> None:
    """The mark that says that its object was linked, and then replaced by another, was not copied:
    the object was free by then. So its client inserted it once more."""
    assert insert_through_a_replacement() == []


class Thrifty(replacement.Filling):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.in_journals = {}


def test_replacement_that_copies_only_what_is_used_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replacement, "Filling", Thrifty)
    assert any("nothing explains" in failure for failure in insert_through_a_replacement())


# ---- what is in the new memory -------------------------------------------------------------------


def read_from_new_memory() -> str:
    """The fault of a run in which a node is replaced, and then all keys are read there."""
    with SimulatedCluster("fusee", 2, nodes=2, value_size=40) as stage:
        run = replay(stage, parse_program("ua|n ub"), parse_schedule("0.0.1m0"))
    assert run.replaced == 1
    return run.failure


def test_what_a_store_has_is_in_the_new_memory() -> None:
    assert read_from_new_memory() == ""


def test_replacement_that_leaves_the_index_empty_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No client read there, as the other node was never lost after it. Now the node is named."""
    nothing = dict.fromkeys(("objects", "blocks", "regions", "bytes"), 0)
    monkeypatch.setattr(StoreContents, "refill", lambda contents, node: nothing)
    assert "memory node 0 has no region" in read_from_new_memory()


# ---- how they are explored -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["fusee", "race"])
def test_runs_are_alike_after_nodes_were_replaced(kind: str) -> None:
    """Handles that were opened again had looked at the view, so it took a client fewer steps."""
    program = parse_program("pd r|ud n a")
    with SimulatedCluster(kind, 2, nodes=2, value_size=40) as stage:
        before = replay(stage, program, {}).digest()
        lost = [replay(stage, program, parse_schedule("0.0.20m0")) for _ in range(2)]
        after = replay(stage, program, {}).digest()
    assert [(run.replaced, run.added) for run in lost] == [(1, 1), (1, 1)]
    assert lost[0].digest() == lost[1].digest()
    assert before == after


def test_faults_fall_on_every_part_of_a_replacement() -> None:
    """They were drawn from as many steps as other operations take, a third of them."""
    parameters = Exploration(store="fusee", node_failures=1, replace=True, value_size=40)
    with cluster_of(parameters) as stage:
        numbered_run(stage, parameters, 0)
        steps, others = stage.memory_steps[Call(REPLACE)], stage.op_steps
    assert steps > 2 * others
    program, longer = parse_program("n|n ua"), {Call(REPLACE): steps}
    drawn = [
        draw_faults(random.Random(seed), program, Faults(4, 4, 1, 2), others, longer)
        for seed in range(100)
    ]
    points = [point for faults in drawn for point in faults]
    assert max(step for client, op, step in points if op == 0) > steps * 9 / 10
    assert max(step for client, op, step in points if op == 1) <= others
    actions = [{action.kind for taken in faults.values() for action in taken} for faults in drawn]
    assert all(kinds & {FAIL, GONE} for kinds in actions)  # there is something to replace


@pytest.mark.exhaustive("hundreds of runs")
@pytest.mark.parametrize("kind", ["race", "fusee", "swarm"])
def test_stores_hold_while_nodes_are_added(kind: str) -> None:
    """Objects of a lost node lay on added nodes, and leaked when it was replaced."""
    report = explore(
        Exploration(
            store=kind, schedules=200 if COMPILED else 4, seed=1, scarce=True, crashes=2,
            add_nodes=True, node_failures=1, replace=True,
        )
    )  # fmt: skip
    assert report.failures == ()
    assert report.added
