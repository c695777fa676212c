"""The memory of a transaction's log has no used bit (stores/transactions/log.py): no client gets it
before the transaction is over."""

from __future__ import annotations

import contextlib
from typing import Any, Final

import pytest
from kit.mutants.race import ReusesAtOnce
from kit.variants import vary

import limpet
from limpet.shm import pool as shm_pool
from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.stores.transactions.commit import Commit
from limpet.stores.transactions.entry_log import log_size
from limpet.stores.transactions.layout import LATE_SIZE, TX_LOG
from limpet.stores.transactions.parts import part_size

OLD: Final = b"before"
NEW: Final = b"after!"
KEYS: Final = (b"a", b"b")
LOG: Final = (log_size(1) + 15 & ~15) + part_size(len(KEYS))
"""Bytes of the log of a transaction that writes both keys, with its part: more than a pair has, so
it is in a block of its own class, in which nothing else is."""


def fill(store: Any) -> dict[bytes, bytes]:
    """Put pairs as large as the log until there is no memory; those that were put."""
    found: dict[bytes, bytes] = {}
    with contextlib.suppress(limpet.StoreFull):
        for number in range(100_000):
            key = b"%05d" % number
            value = b"%05d" % number * (LOG // 5 - 9)
            store.put(key, value)
            found[key] = value
    return found


@pytest.mark.parametrize("waits", [True, False])
def test_a_client_in_need_does_not_get_the_log_of_one_that_stands_still(
    pools: Any, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """The block of the log looks empty, so another client takes it from the owner. It waits for the
    owner's operation; a variant that does not overwrites the log."""
    pool = pools(nodes=1, node_size="1MiB", fence="wait", lease=0.02)
    store = pool.store("rtx-race", name="test")
    for key in KEYS:
        store.put(key, OLD)

    def change(tx: limpet.Transaction) -> None:
        for key in KEYS:
            tx.put(store, key, tx.get(store, key)[::-1])

    for _ in range(2):  # so that there is a block for logs
        pool.transaction(change)
    if not waits:
        monkeypatch.setattr(shm_pool, "Grace", ReusesAtOnce)
    other = pools.again(pool).store("rtx-race", name="test")
    lock_all = Commit._lock_all
    logs: list[bytes] = []
    filled: list[dict[bytes, bytes]] = []

    def lock_after_others(commit: Commit, state: int) -> Any:
        endpoint = pool.endpoint
        log = endpoint.load(pool.client.slot + TX_LOG)
        assert LOG <= LATE_SIZE
        assert not pool.heap.used(log)
        logs.append(endpoint.read(log & ADDRESS_MASK, LOG))
        filled.append(fill(other))
        logs.append(endpoint.read(log & ADDRESS_MASK, LOG))
        if not waits:
            raise limpet.StoreFull
        return lock_all(commit, state)

    vary(monkeypatch, Commit, "_lock_all", lock_after_others)
    with contextlib.nullcontext() if waits else pytest.raises(limpet.StoreFull):
        pool.transaction(change)
    assert len(filled[0]) > 100
    assert (logs[0] == logs[1]) == waits
    if waits:
        assert store.get_many(list(KEYS)) == [OLD[::-1], OLD[::-1]]
        assert {key: other.get(key) for key in filled[0]} == filled[0]
        store.check()
        assert not pool.audit()["leaked"]


@pytest.mark.exhaustive_in_pure("the same lines as compiled, and much slower")
@pytest.mark.parametrize("kind", ["rtx-race", "rtx-sherman"])
def test_memory_of_logs_comes_back(pools: Any, kind: str) -> None:
    """Far more transactions than logs for which there is memory."""
    pool = pools(nodes=2, node_size="4MiB")
    store = pool.store(kind, name="test")
    keys = [b"%02d" % number for number in range(16)]
    for key in keys:
        store.put(key, b"0")

    def add(tx: limpet.Transaction) -> None:
        for key in keys:
            tx.put(store, key, b"%d" % (int(tx.get(store, key)) + 1))

    for _ in range(4000):
        pool.transaction(add)
    assert store.get_many(keys) == [b"4000"] * len(keys)
    audit = pool.audit()
    assert not audit["leaked"]
    assert audit["free"] > audit["reachable"]
