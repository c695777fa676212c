"""RCuckoo under the explorer, in small tables and in one in which inserts need paths."""

from __future__ import annotations

from typing import Any

import pytest
from kit.cuckoo import SMALL_RING, crowded
from kit.parts import is_fair

from limpet.fault.explore.explorer import Exploration, ExplorerReport, explore
from limpet.fault.explore.sim_cluster import SimulatedCluster
from limpet.fault.explore.sim_program import parse_program
from limpet.fault.explore.sim_run import replay
from limpet.shm.endpoint.fabric import BUILD

pytestmark = pytest.mark.either_build(
    "the same lines on either build",
    but=["test_rcuckoo_holds_while_clients_die_and_stand_still[40-2]"],
)

COMPILED = BUILD == "compiled"
INLINE, EXTENTS = 40, 3400
"""Bytes of values."""

compiled_only = pytest.mark.skipif(not COMPILED, reason="takes many runs")


def explored(runs: int, **more: Any) -> ExplorerReport:
    chosen = {"value_size": INLINE, "crashes": 1, "stalls": 1, "seed": 7, **more}
    count = runs if COMPILED else max(5, runs // 25)
    return explore(Exploration(store="rcuckoo", schedules=count, **chosen))


def explored_paths(runs: int, **more: Any) -> ExplorerReport:
    """In a ring of rows of which all but one are full."""
    parameters = {**SMALL_RING, **more.pop("parameters", {})}
    with crowded():
        return explored(runs, parameters=parameters, **more)


@pytest.mark.exhaustive("more clients", quick=["*-2"])
@pytest.mark.parametrize("clients", [2, 3, 4])
@pytest.mark.parametrize("size", [INLINE, EXTENTS])
def test_rcuckoo_holds_while_clients_die_and_stand_still(size: int, clients: int) -> None:
    report = explored(200, value_size=size, clients=clients, crashes=2, stalls=2)
    assert report.failures == ()
    assert is_fair(report.crashes, report.schedules)
    assert is_fair(report.stalls, report.schedules)


def test_rcuckoo_holds_where_memory_is_scarce() -> None:
    assert explored(200, value_size=EXTENTS, scarce=True).failures == ()


@pytest.mark.parametrize("remote", [False, True])
def test_rcuckoo_holds_where_nobody_may_be_fenced(remote: bool) -> None:
    assert explored(200, stalls=2, fence="wait", remote=remote).failures == ()


@compiled_only
def test_rcuckoo_holds_without_hardware_coherence() -> None:
    assert explored(150, coherent=False).failures == ()


@pytest.mark.exhaustive("more programs", quick=["3400-ic ic*"])
@pytest.mark.parametrize("program", ["", "ic ic|id gc|da ga", "ic dc|id ga|pd gc"])
@pytest.mark.parametrize("size", [INLINE, EXTENTS])
def test_rcuckoo_holds_while_entries_are_moved(size: int, program: str) -> None:
    report = explored_paths(200, value_size=size, program=program, crashes=2)
    assert report.failures == ()
    assert is_fair(report.crashes, report.schedules)


@pytest.mark.parametrize("remote", [False, True])
def test_rcuckoo_holds_while_entries_are_moved_under_many_groups_of_locks(remote: bool) -> None:
    more = {"parameters": {"locks_per_message": 1}, "stalls": 2}
    assert explored_paths(200, remote=remote, **more).failures == ()


def test_rcuckoo_holds_while_entries_are_moved_where_nobody_may_be_fenced() -> None:
    assert explored_paths(200, stalls=2, fence="wait").failures == ()


def test_inserts_of_the_explorer_move_entries() -> None:
    """Besides three of the journal, there are three writes of each row: its header line, the entry,
    its sequence."""
    with (
        crowded(),
        SimulatedCluster("rcuckoo", 1, parameters=SMALL_RING, value_size=INLINE) as made,
    ):
        for program, moves in (("ic", 1), ("id", 2)):
            run = replay(made, parse_program(program), {})
            assert run.failure == ""
            writes = [step for step in run.trace if step[1] == "write"]
            assert len(writes) >= 3 + 3 * (1 + moves)
