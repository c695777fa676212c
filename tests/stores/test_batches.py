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
from limpet.stores.core.status import BATCH
from limpet.stores.registry import KINDS, store_class

pytestmark = pytest.mark.exhaustive_in_pure(
    "the same lines as compiled, and slower", quick=["race", "race-*", "fusee", "fusee-*", "loco*"]
)
Make = Callable[..., Any]
SIZES = (1, BATCH - 1, BATCH, BATCH + 1, 3 * BATCH + 4)
REPLICATED = [kind for kind in sorted(KINDS) if store_class(kind).replicated]
RACE = ("race", "rtx-race", "dtx-race")
BATCHED = ("race", "rtx-race", "race-locks")
"""Kinds whose `put_many` has each phase of a put once for many keys."""
VERBS = ("round_trips", "reads", "bytes_read", "writes", "bytes_written", "cas", "ops")
STEADY = ("dtx-race", "raw", "rcuckoo")
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


@pytest.mark.parametrize("size", SIZES)
def test_deletes_of_a_batch_say_how_many_keys_were_there(store: Any, size: int) -> None:
    keys = [key_of(number) for number in range(size)]
    store.put_many([(key, b"1") for key in keys])
    assert store.delete_many(iter(keys[::2])) == len(keys[::2])
    assert store.delete_many([*keys, *keys, b"none"]) == len(keys[1::2])
    assert store.delete_many(keys) == store.delete_many([]) == 0
    assert store.get_many(keys) == [None] * size
    store.put_many([(key, b"2") for key in keys])
    assert len(store) == size
    store.check()
    assert store.pool.audit()["leaked"] == 0


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
            if name not in ("kind", "name", "background", "control", "cas_lost")
        }

    one_by_one = taken(lambda: [store.put(key, value) for key, value in pairs])
    assert one_by_one["ops"] == BATCH
    assert taken(lambda: store.put_many(pairs)) == one_by_one


@pytest.mark.parametrize("kind", BATCHED)
def test_a_batch_of_puts_takes_three_round_trips(make_store: Make) -> None:
    """Verb by verb: what a batch reads and writes is what its puts do, each phase once."""
    store = make_store(pool_nodes=1, groups=64)
    warm = [(b"warm %d" % number, b"v") for number in range(BATCH)]
    store.put_many(warm)
    pairs = [(b"key %04d" % number, b"value of") for number in range(22)]
    store.get_many([key for key, _ in pairs])  # it knows all subtables

    def taken(work: Callable[[], Any]) -> dict[str, Any]:
        before = store.stats()
        work()
        after = store.stats()
        return {name: after[name] - before[name] for name in VERBS}

    stamp = 0 if store.kind == "race-locks" else 8
    size = stamp + 16 + 8 + 8  # sizes, checksum, key, value
    read = 40 if stamp else 32  # an object's class, without the stamp
    inserts = taken(lambda: store.put_many(pairs))
    assert inserts == {
        # buckets; the slots; buckets again; the slots again: the second and third are one phase
        "round_trips": 3,
        "reads": 22 * 5,  # an entry of the directory, and twice two buckets
        "bytes_read": 22 * (8 + 4 * 128),
        "writes": 22,
        "bytes_written": 22 * size,
        "cas": 44,
        "ops": 22,
    }
    updates = taken(lambda: store.put_many(pairs[:11]))
    assert updates == {
        "round_trips": 3,  # buckets; objects; the slots
        "reads": 11 * 4,
        "bytes_read": 11 * (8 + 2 * 128 + read),
        "writes": 11,
        "bytes_written": 11 * size,
        "cas": 11,
        "ops": 11,
    }
    # no more than 11 updates fit the client journal
    assert taken(lambda: store.put_many(pairs))["round_trips"] == 6
    assert len(store) == len(warm) + len(pairs)
    store.check()


@pytest.mark.parametrize("kind", BATCHED)
def test_keys_that_do_not_fit_a_batch_are_put_in_their_order(make_store: Make) -> None:
    """Long values, keys that come again, and subtables that split, in the midst of a batch."""
    store = make_store(pool_nodes=2)
    generator = random.Random(3)
    expected: dict[bytes, bytes] = {}
    for _ in range(60):
        pairs = []
        for _ in range(generator.randrange(1, 60)):
            value = bytes([generator.randrange(256)]) * generator.choice((0, 8, 300, 5000))
            pairs.append((key_of(generator.randrange(3000)), value))
        store.put_many(pairs)
        expected.update(pairs)
    assert dict(store.items()) == expected
    store.check()
    assert store.pool.audit()["leaked"] == 0


@pytest.mark.parametrize("kind", BATCHED)
def test_a_batch_in_a_full_pool_says_so(make_store: Make) -> None:
    """All that stands before the key without room is put; some after it may be."""
    store = make_store(pool_nodes=1)
    keys: list[bytes] = []

    def fill() -> None:
        while True:
            some = [b"%d %s" % (len(keys) + number, b"k" * 200) for number in range(20)]
            store.put_many([(key, b"v" * 800) for key in some])
            keys.extend(some)

    with pytest.raises(limpet.StoreFull):
        fill()
    assert all(value == b"v" * 800 for value in store.get_many(keys))
    store.put_many([(key, b"w" * 800) for key in keys[:40]])
    assert store.get_many(keys[:40]) == [b"w" * 800] * 40
    store.check()


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
