"""What a client that stood still while a memory node was lost, and replaced, finds there."""

from __future__ import annotations

from typing import Any

import pytest

from limpet.fault.schedule import parse_schedule
from limpet.fault.sim_program import parse_program
from limpet.fault.sim_run import replay
from limpet.fault.sim_stage import Stage
from limpet.shm import replacement
from limpet.shm.fabric import BUILD

COMPILED = BUILD == "compiled"


def insert_through_a_replacement() -> list[str]:
    """What breaks when a node is lost in the midst of an insert, and its client stands still until
    another has replaced what it inserted, and the node."""
    program = parse_program("pd|ud n")
    broken = []
    with Stage("fusee", 2, nodes=2, value_size=40) as stage:
        steps = sum(step[0] == 0 for step in replay(stage, program, {}).trace)
        for step in range(1 if COMPILED else steps - 20, steps):
            lost_and_parked = f"0.0.{step}m0,0.0.{step}>1,0.0.{step + 14}s0"
            run = replay(stage, program, parse_schedule(lost_and_parked))
            assert run.replaced == 1
            broken += [run.failure] if run.failure else []
    return broken


def test_who_stood_still_finds_in_new_memory_what_became_of_its_object() -> None:
    """The mark that says that its object was linked, and then replaced by another, was not copied:
    the object was free by then. So its client inserted it once more."""
    assert insert_through_a_replacement() == []


class Thrifty(replacement.Filling):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.in_hand = set()


def test_replacement_that_copies_only_what_is_used_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replacement, "Filling", Thrifty)
    assert any("nothing explains" in failure for failure in insert_through_a_replacement())
