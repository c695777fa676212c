"""`pool.drop`: everything is given back, whoever uses the store meanwhile or is killed doing it."""

from __future__ import annotations

from typing import Any

import pytest

import limpet
from limpet.shm.directory import DROPPING, EMPTYING, VOID
from limpet.stores.registry import KINDS, UNPROVED, UNRECOVERED

ALL = sorted({**KINDS, **UNRECOVERED, **UNPROVED})
PAIRS = {b"key %d" % n: bytes([n]) * (n * 37 % 700) for n in range(60)}
LARGE = {"loco": {"value_size": 64}}


def fill(pool: limpet.Pool, kind: str, name: str = "s") -> Any:
    store = pool.store(kind, name=name, capacity=200)
    for key, value in PAIRS.items():
        store.put(key, value[:64] if kind in ("loco",) else value)
    return store


def in_use(pool: limpet.Pool) -> tuple[int, int]:
    """Bytes that stores have: objects, and regions of whole blocks."""
    found = pool.audit()
    assert found["leaked"] == found["held"] == 0
    blocks = sum(count for node in range(3) for _, count, _ in pool.regions.extents(node))
    return found["reachable"], blocks


@pytest.mark.parametrize("kind", ALL)
def test_dropped_store_gives_everything_back(pools: Any, kind: str) -> None:
    pool = pools(nodes=3, node_size="8MiB")
    other = fill(pool, "race", "other")
    before = in_use(pool)
    store = fill(pool, kind)
    assert in_use(pool) != before
    pool.drop("s")
    assert in_use(pool) == before
    assert [entry["name"] for entry in pool.stores()] == ["other"]
    for work in (
        lambda: store.get(b"key 1"),
        lambda: store.put(b"key 1", b"v"),
        lambda: store.delete(b"key 1"),
        lambda: list(store),
    ):
        with pytest.raises(limpet.StoreDropped, match="'s' was dropped"):
            work()
    again = fill(pool, kind)
    assert len(again) == len(PAIRS)
    again.check()
    assert other.get(b"key 9") == PAIRS[b"key 9"]
    with pytest.raises(limpet.StoreDropped):
        store.get(b"key 1")
