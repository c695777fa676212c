"""Crash points that take two clients or a lost node: clients die there; what is left is mended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from kit.mutants.fusee import UNCHANGED, backup_of, in_force, room_of
from kit.puppets import PuppetPool, Where, dies_before, verb_on, verb_on_address

from limpet.fault.matrix.testbed import look_away
from limpet.shm.endpoint.layout import LEADER, NODE_STATES, slot_address
from limpet.shm.endpoint.slots import PARKED
from limpet.shm.endpoint.states import EXCLUDED, FAILED

pytestmark = pytest.mark.either_build("the same lines on either build")

SMALL, MIDDLE, BIG = b"s", b"m" * 60, b"B" * 120
"""Of bigger objects the words are greater: of several proposals, the smallest one wins."""


class Scene:
    """A store whose one subtable has its primary on node 0 and backups on the next ones.

    It is the shipped source, uncompiled, so that tests can ask it for addresses.
    """

    def __init__(self, pools: Any, replicas: int, fewer: int = 0) -> None:
        """`fewer`: replicas that an object has less than the index."""
        url = pools(nodes=replicas + 1, block_size=16 << 10).url
        self.pool = pools.keep(PuppetPool.open(url))
        self.store = self.pool.store(
            "fusee", name="test", capacity=64, replicas=replicas - fewer, index_replicas=replicas
        )
        self.store.put(b"bystander", b"old")
        self.deaths = 0

    def die(self, where: Where, work: Callable[[Any], object]) -> None:
        """A client begins an operation, and dies just before that verb."""

        def prepare() -> None:
            look_away(self.pool)  # it must not recover dead clients that it meets
            for value in (SMALL, MIDDLE, BIG):  # so that it has memory at hand
                self.store.put(b"warm", value)
            self.store.delete(b"warm")

        dies_before(self.pool, where, lambda: work(self.store), prepare)
        self.deaths += 1

    def dead(self) -> list[int]:
        """Addresses of the slots of those that died."""
        membership = self.pool.membership
        found = [slot for slot, word in membership.occupied() if membership.dead(slot, word)]
        assert len(found) == self.deaths
        return [slot_address(slot) for slot in found]

    def room(self, key: bytes) -> int:
        """Which slot an insert of the key would choose."""
        return room_of(self.store, key)

    def link(self, key: bytes) -> int:
        """The object of a key."""
        assert self.store.index.look_up(self.store.place, key)
        return int(self.store.place.word & (1 << 56) - 1)

    def mended(self, possible: set[bytes | None], first: str) -> None:
        """The survivor's work, or recovery, comes first; then the other."""
        store = self.store
        assert store.get(b"k") in possible
        if first == "recovery":
            assert len(self.pool.recover()["clients"]) == self.deaths
            assert store.get(b"k") in possible
        for value in (b"1", b"2"):
            store.put(b"k", value)
        assert store.get(b"k") == b"2"
        store.delete(b"k")
        store.insert(b"k", b"3")
        self.pool.recover()
        assert store.get(b"k") == b"3"
        assert dict(store.items()) == {b"k": b"3", b"bystander": b"old"}
        store.check()
        audit = self.pool.audit()
        assert audit["leaked"] == audit["held"] == 0, audit
        assert len(self.pool.clients()) == len({c["client"] for c in self.pool.clients()}) <= 2


def _half_an_update(scene: Scene) -> int:
    """A dead client's proposal is on the first backup only; the old object."""
    scene.store.put(b"k", b"old")
    scene.die(verb_on("cas", number=2), lambda store: store.update(b"k", SMALL))
    return scene.link(b"k")


def _half_an_insert(scene: Scene) -> tuple[int, int]:
    """A dead client's insert is on the backup; its slot on the primary and there.

    Another insert of the key would choose another slot.
    """
    others = [b"another %d" % number for number in range(30)]
    for other in others:
        scene.store.insert(other, b"")
    slot = scene.room(b"k")
    scene.die(verb_on("cas", number=2), lambda store: store.insert(b"k", SMALL))
    for other in others:
        scene.store.delete(other)
    assert scene.room(b"k") != slot
    return slot, backup_of(scene.store, slot, 1)


def _helped(scene: Scene) -> None:
    old = _half_an_update(scene)
    scene.die(verb_on("cas", node=0), lambda store: store.update(b"k", BIG))
    assert scene.link(b"k") == old
    assert scene.store.logged.death(old) != 0


def _evicting(scene: Scene) -> None:
    slot, _ = _half_an_insert(scene)
    scene.die(verb_on_address("cas", slot), lambda store: store.insert(b"k", BIG))
    assert scene.store.get(b"k") is None


def _voided(scene: Scene) -> None:
    slot, backup = _half_an_insert(scene)
    before = scene.pool.endpoint.load(slot)
    scene.die(verb_on_address("cas", backup), lambda store: store.insert(b"k", BIG))
    assert scene.pool.endpoint.load(slot) != before
    assert scene.pool.endpoint.load(backup) != scene.pool.endpoint.load(slot)


def _parked(scene: Scene) -> None:
    _half_an_update(scene)
    scene.die(verb_on_address("load", LEADER), _lose_the_primary)
    assert any(scene.pool.endpoint.load(at + PARKED) for at in scene.dead())


def _reconciled(scene: Scene) -> None:
    _half_an_update(scene)
    scene.die(_excluding(0), _lose_the_primary)
    assert scene.pool.view.states()[0] == FAILED
    assert scene.pool.endpoint.load(LEADER)


def _reconciling(scene: Scene) -> None:
    _half_an_update(scene)
    scene.die(verb_on("store", node=2), _lose_the_primary)
    assert scene.pool.view.states()[0] == FAILED
    assert scene.pool.endpoint.load(LEADER)


def _lose_the_primary(store: Any) -> None:
    store.pool.fail_node(0)
    store.get(b"k")


def _excluding(node: int) -> Where:
    """The leader is about to say that nothing is counted on the node any more."""
    led: list[bool] = []

    def reached(verb: str, address: int) -> bool:
        led.append(verb == "cas" and address == LEADER)
        return any(led) and verb == "cas" and address == NODE_STATES + 8 * node

    return reached


POINTS: Final[dict[str, tuple[int, Callable[[Scene], None], set[bytes | None]]]] = {
    "helped": (3, _helped, {b"old", SMALL, BIG}),
    "evicting": (2, _evicting, {None}),
    "voided": (2, _voided, {None}),
    "parked": (3, _parked, {b"old", SMALL}),
    "reconciled": (3, _reconciled, {b"old", SMALL}),
    "reconciling": (3, _reconciling, {b"old", SMALL}),
}


@pytest.mark.parametrize("first", ["recovery", "work"])
@pytest.mark.parametrize("fewer", [0, 1])
@pytest.mark.parametrize("name", POINTS)
def test_death_at_a_point_that_takes_more_than_one(
    pools: Any, name: str, fewer: int, first: str
) -> None:
    replicas, die, possible = POINTS[name]
    with in_force(UNCHANGED):
        scene = Scene(pools, replicas, fewer)
        die(scene)
        scene.mended(possible, first)
        lost = scene.pool.view.states()
        assert [state == EXCLUDED for state in lost] == [
            name in ("parked", "reconciled", "reconciling"), *[False] * replicas,
        ]  # fmt: skip
