"""The next client of a victim's own slot, in stores and channels; what the matrix has to see."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
from kit.parts import IS_LONG

from limpet.fault.matrix import channel_matrix, successor, watched
from limpet.fault.matrix.channel_kinds import CHANNELS, Channels
from limpet.fault.matrix.channel_matrix import ChannelMatrix, ChannelTestbed, calls_of
from limpet.fault.matrix.crash_matrix import Matrix
from limpet.fault.matrix.operations import OPERATIONS, Operation
from limpet.fault.matrix.testbed import StoreTestbed
from limpet.shm.backends.location import SHM_DIR
from limpet.shm.endpoint.fabric import BUILD
from limpet.shm.endpoint.slots import CLOCK
from limpet.stores.channels.channel import Channel
from limpet.stores.registry import KINDS

pytestmark = pytest.mark.either_build("the same lines on either build")

COMPILED = BUILD == "compiled"
LIMIT = 4 if IS_LONG else 2


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    assert not list(SHM_DIR.glob(f"limpet.limpet-matrix-{os.getpid()}-*"))


# ---- what ships ---------------------------------------------------------------------------------


@pytest.mark.exhaustive("every kind", quick=["race", "swarm"])
@pytest.mark.parametrize("kind", KINDS if COMPILED else ["race", "loco"])
def test_a_client_succeeds_a_dead_one_in_its_slot(kind: str) -> None:
    """Of other operations: tests/fault/test_matrix.py."""
    result = Matrix(kind, LIMIT).run(OPERATIONS["delete"], "succeeded")
    assert result.failures == ()
    assert result.tried >= min(result.steps, 2)
    assert result.runs >= 6 * result.tried


@pytest.mark.exhaustive("every step")
@pytest.mark.parametrize("kind", ["swarm", "dm-abd"] if COMPILED else ["swarm"])
def test_a_client_succeeds_one_that_was_killed_within_a_tombstone(kind: str) -> None:
    """The step is one of few: between the two CASes of a delete."""
    result = Matrix(kind, 60 if COMPILED else 30).run(OPERATIONS["delete"], "succeeded")
    assert result.failures == ()


@pytest.mark.exhaustive("every channel", quick=["queue-killed", "counter-killed"])
@pytest.mark.parametrize("dimension", channel_matrix.DIMENSIONS)
@pytest.mark.parametrize("kind", CHANNELS)
def test_a_call_of_a_channel_happens_or_does_not(kind: str, dimension: str) -> None:
    matrix = ChannelMatrix(kind, 3)
    every = COMPILED and kind in ("counter", "queue", "sst")
    for call in calls_of(kind) if every else CHANNELS[kind].calls:
        result = matrix.run(call, dimension)
        assert result.failures == (), call
        assert result.tried >= min(result.steps, 2)


def test_every_kind_of_channel_is_registered() -> None:
    """All that a program can open by name, but for what is only a part of others."""
    parts = {
        "BarrierRegisters",
        "Cells",
        "Elements",
        "Holders",
        "KeyLocks",
        "Kept",
        "Places",
        "Positions",
    }
    matrix = ChannelMatrix("counter")
    with matrix.testbed(matrix.call("add")) as scene:
        opened = {type(kind.open(scene.pool, name)).__name__ for name, kind in CHANNELS.items()}
    there, waiting = set(), [Channel]
    while waiting:  # behind the opening: that imports the modules
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        if cls.__module__.startswith("limpet.") and cls is not Channel:
            there.add(cls.__name__)
    assert there - parts == opened - parts


# ---- known-bad variants -------------------------------------------------------------------------


def run_with(monkeypatch: pytest.MonkeyPatch, name: str, by: Any) -> str:
    """The matrix's failures for the successor of a killed update, with this call of the store."""
    real = successor.Pool.store

    def store(pool: Any, kind: str, **given: Any) -> Any:
        made = real(pool, kind, **given)
        return by(made) if pool.endpoint.fuse else made

    monkeypatch.setattr(successor.Pool, "store", store)
    result = Matrix("race", 3).run(OPERATIONS[name], "succeeded")
    assert result.verdict == "FAILED"
    return result.failures[0]


class Worse:
    """A store's handle of a successor, with a put of its own."""

    def __init__(self, store: Any) -> None:
        self.store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


class SpinsInPut(Worse):
    """As one that expects of its row what the row has never had."""

    def put(self, key: bytes, value: bytes) -> None:
        endpoint, at = self.store.endpoint, self.store.client.slot + CLOCK
        while endpoint.cas(at, 1 << 63, 0) != 1 << 63:
            pass


class SleepsInPut(Worse):
    """As one that waits for a client that is dead, deaf to everything."""

    def put(self, key: bytes, value: bytes) -> None:
        while True:
            time.sleep(0.01)


class LosesAPut(Worse):
    def put(self, key: bytes, value: bytes) -> None:
        pass


def test_a_successor_that_spins_is_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once: by the number of its steps."""
    monkeypatch.setattr(successor, "STEPS_MAX", 20_000)
    monkeypatch.setattr(successor, "FIRST", {", its successor begins with get": "get"})
    failure = run_with(monkeypatch, "update", SpinsInPut)
    assert failure.startswith(
        "k=1, its successor begins with get: Broken: the successor, in slot 1"
    )
    assert "'put' of b'key'" in failure
    assert failure.endswith("did not end within 20000 steps")


@pytest.mark.exhaustive("waits for what hangs")
def test_a_successor_that_hangs_tells_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "PATIENCE_S", 0.5)
    monkeypatch.setattr(successor, "FIRST", {", its successor begins with put": "put"})
    failure = run_with(monkeypatch, "update", SleepsInPut)
    assert "in 'put' of b'key', failed with -14: " in failure
    assert "in put" in failure


def test_a_successor_whose_put_is_lost_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    failure = run_with(monkeypatch, "update", LosesAPut)
    assert "after the successor's put" in failure


@pytest.mark.exhaustive("many runs")
def test_a_successor_in_another_slot_is_seen() -> None:
    """It would prove nothing."""

    class Crowded(StoreTestbed):
        def victim(self, operation: Operation, fuse: int, *others: Any) -> Any:
            target = super().victim(operation, fuse, *others)

            def elsewhere(slot: int, incarnation: int) -> None:
                self.tell = lambda word, value: StoreTestbed.tell(  # type: ignore[method-assign]
                    self, word, value + (1 << 36) if word == 0 else value
                )
                target(slot, incarnation)

            return elsewhere

    result = Matrix("race", 3, Crowded).run(OPERATIONS["update"], "succeeded")
    assert "the successor has slot 1, the victim had 2" in result.failures[0]


# ---- known-bad channels -------------------------------------------------------------------------


def channel_failure(monkeypatch: pytest.MonkeyPatch, kind: str, call: str, **changes: Any) -> str:
    worse: Channels = dataclasses.replace(CHANNELS[kind], **changes)
    monkeypatch.setitem(CHANNELS, kind, worse)  # type: ignore[arg-type]
    result = ChannelMatrix(kind, 3).run(call, "killed")
    assert result.verdict == "FAILED"
    return result.failures[0]


def test_a_call_in_two_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def add(handle: Any) -> None:
        handle.set(0)
        handle.set(8)

    failure = channel_failure(monkeypatch, "counter", "add", calls={"add": add})
    assert "value is 0, not one of (5, 8)" in failure


def test_a_lock_that_dies_with_its_holder_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_matrix, "WAIT_S", 0.2)

    def forever(handle: Any) -> None:
        handle.acquire()
        handle.pool.membership.lives = lambda ident: True
        handle.release()

    def grab(handle: Any, patience_s: float) -> None:
        handle.ticket.grab() or channel_matrix.demand(False, "the lock was not to be had")
        handle.release()

    failure = channel_failure(monkeypatch, "lock", "with", calls={"with": forever}, judge=grab)
    assert "the lock was not to be had" in failure


def test_scenes_of_channels_leave_nothing_when_they_fail() -> None:
    def unlucky(url: str, kind: str, fence: str) -> ChannelTestbed:
        made = ChannelTestbed(url, kind, fence)
        made.inspect = lambda: channel_matrix.demand(False, "nothing is right")  # type: ignore[method-assign]
        return made

    result = ChannelMatrix("event", 3, unlucky).run("set", "killed")
    assert result.failures[0] == "k=1: Broken: nothing is right"
