"""Creators and droppers of one name, and of one that collides with it, under schedules of simulated
processes that stall and die; a variant whose claims are not looked at again is found out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kit.channels import Play

import limpet
from limpet.fault.explore.sim_cluster import SimulatedCluster
from limpet.shm.catalogue.directory import CLAIMED, READY, Directory, Entry
from limpet.shm.endpoint.fabric import hash64

pytestmark = pytest.mark.exhaustive_in_pure("the same lines as compiled, and slower")

SCHEDULES = 150 if limpet.build == "compiled" else 30
MUTANT_SCHEDULES = 400
SIZE = 200
NAME = ".name"  # of no store, as all here
OTHER = next(
    name
    for name in (f".{number}" for number in range(1 << 16))
    if (hash64(name.encode()) ^ hash64(NAME.encode())) & 0xFFF == 0
)
"""Its claims look as those of NAME do."""


@pytest.fixture(scope="module")
def stage() -> Iterator[SimulatedCluster]:
    with SimulatedCluster("race", 4) as made:
        yield made


def run(stage: SimulatedCluster, seed: int) -> None:
    """Four processes make regions; what each has is its own, and zeros, until it drops it."""
    stage.reset()
    there: dict[str, int] = {}
    """Where the region of each name is known to be."""
    users = {NAME: 0, OTHER: 0}
    """How many have it, or are about to; only the last one may drop it."""
    droppers: dict[str, int] = {}

    def life(number: int) -> Callable[[], None]:
        regions = stage.clients[number].pool.regions
        endpoint = stage.clients[number].endpoint
        name = OTHER if number == 3 else NAME

        def obtain() -> None:
            while name in droppers and not stage.clients[droppers[name]].dead:
                endpoint.pause(0)
            users[name] += 1
            region = regions.obtain(0, name, SIZE)
            assert endpoint.read(region.address, SIZE) == bytes(SIZE)
            assert there.setdefault(name, region.address) == region.address, "two of one name"

        def drop() -> None:
            users[name] -= 1
            if not users[name]:
                there.pop(name, None)
                droppers[name] = number
                regions.discard(0, name)
                del droppers[name]

        def live() -> None:
            pool = stage.clients[number].pool
            for _ in range(2):
                pool.exclusively(obtain)
                pool.exclusively(drop)

        return live

    play = Play(stage, seed, [life(n) for n in range(4)], lambda: seed % 2 == 1 and not play.dead)
    play.go()
    dead = {player.number for player in play.dead}
    survivor = next(player for player in play.clients if player.number not in dead)
    survivor.pool.recover()
    ready = [e.name for e in survivor.pool.regions.directories[0] if e.state == READY]
    assert len(ready) == len(set(ready)), "two entries of one name"
    assert survivor.pool.audit()["leaked"] == 0
    for name in (NAME, OTHER):
        survivor.pool.exclusively(lambda name=name: survivor.pool.regions.obtain(0, name, SIZE))


@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_directory_has_one_entry_of_a_name_whoever_stalls_or_dies(
    stage: SimulatedCluster, seed: int
) -> None:
    run(stage, seed)


def test_claim_that_is_not_looked_at_again_makes_a_name_twice(
    stage: SimulatedCluster, monkeypatch: Any
) -> None:
    search = Directory._search

    def blind(directory: Directory, name: bytes) -> tuple[list[Entry], int]:
        """See no claims of others."""
        found, place = search(directory, name)
        return [entry for entry in found if entry.state != CLAIMED], place

    monkeypatch.setattr(Directory, "_search", blind)

    def run_all() -> None:
        for seed in range(MUTANT_SCHEDULES):
            run(stage, 2 * seed)

    with pytest.raises((AssertionError, limpet.LimpetError)):
        run_all()
