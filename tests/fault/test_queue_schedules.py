"""Queues whose clients wait for each other, under simulated schedules, and variants of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from kit.queues import WAKING, WOKEN, QueueRun, QueueStage

from limpet.stores.channels.layout import SLEEPERS
from limpet.stores.channels.queue.cyclic_ring import CyclicRing
from limpet.stores.channels.queue.shared_queue import SharedQueue
from limpet.stores.channels.waiting import Waiting

pytestmark = pytest.mark.either_build("schedules of the same lines")

SCHEDULES = 15


@pytest.fixture(scope="module", params=[3, 5])
def stage(request: pytest.FixtureRequest) -> Iterator[QueueStage]:
    with QueueStage(request.param) as made:
        yield made


def test_what_is_put_is_got_and_nobody_sleeps_in_vain(stage: QueueStage) -> None:
    slept = 0
    for seed in range(SCHEDULES):
        run = QueueRun(stage, seed, times=8).go()
        assert not run.failure, (seed, run.failure)
        assert sorted(run.put) == sorted(run.got)
        assert len(run.put) == 8 * len(run.putters)
        assert not run.in_vain, seed
        slept += run.slept
    assert slept >= SCHEDULES


def test_a_death_costs_time_only(stage: QueueStage) -> None:
    for seed in range(2 * SCHEDULES):
        rng = random.Random(seed)
        victim = rng.randrange(len(stage.players))
        run = QueueRun(stage, seed, times=8, crashes={victim: rng.randrange(1, 400)}).go()
        assert not run.failure, (seed, run.failure)


@pytest.mark.parametrize("dies", [WOKEN, WAKING])
def test_who_dies_between_waking_and_looking_costs_time_only(stage: QueueStage, dies: str) -> None:
    died = 0
    for seed in range(SCHEDULES):
        run = QueueRun(stage, seed, times=8, dies=dies).go()
        assert not run.failure, (seed, run.failure)
        died += not run.dies
    assert died


def test_who_stands_still_keeps_nobody_waiting(stage: QueueStage) -> None:
    for seed in range(SCHEDULES):
        rng = random.Random(seed)
        stalls = {rng.randrange(len(stage.players)): (rng.randrange(1, 300), 2000)}
        run = QueueRun(stage, seed, times=8, stalls=stalls).go()
        assert not run.failure, (seed, run.failure)


class SaysNothing(Waiting):
    def prepare(self) -> int:
        while True:
            word = self.endpoint.load(self.address)
            token = word | SLEEPERS
            if word == token or self.endpoint.cas(self.address, word, token) == word:
                return int(token)


class Mute(Waiting):
    def wake_one_if(self, word: int) -> int:
        return 0


class LooksEmpty(CyclicRing):
    def length(self) -> int:
        return 0


class LooksFull(CyclicRing):
    def length(self) -> int:
        return int(self.maxsize)


class WakesNoProducer(CyclicRing):
    def __init__(
        self, pool: Any, address: int, mark: Any, notes: Any, news: Waiting, room: Waiting
    ) -> None:
        super().__init__(pool, address, mark, notes, news, Mute(room.endpoint, room.address, False))


MUTANTS: dict[str, dict[str, Any]] = {
    "a woken client does not say so": {"waiting_class": SaysNothing},
    "a client woken to get wakes no other": {"ring_class": LooksEmpty},
    "a client woken to put wakes no other": {"ring_class": LooksFull},
    "no client is woken after a get": {"ring_class": WakesNoProducer},
}
"""Parts in place of a queue's."""


@pytest.mark.parametrize("name", MUTANTS)
def test_known_bad_variants_are_caught(name: str) -> None:
    with QueueStage(5, type("Bad", (SharedQueue,), MUTANTS[name])) as stage:
        for seed in range(300):
            run = QueueRun(stage, seed, times=6).go()
            assert not run.failure, (seed, run.failure)
            if run.in_vain:
                return
    pytest.fail("no client slept in vain")
