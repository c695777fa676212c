"""The barrier under schedules of simulated processes that stall and die, and variants of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kit.channels import Play

import limpet
from limpet.fault.explore.sim_cluster import SimulatedCluster
from limpet.stores.channels.barrier.barrier import Barrier
from limpet.stores.channels.barrier.layout import COME, LOST_SHIFT

pytestmark = pytest.mark.exhaustive_in_pure(
    "the same lines as compiled, and slower",
    quick=["test_schedules_with_stalls_and_deaths[continue]"],
)

SCHEDULES = 120 if limpet.build == "compiled" else 25


@pytest.fixture(scope="module")
def stage() -> Iterator[SimulatedCluster]:
    with SimulatedCluster("race", 4) as made:
        yield made


def schedule(
    stage: SimulatedCluster, seed: int, cls: Any, on_death: str, crash: bool = True
) -> None:
    """Three simulated processes, one with a stall or a death now and then, and four rounds."""
    stage.reset()
    rounds, parties = 4, 3
    begun, passed = [0] * parties, [0] * parties
    indices: list[list[int]] = [[] for _ in range(rounds)]
    barriers = [
        cls(player.pool.channels, "b", parties=parties, on_death=on_death,
            action=int if seed % 2 else None)
        for player in stage.clients[:parties]
    ]  # fmt: skip
    learned: dict[int, list[int]] = {}

    def life(number: int) -> Callable[[], None]:
        def lives() -> None:
            for turn in range(rounds):
                begun[number] += 1
                try:
                    index = barriers[number].wait()
                except limpet.BrokenBarrierError as error:
                    learned[number] = error.pids
                    return
                passed[number] += 1
                indices[turn].append(index)
                early = [n for n in range(parties) if begun[n] <= turn]
                assert all(stage.clients[n].dead for n in early), "a client passed early"
                assert on_death == "continue" or not early, "a client passed without the dead"

        return lives

    play = Play(
        stage, seed, [life(number) for number in range(parties)],
        lambda: crash and min(passed) > 0 and not any(one.dead for one in stage.clients),
    )  # fmt: skip
    play.go()
    gone = [player.pid for player in play.dead]
    living = [player.number for player in play.clients if not player.dead]
    for found in indices:
        assert len(set(found)) == len(found)
    if on_death == "continue" or not gone:
        assert all(passed[number] == rounds for number in living)
        assert not learned
    for pids in learned.values():
        assert pids == gone
    assert len({passed[number] for number in living}) == 1


@pytest.mark.exhaustive("hundreds of runs", quick=["continue"])
@pytest.mark.parametrize("on_death", ["break", "continue"])
def test_schedules_with_stalls_and_deaths(stage: SimulatedCluster, on_death: str) -> None:
    for seed in range(SCHEDULES):
        try:
            schedule(stage, seed, Barrier, on_death)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


class MissesNobody(Barrier):
    def missed(self, number: int, since: int) -> list[int]:
        return []


class StoresBlindly(Barrier):
    def change(self, state: int, after: int) -> bool:
        self.endpoint.store(self.address, after)
        return True


class KeepsTheCount(Barrier):
    def regrouped(self, state: int) -> int:
        return state & ~(COME << LOST_SHIFT)


class WaitsForTheDead(Barrier):
    def regroup(self) -> bool:
        return True


class SaysNothing(Barrier):
    def announce(self, state: int) -> bool:
        return False


MUTANTS = {
    "the last round's dead are not looked for": ("break", MissesNobody),
    "the count is raised by a load and a store": ("break", StoresBlindly),
    "the living do not come again after a death": ("continue", KeepsTheCount),
    "the dead are waited for": ("continue", WaitsForTheDead),
    "no register names the arriving process": ("break", SaysNothing),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_known_bad_variants_are_caught(stage: SimulatedCluster, name: str) -> None:
    on_death, bad = MUTANTS[name]
    for seed in range(200):
        try:
            schedule(stage, seed, bad, on_death)
        except (AssertionError, limpet.LimpetError):
            return
    pytest.fail("nothing was noticed")
