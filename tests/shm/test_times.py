"""Times of the public API: seconds, of any type, with clear errors."""

from __future__ import annotations

import datetime
import math
import queue
from typing import Any

import numpy as np
import pytest

import limpet
from limpet.shm.times import LONGEST_S, MS, US, units_of

pytestmark = pytest.mark.either_build("the same lines")
MINUTE = datetime.timedelta(minutes=1)


@pytest.mark.parametrize(
    ("given", "ms"),
    [
        (0, 0),
        (60, 60_000),
        (MINUTE, 60_000),
        (0.5, 500),
        (1.1, 1100),
        (0.29, 290),
        (np.float64(2.5), 2500),
        (1e-9, 1),  # above 0 stays above 0, which is for ever
        (datetime.timedelta(microseconds=1), 1),
        (0.0011, 2),
    ],
)
def test_time_is_in_seconds(given: Any, ms: int) -> None:
    assert units_of("ttl", given, MS, LONGEST_S * MS) == ms


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (-1, "ttl is a time in seconds, and cannot be negative: -1"),
        (-MINUTE, "cannot be negative"),
        (math.nan, "ttl is a time in seconds, not nan"),
        (math.inf, "ttl is at most .* not inf"),
        (2 * LONGEST_S, r"ttl is at most .* \(36,600 days\)"),
        (True, "ttl is a time in seconds, an int, float or timedelta, not True"),
        ("60", "not '60'"),
        (None, "not None"),
    ],
)
def test_time_that_cannot_be_is_named(given: Any, says: str) -> None:
    with pytest.raises(limpet.ParameterError, match=says):
        units_of("ttl", given, MS, LONGEST_S * MS)


def test_time_below_the_least_is_named() -> None:
    with pytest.raises(limpet.ParameterError, match=r"lease is at least 0.001 s, not 0.0005"):
        units_of("lease", 0.0005, US, US, 1000)


def test_pool_options_are_times(pools: Any) -> None:
    pool = pools(lease=MINUTE, latency=1e-6)
    assert (pool.parameters.lease, pool.parameters.lease_us) == (60, 60_000_000)
    assert pool.endpoint.latency_ns == 1000
    for given in ({"lease": -1}, {"lease": True}, {"lease": 1e9}, {"latency": math.nan}):
        with pytest.raises(limpet.ParameterError, match=next(iter(given))):
            pools(**given)
    with pytest.raises(limpet.ParameterError, match=r"no parameter lease_us; it has .*lease"):
        pools(lease_us=1000)
    for given in (-1, math.inf, math.nan):
        with pytest.raises(limpet.ParameterError, match="interval_s"):
            pool.watch(given)


def test_timeouts_are_times(pools: Any) -> None:
    pool, soon = pools(), datetime.timedelta(milliseconds=1)
    with pytest.raises(queue.Empty):
        pool.queue("q").get(timeout=soon)
    with pytest.raises(queue.Empty):
        pool.queue("jobs", acks=True, visibility_timeout=MINUTE).get(timeout=soon)
    assert (
        pool.queue("jobs", acks=True, visibility_timeout=60).parameters["visibility_timeout"]
        == 60.0
    )
    assert not pool.event("e").wait(soon)
    assert pool.lock("l").acquire(timeout=soon)
    assert not pool.lock("l").acquire(timeout=soon)
    assert pool.semaphore("s").acquire(timeout=soon)
    with pool.rwlock("rw").read(soon), pytest.raises(TimeoutError), pool.rwlock("rw").write(soon):
        pass
    with pytest.raises(limpet.BrokenBarrierError):
        pool.barrier("b", 2, timeout=soon).wait()
    condition = pool.condition("c")
    with condition:
        assert not condition.wait(soon)


@pytest.mark.parametrize(
    ("timeout", "error"), [(math.nan, ValueError), (True, TypeError), ("1", TypeError)]
)
def test_timeouts_that_cannot_be_are_refused(pools: Any, timeout: Any, error: Any) -> None:
    pool = pools()
    calls = (pool.queue("q").get, pool.event("e").wait, pool.lock("l").acquire)
    for call in calls:
        with pytest.raises(error, match="timeout is a time in seconds"):
            call(timeout=timeout)
