"""Hit ratios of the cache's policies, on streams of requests, beside exact LRU and peers.

A request is a get, and a set if that was a miss. The streams, from one seed:

    zipf 0.8, zipf 1.0   keys by Zipf's law with this exponent
    scan                 zipf 0.9, and after every 6,000 requests one pass over 3,000 new keys
    loop                 zipf 0.9, and among them, three in ten, a loop over 3,000 keys
    shift                zipf 1.0, whose popular keys become others six times

`limpet clock` and `limpet fifo` are `pool.cache`; the others are of one process: `exact LRU`, whose
list is in the order of reads, and cachetools, cachebox and theine (W-TinyLFU) where they are
installed. All are bounded in items.
"""

from __future__ import annotations

import importlib
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
NODE_SIZE: Final = 64 << 20
EACH: Final = 1024
"""Bytes of the pool for an item, at least."""

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


def _exact_lru(items: int) -> Cached:
    there: OrderedDict[int, None] = OrderedDict()

    def request(key: int) -> bool:
        hit = key in there
        if not hit and len(there) >= items:
            there.popitem(last=False)
        there[key] = None
        there.move_to_end(key)
        return hit

    return request


def _peers(items: int) -> Iterator[tuple[str, Cached]]:
    """Policies of packages that are installed."""
    for package in ("cachetools", "cachebox"):
        try:
            module = importlib.import_module(package)
        except ImportError:
            continue
        yield f"{package} LFU", _mapping(module.LFUCache(items))
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
        yield f"limpet {policy}", _mapping(pool.cache(policy, max_items=items, policy=policy))
        pool.drop(policy)
    yield "exact LRU", _exact_lru(items)
    yield from _peers(items)


def run(streams: Mapping[str, Iterable[int]], sizes: Sequence[int]) -> Iterator[Ratio]:
    """The hit ratio of each policy on each stream of keys, with each number of items."""
    url = f"shm://limpet-hit-ratios-{os.getpid()}"
    with limpet.create(url, node_size=max(NODE_SIZE, EACH * max(sizes))) as pool:
        try:
            for name, keys in streams.items():
                for items in sizes:
                    for policy, request in policies(pool, items):
                        hits = np.fromiter(map(request, keys), bool)
                        yield Ratio(name, items, policy, float(hits.mean()))
        finally:
            limpet.destroy(url)
