"""`get_many` and `put_many`: the same as one by one, whatever the hints of a batch meet."""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Callable
from typing import Any

import pytest

import limpet
from limpet.shm.endpoint.fabric import hash64
from limpet.stores.registry import KINDS, store_class
from limpet.stores.status import BATCH

Make = Callable[..., Any]
SIZES = (1, BATCH - 1, BATCH, BATCH + 1, 3 * BATCH + 4)
REPLICATED = [kind for kind in sorted(KINDS) if store_class(kind).replicated]
RACE = ("race", "rtx-race", "dtx-race")
STEADY = (*RACE, "raw", "fusee", "rcuckoo", "loco")
"""The second and the third update of a key cost the same here."""
HOSTILE = (limpet.LimpetError, OverflowError, ValueError, IndexError, MemoryError)


def key_of(number: int) -> bytes:
    return b"key %d" % number


@pytest.mark.parametrize("size", SIZES)
def test_batches_of_every_size(store: Any, size: int) -> None:
    keys = [key_of(number) for number in range(size)]
    store.put_many([(key, b"1") for key in keys])
    assert store.get_many(keys) == [b"1"] * size
    store.put_many(tuple((key, b"2") for key in keys[::2]))
    expected = [b"2" if number % 2 == 0 else b"1" for number in range(size)]
    assert store.get_many(tuple(keys)) == expected
    store.put_many(dict.fromkeys(keys[1::2], b"3"))
    expected = [b"2" if number % 2 == 0 else b"3" for number in range(size)]
    assert store.get_many(key for key in keys) == expected
    mixed = [key for pair in zip(keys, [b"none"] * size, strict=True) for key in pair]
    assert store.get_many(mixed)[::2] == expected
    assert store.get_many(mixed)[1::2] == [None] * size
    assert len(store) == size


def test_of_duplicates_the_last_pair_counts(store: Any) -> None:
    pairs = [(key_of(number % 7), b"%d" % number) for number in range(2 * BATCH)]
    store.put_many(pairs)
    assert dict(store.items()) == dict(pairs)
    assert store.get_many([key for key, _ in pairs]) == [dict(pairs)[key] for key, _ in pairs]


def test_pairs_may_depend_on_what_was_put_before(store: Any) -> None:
    store.put(b"k", b"")
    store.put_many((b"k", store.get(b"k") + b"x") for _ in range(BATCH + 3))
    assert store.get(b"k") == b"x" * (BATCH + 3)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (("str", b"v"), TypeError),
        ((b"k", "str"), TypeError),
        ((b"k",), ValueError),
        ((), ValueError),
        ((b"k", b"v", b"w"), ValueError),
        (3, TypeError),
        (None, TypeError),
    ],
)
@pytest.mark.parametrize("at", [0, 5, BATCH, BATCH + 5])
def test_what_stands_before_an_error_is_written(
    store: Any, wrong: Any, error: type[Exception], at: int
) -> None:
    pairs: list[Any] = [(key_of(number), b"v") for number in range(2 * BATCH)]
    pairs[at] = wrong
    with pytest.raises(error):
        store.put_many(pairs)
    assert sorted(store.keys()) == sorted(key_of(number) for number in range(at))


def test_pairs_need_not_be_tuples_and_bytes(store: Any) -> None:
    store.put_many([[b"a", b"1"], (bytearray(b"b"), b"2"), [memoryview(b"c"), bytearray(b"3")]])
    assert dict(store.items()) == {b"a": b"1", b"b": b"2", b"c": b"3"}


@pytest.mark.parametrize("kind", STEADY)
def test_a_batch_of_puts_counts_as_its_puts(store: Any) -> None:
    pairs = [(key_of(number), b"v") for number in range(BATCH)]
    store.put_many(pairs)
    assert store.get_many([key for key, _ in pairs]) == [b"v"] * BATCH

    def taken(work: Callable[[], Any]) -> dict[str, Any]:
        before = store.stats()
        work()
        after = store.stats()
        return {
            name: after[name] - before[name]
            for name in before
            if name not in ("kind", "name", "background", "cas_lost")
        }

    one_by_one = taken(lambda: [store.put(key, value) for key, value in pairs])
    assert one_by_one["ops"] == BATCH
    assert taken(lambda: store.put_many(pairs)) == one_by_one


@pytest.mark.parametrize("kind", RACE)
def test_words_of_a_damaged_index_do_no_harm_to_other_keys(make_store: Make) -> None:
    """A batch is cut where an operation meets the damage, and not where a hint does."""
    store = make_store()
    keys = [key_of(number) for number in range(BATCH)]
    store.put_many([(key, b"v") for key in keys])
    last = keys[-1]
    slots = [slot for slot, word in words_of(store) if holds(store, word, last)]
    assert slots
    generator = random.Random(1)
    for number in range(50):
        hostile = hostile_word(generator, number)
        for slot in slots:
            word = store.endpoint.load(slot)
            store.endpoint.store(slot, word >> 56 << 56 | hostile)
        new = b"%d" % number
        with contextlib.suppress(HOSTILE):
            store.put_many([(key, new) for key in keys])
        assert [store.get(key) for key in keys[:-1]] == [new] * (BATCH - 1)
        with contextlib.suppress(HOSTILE):
            assert store.get_many(keys)[:-1] == [new] * (BATCH - 1)
        slots = slots[:1]


def hostile_word(generator: random.Random, number: int) -> int:
    """Bits 0-55 of a slot: an address on no node, at the end of one, of the control segment."""
    address = (
        generator.getrandbits(48),
        0xFF << 40 | generator.getrandbits(20),
        generator.getrandbits(40),
        (1 << 40) - 16,
        0,
    )[number % 5]
    return generator.getrandbits(7) << 48 | address & ~0xF


def words_of(store: Any) -> list[tuple[int, int]]:
    """Every aligned word of the pool's nodes that could be a slot, with its address."""
    found = []
    for node in range(store.pool.parameters.nodes):
        size = store.pool.layout.node_size
        raw = store.endpoint.read(node << 40, size)
        for at, (word,) in enumerate(struct.iter_unpack("<Q", raw)):
            if word >> 56:
                found.append((node << 40 | 8 * at, word))
    return found


def holds(store: Any, word: int, key: bytes) -> bool:
    """Whether a slot with this word would be the key's."""
    reference = word & 0x7F_FFFF_FFFF_FFFF
    if word >> 56 != hash64(key) & 0xFF or word & 1 or not store.heap.plausible(reference):
        return False
    return key in store.endpoint.read(reference & 0xFF_FFFF_FFFF_F0 | reference & 0xFF << 40, 96)


@pytest.mark.parametrize("kind", ["race"])
def test_a_lost_node_cuts_a_batch_of_puts(make_store: Make) -> None:
    store = make_store(pool_nodes=2)
    keys = [key_of(number) for number in range(2 * BATCH)]
    store.put_many([(key, b"v") for key in keys])
    store.pool.fail_node(1)
    served = []
    for key in keys:
        try:
            store.get(key)
            served.append(True)
        except limpet.NodeFailed:
            served.append(False)
    first = served.index(False)
    assert True in served[first:]
    with pytest.raises(limpet.NodeFailed):
        store.put_many([(key, b"w") for key in keys])
    there = [store.get(key) for key, serves in zip(keys, served, strict=True) if serves]
    before = sum(served[:first])
    assert there == [b"w"] * before + [b"v"] * (sum(served) - before)
    with pytest.raises(limpet.NodeFailed):
        store.get_many(keys)


@pytest.mark.exhaustive_in_pure("seconds of processes")
@pytest.mark.parametrize("kind", REPLICATED)
def test_batches_go_on_while_nodes_are_lost_and_replaced(make_store: Make, kind: str) -> None:
    """By a handle that remembers where everything was before."""
    replicas = 3 if store_class(kind).majorities else 2
    store = make_store(pool_nodes=4, replicas=replicas)
    keys = [key_of(number) for number in range(2 * BATCH + 3)]
    with limpet.open(store.pool.url) as pool:
        other = pool.store(store.kind, name="test")
        other.put_many([(key, b"v") for key in keys])
        assert other.get_many(keys) == [b"v"] * len(keys)
        for node in range(4):
            store.pool.fail_node(node)
            other.put_many([(key, b"%d" % node) for key in keys[::2]])
            store.pool.replace_node(node)
            assert other.get_many(keys[::2]) == [b"%d" % node] * len(keys[::2])
            other.put_many([(key, b"%d" % node) for key in keys])
            assert other.get_many(keys) == [b"%d" % node] * len(keys)
            assert store.get_many(keys) == [b"%d" % node] * len(keys)
        other.check()
