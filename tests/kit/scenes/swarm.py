"""Scenes of SWARM: its traps, and steps of our own, each of which a variant leaves out."""

from __future__ import annotations

import functools
import itertools
from typing import Any, Final

from kit.mutants.swarm import (
    CLOCK_STARTS_ANEW,
    GUESSED_AGAIN,
    LAST_IS_TAKEN,
    LITERAL_ALGORITHM_3,
    NOT_WRITTEN_BACK,
    REGISTER_IS_NOT_LOOKED_AT,
    TOMBSTONE_AT_A_MINORITY,
    TOMBSTONE_WITHOUT_LOCK,
    TORN_IN_PLACE,
    WHOLE_WORDS,
    WRITTEN_AGAIN_WITHOUT_LOCK,
)
from kit.puppets import (
    Puppet,
    ShiftedPool,
    verb_on,
    verb_on_address,
)
from kit.registers import Scene
from limpet.fault.matrix.testbed import within
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.stores.swarm.register import side_of

HOUR_US = 3_600_000_000


def _lock_is_refused(pools: Any) -> None:
    """A guess is seen twice, but its writer has the lock, as there was a later write."""
    scene = Scene(pools, 4)
    ahead, stale, reader, last = scene.clients
    ahead.pool.numbers.clock.after(ahead.pool.numbers.clock.guess() + HOUR_US)
    ahead.begin(functools.partial(ahead.store.update, b"k", b"B"), verb_on("cas", scene.nodes[1]))
    # it has seen that at the first replica, and its own guess is at a majority
    assert not stale.begin(
        functools.partial(stale.store.update, b"k", b"A"), verb_on("read_words", None, 3)
    )
    scene.pool.fail_node(scene.nodes[0])
    lock = scene.lock(1, stale)
    assert not reader.begin(lambda: reader.store.get(b"k"), verb_on_address("cas", lock))
    assert ahead.go()
    locked: list[int] = []

    def after_the_lock(verb: str, address: int) -> bool:
        if verb == "cas" and (locked or address == lock):
            locked.append(address)
        return len(locked) == 3

    assert not stale.go(after_the_lock)
    assert reader.go()
    between = last.store.get(b"k")
    assert stale.go()
    assert between == b"B"
    assert last.store.get(b"k") == b"A"
    assert reader.result == b"B"


def _slot_of_a_clock_that_was_ahead(pools: Any) -> None:
    """The next client of a number guesses, and its lock has a timestamp of the one before."""
    scene = Scene(pools, 1)
    (far,) = scene.clients
    before = pools.keep(ShiftedPool.open(scene.pool.url))
    before.endpoint.shift = HOUR_US
    far.pool.numbers.clock.after(far.pool.numbers.clock.guess() + 2 * HOUR_US)
    far.store.update(b"k", b"far")
    before.store("swarm", name="test").update(b"k", b"before")
    number = before.numbers.number
    assert far.store.get(b"k") == b"before"
    before.close()
    heir = Puppet(pools, scene.pool.url, "swarm")
    heir.store.update(b"k", b"of the heir")
    assert heir.pool.numbers.number == number
    assert far.store.get(b"k") == heir.store.get(b"k") == b"of the heir"


def _minority_is_lost(pools: Any) -> None:
    """A value is read that only the first replica has, whose node is lost then."""
    scene = Scene(pools, 3)
    writer, reader, later = scene.clients
    writer.begin(
        functools.partial(writer.store.update, b"k", b"new"), verb_on("cas", scene.nodes[1])
    )
    seen = reader.store.get(b"k")
    scene.pool.fail_node(scene.nodes[0])
    seen_later = later.store.get(b"k")
    assert writer.go()
    assert seen == seen_later
    assert later.store.get(b"k") == b"new"


def _second_replica_is_lost(pools: Any) -> None:
    """Of a value that is at a majority, the first replica is left; the third has an older one."""
    scene = Scene(pools, 2)
    writer, reader = scene.clients
    writer.store.update(b"k", b"new")
    scene.pool.fail_node(scene.nodes[1])
    assert reader.store.get(b"k") == writer.store.get(b"k") == b"new"


def _meet_a_tombstone(scene: Scene) -> tuple[Puppet, Puppet]:
    """A DELETE stands still, with its tombstone at one replica; a guess has met that. Both."""
    deleter, writer = scene.clients[:2]
    assert not deleter.begin(
        functools.partial(deleter.store.delete, b"k"),
        verb_on_address("cas", scene.word(1, deleter)),
    )
    assert not writer.begin(
        functools.partial(writer.store.put, b"k", b"new"), verb_on("read_words", scene.nodes[0], 2)
    )
    return deleter, writer


def _goes_on_without_the_index(scene: Scene, writer: Puppet, deleter: Puppet) -> None:
    """The writer ends, and does not look for another register."""
    if not writer.go(lambda verb, address: any(address in some for some in scene.directories)):
        writer.abandon()
        deleter.abandon()
        raise AssertionError("the value is about to be written again")


def _tombstone_is_lost(pools: Any) -> None:
    """With its node, and a reader confirms the guess that has met it; so it has been written, and
    must not be again."""
    scene = Scene(pools, 3)
    deleter, writer = _meet_a_tombstone(scene)
    reader = scene.clients[2]
    scene.pool.fail_node(scene.nodes[0])
    assert reader.store.get(b"k") == b"new"
    reader.store.update(b"k", b"later")
    _goes_on_without_the_index(scene, writer, deleter)
    assert reader.store.get(b"k") == scene.store.get(b"k") == b"later"
    assert scene.store.slots_taken() == [scene.reference]
    assert deleter.go()
    assert reader.store.get(b"k") is None


def _tombstone_is_put_again(pools: Any) -> None:
    """It is lost, a reader confirms the guess, and the DELETE goes on. So the value was there
    before it, and must not be written to another register after it."""
    scene = Scene(pools, 3)
    deleter, writer = _meet_a_tombstone(scene)
    reader = scene.clients[2]
    scene.pool.fail_node(scene.nodes[0])
    assert reader.store.get(b"k") == b"new"
    # it stood before that word of M
    assert not deleter.go(lambda verb, address: verb == "store")
    _goes_on_without_the_index(scene, writer, deleter)
    assert deleter.go()
    assert scene.store.get(b"k") is None


def _tombstone_is_lost_and_the_guess_is_stale(pools: Any) -> None:
    """No reader confirms the guess, and another client's value is above it: it is to be written
    again, not guessed again. A reader that has met it would take it for completed."""
    scene = next(
        scene
        for scene in (Scene(pools, 4, before) for before in range(3))
        if scene.nodes[0] != scene.reference >> NODE_SHIFT & 0xFF  # the index can be read
    )
    reader, ahead = scene.clients[2:]
    ahead.pool.numbers.clock.after(ahead.pool.numbers.clock.guess() + HOUR_US)
    deleter, writer = _meet_a_tombstone(scene)
    scene.pool.fail_node(scene.nodes[0])
    guess = scene.stamp(1, writer)

    # it has written the guess back, and reads it again
    copies = scene.reads_when(2, reader, lambda stamp: stamp == guess)
    assert not reader.begin(lambda: reader.store.get(b"k"), copies)
    assert not ahead.begin(
        functools.partial(ahead.store.update, b"k", b"ahead"),
        verb_on_address("cas", scene.word(2, ahead)),
    )
    ended = writer.go(scene.reads_when(1, writer, lambda stamp: stamp > guess))
    assert reader.go()
    assert ahead.go()
    between = scene.store.get(b"k")
    assert ended or writer.go()
    seen = [reader.result, between, scene.store.get(b"k")]
    for client in scene.clients[1:]:
        assert client.store.get(b"k") == seen[-1]
    assert deleter.go()
    assert scene.store.get(b"k") is None
    assert seen != [b"new", b"ahead", b"new"]


def _pointer_is_in_use_and_the_tombstone_is_lost(pools: Any) -> None:
    """A writer's first update was cut off before a word of M led to its buffer, so the row is taken
    for empty. Its second update cannot write there, meets a tombstone at a minority, and is killed:
    the value stands."""
    scene = Scene(pools, 1)
    (deleter,) = scene.clients
    writer = Puppet(pools, scene.pool.url, "swarm")
    cut_off_at_the_word_of_m(scene, writer)
    writer.store.update(b"k", b"old")
    scene.look()
    k, row = scene.order[1], writer.pool.numbers.number
    at = scene.place.pointer(k, row, side_of(scene.replicas[k].metadata(row)))
    assert not deleter.begin(
        functools.partial(deleter.store.delete, b"k"),
        verb_on_address("cas", scene.word(1, deleter)),
    )
    if not writer.begin(
        functools.partial(writer.store.update, b"k", b"new"),
        lambda verb, _: verb == "read_words" and scene.pool.endpoint.load(at) == scene.ident,
    ):
        writer.abandon()
    deleter.abandon()
    scene.pool.fail_node(scene.nodes[0])
    with within(5, "the get"):
        assert scene.store.get(b"k") in (b"old", None)


def cut_off_at_the_word_of_m(scene: Scene, writer: Puppet) -> None:
    """End the first update of a writer when a pointer names its buffer and no word of M leads
    there. Then it remembers its row as empty, and its second update finds the pointer in use."""
    writer.pool.numbers.take(scene.place.writers)
    assert not writer.begin(
        functools.partial(writer.store.update, b"k", b"new"),
        verb_on_address("cas", scene.word(0, writer)),
    )
    writer.abandon()
    assert writer.store.get(b"k") == b"old"


def _value_in_place_is_torn(pools: Any) -> None:
    """The client that wrote it was killed."""
    scene = Scene(pools, 1)
    (reader,) = scene.clients
    scene.visit()
    in_place = scene.place.address(scene.order[0]) + 8 * scene.place.width
    scene.pool.endpoint.write(in_place + 24, b"torn....")
    assert reader.store.get(b"k") == b"old"
    reader.store.update(b"k", b"new")
    assert reader.store.get(b"k") == b"new"


def _register_serves_another_key(pools: Any) -> None:
    """Its key was deleted, and its memory was used again; a client remembers the place. It updates
    first, as a get without a pin would find out, too, that the register is another one."""
    scene = Scene(pools, 1)
    (writer,) = scene.clients
    scene.store.delete(b"k")
    keys = (b"j%d" % number for number in itertools.count())
    while scene.reference not in scene.store.slots_taken():
        scene.store.insert(next(keys), b"other")
    updated = True
    try:
        writer.store.update(b"k", b"new")
    except KeyError:
        updated = False
    assert not updated
    assert writer.store.get(b"k") is None
    assert {value for _, value in scene.store.items()} == {b"other"}


def _copy_counts_as_the_tuple(pools: Any) -> None:
    """A value is at two replicas, in a buffer of its writer's and in one of a reader's; a client
    that has no writer number reads it."""
    scene = Scene(pools, 7)
    writer, reader = scene.clients[:2]
    last = Puppet(pools, scene.pool.url, "swarm")
    assert last.store.get(b"k") == b"old"
    assert not writer.begin(
        functools.partial(writer.store.update, b"k", b"new"), verb_on("cas", scene.nodes[1])
    )
    assert reader.store.get(b"k") == b"new"
    assert last.store.get(b"k") == b"new"
    assert writer.go()


STEPS: Final = (
    (WHOLE_WORDS, _copy_counts_as_the_tuple),
    (REGISTER_IS_NOT_LOOKED_AT, _register_serves_another_key),
    (LITERAL_ALGORITHM_3, _lock_is_refused),
    (CLOCK_STARTS_ANEW, _slot_of_a_clock_that_was_ahead),
    (NOT_WRITTEN_BACK, _minority_is_lost),
    (TORN_IN_PLACE, _value_in_place_is_torn),
    (LAST_IS_TAKEN, _second_replica_is_lost),
    (WRITTEN_AGAIN_WITHOUT_LOCK, _tombstone_is_lost),
    (TOMBSTONE_WITHOUT_LOCK, _tombstone_is_put_again),
    (GUESSED_AGAIN, _tombstone_is_lost_and_the_guess_is_stale),
    (TOMBSTONE_AT_A_MINORITY, _pointer_is_in_use_and_the_tombstone_is_lost),
)
