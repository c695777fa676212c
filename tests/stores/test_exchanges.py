"""A fabric waits as often as there are round trips: `race` and `fusee` are written in phases."""

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


# ---- channels, and the cache --------------------------------------------------------------------


def spent(pool: Any, work: Callable[[], object]) -> tuple[int, int]:
    """Round trips and exchanges of the foreground."""
    before = pool.endpoint.counters()
    work()
    after = pool.endpoint.counters()
    return tuple(after[name] - before[name] for name in ("round_trips", "exchanges"))


@pytest.mark.parametrize("nodes", [1, 3])
def test_exchanges_of_a_queue_are_its_round_trips(pools: Any, nodes: int) -> None:
    """Also when the ring has gone around, and of a consumer that never calls `task_done`."""
    pool = pools(nodes=nodes)
    queue = pool.queue("q", maxsize=7, codec="bytes")
    for number in range(20):
        queue.put(b"element %02d" % number)
        queue.get()
    for _ in range(7):
        assert spent(pool, lambda: queue.put(b"element 00")) == (3, 3)
    for _ in range(7):
        assert spent(pool, queue.get) == (3, 3)
        assert spent(pool, queue.task_done) == (1, 1)


def test_exchanges_of_a_queue_with_acks_are_its_round_trips(pools: Any) -> None:
    pool = pools(nodes=3)
    jobs = pool.queue("q", acks=True, codec="bytes")
    for _ in range(3):
        jobs.put(b"job")
        jobs.get().ack()
    for _ in range(5):
        assert spent(pool, lambda: jobs.put(b"job")) == (3, 3)
    assert spent(pool, jobs.qsize) == (1, 1)
    held: list[Any] = []
    for _ in range(5):
        assert spent(pool, lambda: held.append(jobs.get())) == (3, 3)
    for delivery in held:
        assert spent(pool, delivery.ack) == (2, 2)


def test_exchanges_of_a_ring_are_its_round_trips(pools: Any) -> None:
    pool = pools(nodes=3)
    ring = pool.ring("r", size=4096, codec="bytes")
    ring.subscribe()
    for _ in range(300):
        ring.send(b"message 00")
        ring.receive()
    found = []
    for _ in range(50):  # of which one may be the last for which the readers had left room
        found.append(spent(pool, lambda: ring.send(b"message 00")))
        assert spent(pool, ring.receive) == (1, 1)
    assert found.count((1, 1)) >= 49
    assert all(trips == exchanges for trips, exchanges in found)


def test_exchanges_of_words_are_their_round_trips(pools: Any) -> None:
    pool = pools(nodes=3)
    lock, counter, event = pool.lock("l"), pool.counter("c"), pool.event("e")
    words, bytes_ = pool.array("a", 9), pool.array("b", 9, "uint8")
    condition = pool.condition("cond")
    for work, trips in (
        (lock.acquire, 1),
        (lock.release, 0),
        (counter.add, 1),
        (lambda: counter.value, 1),
        (lambda: counter.set(5), 1),
        (event.set, 2),
        (event.set, 1),
        (event.wait, 1),
        (event.is_set, 1),
        (event.clear, 2),
        (lambda: words[3], 1),
        (lambda: words.swap(3, 4), 1),
        (lambda: words.add(3), 1),
        (lambda: words.compare_and_swap(3, 5, 6), 1),
        (lambda: bytes_[3], 1),
        (lambda: bytes_.add(3), 2),
        (condition.acquire, 1),
        (condition.notify, 1),
        (condition.release, 0),
    ):
        assert spent(pool, work) == (trips, trips)


def test_exchanges_of_a_cache_are_its_round_trips(pools: Any) -> None:
    pool = pools(nodes=2)
    cache = pool.cache("c", max_bytes="1MiB", codec="bytes")
    warm_keys = [b"warm-%d" % number for number in range(24)]
    for key in warm_keys:
        for _ in range(3):
            cache.set(key, b"value")
            cache.get(key)
    for key in warm_keys:
        assert spent(pool, lambda key=key: cache.get(key)) == (2, 2)
        assert spent(pool, lambda key=key: cache.set(key, b"other")) == (3, 3)
        assert spent(pool, lambda key=key: cache.touch(key, 5000)) == (3, 3)
        assert spent(pool, lambda key=key: cache.add(key, b"v")) == (2, 2)
        assert spent(pool, lambda key=key: cache.delete(key)) == (3, 3)
    assert spent(pool, lambda: cache.get(b"warm-0")) == (1, 1)
    assert spent(pool, lambda: cache.set(b"warm-0", b"value")) == (3, 3)
