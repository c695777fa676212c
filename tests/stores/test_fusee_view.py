"""Changes of the view step by step: no client acts on a new one while others are in the old one."""

from __future__ import annotations

import contextlib
import itertools
from functools import partial
from typing import Any

import pytest
from kit.endpoints import Interrupted, WatchedEndpoint, WatchedPool
from kit.puppets import Puppet, verb_on_address

import limpet
from limpet.shm.endpoint.fabric import hash64
from limpet.shm.endpoint.layout import CONTROL_NODE, NODE_SHIFT, NODE_STATES
from limpet.shm.endpoint.words import ADDRESS_MASK, REFERENCE_MASK
from limpet.stores.fusee.links import DEATH, GONE, Link
from limpet.stores.fusee.restoring import tell
from limpet.stores.race.index import is_valid
from limpet.stores.race.layout import FROZEN, OBJECT_MASK


class Impatient(WatchedEndpoint):
    """A client that waits for others is interrupted."""

    def pause(self, attempt: int) -> int:
        raise Interrupted


class ImpatientPool(WatchedPool):
    endpoint_class = Impatient


@pytest.mark.parametrize("fresh", ["new handle", "after len", "after an audit", "after recover"])
def test_nobody_reads_by_a_view_that_others_have_not_left(pools: Any, fresh: str) -> None:
    """A value that is on the backup only was served by a handle that found the primary lost."""
    writing = pools.keep(WatchedPool.open(pools(nodes=3).url))
    writer = writing.store("fusee", name="test", capacity=300, replicas=2)
    for number in range(3):  # so that it has memory at hand
        writer.put(b"%d" % number, b"v")
        writer.delete(b"%d" % number)
    reading = pools.keep(ImpatientPool.open(writing.url))
    reader = reading.store("fusee", name="test")
    assert reader.get(b"k") is None
    seen: list[object] = []
    cases: list[int] = []

    def lose(verb: str, address: int) -> None:
        if verb != "cas" or address >> NODE_SHIFT == CONTROL_NODE:
            return
        cases.append(address >> NODE_SHIFT)
        if len(cases) == 2:  # the backup has the object, the primary not yet
            reading.fail_node(cases[1])
            found = reader
            if fresh == "new handle":
                found = reading.store("fusee", name="test")
            elif fresh == "after len":
                seen.append(_interrupted(lambda: len(found)))
            elif fresh == "after an audit":
                reading.audit()
            else:
                reading.recover()
            seen.append(_interrupted(lambda: found.get(b"k")))

    writing.endpoint.before = lose
    writer.insert(b"k", b"v")
    assert seen
    assert set(seen) == {"waits"}
    assert writer.get(b"k") == reader.get(b"k") == b"v"
    writer.check()


def test_view_changes_when_all_replicas_of_an_object_are_lost_at_once(pools: Any) -> None:
    """More than the store survives: what was there raises NodeFailed, and no client waits for
    ever."""
    for number in range(8):
        writing = pools.keep(WatchedPool.open(pools(nodes=5).url))
        other = pools.keep(limpet.open(writing.url))
        store = writing.store("fusee", name="test", capacity=300, replicas=2)
        for filler in range(number):
            store.put(b"filler %d" % filler, b"v")
        store.put(b"k%d" % number, b"v")
        slots: list[int] = []
        lost: set[int] = set()

        def lose(
            verb: str, address: int, slots: list[int] = slots, lost: set[int] = lost,
            pool: Any = writing, other: Any = other,
        ) -> None:  # fmt: skip
            if verb != "cas" or address >> NODE_SHIFT == CONTROL_NODE:
                return
            slots.append(address >> NODE_SHIFT)
            if len(slots) == 2:  # the backup has the new object, the primary not yet
                word = pool.endpoint.load(address) & REFERENCE_MASK
                lost.update(pool.heap.replica(word, k) >> NODE_SHIFT for k in range(2))
                for node in lost:
                    other.fail_node(node)

        writing.endpoint.before = lose
        with contextlib.suppress(limpet.NodeFailed):
            store.update(b"k%d" % number, b"w")
        writing.endpoint.before = None
        assert not writing.view.unsettled()
        with pytest.raises(limpet.NodeFailed) as raised:
            store.get(b"k%d" % number)
        assert raised.value.node in lost


@pytest.mark.parametrize("looks", [1, 2, 3, 4])
def test_nobody_goes_on_without_a_node_that_is_back(pools: Any, looks: int) -> None:
    """A node was back before a client's so many-th look at its state, and was not counted.

    The client's next writes were not on that node, which for all others was the primary again.
    """
    pool = pools(nodes=3)
    reader = pool.store("fusee", name="test", capacity=300, replicas=2)
    writer, leader = (Puppet(pools, pool.url, "fusee") for _ in range(2))
    primaries = {key: (hash64(key) >> 32) * 3 >> 32 for key in (b"%d" % i for i in range(60))}
    there, absent = list(primaries)[:30], list(primaries)[30:]
    writer.store.put_many((key, b"old") for key in there)  # so it has memory at hand on each node
    for keys, node in itertools.product((there, absent), range(3)):
        at_node = [key for key in keys if primaries[key] == node]
        state = NODE_STATES + 8 * node
        pool.fail_node(node)
        writer.store.put_many((key, b"old") for key in there)
        leader.begin(partial(leader.pool.replace_node, node), verb_on_address("cas", state, 2))
        assert pool.nodes()[node]["state"] == "being replaced"
        write = partial(writer.store.put, at_node[0], b"new")
        writer.begin(write, verb_on_address("load", state, looks))
        assert leader.go()
        assert writer.go()
        assert reader.get(at_node[0]) == writer.store.get(at_node[0]) == b"new"
        reader.check()


def _interrupted(work: Any) -> object:
    try:
        return work()
    except Interrupted:
        return "waits"


@pytest.mark.parametrize("mark", ["a word", "GONE"])
def test_mark_of_a_frozen_pair_stays_when_its_slot_is_put_in_order(pools: Any, mark: str) -> None:
    """It lives on in a half, and the mark is of a round there."""
    store = pools(nodes=3).store("fusee", name="test", capacity=300, replicas=2)
    store.insert(b"k", b"v")
    slots = [
        store.index.slots_of(pointer & ADDRESS_MASK)[:, :, 1:].ravel()
        for table in range(store.parameters.subtables)
        for pointer in store.checker.linked(table)[1].tolist()
    ]
    (word,) = [word for words in slots for word in words.tolist() if is_valid(word)]
    reference = word & OBJECT_MASK
    links = [(reference, Link(store.tables.number_of_store, 0, True))]
    restoring = store.restoring
    death = restoring.new_number() if mark == "a word" else GONE
    for decided in (True, False):
        store.logged.mark(reference, DEATH, death)
        tell(restoring, links, word | FROZEN, decided)
        assert restoring.mark_of(reference, DEATH) == death
        tell(restoring, links, word, decided)
        assert restoring.mark_of(reference, DEATH) == 0
