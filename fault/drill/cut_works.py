"""The works that a drill of cuts repeats: every kind of store, every channel, pools, commands.

A new kind of store is included once it is registered (stores/registry.py), with the small
parameters that suit it (fault_profile.py). Every other subject has a row here: a subject is a
function that takes a pool handle and a source of random choices, and returns its works by name.

A table that grows is a work of its own (`Growing`): thousands of keys, put and deleted again by one
handle, which learns of each split, and of each merge. The drill fails if there were none.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import os
import queue
import random
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from limpet.fault.matrix.channel_kinds import CHANNELS, Call, Channels, Turn
from limpet.fault.matrix.fault_profile import profile_of
from limpet.fault.matrix.operations import Broken
from limpet.shm.destroying import destroy
from limpet.shm.errors import (
    BrokenBarrierError,
    LimpetError,
    PoolExists,
    PoolNotFound,
    StoreDropped,
    StoreFull,
)
from limpet.stores.cache.layout import MINE, OTHERS
from limpet.stores.pool import Pool
from limpet.stores.registry import CACHES, KINDS, store_class

Work = Callable[[], object]
Works = Mapping[str, "Work | Prepared"]
Subject = Callable[[Any, random.Random], Works]
KEYS: Final = [b"key %d" % number for number in range(24)]
SIZES: Final = (10, 300, 3000)
DROPPED: Final = "dropped"
GROWN: Final = 2000
"""So many keys are put into a table that grows, and deleted again."""
STEP: Final = 200
"""Keys of one work on such a table: enough that some of them split subtables."""
PATIENCE_S: Final = 5.0
TOLERATED: Final = (
    KeyError, StoreFull, queue.Empty, queue.Full, BrokenBarrierError, PoolExists, PoolNotFound,
)  # fmt: skip
"""Errors that a work may raise uncut, also because the work before it was cut."""


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A work that is prepared each time, uncut. `judge`, afterwards: the fault found, or "".

    `reached`: how often each change has happened that the work is there for; the drill fails if one
    of them never has.
    """

    work: Work
    prepare: Work
    judge: Callable[[], str]
    reached: Callable[[], Mapping[str, int]] = dict


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
        self.store.put_many([(each, b"to be dropped") for each in [*KEYS[:4], *_numbered(STEP)]])

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


def _numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"numbered %05d" % number for number in range(start, start + count)]


class Growing:
    """A table that grows and shrinks: `opened` opens it by its name, made anew after a drop.

    One handle goes on through all cuts, so what a cut leaves of its private state is what it works
    with next. `forgets`: keys may be gone, as in a cache.
    """

    def __init__(
        self, pool: Any, name: str, opened: Callable[[Any, str], Any], forgets: bool
    ) -> None:
        self.pool = pool
        self.name = name
        self.opened = opened
        self.forgets = forgets
        self.store: Any = None
        self.fresh: Any = None
        """A handle that knew nothing of the table before the work."""
        self.low = self.high = 0
        """The keys with these numbers are there, for sure."""
        self.most = GROWN
        self.start = self.before = self.grown = self.shrunk = 0

    def open(self, pool: Any) -> Any:
        """The table, by way of this handle of the pool."""
        return self.opened(pool, self.name)

    def renew(self) -> None:
        """Look at all of the table from this handle and from another one, and make a new one."""
        if self.store is not None:
            self.store.check()
            with type(self.pool).open(self.pool.url) as other:
                for handle in (self.store, self.open(other)):
                    wrong = self.wrong_in(handle, range(self.low, self.high))
                    assert not wrong, wrong
            self.pool.drop(self.name)
        self.store = self.open(self.pool)
        self.low = self.high = 0
        self.most = GROWN

    def prepare_filling(self) -> None:
        if self.store is None or self.high >= self.most:
            self.renew()
        self.note()

    def prepare_emptying(self) -> None:
        if self.store is None or self.low >= self.high:
            self.renew()
            with contextlib.suppress(StoreFull):
                for key in _numbered(GROWN):
                    self.store.put(key, key)
                    self.high += 1
        self.note()

    def prepare_finding(self) -> None:
        self.prepare_filling()
        self.fresh = self.open(self.pool)

    def note(self) -> None:
        self.start, self.before = self.low or self.high, parts_of(self.store)

    def fill(self) -> None:
        for key in _numbered(min(STEP, self.most - self.high), self.high):
            try:
                self.store.put(key, key)
            except StoreFull:
                self.most = self.high
                raise
            self.high += 1

    def empty(self) -> None:
        # The key before them may be there still, if the last work was cut off.
        first = max(0, self.low - 1)
        for key in _numbered(min(STEP, self.high - first), first):
            self.low = max(self.low, first + 1)
            first += 1
            with contextlib.suppress(KeyError):
                self.store.delete(key)

    def find(self) -> None:
        keys = _numbered(self.high)[-STEP:]
        if keys:
            self.fresh.get(keys[0])
            self.fresh.get_many(keys)
            self.fresh.put(keys[-1], keys[-1])

    def judge_finding(self) -> str:
        return self.wrong_in(self.fresh, range(self.low, self.high))

    def judge(self) -> str:
        now = parts_of(self.store)
        self.grown += now > self.before
        self.shrunk += now < self.before
        around = range(max(self.low, self.start - STEP), min(self.high, self.start + 2 * STEP))
        return self.wrong_in(self.store, around)

    def wrong_in(self, store: Any, numbers: range) -> str:
        """The keys with these numbers that have another value, or none."""
        keys = _numbered(len(numbers), numbers.start)
        wrong = [
            key
            for key, value in zip(keys, store.get_many(keys), strict=True)
            if value != key and not (self.forgets and value is None)
        ]
        return f"{len(wrong)} keys are lost, or have another value: {wrong[:3]}" if wrong else ""


def parts_of(store: Any) -> int:
    """How far an index has grown: leaves of trees, or subtables that splits have made; 0: it does
    not grow."""
    scans = getattr(store, "scans", None)
    if scans is None:
        made, grown = store.parameters, store.growth()
        return max(0, grown["subtables"] - (made.subtables << made.depth)) if grown else 0
    leaves = 0
    for tree in range(len(store.trees.roots)):
        start: bytes | None = b""
        while start is not None:
            _, start = scans.read_leaf(tree, start)
            leaves += 1
    return leaves


def growing_works(pool: Any, kind: str, opened: Callable[[Any, str], Any]) -> Works:
    """Those of a table of the kind that grows, and of another one that shrinks."""
    cls, forgets = store_class(kind), kind in CACHES
    one, other = (Growing(pool, name, opened, forgets) for name in ("growing", "shrinking"))
    return {
        "grow": Prepared(
            one.fill, one.prepare_filling, one.judge,
            lambda: {"splits": one.grown} if cls.grows else {},
        ),
        "find anew": Prepared(one.find, one.prepare_finding, one.judge_finding),
        "shrink": Prepared(
            other.empty, other.prepare_emptying, other.judge,
            lambda: {"merges": other.shrunk} if cls.ordered else {},
        ),
    }  # fmt: skip


def store_works(pool: Any, draw: random.Random, kind: str) -> Works:
    """All operations of one store of the kind."""
    profile = profile_of(kind)
    given: dict[str, Any] = {"capacity": 300, **profile.parameters}
    if "sherman" in kind:
        del given["capacity"]
    elif store_class(kind).grows:
        given |= {"capacity": 1, "groups": 2}
    store = pool.store(kind, name="cut", **given)
    store.put_many([(each, b"at first") for each in KEYS[::2]])

    def value() -> bytes:
        return os.urandom(draw.choice(SIZES))

    def key() -> bytes:
        return draw.choice(KEYS)

    dropping = Dropping(pool, kind, given)
    larger = {"capacity": GROWN} if given.get("capacity", 1) > 1 else {}
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
        **growing_works(
            pool, kind, lambda pool, name: pool.store(kind, name=name, **{**given, **larger})
        ),
    }
    if store.ordered:
        works["scan"] = lambda: list(store.scan(KEYS[0], KEYS[-1]))
    if store.views:

        def look() -> None:
            with store.view(key()) as seen:
                assert seen is None or len(seen) >= 0

        def fill() -> None:
            with store.reserve(key(), draw.choice(SIZES)) as buffer:
                buffer[:] = os.urandom(len(buffer))

        works |= {"view": look, "reserve": fill}
    if store.swaps:
        works["swap"] = lambda: store.swap(key(), store.get(KEYS[0]) or b"", value())
    if "rtx" in kind:

        def move(transaction: Any) -> None:
            transaction.put(store, key(), value())
            transaction.get(store, key())

        works["transaction"] = lambda: pool.transaction(move)
    return works


def cache_works(pool: Any, draw: random.Random) -> Works:
    """All operations of a cache that evicts, and the growth of a larger one."""
    cache = pool.cache("cut", max_items=len(KEYS) // 2, codec="pickle")

    def value() -> bytes:
        return os.urandom(draw.choice(SIZES))

    def key() -> bytes:
        return draw.choice(KEYS)

    def swap() -> None:
        _, token = cache.gets(key())
        cache.cas(key(), value(), token)

    return {
        "set": lambda: cache.set(key(), value(), ttl=draw.choice((0, 0.002, 1)), tags=["tag"]),
        "set sliding": lambda: cache.set(key(), value(), ttl=1, slide=True),
        "add": lambda: cache.add(key(), value()),
        "replace": lambda: cache.replace(key(), value()),
        "get": lambda: cache.get(key()),
        "touch": lambda: cache.touch(key(), 1),
        "expires_in": lambda: cache.expires_in(key()),
        "delete": lambda: cache.delete(key()),
        "pop": lambda: cache.pop(key()),
        "popitem": cache.popitem,
        "setdefault": lambda: cache.setdefault(key(), value()),
        "cas": swap,
        "incr": lambda: cache.incr(b"count", initial=0),
        "get_many": lambda: cache.get_many(KEYS[:6]),
        "set_many": lambda: cache.set_many({key(): value() for _ in range(4)}),
        "delete_many": lambda: cache.delete_many(KEYS[:2]),
        "iterate": lambda: list(cache),
        "invalidate": lambda: cache.invalidate("tag"),
        "clear": cache.clear,
        "delete_prefix": lambda: cache.delete_prefix(b"key 1"),
        "expire": cache.expire,
        "stats": cache.stats,
        "check": cache.check,
        "open": lambda: pool.cache("cut"),
        **growing_works(
            pool, "cache", lambda pool, name: pool.store("cache", name, capacity=1, groups=2)
        ),
    }


def channel_works(pool: Any, draw: random.Random) -> Works:
    """The turns, reads and calls of all channels."""
    works: dict[str, Work | Prepared] = {}
    for kind, channel in CHANNELS.items():
        works |= _works_of(pool, kind, channel)

    def make_and_remove() -> None:
        pool.queue("other", 8).put(1)
        pool.channels.remove("other")

    return {**works, "list": pool.channels.list, "make and remove": make_and_remove}


def _works_of(pool: Any, kind: str, channel: Channels) -> Works:
    """Calls of new handles; and turns of one that goes on through all cuts, if there are turns."""
    opened, numbers = channel.shared or channel.open, itertools.count()

    def prepare() -> None:
        # a cut within a call that is no block is the program's to mend
        channel.release(opened(pool, kind))
        handle = opened(pool, kind)
        channel.prepare(handle)
        channel.release(handle)

    def called(call: Call) -> Prepared:
        return Prepared(lambda: call(opened(pool, kind)), prepare, str)

    def turning(turn: Turn) -> Prepared:
        return Prepared(lambda: turn(handle, next(numbers)), lambda: channel.prepare(handle), str)

    works = {f"{kind}, {name}": called(call) for name, call in channel.calls.items()}
    if channel.turn is not None:
        handle = opened(pool, f"{kind} of several")
        works |= {kind: turning(channel.turn), f"{kind}, read": turning(channel.read)}
    return works


def after_cuts(pool: Any, other: Any) -> list[str]:
    """The faults of the channels that another client finds in the end."""
    wrong = []
    for kind, channel in CHANNELS.items():
        opened = channel.shared or channel.open
        channel.release(opened(pool, kind))
        try:
            channel.round(opened(other, kind), PATIENCE_S)
        except (Broken, LimpetError) as error:
            wrong.append(f"a round of {kind}: {type(error).__name__}: {error}")
    return wrong


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
        cache.set(key, 0, ttl=0.001, stale=60)
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

    def judge_acquired() -> str:
        """A cut between `acquire` and `release` is the program's to mend: it has the lock."""
        lock.end()
        return judge()

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
        return cache.get_or_compute("inner", lambda: b"value", ttl=0.001)  # type: ignore[no-any-return]

    works: dict[str, Work] = {
        "get_or_compute": compute,
        "get_or_compute_async": drive,
        "memoize": memoized,
        "lock": hold,
    }
    prepared = {name: Prepared(work, begin, judge) for name, work in works.items()}
    return {
        **prepared,
        "acquire": Prepared(
            lambda: lock.acquire(timeout=0.01) and lock.release(), begin, judge_acquired
        ),
        "get_or_compute, stale": Prepared(compute, begin_stale, judge),
    }


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
    "cache": cache_works,
    "channels": channel_works,
    "transactions": transaction_works,
    "computations": computation_works,
    "pools": pool_works,
    **{
        kind: (lambda pool, draw, kind=kind: store_works(pool, draw, kind))  # type: ignore[misc]
        for kind in KINDS
    },
}
