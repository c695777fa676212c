"""The drivers of `limpet bench cache --speed`: `pool.cache` and what it is measured beside.

All take bytes, and all pairs fit, so that nothing is evicted. `race` is the store that a cache
stands on, asked without a mapping; `race-dict` is `pool.dict` on it, asked through the same layer
as a cache. `compute` is one call of `pool.cache`, which lets one process compute; that of a peer is
a get and a set, between which others may compute, too.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable
from typing import Any, Final

from limpet.bench.peers.drivers import (
    Connection,
    Driver,
    LimpetDriver,
    Pairs,
    package_missing,
)
from limpet.bench.peers.embedded import DiskcacheDriver
from limpet.bench.peers.servers import ManagerDriver, RedisDriver
from limpet.bench.peers.ycsb import Workload
from limpet.shm.errors import ParameterError

OURS: Final = "cache"
STORE: Final = "race"


class MappingDriver(Driver):
    """What one of a pool's methods makes, with the codec "bytes", in the pool of a LimpetDriver."""

    def __init__(self, name: str, opened: Callable[[Any], Any]) -> None:
        self.name = name
        self.opened = opened
        self.inner = LimpetDriver(STORE)

    def missing(self) -> None:
        return None

    def version(self) -> str:
        return self.inner.version()

    def start(self, workload: Workload) -> None:
        self.inner.start(workload)

    def load(self, pairs: Pairs) -> None:
        self.opened(self.inner.pool).update(pairs)

    def attach(self) -> Connection:
        import limpet

        pool = limpet.open(self.inner.url)
        made = self.opened(pool)
        return Connection(
            made.get,
            made.__setitem__,
            pool.close,
            delete=lambda key: made.pop(key, None),
            compute=getattr(made, "get_or_compute", None),
        )

    def stop(self) -> None:
        self.inner.stop()


class LocalDriver(Driver):
    """A cache of one process, of a package."""

    shared = False
    alone = True

    def __init__(self, package: str, made: Callable[[Any, int], Connection]) -> None:
        self.name = package
        self.made = made

    def missing(self) -> str | None:
        return package_missing(self.name)

    def version(self) -> str:
        return importlib.metadata.version(self.name)

    def start(self, workload: Workload) -> None:
        self.workload = workload

    def load(self, pairs: Pairs) -> None:
        """Nothing: the worker makes its own."""

    def attach(self) -> Connection:
        most = 2 * (self.workload.records + self.workload.operations)
        made = self.made(importlib.import_module(self.name), most)
        for key, value in self.workload.pairs():
            made.put(key, value)
        return made

    def stop(self) -> None:
        """Nothing is kept."""


def _lru(module: Any, most: int) -> Connection:
    """cachetools, without the lock that its users of several threads need; cachebox has one."""
    made = module.LRUCache(most)
    return Connection(made.get, made.__setitem__, delete=made.__delitem__)


def _theine(module: Any, most: int) -> Connection:
    made = module.Cache(most)
    get = made.get
    return Connection(lambda key: get(key)[0], made.set, delete=made.delete)


MAKERS: Final[dict[str, Callable[[], Driver]]] = {
    OURS: lambda: MappingDriver(OURS, lambda pool: pool.cache("bench", codec="bytes")),
    STORE: lambda: LimpetDriver(STORE),
    "race-dict": lambda: MappingDriver("race-dict", lambda pool: pool.dict("bench", codec="bytes")),
    "redis": RedisDriver,
    "diskcache": DiskcacheDriver,
    "manager": ManagerDriver,
    "theine": lambda: LocalDriver("theine", _theine),
    "cachetools": lambda: LocalDriver("cachetools", _lru),
    "cachebox": lambda: LocalDriver("cachebox", _lru),
}
"""Everything that is measured, by name."""


def drivers(names: tuple[str, ...]) -> list[Driver]:
    """The drivers with these names, and `pool.cache`, with which they are compared."""
    unknown = [name for name in names if name not in MAKERS]
    if unknown:
        raise ParameterError(f"there is no peer {unknown[0]!r}; there are {', '.join(MAKERS)}")
    return [MAKERS[name]() for name in dict.fromkeys((OURS, *names))]
