"""A client's traces in its row of a register of SWARM: scenes of traps S10 and S11."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Final

import pytest

import limpet
from kit.mutants.swarm import (
    COPY_IS_REMEMBERED,
    HANDLES_DO_NOT_SHARE,
    NUMBER_IS_EMPTY,
    NUMBER_IS_LEFT,
    SIDE_STAYS,
    STAMP_IS_NOT_COMPARED,
    TAKEN_FROM_THE_LIVING,
    WRITTEN_WITHOUT_A_LOOK,
)
from kit.puppets import Puppet, verb_on, verb_on_address
from kit.registers import Scene
from limpet.fault.matrix.testbed import within
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.slots import INCARNATION_BITS
from limpet.stores.core.status import VACANT_CLASS
from limpet.stores.swarm.layout import HEADER
from limpet.stores.swarm.register import row_of, side_of

PATIENCE_S: Final = 10.0
KEYS_MAX: Final = 400


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
        row = deleter.pool.numbers.number
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
        functools.partial(writer.store.update, b"k", b"new"), verb_on("cas", scene.nodes[1])
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


def _out_of_place(pools: Any, clients: int) -> tuple[Any, list[Puppet]]:
    """A store without values in place, and clients whose rows of k have both buffers."""
    store = pools(nodes=3).store(
        "swarm", name="test", capacity=300, replicas=3, in_place=False, cache_size=1000
    )
    store.put(b"k", b"0")
    puppets = [Puppet(pools, store.pool.url, "swarm") for _ in range(clients)]
    for puppet in puppets:
        for value in (b"1", b"2", b"3"):
            puppet.store.update(b"k", value)
    return store, puppets


def buffer_is_anothers(pools: Any) -> None:
    """The key was deleted, and the buffer whose turn it is has another key's value by now. Of that,
    every replica is needed: a node may be lost."""
    store, (writer,) = _out_of_place(pools, 1)
    (reference,) = store.slots_taken()
    recycling = store.register.recycling
    assert recycling.visit(reference)
    recycling.quorum.read_all()
    row = writer.pool.numbers.number
    (turns,) = {
        replica.named(row, 1 - side_of(replica.metadata(row)))
        for replica in recycling.quorum.replicas
    } - {0}
    place = recycling.register
    last = place.address((place.first + 2) % 3) >> NODE_SHIFT  # which a WRITE leaves alone
    store.delete(b"k")
    written: list[bytes] = []

    def is_anothers(register: int) -> bool:
        assert recycling.visit(register)
        return turns in recycling.buffers_named()

    while not any(map(is_anothers, store.slots_taken())):
        assert len(written) < KEYS_MAX
        written.append(b"j%d" % len(written))
        writer.store.insert(written[-1], b"other")
    with pytest.raises(KeyError):
        writer.store.update(b"k", b"late")
    store.pool.fail_node(last)
    assert all(store.get(key) == b"other" for key in written)
    store.check()


def row_has_two_handles(pools: Any) -> None:
    """Both of one client, with values that suit one buffer. The one that has written before stops
    with its value beside both replicas."""
    store, (writer,) = _out_of_place(pools, 1)
    writer.pool.store("swarm", name="test").update(b"k", b"other")
    update = functools.partial(writer.store.update, b"k", b"new")
    assert not writer.begin(update, verb_on("cas", None, 2))
    with within(PATIENCE_S, "the get"):
        assert store.get(b"k") in (b"other", b"new")
    assert writer.go()
    assert store.get(b"k") == b"new"


def value_is_written_and_not_put(pools: Any) -> None:
    """A client stops with its value written, and no word of M changed; its operation is cut off."""
    store, (writer, other) = _out_of_place(pools, 2)
    writer.store.update(b"k", b"old")
    assert not writer.begin(functools.partial(writer.store.update, b"k", b"new"), verb_on("cas"))
    with within(PATIENCE_S, "the gets"):
        assert store.get(b"k") == other.store.get(b"k") == b"old"
    writer.abandon()
    before = writer.store.stats()["cas"]
    writer.store.update(b"k", b"last")
    assert writer.store.stats()["cas"] - before == 2  # in the same buffer
    assert store.get(b"k") == other.store.get(b"k") == b"last"
    store.check()
    assert not store.pool.audit()["leaked"]


def buffer_is_written_beside_a_reader(pools: Any) -> None:
    """A reader looks for a tuple in a buffer that has a later value by then, which is not put."""
    store, (writer, reader) = _out_of_place(pools, 2)
    writer.store.update(b"k", b"old")
    reader.store.get(b"k")
    assert not reader.begin(lambda: reader.store.get(b"k"), verb_on("read_words", None, 3))
    writer.store.update(b"k", b"middle")
    assert not writer.begin(functools.partial(writer.store.update, b"k", b"new"), verb_on("cas"))
    with within(PATIENCE_S, "the get"):
        assert reader.go()
    assert reader.result in (b"old", b"middle")
    writer.abandon()
    assert store.get(b"k") == b"middle"


def step_of_a_client_given_up_lands_late(pools: Any) -> None:
    """A client of a host that stood still was stopped between the look at its slot and one word of
    a value. Others have given it up, and the next client of its slot has written to the key. Then
    the word lands, and a node is lost."""
    pool = pools(nodes=3, multi_host=True, lease=60)
    store = pool.store("swarm", name="test", capacity=50, replicas=3)
    store.put(b"k", b"old")
    late, other = (Puppet(pools, pool.url, "swarm") for _ in range(2))
    for value in (b"1", b"2", b"3"):
        late.store.update(b"k", value)
    place = store.register.place
    nodes = [place.address((place.first + n) % 3) >> NODE_SHIFT for n in range(2)]
    stops: list[int] = []

    def writes_its_value(verb: str, address: int) -> bool:
        if verb == "write_gather" and address >> NODE_SHIFT == nodes[1]:
            stops.append(address + HEADER)
        return bool(stops)

    assert not late.begin(functools.partial(late.store.update, b"k", b"late"), writes_its_value)
    ident = late.pool.client.ident
    pool.exclusively(lambda: pool.membership.recover(*pool.membership.place(ident)))
    late.pool.membership.locks.drop(ident >> INCARNATION_BITS)  # it was of a host of its own
    number = late.pool.numbers.number
    heir = Puppet(pools, pool.url, "swarm")
    for turn in range(3):
        heir.store.update(b"k", b"of the heir %d" % turn)
        assert heir.pool.numbers.number == number
        pool.endpoint.store(stops[0], int.from_bytes(b"too late", "little"))
        for client in (heir, other):
            assert client.store.get(b"k") == b"of the heir %d" % turn
        assert _copies(store, b"of the heir %d" % turn) == 2
    with contextlib.suppress(limpet.ClientError):
        late.abandon()
    pool.fail_node(nodes[0])
    assert other.store.get(b"k") == heir.store.get(b"k") == b"of the heir 2"
    store.check()


def _copies(store: Any, value: bytes) -> int:
    """How many replicas have the value in the buffer that their greatest tuple leads to."""
    (reference,) = store.slots_taken()
    quorum = store.register.quorum
    assert store.register.recycling.visit(reference)
    quorum.read_all()
    found = 0
    for replica in quorum.replicas:
        top = max(replica.metadata(row) for row in range(store.register.place.writers))
        if buffer := replica.named(row_of(top), side_of(top)):
            at = store.register.place.beside(buffer, replica.k) + HEADER
            found += store.pool.endpoint.read(at, len(value)) == value
    return found


STEPS: Final = (
    (TAKEN_FROM_THE_LIVING, step_of_a_client_given_up_lands_late),
    (WRITTEN_WITHOUT_A_LOOK, buffer_is_anothers),
    (HANDLES_DO_NOT_SHARE, row_has_two_handles),
    (SIDE_STAYS, value_is_written_and_not_put),
    (STAMP_IS_NOT_COMPARED, buffer_is_written_beside_a_reader),
    (NUMBER_IS_EMPTY, number_without_a_tombstone),
    (NUMBER_IS_LEFT, number_without_a_tombstone),
    (COPY_IS_REMEMBERED, copy_is_not_written_back),
)
