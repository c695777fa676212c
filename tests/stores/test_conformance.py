"""Promises of every registered store to one process: results, errors, sizes, fullness, costs."""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from kit.stores import KEY_MAX, REPLICAS_APART, SLACK, key_max, linked, sound

import limpet
from limpet.shm.endpoint.layout import ROOM_SHARE, object_sizes
from limpet.stores.core.parameters import KEY_SIZE_MAX
from limpet.stores.registry import store_class

Make = Callable[..., Any]
PURE = limpet.build == "pure"
BLOCK = 16384
WHOLE = BLOCK + BLOCK // ROOM_SHARE
IMAGE_SIZE = 4096


# ---- single operations --------------------------------------------------------------------------


def test_get_of_a_missing_key_is_none_or_the_default(store: Any) -> None:
    assert store.get(b"k") is None
    assert store.get(b"k", b"other") == b"other"
    marker = object()
    assert store.get(b"k", marker) is marker
    assert store.get(b"k", default=3) == 3


def test_put_inserts_and_then_updates(store: Any) -> None:
    assert store.put(b"k", b"v") is None
    assert store.get(b"k") == b"v"
    assert store.get(b"k", b"default") == b"v"
    store.put(b"k", b"other, and longer")
    assert store.get(b"k") == b"other, and longer"
    assert len(store) == 1


def test_insert_of_a_key_that_is_there_raises_and_changes_nothing(store: Any) -> None:
    store.insert(b"k", b"v")
    with pytest.raises(limpet.KeyExists, match="b'k'") as caught:
        store.insert(b"k", b"w")
    assert isinstance(caught.value, KeyError)
    assert "test" in str(caught.value)
    assert store.get(b"k") == b"v"
    sound(store)


def test_update_of_a_missing_key_raises_and_changes_nothing(store: Any) -> None:
    with pytest.raises(KeyError, match="k") as caught:
        store.update(b"k", b"v")
    assert caught.value.args == (b"k",)
    assert store.get(b"k") is None
    assert len(store) == 0
    assert linked(store) == 0
    store.put(b"k", b"v")
    store.update(b"k", b"w")
    assert store.get(b"k") == b"w"


def test_delete(store: Any) -> None:
    store.put(b"k", b"v")
    store.delete(b"k")
    assert store.get(b"k") is None
    assert b"k" not in store
    with pytest.raises(KeyError) as caught:
        store.delete(b"k")
    assert caught.value.args == (b"k",)
    store.insert(b"k", b"again")
    assert store.get(b"k") == b"again"


def test_an_empty_value_is_not_a_missing_one(store: Any) -> None:
    store.insert(b"k", b"")
    assert store.get(b"k") == b""
    assert b"k" in store
    assert store.get_many([b"k", b"j"]) == [b"", None]
    assert list(store.items()) == [(b"k", b"")]


def test_contains_len_iter_and_items(store: Any) -> None:
    assert len(store) == 0
    assert list(store) == list(store.items()) == []
    pairs = {b"key %d" % i: b"value %d" % i for i in range(200)}
    for key, value in pairs.items():
        store.insert(key, value)
    assert len(store) == 200
    assert sorted(store) == sorted(store.keys()) == sorted(pairs)
    assert dict(store.items()) == pairs
    assert all(key in store for key in pairs)
    assert b"key 200" not in store


def test_iteration_while_the_same_process_writes(store: Any) -> None:
    """Keys that stay are met exactly once, whatever happens to the others."""
    staying = {b"stay %d" % i for i in range(100)}
    for key in staying:
        store.put(key, b"")
    met = []
    for number, key in enumerate(store):
        met.append(key)
        store.put(b"come %d" % number, b"")
        if number > 3:
            store.delete(b"come %d" % (number - 3))
    assert sorted(key for key in met if key in staying) == sorted(staying)


def test_get_many_and_put_many(store: Any) -> None:
    pairs = {b"%d" % i: b"value %d" % i for i in range(100)}
    assert store.put_many(pairs) is None
    assert store.get_many(pairs) == list(pairs.values())
    store.put_many((key, key) for key in pairs)
    store.put_many([])
    assert store.get_many([]) == []
    assert store.get_many(iter([b"3", b"none", b"5", b"3"])) == [b"3", None, b"5", b"3"]
    assert store.get_many([bytearray(b"7"), memoryview(b"8")]) == [b"7", b"8"]
    assert len(store) == 100


def test_put_many_keeps_what_went_before_an_error(store: Any) -> None:
    with pytest.raises(TypeError, match="str"):
        store.put_many([(b"a", b"1"), ("b", b"2"), (b"c", b"3")])
    assert dict(store.items()) == {b"a": b"1"}


def test_scan(store: Any) -> None:
    if store.ordered:
        store.put_many((key, key) for key in (b"c", b"a", b"b", b"d"))
        assert list(store.scan(b"b", b"d")) == [(b"b", b"b"), (b"c", b"c")]
        assert [key for key, _ in store.scan()] == [b"a", b"b", b"c", b"d"]
        return
    with pytest.raises(limpet.StoreError, match=store.kind):
        store.scan(b"a", b"b")


def test_repr_names_kind_store_and_pool(store: Any) -> None:
    assert repr(store) == f"<{store.kind} store 'test' of {store.pool.url}>"


def test_recover_with_nothing_dead(store: Any) -> None:
    store.put(b"k", b"v")
    assert store.recover() == {"clients": [], "objects": 0, "blocks": 0, "stores": 0}
    assert store.get(b"k") == b"v"


def test_two_handles_see_each_other(store: Any, pools: Any) -> None:
    other = pools.again(store.pool).store(store.kind, name="test")
    same = store.pool.store(store.kind, name="test")
    store.put(b"k", b"1")
    assert other.get(b"k") == same.get(b"k") == b"1"
    other.update(b"k", b"2")
    assert store.get(b"k") == b"2"
    same.delete(b"k")
    assert other.get(b"k") is None


def test_stores_of_one_pool_are_apart(pools: Any, kind: str) -> None:
    pool = pools()
    first, second = (pool.store(kind, name=name, capacity=100) for name in ("first", "second"))
    first.put(b"k", b"1")
    assert second.get(b"k") is None
    second.put(b"k", b"2")
    assert first.get(b"k") == b"1"
    assert {store["name"] for store in pool.stores()} == {"first", "second"}
    sound(first)
    sound(second)


# ---- types and sizes ----------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["k", 5, 0, None, 1.5, ("k",), [1, 2], object()], ids=repr)
def test_keys_and_values_that_are_not_bytes_like(store: Any, wrong: object) -> None:
    """An int, above all, is not that many zero bytes."""
    name = type(wrong).__name__
    calls: list[Callable[[], object]] = [
        lambda: store.get(wrong),
        lambda: store.get_many([wrong]),
        lambda: store.put(wrong, b"v"),
        lambda: store.insert(wrong, b"v"),
        lambda: store.update(wrong, b"v"),
        lambda: store.delete(wrong),
        lambda: wrong in store,
        lambda: store.put(b"k", wrong),
        lambda: store.insert(b"k", wrong),
        lambda: store.update(b"k", wrong),
        lambda: store.put_many([(b"k", wrong)]),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=name):
            call()
    assert len(store) == 0
    sound(store)


@pytest.mark.parametrize(
    "like",
    [
        bytearray(b"12345678"),
        memoryview(b"12345678"),
        memoryview(b"1x2x3x4x5x6x7x8x")[::2],
        np.frombuffer(b"12345678", dtype="<u4"),
        np.frombuffer(b"12345678", dtype=np.uint8).reshape(2, 4),
        struct.pack("8s", b"12345678"),
        type("Bytes", (bytes,), {})(b"12345678"),
    ],
    ids=["bytearray", "memoryview", "strided", "numpy u4", "numpy 2d", "bytes", "subclass"],
)
def test_bytes_like_keys_and_values(store: Any, like: Any) -> None:
    store.put(like, b"v")
    assert store.get(b"12345678") == store.get(like) == b"v"
    assert like in store
    store.put(b"other", like)
    assert store.get(b"other") == b"12345678"
    assert type(store.get(b"other")) is bytes
    assert all(type(key) is bytes for key in store)
    store.delete(like)
    assert b"12345678" not in store


def test_a_stored_value_is_a_copy(store: Any) -> None:
    value = bytearray(b"before")
    store.put(b"k", value)
    value[:] = b"after!"
    assert store.get(b"k") == b"before"


def _round_trip(store: Any, key: bytes, values: list[bytes]) -> None:
    for value in values:
        store.put(key, value)
        assert store.get(key) == value
        assert store.get_many([key]) == [value]


KEY_SIZES = (0, 1, 7, 8, 9, 15, 16, 17, 255, 256, 4063, 4072, 4079, 4080, 4081, 4096, KEY_MAX - 1)


@pytest.mark.parametrize("size", [*KEY_SIZES, KEY_MAX])
def test_keys_of_every_size(make_store: Make, kind: str, size: int) -> None:
    store = make_store(capacity=100)
    if size > key_max(store):
        with pytest.raises(limpet.KeyTooLarge):
            store.put(bytes(size), b"v")
        if size > KEY_SIZE_MAX:
            with pytest.raises(limpet.ParameterError, match="key_size"):
                store.pool.store(kind, name="other", capacity=100, key_size=size)
            return
        store = store.pool.store(kind, name="other", capacity=100, key_size=size)
    key = random.Random(size).randbytes(size)
    _round_trip(store, key, [b"", b"v", b"w" * 5000])
    assert list(store) == [key]
    assert store.get(key[:-1] + b"?") is None
    # all but the last byte alike, and one a prefix of the other
    others = [key + b"\0"] if size < key_max(store) else []
    if size:
        others += [key[:-1] + bytes([key[-1] ^ 1]), key[:-1]]
    for other in others:
        store.insert(other, b"other")
    assert store.get(key) == b"w" * 5000
    assert store.get_many(others) == [b"other"] * len(others)
    sound(store)
    for stored in (key, *others):
        store.delete(stored)
    assert linked(store) == 0


def test_a_key_that_is_too_long(store: Any) -> None:
    for size in {key_max(store) + 1, KEY_MAX + 1}:
        key = bytes(size)
        for write in (store.put, store.insert, store.update):
            with pytest.raises(limpet.KeyTooLarge, match=f"{size}.*{key_max(store)}"):
                write(key, b"v")
        assert store.get(key) is None
        assert key not in store
        with pytest.raises(KeyError):
            store.delete(key)
    # as long, modulo the field's width, as one that fits
    store.put(b"", b"empty")
    assert store.get(bytes(KEY_MAX + 1)) is None
    sound(store)


def _overhead(store: Any) -> int:
    """Bytes of an object besides the value, when the key is `k`."""
    return int(store.objects.size_of(b"k", b""))


def _boundaries() -> Iterator[int]:
    """Sizes of objects around those of classes, images, blocks and spans."""
    for size in (*object_sizes(WHOLE)[1:], IMAGE_SIZE, *(WHOLE * n for n in (1, 2, 3, 7))):
        yield from (size - 1, size, size + 1)


def test_values_of_every_boundary_size(make_store: Make) -> None:
    store = make_store(capacity=100, pool_block_size=BLOCK)
    assert store.pool.parameters.block_size == BLOCK
    source = random.Random(1)
    for size in sorted(set(_boundaries())):
        value = source.randbytes(max(0, size - _overhead(store)))
        _round_trip(store, b"k", [value])
    sound(store)
    store.delete(b"k")
    assert linked(store) == 0


def test_values_of_small_sizes(make_store: Make) -> None:
    store = make_store(capacity=1000)
    pairs = {b"%d" % size: random.Random(size).randbytes(size) for size in range(200)}
    store.put_many(pairs)
    assert dict(store.items()) == pairs
    sound(store)


@pytest.mark.parametrize("mebibytes", [1, 3, 7])
def test_values_of_several_mebibytes(make_store: Make, mebibytes: int) -> None:
    store = make_store(capacity=100, pool_node_size="16MiB")
    value = random.Random(mebibytes).randbytes(mebibytes << 20)
    store.put(b"k", value)
    assert store.get(b"k") == value
    store.update(b"k", value[:-1])
    assert store.get(b"k") == value[:-1]
    assert sound(store)["reachable"] >= len(value)


def test_a_value_that_no_node_holds(make_store: Make) -> None:
    store = make_store(capacity=100)
    size = store.pool.parameters.node_size
    taken = size + _overhead(store)
    for write in (store.put, store.insert, store.update):
        with pytest.raises(limpet.ValueTooLarge, match=f"take {taken} bytes"):
            write(b"k", bytes(size))
    assert len(store) == 0
    sound(store)


# ---- creating and attaching ---------------------------------------------------------------------


def test_attaching_takes_the_parameters_that_are_there(pools: Any, kind: str) -> None:
    pool = pools()
    made = pool.store(kind, name="s", capacity=123)
    assert pool.store(kind, name="s").parameters == made.parameters
    assert pool.store(kind, name="s", capacity=123).parameters == made.parameters
    with pytest.raises(limpet.StoreMismatch, match=r"capacity=123.*124"):
        pool.store(kind, name="s", capacity=124)
    with pytest.raises(limpet.LimpetError, match="size_of_hat"):
        pool.store(kind, name="s", size_of_hat=3)


@pytest.mark.parametrize("capacity", [0, -1, 1.5, "1000", True, 10**30], ids=repr)
def test_capacities_that_cannot_be(pools: Any, kind: str, capacity: Any) -> None:
    pool = pools()
    with pytest.raises(limpet.ParameterError, match="capacity"):
        pool.store(kind, name="s", capacity=capacity)
    assert pool.stores() == []
    assert pool.audit()["leaked"] == 0
    pool.store(kind, name="s", capacity=100).put(b"k", b"v")


@pytest.mark.parametrize("name", ["", "n" * 101, "é" * 51, 5, None, b"n", "\0", "a\0001"], ids=repr)
def test_names_that_cannot_be(pools: Any, kind: str, name: Any) -> None:
    with pytest.raises(limpet.ParameterError, match="name"):
        pools().store(kind, name=name)


@pytest.mark.parametrize("name", ["n" * 100, "é" * 50, " ", "a/0", "a", "a\nb"], ids=repr)
def test_names_that_can_be(pools: Any, kind: str, name: str) -> None:
    pool = pools()
    pool.store(kind, name=name, capacity=10).put(b"k", b"v")
    assert pool.store(kind, name=name).get(b"k") == b"v"
    assert [store["name"] for store in pool.stores()] == [name]


def test_an_unknown_kind_names_those_that_there_are(pools: Any, kind: str) -> None:
    with pytest.raises(limpet.ParameterError, match=f"nonesuch.*{kind}"):
        pools().store("nonesuch")


def test_an_unknown_parameter(pools: Any, kind: str) -> None:
    pool = pools()
    with pytest.raises(limpet.ParameterError, match="size_of_hat"):
        pool.store(kind, name="s", size_of_hat=3)
    assert pool.stores() == []


def test_no_room_for_the_index_leaves_nothing(pools: Any, kind: str) -> None:
    pool = pools(nodes=2)
    before = pool.audit()
    with pytest.raises(limpet.StoreFull, match="node 0"):
        pool.store(kind, name="s", capacity=10_000_000)
    after = pool.audit()
    # The rest of a block beyond its objects is reserved as long as a client owns it.
    assert after.pop("free") + after.pop("reserved") == before.pop("free") + before.pop("reserved")
    assert after == before
    assert not any(pool.regions.extents(node) for node in range(2))
    assert not len(pool.regions.references())
    assert pool.store(kind, name="s", capacity=100).get(b"k") is None


# ---- fullness -----------------------------------------------------------------------------------


CAPACITIES = [1, 10, 1000] if PURE else [1, 2, 10, 100, 1000, 20_000]


@pytest.mark.exhaustive("large tables", quick=["*-10", "*-100", "*-1000"])
@pytest.mark.soak("baselines that are slow", cases=["clover-*-20000", "pdpm-*-20000"])
@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("nodes", [1, 3] if PURE else [1, 3, 4])
def test_capacity_many_keys_surely_fit(pools: Any, kind: str, capacity: int, nodes: int) -> None:
    # a register takes more memory than a pair
    large = store_class(kind).majorities and capacity > 1000
    pool = pools(nodes=nodes, node_size="64MiB" if large else "4MiB")
    for seed in range(1 if PURE else 1 if capacity > 1000 else 4):
        store = pool.store(kind, name=f"seed {seed}", capacity=capacity)
        source = random.Random(seed)
        keys = {b"%d" % i if seed == 0 else source.randbytes(12) for i in range(capacity)}
        for key in keys:
            store.insert(key, b"")
        assert len(store) == len(keys)


def _fill(store: Any, value: bytes, prefix: bytes = b"") -> list[bytes]:
    """Insert until the store is full; the keys that went in."""
    keys: list[bytes] = []
    while True:
        key = prefix + b"%d" % len(keys)
        try:
            store.insert(key, value)
        except limpet.StoreFull:
            assert key not in store
            return keys
        keys.append(key)


@pytest.mark.either_build("fills an index with the same lines", but=["[!rf]*"])
def test_a_full_index_loses_nothing_and_goes_on(make_store: Make) -> None:
    store = make_store(capacity=20, pool_node_size="256KiB")
    keys = _fill(store, b"v")
    assert len(keys) >= 20
    assert dict(store.items()) == dict.fromkeys(keys, b"v")
    with pytest.raises(limpet.StoreFull, match="no room" if store.grows else r"capacity 20"):
        _fill_one_place(store, keys)
    if store.grows:  # what is full is the memory
        store.delete(keys.pop())
    store.put(keys[0], b"w")
    store.update(keys[1], b"w")
    assert store.get_many(keys[:2]) == [b"w", b"w"]
    sound(store)
    for key in keys:
        store.delete(key)
    assert len(_fill(store, b"w")) >= len(keys) * (1 - SLACK.get(store.kind, 0))
    sound(store)


def _fill_one_place(store: Any, keys: list[bytes]) -> None:
    """Insert what is refused, once more."""
    store.insert(b"%d" % len(keys), b"v")


@pytest.mark.parametrize("size", [5000] if PURE else [100, 1000, 5000, 16000, 40_000])
def test_full_memory_loses_nothing_and_goes_on(tight_store: Any, size: int) -> None:
    store = tight_store
    keys = _fill(store, bytes(size))
    assert len(keys) >= 2
    assert len(keys) * size > 0.5 * store.pool.parameters.node_size - 200_000
    if store.ordered:  # the last one was refused memory to split a node
        keys += _fill(store, bytes(size), b"one more")
    with pytest.raises(limpet.StoreFull, match="node 0 has no room"):
        store.put(b"one more" + b"%d" % len(keys), bytes(size))
    assert sorted(store) == sorted(keys)
    sound(store)
    for key in keys[::2]:
        store.delete(key)
    # Registers and buffers are runs of two lengths, which share blocks: what is left between
    # them may have room for one value less.
    again = keys[:-2:2] if store.majorities else keys[::2]
    for key in again:
        store.insert(key, b"2" * size)
    assert store.get_many(again) == [b"2" * size] * len(again)
    assert store.get_many(keys[1::2]) == [bytes(size)] * len(keys[1::2])
    sound(store)


def test_insert_of_a_key_that_is_there_says_so_when_memory_is_full(tight_store: Any) -> None:
    keys = _fill(tight_store, bytes(5000))
    for size in (5000, 9000):
        with pytest.raises(limpet.KeyExists):
            tight_store.insert(keys[0], bytes(size))
    assert tight_store.get(keys[0]) == bytes(5000)


def test_full_memory_takes_updates(tight_store: Any) -> None:
    """Of trees and of majorities, whose updates take more, when there is a little room."""
    store = tight_store
    keys = _fill(store, b"1" * 5000)
    for value in (b"2" * 5000, b"3" * 5000, b"1" * 5000):
        if store.majorities or store.ordered:
            with contextlib.suppress(limpet.StoreFull):
                store.update(keys[0], b"1" * 5000)
        else:
            store.update(keys[0], value)
            assert store.get(keys[0]) == value
            store.put(keys[0], value[::-1])
        keys += _fill(store, b"v" * 5000, b"after " + value[:1])
    assert store.get(keys[0]) == b"1" * 5000
    store.delete(keys[1])
    for value in (b"2" * 5000, b"3" * 5000, b"4" * 5000):
        store.update(keys[0], value)
        assert store.get(keys[0]) == value
    sound(store)


@pytest.mark.exhaustive(
    "every kind", quick=["race", "fusee", "swarm", "rcuckoo", "rtx-sherman", "loco"]
)
def test_memory_moves_from_one_size_to_another(tight_store: Any) -> None:
    store = tight_store
    counts: dict[int, list[int]] = {}
    for _ in range(2 if PURE else 4):
        for size in (40_000, 9000) if PURE else (1000, 40_000, 200, 9000):
            keys = _fill(store, bytes(size))
            counts.setdefault(size, []).append(len(keys))
            for key in keys:
                store.delete(key)
    slack = SLACK.get(tight_store.kind, 0)
    for size, (first, *later) in counts.items():
        # A run of pages needs adjacent blocks: blocks of small objects between them, which are
        # elsewhere each time, cost a run or two. (The first ones cut blocks that are whole, so
        # there may be more room later.)
        few = 2 if size > BLOCK // ROOM_SHARE else int(slack > 0)
        most = max(first, *later)
        assert first - min(later) <= slack * most + few, counts
        assert max(later) - min(later) <= slack * most + few, counts
    assert linked(store) == 0


@pytest.mark.parametrize(("size", "rounds"), [(50, 3000), (1000, 3000), (40_000, 600)])
def test_endless_updates_take_bounded_memory(make_store: Make, size: int, rounds: int) -> None:
    store = make_store(capacity=100, pool_node_size="1MiB")
    rounds = rounds // 5 if PURE else rounds
    reachable = set()
    for number in range(rounds):
        store.put(b"%d" % (number % 5), bytes([number % 256]) * size)
        if number % (rounds // 3) == 20:
            reachable.add(sound(store)["reachable"])
    assert len(reachable) == 1
    blocks = store.pool.clients()[0]["blocks"]
    assert blocks * store.pool.layout.block_size < 700_000


@pytest.mark.exhaustive(
    "every kind", quick=["race", "fusee", "swarm", "rcuckoo", "rtx-sherman", "loco"]
)
def test_values_that_change_their_size_take_bounded_memory(make_store: Make) -> None:
    store = make_store(capacity=100, pool_node_size="1MiB")
    source = random.Random(7)
    for _ in range(300 if PURE else 3000):
        key = b"%d" % source.randrange(4)
        store.put(key, bytes(source.choice((0, 100, 3000, 15_000, 17_000, 40_000))))
    sound(store)


# ---- costs --------------------------------------------------------------------------------------


_FUSEE = {"get": 1, "miss": 1, "insert": 4, "update": 4, "put": 4, "delete": 4, "large get": 2}
_CLOVER = {"get": 1, "miss": 1, "insert": 2, "update": 2, "put": 2, "delete": 2, "large get": 2}
_RACE = {"get": 2, "miss": 1, "insert": 3, "update": 3, "put": 3, "delete": 3, "large get": 3}
ROUND_TRIPS = {
    "race": _RACE,
    "rtx-race": _RACE,
    "dtx-race": _RACE,
    "fusee": _FUSEE,
    "fusee-cr": _FUSEE,
    "fusee-nc": {**_FUSEE, "get": 2, "update": 5, "put": 5, "delete": 5, "large get": 3},
    "clover": _CLOVER,
    # on two nodes, so one replica
    "swarm": {"get": 1, "miss": 1, "insert": 3, "update": 1, "put": 1, "delete": 4, "large get": 2},
    "dm-abd": {
        "get": 2,
        "miss": 1,
        "insert": 3,
        "update": 2,
        "put": 2,
        "delete": 4,
        "large get": 2,
    },
    "pdpm": {"get": 2, "miss": 1, "insert": 2, "update": 4, "put": 4, "delete": 3, "large get": 3},
    "rcuckoo": {
        "get": 1,
        "miss": 1,
        "insert": 2,
        "update": 2,
        "put": 2,
        "delete": 2,
        "large get": 3,
    },
    "loco": {
        "get": 1,
        "miss": 1,
        "insert": 3,
        "update": 2,
        "put": 2,
        "delete": 2,
        "large get": 3,
    },
    "rtx-sherman": {
        "get": 2,
        "miss": 2,
        "insert": 4,
        "update": 3,
        "put": 3,
        "delete": 3,
        "large get": 4,
    },
    "sherman": {
        **dict.fromkeys(("insert", "update", "put", "delete"), 2),
        **dict.fromkeys(("get", "miss"), 1),
        "large get": 3,
    },
    "dtx-sherman": {
        **dict.fromkeys(("insert", "update", "put", "delete"), 4),
        **dict.fromkeys(("get", "miss"), 1),
        "large get": 3,
    },
}
"""Of an operation without conflict, as the paper counts them, with its two replicas if it has any.
Every store kind has its row."""

HEADS = 2 * 48
"""Of two rows of a store of kind rcuckoo."""
LOCO_ENTRY = 32 + 32 + 64
"""Of a store of kind loco, with keys of up to 32 bytes and values of up to 64 in the data array."""
_READ = {"get": 16 + 32, "miss": 264, "large get": 16 + 4096 + 20_000, "insert": 8 + 2 * 256}
_NEW = 2 * (40 + 4 + 8)
_WRITTEN = {"get": 0, "miss": 0, "insert": _NEW, "update": _NEW, "delete": 16}
BYTES_READ = {
    # the stamp of the object is looked at apart
    "race": {"get": 264 + 40, "miss": 264, "large get": 264 + 4096 + 20_000},
    "rtx-race": {"get": 264 + 40, "miss": 264, "large get": 264 + 4096 + 20_000},
    "dtx-race": {"get": 264 + 32, "miss": 264, "large get": 264 + 4096 + 20_000},
    "fusee": _READ,
    "fusee-cr": _READ,
    "fusee-nc": {**_READ, "get": 264 + 32, "large get": 264 + 4096 + 20_000},
    # period, shortcut, and the word that names the next version
    "clover": {"get": 3 * 8 + 32, "miss": 0, "large get": 3 * 8 + 4096 + 20_000},
    # the words of a register for 8 writers up to the value in place, and the rest of a line; of a
    # value that is not there, then the header of its buffer, and the value
    "swarm": {"get": 8 * 13 + 32, "miss": 264, "large get": 8 * 13 + 48 + 32 + 20_000},
    # with one word of metadata, nothing in place, and a buffer
    "dm-abd": {"get": 8 * 6 + 32 + 8, "miss": 264, "large get": 8 * 6 + 32 + 20_000},
    "pdpm": {"get": 256 + 32, "miss": 256, "large get": 256 + 4096 + 20_000},
    # the headers of two rows; an entry is looked at where it is, which is counted apart, as
    # are the looks that stand for a pin
    "rcuckoo": {"get": HEADS, "miss": HEADS, "large get": HEADS + 4096 + 20_000, "update": HEADS},
    # the tracker's position, and an entry; holding the lock, the journal's intent, too
    "loco": {
        "get": 8 + LOCO_ENTRY,
        "miss": 8,
        "large get": 8 + LOCO_ENTRY + 4096 + 20_000,
        "update": 8 + 8 + LOCO_ENTRY,
    },
    # table 2 of the paper: a node of 1 KB, and the 16 bytes of its TXObj
    "rtx-sherman": {
        **dict.fromkeys(("get", "miss", "insert", "update", "delete"), 1024 + 16),
        "large get": 1024 + 16 + 4096 + 20_000,
    },
    # table 2: a node
    "sherman": {
        **dict.fromkeys(("get", "miss", "insert", "update", "delete"), 1024),
        "large get": 1024 + 4096 + 20_000,
    },
    # and 16 bytes to validate it
    "dtx-sherman": {
        **dict.fromkeys(("get", "miss"), 1024),
        **dict.fromkeys(("insert", "update", "delete"), 1024 + 16),
        "large get": 1024 + 4096 + 20_000,
    },
}
BYTES_WRITTEN = {
    # with a stamp
    "race": {"get": 0, "miss": 0, "insert": 32 + 4, "update": 32 + 4, "delete": 0},
    "rtx-race": {"get": 0, "miss": 0, "insert": 32 + 4, "update": 32 + 4, "delete": 0},
    "dtx-race": {"get": 0, "miss": 0, "insert": 24 + 4, "update": 24 + 4, "delete": 0},
    "fusee": _WRITTEN,
    "fusee-cr": _WRITTEN,
    "fusee-nc": _WRITTEN,
    "clover": {"get": 0, "miss": 0, "insert": 40 + 4, "update": 40 + 4, "delete": 0},
    "swarm": {"get": 0, "miss": 0, "insert": 40 + 8 * 37 + 64, "update": 32 + 8, "delete": 0},
    "dm-abd": {"get": 0, "miss": 0, "insert": 40 + 40 + 8 * 22, "update": 32 + 4, "delete": 0},
    "pdpm": {"get": 0, "miss": 0, "insert": 28 + 8, "update": 2 * 28 + 3 * 8, "delete": 8},
    # journal: lock and state, step, sizes, redo image and state; header line, entry, sequence
    "rcuckoo": {
        **dict.fromkeys(("get", "miss"), 0),
        "insert": 16 + 24 + 16 + 8 + 40 + 16 + 8,
        "update": 16 + 24 + 16 + 8 + 16 + 16 + 8,  # all sizes stay
        "delete": 16 + 24 + 8 + 40 + 8,
    },
    # checksum, sizes, link, key and a word of value; of an update, twice; states; the journal; the
    # message and the position
    "loco": {
        **dict.fromkeys(("get", "miss"), 0),
        "insert": 8 * 8 + 8 + 3 * 8 + 2 * 8,
        "update": 2 * 8 * 8 + 3 * 8,
        "delete": 2 * 8 + 3 * 8 + 2 * 8,
    },
    # a node, without a log
    # a leaf that is locked early has the state of the lock written before
    "rtx-sherman": dict.fromkeys(("update", "delete"), 1024 + 8)
    | {"insert": 1024, "get": 0, "miss": 0},
    # a node, and a word that unlocks it
    "sherman": dict.fromkeys(("insert", "update", "delete"), 1024 + 8) | {"get": 0, "miss": 0},
    # twice, and the log's header
    "dtx-sherman": dict.fromkeys(("insert", "update", "delete"), 2 * 1024 + 8 + 72)
    | {"get": 0, "miss": 0},
}
"""On memory nodes, for the key k and a value of 4 bytes; of 20,000 bytes if large."""
CAS = {"rtx-sherman": {"insert": 3}, "sherman": {"insert": 1}, "dtx-sherman": {"insert": 1}}
"""Compare-and-swaps on memory nodes, as in table 2 of rTX."""


def _cost(store: Any, work: Callable[[], object]) -> dict[str, Any]:
    store.endpoint.reset_counters()
    work()
    return dict(store.stats())


def test_round_trips_and_bytes_of_every_operation(store: Any) -> None:
    for warm_up in (b"a", b"b", b"c"):
        store.put(warm_up, b"1234")
        store.delete(warm_up)
    store.put(b"large", bytes(20_000))
    costs = {
        "miss": _cost(store, lambda: store.get(b"k")),
        "insert": _cost(store, lambda: store.insert(b"k", b"1234")),
        "get": _cost(store, lambda: store.get(b"k")),
        "update": _cost(store, lambda: store.update(b"k", b"5678")),
        "put": _cost(store, lambda: store.put(b"k", b"9012")),
        "delete": _cost(store, lambda: store.delete(b"k")),
    }
    # The first value in an object after others takes a handle one more (stores/core/inline.py).
    store.get(b"large")
    costs["large get"] = _cost(store, lambda: store.get(b"large"))
    found = {name: cost["round_trips"] for name, cost in costs.items()}
    assert found == ROUND_TRIPS[store.kind]
    for name, count in CAS.get(store.kind, {}).items():
        assert costs[name]["cas"] == count, name
    for name, size in BYTES_READ[store.kind].items():
        assert costs[name]["bytes_read"] == size, name
    for name, size in BYTES_WRITTEN[store.kind].items():
        assert costs[name]["bytes_written"] == size, name
    for name in ("get", "miss", "large get"):
        assert costs[name]["writes"] == costs[name]["cas"] == 0
    assert all(cost["cas_lost"] == 0 for cost in costs.values())
    # a write of loco releases its lock in the background, and wakes those that queue
    waits = 1 if store.kind == "loco" else 0
    assert all(cost["background"]["round_trips"] <= waits for cost in costs.values())


def test_housekeeping_is_counted_apart(store: Any) -> None:
    store.put(b"k", b"v")
    for work in (store.pool.audit, store.check, lambda: len(store), store.recover):
        before = store.stats()
        work()
        after = store.stats()
        assert after["round_trips"] == before["round_trips"]
        assert after["ops"] == before["ops"]
        read = [
            sum(s[of]["bytes_read"] for of in ("background", "control")) for s in (before, after)
        ]
        assert read[1] > read[0]


def test_stats_name_the_store_and_count_its_operations(store: Any) -> None:
    assert store.stats()["kind"] == store.kind
    assert store.stats()["name"] == "test"
    store.put(b"k", b"v")
    store.get(b"k")
    store.get_many([b"k", b"j", b"i"])
    store.delete(b"k")
    stats = store.stats()
    assert stats["ops"] == 6
    assert stats["retries"] == 0
    names = {"round_trips", "reads", "writes", "cas", "cas_lost", "atomics"}
    names |= {"bytes_read", "bytes_written", "lines_flushed", "fences", "exchanges"}
    assert names <= stats.keys()
    assert names == stats["background"].keys() == stats["control"].keys()
    assert all(isinstance(stats[name], int) for name in names)


# ---- against a dict -----------------------------------------------------------------------------


KEYS = st.one_of(
    st.integers(0, 30).map(lambda i: b"%d" % i),
    st.binary(max_size=3),
    st.sampled_from([300, 301, 5000, KEY_MAX]).map(bytes),
)
VALUES = st.builds(
    lambda seed, size: random.Random(seed).randbytes(size),
    st.integers(0, 255),
    st.one_of(st.integers(0, 200), st.sampled_from([4056, 4080, 9000, BLOCK - 24, BLOCK, 50_000])),
)
HANDLES = st.integers(0, 2)


def machine(
    pools: Any, kind: str, nodes_min: int = 1, **parameters: Any
) -> type[RuleBasedStateMachine]:
    """A store, used through three handles, two of one client, beside a dict."""

    class AgainstADict(RuleBasedStateMachine):
        @initialize(nodes=st.integers(nodes_min, 3))
        def create(self, nodes: int) -> None:
            self.model: dict[bytes, bytes] = {}
            pool = pools(nodes=nodes)
            self.stores = [pool.store(kind, name="s", capacity=300, **parameters)]
            self.key_max = key_max(self.stores[0])
            self.stores += [p.store(kind, name="s") for p in (pool, pools.again(pool))]

        @rule(h=HANDLES, key=KEYS)
        def get(self, h: int, key: bytes) -> None:
            assert self.stores[h].get(key) == self.model.get(key)
            assert (key in self.stores[h]) == (key in self.model)

        @rule(h=HANDLES, key=KEYS, value=VALUES)
        def put(self, h: int, key: bytes, value: bytes) -> None:
            self.attempt(key, value, lambda: self.stores[h].put(key, value))

        @rule(h=HANDLES, key=KEYS, value=VALUES)
        def insert(self, h: int, key: bytes, value: bytes) -> None:
            if key in self.model:
                with pytest.raises((limpet.KeyExists, limpet.StoreFull)):
                    self.stores[h].insert(key, value)
            else:
                self.attempt(key, value, lambda: self.stores[h].insert(key, value))

        @rule(h=HANDLES, key=KEYS, value=VALUES)
        def update(self, h: int, key: bytes, value: bytes) -> None:
            if key in self.model:
                self.attempt(key, value, lambda: self.stores[h].update(key, value))
            else:
                with pytest.raises((KeyError, limpet.StoreFull, limpet.KeyTooLarge)):
                    self.stores[h].update(key, value)

        @rule(h=HANDLES, key=KEYS)
        def delete(self, h: int, key: bytes) -> None:
            if key in self.model:
                self.stores[h].delete(key)
                del self.model[key]
            else:
                with pytest.raises(KeyError):
                    self.stores[h].delete(key)

        @rule(h=HANDLES, keys=st.lists(KEYS, max_size=8))
        def get_many(self, h: int, keys: list[bytes]) -> None:
            assert self.stores[h].get_many(keys) == [self.model.get(key) for key in keys]

        @rule(h=HANDLES)
        def iterate(self, h: int) -> None:
            assert dict(self.stores[h].items()) == self.model
            assert sorted(self.stores[h]) == sorted(self.model)

        @rule()
        def audit(self) -> None:
            sound(self.stores[0])

        @invariant()
        def length(self) -> None:
            if hasattr(self, "stores"):
                assert len(self.stores[2]) == len(self.model)

        def attempt(self, key: bytes, value: bytes, write: Callable[[], None]) -> None:
            try:
                write()
            except limpet.KeyTooLarge:
                assert len(key) > self.key_max
            except limpet.StoreFull:
                assert sum(map(len, self.model.values())) > 100_000
            else:
                self.model[key] = value

        def teardown(self) -> None:
            if hasattr(self, "stores"):
                for store in self.stores:
                    sound(store)
                assert dict(self.stores[1].items()) == self.model
            pools.destroy()

    return AgainstADict


@pytest.mark.exhaustive("every kind", quick=["race", "rtx-sherman"])
@pytest.mark.soak("the same code as another kind's", cases=["dtx-race", "fusee-*"])
@pytest.mark.soak("baselines", cases=["clover", "pdpm", "dm-abd", "sherman", "dtx-sherman"])
def test_any_sequence_of_operations_does_what_a_dict_does(pools: Any, kind: str) -> None:
    _run(machine(pools, kind))


@pytest.mark.exhaustive("a machine for each")
@pytest.mark.parametrize(("index_replicas", "replicas"), REPLICAS_APART)
def test_any_sequence_does_so_where_the_index_has_replicas_of_its_own(
    pools: Any, index_replicas: int, replicas: int
) -> None:
    least = max(index_replicas, replicas)
    _run(machine(pools, "fusee", least, index_replicas=index_replicas, replicas=replicas))


def _run(made: type[RuleBasedStateMachine]) -> None:
    run_state_machine_as_test(
        made,
        settings=settings(
            max_examples=8 if PURE else 40,
            stateful_step_count=25 if PURE else 50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
