"""A client's traces in its row of a register, and their repair by the next client there.

Traps S10 and S11: a tombstone that was cut in two, and copies that were not written back.
"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable
from typing import Any, Final

import pytest
from kit.mutants.steps import require_caught
from kit.mutants.swarm import (
    COPY_IS_REMEMBERED,
    NUMBER_IS_EMPTY,
    NUMBER_IS_LEFT,
    UNCHANGED,
    Mutant,
    in_force,
)
from kit.puppets import verb_on, verb_on_address
from kit.registers import Scene

import limpet
from limpet.fault.inject.workers import Workers
from limpet.fault.matrix.operations import Broken
from limpet.fault.matrix.testbed import look_away, within
from limpet.shm.endpoint.fabric import BUILD
from limpet.shm.endpoint.slots import INCARNATION_BITS
from limpet.stores.status import VACANT_CLASS

pytestmark = pytest.mark.either_build("the same lines on either build")

COMPILED = BUILD == "compiled"
PATIENCE_S = 10.0


# ---- a delete is killed, and the next client of its slot -----------------------------------------


def _put(store: Any) -> bytes:
    store.put(b"k", b"of the heir")
    return b"of the heir"


def _update(store: Any) -> bytes | None:
    try:
        store.update(b"k", b"of the heir")
    except KeyError:
        return None
    return b"of the heir"


def _insert(store: Any) -> bytes | None:
    try:
        store.insert(b"k", b"of the heir")
    except limpet.KeyExists:
        return b"old"
    return b"of the heir"


def _delete(store: Any) -> None:
    try:
        store.delete(b"k")
    except KeyError:
        return


def _get(store: Any) -> bytes | None:
    value: bytes | None = store.get(b"k")
    return value


OPERATIONS: Final[tuple[Callable[[Any], bytes | None], ...]] = (
    _put,
    _update,
    _insert,
    _delete,
    _get,
)


def _heirs_of_killed_deletes(
    pools: Any, kind: str, replicas: int, operation: Callable[[Any], bytes | None]
) -> int:
    """Kill a delete at each of its steps, and run the operation in a new client of its slot.

    How many steps it has.
    """
    pool = pools(nodes=replicas)
    store = pool.store(kind, name="test", capacity=50, replicas=replicas)
    k = 0
    died = True
    while died:
        k += 1
        store.put(b"k", b"old")
        slots = [pool.client.ident >> INCARNATION_BITS]

        def victim(slot: int, incarnation: int, fuse: int = k) -> None:
            look_away(pool)
            store.update(b"k", b"old")  # its own row is in use
            pool.endpoint.fuse = fuse
            store.delete(b"k")
            pool.endpoint.fuse = 0
            os._exit(0)

        with within(PATIENCE_S, "the victim"), Workers(victim) as workers:
            ended = workers.reap(workers.start(0))
        assert ended.status in (0, -signal.SIGKILL), ended.traceback
        died = ended.status != 0
        pool.recover()
        heir = limpet.Pool.open(pool.url)
        try:
            slots.append(heir.client.ident >> INCARNATION_BITS)
            assert slots == [0, 1], "the heir has another slot"
            there = store.get(b"k")
            with within(PATIENCE_S, f"{operation.__name__} after a kill at step {k}"):
                left = operation(heir.store(kind, name="test"))
            assert there in (b"old", None)
            assert store.get(b"k") == left
        finally:
            heir.close()
        store.check()
        assert not pool.audit()["leaked"]
    return k - 1


HEIRS = [("swarm", 3, operation) for operation in OPERATIONS]
if COMPILED:
    HEIRS += [
        (kind, replicas, operation)
        for kind, replicas in (("swarm", 1), ("swarm", 5), ("dm-abd", 3))
        for operation in (_put, _delete)
    ]


@pytest.mark.exhaustive("every step", quick=["swarm-1-*", "swarm-3-_get"])
@pytest.mark.parametrize(("kind", "replicas", "operation"), HEIRS)
def test_the_next_client_of_a_killed_deletes_slot_is_not_held_up(
    pools: Any, kind: str, replicas: int, operation: Callable[[Any], bytes | None]
) -> None:
    assert _heirs_of_killed_deletes(pools, kind, replicas, operation) > 8


# ---- step by step --------------------------------------------------------------------------------


def _number_without_a_tombstone(pools: Any, where: int = 0) -> None:
    """A delete ends between the two CAS of its tombstone, and its client puts and deletes again.

    `where`: on the replica that is read as the one of that number; it has it on those before.
    """
    for operation in (_put, _delete):
        scene = Scene(pools, 2)
        deleter, other = scene.clients
        word = scene.word(where, deleter)
        deleter.store.update(b"k", b"old")  # of its row, one pointer is in use, and is needed
        assert not deleter.begin(
            functools.partial(deleter.store.delete, b"k"), verb_on_address("cas", word)
        )
        deleter.abandon()
        row = deleter.pool.client.ident >> INCARNATION_BITS
        scene.look()
        replica = scene.replicas[scene.order[where]]
        pointers = [replica.pointer(row, side) for side in range(2)]
        assert any(
            there != scene.ident and there >> 48 & 0xFF == VACANT_CLASS for there in pointers
        )
        with within(PATIENCE_S, operation.__name__):
            left = operation(deleter.store)
        assert other.store.get(b"k") == scene.store.get(b"k") == left
        scene.store.check()
        assert not scene.pool.audit()["leaked"]


def _two_tombstones(pools: Any) -> None:
    """Of five: two deletes end, one after the first replica, one after the second. The next client
    in the slot of either meets both, with its own row as full as it can be."""
    for heir in (0, 1):
        scene = Scene(pools, 3, replicas=5)
        first, second, other = scene.clients
        delete = functools.partial(second.store.delete, b"k")
        assert not second.begin(delete, verb_on_address("cas", scene.word(0, second)))
        delete = functools.partial(first.store.delete, b"k")
        assert not first.begin(delete, verb_on_address("cas", scene.word(2, first)))
        assert not second.go(verb_on_address("cas", scene.word(1, second)))
        first.abandon()
        second.abandon()
        with within(PATIENCE_S, "the put"):
            scene.clients[heir].store.put(b"k", b"new")
        assert other.store.get(b"k") == scene.store.get(b"k") == b"new"
        scene.store.check()
        assert not scene.pool.audit()["leaked"]


def _copy_is_not_written_back(pools: Any) -> None:
    """Of five: a get writes back a value that one replica has, and two nodes are lost. What it has
    written itself is at a majority of what is left, and is the value."""
    scene = Scene(pools, 3, replicas=5)
    writer, reader, other = scene.clients
    reader.store.update(b"k", b"of the reader")
    assert other.store.get(b"k") == b"of the reader"
    assert not writer.begin(
        functools.partial(writer.store.update, b"k", b"new"), verb_on("cas", None, 3)
    )
    assert not reader.begin(
        lambda: reader.store.get(b"k"), verb_on_address("cas", scene.word(1, reader))
    )
    for node in scene.nodes[:2]:
        scene.pool.fail_node(node)
    assert reader.go()
    assert reader.result == b"of the reader"
    for client in (other, reader):
        assert client.store.get(b"k") == b"of the reader"
    assert writer.go()
    assert other.store.get(b"k") == b"new"
    scene.store.check()
    assert not scene.pool.audit()["leaked"]


SCENES: Final = (
    (NUMBER_IS_EMPTY, _number_without_a_tombstone),
    (NUMBER_IS_LEFT, _number_without_a_tombstone),
    (COPY_IS_REMEMBERED, _copy_is_not_written_back),
)


@pytest.mark.parametrize(("mutant", "scenario"), SCENES, ids=[mutant.name for mutant, _ in SCENES])
def test_swarm_mutant_is_caught_step_by_step(
    mutant: Mutant, scenario: Callable[[Any], None], pools: Any
) -> None:
    require_caught(in_force, UNCHANGED, mutant, scenario, pools)


@pytest.mark.parametrize(
    "scenario",
    [
        _number_without_a_tombstone,
        functools.partial(_number_without_a_tombstone, where=1),
        _two_tombstones,
        _copy_is_not_written_back,
    ],
    ids=["number", "number-beside-a-tombstone", "two-tombstones", "copy"],
)
def test_what_an_attempt_leaves_is_no_ones_harm(
    scenario: Callable[[Any], None], pools: Any
) -> None:
    """As the above, on the store as it ships."""
    scenario(pools)


# ---- damaged memory ------------------------------------------------------------------------------


def _damaged(pools: Any, kind: str) -> tuple[Any, bytes]:
    """A store, and a key whose register is another one on two replicas of three, those that are
    read; the third is the one that says which register it is."""
    pool = pools(nodes=3)
    store = pool.store(kind, name="test", capacity=50, replicas=3)
    register = store.register.place
    for number in range(50):
        key = b"k-%d" % number
        store.put(key, b"old")
        store.get(key)
        if register.first == 1:
            break
    for k in (1, 2):
        pool.endpoint.store(register.address(k), register.ident + 1)
    return store, key


DAMAGE = [("swarm", "get"), ("swarm", "put"), ("swarm", "delete"), ("dm-abd", "delete")]


@pytest.mark.exhaustive("every operation", quick=["swarm-put"])
@pytest.mark.parametrize(("kind", "name"), DAMAGE)
def test_an_operation_on_a_damaged_register_ends_and_hears_signals(
    pools: Any, kind: str, name: str
) -> None:
    store, key = _damaged(pools, kind)
    operation = functools.partial(getattr(store, name), key, *[b"new"] * (name == "put"))
    with pytest.raises(Broken), within(0.3, name):
        operation()
    said = f"{store.pool.url}, store 'test': the key {key!r}: .*damaged"
    with within(30, name), pytest.raises(limpet.StoreCorrupt, match=said):
        operation()
