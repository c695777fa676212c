"""Numbers of damaged memory that become an index, a size, a bound, or an address (trap G12).

Each is refused before it is used: no signal, no loop without an end, no write to another place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

import limpet
from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.stores.core.object_layout import POINTER
from limpet.stores.sherman.layout import COUNT_SHIFT, EXTENT, SHAPE, SLOTS, VALUE_SHIFT
from limpet.stores.swarm.layout import GUESSED, TIME_MAX, VERIFIED
from limpet.stores.swarm.register import tuple_word
from limpet.stores.transactions.layout import LOCKED

HUGE = [1 << 61, (1 << 61) - 1, 1 << 60, (1 << 63) - 1]


@pytest.mark.parametrize("index", HUGE)
def test_a_word_of_an_image_is_within_it_though_its_byte_wraps(pools: Any, index: int) -> None:
    image = pools().endpoint.image(64)
    for look in (
        lambda: image.word(index),
        lambda: image.search(index, 1, b"k"),
        lambda: image.search(0, index, b"k"),
        lambda: image.read(64, index),
    ):
        with pytest.raises(limpet.AddressError):
            look()


# ---- trees ---------------------------------------------------------------------------------------


def change_node(store: Any, at: int, word: int, change: Callable[[int], int]) -> None:
    """Change a word of the node that the object at this address has."""
    node = store.endpoint.load(at + POINTER) & ADDRESS_MASK
    there = store.endpoint.load(node + 8 * word)
    store.endpoint.store(node + 8 * word, change(there))


@pytest.mark.parametrize("length", [0, 7, 9, 64])
def test_a_link_of_a_tree_has_eight_bytes_or_is_damaged(pools: Any, length: int) -> None:
    store = pools().store("rtx-sherman", name="test", capacity=1000, value_size=16)
    store.put(b"k" * 60, bytes(200))
    assert store.get(b"k" * 60) == bytes(200)
    leaf = store.trees.roots[store.leaf.tree]
    slot = SLOTS
    assert store.leaf.page.slot & EXTENT
    shorter = length << VALUE_SHIFT
    change_node(store, leaf, slot, lambda word: word & ~(0xFFFF << VALUE_SHIFT) | shorter)
    for work in (lambda: store.get(b"k" * 60), lambda: store.put(b"k" * 60, bytes(300))):
        with pytest.raises((limpet.StoreCorrupt, limpet.AddressError)):
            work()


def test_an_inner_node_without_children_is_damaged(pools: Any) -> None:
    pool = pools(node_size="4MiB")
    store = pool.store("rtx-sherman", name="test", capacity=1000)
    keys = [b"%05d" % number for number in range(200)]
    for key in keys:
        store.put(key, bytes(60))
    (root,) = store.trees.roots
    change_node(store, root, SHAPE, lambda word: word & ~(0xFFFF << COUNT_SHIFT))
    reader = pools.again(pool).store("rtx-sherman", name="test")
    for key in keys:
        with pytest.raises(limpet.StoreCorrupt):
            reader.get(key)


# ---- registers -----------------------------------------------------------------------------------


@pytest.mark.exhaustive("more numbers", quick=["1-0"])
@pytest.mark.parametrize("mode", [GUESSED, VERIFIED])
@pytest.mark.parametrize("time", [1, TIME_MAX - 1, TIME_MAX])
def test_a_tuple_of_no_writer_is_damage_and_changes_nothing_else(
    pools: Any, time: int, mode: int
) -> None:
    """The row that it names is beyond the register, as is the lock of its writer."""
    store = pools(nodes=3).store("swarm", name="test", capacity=100, replicas=3, writers=8)
    store.put(b"k", b"value")
    assert store.get(b"k") == b"value"
    register, endpoint = store.register.place, store.endpoint
    word = tuple_word(time, 63, mode, 63, 1)
    for k in range(3):
        for index in range(2, 2 + register.buffers):
            endpoint.store(register.address(k) + 8 * index, word)
    size = register.size(register.capacity)
    ends = [register.address(k) + size for k in range(3)]
    before = [endpoint.read(end, 4096) for end in ends]
    for work in (
        lambda: store.get(b"k"),
        lambda: store.put(b"k", b"other"),
        lambda: store.insert(b"k", b"other"),
        lambda: store.delete(b"k"),
    ):
        with contextlib.suppress(limpet.LimpetError, KeyError):
            assert work() in (None, b"value", b"other")
        if time < TIME_MAX:
            assert [endpoint.read(end, 4096) for end in ends] == before


# ---- queues --------------------------------------------------------------------------------------


@pytest.mark.parametrize("tail", [1 << 40, 1 << 62, (1 << 64) - 1])
def test_a_damaged_tail_of_a_queue_is_no_bound_of_a_loop(pools: Any, tail: int) -> None:
    pool = pools()
    jobs = pool.queue("q", maxsize=8)
    jobs.put("one")
    pool.endpoint.store(jobs.ring.tail, tail)
    assert jobs.qsize() <= 8
    with pytest.raises(limpet.StoreCorrupt, match="damaged"):
        jobs.join(timeout=0)
    assert jobs.get(timeout=0) == "one"


# ---- hash tables with transactions ---------------------------------------------------------------


def test_a_lock_without_a_log_at_an_entry_of_a_directory_is_damage(pools: Any) -> None:
    pool = pools(node_size="8MiB", lease=0.1)
    store = pool.store("rtx-race", name="test", capacity=64)
    entries = set()
    for number in range(20):
        store.put(b"%d" % number, b"v")
        entries.add(store.place.entry)
    for entry in entries:
        pool.endpoint.store(entry - POINTER, LOCKED)
    with pytest.raises(limpet.StoreCorrupt, match="no log"):
        store.put_many((b"%d" % number, b"v") for number in range(2000))
