"""Inserts that move entries, killed and stopped at each step: no key is lost, none is there twice.

The crash matrix has them in a table that is full but for one entry (rcuckoo_scenes.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from rcuckoo_scenes import RING, path_scene

from limpet.fault.findings import Result
from limpet.fault.kinds import PROOFS, Proof
from limpet.fault.matrix import Matrix
from limpet.fault.operations import BYSTANDER, OLD, OPERATIONS
from limpet.shm.fabric import BUILD

COMPILED = BUILD == "compiled"
EVERY = 23
"""Of the steps of who dies first, when others die in turn."""
POINTS = {"unsure", "locked", "committed", "torn", "moving", "written", "unlocking"}
"""What a client shows that is killed at an insert."""

compiled_only = pytest.mark.skipif(not COMPILED, reason="many runs")
INSERT = dataclasses.replace(
    OPERATIONS["insert"],
    warm=lambda pool, kv: kv.put(BYSTANDER, OLD),
)
"""Has memory at hand, and nothing else in the table changes."""


class Sparse(Matrix):
    """Takes all steps where there is one victim, and every EVERY-th where there are more."""

    def chosen(self, steps: int, cost: int = 1) -> list[int]:
        return list(range(1, steps + 1, 1 if cost < 4 else EVERY))


Make = Callable[..., Matrix]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes matrices with a ring of rows; `parameters` of the store."""

    def matrix(moves: int, **parameters: Any) -> Matrix:
        chosen = {**RING, **parameters}
        proof = Proof(
            chosen, matrix_nodes=1, matrix_capacity=chosen["capacity"], waits_for_stopped=True
        )
        monkeypatch.setitem(PROOFS, "rcuckoo", proof)
        return Sparse("rcuckoo", None, path_scene(moves))

    return matrix


def sound(result: Result, points: Sequence[str] = ()) -> None:
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


@compiled_only
@forms
def test_path_insert_that_is_killed_loses_nothing(
    make: Make, moves: int, form: dict[str, Any]
) -> None:
    sound(make(moves, **form).killed(INSERT), POINTS)


@compiled_only
@forms
def test_who_repairs_a_path_may_be_killed_at_it(
    make: Make, moves: int, form: dict[str, Any]
) -> None:
    result = make(moves, **form).killed_twice(INSERT)
    assert result.failures == ()
    assert result.next_tried > 40
    assert "repairing" in result.seen


@compiled_only
@forms
def test_path_insert_that_stands_still_is_killed_and_repaired(
    make: Make, moves: int, form: dict[str, Any]
) -> None:
    sound(make(moves, **form).stopped(INSERT, "kill"))


@compiled_only
@forms
def test_path_insert_that_stands_still_is_waited_for(
    make: Make, moves: int, form: dict[str, Any]
) -> None:
    sound(make(moves, **form).stopped(INSERT, "wait"))
