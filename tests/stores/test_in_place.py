"""Memory that stores read in place is lost, or changed by others, during the read."""

from __future__ import annotations

import itertools
import os
from typing import Any

import pytest

import limpet

compiled = pytest.mark.skipif(
    limpet.build != "compiled", reason="a pure build copies what it reads"
)
KEYS = [b"%03d" % number for number in range(60)]


def lose(pool: limpet.Pool, node: int) -> None:
    os.truncate(f"/dev/shm/limpet.{pool.url.removeprefix('shm://')}.{node}", 0)


@compiled
@pytest.mark.parametrize(("look", "arguments"), [("value_here", ()), ("range_here", (None,))])
def test_a_leaf_that_is_lost_between_reading_and_looking_is_a_failed_node(
    pools: Any, look: str, arguments: tuple[Any, ...]
) -> None:
    pool = pools(nodes=2)
    store = pool.store("rtx-sherman", name="s")
    store.put_many({key: key for key in KEYS})
    key = next(key for key in KEYS if store.trees.tree_of(key) == 1)
    other = next(key for key in KEYS if store.trees.tree_of(key) == 0)
    store.client.enter()
    try:
        store.trees.find_in(store.leaf, 1, key)
        lose(pool, 1)
        with pytest.raises(limpet.NodeFailed):
            getattr(store.tx_keys, look)(*arguments)
    finally:
        store.client.leave()
    for keys in ([key], [other, key]):
        with pytest.raises(limpet.NodeFailed):
            store.get_many(keys)
    assert store.get_many([other]) == [other]
    with pytest.raises(limpet.NodeFailed):
        list(store.scan())


@compiled
@pytest.mark.parametrize(
    ("look", "arguments"), [("key_is", (KEYS[0],)), ("key", ()), ("value", ()), ("intact", ())]
)
def test_a_pair_that_is_lost_between_reading_and_looking_is_a_failed_node(
    pools: Any, look: str, arguments: tuple[Any, ...]
) -> None:
    pool = pools(nodes=2)
    store = pool.store("race", name="r")
    store.put_many({key: key for key in KEYS})
    reference = next(int(r) for r in store.references() if int(r) >> 40 & 0xFF == 1)
    store.client.enter()
    try:
        store.objects.load(reference)
        lose(pool, 1)
        with pytest.raises(limpet.NodeFailed):
            getattr(store.objects, look)(*arguments)
    finally:
        store.client.leave()


def test_a_scan_reads_few_leaves_that_nobody_asks_for(pools: Any) -> None:
    store = pools(nodes=1).store("rtx-sherman", name="s")
    keys = [b"%05d" % number for number in range(2000)]
    store.put_many({key: key * 8 for key in keys})
    size = store.parameters.node_size
    before = store.stats()["bytes_read"]
    assert [key for key, _ in store.scan()] == keys
    needed = (store.stats()["bytes_read"] - before) / size / 20
    for start in range(0, 1800, 100):
        before = store.stats()["bytes_read"]
        found = [key for key, _ in itertools.islice(store.scan(keys[start]), 100)]
        assert found == keys[start : start + 100]
        # one that is cut by each end of the range, and three that were read with its last one
        assert (store.stats()["bytes_read"] - before) / size < needed + 4


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_scan_and_get_many_show_what_others_change_meanwhile(pools: Any, nodes: int) -> None:
    pool = pools(nodes=nodes)
    store = pool.store("rtx-sherman", name="s")
    other = pools.again(pool).store("rtx-sherman", name="s")
    keys = [b"%05d" % number for number in range(0, 600, 2)]
    store.put_many({key: key * 8 for key in keys})
    assert store.get_many([*keys, b"none"]) == [key * 8 for key in keys] + [None]
    other.put_many({key: b"%s!" % key for key in keys[::3]})
    for key in keys[1::3]:
        other.delete(key)
    expected = {key: b"%s!" % key for key in keys[::3]} | {key: key * 8 for key in keys[2::3]}
    assert store.get_many(keys) == [expected.get(key) for key in keys]
    assert list(store.scan()) == sorted(expected.items())
    scan = store.scan(keys[10], keys[250])
    seen = [next(scan)]
    other.put_many({b"%05d" % number: b"new" for number in range(1, 600, 2)})
    seen += scan
    assert seen == sorted(seen)
    old = [pair for pair in seen if pair[1] != b"new"]
    assert old == [pair for pair in sorted(expected.items()) if keys[10] <= pair[0] < keys[250]]
    store.check()
