"""Creators and droppers of one name, and of one that collides with it, under schedules of simulated
processes that stall and die; a variant whose claims are not looked at again is found out. Stores
that are made, renamed and dropped, and looks at all of them; a look that makes is found out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kit.channels import Play

import limpet
from limpet.fault.explore.explorer import Exploration, explore
from limpet.fault.explore.schedule import SWITCH, Action, Point
from limpet.fault.explore.sim_cluster import SimulatedCluster
from limpet.fault.explore.sim_names import NamesCluster
from limpet.fault.explore.sim_program import OF_NAMES, parse_program
from limpet.fault.explore.sim_run import replay
from limpet.shm.catalogue.directory import CLAIMED, LINKING, READY, Directory, Entry
from limpet.shm.catalogue.regions import Regions
from limpet.shm.endpoint.fabric import hash64
from limpet.stores.pool import Pool
from limpet.stores.registry import KINDS

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


# ---- stores, and looks at all of them -----------------------------------------------------------


@pytest.mark.exhaustive("every kind", quick=["race", "fusee", "rtx-sherman", "loco"])
@pytest.mark.parametrize("kind", KINDS)
def test_names_hold_whoever_looks_stalls_or_dies(kind: str) -> None:
    report = explore(Exploration(kind, schedules=SCHEDULES // 5, seed=3, names=True, crashes=2))
    assert report.ok, report.failures


def test_every_call_of_names_can_be_in_a_program() -> None:
    program = parse_program("oa oa ya ob zb za l|oa l|ga")
    assert {call.kind for calls in program for call in calls} > OF_NAMES
    with NamesCluster("race", 3) as cluster:
        assert replay(cluster, program, {}).failure == ""
    with pytest.raises(limpet.ParameterError, match="explore with names"):
        Exploration(program="oa za|l|")


class LooksThatMake:
    """As it was: a look finds the entries, makes handles without a pin, and these make regions."""

    @staticmethod
    def attach(regions: Any, node: int, name: str, size: int) -> int:
        return int(regions.obtain(node, name, size).address)

    @staticmethod
    def of_stores(pool: Any, work: Any, wanted: Any = None) -> list[Any]:
        handles = (pool.handle_of(entry) for entry in pool.linking() if entry.state in LINKING)
        return [work(handle) for handle in handles]


@pytest.mark.parametrize("bad", [False, True], ids=["sound", "makes"])
def test_look_that_makes_a_dropped_store_anew_is_found(bad: bool, monkeypatch: Any) -> None:
    """One switch to a client that drops, at any step of a look."""
    if bad:
        monkeypatch.setattr(Regions, "attach", LooksThatMake.attach)
        monkeypatch.setattr(Pool, "of_stores", LooksThatMake.of_stores)
    program = parse_program("ob l|zb")
    with NamesCluster("race", 2) as cluster:
        steps = cluster.steps_of(program[0][1])
        for step in range(1, steps, 1 if bad else 15):
            run = replay(cluster, program, {Point(0, 1, step): (Action(SWITCH, 1),)})
            if run.failure:
                break
    assert bool(run.failure) == bad, run.failure
