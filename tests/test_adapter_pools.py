"""`limpet.adapters.pools`: locations, and pools that the processes of a program share."""

from __future__ import annotations

import datetime
import logging
import pickle
from typing import Any

import pytest
from kit.processes import gather

import limpet
from limpet.adapters.pools import (
    CACHE_OPTIONS,
    Shared,
    bytes_cache,
    close_pool,
    divided,
    lifetime,
    pickled_cache,
    pool_at,
)

pytestmark = pytest.mark.exhaustive_in_pure("the module is not compiled", quick=[])


@pytest.mark.parametrize(
    ("location", "url", "name"),
    [
        ("shm://site/pages", "shm://site", "pages"),
        ("shm://site", "shm://site", "own"),
        ("shm://site/", "shm://site", "own"),
        ("site", "site", "own"),
        ("file:///dev/shm/site/pages", "file:///dev/shm/site", "pages"),
    ],
)
def test_location_is_a_pool_and_a_name(location: str, url: str, name: str) -> None:
    assert divided(location, "own") == (url, name)


def test_process_opens_a_pool_once(location: str) -> None:
    pool = pool_at(location, {"node_size": "2MiB"})
    assert pool_at(location, {}) is pool
    close_pool(location)
    assert pool_at(location, {}) is not pool


def test_processes_make_one_pool(location: str) -> None:
    def use() -> int:
        pool = pool_at(location, {"node_size": "2MiB", "clients": 16})
        return pool.counter("processes").add(1)

    gather(use, use, use, use)
    assert pool_at(location, {}).counter("processes").value == 4


def test_pool_that_was_closed_is_opened_again(location: str) -> None:
    shared = Shared(pickled_cache, location, "own", {"node_size": "2MiB"})
    shared().set("k", 1)
    close_pool(location)
    assert shared()["k"] == 1
    assert pickle.loads(pickle.dumps(shared)) == shared


def test_unknown_option_is_refused_with_those_there_are() -> None:
    with pytest.raises(
        limpet.ParameterError, match="no option nodesize; there is nodes, node_size"
    ):
        Shared(pickled_cache, "shm://site", "own", {"nodesize": 1})


def test_lifetime_of_any_length_is_one_of_a_cache(location: str) -> None:
    cache = Shared(pickled_cache, f"{location}/c", "c", {"node_size": "4MiB"})()
    for seconds in (0.0001, 1.5, 10**9, 10**12, 10**13):
        cache.set("k", 1, ttl=lifetime(seconds))
        try:
            left = cache.expires_in("k")
        except KeyError:
            assert seconds <= 1.5  # it was over before we looked
        else:
            assert (left or 0) <= min(seconds + 0.001, 10**10)
    assert lifetime(1.5) == lifetime(datetime.timedelta(seconds=1.5)) == 1.5
    assert lifetime(-1) < 0


def test_cache_with_other_bounds_in_the_settings_is_resized_or_kept_or_refused(
    location: str, caplog: pytest.LogCaptureFixture
) -> None:
    def opened(**options: Any) -> Any:
        return Shared(pickled_cache, f"{location}/c", "c", options, CACHE_OPTIONS)()

    opened(max_items=50, max_bytes="1MiB", node_size="4MiB").set("k", 1)
    for options, items, size in (
        ({"max_items": 20}, 20, 1 << 20),
        ({"max_items": 500, "max_bytes": 40_000}, 500, 40_000),
        ({"max_items": 30, "resize": "keep"}, 500, 40_000),
    ):
        stats = opened(**options).stats()
        assert (stats["max_items"], stats["max_bytes"]) == (items, size)
        assert opened(**options).get("k") == 1
    with pytest.raises(limpet.StoreMismatch, match="max_items=500, not 30"):
        opened(max_items=30, resize="refuse")
    assert not caplog.text
    with caplog.at_level(logging.WARNING, "limpet"):
        assert opened(policy="fifo").get("k") == 1
    assert "policy='clock', not 'fifo'" in caplog.text
    assert f"limpet drop {location} c" in caplog.text
    with pytest.raises(limpet.StoreMismatch):
        Shared(bytes_cache, f"{location}/c", "c", {"max_items": 50}, CACHE_OPTIONS)()


@pytest.mark.parametrize(("bound", "asked"), [("max_items", 50 * 16 + 100), ("max_bytes", "1GiB")])
def test_settings_above_what_a_cache_has_room_for_are_cut_and_logged_once(
    location: str, caplog: pytest.LogCaptureFixture, bound: str, asked: Any
) -> None:
    def opened(**options: Any) -> Any:
        return Shared(pickled_cache, f"{location}/c", "c", options, CACHE_OPTIONS)()

    opened(max_items=50, max_bytes="8KiB", node_size="1MiB").set("k", 1)
    room = int(opened().stats()[bound])
    with caplog.at_level(logging.WARNING, "limpet"):
        for _ in range(3):
            cache = opened(**{bound: asked})
            assert cache.get("k") == 1
    assert cache.stats()[bound] > room
    (said,) = caplog.messages
    assert f"has room for {bound}={cache.stats()[bound]}, " in said
    with pytest.raises((limpet.StoreMismatch, limpet.ParameterError)):
        opened(**{bound: asked, "resize": "refuse"})
