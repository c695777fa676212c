"""LOCO's kvstore under the explorer."""

from __future__ import annotations

from typing import Any

import pytest
from kit.mutants.loco import (
    CROWDED,
    LAP_OVERLOOKED,
    NO_REACH,
    NOT_UP_TO_DATE,
    POSITION_LAST,
    REACH_LATE,
    in_force,
)
from kit.mutants.uncompiled import UNCHANGED, Mutant

from limpet.fault.explore.explorer import Exploration, ExplorerReport, explore
from limpet.fault.explore.sim_shrink import kind_of
from limpet.shm.endpoint.fabric import BUILD

pytestmark = pytest.mark.either_build(
    "the same lines on either build",
    but=["test_loco_holds_while_clients_die_and_stand_still[40-2]"],
)

COMPILED = BUILD == "compiled"
RUNS_OF_MUTANT = 3000
INLINE, LINKED = 40, 3400
"""Bytes of values."""

compiled_only = pytest.mark.skipif(not COMPILED, reason="takes many runs")


def explored(runs: int, **more: Any) -> ExplorerReport:
    chosen = {"value_size": INLINE, "crashes": 1, "stalls": 1, "seed": 7, **more}
    count = runs if COMPILED else max(5, runs // 25)
    return explore(Exploration(store="loco", schedules=count, **chosen))


@pytest.mark.exhaustive("more clients", quick=["*-2"])
@pytest.mark.parametrize("clients", [2, 3, 4])
@pytest.mark.parametrize("size", [INLINE, LINKED])
def test_loco_holds_while_clients_die_and_stand_still(size: int, clients: int) -> None:
    report = explored(150, value_size=size, clients=clients, crashes=2, stalls=2)
    assert report.failures == ()
    assert report.crashes > report.schedules / 10
    assert report.stalls > report.schedules / 10


def test_loco_holds_while_messages_are_overtaken() -> None:
    assert explored(150, ops=4, parameters={"tracker": 2}).failures == ()


def test_loco_holds_while_parts_are_full() -> None:
    with in_force(CROWDED):
        assert explored(100, ops=4, parameters={"part": 1}).failures == ()


def test_loco_holds_where_nobody_may_be_fenced() -> None:
    assert explored(150, stalls=2, fence="wait").failures == ()


@compiled_only
def test_loco_holds_without_hardware_coherence() -> None:
    assert explored(100, value_size=LINKED, coherent=False).failures == ()


MUTANTS = (
    (NOT_UP_TO_DATE, "ga gc|ic", {}),
    (POSITION_LAST, "ic|gc gc", {}),
    (NO_REACH, "ic|gb gc", {"part": 1}),
    (REACH_LATE, "ic id|gc gd", {"part": 1}),
    (LAP_OVERLOOKED, "ga gc gd|ic id|da ia", {"tracker": 2}),
)


@compiled_only
@pytest.mark.parametrize(
    ("mutant", "program", "parameters"), MUTANTS, ids=[each[0].name for each in MUTANTS]
)
def test_loco_mutant_is_caught_by_the_explorer(
    mutant: Mutant, program: str, parameters: dict[str, Any]
) -> None:
    clients = program.count("|") + 1
    with in_force(mutant):
        report = explored(RUNS_OF_MUTANT, program=program, clients=clients, parameters=parameters)
    assert report.failures, f"{report.schedules} runs did not show it"
    assert kind_of(report.failures[0].what) in ("history", "check"), report.failures[0].what


@compiled_only
def test_what_the_mutants_are_made_of_holds() -> None:
    with in_force(UNCHANGED):
        assert explored(100, crashes=1).failures == ()
