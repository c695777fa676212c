"""Hit ratios of the cache's policies, on streams of requests, beside exact policies and peers.

A request is a get, and a set if that was a miss. The streams, from one seed:

    zipf 0.8, zipf 1.0   keys by Zipf's law with this exponent
    scan                 zipf 0.9, and after every 6,000 requests one pass over 3,000 new keys
    loop                 zipf 0.9, and among them, three in ten, a loop over 3,000 keys
    shift                zipf 1.0, whose popular keys become others six times

`limpet clock` and `limpet fifo` are `pool.cache`; the others are of one process. `exact LRU` and
`exact SIEVE` (Zhang et al., NSDI '24) keep the list that a shared cache does without. cachetools,
theine and cachebox are measured where they are installed.
"""

from __future__ import annotations

import importlib
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

import limpet

STREAMS: Final = ("zipf 0.8", "zipf 1.0", "scan", "loop", "shift")
KEYS: Final = 20_000
SCAN: Final = 3000
BETWEEN: Final = 6000
SHIFTS: Final = 6
FRESH: Final = 1_000_000
"""Keys from here on are those of scans and loops."""
NODE_SIZE: Final = "64MiB"

Cached = Callable[[int], bool]
"""Makes one request; whether it was a hit."""


class Ratio(NamedTuple):
    """The share of hits of a policy on a stream, in a cache of so many items."""

    stream: str
    items: int
    policy: str
    ratio: float


def stream(name: str, count: int, seed: int) -> list[int]:
    """The keys of so many requests."""
    rng = np.random.default_rng(seed)
    if name.startswith("zipf"):
        return _zipf(rng, count, float(name.split()[1])).tolist()  # type: ignore[no-any-return]
    if name == "shift":
        parts = np.array_split(_zipf(rng, count, 1.0), SHIFTS)
        moved = [(part + number * KEYS // SHIFTS) % KEYS for number, part in enumerate(parts)]
        return np.concatenate(moved).tolist()  # type: ignore[no-any-return]
    keys = _zipf(rng, count, 0.9)
    if name == "loop":
        looping = FRESH + np.arange(count) % SCAN
        return np.where(rng.random(count) < 0.7, keys, looping).tolist()  # type: ignore[no-any-return]
    found: list[int] = []
    for start in range(0, count, BETWEEN):
        found += keys[start : start + BETWEEN].tolist()
        first = FRESH + start // BETWEEN * SCAN
        found += range(first, first + SCAN)
    return found[:count]


def _zipf(rng: np.random.Generator, count: int, exponent: float) -> Any:
    shares = 1 / np.arange(1, KEYS + 1) ** exponent
    return rng.choice(KEYS, size=count, p=shares / shares.sum())


# ---- policies ------------------------------------------------------------------------------------


def _mapping(made: Any) -> Cached:
    """Requests on something that is like a dict."""

    def request(key: int) -> bool:
        if made.get(key) is not None:
            return True
        made[key] = 1
        return False

    return request


def _lru(items: int) -> Cached:
    there: OrderedDict[int, None] = OrderedDict()

    def request(key: int) -> bool:
        if key in there:
            there.move_to_end(key)
            return True
        if len(there) >= items:
            there.popitem(last=False)
        there[key] = None
        return False

    return request


class _Sieve:
    """SIEVE, with its queue as a list of which the newest is last, and places of the dead in it."""

    def __init__(self, items: int) -> None:
        self.items = items
        self.queue: list[int | None] = []
        self.visited: dict[int, bool] = {}
        self.hand = 0

    def __call__(self, key: int) -> bool:
        if key in self.visited:
            self.visited[key] = True
            return True
        if len(self.visited) >= self.items:
            self._evict()
        self.visited[key] = False
        self.queue.append(key)
        return False

    def _evict(self) -> None:
        while True:
            if self.hand >= len(self.queue):
                self.queue = [key for key in self.queue if key is not None]
                self.hand = 0
            key = self.queue[self.hand]
            if key is not None and not self.visited[key]:
                del self.visited[key]
                self.queue[self.hand] = None
                self.hand += 1
                return
            if key is not None:
                self.visited[key] = False
            self.hand += 1


def _peers(items: int) -> Iterator[tuple[str, Cached]]:
    """Policies of packages that are installed."""
    for package, names in (("cachetools", ("LRUCache", "LFUCache")), ("cachebox", ("LFUCache",))):
        try:
            module = importlib.import_module(package)
        except ImportError:
            continue
        for name in names:
            yield f"{package} {name}", _mapping(getattr(module, name)(items))
    try:
        theine = importlib.import_module("theine")
    except ImportError:
        return
    made = theine.Cache(items)

    def request(key: int) -> bool:
        if made.get(key)[1]:
            return True
        made.set(key, 1)
        return False

    yield "theine", request


def policies(pool: limpet.Pool, items: int) -> Iterator[tuple[str, Cached]]:
    """All of them, each new, for so many items."""
    for policy in ("clock", "fifo"):
        name = f"{policy} {items} {len(pool.stores())}"
        yield f"limpet {policy}", _mapping(pool.cache(name, max_items=items, policy=policy))
    yield "exact LRU", _lru(items)
    yield "exact SIEVE", _Sieve(items)
    yield from _peers(items)


def run(streams: Sequence[str], sizes: Sequence[int], count: int, seed: int) -> Iterator[Ratio]:
    """The hit ratio of each policy on each stream, with each number of items."""
    url = f"shm://limpet-hit-ratios-{os.getpid()}"
    with limpet.create(url, node_size=NODE_SIZE) as pool:
        try:
            for name in streams:
                keys = stream(name, count, seed)
                for items in sizes:
                    for policy, request in policies(pool, items):
                        hits = sum(map(request, keys))
                        yield Ratio(name, items, policy, hits / count)
        finally:
            limpet.destroy(url)
