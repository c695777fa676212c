"""A cache that gets other bounds while clients use it, and settings of several deployments."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from kit.processes import gather

import limpet
from limpet.fault.check.cache_state import bounds_fault, counted
from limpet.stores.cache.bounds import STEP_ITEMS
from limpet.stores.cache.layout import ITEMS_SHIFT


def filled(pools: Any, items: int = 200) -> tuple[Any, Any]:
    """A pool, and a cache in it that is full."""
    pool = pools(node_size="4MiB", clients=16)
    cache = pool.cache("c", max_items=items, max_bytes="1MiB")
    for number in range(items + 20):
        cache[number] = number
    return pool, cache


def limits_of(cache: Any) -> tuple[int, int]:
    stats = cache.stats()
    return stats["max_items"], stats["max_bytes"]


def test_cache_that_grows_has_room_at_once_in_all_clients(pools: Any) -> None:
    pool, cache = filled(pools)
    with limpet.open(pool.url) as other:
        seen = other.cache("c")
        assert len(seen) == 200
        cache.resize(max_items=300)
        evicted = seen.stats()["evictions"]
        for number in range(1000, 1100):
            seen[number] = number
        assert seen.stats()["evictions"] == evicted
        assert len(cache) == 300
        seen[2000] = 1
        assert len(cache) <= 300
    cache.check()


def test_cache_that_shrinks_is_within_its_bounds_when_the_call_returns(pools: Any) -> None:
    pool, cache = filled(pools)
    cache.resize(max_items=30)
    assert counted(cache.store).items <= 30
    assert 25 <= len(cache) <= 30
    cache.resize(max_bytes=1600)
    assert counted(cache.store).size <= 1600
    assert limits_of(cache) == (30, 1600)
    assert not bounds_fault(cache.store)
    cache.check()
    with limpet.open(pool.url) as other:
        with pytest.raises(limpet.ValueTooLarge, match="max_bytes=1600"):
            other.cache("c")["k"] = bytes(2000)
        cache.resize(max_bytes=100_000)
        other.cache("c")["k"] = bytes(2000)


def test_bounds_that_are_not_given_stay_and_items_that_fit_go_with_the_bytes(pools: Any) -> None:
    pool = pools(node_size="4MiB", clients=16)
    sized = pool.cache("sized", max_bytes=64_000)
    assert limits_of(sized) == (1000, 64_000)
    sized.resize(max_bytes=32_000)
    assert limits_of(sized) == (500, 32_000)
    both = pool.cache("both", max_bytes=64_000, max_items=10)
    both.resize(max_bytes=32_000)
    both.resize(max_items=20)
    assert limits_of(both) == (20, 32_000)
    for wrong in ({}, {"max_items": 0}, {"max_items": 161}, {"max_bytes": "1GiB"},
                  {"max_bytes": 10}, {"max_items": True}, {"max_items": 1.5}):  # fmt: skip
        with pytest.raises(limpet.ParameterError):
            both.resize(**wrong)
    assert limits_of(both) == (20, 32_000)


def test_resize_of_a_killed_client_is_finished_by_writes_a_step_each(pools: Any) -> None:
    pool, cache = filled(pools)
    store = cache.store
    made = store.within(store.bounds.target)
    store.within(store.bounds.ask, 50 << ITEMS_SHIFT | made & (1 << ITEMS_SHIFT) - 1)
    # Its client ends here.
    with limpet.open(pool.url) as other:
        seen = other.cache("c")
        for number in range(40):
            before = seen.stats()["items"]
            seen[5000 + number] = number
            assert before - seen.stats()["items"] <= 2 * STEP_ITEMS
            assert not bounds_fault(seen.store)
        assert seen.stats()["items"] <= 50
        assert seen.store.within(seen.store.bounds.in_force) >> ITEMS_SHIFT == 50
        assert not seen.store.ledger.resizing


@pytest.mark.parametrize("fuse", range(4, 12))
def test_resize_that_is_killed_at_its_beginning_is_finished_by_writes(
    pools: Any, fuse: int
) -> None:
    """Also where the old bound, which is in force yet, would have room for what is written."""
    pool = pools(node_size="16MiB")
    cache = pool.cache("c", max_bytes="8MiB", max_items=4000)
    for number in range(600):
        cache[b"a%d" % number] = bytes(1000)

    def killed() -> None:
        own = limpet.open(pool.url)
        other = own.cache("c")
        own.endpoint.fuse = fuse
        other.resize(max_bytes=1 << 18)
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(AssertionError, match="-9"):
        gather(killed)
    asked = cache.stats()["max_bytes"]
    assert asked in (1 << 18, 8 << 20)
    for number in range(600):
        cache[b"b%d" % number] = bytes(1000)
    assert cache.stats()["bytes"] <= asked
    if asked == 8 << 20:
        assert len(cache) == 1200


def test_step_that_was_decided_before_another_resize_does_not_end_it(pools: Any) -> None:
    pool, cache = filled(pools)
    store, bounds = cache.store, cache.store.bounds
    made = store.within(bounds.target)
    store.within(bounds.ask, made - (100 << ITEMS_SHIFT))
    assert not store.within(bounds.step)
    with limpet.open(pool.url) as other:
        other.cache("c").resize(max_items=400)
    while not store.within(bounds.step):
        store.room.within_bounds(store, 0)
    assert store.within(bounds.in_force) >> ITEMS_SHIFT == 400


def test_newest_settings_win_and_deployments_do_not_take_turns(pools: Any) -> None:
    pool = pools(node_size="4MiB", clients=16)
    workers = []

    def starts(items: int) -> int:
        """A worker with these settings starts; the bound then."""
        worker = limpet.open(pool.url)
        workers.append(worker)
        return limits_of(worker.cache("c", max_items=items, resize="newest"))[0]

    assert [starts(100), starts(100)] == [100, 100]
    assert starts(200) == 200
    workers.pop(0).close()
    assert starts(100) == 200  # a worker of the old deployment is started again
    assert starts(200) == 200
    for worker in (workers.pop(0), workers.pop(1)):
        worker.close()
    assert starts(200) == 200
    assert starts(100) == 100  # the settings are put back
    assert starts(200) == 100
    for worker in workers:
        worker.close()


def test_settings_without_a_bound_are_the_same_whatever_that_bound_is(pools: Any) -> None:
    pool = pools(node_size="4MiB", clients=16)
    opened = [limpet.open(pool.url) for _ in range(4)]
    opened[0].cache("c", max_items=100, resize="newest")
    opened[1].cache("c", max_items=200, max_bytes=64_000, resize="newest")
    assert limits_of(opened[2].cache("c", max_items=100, resize="newest")) == (200, 64_000)
    assert limits_of(opened[3].cache("c", resize="newest")) == (200, 64_000)
    for one in opened:
        one.close()


def test_open_with_other_bounds_is_refused_or_keeps_them(pools: Any) -> None:
    pool, cache = filled(pools)
    cache.resize(max_items=150)
    with pytest.raises(limpet.StoreMismatch, match="max_items=150, not 200"):
        pool.cache("c", max_items=200)
    assert limits_of(pool.cache("c", max_items=150)) == (150, 1 << 20)
    assert limits_of(pool.cache("c", max_items=7, resize="keep")) == (150, 1 << 20)
    with pytest.raises(limpet.ParameterError, match="refuse, keep, newest"):
        pool.cache("c", resize="always")
