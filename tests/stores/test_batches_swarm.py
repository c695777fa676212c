"""Batches of `swarm`: their round trips and verbs, and keys that leave a batch on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kit.stores import sound

from limpet.stores.core.status import BATCH

NODES = 5
PUTS = 19
"""Keys of a batch of puts."""
VERBS = ("round_trips", "reads", "bytes_read", "writes", "bytes_written", "cas", "ops")


def key_of(number: int) -> bytes:
    return b"key %04d" % number


def taken(store: Any, work: Callable[[], Any]) -> dict[str, Any]:
    before = store.stats()
    work()
    after = store.stats()
    return {name: after[name] - before[name] for name in VERBS}


def made(pools: Any, count: int, replicas: int = 3, **parameters: Any) -> Any:
    """A store with keys, whose places it remembers, and whose rows in them it knows."""
    pool = pools(nodes=NODES)
    store = pool.store("swarm", name="test", capacity=500, replicas=replicas, **parameters)
    for _ in range(2):
        for number in range(count):
            store.put(key_of(number), b"value of")
    return store


@pytest.mark.parametrize("replicas", [1, 3, 5])
def test_a_batch_takes_one_round_trip(pools: Any, replicas: int) -> None:
    """Verb by verb: what a batch reads and writes is what its operations do, each phase once."""
    store = made(pools, BATCH, replicas)
    keys = [key_of(number) for number in range(BATCH)]
    majority = replicas // 2 + 1
    width = 8 * (2 + 8)  # ident, capacity, M
    gets = taken(store, lambda: store.get_many(keys))
    # stamp, length, hash and value, and the rest of the line
    in_place = gets["bytes_read"] - BATCH * majority * width
    assert BATCH * (24 + 8) <= in_place < BATCH * (24 + 8 + 64)
    assert gets == {
        "round_trips": 1,
        "reads": BATCH * majority,
        "bytes_read": BATCH * majority * width + in_place,
        "writes": 0,
        "bytes_written": 0,
        "cas": 0,
        "ops": BATCH,
    }
    pairs = [(key, b"value on") for key in keys[:PUTS]]
    store.put_many(pairs)  # from now on a batch is of 19
    assert taken(store, lambda: store.put_many(pairs)) == {
        "round_trips": 1,
        "reads": 2 * PUTS * majority,  # and the ident, on which the write depends
        "bytes_read": PUTS * majority * (width + 8),
        "writes": PUTS * majority,
        "bytes_written": PUTS * majority * (32 + 8),
        "cas": PUTS * majority,
        "ops": PUTS,
    }
    assert store.get_many(keys) == [b"value on"] * PUTS + [b"value of"] * (BATCH - PUTS)
    assert taken(store, lambda: store.put_many([*pairs, *pairs]))["round_trips"] == 2
    sound(store)


def test_what_is_not_remembered_is_left_to_single_operations(pools: Any) -> None:
    store = made(pools, 8)
    other = pools.again(store.pool).store("swarm", name="test")
    keys = [key_of(number) for number in range(8)]
    assert taken(other, lambda: other.get_many(keys))["round_trips"] >= 8 * 2
    assert taken(other, lambda: other.get_many(keys))["round_trips"] == 1
    assert taken(store, lambda: store.get_many([*keys, b"none"]))["round_trips"] == 2
    store.delete(keys[3])
    assert other.get_many(keys) == [b"value of"] * 3 + [None] + [b"value of"] * 4
    store.put_many([(key, b"new") for key in keys])
    assert other.get_many(keys) == store.get_many(keys) == [b"new"] * 8
    sound(store)


def test_rows_that_are_not_known_cost_one_round_trip_more(pools: Any) -> None:
    """Two handles of one client have one row between them; each knows what it left there."""
    store = made(pools, 8)
    keys = [key_of(number) for number in range(8)]
    late = pools.again(store.pool).store("swarm", name="test")
    late.put_many([(key, b"a") for key in keys])
    late.put_many([(key, b"b") for key in keys])
    late.forget()
    assert late.get_many(keys) == [b"b"] * 8
    for number in range(3):
        late.put_many([(key, b"%d" % number) for key in keys])
        assert store.get_many(keys) == late.get_many(keys) == [b"%d" % number] * 8
    twin = store.pool.store("swarm", name="test")
    for number in range(6):
        for handle in (store, twin, twin, store):
            handle.put_many([(key, b"%d" % number) for key in keys])
            assert store.get_many(keys) == twin.get_many(keys) == [b"%d" % number] * 8
    sound(store)


@pytest.mark.parametrize("size", [0, 100, 900, 2000, 4000, 9000])
def test_values_of_every_size_in_batches(pools: Any, size: int) -> None:
    store = made(pools, 2 * PUTS)
    keys = [key_of(number) for number in range(2 * PUTS)]
    for number in range(4):
        value = b"%d" % number * size
        store.put_many([(key, value) for key in keys])
        assert store.get_many(keys) == [value] * len(keys)
        store.put_many([(key, b"short") for key in keys[::3]])
        assert store.get_many(keys[::3]) == [b"short"] * len(keys[::3])
    sound(store)


@pytest.mark.parametrize("buffers", [1, 3])
def test_batches_of_clients_that_share_words_of_m(pools: Any, buffers: int) -> None:
    store = made(pools, PUTS, buffers=buffers)
    other = pools.again(store.pool).store("swarm", name="test")
    keys = [key_of(number) for number in range(PUTS)]
    for number in range(12):
        handle = (store, other)[number % 2]
        handle.put_many([(key, b"%d" % number) for key in keys])
        assert store.get_many(keys) == other.get_many(keys) == [b"%d" % number] * PUTS
    sound(store)


def test_batches_go_on_without_one_of_three_nodes(pools: Any) -> None:
    pool = pools(nodes=3)
    store = pool.store("swarm", name="test", capacity=100)
    keys = [key_of(number) for number in range(PUTS)]
    for value in (b"1", b"2"):
        store.put_many([(key, value) for key in keys])
    pool.fail_node(1)
    assert store.get_many(keys) == [b"2"] * PUTS
    for number in range(4):
        store.put_many([(key, b"%d" % number) for key in keys])
        assert store.get_many(keys) == [b"%d" % number] * PUTS
    pool.replace_node(1)
    pool.fail_node(2)
    assert store.get_many(keys) == [b"3"] * PUTS
    store.put_many([(key, b"last") for key in keys])
    assert store.get_many(keys) == [b"last"] * PUTS
    sound(store)


def test_clients_take_turns_with_batches(pools: Any) -> None:
    store = made(pools, 4, writers=1)
    other = pools.again(store.pool).store("swarm", name="test")
    keys = [key_of(number) for number in range(4)]
    assert other.get_many(keys) == [b"value of"] * 4
    for number in range(3):
        for client in (other, store):
            client.put_many([(key, b"%d" % number) for key in keys])
            assert store.get_many(keys) == other.get_many(keys) == [b"%d" % number] * 4
    sound(store)
