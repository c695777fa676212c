"""`limpet.adapters.django`: Django's promises of a cache backend, and what processes share.

Django's own tests of backends (tests/cache in its repository) are not in its package, so these are
written after its documentation of the cache framework.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import pytest
from kit.adapters import assert_sound, with_kills
from kit.processes import gather

import limpet

django = pytest.importorskip(
    "django", reason="Django is not installed: pip install 'limpet[django]'"
)

pytestmark = pytest.mark.exhaustive_in_pure("the backend is not compiled", quick=[])


@pytest.fixture
def backend(make_url: Any) -> Iterator[Any]:
    from django.conf import settings

    if not settings.configured:
        settings.configure(USE_TZ=True)
    from limpet.adapters.django import LimpetCache
    from limpet.adapters.pools import close_pool

    url = make_url()
    made = LimpetCache(
        f"{url}/site", {"OPTIONS": {"MAX_ENTRIES": 50, "node_size": "4MiB", "clients": 16}}
    )
    try:
        yield made
    finally:
        close_pool(url)
        with contextlib.suppress(limpet.PoolNotFound):
            limpet.destroy(url)


def test_values_come_back_under_their_version(backend: Any) -> None:
    backend.set("k", [1], version=1)
    backend.set("k", [2], version=2)
    assert backend.get("k") == [1]
    assert backend.get("k", version=2) == [2]
    assert backend.incr_version("k") == 2
    assert backend.get("k", version=2) == [1]
    assert backend.get("k", "default") == "default"
    backend.set("none", None)
    assert backend.get("none", "default") is None
    assert "none" in backend


def test_add_and_delete_say_what_was_there(backend: Any) -> None:
    assert backend.add("k", 1)
    assert not backend.add("k", 2)
    assert backend.get("k") == 1
    assert backend.delete("k")
    assert not backend.delete("k")
    assert backend.add("k", 3)


@pytest.mark.parametrize("timeout", [0, -1])
def test_timeout_that_is_over_keeps_nothing(backend: Any, timeout: int) -> None:
    backend.set("k", 1)
    backend.set("k", 2, timeout)
    assert not backend.has_key("k")
    assert backend.add("k", 3, timeout)
    assert "k" not in backend
    backend.set("k", 4)
    assert backend.touch("k", timeout)
    assert backend.get("k") is None


def test_timeouts_are_in_seconds(backend: Any) -> None:
    backend.set("k", 1, 100)
    left = backend.shared.expires_in(backend.make_key("k"))
    assert 90 < left <= 100
    assert backend.touch("k", None)
    assert backend.shared.expires_in(backend.make_key("k")) is None
    backend.set("default", 1)
    assert 290 < backend.shared.expires_in(backend.make_key("default")) <= 300
    assert not backend.touch("other")


def test_timeout_of_a_year_is_a_year(backend: Any) -> None:
    year = 365 * 86_400
    backend.set("k", 1, year)
    left = backend.shared.expires_in(backend.make_key("k"))
    assert year - 10 < left <= year
    assert backend.get("k") == 1


def test_unknown_option_is_named() -> None:
    from limpet.adapters.django import LimpetCache

    with pytest.raises(limpet.ParameterError, match="no option max_bites; there is max_bytes"):
        LimpetCache("shm://site", {"OPTIONS": {"max_bites": "1MiB", "CULL_FREQUENCY": 3}})


def test_incr_and_decr(backend: Any) -> None:
    backend.set("n", 41)
    assert backend.incr("n") == 42
    assert backend.decr("n", 2) == 40
    assert backend.incr("n", -40) == 0
    with pytest.raises(ValueError, match="not found"):
        backend.incr("missing")
    with pytest.raises(ValueError, match="not found"):
        backend.decr("missing")


def test_many_at_once(backend: Any) -> None:
    assert backend.set_many({"a": 1, "b": 2}) == []
    assert backend.get_many(["a", "b", "c"]) == {"a": 1, "b": 2}
    backend.delete_many(["a", "c"])
    assert backend.get_many(["a", "b"]) == {"b": 2}
    backend.clear()
    assert backend.get_many(["a", "b"]) == {}


def test_get_or_set(backend: Any) -> None:
    assert backend.get_or_set("k", lambda: 7) == 7
    assert backend.get_or_set("k", 8) == 7
    assert backend.get_or_set("k", lambda: 9) == 7
    assert backend.get_or_set("gone", lambda: 1, timeout=0) == 1
    assert "gone" not in backend
    computed: list[None] = []
    for _ in range(3):
        assert backend.get_or_set("nothing", lambda: computed.append(None)) is None
    assert computed == [None]
    assert "nothing" in backend
    assert backend.get_or_set("none", None) is None


def test_value_that_is_too_large_is_not_kept_and_leaves_no_old_one(backend: Any) -> None:
    large = bytes(4 << 20)
    backend.set("k", "old")
    backend.set("k", large)
    assert backend.get("k") is None
    assert not backend.add("k", large)
    backend.set("k", "old")
    assert backend.set_many({"k": large, "l": 1}) == ["k"]
    assert backend.get_many(["k", "l"]) == {"l": 1}
    assert backend.get_or_set("k", large) == large
    assert backend.get_or_set("k", lambda: large) == large
    assert backend.get("k") is None


def test_asynchronous_calls(backend: Any) -> None:
    import asyncio

    async def use() -> Any:
        await backend.aset("k", 1)
        await backend.aincr("k")
        return await backend.aget("k"), await backend.aget_many(["k", "l"])

    assert asyncio.run(use()) == (2, {"k": 2})


def test_keys_that_memcached_refuses_are_warned_of(backend: Any) -> None:
    from django.core.cache import CacheKeyWarning

    with pytest.warns(CacheKeyWarning):
        backend.set("a key with spaces", 1)


def test_full_cache_stays_within_its_entries(backend: Any) -> None:
    for number in range(200):
        backend.set(f"k{number}", number)
    assert backend.shared.stats()["items"] == 50


def test_processes_share_one_cache(backend: Any) -> None:
    backend.set("n", 0)
    backend.set("pids", [os.getpid()])

    def use() -> Any:
        for _ in range(20):
            backend.incr("n")
        return backend.get("pids")

    assert gather(use, use, use) == [[os.getpid()]] * 3
    assert backend.get("n") == 60


def test_deployment_with_other_settings_resizes_the_cache_and_an_older_one_does_not(
    backend: Any,
) -> None:
    from limpet.adapters.django import LimpetCache
    from limpet.adapters.pools import close_pool

    def process(entries: int) -> Any:
        """A worker of a deployment, which opens the pool itself."""

        def work() -> Any:
            close_pool(backend.at.url)
            made = LimpetCache(repr(backend.at), {"OPTIONS": {"MAX_ENTRIES": entries}})
            return made.get("k"), made.shared.stats()["max_items"]

        return work

    backend.set("k", "kept")
    assert gather(process(80)) == [("kept", 80)]
    assert gather(process(50)) == [("kept", 80)]  # the one of the fixture lives
    assert backend.shared.stats()["max_items"] == 80
    assert gather(process(20)) == [("kept", 20)]


def test_sessions_are_kept_in_it(backend: Any, monkeypatch: Any) -> None:
    from django.contrib.sessions.backends import cache as sessions

    monkeypatch.setattr(sessions, "caches", {"default": backend})
    session = sessions.SessionStore()
    session["user"] = 7
    session.save()
    assert sessions.SessionStore(session.session_key)["user"] == 7
    session.delete()
    assert "user" not in sessions.SessionStore(session.session_key)


def test_killed_processes_leave_whole_values(backend: Any) -> None:
    def work(number: int) -> None:
        backend.set(f"k{number % 20}", [number] * 200)
        found = backend.get(f"k{(number + 7) % 20}")
        assert found is None or found == [found[0]] * 200

    backend.get("opened")
    with_kills(work)
    assert_sound(backend.at.url)
