"""Remote clients (shm/clients/lasting.py) that are killed, paused and idle, and values in place."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from limpet.fault.explore.explorer import Exploration, explore
from limpet.fault.explore.schedule import CRASH, STALL, Action, Point
from limpet.fault.explore.sim_cluster import LEASE_US, PRESENT, SimulatedCluster
from limpet.fault.explore.sim_program import parse_program
from limpet.fault.explore.sim_run import PAUSE_S, replay
from limpet.shm.endpoint.fabric import BUILD, bit
from limpet.shm.endpoint.layout import HOLDS
from limpet.shm.errors import ChannelRemoved, ParameterError, StoreError

pytestmark = pytest.mark.either_build("the same lines on either build")

COMPILED = BUILD == "compiled"
GETS_AND_UPDATES = "ga ga|ua ua ub ua|ua ub"
"""The first client's pin keeps memory from the others, who have no other in a scarce cluster."""


@pytest.fixture
def scarce() -> Iterator[SimulatedCluster]:
    with SimulatedCluster("race", 3, remote=True, scarce=True) as made:
        yield made


@pytest.mark.parametrize("op", [0, 1, 2])
def test_a_client_may_be_killed_with_a_lasting_pin(scarce: SimulatedCluster, op: int) -> None:
    """In a get, in the next one, and when it is idle and takes the pin back."""
    died = 0
    for step in range(1, 8):
        run = replay(
            scarce, parse_program(GETS_AND_UPDATES), {Point(0, op, step): (Action(CRASH, 0),)}
        )
        assert not run.failure
        died += run.clients[0].dead
    assert died


def test_a_client_that_is_paused_beyond_its_lease_returns_nothing(
    scarce: SimulatedCluster,
) -> None:
    """Others that need memory declare it dead. It comes back at the end, when they are done."""
    declared = 0
    for op in range(2):
        for step in range(1, 8):
            point = Point(0, op, step)
            run = replay(scarce, parse_program(GETS_AND_UPDATES), {point: (Action(STALL, 0),)})
            assert not run.failure
            if run.clients[0].pid in scarce.processes.gone:
                declared += 1
                records = [record for record in run.history if record.client == 0]
                assert [record.result for record in records[op:]] == ["unknown"]
    assert declared


def test_the_epoch_goes_on_beside_idle_clients(scarce: SimulatedCluster) -> None:
    run = replay(scarce, parse_program(GETS_AND_UPDATES), {})
    assert not run.failure
    assert not scarce.processes.gone
    assert scarce.setup_client.grace.pinned() == []


# ---- values in place -----------------------------------------------------------------------------


BEFORE = range(8)


def value_in_place(
    cluster: SimulatedCluster, meanwhile: Callable[[Any], object], before: int
) -> bool:
    """A mapped client views a value, while a remote one works; whether the value stays, when that
    one has written it several times. `before`: its writes under an earlier view, so that it has
    more memory, and need not ask for some at once."""
    cluster.reset()
    store, remote = cluster.store, cluster.clients[0].store

    def pause() -> None:
        cluster.clock += PAUSE_S
        meanwhile(remote)

    cluster.setup_client.endpoint.paused = pause
    try:
        with store.view(b"a"):
            for number in range(before):
                remote.update(b"a", cluster.value_of(b"%d" % number))
        cluster.clock += LEASE_US / 1e6
        remote.update(b"a", cluster.value_of(b"0"))
        with store.view(b"a") as value:
            seen = bytes(value)
            for number in range(8):
                remote.update(b"a", cluster.value_of(b"%d" % number))
            return bool(seen == bytes(value))
    finally:
        cluster.setup_client.endpoint.paused = None


@pytest.fixture
def mixed() -> Iterator[SimulatedCluster]:
    with SimulatedCluster("race", 1, remote=True) as made:
        yield made


@pytest.mark.parametrize(
    "meanwhile",
    [
        lambda remote: remote.get(b"b"),
        lambda remote: remote.client.idle(),
        lambda remote: remote.client.pinned(lambda: None),
    ],
    ids=["gets", "idle", "elsewhere"],
)
def test_a_value_in_place_outlasts_a_remote_update(
    mixed: SimulatedCluster, meanwhile: Callable[[Any], object]
) -> None:
    """The view waits until the remote client, at work or idle, has no old copy of HOLDS."""
    pauses: list[int] = []
    for before in BEFORE:
        pauses.clear()
        assert value_in_place(mixed, lambda remote: (pauses.append(1), meanwhile(remote)), before)
        assert 0 < len(pauses) * PAUSE_S <= LEASE_US / 1e6


def test_a_view_that_does_not_wait_is_found(mixed: SimulatedCluster) -> None:
    mixed.setup_client.client.await_copies = lambda: None
    assert not all(value_in_place(mixed, lambda remote: None, before) for before in BEFORE)


def test_a_bit_of_a_client_that_died_before_its_record_costs_no_memory(
    mixed: SimulatedCluster,
) -> None:
    """It set its bit in HOLDS, and died while it waited for the remote clients."""
    mixed.reset()
    mixed.setup_client.endpoint.fetch_or(HOLDS, bit(5))
    for number in range(8):
        mixed.clients[0].store.update(b"a", mixed.value_of(b"%d" % number))
    mixed.clients[0].pool.client.idle()
    mixed.clients[0].endpoint.phase.do_sent()
    audit = mixed.setup_client.audit()
    assert (audit["leaked"], audit["held"]) == (0, 0)


def test_remote_clients_have_nothing_in_place(mixed: SimulatedCluster) -> None:
    mixed.reset()
    for key in PRESENT:
        with pytest.raises(StoreError, match="remote client"):
            mixed.clients[0].store.view(key)


def test_a_channel_that_is_removed_is_gone_for_remote_clients_at_once(
    mixed: SimulatedCluster,
) -> None:
    """They have copies of DROPS, so the client that removes it waits for them."""
    mixed.reset()
    counter = mixed.clients[0].pool.counter("c")
    assert counter.add() == 1
    pauses: list[int] = []

    def pause() -> None:
        pauses.append(1)
        mixed.clock += PAUSE_S
        with contextlib.suppress(ChannelRemoved):
            counter.add()

    mixed.setup_client.endpoint.paused = pause
    mixed.setup_client.channels.remove("c")
    mixed.setup_client.endpoint.paused = None
    assert pauses
    with pytest.raises(ChannelRemoved):
        counter.add()


# ---- the explorer --------------------------------------------------------------------------------


@pytest.mark.exhaustive("hundreds of runs", quick=["race-names", "fusee-lost"])
@pytest.mark.parametrize(
    ("store", "options"),
    [
        ("race", {"names": True, "crashes": 2}),
        ("race", {"scarce": True, "stalls": 4}),
        ("fusee", {"node_failures": 1, "nodes": 3, "replace": True}),
        ("rtx-race", {"transactions": True}),
        ("rtx-sherman", {"transactions": True}),
    ],
    ids=["race-names", "race-scarce", "fusee-lost", "rtx-race", "rtx-sherman"],
)
def test_remote_clients_are_explored(store: str, options: dict[str, Any]) -> None:
    """Drops, changes of the view, and clients that die while they wait in one, are among these."""
    schedules = (20 if options.get("names") else 100) if COMPILED else 5
    size = 3400 if options.get("scarce") else 40
    parameters = Exploration(
        store=store,
        schedules=schedules,
        seed=5,
        remote=True,
        value_size=size,
        processes=1,
        **options,
    )
    report = explore(parameters)
    assert report.failures == ()


def test_remote_clients_need_coherent_memory() -> None:
    for options in ({"coherent": False}, {"durable": True}):
        with pytest.raises(ParameterError, match="remote"):
            Exploration(remote=True, **options)  # type: ignore[arg-type]
