"""A fabric waits as often as there are round trips: these kinds are written in phases."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import pytest

import limpet
from limpet.shm.endpoint.fabric import hash64

NODES = 4
SCOPES = ("background", "control")


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


BASELINES = {"raw": (1, 4, 1, 2), "pdpm": (2, 2, 4, 3), "clover": (1, 2, 2, 2)}
"""Round trips of a get, an insert, an update and a delete."""


@pytest.mark.parametrize("kind", BASELINES)
def test_exchanges_of_baselines_are_their_round_trips(pools: Any, kind: str) -> None:
    store = pools(nodes=2).store(kind, name="test", capacity=300)
    get, insert, update, delete = BASELINES[kind]
    for number in range(24):
        store.put(b"warm-%d" % number, b"0")
        store.get(b"warm-%d" % number)
    for number in range(1, 4):
        key = b"warm-%d" % number
        assert costs(store, lambda key=key: store.get(key)) == (get, get)
        assert costs(store, lambda key=key: store.update(key, b"1")) == (update, update)
        assert costs(store, lambda key=key: store.delete(key)) == (delete, delete)
    assert costs(store, lambda: store.insert(b"new", b"1")) == (insert, insert)


def test_exchanges_of_loco_are_its_round_trips(pools: Any) -> None:
    store = pools(nodes=2).store("loco", name="test", capacity=300)
    for number in range(60):
        store.put(b"warm-%d" % number, b"0")
    assert costs(store, lambda: store.get(b"warm-1")) == (1, 1)
    assert costs(store, lambda: store.get(b"none")) == (1, 1)
    assert costs(store, lambda: store.insert(b"k", b"1")) == (3, 3)
    assert costs(store, lambda: store.update(b"k", b"2")) == (2, 2)
    assert costs(store, lambda: store.put(b"k", b"3")) == (2, 2)
    assert costs(store, lambda: store.get_many([b"warm-%d" % n for n in range(32)])) == (1, 1)
    assert costs(store, lambda: store.delete(b"k")) == (2, 2)


def test_a_client_of_loco_reads_what_others_announced_in_one_exchange(pools: Any) -> None:
    """Of the inserts and deletes of others, those under the lock of its key, and no others."""
    pool = pools(nodes=1)
    store = pool.store("loco", name="test", capacity=300, locks=1, tracker=64)
    late = pools.again(pool).store("loco", name="test")
    assert late.get(b"k") is None
    for number in range(15):
        store.insert(b"%d" % number, b"1")
    before = late.stats()["background"]["exchanges"]
    assert late.get(b"14") == b"1"
    assert late.stats()["background"]["exchanges"] - before == 1


@pytest.mark.parametrize("sums", [False, True])
def test_exchanges_of_rcuckoo_are_its_round_trips(pools: Any, sums: bool) -> None:
    """Also of a batch with missing keys and extents, of a swap, and of an insert with a path."""
    store = pools(nodes=2).store(
        "rcuckoo", name="test", capacity=300, rows_per_lock=1, sums=sums
    )  # fmt: skip
    keys = [b"warm-%d" % number for number in range(60)]
    for number, key in enumerate(keys):
        store.put(key, bytes(20 + 80 * (number % 3)))
    assert costs(store, lambda: store.get(keys[0])) == (1, 1)
    # rows that were copied are looked at again only then
    assert costs(store, lambda: store.get(b"none")) == (1 + sums, 1 + sums)
    assert costs(store, lambda: store.insert(b"k", b"1")) == (2, 2)
    assert costs(store, lambda: store.update(b"k", b"2")) == (2, 2)
    assert costs(store, lambda: store.swap(b"k", b"2", b"3")) == (2, 2)
    assert costs(store, lambda: store.put(b"k", bytes(100))) == (2, 2)
    assert costs(store, lambda: store.get(b"k")) == (3, 3)
    assert costs(store, lambda: store.get(b"k")) == (2, 2)
    assert costs(store, lambda: store.swap(b"k", bytes(100), b"4")) == (3, 3)
    assert costs(store, lambda: store.delete(b"k")) == (2, 2)
    assert costs(store, lambda: store.get_many([*keys[:30], b"none"])) == (2, 2)
    assert costs(store, lambda: store.get_many(keys[:30:3])) == (1, 1)
    assert costs(store, lambda: store.put_many([(key, b"1") for key in keys[:30]])) == (60, 60)
    trips, exchanges = costs(store, lambda: fill(store))
    assert trips == exchanges
    store.check()


def test_messages_of_rcuckoo_with_sums_are_those_of_the_paper(pools: Any) -> None:
    """A read of each row, or one of both if they are adjacent; and then of an update: the journal
    in three writes, the entry, the header, and a CAS that takes the lock and one that gives it."""
    store = pools().store("rcuckoo", name="test", capacity=300, sums=True, rows_per_lock=1024)
    places, adjacent = store.lookup.places, set()
    names = ("reads", "writes", "cas", "exchanges")
    for number in range(60):
        key = b"%d" % number
        store.put(key, b"0" * 20)
        places.place(hash64(key))
        reads = 2 - (abs(places.first - places.second) == 1)
        adjacent.add(reads)
        found = []
        for work in (store.get, lambda key: store.update(key, b"1" * 20)):
            before = store.stats()
            work(key)
            after = store.stats()
            found.append(tuple(after[name] - before[name] for name in names))
        assert found == [(reads, 0, 0, 1), (reads, 5, 2, 2)]
    assert adjacent == {1, 2}


def fill(store: Any) -> None:
    with contextlib.suppress(limpet.StoreFull):
        for number in itertools.count():
            store.insert(b"%d" % number, b"v")


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


@pytest.mark.parametrize(
    ("index_replicas", "replicas"), [(2, 2), (3, 3), (4, 4), (2, 1), (3, 2), (2, 3)]
)
@pytest.mark.parametrize("kind", ["fusee", "fusee-cr", "fusee-nc"])
def test_exchanges_of_fusee_are_its_round_trips(
    pools: Any, kind: str, index_replicas: int, replicas: int
) -> None:
    store = warm(
        pools(nodes=NODES).store(
            kind, name="test", capacity=300, replicas=replicas, index_replicas=index_replicas
        )
    )
    more = index_replicas - 2 if kind == "fusee-cr" else 0
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


@pytest.mark.parametrize(
    ("kind", "replicas", "messages", "words"),
    [
        ("race", (), (0, 0, 1, 1), (3, 2, 4, 3)),
        ("rtx-race", (), (0, 0, 1, 1), (5, 2, 6, 5)),
        ("fusee", (), (0, 0, 2, 2), (4, 4, 5, 4)),
        # without backups, an insert leaves nothing in the cache
        ("fusee", (1, 1), (0, 0, 1, 1), (4, 5, 5, 4)),
        ("fusee", (1, 2), (0, 0, 2, 2), (4, 5, 5, 4)),
        ("fusee", (2, 1), (0, 0, 1, 1), (4, 4, 5, 4)),
        ("fusee", (3, 2), (0, 0, 2, 2), (4, 4, 5, 4)),
    ],
)
def test_the_background_of_an_operation_is_one_message_to_each_node(
    pools: Any, kind: str, replicas: Any, messages: tuple[int, ...], words: tuple[int, ...]
) -> None:
    """Of an insert, a get, an update, a delete. Exchanges of the control segment are counted apart:
    the two looks of a get, or the pin; then the pressure, HOLDS, and what the operation leaves."""
    more = dict(zip(("index_replicas", "replicas"), replicas, strict=False))
    store = warm(pools(nodes=max((2, *replicas))).store(kind, name="test", capacity=300, **more))
    store.put(b"k", b"v")
    store.delete(b"k")
    found = []
    for work in (
        lambda: store.insert(b"k", b"w"),
        lambda: store.get(b"k"),
        lambda: store.update(b"k", b"w"),
        lambda: store.delete(b"k"),
    ):
        before = store.stats()
        work()
        after = store.stats()
        found.append(tuple(after[of]["exchanges"] - before[of]["exchanges"] for of in SCOPES))
    assert tuple(zip(*found, strict=True)) == (messages, words)


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


@pytest.mark.exhaustive_in_pure("the same lines, and slower")
@pytest.mark.exhaustive("as race", quick=["race", "race-locks"])
@pytest.mark.parametrize("kind", ["race", "rtx-race", "race-locks"])
def test_split_moves_many_pairs_in_a_phase(pools: Any, kind: str) -> None:
    """`race-locks` moves one after another, as RACE's own paper has it: two exchanges for each."""
    store = pools(nodes=1).store(kind, name="test", groups=16)
    number = 0
    while store.growth()["depth"][1] == store.parameters.depth:
        before = store.stats()["background"]["exchanges"]
        store.insert(b"%d" % number, b"v")
        number += 1
    exchanges = store.stats()["background"]["exchanges"] - before
    slots = store.growth()["slots"] / store.growth()["subtables"]
    assert exchanges > slots if kind == "race-locks" else exchanges < slots / 4


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
        assert spent(pool, queue.qsize) == (2, 2)
        assert spent(pool, queue.get) == (3, 3)
        assert spent(pool, queue.task_done) == (1, 1)
    other = pool.queue("other", codec="bytes")
    other.put(b"element")
    assert spent(pool, lambda: other.join(0)) == (6, 6)
    other.get()
    other.task_done()
    assert spent(pool, lambda: other.join(0)) == (6, 6)


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
    found = [spent(pool, lambda: held.append(jobs.get())) for _ in range(5)]
    # A get that comes long after the last one looks whether other consumers live.
    assert min(found) == (3, 3)
    assert all(trips == exchanges for trips, exchanges in found)
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
    striped = pool.array("s", 9, stripes=3)
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
        (lambda: words[1:7:2], 1),
        (lambda: words[[8, 0, 3]], 1),
        (lambda: words.__setitem__(slice(1, 7, 2), 4), 1),
        (lambda: bytes_[3:8], 1),
        (lambda: bytes_.__setitem__(slice(3, 8), 4), 1),
        (lambda: striped[...], 1),
        (lambda: striped.__setitem__(..., 4), 1),
        (lambda: bytes_[3], 1),
        (lambda: bytes_.add(3), 2),
        (condition.acquire, 1),
        (condition.notify, 2),
        (condition.release, 0),
    ):
        assert spent(pool, work) == (trips, trips)


@pytest.mark.parametrize("size", [20, 5000])
def test_exchanges_of_a_deque_and_a_topic_are_their_round_trips(pools: Any, size: int) -> None:
    pool = pools(nodes=3)
    deque = pool.deque("d", maxlen=3, codec="bytes")
    topic = pool.topic("t", size=3, codec="bytes")
    reader = topic.subscribe()
    data = bytes(size)
    for _ in range(9):  # all cells, and objects for them
        deque.append(data)
        topic.publish(data)
        reader.get()
    deque.pop()
    large = size > 1000  # and so its object is freed, or looked at
    for work, trips in (
        (lambda: deque.append(data), 4 + large),
        (lambda: deque.append(data), 4 + 2 * large),
        (lambda: deque[1], 2 + large),
        (lambda: iter(deque), 3 + 3 * large),  # in two pieces of the circle
        (lambda: len(deque), 1),
        (deque.popleft, 4 + 2 * large),
        (deque.pop, 4 + 2 * large),
        (deque.clear, 3 + large),
        (lambda: topic.publish(data), 4 + 2 * large),
        (reader.get, 1 + 2 * large),
        (topic.published, 1),
    ):
        again = trips + 3  # of one that needs memory
        assert spent(pool, work) in ((trips, trips), (again, again))


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
        assert spent(pool, lambda key=key: cache.touch(key, 5)) == (3, 3)
        assert spent(pool, lambda key=key: cache.add(key, b"v")) == (2, 2)
        assert spent(pool, lambda key=key: cache.delete(key)) == (3, 3)
    assert spent(pool, lambda: cache.get(b"warm-0")) == (1, 1)
    assert spent(pool, lambda: cache.set(b"warm-0", b"value")) == (3, 3)
