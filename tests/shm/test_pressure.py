"""Memory that living clients hoard: a client in need takes it, and its owner uses it no more."""

from __future__ import annotations

import random
from typing import Any

import pytest
from kit.clients import pinned
from kit.endpoints import Interrupted, WatchedPool
from kit.processes import child, gather
from kit.stores import checked

import limpet
from limpet.shm.alloc.reclaim import Shortage, expel
from limpet.shm.endpoint.fabric import BUILD
from limpet.shm.endpoint.layout import PRESSURE
from limpet.shm.endpoint.words import LIMBO, OWNER_MASK, SLAB, TAKEN, block_word

ROUNDS = 1500 if BUILD == "compiled" else 60
LEASE_US = 50_000
SIZE = 6000
FEW = 40
"""Reads of a refusal without a search; a look for dead clients may be among them."""


def stores(*handles: Any) -> list[Any]:
    return [handle.store("race", name="test", capacity=3000) for handle in handles]


def put_many(store: Any, size: int, prefix: bytes = b"") -> list[bytes]:
    """Put values of that size until the store is full; their keys."""
    kept = []
    for number in range(1000):
        key = b"%s%d" % (prefix, number)
        try:
            store.put(key, bytes(size))
        except limpet.StoreFull:
            break
        kept.append(key)
    return kept


def hoard(store: Any, size: int = 3000) -> int:
    """Have the store's client own all of the memory, with nothing in it; how many objects fit."""
    keys = put_many(store, size)
    for key in keys:
        store.delete(key)
    return len(keys)


def kinds(pool: limpet.Pool) -> set[int]:
    return {word >> 60 for word in pool.blocks.words(0).tolist()}


def in_limbo(pool: limpet.Pool) -> list[int]:
    """Blocks that have been taken and are not free yet."""
    words = pool.blocks.words(0).tolist()
    return [block for block, word in enumerate(words) if word >> 60 in (TAKEN, LIMBO)]


def short_of(pool: limpet.Pool, size: int = 3000) -> Shortage:
    ident, size_class = pool.client_id, pool.heap.size_class(size)
    return Shortage(pool.blocks, pool.grace, ident, 0, size_class)


def take(pool: limpet.Pool, size: int = 3000) -> None:
    """Take hoarded blocks, as a client without memory does; they are in limbo then."""
    shortage = short_of(pool, size)
    assert pool.exclusively(shortage.take_unchanged)
    assert not in_limbo(pool), "taken at first sight"
    pool.exclusively(shortage.take_unchanged)
    assert in_limbo(pool)
    assert pool.audit()["leaked"] == 0


@pytest.mark.parametrize("hoarded", [100, 3000, 40_000])
@pytest.mark.parametrize("wanted", [100, 3000, 40_000])
def test_hoarded_memory_serves_every_size(pools: Any, hoarded: int, wanted: int) -> None:
    pool = pools(node_size="512KiB", lease=LEASE_US / 1e6)
    store, others = stores(pool, pools.again(pool))
    hoard(store, 100)  # the index is as large as it gets then
    count = hoard(store, wanted)
    hoard(others, hoarded)
    assert len(put_many(store, wanted)) >= count - 1
    checked(store)


def test_partly_used_blocks_of_other_nodes_are_not_taken_for_backups(pools: Any) -> None:
    """A backup needs an empty block; those around it were taken in vain."""
    pool = pools(nodes=2, node_size="2MiB", block_size=16 << 10)
    owner = pools.again(pool)
    allocator, heap = owner.allocator, owner.heap
    size = heap.block_size * 3 // 4
    allocator.replenish_all(1, [size] * 8, 2, 0, 0, True)
    taken = [allocator.next_object(1, size, 2) for _ in range(8)]
    for reference in taken:
        heap.take(reference)
    for reference in taken[2:6]:
        heap.free(reference)
    ident, size_class = pool.client_id, pool.heap.size_class(size)
    shortage = Shortage(pool.blocks, pool.grace, ident, 0, size_class, 2)

    def others() -> dict[tuple[int, int], int]:
        empty: dict[tuple[int, int], int] = {}
        assert shortage._add_others(empty) == [1]
        return empty

    found = pool.exclusively(others)
    assert found
    assert not any(pool.blocks.used_count(node, block, heap.page_class) for node, block in found)


def test_idle_process_keeps_no_memory_back(pools: Any) -> None:
    pool = pools(node_size="512KiB", lease=LEASE_US / 1e6)
    (store,) = stores(pool)
    more = {"hoard": lambda: hoard(store), "more": lambda: len(put_many(store, 3000, b"more "))}
    with child(**more) as other:
        count = other.do("hoard")
        other.stop()
        assert len(put_many(store, 3000)) >= count - 1
        other.wake()
        assert other.do("more") == 0, "there is no memory left for what is new"
    assert [e["kind"] for e in pool.events() if e["kind"] == "fenced"] == []
    pool.recover()
    checked(store)


def test_room_in_blocks_of_others_is_used(pools: Any) -> None:
    """No block is empty, but others' blocks have room."""
    pool = pools(node_size="512KiB", lease=LEASE_US / 1e6)
    store, other = stores(pool, pools.again(pool))
    keys = put_many(other, 3000)
    for key in keys[::2]:
        other.delete(key)
    for key in keys[::2]:
        store.put(key, bytes(3000))
    assert all(store.get(key) == bytes(3000) for key in keys)
    assert all(other.get(key) == bytes(3000) for key in keys)
    checked(store)


def test_owner_in_an_operation_keeps_what_it_allocates_from_a_block_being_taken(pools: Any) -> None:
    pool = pools(node_size="512KiB", lease=LEASE_US / 1e6, fence="wait")
    owner = pools.again(pool)
    store, of_owner = stores(pool, owner)
    hoard(of_owner)
    with pinned(owner):
        assert owner.endpoint.load(PRESSURE) == owner.allocator.pressure
        take(pool)
        blocks = in_limbo(pool)
        for _ in range(3):
            with pytest.raises(limpet.StoreFull):
                store.put(b"big", bytes(40_000))
        assert in_limbo(pool) == blocks, "its last owner may still allocate from it"
    store.put(b"big", bytes(40_000))
    checked(store)


def test_owner_notices_at_its_next_operation(pools: Any) -> None:
    pool = pools(node_size="512KiB", lease=LEASE_US / 1e6)
    owner = pools.again(pool)
    store, of_owner = stores(pool, owner)
    hoard(of_owner)
    size_class = owner.heap.block_class(owner.heap.size_class(3000))
    assert owner.allocator.slabs.kinds[size_class]
    take(pool)
    keys = put_many(store, 3000)
    with pytest.raises(limpet.StoreFull):
        of_owner.put(b"one more", bytes(3000))
    assert owner.allocator.pressure == owner.endpoint.load(PRESSURE) > 0
    mine = block_word(SLAB, owner.client_id, size_class)
    assert mine not in pool.blocks.words(0).tolist()
    assert all(store.get(key) == bytes(3000) for key in keys)
    checked(store)


def test_block_that_comes_back_to_its_owner_begins_anew(pools: Any) -> None:
    """The owner's old knowledge of the block's objects was still there beside the new."""
    pool = pools(node_size="512KiB", lease=LEASE_US / 1e6)
    owner = pools.again(pool)
    store, of_owner = stores(pool, owner)
    count = hoard(of_owner)
    take(pool)
    store.put(b"there", bytes(3000))
    keys = put_many(of_owner, 3000)
    assert len(keys) >= count - 8
    for slabs in owner.allocator.slabs.kinds.values():
        blocks = [(slab.node, slab.block) for slab in slabs]
        assert len(blocks) == len(set(blocks))
    assert store.get(b"there") == bytes(3000)
    checked(store)


def test_taker_that_was_interrupted_keeps_nothing_back(pools: Any) -> None:
    pool = pools.keep(
        WatchedPool.create(pools.url(), nodes=1, node_size="512KiB", lease=LEASE_US / 1e6)
    )
    store, of_owner, of_third = stores(pool, pools.again(pool), pools.again(pool))
    count = hoard(of_owner)
    shortage = short_of(pool)
    pool.exclusively(shortage.take_unchanged)

    def interrupt(verb: str, address: int) -> None:
        if verb == "cas":
            pool.endpoint.after = None
            raise Interrupted

    pool.endpoint.after = interrupt
    with pytest.raises(Interrupted):
        pool.exclusively(shortage.take_unchanged)
    assert TAKEN in kinds(pool)
    assert pool.audit()["leaked"] == 0
    assert len(put_many(of_third, 3000)) >= count - 1
    checked(store)


def test_late_stamp_of_a_taker_is_refused(pools: Any) -> None:
    """A taker stands still before it stamps; another one takes the block over meanwhile."""
    pool = pools(node_size="512KiB", lease=LEASE_US / 1e6)
    slow, owner = pools.again(pool), pools.again(pool)
    store, of_owner = stores(pool, owner)
    hoard(of_owner)
    close, taken = slow.grace.close_period, []

    def overtaken() -> int:
        epoch = close()
        slow.grace.close_period = close
        taken.append(len(put_many(store, 3000)))
        return int(epoch)

    slow.grace.close_period = overtaken
    take_in_vain = short_of(slow)
    slow.exclusively(take_in_vain.take_unchanged)
    slow.exclusively(take_in_vain.take_unchanged)
    assert taken[0] > 0
    assert all(store.get(b"%d" % number) == bytes(3000) for number in range(taken[0]))
    owners = {w & OWNER_MASK for w in pool.blocks.words(0).tolist() if w >> 60 == SLAB}
    assert pool.client_id in owners
    checked(store)


def test_dead_taker_is_recovered(pools: Any) -> None:
    pool = pools(node_size="512KiB", lease=LEASE_US / 1e6)
    (store,) = stores(pool)
    count = hoard(store)

    def take_first_half() -> None:
        shortage = short_of(pool)
        pool.exclusively(shortage.take_unchanged)
        pool.endpoint.fuse = 3
        pool.exclusively(shortage.take_unchanged)

    with child(take=take_first_half) as other:
        other.send("take")
        other.reap()
        assert TAKEN in kinds(pool)
        pool.recover()
    assert TAKEN not in kinds(pool)
    assert LIMBO in kinds(pool)
    assert len(put_many(store, 3000)) >= count - 1
    checked(store)


def test_expelling_nothing_raises_no_pressure(pools: Any) -> None:
    pool = pools()
    assert pool.exclusively(lambda: expel(pool.blocks, 0, pool.membership.ident, pool.grace)) == 0
    assert pool.endpoint.load(PRESSURE) == 0


def test_sixteen_clients_share_a_tiny_node(pools: Any) -> None:
    """Each needs a block of its own, and there are fewer blocks than clients."""
    pool = pools(node_size="256KiB", clients=24)
    store = pool.store("race", name="test", capacity=64)
    keys = [b"%02d" % number for number in range(12)]
    assert pool.layout.block_count < 16

    def work(seed: int) -> int:
        source = random.Random(seed)
        for _ in range(ROUNDS // 5):
            key = source.choice(keys)
            store.put(key, key * source.choice((250, 1500)))
        return 1

    assert gather(*[lambda s=s: work(s) for s in range(16)]) == [1] * 16
    pool.recover()
    for key in keys:
        value = store.get(key)
        assert value is None or value == key * (len(value) // len(key))
    checked(store)


def test_full_pool_says_how_much_is_to_be_deleted(pools: Any) -> None:
    pool = pools(nodes=1, node_size="2MiB")
    block = pool.layout.block_size
    with limpet.open(pool.url) as second:
        store, other = stores(pool, second)
        keys = put_many(store, 3000)
        with pytest.raises(limpet.StoreFull, match="an entry of about this size for each"):
            store.put(b"new", bytes(3000))
        other.delete(keys[7])
        other.put(b"new", bytes(3000))
        with pytest.raises(limpet.StoreFull, match=f"a run of {3 * block} bytes"):
            store.put(b"large", bytes(2 * block))


# ---- refusals ------------------------------------------------------------------------------------


def refused_key(store: Any) -> bytes:
    """Fill the store; a key whose update to SIZE bytes is refused."""
    for key in put_many(store, SIZE // 2):
        try:
            store.update(key, bytes(SIZE))
        except limpet.StoreFull:
            return key
    raise AssertionError("there is room for all")


def reads_of_a_refusal(store: Any, key: bytes) -> int:
    counters = store.endpoint.counters
    before = counters()["reads"] + counters("background")["reads"]
    with pytest.raises(limpet.StoreFull, match="no room for an object of"):
        store.update(key, bytes(SIZE))
    return int(counters()["reads"] + counters("background")["reads"] - before)


@pytest.mark.parametrize("kind", ["race", "fusee", "swarm", "rcuckoo", "rtx-race"])
def test_a_store_that_is_full_is_not_searched_again_until_memory_comes_back(
    pools: Any, kind: str
) -> None:
    pool = pools(nodes=3 if kind in ("fusee", "swarm") else 1, node_size="1MiB")
    store, other = (
        handle.store(kind, name="s", capacity=1000) for handle in (pool, pools.again(pool))
    )
    key = refused_key(store)
    assert reads_of_a_refusal(store, key) < FEW
    pool.allocator.relief.refusals.clear()
    assert reads_of_a_refusal(store, key) > 4 * FEW
    assert reads_of_a_refusal(store, key) < FEW
    for gone in [found for found in store if found != key]:
        other.delete(gone)
    store.update(key, bytes(SIZE))
    assert store.get(key) == bytes(SIZE)
    checked(store)


def test_a_store_that_is_full_uses_what_a_client_had_that_has_died_since(pools: Any) -> None:
    pool = pools(node_size="1MiB")
    store = pool.store("race", name="s", capacity=1000)
    held = []

    def hold() -> None:
        held.append(store.reserve(b"another", 2 * SIZE))
        held[0].__enter__()

    with child(hold=hold) as holder:
        holder.do("hold")
        key = refused_key(store)
        assert reads_of_a_refusal(store, key) < FEW
        holder.kill()
        store.update(key, bytes(SIZE))
