"""A cache backend of Django: all processes of a site share one `pool.cache`.

    CACHES = {
        "default": {
            "BACKEND": "limpet.adapters.django.LimpetCache",
            "LOCATION": "shm://site/pages",  # pool and cache, by default "cache"
            "OPTIONS": {"MAX_ENTRIES": 100_000, "max_bytes": "64MiB", "node_size": "256MiB"},
        }
    }

The first process that needs the pool makes it, with `nodes` and `node_size`; the others open it. A
pool stays until `limpet destroy site`. `MAX_ENTRIES` is a bound at all times, and `CULL_FREQUENCY`
means nothing: a full cache evicts one entry for each new one. Without `MAX_ENTRIES` there is no
bound but `max_bytes`. A cache that is there is resized to other settings, the newest of which win,
unless the option `resize` says "keep" or "refuse" (`Pool.cache`). Another option that is not known
raises ParameterError. Sessions: `SESSION_ENGINE = "django.contrib.sessions.backends.cache"`.

A value that is larger than the whole cache, or for which other stores leave no room, is not kept: a
warning is logged, and the key is deleted.

Values are pickled, so processes that may write to the pool must trust each other.
"""

from __future__ import annotations

import time
from typing import Any, Final

from django.core.cache.backends.base import DEFAULT_TIMEOUT, BaseCache

import limpet
from limpet.adapters.pools import (
    CACHE_OPTIONS,
    Shared,
    lifetime,
    log,
    pickled_cache,
    set_or_delete,
)

OPTIONS_OF_DJANGO: Final[tuple[str, ...]] = ("MAX_ENTRIES", "CULL_FREQUENCY")


class LimpetCache(BaseCache):
    """The backend. Each call is one operation on the shared cache."""

    def __init__(self, location: str, params: dict[str, Any]) -> None:
        super().__init__(params)
        given = params.get("OPTIONS", {})
        options = {key: value for key, value in given.items() if key not in OPTIONS_OF_DJANGO}
        if "MAX_ENTRIES" in given or "max_entries" in params:
            options["max_items"] = int(self._max_entries)
        self.at = Shared(pickled_cache, location, "cache", options, CACHE_OPTIONS)

    @property
    def shared(self) -> limpet.Cache[str, Any]:
        """The cache in the pool."""
        return self.at()

    def _ttl(self, timeout: Any) -> float | None:
        """Seconds that an entry lives; 0: for ever; None: it has expired already."""
        end = self.get_backend_timeout(timeout)
        if end is None:
            return 0
        left = end - time.time()
        return lifetime(left) if left > 0 else None

    def add(
        self, key: str, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None
    ) -> bool:
        name = self.make_and_validate_key(key, version=version)
        ttl = self._ttl(timeout)
        if ttl is None:
            return name not in self.shared
        try:
            return self.shared.add(name, value, ttl=ttl)
        except (limpet.StoreFull, limpet.ValueTooLarge) as error:
            log.warning("the cache does not keep %r: %s", key, error)
            return False

    def get(self, key: str, default: Any = None, version: int | None = None) -> Any:
        return self.shared.get(self.make_and_validate_key(key, version=version), default)

    def set(
        self, key: str, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None
    ) -> None:
        self._set(key, value, timeout, version)

    def _set(self, key: str, value: Any, timeout: Any, version: int | None) -> bool:
        """`set`; False: there is no room for the value."""
        name = self.make_and_validate_key(key, version=version)
        ttl = self._ttl(timeout)
        if ttl is None:
            self.shared.delete(name)
            return True
        return set_or_delete(self.shared, name, value, ttl)

    def set_many(
        self, data: dict[str, Any], timeout: Any = DEFAULT_TIMEOUT, version: int | None = None
    ) -> list[str]:
        return [k for k, value in data.items() if not self._set(k, value, timeout, version)]

    def get_or_set(
        self, key: str, default: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None
    ) -> Any:
        """As Django has it; a `default` that is called is called by one process of all, while the
        others wait for the value."""
        ttl = self._ttl(timeout)
        if ttl is None or not callable(default):
            return super().get_or_set(key, default, timeout, version)
        name = self.make_and_validate_key(key, version=version)
        return self.shared.get_or_compute(name, default, ttl=ttl)

    def touch(self, key: str, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> bool:
        name = self.make_and_validate_key(key, version=version)
        ttl = self._ttl(timeout)
        return self.shared.delete(name) if ttl is None else self.shared.touch(name, ttl)

    def delete(self, key: str, version: int | None = None) -> bool:
        return self.shared.delete(self.make_and_validate_key(key, version=version))

    def has_key(self, key: str, version: int | None = None) -> bool:
        return self.make_and_validate_key(key, version=version) in self.shared

    def get_many(self, keys: Any, version: int | None = None) -> dict[str, Any]:
        names = {self.make_and_validate_key(key, version=version): key for key in keys}
        return {names[name]: value for name, value in self.shared.get_many(names).items()}

    def incr(self, key: str, delta: int = 1, version: int | None = None) -> int:
        name = self.make_and_validate_key(key, version=version)
        try:
            return self.shared.incr(name, delta)
        except KeyError:
            raise ValueError(f"Key {key!r} not found") from None

    def clear(self) -> None:
        self.shared.clear()
