"""Full stores take entries again when the pool gets more nodes, while other processes write."""

from __future__ import annotations

import contextlib
import itertools
import time
from pathlib import Path
from typing import Any

import pytest
from kit.processes import children, exit_code
from kit.stores import sound

import limpet

SIZE = 12_000
MORE = 10
REPLICAS = {"race": 1, "rtx-sherman": 1, "fusee": 2, "swarm": 3}


def value(key: bytes) -> bytes:
    return key * (SIZE // len(key))


def fill(store: Any, prefix: bytes) -> list[bytes]:
    """The keys that had room."""
    keys: list[bytes] = []
    with contextlib.suppress(limpet.StoreFull):
        for number in itertools.count():
            key = b"%s-%d" % (prefix, number)
            store.insert(key, value(key))
            keys.append(key)
    return keys


def there(store: Any, keys: list[bytes]) -> None:
    assert store.get_many(keys) == [value(key) for key in keys]
    assert len(store) == len(keys)


def test_channels_and_snapshots_take_added_nodes(pools: Any, tmp_path: Path) -> None:
    pool = pools(nodes=1, node_size="1MiB")
    with limpet.open(pool.url) as other:
        mine, theirs = pool.queue("q", maxsize=64), other.queue("q", maxsize=64)
        store = pool.store("race", name="s")
        keys = fill(store, b"first")
        with contextlib.suppress(limpet.StoreFull):
            for number in itertools.count():
                mine.put(b"%d" % number * 3000, timeout=0)
        sent = mine.qsize()
        assert sent < 40
        pool.add_node()
        for number in range(sent, 40):
            theirs.put(b"%d" % number * 3000, timeout=0)
        later = [b"more-%d" % number for number in range(MORE)]
        other.store("race", name="s").put_many((key, value(key)) for key in later)
        pool.snapshot(tmp_path / "snapshot")
        assert [mine.get(timeout=0) for _ in range(40)] == [b"%d" % n * 3000 for n in range(40)]
    pool.recover()
    assert pool.audit()["leaked"] == 0
    restored = pools.keep(limpet.restore(tmp_path / "snapshot", pools.url()))
    there(restored.store("race", name="s"), keys + later)
    assert restored.queue("q", maxsize=64).qsize() == 40


@pytest.mark.parametrize("kind", sorted(REPLICAS))
def test_a_full_store_takes_entries_again(pools: Any, kind: str) -> None:
    replicas = REPLICAS[kind]
    given = {"replicas": replicas} if replicas > 1 else {}
    pool = pools(nodes=max(2, replicas), node_size="1MiB")
    store = pool.store(kind, name="s", **given)
    keys = fill(store, b"first")

    def insert(prefix: bytes) -> None:
        with limpet.open(pool.url) as mine:
            kv = mine.store(kind, name="s")
            done = 0
            while done < MORE:
                key = b"%s-%d" % (prefix, done)
                try:
                    kv.insert(key, value(key))
                    done += 1
                except limpet.StoreFull:
                    time.sleep(0.002)
                assert kv.get(keys[done]) == value(keys[done])

    with children([lambda: insert(b"a"), lambda: insert(b"b")]) as started:
        while pool.nodes() and len(pool.clients()) < 3:
            time.sleep(0.002)
        time.sleep(0.02)
        pool.add_node(count=replicas)
        for pid, _ in started:
            assert exit_code(pid) == 0
    keys += [b"%s-%d" % (prefix, number) for prefix in (b"a", b"b") for number in range(MORE)]
    keys += fill(store, b"last")
    for handle in (store, limpet.open(pool.url).store(kind, name="s")):
        there(handle, keys)
        sound(handle)
    if replicas > 1:
        pool.fail_node(replicas)
        there(store, keys)
        pool.replace_node(replicas)
        there(store, keys)
        pool.fail_node(replicas + 1)
        there(store, keys)
        pool.replace_node(replicas + 1)
    else:
        pool.fail_node(2)
        with pytest.raises(limpet.NodeFailed):
            there(store, keys)
        lost = 0
        for key in keys:
            try:
                found = store.get(key)
            except limpet.NodeFailed as error:
                found = error.node
            lost += found == 2
            assert found in (value(key), 2)
        assert 0 < lost < len(keys)
        assert pool.audit()["leaked"] == 0
        with pytest.raises(limpet.ParameterError, match="still link"):
            pool.replace_node(2)
        pool.drop("s")
        assert pool.replace_node(2)["node"] == 2
    pool.recover()
    assert pool.audit()["leaked"] == 0


def test_what_only_a_lost_node_linked_to_is_no_leak(pools: Any) -> None:
    """Links to added nodes are on other nodes."""
    pool = pools(nodes=1, node_size="1MiB")
    store = pool.store("race", name="s")
    fill(store, b"first")
    pool.add_node(count=2)
    store.put_many((b"more-%d" % number, bytes(SIZE)) for number in range(MORE))
    pool.fail_node(0)
    assert pool.audit()["leaked"] == 0
    pool.replace_node(0)
    assert pool.audit()["leaked"] == 0


def test_a_full_store_names_the_nodes_that_had_no_room(pools: Any) -> None:
    pool = pools(nodes=2, node_size="1MiB")
    store = pool.store("fusee", name="s", replicas=2)
    pool.add_node()
    for told in ("no added node takes one of 2 replicas", "nor have nodes 3, 4, which take"):
        pairs = ((b"%s %d" % (told.encode(), number), bytes(SIZE)) for number in itertools.count())
        with pytest.raises(limpet.StoreFull, match=told) as raised:
            store.put_many(pairs)
        assert "limpet add-node --count 2" in str(raised.value)
        if told.startswith("no "):
            pool.add_node(count=2)
