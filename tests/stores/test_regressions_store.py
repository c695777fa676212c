"""Races and error paths of stores and of the catalogue that once went wrong, each step by step."""

from __future__ import annotations

from typing import Any

import pytest
from kit.endpoints import Interrupted, WatchedPool

import limpet
from limpet.shm.catalogue.directory import READY, VOID
from limpet.shm.endpoint.fabric import hash64
from limpet.shm.endpoint.layout import CONTROL_NODE, NODE_SHIFT, catalogue_entries


def keys_of_node(store: Any, node: int, count: int) -> list[bytes]:
    """Some keys whose pairs are on that node."""
    found = (
        key
        for key in (b"%d" % number for number in range(1000))
        if (hash64(key) >> 32) * store.parameters.subtables >> 32 == node
    )
    return [next(found) for _ in range(count)]


def test_check_is_right_beside_a_writer(pools: Any) -> None:
    """An object that was replaced between the look at its slot and at itself was called corrupt."""
    pool = pools()
    writing = pool.store("race", capacity=64)
    writing.put(b"k", b"old")
    checking = pools.keep(WatchedPool.open(pool.url))
    store = checking.store("race")

    def replace(verb: str, address: int) -> None:
        if verb == "load" and address >> NODE_SHIFT != CONTROL_NODE:
            checking.endpoint.before = None
            writing.update(b"k", b"new")

    checking.endpoint.before = replace
    store.check()
    assert checking.endpoint.before is None
    assert store.get(b"k") == b"new"


def test_get_many_keeps_no_period_open_for_longer_than_a_batch(pools: Any) -> None:
    """Its one pin kept others waiting for memory, until they killed the reader."""
    pool = pools()
    reading = pools.keep(WatchedPool.open(pool.url))
    store = reading.store("race", capacity=64)
    store.put(b"k", b"v")
    epochs: list[int] = []
    laggards: list[int] = []

    def look(verb: str, address: int) -> None:
        if verb == "read_words":
            if not epochs:
                epochs.append(pool.grace.close_period())
            laggards.append(len(pool.grace.laggards(epochs[0])))

    reading.endpoint.before = look
    assert store.get_many([b"k"] * 100) == [b"v"] * 100
    assert laggards[0] == 1
    assert laggards[-1] == 0


def test_wrong_parameters_use_up_no_room_in_the_catalogue(pools: Any) -> None:
    """Every name that was tried with parameters that do not exist took an entry for good."""
    pool = pools()
    for number in range(2 * catalogue_entries(pool.parameters.memory)):  # some would share an entry
        with pytest.raises(limpet.ParameterError, match="bogus"):
            pool.store("race", name=f"{number}", bogus=1)
    pool.store("race", name="good", capacity=64).put(b"k", b"v")


def test_failed_creation_is_given_up_when_taking_it_back_fails_too(pools: Any) -> None:
    """With a node lost, others waited for ever for the client whose creation had failed."""
    pool = pools(nodes=3)
    pool.store("race", name="before", capacity=64)
    pool.fail_node(1)
    with pytest.raises(limpet.NodeFailed):
        pool.store("race", name="new", capacity=64)
    assert [entry.state for entry in pool.catalogue] == [READY, VOID]
    other = pools.again(pool)
    with pytest.raises(limpet.NodeFailed):
        other.store("race", name="new", capacity=64)
    assert pool.audit()["leaked"] == 0


def test_node_lost_while_an_insert_is_taken_back_leaves_an_empty_journal(pools: Any) -> None:
    """An object left in the client journal shifted the next operation's objects, and a linked one
    was freed."""
    pool = pools(nodes=2)
    working = pools.keep(WatchedPool.open(pool.url))
    store = working.store("race", capacity=100)
    warm_lost, lost = keys_of_node(store, 0, 2)
    warm_kept, kept = keys_of_node(store, 1, 2)
    store.put(warm_lost, b"warm")
    store.put(warm_kept, b"warm")
    linking: list[int] = []

    def step(verb: str, address: int) -> None:
        if address >> NODE_SHIFT == CONTROL_NODE:
            return
        if verb == "cas":
            linking.append(address)
            if len(linking) == 2:
                pool.fail_node(0)
        elif verb == "read_words" and linking:
            raise Interrupted

    working.endpoint.before = step
    with pytest.raises((Interrupted, limpet.NodeFailed)):
        store.insert(lost, b"value")
    working.endpoint.before = None
    assert linking == [linking[0]] * 2
    assert working.client.held == 0
    store.put(kept, b"precious")
    references = store.references().tolist()
    assert len(references) == 3  # two pairs and their subtable
    assert all(working.heap.used(reference) for reference in references)
    assert store.get(kept) == b"precious"


@pytest.mark.parametrize("kind", ["fusee", "swarm", "dm-abd"])
def test_a_slot_whose_replicas_have_two_keys_ends_an_insert(pools: Any, kind: str) -> None:
    """It made an object for each attempt, and gave way to the backup's for ever."""
    store = pools(nodes=3).store(kind, name="s", capacity=20)
    keys = [b"%d" % number for number in range(12)]
    for key in keys:
        store.put(key, b"value")
    looking, writing = (pools.again(store.pool).store(kind, name="s") for _ in range(2))
    for key in keys:
        looking.update(key, b"newer")  # nothing is remembered: it searches
        place = looking.place
        slots = [pair + 8 * n for pair in (place.first, place.second) for n in range(16) if n % 8]
        words = {slot: store.endpoint.load(slot) for slot in slots}
        found = [slot for slot, word in words.items() if word >> 56 == place.hash & 0xFF]
        if len(found) == 1:
            store.endpoint.store(found[0], words[found[0]] ^ 1 << 60)
            with pytest.raises(limpet.StoreCorrupt, match="two keys"):
                writing.put(key, b"value")
            return
    pytest.fail("no slot was found")
