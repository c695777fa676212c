"""A cache is within its bounds at all times, and a kill anywhere leaves it so.

`cache_state.py` counts the linked entries, and compares them with the bounds and the ledger.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from kit.mutants.cache import Forgetful, Hasty, Late, account, with_ledger
from kit.processes import Child, dies_at, end, fork, gather
from kit.stores import sound

import limpet
from limpet.fault.check.cache_state import bounds_fault, excess_fault, linked
from limpet.shm.endpoint.hooked import HookedEndpoint
from limpet.stores.cache.layout import BANKS, ITEMS_SHIFT, MINE
from limpet.stores.cache.ledger import Ledger
from limpet.stores.cache.validity import Terms
from limpet.stores.pool import Pool

COMPILED = limpet.build == "compiled"
ITEM = b"v" * 40


def within(store: Any) -> None:
    """The linked entries are within the bounds, and within the ledger's counts."""
    assert bounds_fault(store) == ""


def small(pools: Any, **parameters: Any) -> Any:
    """A store with few entries, most of them there."""
    store = pools(clients=16).store("cache", name="test", **{"max_items": 20, **parameters})
    for number in range(store.parameters.max_items):
        store.put(b"%d" % number, ITEM)
    return store


def churn(store: Any, entries: int) -> None:
    """Put so many new entries."""
    for number in range(entries):
        store.put(b"churn %d" % number, ITEM)


def renew(store: Any) -> None:
    """Go round until four laps have ended, which takes back what kills have left."""
    assert "do not end" not in excess_fault(store)


def test_full_cache_evicts_and_raises_nothing(pools: Any) -> None:
    cache = pools().cache("test", max_items=50)
    count = 1000 if COMPILED else 200
    for number in range(count):
        cache[number] = number
        assert cache[number] == number
    assert len(cache) == cache.stats()["items"] == 50
    assert cache.stats()["evictions"] == count - 50
    sound(cache.store)


@pytest.mark.parametrize("first", [True, False], ids=["first write of a handle", "a later one"])
def test_full_cache_makes_no_large_object_before_it_has_evicted(pools: Any, first: bool) -> None:
    pool = pools()
    store = pool.store("cache", name="test", max_items=1000, max_bytes=40_000)
    for number in range(100):
        store.put(b"%d" % number, bytes(500))
    if first:
        pool = Pool.open(pool.url)
        store = pool.store("cache", name="test")
    enough = 1 << 40
    pool.endpoint.fuse = enough
    store.put(b"large", bytes(39_000))
    steps = enough - pool.endpoint.fuse
    pool.endpoint.fuse = 0
    within(store)
    assert steps < 2 * 39_000 // 8
    pool.close()


def test_bytes_are_bounded_with_values_of_all_sizes(pools: Any) -> None:
    pool = pools(node_size="16MiB")
    store = pool.store("cache", name="test", max_bytes=2 << 20)
    rng = random.Random(7)
    for number in range(400 if COMPILED else 60):
        store.put(b"%d" % number, bytes(int(2 ** rng.uniform(0, 20.9))))
        within(store)
    assert store.counts()["evictions"] > 0
    sound(store)


def test_pool_that_is_full_makes_the_cache_smaller(pools: Any) -> None:
    """Its memory is with the values of a cache that may have more than there is."""
    pool = pools(node_size="4MiB")
    size = pool.layout.block_count * pool.layout.block_size
    cache = pool.cache("test", max_bytes=size, codec="bytes")
    rng = random.Random(8)
    for number in range(600 if COMPILED else 80):
        key, value = b"%d" % number, bytes(int(2 ** rng.uniform(4, 19)))
        cache[key] = value
        assert cache[key] == value
    assert cache.stats()["evictions"] > 0
    sound(cache.store)


def fill(put: Callable[[bytes, bytes], object], size: int) -> None:
    """Put values of this size until there is no memory; they are there until then."""
    for number in range(10_000):
        put(b"%d" % number, bytes(size))


def test_memory_of_others_is_not_the_caches(pools: Any) -> None:
    pool = pools(node_size="2MiB")
    other = pool.store("race", name="other")
    cache = pool.cache("test", codec="bytes")
    cache[b"small"] = b"value"
    with pytest.raises(limpet.StoreFull):
        fill(other.put, 4000)
    with pytest.raises(limpet.StoreFull):
        cache[b"large"] = bytes(200_000)
    cache[b"small"] = b"other"
    assert cache[b"small"] == b"other"
    sound(cache.store)


def test_processes_keep_the_bounds_together(pools: Any) -> None:
    pool = pools(clients=16, node_size="8MiB")
    pool.store("cache", name="test", max_items=300, max_bytes=60_000)
    rounds = 3000 if COMPILED else 100

    def use(seed: int) -> Callable[[], None]:
        def work() -> None:
            rng = random.Random(seed)
            with limpet.open(pool.url) as mine:
                store = mine.store("cache", name="test")
                for _ in range(rounds):
                    key = b"%d" % int(rng.paretovariate(0.7))
                    if store.get(key) is None:
                        store.put(key, bytes(rng.randrange(400)))
                    if rng.random() < 0.05:
                        store.put(key, b"again")

        return work

    gather(*[use(seed) for seed in range(4)])
    store = pool.store("cache", name="test")
    within(store)
    assert linked(store) == store.sizes()
    sound(store)


def steps_of(work: Callable[[Any], object], pools: Any, **parameters: Any) -> int:
    """Kill a client at each step of `work` on a small cache; how many steps there were."""
    step = 0
    while True:
        step += 1
        store = small(pools, **parameters)
        died = dies_at(store.pool, step, lambda store=store: work(store))
        within(store)
        sound(store)
        within(store)
        churn(store, 30)
        within(store)
        renew(store)
        assert linked(store) == store.sizes(), f"step {step}"
        sound(store)
        pools.destroy()
        if not died:
            return step


OPERATIONS: dict[str, Callable[[Any], object]] = {
    "insert": lambda store: store.put(b"new", ITEM),
    "update": lambda store: store.put(b"3", b"other"),
    "delete": lambda store: store.delete(b"3"),
    "take": lambda store: store.take(b"3"),
    "touch": lambda store: store.touch(b"3", store.usual),
    "invalidate": lambda store: store.invalidate(0),
    "flight": lambda store: store.finish_flight(
        b"new", ITEM, Terms(flight=store.begin_flight(b"new", 0, 1000)[3])
    ),
    "rounds": lambda store: [store.within(store.hand.step, 0, False, True) for _ in range(6)],
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.exhaustive("every operation", quick=["insert", "rounds"])
@pytest.mark.exhaustive_in_pure("hundreds of steps", quick=[])
def test_kill_at_any_step_leaves_a_bounded_cache(pools: Any, name: str) -> None:
    assert steps_of(OPERATIONS[name], pools) > 3


def test_ledger_that_counts_late_is_caught(pools: Any) -> None:
    store = small(pools)
    with_ledger(store, Late)
    churn(store, 40)
    with pytest.raises(AssertionError):
        within(store)


def test_hand_that_does_not_account_is_caught(pools: Any) -> None:
    store = small(pools)
    with_ledger(store, Forgetful)
    renew(store)
    with pytest.raises(AssertionError):
        within(store)


@pytest.mark.parametrize(("kind", "holds"), [(Ledger, True), (Hasty, False)])
def test_lap_does_not_end_before_a_late_client(pools: Any, kind: Any, holds: bool) -> None:
    """A client that has read the lap stands still until it links; laps go by meanwhile."""
    store = small(pools)
    with_ledger(store, kind)
    other = pools.again(store.pool).store("cache", name="test")
    lap = other.ledger.lap()
    other.client.enter()
    try:
        store.delete(b"3")
        assert account(other, lap, 10, 0)
        for _ in range(50):
            store.within(store.hand.step, 0, False, True)
        moved = store.ledger.lap() - lap
    finally:
        other.client.leave()
    counted = store.sizes()[0]
    assert (moved <= 1) == holds
    assert (counted == linked(store)[0] + 1) == holds  # the late one's object still counts


class MeanwhileEndpoint(HookedEndpoint, verbs=("load",)):
    """Lets another client work just before one of its own loads of a bank."""

    def __init__(self) -> None:
        super().__init__()
        self.banks = range(0)
        self.loads = 0
        self.meanwhile: Callable[[], object] = lambda: None

    def on_verb(self, verb: str, addr: int, words: int) -> int:
        if addr in self.banks:
            self.loads -= 1
            if not self.loads:
                self.meanwhile()
        return words


class MeanwhilePool(Pool):
    endpoint_class = MeanwhileEndpoint
    endpoint: MeanwhileEndpoint


@pytest.mark.parametrize("load", [1, 2, 3, 4])
def test_reader_of_the_banks_misses_no_entry_that_the_hand_moves(pools: Any, load: int) -> None:
    """The hand begins a new lap, and goes all around, between two loads of a client that adds."""
    store = small(pools)
    late = pools.keep(MeanwhilePool.open(store.pool.url)).store("cache", name="test")
    late.client.enter()
    try:
        lap, endpoint = late.ledger.lap(), late.pool.endpoint
        first = late.ledger.words + BANKS
        endpoint.banks, endpoint.loads = range(first, first + 64), load
        endpoint.meanwhile = lambda: [
            store.within(store.hand.step, 0, False, True) for _ in range(40)
        ]
        assert late.ledger.total(lap) >> ITEMS_SHIFT >= store.parameters.max_items
        assert store.ledger.lap() == lap + 1
    finally:
        late.client.leave()


def test_what_a_kill_left_is_gone_after_some_laps(pools: Any) -> None:
    store = small(pools)
    store.within(lambda: account(store, store.ledger.lap(), 10, 10))
    drifted = store.sizes()
    assert drifted != linked(store)
    renew(store)
    assert store.sizes() == linked(store)


def test_cache_of_one_item_survives_kills(pools: Any) -> None:
    """Traces of dead clients fill such a small cache, until the laps end."""
    store = pools(clients=16).store("cache", name="test", max_items=1)
    for number in range(5):
        store.within(lambda: account(store, store.ledger.lap(), 5, 5))
        store.put(b"%d" % number, b"x")
        assert store.get(b"%d" % number) == b"x"


@pytest.mark.exhaustive("many kills", quick=[])
def test_killed_workers_leave_a_cache_that_is_right(pools: Any) -> None:
    """Workers that evict, expire and compute are killed all the time, and replaced."""
    pool = pools(clients=32, node_size="8MiB")
    cache = pool.cache("test", max_items=200, max_bytes=100_000)
    seconds, every_s = (8.0, 0.02) if COMPILED else (4.0, 0.3)

    def work() -> None:
        with limpet.open(pool.url) as mine:
            shared = mine.cache("test")
            rng = random.Random(os.getpid())
            while True:
                key = int(rng.paretovariate(0.6)) % 5000
                found = shared.get_or_compute(
                    key, lambda key=key: (key, time.time()), ttl=0.05, stale=0.02
                )
                # The clock is the one that the deadline is by.
                assert found[0] == key
                assert time.time() - found[1] < 60
                if rng.random() < 0.1:
                    shared.set(key, (key, time.time()), ttl=0.02)
                    shared.invalidate(f"tag {key % 7}")

    workers = [fork(work) for _ in range(4)]
    kills = 0
    try:
        deadline = time.monotonic() + seconds
        rng = random.Random(9)
        while time.monotonic() < deadline:
            time.sleep(every_s)
            index = rng.randrange(4)
            os.kill(workers[index], signal.SIGKILL)
            status = os.waitpid(workers[index], 0)[1]
            assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, "it had ended before"
            workers[index] = fork(work)
            kills += 1
    finally:
        for pid in workers:
            end(pid)
    assert kills
    sound(cache.store)
    within(cache.store)
    time.sleep(0.1)
    for key in range(5000):  # no key is stuck in a computation
        began = cache.store.begin_flight(cache.codec.encode_key(key), 0, 10)
        if began[0] != MINE:
            cache.get_or_compute(key, lambda: (0, 0.0))
    renew(cache.store)
    assert linked(cache.store) == cache.store.sizes()
    sound(cache.store)


def test_stopped_client_does_not_keep_others_from_evicting(pools: Any) -> None:
    pool = pools(clients=16)
    pool.cache("test", max_items=10)

    def put() -> None:
        pool.cache("test").set("k", 1)

    child = Child(put=put)
    try:
        child.do("put")
        child.stop()
        cache = pool.cache("test")
        for number in range(200):
            cache[number] = number
        assert cache.stats()["items"] == 10
    finally:
        child.wake()
        child.end()
