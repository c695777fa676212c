"""A cache of aiocache: all processes share it.

    cache = LimpetCache("shm://site/pages", namespace="v1:", ttl=300, max_bytes="64MiB")
    caches.set_config({"default": {"cache": "limpet.adapters.aiocache.LimpetCache",
                                   "location": "shm://site/pages"}})

An operation takes microseconds and waits for no server, so it runs in the event loop. Times are
seconds and may be fractions. Values are pickled, unless there is another serializer. `increment`
and the tokens of OptimisticLock are atomic among all processes.
"""

from __future__ import annotations

from typing import Any, Final

from aiocache.base import BaseCache
from aiocache.serializers import NullSerializer

from limpet.adapters.pools import CACHE_OPTIONS, POOL_OPTIONS, Shared, lifetime, pickled_cache
from limpet.shm.endpoint import forks
from limpet.stores.cache.cache import TOKEN_OF_NOTHING

OPTIONS: Final[tuple[str, ...]] = (*CACHE_OPTIONS, *POOL_OPTIONS)
REDLOCK: Final = "-lock"
"""The end of the keys of aiocache's RedLock, whose value says nothing of its process."""


class LimpetCache(BaseCache):
    """`location`: of the cache (pools.py). Other arguments are aiocache's, or options of the cache
    and of a new pool."""

    NAME = "limpet"

    def __init__(self, location: str, serializer: Any = None, **arguments: Any) -> None:
        options = {key: arguments.pop(key) for key in OPTIONS if key in arguments}
        super().__init__(serializer=serializer or NullSerializer(), **arguments)
        self.shared = Shared(pickled_cache, location, "cache", options, CACHE_OPTIONS)
        self._taken: dict[str, tuple[int, Any]] = {}
        """By key, `forks.count` and value of each RedLock that may be taken."""

    async def _get(self, key: str, encoding: str = "utf-8", _conn: Any = None) -> Any:
        return self.shared().get(key)

    async def _gets(self, key: str, encoding: str = "utf-8", _conn: Any = None) -> int | None:
        """A token for `set`; None, which matches anything: the key is not there."""
        _, token = self.shared().gets(key)
        return None if token == TOKEN_OF_NOTHING else token

    async def _multi_get(
        self, keys: list[str], encoding: str = "utf-8", _conn: Any = None
    ) -> list[Any]:
        found = self.shared().get_many(keys)
        return [found.get(key) for key in keys]

    async def _set(
        self, key: str, value: Any, ttl: Any = None, _cas_token: Any = None, _conn: Any = None
    ) -> bool:
        if _cas_token is not None:
            return self.shared().cas(key, value, _cas_token, ttl=_ttl(ttl))
        self.shared().set(key, value, ttl=_ttl(ttl))
        return True

    async def _multi_set(
        self, pairs: list[tuple[str, Any]], ttl: Any = None, _conn: Any = None
    ) -> bool:
        self.shared().set_many(dict(pairs), ttl=_ttl(ttl))
        return True

    async def _add(self, key: str, value: Any, ttl: Any = None, _conn: Any = None) -> bool:
        if not self.shared().add(key, value, ttl=_ttl(ttl)):
            raise ValueError(f"Key {key} already exists, use .set to update the value")
        if key.endswith(REDLOCK):
            self._taken[key] = (forks.count, value)
        return True

    async def _exists(self, key: str, _conn: Any = None) -> bool:
        return key in self.shared()

    async def _increment(self, key: str, delta: int, _conn: Any = None) -> int:
        cache = self.shared()
        while True:
            value, token = cache.gets(key)
            try:
                total = int(value or 0) + delta
            except ValueError:
                raise TypeError("Value is not an integer") from None
            if cache.cas(key, total, token):
                return total

    async def _expire(self, key: str, ttl: Any, _conn: Any = None) -> bool:
        return self.shared().touch(key, _ttl(ttl))

    async def _delete(self, key: str, _conn: Any = None) -> int:
        return int(self.shared().delete(key))

    async def _clear(self, namespace: str | None = None, _conn: Any = None) -> bool:
        if namespace:
            self.shared().delete_prefix(namespace)
        else:
            self.shared().clear()
        return True

    async def _raw(
        self, command: str, *args: Any, encoding: str = "utf-8", _conn: Any = None, **kwargs: Any
    ) -> Any:
        """A method of the `limpet.Cache`, by name."""
        return getattr(self.shared(), command)(*args, **kwargs)

    async def _redlock_release(self, key: str, value: Any) -> int:
        taken_at, taken = self._taken.get(key, (forks.count, value))
        if taken == value:
            self._taken.pop(key, None)
            if taken_at != forks.count:
                return 0  # it is the parent's of this process
        found, token = self.shared().gets(key)
        return int(found == value and self.shared().delete(key, token))


def _ttl(seconds: float | None) -> float:
    """Without a number, or with 0: for ever."""
    return lifetime(seconds or 0)
