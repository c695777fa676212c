"""The traps of SWARM, and steps of our own, left out: each variant fails, what ships does not."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, Final

import pytest
from kit.mutants.steps import require_caught
from kit.mutants.swarm import (
    CLOCK_STARTS_ANEW,
    EXPLORED,
    GUESSED_AGAIN,
    LAST_IS_TAKEN,
    LITERAL_ALGORITHM_3,
    NOT_WRITTEN_BACK,
    REGISTER_IS_NOT_LOOKED_AT,
    TOMBSTONE_AT_A_MINORITY,
    TOMBSTONE_WITHOUT_LOCK,
    TORN_IN_PLACE,
    UNCHANGED,
    WHOLE_WORDS,
    WRITTEN_AGAIN_WITHOUT_LOCK,
    Mutant,
    in_force,
)
from kit.puppets import (
    Puppet,
    ShiftedPool,
    after,
    verb_on,
    verb_on_address,
)
from kit.registers import Scene

import limpet
from limpet.fault.explore.explorer import Exploration, explore
from limpet.fault.explore.sim_shrink import kind_of
from limpet.fault.matrix.testbed import within
from limpet.shm.endpoint.fabric import BUILD
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.slots import INCARNATION_BITS
from limpet.stores.swarm import layout as fields
from limpet.stores.swarm.words import is_tombstone, time_of, tuple_word

pytestmark = pytest.mark.either_build("the same lines on either build")

COMPILED = BUILD == "compiled"
RUNS_OF_MUTANT = 4000
HOUR_US = 3_600_000_000

compiled_only = pytest.mark.skipif(not COMPILED, reason="caught by many runs")


def _id(mutant: Mutant) -> str:
    return mutant.name


@pytest.mark.exhaustive("thousands of runs", quick=["abd*", "s9*"])
@compiled_only
@pytest.mark.parametrize("mutant", EXPLORED, ids=_id)
def test_swarm_mutant_is_caught_by_the_explorer(mutant: Mutant) -> None:
    with in_force(mutant):
        report = explore(mutant.parameters(RUNS_OF_MUTANT))
    assert report.failures, f"{report.schedules} runs did not show it"
    assert kind_of(report.failures[0].what) in mutant.says, report.failures[0].what


@pytest.mark.exhaustive("hundreds of runs")
@compiled_only
@pytest.mark.parametrize("failures", [0, 1])
def test_what_the_mutants_are_made_of_holds(failures: int) -> None:
    parameters = Exploration(
        store="swarm", schedules=250, seed=2, crashes=1, stalls=1, node_failures=failures,
        nodes=3, value_size=40,
    )  # fmt: skip
    with in_force(UNCHANGED):
        report = explore(parameters)
    assert report.failures == ()


# ---- timestamps ----------------------------------------------------------------------------------


def test_timestamps_last_for_thirty_years_from_2026() -> None:
    """Trap S7: in a word with the writer, its row, and what the value is."""
    year_us = 366 * 24 * 3600 * 1_000_000
    assert fields.TIME_MAX + 1 == 1 << 64 - fields.TIME_SHIFT
    assert (2026 - 2025 + 30) * year_us < fields.TIME_MAX
    word = tuple_word(fields.TIME_MAX - 1, 63, fields.VERIFIED, 63, 1)
    assert word < 1 << 64
    assert time_of(word) == fields.TIME_MAX - 1
    assert not is_tombstone(word)


@pytest.mark.parametrize("year", [2061, 2100])
def test_a_clock_at_the_end_of_time_is_an_error_and_no_tombstone(pools: Any, year: int) -> None:
    pool = pools(nodes=3)
    store = pool.store("swarm", name="test", capacity=50)
    store.put(b"k", b"v")
    late = pools.keep(ShiftedPool.open(pool.url))
    late.endpoint.shift = (year - 2025) * 366 * 24 * HOUR_US
    other = late.store("swarm", name="test")
    for write in (other.put, other.update):
        with pytest.raises(limpet.ClientError, match="clock"):
            write(b"k", b"w")
    assert other.get(b"k") == store.get(b"k") == b"v"
    store.update(b"k", b"w")
    assert other.get(b"k") == b"w"
    store.check()
    assert pool.audit()["leaked"] == 0


# ---- step by step --------------------------------------------------------------------------------


def _lock_is_refused(pools: Any) -> None:
    """A guess is seen twice, but its writer has the lock, as there was a later write."""
    scene = Scene(pools, 4)
    ahead, stale, reader, last = scene.clients
    ahead.pool.clock.after(ahead.pool.clock.guess() + HOUR_US)
    ahead.begin(functools.partial(ahead.store.update, b"k", b"B"), verb_on("cas", None, 3))
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
    """The next client in the slot guesses, and its lock has a timestamp of the one before."""
    scene = Scene(pools, 1)
    (far,) = scene.clients
    before = pools.keep(ShiftedPool.open(scene.pool.url))
    slot = before.client.ident >> INCARNATION_BITS
    before.endpoint.shift = HOUR_US
    far.pool.clock.after(far.pool.clock.guess() + 2 * HOUR_US)
    far.store.update(b"k", b"far")
    before.store("swarm", name="test").update(b"k", b"before")
    assert far.store.get(b"k") == b"before"
    before.close()
    heir = Puppet(pools, scene.pool.url, "swarm")
    assert heir.pool.client.ident >> INCARNATION_BITS == slot
    heir.store.update(b"k", b"of the heir")
    assert far.store.get(b"k") == heir.store.get(b"k") == b"of the heir"


def _minority_is_lost(pools: Any) -> None:
    """A value is read that only the first replica has, whose node is lost then."""
    scene = Scene(pools, 3)
    writer, reader, later = scene.clients
    writer.begin(functools.partial(writer.store.update, b"k", b"new"), verb_on("cas", None, 3))
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
        functools.partial(deleter.store.delete, b"k"), verb_on("cas", scene.nodes[1])
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
    written = scene.word(1, deleter)
    put: list[int] = []

    def after_the_tombstone(verb: str, address: int) -> bool:
        if verb == "cas" and address == written:
            put.append(address)
        return bool(put) and verb == "store"

    assert not deleter.go(after_the_tombstone)
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
    ahead.pool.clock.after(ahead.pool.clock.guess() + HOUR_US)
    deleter, writer = _meet_a_tombstone(scene)
    scene.pool.fail_node(scene.nodes[0])
    assert not reader.begin(
        lambda: reader.store.get(b"k"), verb_on("read_words", scene.nodes[2], 2)
    )
    assert not ahead.begin(
        functools.partial(ahead.store.update, b"k", b"ahead"), verb_on("cas", scene.nodes[2])
    )
    written = scene.word(2, writer)
    written_again = after(("cas", written), then=("read_words", scene.base(1)))
    ended = writer.go(written_again)
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


def _row_is_not_in_order_and_the_tombstone_is_lost(pools: Any) -> None:
    """A writer was killed that had begun to move its value to the other pointer. The next one
    cannot write, meets a tombstone at a minority, and is killed, too: the value stands."""
    scene = Scene(pools, 2)
    deleter, writer = scene.clients
    k, row = scene.order[0], writer.pool.client.ident >> INCARNATION_BITS
    writer.store.update(b"k", b"old")
    scene.look()
    (named,) = {scene.replicas[k].named(row, side) for side in range(2)} - {0}
    for side in range(2):
        scene.pool.endpoint.store(scene.place.pointer(k, row, side), named)
    assert not deleter.begin(
        functools.partial(deleter.store.delete, b"k"), verb_on("cas", scene.nodes[1])
    )
    freed: list[int] = []

    def after_something_is_freed(verb: str, address: int) -> bool:
        if verb == "mcas" and address >> NODE_SHIFT in scene.nodes:
            freed.append(address)
        return bool(freed) and verb == "read_words"

    if not writer.begin(
        functools.partial(writer.store.update, b"k", b"new"), after_something_is_freed
    ):
        writer.abandon()
    deleter.abandon()
    scene.pool.fail_node(scene.nodes[0])
    with within(5, "the get"):
        assert scene.store.get(b"k") in (b"old", None)


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
    """Its key was deleted, and its memory was used again; a reader remembers the place."""
    scene = Scene(pools, 1)
    (reader,) = scene.clients
    scene.store.delete(b"k")
    keys = (b"j%d" % number for number in itertools.count())
    while scene.reference not in scene.store.slots_taken():
        scene.store.insert(next(keys), b"other")
    assert reader.store.get(b"k") is None
    with pytest.raises(KeyError):
        reader.store.update(b"k", b"new")
    assert {value for _, value in scene.store.items()} == {b"other"}


def _copy_counts_as_the_tuple(pools: Any) -> None:
    """A value is at two replicas, in a buffer of its writer's and in one of a reader's; one who has
    no number as a writer reads it."""
    scene = Scene(pools, 7)
    writer, reader = scene.clients[:2]
    last = Puppet(pools, scene.pool.url, "swarm")
    assert last.store.get(b"k") == b"old"
    with pytest.raises(limpet.ClientError):
        last.store.update(b"k", b"other")
    assert not writer.begin(
        functools.partial(writer.store.update, b"k", b"new"), verb_on("cas", scene.nodes[1])
    )
    assert reader.store.get(b"k") == b"new"
    assert last.store.get(b"k") == b"new"
    assert writer.go()


BY_PUPPETS: Final = (
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
    (TOMBSTONE_AT_A_MINORITY, _row_is_not_in_order_and_the_tombstone_is_lost),
)


@pytest.mark.parametrize(
    ("mutant", "scenario"), BY_PUPPETS, ids=[mutant.name for mutant, _ in BY_PUPPETS]
)
def test_swarm_mutant_is_caught_step_by_step(
    mutant: Mutant, scenario: Callable[[Any], None], pools: Any
) -> None:
    require_caught(in_force, UNCHANGED, mutant, scenario, pools)


def test_a_get_of_a_value_that_is_nowhere_ends(pools: Any) -> None:
    """Damaged memory: of a tuple that is at one replica the value is gone."""
    scene = Scene(pools, 1)
    (writer,) = scene.clients
    assert not writer.begin(
        functools.partial(writer.store.update, b"k", b"new"), verb_on("cas", scene.nodes[1])
    )
    scene.look()
    k, row = scene.order[0], writer.pool.client.ident >> INCARNATION_BITS
    for side in range(2):
        reference = scene.replicas[k].named(row, side)
        for other in range(3 if reference else 0):
            scene.pool.endpoint.write(scene.place.beside(reference, other), bytes(8))
    with within(20, "the get"), pytest.raises(limpet.StoreCorrupt):
        scene.store.get(b"k")
    assert writer.go()
