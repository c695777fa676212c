"""`limpet.adapters.cachelib`: cachelib's promises of a cache, and what processes share.

cachelib's package has no tests, so these are written after the docstrings of its BaseCache, each of
whose methods has at least one.
"""

from __future__ import annotations

import datetime
import logging
import os
import pickle
import time
from typing import Any

import pytest
from kit.adapters import assert_sound, with_kills
from kit.processes import gather

pytest.importorskip("cachelib", reason="cachelib is not installed: pip install 'limpet[cachelib]'")

pytestmark = pytest.mark.exhaustive_in_pure("the adapter is not compiled", quick=[])


@pytest.fixture
def cache(location: str) -> Any:
    from limpet.adapters.cachelib import LimpetCache

    return LimpetCache(f"{location}/pages", max_items=500, node_size="4MiB", clients=16)


class Markup(str):
    """Text that a template does not escape, as markupsafe has it."""


def test_key_of_a_subclass_of_text_is_that_text(cache: Any) -> None:
    assert cache.set(Markup("k"), "value") is True
    assert cache.get("k") == "value"
    assert cache.get_many("k", Markup("k")) == ["value", "value"]
    assert cache.add("k", "other") is False
    assert cache.delete(Markup("k"))
    assert not cache.has("k")


@pytest.mark.parametrize(
    "value", [0, 1.5, "text", b"bytes", None, [1, {"a": (2, 3)}], {1, 2}, datetime.date(2026, 1, 2)]
)
def test_value_comes_back(cache: Any, value: object) -> None:
    assert cache.set("k", value) is True
    assert cache.get("k") == value
    assert cache.has("k")


def test_missing_key_is_none(cache: Any) -> None:
    assert cache.get("k") is None
    assert cache.has("k") is False
    assert cache.delete("k") is False


def test_set_overwrites_and_add_does_not(cache: Any) -> None:
    cache.set("k", 1)
    cache.set("k", 2)
    assert cache.get("k") == 2
    assert cache.add("k", 3) is False
    assert cache.add("l", 3) is True
    assert (cache.get("k"), cache.get("l")) == (2, 3)


def test_delete_says_whether_it_was_there(cache: Any) -> None:
    cache.set("k", 1)
    assert cache.delete("k") is True
    assert cache.delete("k") is False


def test_many_at_once(cache: Any) -> None:
    assert cache.set_many({"a": 1, "b": 2}) == ["a", "b"]
    assert cache.get_many("a", "x", "b") == [1, None, 2]
    assert cache.get_dict("a", "x") == {"a": 1, "x": None}
    assert cache.delete_many("a", "x") == ["a", "x"]
    assert cache.get_many("a", "b") == [None, 2]


def test_delete_many_that_leaves_none_raises_nothing(location: str) -> None:
    from limpet.adapters.cachelib import LimpetCache

    cache = LimpetCache(location, ignore_delete_many_errors=False, node_size="4MiB")
    cache.set("a", 1)
    assert cache.delete_many("a", "x") == ["a", "x"]


def test_clear_leaves_nothing(cache: Any) -> None:
    cache.set_many({"a": 1, "b": 2})
    assert cache.clear() is True
    assert cache.get_many("a", "b") == [None, None]


def test_inc_and_dec(cache: Any) -> None:
    assert cache.inc("n") == 1
    assert cache.inc("n", 10) == 11
    assert cache.dec("n", 2) == 9
    assert cache.dec("m") == -1
    cache.set("k", 5)
    assert cache.inc("k", -5) == 0


@pytest.mark.parametrize("timeout", [1, 0.2, datetime.timedelta(milliseconds=200)])
def test_timeout_ends_an_entry(cache: Any, timeout: Any) -> None:

    def lasts_s() -> float:
        cache.set("k", 1, timeout)
        return cache.shared().expires_in("k") or 0.0

    assert any(0.9 < lasts_s() <= 1 for _ in range(100))
    time.sleep(1.01)
    assert cache.get("k") is None
    assert cache.add("k", 2, timeout)


@pytest.mark.parametrize("to_seconds", [int, lambda timeout: timeout], ids=["cut", "kept"])
def test_fraction_of_a_second_is_not_for_ever_with_older_versions_of_cachelib(
    location: str, monkeypatch: Any, to_seconds: Any
) -> None:
    from limpet.adapters.cachelib import LimpetCache

    base = LimpetCache.__base__
    monkeypatch.setattr(base, "_to_seconds", staticmethod(to_seconds), raising=False)
    cache = LimpetCache(f"{location}/pages", 0.3, node_size="4MiB")
    cache.set("usual", 1)
    cache.set("own", 1, datetime.timedelta(seconds=1.5))
    assert 0 < cache.shared().expires_in("usual") <= 1 < cache.shared().expires_in("own") <= 2


def test_timeout_of_zero_is_for_ever_and_none_the_default(cache: Any) -> None:
    cache.set("ever", 1, 0)
    cache.set("usual", 1)
    assert cache.shared().expires_in("ever") is None
    assert 290 < cache.shared().expires_in("usual") <= 300


def test_timeout_of_a_year_is_a_year(cache: Any) -> None:
    cache.set("k", 1, datetime.timedelta(days=365))
    assert 364.9 < cache.shared().expires_in("k") / 86_400 <= 365


def test_timeout_that_is_over_keeps_nothing(cache: Any) -> None:
    cache.set("k", 1)
    cache.set("k", 2, -1)
    assert cache.get("k") is None


def test_value_without_room_is_refused(cache: Any, caplog: Any) -> None:
    with caplog.at_level(logging.WARNING, "limpet"):
        assert cache.set("k", bytes(3 << 20)) is False
        assert cache.add("k", bytes(3 << 20)) is False
    assert "max_bytes" in caplog.text
    assert cache.get("k") is None


def test_value_without_room_does_not_leave_the_old_one(cache: Any) -> None:
    cache.set("k", "old")
    assert cache.set("k", bytes(3 << 20)) is False
    assert cache.get("k") is None
    cache.set("k", "old")
    assert cache.set_many({"k": bytes(3 << 20), "l": 1}) == ["l"]
    assert cache.get_many("k", "l") == [None, 1]


def test_value_that_cannot_be_pickled_raises(cache: Any) -> None:
    with pytest.raises((pickle.PicklingError, AttributeError)):
        cache.set("k", lambda: 0)


def test_unknown_option_is_named(location: str) -> None:
    import limpet
    from limpet.adapters.cachelib import LimpetCache

    with pytest.raises(limpet.ParameterError, match=r"no option max_size; there is max_bytes"):
        LimpetCache(location, max_size=3)


def test_cache_is_pickled_by_its_location(cache: Any) -> None:
    cache.set("k", 1)
    assert pickle.loads(pickle.dumps(cache)).get("k") == 1


def test_processes_share_one_cache(cache: Any) -> None:
    cache.set("pid", os.getpid())

    def use() -> Any:
        for _ in range(50):
            cache.inc("n")
        return cache.get("pid")

    assert gather(use, use, use) == [os.getpid()] * 3
    assert cache.get("n") == 150


def test_killed_processes_leave_whole_values(cache: Any, location: str) -> None:
    def work(number: int) -> None:
        cache.set(f"k{number % 20}", [number] * 200)
        found = cache.get(f"k{(number + 7) % 20}")
        assert found is None or found == [found[0]] * 200

    cache.get("k0")
    with_kills(work)
    assert_sound(location)
