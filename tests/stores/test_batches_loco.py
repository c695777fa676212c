"""Batches of puts to `loco`: round trips, verbs, and pairs that leave a batch on the way."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from kit.stores import sound

import limpet
from limpet.shm.endpoint.fabric import hash64
from limpet.stores.channels.lock.ticket_layout import INHERITED
from limpet.stores.core.status import BATCH

VERBS = ("round_trips", "reads", "writes", "cas", "ops")


def taken(store: Any, work: Callable[[], Any]) -> dict[str, Any]:
    before = store.stats()
    work()
    after = store.stats()
    return {name: after[name] - before[name] for name in VERBS}


def keys_of_locks(store: Any, most: int) -> list[bytes]:
    """32 keys, at most so many of which have one lock."""
    found: list[bytes] = []
    counts: dict[int, int] = {}
    number = 0
    while len(found) < BATCH:
        key = b"key %06d" % number
        lock = store.found.index.lock_of(hash64(key))
        if counts.get(lock, 0) < most:
            counts[lock] = counts.get(lock, 0) + 1
            found.append(key)
        number += 1
    return found


@pytest.mark.parametrize("nodes", [1, 3])
def test_updates_of_different_locks_take_two_round_trips(pools: Any, nodes: int) -> None:
    """Verb by verb: what a batch reads and writes is what its updates do."""
    store = pools(nodes=nodes).store("loco", name="test", capacity=500, locks=64)
    keys = keys_of_locks(store, 1)
    store.put_many([(key, b"value") for key in keys])
    pairs = [(key, b"other") for key in keys]
    singly = taken(store, lambda: [store.put(key, value) for key, value in pairs])
    assert singly["round_trips"] == 2 * BATCH
    together = taken(store, lambda: store.put_many(pairs))
    assert together.pop("round_trips") == 2
    # a single update looks at the tracker, too
    assert together == {
        "reads": singly["reads"] - BATCH,
        "writes": singly["writes"],
        "cas": singly["cas"],
        "ops": BATCH,
    }
    assert store.get_many(keys) == [b"other"] * BATCH
    sound(store)


def test_keys_that_share_a_lock_take_turns(pools: Any) -> None:
    store = pools(nodes=1).store("loco", name="test", capacity=500, locks=16)
    keys = keys_of_locks(store, 2)
    store.put_many([(key, b"value") for key in keys])
    trips = taken(store, lambda: store.put_many([(key, b"other") for key in keys]))["round_trips"]
    assert trips == 4
    assert store.get_many(keys) == [b"other"] * BATCH
    sound(store)


def test_pairs_that_do_not_fit_a_batch_are_put_in_their_order(pools: Any) -> None:
    """New keys, keys that come again, and values too long for an entry."""
    store = pools(nodes=2).store("loco", name="test", capacity=2000)
    generator = random.Random(3)
    expected: dict[bytes, bytes] = {}
    for _ in range(40):
        pairs = []
        for _ in range(generator.randrange(1, 90)):
            value = bytes([generator.randrange(256)]) * generator.choice((0, 8, 40, 300, 5000))
            pairs.append((b"key %d" % generator.randrange(400), value))
        store.put_many(pairs)
        expected.update(pairs)
    assert dict(store.items()) == expected
    sound(store)


def test_a_lock_that_is_held_is_left_to_a_single_put(pools: Any) -> None:
    """It is not waited for while others are held."""
    pool = pools(nodes=1)
    store = pool.store("loco", name="test", capacity=500, locks=64)
    keys = keys_of_locks(store, 1)
    store.put_many([(key, b"value") for key in keys])
    lock = store.locking.lock(0, store.found.index.lock_of(hash64(keys[3])))
    pool.endpoint.store(lock.address, INHERITED)  # its holder died, and it was freed
    trips = taken(store, lambda: store.put_many([(key, b"other") for key in keys]))["round_trips"]
    assert trips == 2 + 3  # what was read with the CAS that failed is read again
    assert store.get_many(keys) == [b"other"] * BATCH
    sound(store)


def test_a_lost_node_of_loco_cuts_a_batch(pools: Any) -> None:
    pool = pools(nodes=2)
    store = pool.store("loco", name="test", capacity=500)
    keys = keys_of_locks(store, 2)
    store.put_many([(key, b"value") for key in keys])
    there = [key for key in keys if store.lookup.node_of(key) == 0]
    pool.fail_node(1)
    with pytest.raises(limpet.NodeFailed):
        store.put_many([(key, b"other") for key in keys])
    store.put_many([(key, b"last") for key in there])
    assert store.get_many(there) == [b"last"] * len(there)
    locks = [store.locking.lock_at(0, number) for number in range(store.parameters.locks)]
    assert not any(pool.exclusively(lambda: [store.endpoint.load(lock) for lock in locks]))
