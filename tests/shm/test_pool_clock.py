"""The clock of a pool: what ends it, and what only seems to be time that has passed."""

from __future__ import annotations

import time
from typing import Any

import pytest

import limpet
from limpet.shm.clients import liveness
from limpet.shm.endpoint import pool_clock
from limpet.shm.endpoint.fabric import Endpoint, shift_boot_clock
from limpet.shm.endpoint.layout import POOL_CLOCK
from limpet.shm.endpoint.pool_clock import BOOT_SHIFT, OFFSET_MASK
from limpet.stores.cache.layout import MINE, OTHERS
from limpet.stores.pool import Pool

HOUR_US = 3_600_000_000
SECOND_US = 1_000_000


class HostEndpoint(Endpoint):
    """Of processes of one host, the clocks of which a test sets."""

    wall_us = 0
    since_boot_us = 0

    def microseconds(self) -> int:
        word = self.load(POOL_CLOCK)
        if not word:
            return HostEndpoint.wall_us
        return (word & OFFSET_MASK) * 1000 + HostEndpoint.since_boot_us


class HostPool(Pool):
    """A pool handle with such an endpoint."""

    endpoint_class = HostEndpoint


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> type[HostEndpoint]:
    """A host's clocks, as they are now; the host's."""
    HostEndpoint.wall_us, HostEndpoint.since_boot_us = time.time_ns() // 1000, 77 * SECOND_US
    monkeypatch.setattr(pool_clock, "wall_us", lambda: HostEndpoint.wall_us)
    monkeypatch.setattr(pool_clock, "since_boot_us", lambda: HostEndpoint.since_boot_us)
    return HostEndpoint


def test_clock_is_the_hosts_since_boot_and_begins_with_its_wall_clock(pools: Any) -> None:
    pool = pools()
    endpoint = pool.endpoint
    assert abs(endpoint.microseconds() - time.time_ns() // 1000) < 5 * SECOND_US
    first = endpoint.load(POOL_CLOCK)
    endpoint.store(POOL_CLOCK, first + HOUR_US // 1000)  # as if the wall clock had been right
    other = pools.again(pool).endpoint
    for clock in (endpoint.microseconds, other.microseconds):
        assert abs(clock() - time.time_ns() // 1000 - HOUR_US) < 5 * SECOND_US
    shift_boot_clock(HOUR_US)
    try:
        assert abs(endpoint.microseconds() - time.time_ns() // 1000) < 5 * SECOND_US
    finally:
        shift_boot_clock(0)
    endpoint.store(POOL_CLOCK, 0)
    assert abs(endpoint.microseconds() - time.time_ns() // 1000) < SECOND_US
    endpoint.store(POOL_CLOCK, first)


def test_pool_of_several_hosts_goes_by_their_wall_clocks(pools: Any) -> None:
    pool = pools(multi_host=True)
    assert pool.endpoint.load(POOL_CLOCK) == 0
    assert abs(pool.endpoint.microseconds() - time.time_ns() // 1000) < SECOND_US


@pytest.mark.parametrize("agreed", [True, False])
def test_clock_that_is_set_forward_lets_one_process_compute(
    pools: Any, host: Any, agreed: bool
) -> None:
    """Also when the value is stale, or there is a lock; by the wall clock, it lets two of them."""
    pool = pools.keep(HostPool.create(pools.url(), clients=16))
    other = pools.keep(HostPool.open(pool.url))
    if not agreed:
        pool.endpoint.store(POOL_CLOCK, 0)
    mine, theirs = pool.cache("c"), other.cache("c")
    mine.set("stale", 1, ttl=1, stale=0.001)
    host.wall_us += 2 * SECOND_US
    host.since_boot_us += 2 * SECOND_US
    names = [mine.codec.encode_key(name) for name in ("new", "stale")]
    for name in names:
        assert mine.store.begin_flight(name, 0, 60_000)[0] == MINE
    assert mine.lock("key").acquire()
    host.wall_us += 24 * HOUR_US
    for name in names:
        assert theirs.store.begin_flight(name, 0, 60_000)[0] == (OTHERS if agreed else MINE)
    assert theirs.lock("key").acquire(blocking=False) != agreed
    host.since_boot_us += 61 * SECOND_US
    assert theirs.lock("key").acquire(blocking=False) or not agreed


def test_times_of_an_earlier_boot_mean_what_they_meant(
    host: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, pools: Any
) -> None:
    """The clock since boot begins anew, the wall clock does not."""
    url = f"file://{tmp_path}/pool"
    with HostPool.create(url, nodes=1, node_size="4MiB") as pool:
        host.since_boot_us += 90 * 24 * HOUR_US
        host.wall_us += 90 * 24 * HOUR_US
        pool.cache("c").set("soon", 1, ttl=20)
        pool.cache("c").set("late", 1, ttl=100)
        assert pool.cache("c").store.begin_flight(b"flight", 0, 60_000)[0] == MINE
        word = pool.endpoint.load(POOL_CLOCK)
    this = liveness.this_host()
    later = liveness.Host(this.boot + 1, this.namespace)
    host.since_boot_us = 7 * SECOND_US
    host.wall_us += 50 * SECOND_US
    monkeypatch.setattr("limpet.shm.clients.membership.this_host", lambda name="": later)
    with HostPool.open(url) as pool:
        assert pool.endpoint.load(POOL_CLOCK) >> BOOT_SHIFT != word >> BOOT_SHIFT
        cache = pool.cache("c")
        assert "soon" not in cache
        assert 49 < cache.expires_in("late") <= 50
    monkeypatch.undo()
    limpet.destroy(url)


def test_processes_of_other_time_namespaces_have_the_same_clock(
    pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their clock since boot is ahead by what the kernel says, or by what it does not."""
    pool = pools()
    ahead = pool_clock.since_boot_us() + 5 * HOUR_US
    told: list[int] = []
    monkeypatch.setattr(pool_clock, "shift_boot_clock", told.append)
    monkeypatch.setattr(pool_clock, "since_boot_us", lambda: ahead)
    boot = pool.membership.here.boot
    pool_clock.agree(pool.endpoint, boot, 5 * 3600)
    pool_clock.agree(pool.endpoint, boot, None)
    assert told[0] == 5 * HOUR_US
    assert abs(told[1] - 5 * HOUR_US) < 60 * SECOND_US
    word = pool_clock.word_of(boot, 5 * 3600)
    assert abs((word & OFFSET_MASK) - (pool.endpoint.load(POOL_CLOCK) & OFFSET_MASK)) < 60_000
