"""A cache of cachelib, for Flask and other programs that take one: all processes share it.

    cache = LimpetCache("shm://site/pages", max_bytes="64MiB", node_size="256MiB")

As cachelib has it, timeouts are seconds or timedeltas, a fraction of a second counts as a whole
one, 0 is for ever, and `set` and `add` return False when there is no room. `inc` and `dec` are
atomic among all processes.
"""

from __future__ import annotations

import datetime
import math
from typing import Any

from cachelib.base import BaseCache

import limpet
from limpet.adapters.pools import (
    CACHE_OPTIONS,
    Shared,
    lifetime,
    log,
    pickled_cache,
    set_or_delete,
)

Timeout = float | datetime.timedelta | None


class LimpetCache(BaseCache):
    """`location`: of the cache (pools.py). `options`: of the cache and of a new pool."""

    def __init__(
        self,
        location: str,
        default_timeout: float | datetime.timedelta = 300,
        ignore_delete_many_errors: bool = True,
        **options: Any,
    ) -> None:
        # Not left to cachelib, whose versions before 0.17 take no fractions, or cut them off: to 0.
        super().__init__(_seconds(default_timeout), ignore_delete_many_errors)
        self.shared = Shared(pickled_cache, location, "cache", options, CACHE_OPTIONS)

    def _ttl(self, timeout: Timeout) -> float:
        """Seconds; 0: for ever; negative: it has expired already."""
        return lifetime(self.default_timeout if timeout is None else _seconds(timeout))

    def get(self, key: str) -> Any:
        return self.shared().get(key)

    def get_many(self, *keys: str) -> list[Any]:
        found = self.shared().get_many(keys)
        return [found.get(key) for key in keys]

    def has(self, key: str) -> bool:
        return key in self.shared()

    def set(self, key: str, value: Any, timeout: Timeout = None) -> bool:
        ttl = self._ttl(timeout)
        if ttl < 0:
            self.shared().delete(key)
            return True
        return set_or_delete(self.shared(), key, value, ttl)

    def add(self, key: str, value: Any, timeout: Timeout = None) -> bool:
        ttl = self._ttl(timeout)
        if ttl < 0:
            return key not in self.shared()
        try:
            return self.shared().add(key, value, ttl=ttl)
        except (limpet.StoreFull, limpet.ValueTooLarge) as error:
            log.warning("the cache does not keep %r: %s", key, error)
            return False

    def delete(self, key: str) -> bool:
        return self.shared().delete(key)

    def clear(self) -> bool:
        self.shared().clear()
        return True

    def inc(self, key: str, delta: int = 1) -> int:
        return self.shared().incr(key, delta, initial=0, ttl=self._ttl(None))

    def dec(self, key: str, delta: int = 1) -> int:
        return self.inc(key, -delta)


def _seconds(timeout: float | datetime.timedelta) -> int:
    """Whole seconds, and one for a part of one."""
    if isinstance(timeout, datetime.timedelta):
        timeout = timeout.total_seconds()
    return math.ceil(timeout)
