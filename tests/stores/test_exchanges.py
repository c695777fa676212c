"""A fabric waits as often as there are round trips: these kinds are written in phases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

NODES = 4


def warm(store: Any) -> Any:
    """Have memory at hand on every node, and every subtable known."""
    for number in range(24):
        for size in (20, 120, 9000):
            store.put(b"warm-%d" % number, bytes(size))
            store.delete(b"warm-%d" % number)
    return store


def costs(store: Any, work: Callable[[], object]) -> tuple[int, int]:
    """Round trips and exchanges."""
    before = store.stats()
    work()
    after = store.stats()
    found = tuple(int(after[name] - before[name]) for name in ("round_trips", "exchanges"))
    return found[0], found[1]


@pytest.mark.parametrize("value", [b"value", b"v" * 8000])
def test_exchanges_of_race_are_its_round_trips(pools: Any, value: bytes) -> None:
    store = warm(pools(nodes=2).store("race", name="test", capacity=300))
    large = len(value) > 4096
    assert costs(store, lambda: store.get(b"k")) == (1, 1)
    assert costs(store, lambda: store.insert(b"k", value)) == (3, 3)
    assert costs(store, lambda: store.get(b"k")) == (2 + large, 2 + large)
    assert costs(store, lambda: store.get_slice(b"k", 1, 3)) == (2 + large, 2 + large)
    assert costs(store, lambda: store.update(b"k", value)) == (3, 3)
    assert costs(store, lambda: store.put(b"k", value)) == (3, 3)
    assert costs(store, lambda: store.delete(b"k")) == (3, 3)


TREES = {"rtx-sherman": (2, 4, 3), "sherman": (1, 2, 2), "dtx-sherman": (1, 4, 4)}
"""Round trips of a get, of an insert, and of a change of a key that was met in its leaf."""


@pytest.mark.parametrize("kind", TREES)
def test_exchanges_of_trees_are_their_round_trips(pools: Any, kind: str) -> None:
    store = pools(nodes=2).store(kind, name="test", capacity=600)
    get, insert, change = TREES[kind]
    for number in range(200):
        store.put(b"key %03d" % number, bytes(20))
    for number in range(200):
        store.update(b"key %03d" % number, b"1")

    def is_cost(work: Callable[[], object], count: int, before: Any = None) -> None:
        found = []
        for _ in range(4):  # one that needs memory has more
            if before is not None:
                before()
            if kind == "rtx-sherman":
                store.trees.sure = 0  # it guesses no pointer, which would save a round trip
            found.append(costs(store, work))
        assert min(found) == (count, count)
        assert all(trips == exchanges for trips, exchanges in found)

    def remove() -> None:
        if b"new" in store:
            store.delete(b"new")

    is_cost(lambda: store.get(b"key 100"), get)
    is_cost(lambda: store.get(b"none"), get)
    is_cost(lambda: store.update(b"key 100", b"2"), change)
    is_cost(lambda: store.put(b"key 100", bytes(20)), change)
    is_cost(lambda: store.insert(b"new", b"4"), insert, remove)
    is_cost(
        lambda: store.delete(b"new"), change, lambda: store.put(b"new", b"5") or store.get(b"new")
    )
    # a split, a merge, extents, a scan, a batch
    for work in (
        lambda: [store.put(b"new %03d" % number, bytes(60)) for number in range(200)],
        lambda: [store.delete(b"new %03d" % number) for number in range(200)],
        lambda: store.put(b"key 1", bytes(5000)),
        lambda: store.get(b"key 1"),
        lambda: store.delete(b"key 1"),
        lambda: list(store.scan()),
        lambda: store.put_many([(b"run %03d" % number, bytes(60)) for number in range(200)]),
        lambda: store.get_many([b"run %03d" % number for number in range(200)]),
    ):
        trips, exchanges = costs(store, work)
        assert trips == exchanges
    store.check()


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("kind", ["rtx-race", "rtx-sherman"])
def test_exchanges_of_transactions_are_their_round_trips(pools: Any, kind: str, nodes: int) -> None:
    """Two for each read, and then: log, locks, decision, and installing with unlocking; one more to
    validate what was only read."""
    pool = pools(nodes=nodes)
    store = pool.store(kind, name="test", capacity=600)
    keys = [b"key %03d" % number for number in range(200)]
    store.put_many([(key, bytes(20)) for key in keys])
    pool.transaction(lambda tx: [tx.put(store, key, b"0") for key in keys[:150:10]])
    for key in keys:
        store.update(key, b"1")

    def transact(work: Callable[[Any], object]) -> tuple[int, int]:
        found = []
        for _ in range(4):  # one that needs memory has more
            if kind == "rtx-sherman":
                store.trees.sure = 0
            found.append(costs(store, lambda: pool.transaction(work)))
        assert all(trips == exchanges for trips, exchanges in found)
        return min(found)

    def transfer(tx: Any) -> None:
        values = [tx.get(store, key) for key in (keys[3], keys[150])]
        tx.put(store, keys[3], values[1])
        tx.put(store, keys[150], values[0])

    def decide(tx: Any) -> None:
        tx.get(store, keys[100])
        transfer(tx)

    def increment(tx: Any) -> None:
        tx.put(store, keys[20], b"%d" % (int(tx.get(store, keys[20])) + 1))

    assert transact(lambda tx: tx.get(store, keys[7])) == (2, 2)
    assert transact(transfer) == (4 + 4, 4 + 4)
    assert transact(decide) == (6 + 5, 6 + 5)
    one = 1 if kind == "rtx-race" else 2
    assert transact(increment) == (2 + one, 2 + one)

    def many(tx: Any) -> None:
        for number in range(40):
            tx.put(store, b"new %02d" % number, bytes(60))
            if tx.get(store, keys[number * 4]) is not None:
                tx.delete(store, keys[number * 4])
        tx.put(store, b"large", bytes(9000))

    transact(many)
    store.check()


@pytest.mark.parametrize("replicas", [2, 3, 4])
@pytest.mark.parametrize("kind", ["fusee", "fusee-cr", "fusee-nc"])
def test_exchanges_of_fusee_are_its_round_trips(pools: Any, kind: str, replicas: int) -> None:
    store = warm(pools(nodes=NODES).store(kind, name="test", capacity=300, replicas=replicas))
    more = replicas - 2 if kind == "fusee-cr" else 0
    searches = 2 if kind == "fusee-nc" else 1
    insert, change = 4 + more, 3 + searches + more
    assert costs(store, lambda: store.get(b"k")) == (1, 1)
    assert costs(store, lambda: store.insert(b"k", b"1")) == (insert, insert)
    assert costs(store, lambda: store.get(b"k")) == (searches, searches)
    assert costs(store, lambda: store.update(b"k", b"2")) == (change, change)
    assert costs(store, lambda: store.put(b"k", b"3")) == (change, change)
    assert costs(store, lambda: store.delete(b"k")) == (change, change)


def test_a_handle_that_knows_nothing_reads_the_entry_first(pools: Any) -> None:
    store = warm(pools(nodes=NODES).store("race", name="test", capacity=300))
    store.put(b"k", b"v")
    store.forget()
    assert costs(store, lambda: store.get(b"k")) == (3, 3)


def test_words_of_the_control_segment_are_counted_apart(pools: Any) -> None:
    """On a fabric: the two looks of a glance, or the pin; of a write also the pressure, the used
    bits and HOLDS."""
    store = warm(pools(nodes=2).store("race", name="test", capacity=300))
    store.put(b"k", b"v")
    found = []
    for work in (lambda: store.get(b"k"), lambda: store.update(b"k", b"w")):
        before = store.stats()["background"]["exchanges"]
        work()
        found.append(store.stats()["background"]["exchanges"] - before)
    assert found == [2, 5]


@pytest.mark.parametrize("kind", ["race", "rtx-race", "race-locks"])
def test_a_batch_is_one_exchange_for_each_phase(pools: Any, kind: str) -> None:
    """Whatever the number of keys and nodes; a batch has 22 new keys, or 11 that are there."""
    store = warm(pools(nodes=2).store(kind, name="test", groups=512))
    store.put_many([(b"old %02d" % number, b"0" * 99) for number in range(64)])
    keys = [b"key %02d" % number for number in range(64)]
    assert costs(store, lambda: store.get_many(keys)) == (2, 2)
    assert costs(store, lambda: store.put_many([(key, b"1" * 99) for key in keys])) == (9, 9)
    assert costs(store, lambda: store.get_many(keys)) == (4, 4)
    assert costs(store, lambda: store.put_many([(key, b"2" * 99) for key in keys])) == (18, 18)
    assert store.get_many(keys) == [b"2" * 99] * 64
    assert costs(store, lambda: store.delete_many(keys)) == (9, 9)
    assert costs(store, lambda: store.delete_many(keys)) == (3, 3)


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("kind", ["fusee", "fusee-cr", "fusee-nc"])
def test_rounds_of_a_batch_share_their_exchanges(pools: Any, kind: str, replicas: int) -> None:
    store = warm(pools(nodes=NODES).store(kind, name="test", groups=128, replicas=replicas))
    store.put_many([(b"old %02d" % number, b"0" * 99) for number in range(64)])
    keys = [b"key %02d" % number for number in range(63)]
    more = replicas - 2 if kind == "fusee-cr" else 0
    assert costs(store, lambda: store.get_many(keys)) == (2, 2)
    # a batch has 19 new keys, or 9 that are there
    inserts, updates = 4 * (5 + more), 7 * (6 + more)
    assert costs(store, lambda: store.put_many([(key, b"1" * 99) for key in keys])) == (
        inserts, inserts,
    )  # fmt: skip
    assert costs(store, lambda: store.get_many(keys)) == (4, 4)
    assert costs(store, lambda: store.put_many([(key, b"2" * 99) for key in keys])) == (
        updates, updates,
    )  # fmt: skip
    assert store.get_many(keys) == [b"2" * 99] * 63
