"""Grace periods: what a client may still be reading is not used again."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from kit.clients import pinned, slot_of
from kit.processes import child

import limpet
from limpet.shm import pool as pool_module
from limpet.shm.clients.client import Client
from limpet.shm.endpoint.layout import EPOCH
from limpet.shm.endpoint.slots import CLIENT_JOURNAL, PIN
from limpet.shm.endpoint.words import FREE, SLAB, block_word, stamp

SIZE = 1000


def use(pool: limpet.Pool) -> int:
    """Allocate an object as an operation does, link it nowhere, and so free it; its reference."""
    pool.client.enter()
    try:
        while not (reference := pool.allocator.allocate(0, SIZE)):
            pool.client.leave()
            pool.allocator.replenish(0, SIZE)
            pool.client.enter()
        return int(reference)
    finally:
        pool.client.leave()


def test_object_freed_is_not_used_again_while_another_client_is_pinned(pools: Any) -> None:
    pool = pools()
    other = pools.again(pool)
    first = use(pool)
    with pinned(other):
        used = [use(pool) for _ in range(200)]
    assert len(set(used)) == 200
    assert first not in used
    pool.exclusively(lambda: pool.allocator.relief.make_room(1, 0, {}))
    again = {use(pool) for _ in range(1000)}
    assert again & {first, *used}


def test_object_is_used_again_when_nobody_is_pinned(pools: Any) -> None:
    pool = pools()
    pools.again(pool)
    per_block = pool.layout.block_size // SIZE
    assert len({use(pool) for _ in range(100 * per_block)}) <= 2 * per_block


def test_horizon_is_the_oldest_pin_and_never_ahead_of_the_epoch(pools: Any) -> None:
    pool = pools()
    one, two = pools.again(pool), pools.again(pool)
    assert pool.grace.horizon() == pool.grace.now()
    with pinned(one):
        epoch = pool.grace.close_period()
        with pinned(two):
            assert pool.grace.horizon() == epoch
            assert [pin.epoch for pin in pool.grace.laggards(epoch)] == [epoch]
            assert len(pool.grace.laggards(epoch + 1)) == 2
    with pinned(two):
        assert pool.grace.horizon() == epoch + 1
    assert pool.grace.horizon() == pool.grace.now()


def test_every_operation_pins_anew(pools: Any) -> None:
    """A client that works all the time is not taken for one that stands still."""
    pool = pools()
    other = pools.again(pool)
    pins = set()
    for _ in range(5):
        other.client.enter()
        pins.add(pool.endpoint.load(slot_of(other.membership.ident) + PIN))
        other.client.leave()
    assert len(pins) == 5
    assert pool.endpoint.load(slot_of(other.membership.ident) + PIN) == 0


def test_dead_pin_counts_until_recovery_and_not_after(pools: Any) -> None:
    pool = pools()

    def pin() -> int:
        pool.client.enter()
        return pool.membership.ident

    with child(pin=pin) as other:
        ident = other.do("pin")
        other.kill()
        assert [pool.membership.pid(pin.word) for pin in pool.grace.pinned()] == [other.pid]
        epoch = pool.grace.close_period()
        assert pool.grace.laggards(epoch)
        assert pool.recover()["clients"] == [ident]
        assert not pool.grace.laggards(epoch)
        assert pool.grace.horizon() == pool.grace.now()


def test_objects_of_the_dead_are_adopted_only_after_the_grace_period(pools: Any) -> None:
    """The block is; but of its objects only what no pinned client can be reading is given out."""
    pool = pools()
    store = pool.store("race", capacity=64)
    reader = pools.again(pool)

    def write() -> None:
        store.put(b"kept", b"1" * SIZE)
        store.put(b"gone", b"2" * SIZE)

    size = 32 + SIZE
    wanted = pool.heap.size_class(size)
    with child(write=write) as other:
        other.do("write")
        with pinned(reader):
            store.delete(b"gone")
            other.kill()
            pool.recover()
            orphans = [
                block
                for block, word in enumerate(pool.blocks.words(0).tolist())
                if word == block_word(SLAB, 0, wanted)
            ]
            assert len(orphans) == 1
            pool.exclusively(lambda: pool.allocator.make_ready(0, size, 1, False))
            owner = pool.blocks.words(0).tolist()[orphans[0]]
            assert owner == block_word(SLAB, pool.membership.ident, wanted)
            slab = next(s for s in pool.allocator.slabs.kinds[wanted] if s.block == orphans[0])
            assert slab.ready_count == 0
            assert slab.pending_count == slab.count - 1
    pool.exclusively(lambda: pool.allocator.make_ready(0, size, 1, True))
    assert slab.ready_count == slab.count - 1
    assert store.get(b"kept") == b"1" * SIZE


def test_block_given_back_by_recovery_is_not_claimed_before_its_epoch_has_passed(
    pools: Any,
) -> None:
    pool = pools()
    store = pool.store("race", capacity=64)
    reader = pools.again(pool)

    def write() -> None:
        store.put(b"k", b"v")
        store.delete(b"k")

    with child(write=write) as other:
        other.do("write")
        with pinned(reader):
            other.kill()
            assert pool.recover()["blocks"] == 1
            stamped = [word for word in pool.blocks.words(0).tolist() if word >> 60 == FREE < word]
            assert len(stamped) == 1
            horizon = pool.grace.horizon()
            assert [stamp(one) for one in pool.blocks.stamps(horizon, 1)] == [stamp(stamped[0])]
            assert not pool.blocks.claimable(pool.blocks.words(0), horizon).all()
    assert pool.blocks.stamps(pool.grace.horizon(), 1) == []


class UnpinsFirst(Client):
    """Mutant: lets go of the epoch before the client journal is empty."""

    def unpin(self) -> int:
        self.endpoint.store(self.slot + PIN, 0)
        self.settle()
        return 0

    def leave(self) -> int:
        self.unpin()
        self.endpoint.end()
        return 0


@pytest.mark.parametrize("mutant", [False, True])
def test_hand_is_held_only_while_the_pin_is_set(
    pools: Any, monkeypatch: pytest.MonkeyPatch, mutant: bool
) -> None:
    """Looked at after a kill at each step; the mutant that unpins before it settles is caught."""
    if mutant:
        monkeypatch.setattr(pool_module, "Client", UnpinsFirst)
    pool = pools()
    store = pool.store("race", capacity=64)
    store.put(b"k", b"v")
    broken = []
    fuse = 0
    survived = False
    while not survived:
        fuse += 1

        def put(fuse: int = fuse) -> None:
            store.put(b"warm", b"v")
            store.put(b"k", b"v")
            pool.endpoint.fuse = fuse
            store.put(b"k", b"w")
            # updates and deletes empty the client journal themselves
            with contextlib.suppress(limpet.KeyExists):
                store.insert(b"k", b"x")
            pool.endpoint.fuse = 0

        with child(put=put) as other:
            other.send("put")
            try:
                other.answer()
                survived = True
            except EOFError:
                other.reap()
        broken += [fuse] * _holds_unpinned(pool)
        pool.recover()
    assert fuse > 10
    assert bool(broken) == mutant


def _holds_unpinned(pool: limpet.Pool) -> int:
    slots = [slot_of(slot << 36) for slot, _ in pool.membership.occupied()]
    load = pool.endpoint.load
    return sum(load(at + CLIENT_JOURNAL) != 0 and load(at + PIN) == 0 for at in slots)


@pytest.mark.parametrize("epoch", [1 << 62, 1 << 63, (1 << 64) - 1])
def test_a_damaged_epoch_is_refused_and_nothing_is_pinned(pools: Any, epoch: int) -> None:
    """It could wrap: what is read then may be used again."""
    pool = pools()
    store = pool.store("race", capacity=8)
    store.put(b"key", b"value")
    sound = pool.endpoint.load(EPOCH)
    pool.endpoint.store(EPOCH, epoch)
    for _ in range(2):
        with pytest.raises(limpet.PoolCorrupt, match="epoch"):
            store.update(b"key", b"value")
        assert pool.endpoint.load(pool.client.slot + PIN) == 0
    pool.endpoint.store(EPOCH, sound)
    assert store.get(b"key") == b"value"
