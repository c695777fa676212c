"""`limpet.adapters.aiocache`: aiocache's promises of a cache and of its locks, over processes.

aiocache's package has no tests, so these are written after its documentation: each command of
BaseCache, namespaces, serializers, plugins, `cached`, RedLock and OptimisticLock.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from kit.adapters import assert_sound, with_kills
from kit.processes import gather

import limpet

aiocache = pytest.importorskip(
    "aiocache", reason="aiocache is not installed: pip install 'limpet[aiocache]'"
)
from aiocache.lock import OptimisticLock, OptimisticLockError, RedLock
from aiocache.plugins import HitMissRatioPlugin
from aiocache.serializers import JsonSerializer, PickleSerializer, StringSerializer

pytestmark = pytest.mark.exhaustive_in_pure("the adapter is not compiled", quick=[])

Use = Callable[[Any], Coroutine[Any, Any, Any]]


@pytest.fixture
def cache(location: str) -> Any:
    from limpet.adapters.aiocache import LimpetCache

    return LimpetCache(f"{location}/pages", max_items=500, node_size="4MiB", clients=16)


def run(use: Use, cache: Any) -> Any:
    return asyncio.run(use(cache))


def test_set_get_exists_delete(cache: Any) -> None:
    async def use(cache: Any) -> None:
        assert await cache.get("k") is None
        assert await cache.get("k", default=1) == 1
        assert await cache.set("k", {"a": [1, (2,)]}) is True
        assert await cache.get("k") == {"a": [1, (2,)]}
        assert await cache.exists("k") is True
        assert await cache.delete("k") == 1
        assert await cache.delete("k") == 0
        assert await cache.exists("k") is False

    run(use, cache)


def test_add_refuses_a_key_that_is_there(cache: Any) -> None:
    async def use(cache: Any) -> None:
        assert await cache.add("k", 1) is True
        with pytest.raises(ValueError, match="already exists"):
            await cache.add("k", 2)
        assert await cache.get("k") == 1

    run(use, cache)


def test_multi_set_and_multi_get(cache: Any) -> None:
    async def use(cache: Any) -> None:
        assert await cache.multi_set([("a", 1), ("b", 2)], ttl=60) is True
        assert await cache.multi_get(["a", "x", "b"]) == [1, None, 2]
        assert 0 < cache.shared().expires_in("a") <= 60

    run(use, cache)


def test_increment(cache: Any) -> None:
    async def use(cache: Any) -> None:
        assert await cache.increment("n") == 1
        assert await cache.increment("n", delta=-4) == -3
        await cache.set("k", "text")
        with pytest.raises(TypeError):
            await cache.increment("k")

    run(use, cache)


def test_ttl_and_expire_are_in_seconds(cache: Any) -> None:
    async def use(cache: Any) -> None:
        await cache.set("k", 1, ttl=0.05)
        await cache.set("l", 1)
        assert await cache.expire("l", 0.05) is True
        assert await cache.expire("x", 1) is False
        await asyncio.sleep(0.06)
        assert await cache.multi_get(["k", "l"]) == [None, None]
        await cache.set("m", 1, ttl=100)
        assert await cache.expire("m", 0) is True
        assert cache.shared().expires_in("m") is None

    run(use, cache)


def test_ttl_of_the_cache_is_the_default(location: str) -> None:
    from limpet.adapters.aiocache import LimpetCache

    cache = LimpetCache(location, ttl=30, node_size="4MiB")
    run(lambda cache: cache.set("k", 1), cache)
    assert 29 < cache.shared().expires_in("k") <= 30


def test_clear_of_a_namespace_leaves_the_others(cache: Any) -> None:
    async def use(cache: Any) -> None:
        await cache.set("k", 1, namespace="a:")
        await cache.set("k", 2, namespace="b:")
        assert await cache.get("k") is None
        assert await cache.clear(namespace="a:") is True
        assert await cache.get("k", namespace="a:") is None
        assert await cache.get("k", namespace="b:") == 2
        assert await cache.clear() is True
        assert await cache.get("k", namespace="b:") is None

    run(use, cache)


@pytest.mark.parametrize("serializer", [JsonSerializer, PickleSerializer, StringSerializer])
def test_serializers(location: str, serializer: Any) -> None:
    from limpet.adapters.aiocache import LimpetCache

    async def use(cache: Any) -> None:
        await cache.set("k", "value")
        assert await cache.get("k") == "value"
        assert await cache.increment("n", 3) == 3

    run(use, LimpetCache(location, serializer=serializer(), node_size="4MiB"))


def test_raw_is_a_method_of_the_cache(cache: Any) -> None:
    async def use(cache: Any) -> None:
        await cache.raw("set", "k", 1, tags=["t"])
        await cache.raw("invalidate", "t")
        assert await cache.get("k") is None

    run(use, cache)


def test_plugins_are_called(location: str) -> None:
    from limpet.adapters.aiocache import LimpetCache

    async def use(cache: Any) -> None:
        await cache.set("k", 1)
        await cache.get("k")
        await cache.get("x")
        assert cache.hit_miss_ratio["hit_ratio"] == 0.5

    run(use, LimpetCache(location, plugins=[HitMissRatioPlugin()], node_size="4MiB"))


def test_cached_function(location: str) -> None:
    from aiocache import caches

    caches.set_config(
        {
            "default": {
                "cache": "limpet.adapters.aiocache.LimpetCache",
                "location": f"{location}/pages",
                "node_size": "4MiB",
            }
        }
    )
    calls = []

    @aiocache.cached(alias="default", ttl=10)
    async def double(number: int) -> int:
        calls.append(number)
        return 2 * number

    async def use() -> list[int]:
        return [await double(2), await double(2), await double(3)]

    assert asyncio.run(use()) == [4, 4, 6]
    assert calls == [2, 3]


def test_redlock_lets_one_compute(cache: Any) -> None:
    computed = []

    async def compute(cache: Any) -> Any:
        async with RedLock(cache, "k", lease=5):
            found = await cache.get("k")
            if found is None:
                computed.append(1)
                await asyncio.sleep(0.05)
                await cache.set("k", found := 7)
            return found

    async def use(cache: Any) -> None:
        assert await asyncio.gather(*(compute(cache) for _ in range(4))) == [7] * 4

    run(use, cache)
    assert computed == [1]


def test_redlock_of_another_is_not_released(cache: Any) -> None:
    async def use(cache: Any) -> None:
        lock = RedLock(cache, "k", lease=5)
        async with lock:
            assert await cache._redlock_release(lock.key, "another") == 0
            assert await cache.exists("k-lock")
        assert not await cache.exists("k-lock")

    run(use, cache)


def test_redlock_is_not_released_by_a_forked_child(cache: Any) -> None:
    async def use(cache: Any) -> None:
        lock = RedLock(cache, "k", lease=5)
        async with lock:
            pid = os.fork()
            if not pid:
                released = 1
                try:
                    released = await cache._redlock_release(lock.key, lock._value)
                finally:
                    os._exit(released)
            assert os.waitpid(pid, 0)[1] == 0
            assert await cache.exists("k-lock")
        assert not await cache.exists("k-lock")

    run(use, cache)


def test_optimistic_lock(cache: Any) -> None:
    async def use(cache: Any) -> None:
        await cache.set("k", 1, ttl=100)
        async with OptimisticLock(cache, "k") as lock:
            assert await lock.cas(2, ttl=50)
        assert await cache.get("k") == 2
        assert 49 < cache.shared().expires_in("k") <= 50
        async with OptimisticLock(cache, "k") as lock:
            await cache.set("k", 3)
            with pytest.raises(OptimisticLockError):
                await lock.cas(4)
        assert await cache.get("k") == 3
        async with OptimisticLock(cache, "new") as lock:
            await cache.set("new", 1)
            assert await lock.cas(2)  # as aiocache has it: there is no conflict with nothing
        assert await cache.get("new") == 2

    run(use, cache)


def test_processes_share_one_cache(cache: Any) -> None:
    run(lambda cache: cache.set("pid", os.getpid()), cache)

    def use() -> Any:
        async def all_of_it(cache: Any) -> Any:
            for _ in range(50):
                await cache.increment("n")
            return await cache.get("pid")

        return run(all_of_it, cache)

    assert gather(use, use, use) == [os.getpid()] * 3
    assert cache.shared()["n"] == 150


def test_value_without_room_raises(cache: Any) -> None:
    with pytest.raises(limpet.ValueTooLarge, match="max_bytes"):
        run(lambda cache: cache.set("k", bytes(3 << 20)), cache)


def test_killed_processes_leave_whole_values(cache: Any, location: str) -> None:
    def work(number: int) -> None:
        async def use(cache: Any) -> None:
            await cache.set(f"k{number % 20}", [number] * 200)
            found = await cache.get(f"k{(number + 7) % 20}")
            assert found is None or found == [found[0]] * 200

        run(use, cache)

    assert cache.shared().get("k0") is None
    with_kills(work, calls=100)
    assert_sound(location)
