"""Inserts that move entries, killed and stopped at each step: no key is lost, none is there twice.

The crash matrix has them in a table that is full but for one entry (kit/cuckoo.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from kit.cuckoo import RING, Clients, Ring, path_scene
from kit.endpoints import Interrupted
from kit.puppets import PuppetPool

from limpet.fault.matrix import crash_points
from limpet.fault.matrix.crash_matrix import Matrix
from limpet.fault.matrix.fault_profile import FAULT_PROFILES, FaultProfile
from limpet.fault.matrix.matrix_result import MatrixResult
from limpet.fault.matrix.operations import BYSTANDER, NEW, OLD, OPERATIONS
from limpet.shm.endpoint.fabric import BUILD

COMPILED = BUILD == "compiled"
EVERY = 23
"""Steps of the first client that dies, when others die in turn."""
POINTS = {"locked", "committed", "torn", "moving", "written", "unlocking"}
"""The crash points of a client that is killed at an insert."""

compiled_only = pytest.mark.skipif(not COMPILED, reason="many runs")
INSERT = dataclasses.replace(
    OPERATIONS["insert"],
    warm=lambda pool, kv: kv.put(BYSTANDER, OLD),
)
"""Has memory at hand, and nothing else in the table changes."""


class Sparse(Matrix):
    """Takes all steps where one dies, and every EVERY-th of the first one's where more do."""

    def chosen(self, steps: int, cost: int = 1) -> list[int]:
        return list(range(1, steps + 1, 1 if cost < 4 else EVERY))


Make = Callable[..., Matrix]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes matrices with a ring of rows; `parameters` of the store."""

    def matrix(moves: int, **parameters: Any) -> Matrix:
        chosen = {**RING, **parameters}
        profile = FaultProfile(
            chosen, matrix_nodes=1, matrix_capacity=chosen["capacity"], waits_for_stopped=True
        )
        monkeypatch.setitem(FAULT_PROFILES, "rcuckoo", profile)
        return Sparse("rcuckoo", None, path_scene(moves))

    return matrix


def sound(result: MatrixResult, points: Sequence[str] = ()) -> None:
    assert result.failures == ()
    assert result.tried == result.steps > 30
    assert result.seen >= set(points)


INLINE: dict[str, Any] = {}
EXTENTS: dict[str, Any] = {"value_size": 0}
GROUPS: dict[str, Any] = {"locks_per_message": 1}
FORMS = [
    pytest.param(1, INLINE, id="1 move, inline"),
    pytest.param(2, EXTENTS, id="2 moves, extents"),
    pytest.param(3, GROUPS, id="3 moves, many groups"),
]
forms = pytest.mark.parametrize(("moves", "form"), FORMS)


@pytest.mark.exhaustive("every step")
@pytest.mark.soak("every step of long paths", cases=["2*", "3*"])
@compiled_only
@forms
def test_path_insert_that_is_killed_loses_nothing(
    make: Make, moves: int, form: dict[str, Any]
) -> None:
    sound(make(moves, **form).killed(INSERT), POINTS)


@pytest.mark.exhaustive("every step of two clients")
@pytest.mark.soak("every step of long paths", cases=["2*", "3*"])
@compiled_only
@forms
def test_who_repairs_a_path_may_be_killed_at_it(
    make: Make, moves: int, form: dict[str, Any]
) -> None:
    result = make(moves, **form).killed_twice(INSERT)
    assert result.failures == ()
    assert result.next_tried > 40
    assert "repairing" in result.seen


@pytest.mark.exhaustive("every step")
@pytest.mark.soak("every step of long paths", cases=["2*", "3*"])
@compiled_only
@forms
def test_path_insert_that_stands_still_is_killed_and_repaired(
    make: Make, moves: int, form: dict[str, Any]
) -> None:
    sound(make(moves, **form).stopped(INSERT, "kill"))


@pytest.mark.exhaustive("every step")
@pytest.mark.soak("every step of long paths", cases=["2*", "3*"])
@compiled_only
@forms
def test_path_insert_that_stands_still_is_waited_for(
    make: Make, moves: int, form: dict[str, Any]
) -> None:
    sound(make(moves, **form).stopped(INSERT, "wait"))


def test_every_named_crash_point_is_met_by_these(make: Make) -> None:
    make(1)  # `moving` is one that the matrix does not come by without paths
    package = {n for n, path in crash_points.defined("rcuckoo").items() if "stores/rcuckoo" in path}
    assert package == POINTS | {"repairing"}


@forms
@pytest.mark.parametrize("again", [0, 4])
def test_path_insert_that_is_interrupted_is_settled_by_its_own_client(
    pools: Any, moves: int, form: dict[str, Any], again: int
) -> None:
    """By a signal handler's exception, at each verb; and some verbs later, when it has begun."""
    clients = Clients(pools, 0, **form)
    store = clients.store
    store.put(b"there", OLD)
    ring = Ring(store, b"key", moves, there=b"there")
    watching = pools.keep(PuppetPool.open(clients.url))
    working = watching.store("rcuckoo", name="test")
    working.put(b"there", OLD)
    step = 0
    for step in range(1, 400, 1 if COMPILED else 7):
        left = [again, step]

        def count(verb: str, address: int, left: list[int] = left) -> None:
            left[-1] -= 1
            if left[-1] == 0:
                if len(left) > 1 and left[0]:
                    del left[-1]
                raise Interrupted

        watching.endpoint.before = count
        with contextlib.suppress(Interrupted):
            working.insert(b"key", NEW)
        with contextlib.suppress(Interrupted):
            working.get(b"there")
        watching.endpoint.before = None
        assert working.get(b"there") == OLD
        assert clients.locked() == 0
        assert store.get(b"key") in (None, NEW)
        assert {store.get(key) for key in ring.others} == {OLD}
        clients.sound()
        if left[-1] > 0 and len(left) == 2:
            break
        ring.put_back()
    assert 30 < step < 399
    assert store.get(b"key") == NEW
