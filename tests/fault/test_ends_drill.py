"""Processes that stop being clients at each step of an operation; `limpet drill ends` has more."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import limpet
from limpet.cli import drill_ends
from limpet.fault.drill import ends
from limpet.fault.drill.ends import EXEC, WAYS, Ends
from limpet.fault.matrix.subjects import SUBJECTS
from limpet.shm import pool
from limpet.shm.clients.liveness import LifeLocks, Watcher
from limpet.shm.clients.membership import Membership
from limpet.shm.descriptors import Descriptor

pytestmark = pytest.mark.exhaustive_in_pure("the same lines as compiled, and slower")

assert drill_ends.ends.name == "ends"
FEW = {"race", "fusee", "lock", "queue"}
"""Subjects that are ended in all ways; of others, one will do."""
ROWS = [
    (subject, way)
    for number, subject in enumerate(SUBJECTS)
    for turn, way in enumerate(WAYS)
    if (subject in FEW and limpet.build == "compiled") or number % len(WAYS) == turn
]


@pytest.mark.exhaustive(
    "every kind", quick=["race-_exit", "race-daemon thread", "race-fork, *", "lock-*"]
)
@pytest.mark.parametrize(("subject", "way"), ROWS)
def test_others_go_on_when_a_client_ends_in_an_operation(
    subject: str, way: str, make_url: Callable[[], str]
) -> None:
    result = Ends(subject, make_url(), share=2).run(way)
    assert result.ok, result.failure
    assert result.runs > 1


@pytest.mark.exhaustive("both ways", quick=["exec"])
@pytest.mark.parametrize("way", sorted(EXEC))
def test_trap_life_that_is_told_by_the_pid_is_caught_by_the_drill(
    way: str, make_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program that a client became has its pid and start time: it is not dead, or is killed."""
    monkeypatch.setattr(ends, "PATIENCE_S", 1.5)
    monkeypatch.setattr(Watcher, "locks_tell", False)
    monkeypatch.setattr(LifeLocks, "mapped_by", lambda self, pid: True)
    result = Ends("race", make_url(), share=2).run(way)
    assert not result.ok
    assert "was blocked" in result.failure or "was killed" in result.failure


@pytest.mark.exhaustive("both ways", quick=["closerange"])
@pytest.mark.parametrize("way", ["closerange", "dup2"])
def test_trap_a_lock_that_is_not_held_taken_for_a_death_is_caught_by_the_drill(
    way: str, make_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Membership, "_uses", lambda self, pid, started: False)
    result = Ends("race", make_url(), share=2).run(way)
    assert "a client that lives was recovered" in result.failure


def test_trap_descriptors_closed_by_their_numbers_are_caught_by_the_drill(
    make_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Descriptor, "is_open", lambda self: self.fd >= 0)
    result = Ends("race", make_url(), share=2).run("dup2")
    assert not result.ok


@pytest.mark.exhaustive("many runs")
def test_trap_child_that_ends_its_parents_operation_is_caught_by_the_drill(
    make_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It settles the journal of its parent, and unpins it, when an exception leaves its frame."""

    class Untold(weakref.WeakSet[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(())

    monkeypatch.setattr(pool, "_handles", Untold())
    result = Ends("pdpm", make_url(), share=2).run("fork, unwind")
    assert "StoreCorrupt" in result.failure
