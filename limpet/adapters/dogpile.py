"""A backend of dogpile.cache: all processes share the region, and one of them creates a value.

    region = dogpile.cache.make_region().configure(
        "limpet", expiration_time=300, arguments={"location": "shm://site/region"}
    )

Importing this module registers the name "limpet"; an installed limpet is found without that.
Arguments: `location` (pools.py), `ttl` (seconds after which an entry is gone, whatever the region
says; by default never), `distributed_lock` (True: of all processes, one creates a value; False: one
in each process), `lock_timeout` (seconds, 60; a dead process loses the lock at once), and the
options of the cache and of a new pool. As dogpile.cache has it, other arguments mean nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from dogpile.cache import register_backend
from dogpile.cache.api import NO_VALUE, BytesBackend, CacheMutex

import limpet
from limpet.adapters.pools import CACHE_OPTIONS, POOL_OPTIONS, Shared, bytes_cache, lifetime
from limpet.stores.cache.lock import CacheLock

OPTIONS: Final[tuple[str, ...]] = (*CACHE_OPTIONS, *POOL_OPTIONS)


class Mutex(CacheMutex):
    """The lock of a key, of all processes."""

    def __init__(self, lock: CacheLock) -> None:
        self.lock = lock

    def acquire(self, wait: bool = True) -> bool:
        return self.lock.acquire(wait)

    def release(self) -> None:
        """Give it back. If its time is over, another process may have it: then nothing happens."""
        self.lock.end()

    def locked(self) -> bool:
        return self.lock.locked()


class LimpetBackend(BytesBackend):
    """The region's serializer makes the bytes that are kept: pickle, unless it has another one."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        if "location" not in arguments:
            raise limpet.ParameterError(
                'the backend "limpet" of dogpile.cache needs arguments={"location": "shm://..."}'
            )
        options = {key: arguments[key] for key in OPTIONS if key in arguments}
        self.shared = Shared(bytes_cache, arguments["location"], "region", options, CACHE_OPTIONS)
        self.ttl = lifetime(arguments.get("ttl") or 0)
        self.distributed_lock = arguments.get("distributed_lock", True)
        self.lock_ttl = lifetime(arguments.get("lock_timeout") or 60)

    def get_mutex(self, key: str) -> Mutex | None:
        if not self.distributed_lock:
            return None
        return Mutex(self.shared().lock(key.encode(), self.lock_ttl))

    def get_serialized(self, key: str) -> Any:
        return self.shared().get(key.encode(), NO_VALUE)

    def get_serialized_multi(self, keys: Iterable[str]) -> Sequence[Any]:
        names = [key.encode() for key in keys]
        found = self.shared().get_many(names)
        return [found.get(name, NO_VALUE) for name in names]

    def set_serialized(self, key: str, value: bytes) -> None:
        self.shared().set(key.encode(), value, ttl=self.ttl)

    def set_serialized_multi(self, mapping: Mapping[str, bytes]) -> None:
        pairs = {key.encode(): value for key, value in mapping.items()}
        self.shared().set_many(pairs, ttl=self.ttl)

    def delete(self, key: str) -> None:
        self.shared().delete(key.encode())

    def delete_multi(self, keys: Iterable[str]) -> None:
        self.shared().delete_many(key.encode() for key in keys)


register_backend("limpet", __name__, "LimpetBackend")
