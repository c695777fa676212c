"""Costs of transactions: what touches one key takes no log, and n reads take O(n) looks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

import limpet
from limpet.shm.endpoint.slots import CHANGES
from limpet.stores.transactions.layout import TX_LOG

KINDS: Final = ("rtx-race", "rtx-sherman")
OLD: Final = b"o" * 20
NEW: Final = b"n" * 20


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, pools: Any) -> Any:
    made = pools(nodes=2).store(request.param, name="test")
    made.put_many({b"%04d" % number: OLD for number in range(500)})
    for number in range(500):
        made.get(b"%04d" % number)
    return made


def cost(store: Any, call: Callable[[], Any]) -> dict[str, int]:
    """The sums of the verbs of a call."""
    before = store.stats()
    call()
    after = store.stats()
    return {name: after[name] - before[name] for name in ("round_trips", "cas", "writes", "reads")}


def update(store: Any, key: bytes) -> Callable[[], Any]:
    def work(tx: Any) -> None:
        assert tx.get(store, key) is not None
        tx.put(store, key, NEW)

    return lambda: store.pool.transaction(work)


# ---- one object ----------------------------------------------------------------------------------


def test_transaction_of_one_key_writes_no_log(store: Any) -> None:
    pool = store.pool
    update(store, b"0001")()
    log = pool.endpoint.load(pool.client.slot + TX_LOG)
    found = cost(store, update(store, b"0002"))
    assert pool.endpoint.load(pool.client.slot + TX_LOG) == log
    assert store.get(b"0002") == NEW
    # The slot's CAS; or lock, pointer and lock.
    assert found["cas"] == (1 if store.kind == "rtx-race" else 3)
    assert found["round_trips"] <= (4 if store.kind == "rtx-race" else 6)
    store.check()
    assert not pool.audit()["leaked"]


def test_delete_of_one_key_writes_no_log(store: Any) -> None:
    pool = store.pool
    log = pool.endpoint.load(pool.client.slot + TX_LOG)
    pool.transaction(lambda tx: tx.delete(store, b"0003"))
    assert store.get(b"0003") is None
    if store.kind == "rtx-race":
        assert pool.endpoint.load(pool.client.slot + TX_LOG) == log
    store.check()
    assert not pool.audit()["leaked"]


def test_what_another_client_writes_to_the_one_key_is_a_conflict(store: Any, pools: Any) -> None:
    other = pools.again(store.pool).store(store.kind, name="test")
    calls: list[bytes] = []

    def work(tx: Any) -> None:
        calls.append(tx.get(store, b"0004"))
        if len(calls) == 1:
            other.put(b"0004", b"other")
        tx.put(store, b"0004", calls[-1] + b"!")

    store.pool.transaction(work)
    assert calls == [OLD, b"other"]
    assert store.get(b"0004") == b"other!"


def test_key_that_was_read_besides_is_validated(store: Any, pools: Any) -> None:
    other = pools.again(store.pool).store(store.kind, name="test")
    calls: list[bytes] = []

    def work(tx: Any) -> None:
        calls.append(tx.get(store, b"0005"))
        tx.get(store, b"0400")
        if len(calls) == 1:
            other.put(b"0005", b"other")
        tx.put(store, b"0400", calls[-1])

    store.pool.transaction(work)
    assert calls == [OLD, b"other"]
    assert store.get(b"0400") == b"other"


# ---- many reads ----------------------------------------------------------------------------------


def reads(store: Any, count: int) -> Callable[[], Any]:
    keys = [b"%04d" % number for number in range(count)]
    return lambda: store.pool.transaction(lambda tx: [tx.get(store, key) for key in keys])


def looks(store: Any, count: int) -> int:
    """Loads of memory by a transaction that reads so many keys."""
    endpoint = store.pool.endpoint
    before = endpoint.counters()["reads"]
    reads(store, count)()
    return int(endpoint.counters()["reads"] - before)


def test_many_reads_take_looks_in_proportion(store: Any) -> None:
    few, many = looks(store, 50), looks(store, 500)
    assert many <= 11 * few


def test_put_beside_many_reads_is_seen(store: Any, pools: Any) -> None:
    """By a client that has changed nothing before."""
    other = pools.again(store.pool).store(store.kind, name="test")
    attempts: list[list[bytes]] = []

    def work(tx: Any) -> list[bytes]:
        found = [tx.get(store, b"%04d" % number) for number in range(100)]
        attempts.append(found)
        if len(attempts) == 1:
            other.put(b"0000", NEW)
            other.put(b"0450", NEW)
        return [*found, tx.get(store, b"0450")]

    assert store.pool.transaction(work) == [NEW, *[OLD] * 99, NEW]
    assert len(attempts) == 2


def test_next_client_of_a_slot_counts_on(store: Any, pools: Any) -> None:
    """A client that leaves and comes again, and changes as much as before, is no other time."""
    url = store.pool.url
    counts = set()
    for _ in range(3):
        with limpet.open(url) as pool:
            again = pool.store(store.kind, name="test")
            again.put(b"0007", NEW)
            counts.add(pool.endpoint.load(pool.client.slot + CHANGES))
    assert len(counts) == 3
    assert all(count % 2 == 0 for count in counts)
