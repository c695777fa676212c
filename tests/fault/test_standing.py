"""Drills of clients that stand still: no client that gets on is killed, no client waits for a
lease."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.mutants.sightings import sightings_for_ever

import limpet
from limpet.fault.drill import beside, looks
from limpet.fault.drill.beside import Beside, roles_of
from limpet.fault.drill.containers import CONTAINED, ROLES, Containers
from limpet.fault.drill.throttle import NO_TURN, ThrottleParameters, run
from limpet.fault.inject.containers import why_not
from limpet.fault.matrix.channel_kinds import CHANNELS
from limpet.fault.matrix.subjects import SUBJECTS, TURNING
from limpet.shm.clients.membership import Membership
from limpet.stores import channels
from limpet.stores.baselines.pdpm.store import Pdpm
from limpet.stores.rcuckoo.repair import Repair
from limpet.stores.registry import KINDS

pytestmark = pytest.mark.exhaustive_in_pure("the same lines as compiled, and slower")

compiled_only = pytest.mark.skipif(limpet.build != "compiled", reason="caught by many turns")


VARIANTS = ["dm-abd*", "dtx-*", "fusee-cr*", "fusee-nc*", "pdpm*"]
"""Subjects that wait as others do."""

PARTS = {"owned_var", "atomic_var", "shared_region", "rendezvous", "power_controller"}
"""Channels without waiting clients that are parts of other channels, or an example."""


def test_every_kind_of_store_and_every_channel_is_a_subject() -> None:
    """Each kind of channel has a row; but for PARTS, its row says what a turn is."""
    sources = [path.read_text() for path in Path(channels.__file__).parent.rglob("*.py")]
    # but for an argument of numpy
    found = set(re.findall(r"^(?!.*\bnp\.).*\bkind=\"(\w+)\"", "".join(sources), re.M))
    assert found == {name for name in CHANNELS if "-" not in name}
    assert found == {*TURNING, *PARTS}
    assert {*SUBJECTS} == {*KINDS, *TURNING}


@pytest.mark.exhaustive("every kind", quick=["race", "lock", "queue"])
@pytest.mark.soak("they wait as others do", cases=VARIANTS)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_throttled_clients_that_get_on_are_not_killed(
    subject: str, make_url: Callable[[], str]
) -> None:
    report = run(
        ThrottleParameters(
            subject, 1, make_url(), clients=3, seconds=0.4, kill_rate=4.0, busy=True,
            blocked_s=60.0,
        )
    )  # fmt: skip
    # On a machine that is busy otherwise, a client need not come to it in so short a time.
    assert not {*report.failures} - {NO_TURN}


@pytest.mark.exhaustive("seconds of processes")
@compiled_only
def test_throttled_clients_are_killed_by_sightings_that_are_never_forgotten(
    make_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Membership, "progress", lambda self: None)
    for seed in range(8):
        with sightings_for_ever():
            report = run(ThrottleParameters("pdpm", seed, make_url(), seconds=3.0))
        if report.blamed:
            break
    assert report.blamed
    assert "after a turn of it had come back" in report.blamed[0]


@pytest.mark.either_build("every step of the same lines", but=["race-*", "lock-*"])
@pytest.mark.exhaustive("every kind", quick=["race-*", "lock-*"])
@pytest.mark.soak("they wait as others do", cases=VARIANTS)
@pytest.mark.parametrize(
    ("subject", "role"), [(subject, role) for subject in SUBJECTS for role in roles_of(subject)]
)
def test_nobody_waits_for_a_lease_beside(
    subject: str, role: str, make_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "PAUSES", (50,))
    monkeypatch.setattr(beside, "TURNS", 8)
    monkeypatch.setattr(beside, "PATIENCE_S", 60.0)
    result = Beside(subject, make_url(), share=1).run(role)
    assert result.ok, result.failure
    assert result.runs > 1


@pytest.mark.either_build("every step of the same lines", but=["race-*", "lock-*"])
@pytest.mark.exhaustive("every kind", quick=["race-*", "cache-storm", "fusee-killed", "lock-*"])
@pytest.mark.parametrize("role", looks.ROLES)
@pytest.mark.parametrize("subject", looks.LIVING)
def test_looks_make_nothing_beside_creators_and_droppers(
    subject: str, role: str, make_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looks, "STORM_S", 0.5)
    monkeypatch.setattr(beside, "PATIENCE_S", 60.0)
    result = looks.Looks(subject, make_url(), stride=29).run(role)
    assert result.ok, result.failure
    assert result.runs > 1 or role == "storm"


def test_waiter_that_does_not_look_whether_its_store_was_dropped_is_found(
    make_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It works on in memory that is another store's by then."""
    monkeypatch.setattr(beside, "PATIENCE_S", 60.0)
    monkeypatch.setattr(Pdpm, "require_there", lambda self: 0, raising=False)
    monkeypatch.setattr(Pdpm, "look_whether_there", lambda self: 0, raising=False)
    result = Beside("pdpm", make_url()).run("drop")
    assert re.search("worked on in a dropped store|leaked", result.failure), result


@pytest.mark.skipif(limpet.build == "compiled", reason="a constant of a compiled module")
def test_waiter_that_keeps_the_lock_for_a_lease_is_found(
    make_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trap G11: only the head of the queue may take the lock, and it is stopped."""
    monkeypatch.setattr("limpet.stores.channels.lock.ticket_queue.TURN_S", 3600.0)
    monkeypatch.setattr(beside, "PATIENCE_S", 3.0)
    result = Beside("lock", make_url()).run("waiter")
    assert "was blocked" in result.failure


def test_repair_that_waits_for_those_at_work_is_found(
    make_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traps G10 and C12: it wants that no journal changes, or pauses."""

    def patient(self: Any, look: Any) -> None:
        for attempt in range(2 * beside.PAUSES_MAX):
            self.endpoint.pause(attempt % 20)
        restore(self, look)

    restore = Repair._restore
    monkeypatch.setattr(Repair, "_restore", patient)
    result = Beside("rcuckoo", make_url()).run("repair")
    assert re.search(r"has paused \d+ times beside one that is at work", result.failure)


@pytest.mark.either_build("the same lines of Python")
@pytest.mark.exhaustive("every kind", quick=["race-*", "queue-*"])
@pytest.mark.soak("they wait as others do", cases=VARIANTS)
@pytest.mark.parametrize(
    ("subject", "role"), [(subject, role) for subject in CONTAINED for role in ROLES]
)
def test_containers_that_are_killed_or_stand_still_stop_no_client_outside(
    subject: str, role: str, make_url: Callable[[], str]
) -> None:
    if why := why_not():
        pytest.skip(f"this user cannot make containers: {why}")
    result = Containers(subject, make_url(), share=1).run(role)
    assert result.ok, result.failure
    assert result.stopped
