"""A client is stopped, another is killed, nodes are lost: kinds with replicas survive that."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest
from click.testing import CliRunner
from kit.mutants.swarm import NUMBER_IS_EMPTY, in_force

from limpet.__main__ import main
from limpet.fault.matrix import encounter
from limpet.fault.matrix.encounter import KILLED, MEETINGS, Encounter, Meeting, kinds
from limpet.shm.backends.location import SHM_DIR
from limpet.shm.endpoint.fabric import BUILD
from limpet.stores.registry import KINDS, store_class

pytestmark = pytest.mark.either_build("the same lines on either build")

COMPILED = BUILD == "compiled"
LIMIT = 4
SOME = {1: MEETINGS[::4], 2: MEETINGS[2::6]}
"""By the number of lost nodes; `limpet drill matrix KIND --encounters N` takes all of them."""
ROWS = [
    (kind, failures, meeting)
    for kind in kinds()
    for failures in (1, 2)
    for meeting in SOME[failures][:: 2 if KINDS[kind].fixed else 1]
    if failures == 1 or not KINDS[kind].fixed
] if COMPILED else [("swarm", 1, MEETINGS[0]), ("fusee", 1, MEETINGS[1])]  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    assert not list(SHM_DIR.glob(f"limpet.limpet-matrix-{os.getpid()}-e*"))


def meeting_of(stopped: str, killed: str) -> Meeting:
    """That in which the killed one is first."""
    (found,) = [m for m in MEETINGS if m[:2] == (stopped, killed) and m.first == KILLED]
    return found


def test_every_kind_with_replicas_is_among_them() -> None:
    assert set(kinds()) == {kind for kind in KINDS if store_class(kind).replicated}
    assert {"fusee", "swarm"} <= set(kinds())
    assert len({str(meeting) for meeting in MEETINGS}) == len(MEETINGS)


@pytest.mark.exhaustive("every kind", quick=["fusee-1-stopped get*", "swarm-1-stopped get*"])
@pytest.mark.soak("baselines", cases=["dm-abd-*", "fusee-??-*"])
@pytest.mark.parametrize(("kind", "failures", "meeting"), ROWS, ids=str)
def test_a_meeting_is_survived(kind: str, failures: int, meeting: Meeting) -> None:
    result = Encounter(kind, failures, LIMIT).meet(meeting)
    assert result.failures == ()
    assert result.verdict == "ok"
    assert result.tried >= 2
    assert result.next_tried >= 2


def test_a_limit_leaves_out_what_is_in_the_midst_of_a_write() -> None:
    made = Encounter("swarm", 1, 400)
    steps, _, later = made.steps(meeting_of("get", "update"))
    chosen = made.chosen(steps, later)
    assert len(later) == steps > sum(later) > 0
    assert not any(later[k - 1] for k in chosen[:-1])
    assert (chosen[0], chosen[-1]) == (1, steps + 1)
    assert Encounter("swarm", 1, None).chosen(steps) == list(range(1, steps + 2))


@pytest.mark.exhaustive("many runs")
def test_the_command_shows_each_meeting_and_refuses_kinds_without_replicas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(encounter, "MEETINGS", MEETINGS[:1])
    shown = CliRunner().invoke(
        main, ["drill", "matrix", "fusee", "--encounters", "1", "--limit", "4", "--json"]
    )
    assert shown.exit_code == 0, shown.output
    (row,) = json.loads(shown.stdout)["results"]
    assert (row["operation"], row["dimension"]) == (str(MEETINGS[0]), "1 node lost")
    for wrong in (["race"], ["fusee", "--op", "get"]):
        refused = CliRunner().invoke(main, ["drill", "matrix", *wrong, "--encounters", "1"])
        assert refused.exit_code == 2


# ---- known-bad variants --------------------------------------------------------------------------


@pytest.mark.exhaustive("caught step by step, too")
@pytest.mark.skipif(not COMPILED, reason="many runs")
def test_s10_number_without_a_tombstone_is_caught() -> None:
    """By the heir of a client that was killed in its delete."""
    meeting = meeting_of("get", "delete")
    made = Encounter("swarm", 1, 9)
    steps, _, later = made.steps(meeting)
    telling = [k for k in range(1, steps + 1) if not later[k - 1]]
    with in_force(NUMBER_IS_EMPTY):
        result = made.meet(meeting, telling, [1])
    assert result.verdict == "FAILED"
    assert any("StoreCorrupt" in line for line in result.failures), result.failures
