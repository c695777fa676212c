"""`pool.growth`: how far hash tables have grown, and the splits under way."""

from __future__ import annotations

import itertools
import json
import os
import time
from typing import Any

import pytest
from click.testing import CliRunner
from kit.endpoints import WatchedPool

from limpet.__main__ import main

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


@pytest.mark.exhaustive_in_pure("the same lines, and slower")
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


@pytest.mark.parametrize("kind", ["race", "rtx-race"])
def test_a_lost_store_does_not_hide_the_others(pools: Any, kind: str) -> None:
    """The whole report was an error that named no store."""
    pool = pools(nodes=2)
    for number in range(4):
        pool.store(kind, name=f"s{number}", capacity=8).put(b"k", b"v")
    pool.store("fusee", name="whole", replicas=2, capacity=8).put(b"k", b"v")
    pool.fail_node(1)
    pool.replace_node(1)
    rows = {row["name"]: row for row in pool.growth()}
    assert set(rows) == {"s0", "s1", "s2", "s3", "whole"}
    assert rows["whole"]["pairs"] == 1
    lost = {name for name, row in rows.items() if "lost" in row}
    assert lost
    assert all("memory node 1" in rows[name]["lost"] for name in lost)
    counted = {row["name"]: row for row in pool.stores(count=True)}
    assert counted["whole"]["keys"] == 1
    for name in lost:
        assert counted[name]["keys"] is None
        assert "memory node 1" in counted[name]["lost"]
    shown = CliRunner().invoke(main, ["inspect", pool.url])
    assert shown.exit_code == 1
    assert "whole" in shown.output
    for name in lost:
        assert f"store {name}: NodeFailed: memory node 1" in shown.output
    report = json.loads(CliRunner().invoke(main, ["inspect", pool.url, "--json"]).stdout)
    assert {row["name"] for row in report["growth"]} == set(rows)
