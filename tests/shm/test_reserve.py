"""The reserve of full memory: for updates, for channels, and for late clients."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

import limpet
from limpet.fault.matrix.fault_profile import profile_of

VALUE = bytes(range(200))


def fill(store: Any, prefix: bytes = b"key") -> list[bytes]:
    """Insert keys until there is no memory; the keys."""
    keys: list[bytes] = []
    with contextlib.suppress(limpet.StoreFull):
        while True:
            key = b"%s %d" % (prefix, len(keys))
            store.insert(key, VALUE)
            keys.append(key)
    return keys


def full(pools: Any, kind: str) -> tuple[limpet.Pool, Any]:
    nodes = profile_of(kind).matrix_nodes
    pool = pools(nodes=nodes, node_size="1MiB", block_size="16KiB", clients=16)
    return pool, pool.store(kind, name="full", **profile_of(kind).parameters, capacity=10_000)


@pytest.mark.exhaustive_in_pure("fills a pool again and again")
@pytest.mark.parametrize("kind", ["race", "rtx-race", "fusee", "swarm", "rtx-sherman"])
def test_full_pool_takes_updates_again_and_again(pools: Any, kind: str) -> None:
    pool, store = full(pools, kind)
    keys = fill(store)
    some = keys[:: max(1, len(keys) // 40)]
    for turn in range(3):
        for key in some:
            store.update(key, VALUE[::-1] if turn % 2 else VALUE)
            store.put(key, VALUE)
        added = fill(store, b"new %d" % turn)
        assert len(added) < len(keys) // 10
    assert all(store.get(key) == VALUE for key in keys)
    assert pool.audit()["leaked"] == 0


def test_full_pool_takes_updates_of_a_client_that_comes_late(pools: Any) -> None:
    pool, store = full(pools, "race")
    keys = fill(store)
    with limpet.open(pool.url) as late:
        other = late.store("race", name="full")
        for key in keys[::50]:
            other.update(key, VALUE[::-1])
            other.put(key, VALUE[:50])
        assert len(fill(other, b"new")) < len(keys) // 10


@pytest.mark.exhaustive_in_pure("fills a pool again and again")
def test_full_pool_takes_channels(pools: Any) -> None:
    pool = pools(nodes=1, node_size="4MiB", block_size="16KiB", clients=16)
    store = pool.store("race", name="full")
    fill(store)
    pool.lock("lock").acquire()
    jobs = pool.queue("jobs", 16)
    jobs.put("job")
    assert jobs.get() == "job"
    pool.counter("count").add(1)
    pool.lock("lock").release()
    with pytest.raises(limpet.StoreFull):
        pool.store("race", name="another", capacity=10_000)


def test_clients_with_many_sizes_do_not_take_a_node_block_by_block(pools: Any) -> None:
    """Each has a block for each size on each node, unless it looks how much of them it uses."""
    pool = pools(nodes=1, node_size="2MiB", block_size="16KiB", clients=20)
    store = pool.store("race", name="s", capacity=100)
    clients = [limpet.open(pool.url) for _ in range(12)]
    for number, client in enumerate(clients):
        theirs = client.store("race", name="s")
        for size in range(60, 1_900, 40):
            theirs.put(b"%d" % number, bytes(size))
    owned = sum(found["blocks"] for found in pool.clients())
    assert store.get(b"3") == bytes(1_900 - 40 + (60 - 20) % 40)
    assert owned < 0.95 * pool.blocks.count
    for client in clients:
        client.close()
