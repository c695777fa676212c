"""Writer numbers: any client gets one, and no two clients have one at the same time."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest
from kit.processes import exit_code, fork

import limpet
from limpet.shm.clients.writer_numbers import number_address
from limpet.shm.endpoint.slots import INCARNATION_BITS

NOTHING = -1
CLAIMED = 1 << 63
HOLDER_BITS = 48
TAKEN_MASK = 0x7FFF
WAIT_S = 0.01


def held(pool: Any) -> int:
    """The number that this client finds that it has, in an operation."""
    pool.client.enter()
    try:
        return int(pool.numbers.held())
    finally:
        pool.client.leave()


def word_of(pool: Any, number: int) -> int:
    return int(pool.endpoint.load(number_address(number)))


def test_a_number_stays_with_its_client_and_goes_to_the_next_one_with_its_clock(
    pools: Any,
) -> None:
    pool = pools(clients=8)
    first, second = pools.again(pool), pools.again(pool)
    assert held(first) == NOTHING
    for client in (first, second, first):
        client.numbers.take(4)
    assert (held(first), held(second)) == (0, 1)
    assert first.numbers.number_of(second.client_id) == 1
    used = second.numbers.clock.after(1 << 40)
    second.close()
    heir = pools.again(pool)
    heir.numbers.take(4)
    assert held(heir) == 1
    assert heir.numbers.clock.guess() > used


def test_a_number_below_the_limit_takes_the_place_of_a_greater_one(pools: Any) -> None:
    pool = pools(clients=8)
    other = pools.again(pool)
    other.numbers.take(1)
    pool.numbers.take(2)
    assert (held(other), held(pool)) == (0, 1)
    pool.numbers.take(1)
    assert (held(other), held(pool)) == (NOTHING, 0)
    other.numbers.take(2)
    assert (held(other), held(pool)) == (1, 0)


def test_a_client_at_work_keeps_its_number_until_its_operation_ends(pools: Any) -> None:
    pool = pools(clients=8)
    other = pools.again(pool)
    pool.numbers.take(1)
    pool.client.enter()
    assert pool.numbers.held() == 0
    taker = threading.Thread(target=other.numbers.take, args=(1,))
    taker.start()
    while not word_of(pool, 0) & CLAIMED:
        taker.join(WAIT_S)
    for _ in range(10):
        assert pool.numbers.held() == 0
        pool.client.go_on()  # its pin changes, and is of the same epoch
        taker.join(WAIT_S)
    assert taker.is_alive(), "the number was taken amid an operation"
    pool.client.leave()
    taker.join()
    assert (held(pool), held(other)) == (NOTHING, 0)


def test_a_client_killed_while_it_waits_hides_no_operation_from_the_next(pools: Any) -> None:
    """The word names the dead client, and not the one whose operation still runs."""
    pool = pools(clients=8)
    pool.numbers.take(1)
    pool.client.enter()
    assert pool.numbers.held() == 0

    def claim_and_die() -> None:
        mine = limpet.open(pool.url)
        mine.membership.progress = lambda: os.kill(os.getpid(), signal.SIGKILL)
        mine.numbers.take(1)

    assert exit_code(fork(claim_and_die)) == -signal.SIGKILL
    dead = word_of(pool, 0)
    assert dead & CLAIMED
    other = pools.again(pool)
    other.recover()
    taker = threading.Thread(target=other.numbers.take, args=(1,))
    taker.start()
    while word_of(pool, 0) == dead:
        taker.join(WAIT_S)
    taker.join(WAIT_S)
    assert taker.is_alive(), "the number was taken amid an operation"
    pool.client.leave()
    taker.join()
    assert (held(pool), held(other)) == (NOTHING, 0)


def test_a_client_that_stands_still_and_may_stay_keeps_others_from_its_number_only(
    pools: Any,
) -> None:
    pool = pools(clients=8, fence="wait", lease=0.1)
    other, third = pools.again(pool), pools.again(pool)
    pool.numbers.take(2)
    other.numbers.take(2)
    pool.client.enter()
    assert pool.numbers.held() == 0
    third.numbers.take(2)
    assert (held(other), held(third)) == (NOTHING, 1)
    assert pool.numbers.held() == 0
    pool.client.leave()
    other.numbers.take(2)
    assert {held(client) for client in (pool, other, third)} == {NOTHING, 0, 1}


def test_a_number_can_be_kept_from_others_only_when_its_client_is_gone(pools: Any) -> None:
    pool = pools(clients=8)
    other = pools.again(pool)
    other.numbers.take(1)
    assert not pool.numbers.keep(0)
    other.close()
    word = pool.numbers.keep(0)
    assert word
    assert not pools.again(pool).numbers.keep(0)
    pool.numbers.let_go(0, word)
    assert word_of(pool, 0) == word
    pool.numbers.take(1)
    assert held(pool) == 0


def test_the_time_at_which_a_number_was_taken_wraps(pools: Any) -> None:
    """The host of its client is ahead: the time since then is almost a whole turn."""
    pool = pools(clients=8)
    other = pools.again(pool)
    for client in (pool, other):
        client.numbers.take(2)
    for number, client, ahead_ms in ((0, pool, -1000), (1, other, 500)):
        taken = pool.endpoint.microseconds() // 1000 + ahead_ms & TAKEN_MASK
        pool.endpoint.store(number_address(number), taken << HOLDER_BITS | client.client_id)
    third = pools.again(pool)
    third.numbers.take(2)
    assert held(third) == 1


def test_a_damaged_holder_is_an_error(pools: Any) -> None:
    pool = pools(clients=8)
    pool.endpoint.store(number_address(0), 4000 << INCARNATION_BITS | 1)
    with pytest.raises(limpet.PoolCorrupt, match="writer number"):
        pool.numbers.take(1)
