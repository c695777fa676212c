"""Transactions that read much get through beside a writer, in a bounded number of attempts."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any, Final

import pytest
from kit.stores import sound
from kit.variants import vary

import limpet
from limpet.shm.endpoint.fabric import BUILD
from limpet.stores.core.status import NO_MEMORY
from limpet.stores.rtx.cut import Cut
from limpet.stores.rtx.transaction import OPTIMISTIC, Transaction

TREE: Final = "rtx-sherman"
SMALL: Final = {"node_size": 384, "key_size": 16, "value_size": 32}
KEYS: Final = 300 if BUILD == "compiled" else 160
EVERY: Final = 5
"""Reads of the transaction, between two updates of the writer."""


@pytest.fixture
def store(pools: Any) -> Any:
    """A tree of many leaves, on two memory nodes."""
    made = pools(nodes=2).store(TREE, name="s", **SMALL)
    made.put_many({b"k%04d" % number: bytes(30) for number in range(KEYS)})
    return made


@pytest.fixture
def writer(pools: Any, store: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A client that updates a key after every few reads of a transaction; how often it has."""
    other = pools.again(store.pool).store(TREE, name="s")
    rng, count, usual = random.Random(7), [0, 0], Transaction._read

    def read(transaction: Transaction, *given: Any) -> Any:
        found = usual(transaction, *given)
        count[1] += 1
        if count[1] % EVERY == 0:
            count[0] += 1
            other.update(b"k%04d" % rng.randrange(KEYS), b"%030d" % count[0])
        return found

    vary(monkeypatch, Transaction, "_read", read)
    return count


def leaves(store: Any) -> int:
    found = []
    for number in range(KEYS):
        store.get(b"k%04d" % number)
        found.append(int(store.leaf.at))
    return len(set(found))


def attempts_of(pool: limpet.Pool, work: Callable[[Any], object]) -> int:
    count = [0]

    def counted(tx: limpet.Transaction) -> object:
        count[0] += 1
        return work(tx)

    pool.transaction(counted)
    return count[0]


def test_scan_of_many_leaves_takes_few_attempts(store: Any, writer: list[int]) -> None:
    found: list[list[tuple[bytes, bytes]]] = []
    count = leaves(store)
    assert count > 3 * EVERY
    attempts = attempts_of(store.pool, lambda tx: found.append(tx.scan(store)))
    assert OPTIMISTIC < attempts <= OPTIMISTIC + math.log2(count) + 2
    assert len(found[-1]) == KEYS
    sound(store)


@pytest.mark.parametrize("shuffled", [False, True])
def test_gets_of_many_keys_take_no_more_attempts_than_keys(
    store: Any, writer: list[int], shuffled: bool
) -> None:
    keys = [b"k%04d" % number for number in range(KEYS)]
    if shuffled:
        random.Random(3).shuffle(keys)
    attempts = attempts_of(store.pool, lambda tx: [tx.get(store, key) for key in keys])
    assert OPTIMISTIC < attempts <= OPTIMISTIC + KEYS
    sound(store)


def test_attempts_that_get_further_do_not_count(store: Any, writer: list[int]) -> None:
    keys = [b"k%04d" % number for number in range(KEYS)]
    random.Random(3).shuffle(keys)

    def work(tx: limpet.Transaction) -> None:
        for key in keys:
            tx.get(store, key)

    store.pool.transaction(work, attempts=OPTIMISTIC + 1)


def test_what_is_read_is_of_one_moment(
    store: Any, pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two counters in different leaves are changed together, between any two reads."""
    other = pools.again(store.pool)
    again = other.store(TREE, name="s")
    pair = b"k0000", b"k%04d" % (KEYS - 1)
    count, usual = [0], Transaction._read
    busy = [False]

    def both(tx: limpet.Transaction) -> None:
        for key in pair:
            tx.put(again, key, b"%d" % count[0])

    def read(transaction: Transaction, *given: Any) -> Any:
        found = usual(transaction, *given)
        if not busy[0]:
            busy[0] = True
            count[0] += 1
            other.transaction(both)
            busy[0] = False
        return found

    vary(monkeypatch, Transaction, "_read", read)
    cuts = _counted_cuts(monkeypatch)
    seen: list[tuple[Any, Any]] = []

    def work(tx: limpet.Transaction) -> None:
        pairs = dict(tx.scan(store))
        seen.append((pairs[pair[0]], pairs[pair[1]]))
        seen.append((tx.get(store, pair[0]), pairs[pair[0]]))

    for _ in range(5):
        store.pool.transaction(work)
    assert all(first == second for first, second in seen)
    assert cuts[0]


def _counted_cuts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    count, usual = [0], Cut.take

    def take(cut: Cut) -> Any:
        count[0] += 1
        return usual(cut)

    monkeypatch.setattr(Cut, "take", take)
    return count


def test_values_out_of_nodes_are_read_at_the_cut(store: Any, writer: list[int]) -> None:
    for number in range(0, KEYS, 7):
        store.put(b"k%04d" % number, b"long" * 100)
    found: list[list[tuple[bytes, bytes]]] = []
    attempts_of(store.pool, lambda tx: found.append(tx.scan(store, b"k0050")))
    assert len(found[-1]) == KEYS - 50
    sound(store)


def test_without_memory_for_a_log_it_goes_on_as_before(
    store: Any, writer: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(cut: Cut, sparing: int = 0) -> None:
        raise limpet.StoreFull("test")

    monkeypatch.setattr(Cut, "take", lambda cut: (NO_MEMORY, {}))
    monkeypatch.setattr(Cut, "replenish", full)
    with pytest.raises(limpet.TransactionConflict):
        store.pool.transaction(lambda tx: tx.scan(store), attempts=OPTIMISTIC + 2)


def test_small_transactions_lock_nothing_to_read(
    store: Any, pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their conflicts are met when they commit, where a cut would be of no use."""
    other = pools.again(store.pool).store(TREE, name="s")
    cuts = _counted_cuts(monkeypatch)
    left = [3 * OPTIMISTIC]

    def work(tx: limpet.Transaction) -> None:
        tx.put(store, b"k0001", tx.get(store, b"k0001") + b"1")
        if left[0]:
            left[0] -= 1
            other.put(b"k0001", b"")

    store.pool.transaction(work)
    assert cuts == [0]
