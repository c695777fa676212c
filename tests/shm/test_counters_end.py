"""Counters of the substrate, started just below their end: all goes on. See test_epoch_ends.py."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest
from kit.clients import pinned, work
from kit.processes import child, start
from test_epoch import use

import limpet
from limpet.shm.alloc.blocks import BlockTable
from limpet.shm.endpoint.layout import (
    CLIENT_SLOTS,
    DROPS,
    EPOCH,
    EVENT_COUNT,
    LEADER,
    PRESSURE,
    SLOT_SIZE,
    VIEW,
)
from limpet.shm.endpoint.slots import (
    ERA,
    ERA_SHIFT,
    INCARNATION_MASK,
    LIVE,
    PIN,
    PIN_MASK,
    PROGRESS,
    STATE_SHIFT,
)
from limpet.shm.endpoint.words import BACKED, TAIL, TAIL_FIRST_MASK, free_word, stamp, tail_word
from limpet.shm.replicas.view import IDENT_BITS

BEYOND_PIN = 1 << ERA_SHIFT
BEYOND_STAMP = 1 << 48


# ---- the epoch: pins and stamps -----------------------------------------------------------------


def test_a_recoverer_shares_the_pin_of_a_dead_client_of_an_earlier_era(pools: Any) -> None:
    pool = pools()
    other = pools.again(pool)
    pool.endpoint.store(EPOCH, BEYOND_PIN - 1)
    other.client.enter()
    old = other.endpoint.load(other.client.slot + PIN)
    pool.endpoint.store(EPOCH, BEYOND_PIN + 5)
    with pinned(pool):
        assert pool.endpoint.load(pool.client.slot + ERA) == 1
        pool.client.share_pin(old, 0)
        mine = [one for one in pool.grace.pinned() if pool.membership.ours(one.slot)]
        assert [one.epoch for one in mine] == [BEYOND_PIN - 1]
        pool.client.share_pin(old, 1)  # it is later than ours by now
        assert pool.grace.horizon() == BEYOND_PIN - 1
    other.client.leave()
    with pinned(pool):
        assert [one.epoch for one in pool.grace.pinned()] == [BEYOND_PIN + 5]


def test_without_its_era_a_pin_is_taken_for_an_earlier_one(pools: Any) -> None:
    """As if its client had not written the era: memory would never be used again."""
    pool = pools()
    pool.endpoint.store(EPOCH, BEYOND_PIN + 5)
    with pinned(pool):
        assert pool.grace.horizon() == BEYOND_PIN + 5
        pool.endpoint.store(pool.client.slot + ERA, 0)
        assert pool.grace.horizon() == 5


def test_no_pin_is_0_when_its_counter_wraps(pools: Any) -> None:
    pool = pools()
    pool.endpoint.store(EPOCH, BEYOND_PIN)
    pool.client.sequence = PIN_MASK - 4
    pins = []
    for _ in range(6):
        with pinned(pool):
            pins.append(pool.endpoint.load(pool.client.slot + PIN))
            pool.client.go_on()
            pins.append(pool.endpoint.load(pool.client.slot + PIN))
    assert all(pins)
    assert all(one & 1 and one <= PIN_MASK for one in pins)
    assert len(set(pins)) >= 6
    work(pool, 1)


def _without_mask(table: BlockTable, words: Any, horizon: int) -> Any:
    return (words & np.uint64((1 << 48) - 1)) < horizon


def _with_an_earlier_epoch(table: BlockTable, words: Any, horizon: int) -> Any:
    now = table.endpoint.load(EPOCH) - 5  # as it was before the words were read
    return (np.uint64(now & (1 << 48) - 1) - words) & np.uint64((1 << 48) - 1) > now - horizon


def passes_rightly(table: Any, now: int) -> bool:
    """Whether no stamp passes too early, and every one of less than 2^48 closings ago in time."""
    table.endpoint.store(EPOCH, now)
    early = right = True
    ages = [0, 1, 2, 3, 5, 1000, (1 << 47) - 1, 1 << 47, (1 << 48) - 1, 1 << 48, (1 << 48) + 2]
    for age in (age for age in ages if age <= now):
        for behind in (0, 1, 2, 4, 1000, 1 << 40):
            horizon = max(0, now - behind)
            word = free_word(now - age)
            if not stamp(word):
                continue
            (passed,) = table.passed(np.array([word], dtype=np.uint64), horizon).tolist()
            if table.passed.__func__ is BlockTable.passed:
                assert passed == table.has_passed(word, horizon)
            early = early and (now - age < horizon or not passed)
            right = right and (age >= 1 << 48 or passed == (now - age < horizon))
    return early and right


def test_stamps_pass_when_their_epoch_has_and_not_before(
    pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pools().blocks
    nows = [1, 7, BEYOND_STAMP - 1, BEYOND_STAMP, BEYOND_STAMP + 3, 7 * BEYOND_STAMP + 1, 1 << 61]
    assert all(passes_rightly(table, now) for now in nows)
    for bad in (_without_mask, _with_an_earlier_epoch):
        with monkeypatch.context() as patch:
            patch.setattr(BlockTable, "passed", bad)
            table.endpoint.store(EPOCH, 1)
            assert not all(_passes(table, now) for now in nows), bad.__name__


def _passes(table: Any, now: int) -> bool:
    """As `passes_rightly`, of a known-bad variant."""
    table.endpoint.store(EPOCH, now)
    for age in (0, 1, 2, 3, 5):
        for behind in (0, 1, 2, 4):
            if age <= now and behind < now and stamp(now - age):
                words = np.array([free_word(now - age)], dtype=np.uint64)
                if table.passed(words, now - behind).tolist() != [now - age < now - behind]:
                    return False
    return True


def test_a_block_that_was_free_for_a_whole_turn_is_claimed_in_the_end(pools: Any) -> None:
    """Its stamp says that it was given back in this moment."""
    pool = pools()
    pool.endpoint.store(EPOCH, BEYOND_STAMP + 7)
    for block in range(pool.blocks.count):
        at = pool.heap.table_word(0, block)
        word = pool.endpoint.load(at)
        if word in (0, BACKED):
            pool.endpoint.store(at, BACKED | 7)
    other = pools.again(pool)
    with pinned(other):
        assert not pool.blocks.claimable(pool.blocks.words(0), pool.grace.horizon()).any()
    pool.grace.close_period()
    work(pool, 1)
    assert use(pool)


# ---- client ids ---------------------------------------------------------------------------------


def test_the_first_slots_incarnation_begins_anew_with_1(pools: Any) -> None:
    """With 0, the client of slot 0 would have the id 0, which is no client."""
    pool = pools()
    keeper = pools.again(pool)
    assert pool.client_id >> 36 == 0
    pool.close()
    keeper.endpoint.store(CLIENT_SLOTS, INCARNATION_MASK - 1)
    found = []
    for _ in range(3):
        late = limpet.open(keeper.url)
        found.append(late.client_id)
        work(late, 1)
        lock = late.lock("lock")
        assert lock.acquire(timeout=5)
        assert keeper.lock("lock").locked()
        lock.release()
        late.close()
    assert found == [INCARNATION_MASK, 1, 2]
    keeper.endpoint.store(CLIENT_SLOTS, INCARNATION_MASK)

    def dies() -> None:
        late = limpet.open(keeper.url)
        assert late.client_id == 1
        late.lock("lock").acquire()
        os.kill(os.getpid(), signal.SIGKILL)

    pid, out = start(dies)
    out.read()
    out.close()
    os.waitpid(pid, 0)
    assert keeper.lock("lock").acquire(timeout=5)
    assert keeper.lock("lock").inherited
    keeper.recover()
    assert keeper.endpoint.load(CLIENT_SLOTS) == 1
    work(keeper, 1)


def tails_of(pool: Any) -> set[int]:
    return {word for word in pool.blocks.words(0).tolist() if word >> 60 == TAIL}


@pytest.mark.parametrize("killed", [False, True])
def test_spans_are_made_and_recovered_where_the_makers_bits_wrap(pools: Any, killed: bool) -> None:
    pool = pools(node_size="4MiB")
    keeper = pools.again(pool)
    keeper.store("race", name="work", capacity=64)
    pool.close()
    words = set()
    for incarnation in ((1 << 12) - 2, (1 << 12) - 1, 2 * (1 << 12) - 1):
        keeper.endpoint.store(CLIENT_SLOTS, incarnation)
        before = tails_of(keeper)

        def makes() -> None:
            late = limpet.open(keeper.url)
            assert late.client_id >> 36 == 0
            late.store("race", name="work").put(b"key", b"v" * 200_000)
            if killed:
                os.kill(os.getpid(), signal.SIGKILL)
            late.close()

        pid, out = start(makes)
        out.read()
        out.close()
        os.waitpid(pid, 0)
        keeper.recover()
        tails = tails_of(keeper) - before
        assert len(tails) == 1
        maker = tails.pop()
        assert maker == tail_word(maker & TAIL_FIRST_MASK, incarnation + 1)
        words.add(maker >> 26 & (1 << 22) - 1)
        assert keeper.store("race", name="work").get(b"key") == b"v" * 200_000
        keeper.store("race", name="work").delete(b"key")
        keeper.exclusively(lambda: keeper.allocator.relief.make_room(1, 0, {}))
    assert len(words) == 2
    work(keeper)


# ---- other words --------------------------------------------------------------------------------


def test_leaders_numbers_wrap(pools: Any) -> None:
    pool = pools(nodes=3)
    pool.view.led = 0xFFFF << IDENT_BITS | pool.client_id
    pool.fail_node(1)
    with pinned(pool):
        pool.view.settle()
    assert pool.view.failed() == []
    assert pool.view.led == pool.client_id
    assert pool.endpoint.load(LEADER) == 0


@pytest.mark.parametrize("word", [PRESSURE, DROPS, EVENT_COUNT, VIEW, PROGRESS])
def test_whole_words_wrap(pools: Any, word: int) -> None:
    """None does so in a lifetime."""
    pool = pools(nodes=3, node_size="1MiB")
    other = pools.again(pool)
    slot = CLIENT_SLOTS if word == PROGRESS else 0
    pool.endpoint.store(slot + word, (1 << 64) - 1)
    store = pool.store("fusee", name="kept", capacity=16, replicas=2)
    store.put(b"key", b"value")
    work(other, 1)
    pool.drop("work")
    with child(sleep=lambda: None) as dead:
        dead.do("sleep")
        dead.kill()
    pool.membership.progress()
    pool.fail_node(2)
    assert other.store("fusee", name="kept").get(b"key") == b"value"
    store.put(b"key", b"later")
    assert store.get(b"key") == b"later"
    assert pool.events() is not None


def test_state_words_have_room_for_all_that_is_in_them() -> None:
    assert (LIVE << STATE_SHIFT) >> STATE_SHIFT == LIVE
    assert SLOT_SIZE > ERA
