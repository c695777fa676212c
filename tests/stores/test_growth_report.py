"""`pool.growth`: how far hash tables have grown, and the splits under way."""

from __future__ import annotations

import itertools
import os
import time
from typing import Any

import pytest
from kit.endpoints import WatchedPool

KINDS = ("race", "rtx-race", "fusee", "swarm")


@pytest.mark.parametrize("kind", KINDS)
def test_growth_says_how_full_a_table_is(pools: Any, kind: str) -> None:
    pool = pools(nodes=3)
    pool.store("loco", name="fixed")
    pool.store("rtx-sherman", name="tree").put(b"k", b"v")
    assert pool.growth() == []
    store = pool.store(kind, name="s", capacity=8, groups=2)
    (row,) = pool.growth()
    assert (row["name"], row["kind"], row["subtables"], row["pairs"]) == ("s", kind, 0, 0)
    for number in range(300):
        store.insert(b"%d" % number, b"v")
    (row,) = pool.growth()
    assert row["pairs"] == 300
    assert row["slots"] == 42 * row["subtables"]
    assert 0.4 < row["pairs"] / row["slots"] < 0.95
    least, greatest = row["depth"]
    assert store.parameters.depth <= least <= greatest
    assert greatest > store.parameters.depth
    assert row["splits"] == []


@pytest.mark.parametrize("kind", KINDS)
def test_growth_shows_the_split_of_another_client(pools: Any, kind: str) -> None:
    """Looks between the steps of splits: who is at it, and how far it is, which goes up."""
    pool = pools(nodes=3)
    pool.store(kind, name="s", capacity=8, groups=2)
    watched = pools.keep(WatchedPool.open(pool.url))
    store = watched.store(kind, name="s")
    seen: list[dict[str, Any]] = []
    verbs = itertools.count()

    def look(verb: str, address: int) -> None:
        if next(verbs) % 7 == 0:
            (row,) = pool.growth()
            seen.extend(row["splits"])

    for number in range(120):
        key = b"%d" % number
        subtables = pool.growth()[0]["subtables"]
        watched.endpoint.before = look if number > 40 and len(seen) < 12 else None
        store.insert(key, b"v")
        watched.endpoint.before = None
        assert pool.growth()[0]["subtables"] >= subtables
    assert len(seen) > 3
    assert {split["halves"] for split in seen} <= {0, 1, 2}
    assert all(split["frozen"] <= split["slots"] == 42 for split in seen)
    assert any(split["frozen"] for split in seen)
    if kind == "rtx-race":
        # Halves are linked as the transaction ends: it has the lock meanwhile.
        assert all(split["pids"] == [os.getpid()] for split in seen if split["since_ns"])
        assert any(abs(split["since_ns"] - time.time_ns()) < 60e9 for split in seen)
    else:
        assert all(split["since_ns"] is None for split in seen)
        assert any(split["pids"] == [os.getpid()] for split in seen)
    assert pool.growth()[0]["splits"] == []
