"""Blocks and objects: size classes, spans, fullness, memory of others, lost nodes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from kit.clients import pinned
from kit.processes import child
from kit.stores import checked

import limpet
from limpet.shm.endpoint.fabric import BUILD
from limpet.shm.endpoint.layout import FITTING, PAGES, ROOM_SHARE, object_sizes, slab_sizes
from limpet.shm.endpoint.words import ADDRESS_MASK, FREE, LARGE, SLAB, TAIL

CHURN = 400 if BUILD == "compiled" else 60


def kinds(pool: limpet.Pool, node: int = 0) -> list[int]:
    return [word >> 60 for word in pool.blocks.words(node).tolist()]


def fill(store: Any, size: int) -> int:
    """Insert values until the store is full; how many went in."""
    number = 0
    try:
        while True:
            store.insert(b"%d" % number, bytes(size))
            number += 1
    except limpet.StoreFull:
        return number


def test_class_is_the_smallest_that_fits(pools: Any) -> None:
    pool = pools()
    heap, sizes = pool.heap, object_sizes(pool.layout.block_size)[:-1]
    for size_class in range(1, len(sizes)):
        assert heap.size_class(sizes[size_class]) == size_class
        assert heap.size_class(sizes[size_class - 1] + 1) == size_class
    assert heap.size_class(sizes[-1] + 1) == 0


@pytest.mark.parametrize("power", range(14, 31))
def test_a_size_class_wastes_at_most_an_eighth(power: int) -> None:
    """Up to eight blocks, from where on spans do; in blocks of more than 16 MiB less far."""
    block = (1 << power) + (1 << power) // ROOM_SHARE
    sizes = object_sizes(block)[:-1]
    if power <= 24:
        assert sizes[-1] == 8 * block
    # the worst size of a class is one byte more than the class below it has
    for below, size in itertools.pairwise(sizes[1:]):
        if power <= 27 or size < block // 8:
            assert size - (below + 1) <= size / 8 + 15, (below, size)
    for parts in (8, 4, 2, 1):  # larger values: these parts of a block, with a header and a key
        size = (1 << power) // parts
        assert block // parts // 16 * 16 in sizes
        assert block // parts - size >= 16 << power - 14 + 2 >> parts.bit_length()


@pytest.mark.parametrize("power", range(14, 31))
def test_an_eighth_is_waste_at_most_with_the_rest_at_the_end_of_a_block(power: int) -> None:
    """Of the least size that needs each class: an object's share of its block is at most 8/7 of it,
    and up to 128 bytes at most 15 bytes more."""
    block = (1 << power) + (1 << power) // ROOM_SHARE
    for below, size in itertools.pairwise((*slab_sizes(block)[1:], block // 8 // 16 * 16)):
        count = block // size
        rounding = 15 if 64 <= below < 128 else 0
        if below >= 64:
            assert 8 * (below + 1 + rounding) * count >= 7 * block, (below, size)
        assert size <= 128 or size in FITTING or size == block // count // 16 * 16


@pytest.mark.parametrize("power", range(14, 24))
def test_classes_fit_powers_of_two_with_a_header_and_a_key(power: int) -> None:
    block = (1 << power) + (1 << power) // ROOM_SHARE
    sizes = object_sizes(block)
    for value in range(10, 17):
        size = (1 << value) + 64
        fitting = min((each for each in sizes if each >= size), default=0)
        if size < block // 8:
            assert fitting <= size + size // 32


@pytest.mark.parametrize("block_size", [16 << 10, 64 << 10, 256 << 10])
def test_values_of_one_size_fill_their_blocks(pools: Any, block_size: int) -> None:
    """At most an eighth of the memory of many values is waste, whatever their size."""
    pool = pools(node_size=80 * block_size, block_size=block_size)
    heap, allocator = pool.heap, pool.allocator
    block = heap.block_size
    for parts in (8.5, 6.5, 5.4, 3.9, 2.9, 1.9, 1.7, 1.3, 1.01, 0.95, 0.7, 0.51, 0.4, 0.26):
        size = int(block / parts)
        most = heap.block_count * 3 // 4 * block
        taken = []
        while len(taken) * size < most * 0.8:
            allocator.replenish_all(0, [size] * 8, 1, 0, 0, True)
            for _ in range(8):
                taken.append(allocator.next_object(0, size, 1))
                heap.take(taken[-1])
        places = sorted(reference & ADDRESS_MASK for reference in taken)
        assert all(b - a >= size for a, b in itertools.pairwise(places))
        assert all(heap.plausible(reference) for reference in taken)
        used = sum(word >> 60 != FREE for word in pool.blocks.words(0).tolist())
        assert used * block * 7 / 8 <= (len(taken) + 8) * size + block, (size, used, len(taken))
        for reference in taken:
            heap.free(reference)
        assert pool.exclusively(lambda: allocator.relief.make_room(1, 0, {}))


def test_powers_of_two_with_a_header_fit_well(pools: Any) -> None:
    heap = pools(node_size="64MiB").heap
    for kib in (4, 8, 16, 32, 64, 128, 256, 512, 1024):
        size = kib * 1024 + 64
        size_class = heap.size_class(size)
        if heap.runs[size_class]:
            taken = heap.runs[size_class] * heap.block_size / PAGES
        elif size_class:
            taken = heap.block_size / heap.object_count(size_class)
        else:
            taken = -(-size // heap.block_size) * heap.block_size
        assert taken <= size * 1.04, kib


def test_objects_of_a_block_do_not_overlap(pools: Any) -> None:
    pool = pools()
    heap, sizes = pool.heap, object_sizes(pool.layout.block_size)
    for size_class in range(1, len(sizes)):
        count, size = heap.object_count(size_class), sizes[size_class]
        step = max(heap.runs[size_class], 1)
        places = range(0, count, step) if step < count else [0]
        references = [heap.reference(0, 3, size_class, index) for index in places]
        assert all(b - a in (size, size + 16) for a, b in itertools.pairwise(references))
        assert all(heap.plausible(reference) for reference in references)
        assert [heap.index_of(reference) for reference in references] == list(places)
        assert {heap.block_of(reference) for reference in references} == {3}
        assert not heap.plausible(references[0] + 16 if size > 16 else 1)


@pytest.mark.either_build("fills a node with the same lines")
@pytest.mark.parametrize("size", [1, 100, 3000, 40_000])
def test_full_node_says_so_and_goes_on_when_something_is_deleted(pools: Any, size: int) -> None:
    pool = pools(node_size="512KiB", lease=0.02)
    store = pool.store("race", capacity=8000 if size == 1 else 3000)
    count = fill(store, size)
    assert count * size < pool.parameters.node_size
    assert len(store) == count
    checked(store)
    for number in range(0, count, 2):
        store.delete(b"%d" % number)
    for number in range(0, count, 2):
        store.insert(b"%d" % number, bytes(size))
    assert len(store) == count
    checked(store)


def test_memory_of_one_size_serves_another_when_it_is_free(pools: Any) -> None:
    pool = pools(node_size="512KiB", lease=0.02)
    store = pool.store("race", capacity=3000)
    counts: dict[int, int] = {}
    for size in (200, 40_000, 2000, 200, 40_000, 2000):
        count = fill(store, size)
        assert counts.setdefault(size, count) <= count + 1
        checked(store)
        for number in range(count):
            store.delete(b"%d" % number)


def test_full_store_stays_as_it_was(pools: Any) -> None:
    pool = pools(node_size="512KiB", lease=0.02)
    store = pool.store("race", capacity=3000)
    count = fill(store, 3000)
    before = pool.audit()
    with pytest.raises(limpet.StoreFull):
        store.put(b"0", bytes(100_000))
    assert store.get(b"0") == bytes(3000)
    assert len(store) == count
    assert pool.audit() == before


def test_overwriting_for_ever_needs_no_more_memory(pools: Any) -> None:
    pool = pools(node_size="512KiB")
    store = pool.store("race", capacity=64)
    for turn in range(CHURN):
        store.put(b"k", bytes(turn * 37 % 30_000))
    checked(store)


def test_freed_by_one_used_by_another(pools: Any) -> None:
    """A client deletes what another one wrote: its owner finds the memory again."""
    pool = pools(node_size="512KiB")
    store = pool.store("race", capacity=200)
    other = pools.again(pool).store("race")
    for _ in range(20):
        for number in range(40):
            store.put(b"%d" % number, bytes(5000))
        for number in range(40):
            other.delete(b"%d" % number)
    checked(store)


def test_span_is_a_run_of_blocks_and_is_given_back(pools: Any) -> None:
    pool = pools()
    store = pool.store("race", capacity=64)
    store.put(b"k", bytes(9 * pool.layout.block_size))
    found = kinds(pool)
    first = found.index(LARGE)
    assert found[first : first + 11] == [LARGE, *[TAIL] * 9, FREE]
    store.delete(b"k")
    pool.exclusively(lambda: pool.allocator.relief.make_room(1, 0, {}))
    assert LARGE not in kinds(pool)
    assert TAIL not in kinds(pool)


def test_value_of_the_whole_node_does_not_fit_and_says_so(pools: Any) -> None:
    pool = pools(node_size="512KiB", lease=0.02)
    store = pool.store("race", capacity=64)
    with pytest.raises(limpet.ValueTooLarge):
        store.put(b"k", bytes(pool.parameters.node_size))
    with pytest.raises(limpet.StoreFull):
        store.put(b"k", bytes(pool.layout.block_count * pool.layout.block_size - 100))
    checked(store)


def test_slabs_of_another_client_are_not_touched(pools: Any) -> None:
    pool = pools()
    store = pool.store("race", capacity=64)
    other = pools.again(pool)
    kv = other.store("race")
    for number in range(20):
        store.put(b"a%d" % number, bytes(100))
        kv.put(b"b%d" % number, bytes(100))
    owners = {word & (1 << 48) - 1 for word in pool.blocks.words(0).tolist() if word >> 60 == SLAB}
    assert owners == {pool.membership.ident, other.membership.ident}


def test_lost_node_does_not_keep_others_from_making_room(pools: Any) -> None:
    pool = pools(nodes=2, node_size="512KiB", lease=0.02)
    store = pool.store("race", capacity=4000)
    for number in range(50):
        store.put(b"%d" % number, bytes(2000))
    pool.fail_node(1)
    lost, full = set(), None
    for number in range(2000):
        outcome = _put(store, b"n%d" % number)
        if isinstance(outcome, limpet.NodeFailed):
            lost.add(outcome.node)
        elif outcome is not None:
            full = outcome
            break
    assert lost == {1}
    assert "node 0 has no room" in str(full)
    there = [key for key in (b"n%d" % n for n in range(number)) if _is_there(store, key)]
    for key in there[:10]:
        store.delete(key)
    store.put(there[0], bytes(2000))
    assert store.get(there[0]) == bytes(2000)


def _put(store: Any, key: bytes) -> limpet.LimpetError | None:
    try:
        store.put(key, bytes(2000))
    except limpet.LimpetError as error:
        return error
    return None


def _is_there(store: Any, key: bytes) -> bool:
    try:
        return key in store
    except limpet.NodeFailed:
        return False


def test_allocation_waits_for_a_reader_that_will_soon_be_done(pools: Any) -> None:
    pool = pools(node_size="512KiB", lease=2)
    store = pool.store("race", capacity=3000)

    def read_for_a_while() -> None:
        with pinned(pool):
            for attempt in range(60, 160):
                pool.endpoint.pause(attempt)

    with child(read=read_for_a_while, join=lambda: pool.client_id) as other:
        other.do("join")
        other.send("read")
        while not pool.grace.pinned():
            pool.endpoint.pause(30)
        for number in range(300):
            store.put(b"k", bytes(4000))
            if number % 2:
                store.delete(b"k")
        other.answer()
    assert [event["kind"] for event in pool.events()] == []


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_claim_reads_as_much_of_the_block_table_as_it_needs(pools: Any, replicas: int) -> None:
    """Of 16 KB on each node. The first claim of a client needs less than the next ones, which look
    whether a quarter of the blocks is free."""
    pool = pools(nodes=2, node_size="33MiB", block_size="16KiB")
    counters = pool.endpoint.counters
    scopes = ("foreground", "background", "control")
    found = []
    for size in (100, 200, 300):
        before = sum(counters(scope)["bytes_read"] for scope in scopes)
        pool.allocator.replenish(0, size, replicas)
        found.append(sum(counters(scope)["bytes_read"] for scope in scopes) - before)
    assert pool.blocks.count > 2000
    assert found[0] < 4000 * replicas
    assert max(found) < 9000 * replicas


def test_memory_of_a_pool_that_another_thread_has_closed(pools: Any) -> None:
    """Requests enter an operation of their own, after the one of the call has ended."""
    pool = pools()
    allocator = pool.store("clover", capacity=64).allocator
    pool.close()
    with pytest.raises(limpet.PoolClosed):
        allocator.replenish(0, 64)
    with pytest.raises(limpet.PoolClosed):
        allocator.await_period(1, 0)
