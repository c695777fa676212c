"""A client's traces in its row of a register of SWARM: scenes of traps S10 and S11."""

from __future__ import annotations

import functools
from typing import Any, Final

import limpet
from kit.mutants.swarm import COPY_IS_REMEMBERED, NUMBER_IS_EMPTY, NUMBER_IS_LEFT
from kit.puppets import verb_on, verb_on_address
from kit.registers import Scene
from limpet.fault.matrix.testbed import within
from limpet.shm.endpoint.slots import INCARNATION_BITS
from limpet.stores.core.status import VACANT_CLASS

PATIENCE_S: Final = 10.0


def put_it(store: Any) -> bytes:
    store.put(b"k", b"of the heir")
    return b"of the heir"


def update_it(store: Any) -> bytes | None:
    try:
        store.update(b"k", b"of the heir")
    except KeyError:
        return None
    return b"of the heir"


def insert_it(store: Any) -> bytes | None:
    try:
        store.insert(b"k", b"of the heir")
    except limpet.KeyExists:
        return b"old"
    return b"of the heir"


def delete_it(store: Any) -> None:
    try:
        store.delete(b"k")
    except KeyError:
        return


def get_it(store: Any) -> bytes | None:
    value: bytes | None = store.get(b"k")
    return value


def number_without_a_tombstone(pools: Any, where: int = 0) -> None:
    """A delete ends between the two CAS of its tombstone, and its client puts and deletes again.

    `where`: on the replica that is read as the one of that number; it has it on those before.
    """
    for operation in (put_it, delete_it):
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


def two_tombstones(pools: Any) -> None:
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


def copy_is_not_written_back(pools: Any) -> None:
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
    for place in range(2, 5):  # nothing may depend on what is in place
        scene.pool.endpoint.write(scene.base(place) + 8 * scene.place.width, bytes(8))
    for client in (other, reader):
        assert client.store.get(b"k") == b"of the reader"
    assert writer.go()
    assert other.store.get(b"k") == b"new"
    scene.store.check()
    assert not scene.pool.audit()["leaked"]


STEPS: Final = (
    (NUMBER_IS_EMPTY, number_without_a_tombstone),
    (NUMBER_IS_LEFT, number_without_a_tombstone),
    (COPY_IS_REMEMBERED, copy_is_not_written_back),
)
