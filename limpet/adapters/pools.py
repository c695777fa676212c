"""The common part of all adapters: from a location in settings to what a pool has there.

A location is the URL of a pool and, after its last slash, the name of the cache or store in it:
`shm://site/pages`. Without a name, the adapter's own is taken; so a pool in files is named with it:
`file:///dev/hugepages/site/pages`.

A process opens a pool once, whichever adapters use it; the first process makes it. It stays until
`limpet destroy`. A forked child goes on with its parent's handles, as a client of its own.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

import limpet
from limpet.shm.parameters import parse_size
from limpet.shm.times import LONGEST_S, Seconds, seconds_of
from limpet.stores.cache.parameters import ITEMS_MAX, LEAST
from limpet.stores.registry import CACHES

T = TypeVar("T")

log = logging.getLogger("limpet")

POOL_OPTIONS: Final[tuple[str, ...]] = ("nodes", "node_size", "clients", "mode", "group")
CACHE_OPTIONS: Final[tuple[str, ...]] = ("max_bytes", "max_items", "policy", "resize")

_lock = threading.Lock()
_pools: Final[dict[str, limpet.Pool]] = {}
"""Of this process, by URL."""


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def pool_at(url: str, options: Mapping[str, Any], create: bool = True) -> limpet.Pool:
    """The pool, opened once in this process; made, with `options`, if it is not there and `create`
    is true."""
    with _lock:
        if url not in _pools or _pools[url].closed:
            given = options if create else {}
            _pools[url] = limpet.open(url, create=create, **given)
        return _pools[url]


def close_pool(url: str) -> None:
    """Close this process's handle of a pool; adapters that are used again open it again."""
    with _lock:
        pool = _pools.pop(url, None)
    if pool is not None:
        pool.close()


def divided(location: str, name: str) -> tuple[str, str]:
    """The URL of the pool and the name in it; `name` if the location has none."""
    whole = location.rstrip("/")
    head, _, tail = whole.rpartition("/")
    bare = "//" not in whole or head.endswith("/")
    return (whole, name) if bare else (head, tail)


class Shared(Generic[T]):
    """A part of a pool at a location: opened when it is first needed, and pickled by name.

    `kind` says how it is opened: `kind(pool, name, options)`. It must be a function of a module.
    """

    def __init__(
        self,
        kind: Callable[[limpet.Pool, str, dict[str, Any]], T],
        location: str,
        name: str,
        options: Mapping[str, Any],
        known: tuple[str, ...] = (),
        create: bool = True,
    ) -> None:
        """`options` of the pool, and those of the `known` names. ParameterError: another one.
        Without `create`, a pool or store that is not there is an error (PoolNotFound, StoreError).
        """
        if unknown := sorted(set(options) - set(POOL_OPTIONS) - set(known)):
            raise limpet.ParameterError(
                f"{location}: there is no option {', '.join(unknown)}; there is "
                f"{', '.join((*known, *POOL_OPTIONS))}"
            )
        self.kind = kind
        self.url, self.name = divided(location, name)
        self.pool_options = {key: options[key] for key in POOL_OPTIONS if key in options}
        self.options = {key: options[key] for key in known if key in options}
        self.create = create
        self._made: tuple[limpet.Pool, T] | None = None

    def __call__(self) -> T:
        """It, made if it is not there."""
        made = self._made
        if made is None or made[0].closed:
            pool = pool_at(self.url, self.pool_options, self.create)
            if not self.create and all(one["name"] != self.name for one in pool.stores()):
                raise limpet.StoreError(
                    f"{self.url} has no store {self.name!r}, and it is opened to be read only"
                )
            made = self._made = (pool, self.kind(pool, self.name, self.options))
        return made[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": None}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Shared):
            return NotImplemented
        return (self.kind, self.url, self.name) == (other.kind, other.url, other.name)

    def __hash__(self) -> int:
        return hash((self.url, self.name))

    def __repr__(self) -> str:
        return f"{self.url}/{self.name}"


def pickled_cache(pool: limpet.Pool, name: str, options: dict[str, Any]) -> limpet.Cache[str, Any]:
    """A cache of Python objects."""
    return _cache(pool, name, options, None)


def bytes_cache(
    pool: limpet.Pool, name: str, options: dict[str, Any]
) -> limpet.Cache[bytes, bytes]:
    """A cache of bytes, which the host has encoded."""
    return _cache(pool, name, options, "bytes")


def _cache(
    pool: limpet.Pool, name: str, options: dict[str, Any], codec: str | None
) -> limpet.Cache[Any, Any]:
    """A cache with these options, or as far as there is room. One that is there has its bounds
    changed, as the option `resize` says, to those of the options, and keeps its policy: a
    deployment with other settings must not fail. StoreMismatch: it is no cache, or has another
    codec, or `resize` is "refuse"."""
    given = {"resize": "newest", **options}
    there = {one["name"]: one["parameters"] for one in pool.stores() if one["kind"] in CACHES}
    memory = pool.parameters.nodes * pool.layout.block_count * pool.layout.block_size
    most = items = min(memory // LEAST, ITEMS_MAX)
    if name in there:
        made = there[name]
        if given.get("policy", made["policy"]) != made["policy"]:
            _warn_once(
                f"{pool.url}: the cache {name!r} has policy={made['policy']!r}, not "
                f"{given['policy']!r}; it stays so until `limpet drop {pool.url} {name}`"
            )
            given["policy"] = made["policy"]
        items = min(items, made["limit"])
    for bound, room, more in (
        ("max_items", items, items < most),
        ("max_bytes", memory, False),
    ):
        asked = given.get(bound)
        if asked is not None and given["resize"] == "newest" and parse_size(asked) > room:
            what = f"drop {pool.url} {name}" if more else f"destroy {pool.url}"
            _warn_once(
                f"{pool.url}: the cache {name!r} has room for {bound}={room}, and has that in "
                f"place of {asked!r}; for more, end its processes, run `limpet {what}`, and "
                f"start them again{'' if more else ' with a larger node_size'}"
            )
            given[bound] = room
    return pool.cache(name, codec=codec, **given)


_told: Final[set[str]] = set()


def _warn_once(text: str) -> None:
    """Log a warning; once in this process, however often the cache is opened."""
    if text not in _told:
        _told.add(text)
        log.warning("%s", text)


def set_or_delete(cache: limpet.Cache[str, Any], key: str, value: Any, ttl: float) -> bool:
    """Set a value; False: there is no room for it, and the old one is deleted."""
    try:
        cache.set(key, value, ttl=ttl)
    except (limpet.StoreFull, limpet.ValueTooLarge) as error:
        log.warning("the cache does not keep %r: %s", key, error)
        cache.delete(key)
        return False
    return True


def lifetime(time: Seconds) -> float:
    """A time to live, of which a cache takes at most a hundred years."""
    return min(seconds_of("ttl", time), LONGEST_S)
