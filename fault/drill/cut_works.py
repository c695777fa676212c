"""The works that a drill of cuts repeats: every kind of store, every channel, pools, commands.

A new kind of store is included once it is registered (stores/registry.py), with the small
parameters that suit it (fault_profile.py). Every other subject has a row here: a subject is a
function that takes a pool handle and a source of random choices, and returns its works by name.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import queue
import random
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from limpet.fault.matrix.fault_profile import profile_of
from limpet.shm.backends.segments import destroy
from limpet.shm.errors import BrokenBarrierError, PoolExists, PoolNotFound, StoreDropped, StoreFull
from limpet.stores.cache.status import MINE, OTHERS
from limpet.stores.channels.power_controller import PowerController
from limpet.stores.channels.sst import SST
from limpet.stores.pool import Pool
from limpet.stores.registry import KINDS

Work = Callable[[], object]
Works = Mapping[str, "Work | Prepared"]
Subject = Callable[[Any, random.Random], Works]
KEYS: Final = [b"key %d" % number for number in range(24)]
SIZES: Final = (10, 300, 3000)
DROPPED: Final = "dropped"
TOLERATED: Final = (
    KeyError, StoreFull, queue.Empty, queue.Full, BrokenBarrierError, PoolExists, PoolNotFound,
)  # fmt: skip
"""Errors that a work may raise uncut, also because the work before it was cut."""


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A work that is prepared each time, uncut. `judge`, after a cut: the fault found, or ""."""

    work: Work
    prepare: Work
    judge: Callable[[], str]


class Dropping:
    """A store that is made, filled, and dropped; the next drop frees the rest after a cut."""

    def __init__(self, pool: Any, kind: str, given: Mapping[str, Any]) -> None:
        self.pool = pool
        self.kind = kind
        self.given = given
        self.before: tuple[int, int] = (0, 0)
        self.store: Any = None

    def prepare(self) -> None:
        self.store = None
        self.drop()
        self.before = self.in_use()
        self.store = self.pool.store(self.kind, name=DROPPED, **self.given)
        self.store.put_many([(each, b"to be dropped") for each in KEYS[:4]])

    def drop(self) -> None:
        """Drop the store if it is there; finish a drop that was cut off."""
        if any(entry["name"] == DROPPED for entry in self.pool.stores()):
            self.pool.drop(DROPPED)
        self.pool.recover()

    def in_use(self) -> tuple[int, int]:
        """Bytes of objects, and blocks of regions."""
        nodes = range(self.pool.parameters.nodes)
        extents = [each for node in nodes for each in self.pool.regions.extents(node)]
        return self.pool.audit()["reachable"], sum(count for _, count, _ in extents)

    def judge(self) -> str:
        listed = any(entry["name"] == DROPPED for entry in self.pool.stores())
        if listed:
            with contextlib.suppress(StoreDropped):
                if self.store.get(KEYS[0]) != b"to be dropped":
                    return "a store that is listed has lost a value"
        self.drop()
        if self.in_use() != self.before:
            return f"in use were {self.before} bytes and blocks, and are {self.in_use()}"
        try:
            self.store.get(KEYS[0])
        except StoreDropped:
            return ""
        return "a handle of a dropped store works"


def store_works(pool: Any, draw: random.Random, kind: str) -> Works:
    """All operations of one store of the kind."""
    profile = profile_of(kind)
    given: dict[str, Any] = {"capacity": 300, **profile.parameters}
    if "sherman" in kind:
        del given["capacity"]
    store = pool.store(kind, name="cut", **given)
    store.put_many([(each, b"at first") for each in KEYS[::2]])

    def value() -> bytes:
        return os.urandom(draw.choice(SIZES))

    def key() -> bytes:
        return draw.choice(KEYS)

    dropping = Dropping(pool, kind, given)
    works: dict[str, Work | Prepared] = {
        "put": lambda: store.put(key(), value()),
        "insert": lambda: store.insert(key(), value()),
        "update": lambda: store.update(key(), value()),
        "get": lambda: store.get(key()),
        "delete": lambda: store.delete(key()),
        "get_many": lambda: store.get_many(KEYS[:6]),
        "put_many": lambda: store.put_many([(key(), value()) for _ in range(4)]),
        "iterate": lambda: list(store),
        "check": store.check,
        "recover": pool.recover,
        "audit": pool.audit,
        "open": lambda: pool.store(kind, name="cut"),
        "drop": Prepared(lambda: pool.drop(DROPPED), dropping.prepare, dropping.judge),
    }
    if "sherman" in kind:
        works["scan"] = lambda: list(store.scan(KEYS[0], KEYS[-1]))
    if "rtx" in kind:

        def move(transaction: Any) -> None:
            transaction.put(store, key(), value())
            transaction.get(store, key())

        works["transaction"] = lambda: pool.transaction(move)
    return works


def channel_works(pool: Any, draw: random.Random) -> Works:
    """All operations of all channels."""
    lock, jobs, event = pool.lock("lock"), pool.queue("queue", 8), pool.event("event")
    counter, array = pool.counter("counter"), pool.array("array", 8)
    ring, barrier = pool.ring("ring", 4096, overrun="skip"), pool.barrier("barrier", 1)
    table = pool.channels.open(SST, "sst", participants=4)
    power = pool.channels.open(PowerController, "power", converters=2)

    def hold() -> None:
        with lock:
            pass

    def meet() -> None:
        if barrier.broken:
            barrier.reset()
        barrier.wait(1)

    def make_and_remove() -> None:
        pool.queue("other", 8).put(1)
        pool.channels.remove("other")

    def publish() -> None:
        table.store_mine(draw.randrange(99))
        table.push_broadcast()

    return {
        "lock": hold,
        "queue put": lambda: jobs.put(os.urandom(draw.choice((5, 300))), timeout=0.01),
        "queue get": lambda: jobs.get(timeout=0.01),
        "event set": event.set,
        "event clear": event.clear,
        "event wait": lambda: event.wait(0.002),
        "event is_set": event.is_set,
        "counter": lambda: counter.add(1),
        "array": lambda: array.add(draw.randrange(8), 1),
        "ring": lambda: ring.send(b"x"),
        "barrier": meet,
        "sst": publish,
        "sst mine": table.mine,
        "power": lambda: power.take(power.voltage),
        "list": lambda: pool.channels.list(),
        "make and remove": make_and_remove,
    }


def transaction_works(pool: Any, draw: random.Random) -> Works:
    """Transactions over objects of the pool."""

    def move(transaction: Any) -> None:
        for name in draw.sample("abcd", 2):
            transaction[name] = os.urandom(draw.choice(SIZES))

    def look(transaction: Any) -> object:
        return [transaction[name] for name in "abcd" if name in transaction]

    return {
        "transaction": lambda: pool.transaction(move),
        "reading": lambda: pool.transaction(look),
    }


def computation_works(pool: Any, draw: random.Random) -> Works:
    """Computations and locks of keys of a cache: after a cut, no client has one any longer."""
    cache = pool.cache("cut computations", max_items=200)
    key = draw.choice("abcdef")
    lock = cache.lock(key)

    def begin() -> None:
        cache.pop(key, None)

    def begin_stale() -> None:
        cache.set(key, 0, ttl=1, stale=60_000)
        while cache.get(key) is not None:
            time.sleep(0.001)

    def hold() -> None:
        with lock:
            pass

    def judge() -> str:
        store = cache.store
        for name in map(cache.codec.encode_key, (key, "inner")):
            how, _, _, flight = store.begin_flight(name, 0, 60_000)
            if how == OTHERS:
                return "the client is left in a computation"
            if how == MINE:
                store.abandon_flight(name, flight)
        return "the lock of the key is left held" if lock.locked() else ""

    def compute() -> object:
        return cache.get_or_compute(key, lambda: os.urandom(9))

    async def coroutine() -> bytes:
        await asyncio.sleep(0)
        return b"value"

    def drive() -> None:
        """As an event loop does, which would itself be cut."""
        running = cache.get_or_compute_async(key, coroutine)
        with contextlib.suppress(StopIteration):
            while True:
                running.send(None)

    @cache.memoize(key=lambda: key)
    def memoized() -> bytes:
        return cache.get_or_compute("inner", lambda: b"value", ttl=1)  # type: ignore[no-any-return]

    works: dict[str, Work] = {
        "get_or_compute": compute,
        "get_or_compute_async": drive,
        "memoize": memoized,
        "lock": hold,
        "acquire": lambda: lock.acquire(timeout=0.01) and lock.release(),
    }
    prepared = {name: Prepared(work, begin, judge) for name, work in works.items()}
    return {**prepared, "get_or_compute, stale": Prepared(compute, begin_stale, judge)}


def pool_works(pool: Any, draw: random.Random) -> Works:
    """Making, opening, closing and destroying pools; a handle's reports; a node replaced."""
    url = f"{pool.url}-other"
    store = pool.store("fusee", name="replicated", capacity=64, replicas=2)
    for key in KEYS:
        store.put(key, b"value" * 20)

    def make() -> None:
        with Pool.create(url, nodes=2, node_size="1MiB", clients=8):
            pass

    def attach() -> None:
        with type(pool).open(pool.url) as other:
            other.store("fusee", name="replicated").put(KEYS[0], b"value" * 20)

    def replace() -> None:
        lost = [found["node"] for found in pool.nodes() if found["state"] != "in service"]
        if not lost:
            pool.fail_node(draw.randrange(3))
        for node in lost:
            pool.replace_node(node)

    return {
        "create": make,
        "destroy": lambda: destroy(url),
        "open": attach,
        "clients": pool.clients,
        "nodes": pool.nodes,
        "stores": pool.stores,
        "events": pool.events,
        "replace a node": replace,
    }


SUBJECTS: Final[dict[str, Subject]] = {
    "channels": channel_works,
    "transactions": transaction_works,
    "computations": computation_works,
    "pools": pool_works,
    **{
        kind: (lambda pool, draw, kind=kind: store_works(pool, draw, kind))  # type: ignore[misc]
        for kind in KINDS
    },
}
