"""Hash tables that grow: their parameters, and memory that is hardware-coherent in part."""

from __future__ import annotations

from typing import Any

import pytest

import limpet
from limpet.shm.endpoint.fabric import BUILD

KINDS = pytest.mark.parametrize("kind", ["race", "rtx-race"])


@KINDS
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("groups", value) for value in (0, -1, 1, 1 << 40, True, 2.5, "2")),
        *(("bucket_size", value) for value in (0, 8, True, 7.0, "7", [])),
    ],
)
def test_what_cannot_be_is_refused(pools: Any, kind: str, name: str, value: object) -> None:
    pool = pools()
    with pytest.raises(limpet.ParameterError, match=f"{name} must be a whole number"):
        pool.store(kind, name="s", **{name: value})
    assert not pool.stores()
    pool.store(kind, name="s", groups=2, bucket_size=1).put(b"k", b"v")


@pytest.mark.skipif(BUILD != "compiled", reason="the pure build opens only memory that is coherent")
@pytest.mark.parametrize(
    ("kind", "more"),
    [*((kind, {"groups": 2}) for kind in ("race", "rtx-race", "dtx-race")), ("rtx-sherman", {})],
)
def test_what_atomics_change_is_hardware_coherent(pools: Any, kind: str, more: Any) -> None:
    """Subtables, and logs of transactions, which split nodes of trees."""
    pool = pools(coherent=False, coherent_bytes=1 << 20)
    store = pool.store(kind, name="s", capacity=1, **more)
    for number in range(200):
        store.put(b"%d" % number, b"v")
    store.check()
    assert sorted(store) == sorted(b"%d" % number for number in range(200))
    for key in list(store):
        store.delete(key)
    assert pool.audit()["leaked"] == 0


@KINDS
def test_places_that_are_not_known_cost_a_round_trip_a_level(pools: Any, kind: str) -> None:
    """A handle that has never seen the table; of a batch of keys, one for all of them."""
    pool = pools()
    store = pool.store(kind, name="s", capacity=1, groups=2)
    keys = [b"%d" % number for number in range(150)]
    for key in keys:
        store.put(key, b"v")
    for batch in (keys[:1], keys[:32]):
        other = pools.again(pool).store(kind, name="s")
        before = other.stats()["round_trips"]
        assert other.get_many(batch) == [b"v"] * len(batch)
        levels = other.index.seen.deepest - store.parameters.depth
        assert levels > 1
        assert other.stats()["round_trips"] - before == 3 + levels
        before = other.stats()["round_trips"]
        assert other.get_many(batch) == [b"v"] * len(batch)
        assert other.stats()["round_trips"] - before == 2


@pytest.mark.parametrize("kind", ["race", "rtx-race", "dtx-race"])
def test_first_subtable_of_a_key_needs_room_for_one(pools: Any, kind: str) -> None:
    """It was refused when there was no room for two, as a split needs."""
    pool = pools(node_size="1MiB", block_size=16 << 10)
    store = pool.store(kind, name="s", capacity=3000, groups=64)
    store.insert(b"0", b"v")
    made = store.index_size()
    pool.blocks.reserve = 0
    while pool.blocks.free_count(0) > 1:
        pool.allocator.replenish(0, store.parameters.subtable_size)
        pool.client.enter()
        try:
            assert pool.allocator.allocate(0, store.parameters.subtable_size)
            pool.client.drop(0)
        finally:
            pool.client.leave()
    number = 0
    while store.index_size() == made:
        number += 1
        store.insert(b"%d" % number, b"v")
    # In the last block, or in pages that are left in others.
    assert pool.blocks.free_count(0) <= 1
    store.check()


VERBS_MAX = {"race": 1200, "rtx-race": 1000, "fusee": 2700, "swarm": 3500}
"""Bounds of the verbs of one insert, with the split of a subtable of 168 slots."""


def _verbs(store: Any) -> int:
    found = store.stats()
    return sum(
        part[verb]
        for part in (found, found["background"])
        for verb in ("reads", "writes", "cas", "atomics")
    )


@pytest.mark.either_build("the same verbs on either build")
@pytest.mark.parametrize("kind", VERBS_MAX)
def test_the_longest_insert_does_not_depend_on_how_large_the_store_is(
    pools: Any, kind: str
) -> None:
    replicas = {"fusee": 2, "swarm": 3}.get(kind, 1)
    more = {"replicas": replicas} if replicas > 1 else {}
    store = pools(nodes=replicas, node_size="16MiB").store(kind, name="s", capacity=1, **more)
    longest, before = 0, store.index_size()
    for number in range(1500):
        start = _verbs(store)
        store.insert(b"%d" % number, b"v")
        longest = max(longest, _verbs(store) - start)
    assert store.index_size() > 4 * before
    assert longest <= VERBS_MAX[kind]


@pytest.mark.parametrize("kind", ["fusee", "swarm"])
def test_first_subtables_are_made_without_another_handle(
    pools: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that the journal says of a subtable is settled by the client that made it: to ask a
    handle that is made for it takes a thousand times as long."""
    pool = pools(nodes=3)
    store = pool.store(kind, name="s", capacity=300)
    asked: list[int] = []
    contents = pool.heap.contents

    def linked(self: Any, reference: int, link_address: int) -> bool:
        asked.append(reference)
        return True

    monkeypatch.setattr(type(contents), "linked", linked)
    for number in range(500):
        store.insert(b"%d" % number, b"v")
    assert not asked
    monkeypatch.undo()
    store.check()
    assert pool.audit()["leaked"] == 0


def test_more_replicas_have_smaller_subtables(pools: Any) -> None:
    """A split changes each slot of each replica, and the client that finds no room waits for it."""
    pool = pools(nodes=3)

    def verbs(kind: str, replicas: int) -> int:
        """The most verbs of one insert."""
        store = pool.store(kind, name=f"{kind}{replicas}", capacity=8, replicas=replicas)
        most = 0
        for number in range(600):
            before = store.stats()
            store.insert(b"%d" % number, b"v")
            after = store.stats()
            most = max(most, count(after) - count(before))
        return most

    def count(stats: dict[str, Any]) -> int:
        names = ("reads", "writes", "atomics")
        return sum(int(stats[name] + stats["background"][name]) for name in names)

    assert verbs("swarm", 3) < 1.1 * verbs("fusee", 2)
