"""The registry of calls: every public call of every object of the API, with small arguments.

A promise about "every call" (after a drop, after a close, as the first to meet a lost node) is
tested over this table, so a new call is in the test once it has a row. `missing_rows` finds the
public names of an object's class that have neither a row nor a place among the names that limpet
calls itself (`own`): tests/stores/test_calls.py fails for each.

A row is a function of the handle and of a key that is in the store. It gets through alone, in
bounded time, and returns what the call returns, with each iterator exhausted.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
import queue
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any, Final

from limpet.fault.matrix.channel_kinds import CHANNELS
from limpet.fault.matrix.fault_profile import profile_of
from limpet.stores.base import Store
from limpet.stores.cache.cache import Cache
from limpet.stores.channels.sst import SST
from limpet.stores.pool import Pool
from limpet.stores.registry import KINDS, UNRECOVERED, store_class
from limpet.stores.rtx.execution import Transaction

Row = Callable[[Any, Any], object]
NAME: Final = "called"
KEYS: Final = tuple(b"key %d" % number for number in range(40))
KEY: Final = KEYS[0]
VALUE: Final = b"a value of a row"
SOON_S: Final = 0.002
"""A call that waits gives up after this."""
TECHNICAL: Final = frozenset(dir(object)) | {
    "__abstractmethods__", "__annotations__", "__class_getitem__", "__del__",
    "__dict__", "__firstlineno__", "__getstate__", "__module__", "__orig_bases__",
    "__parameters__", "__pyx_vtable__", "__reduce_cython__", "__reversed__",
    "__setstate_cython__", "__slots__", "__static_attributes__", "__weakref__",
}  # fmt: skip
"""Names that Python or Cython gives to classes."""


@dataclasses.dataclass(frozen=True)
class Calls:
    """An object of the API. `open(pool)`: its handle, made and filled if it is not there.

    `private`: rows that look at no shared memory, and so work after a drop and a close. `lasting`:
    rows of the pool, which work after a drop. `remove`: how another client gives the object back.
    `of`: the class, if it is not the handle's.
    """

    open: Callable[[Pool], Any]
    rows: Mapping[str, Row]
    own: frozenset[str] = frozenset()
    private: frozenset[str] = frozenset()
    lasting: frozenset[str] = frozenset()
    remove: Callable[[Pool], object] | None = None
    of: type | None = None

    def missing_rows(self, handle: Any) -> set[str]:
        """The public names of the class that the table lacks."""
        return public(self.of or type(handle)) - self.rows.keys() - self.own


def public(cls: type) -> set[str]:
    """The names of a class's public methods and properties."""
    return {name for name in dir(cls) if name not in TECHNICAL and _is_call(cls, name)}


def _is_call(cls: type, name: str) -> bool:
    if name.startswith("_") and not name.endswith("__"):
        return False
    member = inspect.getattr_static(cls, name)
    # A property of a compiled class is a descriptor; so is an attribute, with its type as its text.
    text = str(getattr(member, "__doc__", None) or "")
    described = hasattr(member, "__get__") and " " in text.removeprefix(f"{name}: ")
    return not isinstance(member, type) and (callable(getattr(cls, name)) or described)


def _all(found: Iterable[Any]) -> list[Any]:
    return list(found)


# ---- stores -----------------------------------------------------------------------------------


def _view(store: Any, key: bytes) -> bytes | None:
    with store.view(key) as value:
        return None if value is None else bytes(value)


def _reserve(store: Any, key: bytes) -> None:
    with store.reserve(key, 900) as buffer:
        buffer[:] = b"r" * 900


STORE_ROWS: Final[Mapping[str, Row]] = {
    "get": lambda s, key: s.get(key),
    "get_many": lambda s, key: s.get_many([key, KEYS[1], b"none"]),
    "get_slice": lambda s, key: s.get_slice(key, 1, 9),
    "size_of": lambda s, key: s.size_of(key),
    "sizes": lambda s, key: s.sizes(),
    "put": lambda s, key: s.put(key, VALUE),
    "put_many": lambda s, key: s.put_many([(key, VALUE), (KEYS[1], VALUE), (b"+" + key, VALUE)]),
    "insert": lambda s, key: s.insert(b"-" + key, VALUE),
    "update": lambda s, key: s.update(key, VALUE * 2),
    "delete": lambda s, key: s.delete(key),
    "delete_many": lambda s, key: s.delete_many([key, KEYS[2], b"none"]),
    "swap": lambda s, key: s.swap(key, VALUE, VALUE[::-1]),
    "view": _view,
    "reserve": _reserve,
    "scan": lambda s, key: _all(s.scan(KEYS[0], KEYS[-1])),
    "first": lambda s, key: s.first(),
    "last": lambda s, key: s.last(),
    "ceiling": lambda s, key: s.ceiling(key),
    "floor": lambda s, key: s.floor(key),
    "keys": lambda s, key: _all(s.keys()),
    "items": lambda s, key: _all(s.items()),
    "check": lambda s, key: s.check(),
    "growth": lambda s, key: s.growth(),
    "index_size": lambda s, key: s.index_size(),
    "recover": lambda s, key: s.recover(),
    "stats": lambda s, key: s.stats(),
    "__len__": lambda s, key: len(s),
    "__iter__": lambda s, key: _all(s),
    "__contains__": lambda s, key: key in s,
}
OWN_OF_STORES: Final = frozenset({
    "abandon_flight", "batches_puts", "begin_flight", "birth", "busy_slot", "carry_out", "checker",
    "commit", "complete", "copy", "copy_for", "counts", "delete_as", "delete_once", "entry",
    "find_memory", "finish_flight", "flight_of", "forget", "give_way", "glance_at", "glanced",
    "glances", "grow", "have_memory", "have_ready", "hold", "hold_ledger", "hold_once",
    "hold_parts", "image_of", "invalidate", "is_linked", "is_log", "left_by", "let_go", "let_go_of",
    "link_reserved", "listed", "look_after", "look_for", "losses_survived", "make",
    "make_object", "mend",
    "object_size", "own_counts", "proved", "purge", "reconcile", "references", "refill", "replaced",
    "require_there", "reserve_object", "resolved", "run", "search_batch", "search_once",
    "show_progress", "slots_taken", "staging", "stay", "stop_words", "take", "touch", "unmake",
    "value_log", "while_there", "within", "write", "write_entry", "write_once",
})  # fmt: skip
"""Methods of stores that limpet calls; those that it calls within operations look at nothing."""


def _store(kind: str) -> Callable[[Pool], Any]:
    def opened(pool: Pool) -> Any:
        given: dict[str, Any] = {"capacity": 300, **profile_of(kind).parameters}
        store = pool.store(kind, name=NAME, **given)
        if KEY not in store:
            store.put_many([(key, VALUE) for key in KEYS])
        return store

    return opened


def _private_of(kind: str) -> frozenset[str]:
    """The counts of the handle, and what a kind has nothing to say of."""
    cls = store_class(kind)
    same = {name for name in ("growth", "index_size") if vars(Store)[name] is getattr(cls, name)}
    return frozenset({"stats", *same})


def _dropped(pool: Pool) -> None:
    pool.drop(NAME)


# ---- mappings ---------------------------------------------------------------------------------


def _mapping(made: Any) -> Any:
    if 0 not in made:
        made.update({number: number for number in range(9)})
    return made


MAPPING_ROWS: Final[Mapping[str, Row]] = {
    "get": lambda d, key: d.get(0),
    "pop": lambda d, key: d.pop(1, None),
    "popitem": lambda d, key: d.popitem(),
    "setdefault": lambda d, key: d.setdefault(99, 1),
    "update": lambda d, key: d.update({2: 3}),
    "clear": lambda d, key: d.clear(),
    "keys": lambda d, key: _all(d.keys()),
    "items": lambda d, key: _all(d.items()),
    "values": lambda d, key: _all(d.values()),
    "__getitem__": lambda d, key: d[0],
    "__setitem__": lambda d, key: d.__setitem__(0, 4),
    "__delitem__": lambda d, key: d.__delitem__(0),
    "__contains__": lambda d, key: 0 in d,
    "__iter__": lambda d, key: _all(d),
    "__len__": lambda d, key: len(d),
}
DICT_ROWS: Final[Mapping[str, Row]] = {
    **MAPPING_ROWS,
    "copy": lambda d, key: d.copy(),
    "compare_and_set": lambda d, key: d.compare_and_set(0, 0, 1),
    "update_with": lambda d, key: d.update_with(0, lambda value: value),
    "__or__": lambda d, key: d | {1: 2},
    "__ror__": lambda d, key: {1: 2} | d,
    "__ior__": lambda d, key: d.__ior__({1: 2}),
}


def _cache_lock(cache: Cache[Any, Any], key: object) -> None:
    with cache.lock("lock", 1000):
        pass


async def _later() -> int:
    return 7


CACHE_ROWS: Final[Mapping[str, Row]] = {
    **MAPPING_ROWS,
    "set": lambda c, key: c.set(0, 1, ttl=1000),
    "add": lambda c, key: c.add(98, 1),
    "replace": lambda c, key: c.replace(0, 1),
    "touch": lambda c, key: c.touch(0, 1000),
    "expires_in": lambda c, key: c.expires_in(0),
    "delete": lambda c, key: c.delete(0),
    "gets": lambda c, key: c.gets(0),
    "cas": lambda c, key: c.cas(0, 1, 1),
    "incr": lambda c, key: c.incr(0),
    "decr": lambda c, key: c.decr(0),
    "get_many": lambda c, key: c.get_many([0, 97]),
    "set_many": lambda c, key: c.set_many({0: 1, 96: 2}),
    "delete_many": lambda c, key: c.delete_many([0, 95]),
    "invalidate": lambda c, key: c.invalidate("tag"),
    "delete_prefix": lambda c, key: c.delete_prefix("pre"),
    "expire": lambda c, key: c.expire(),
    "stats": lambda c, key: c.stats(),
    "check": lambda c, key: c.check(),
    "get_or_compute": lambda c, key: c.get_or_compute(94, lambda: 1),
    "get_or_compute_async": lambda c, key: asyncio.run(c.get_or_compute_async(93, _later)),
    "lock": _cache_lock,
    "memoize": lambda c, key: c.memoize(key=lambda number: number)(lambda number: number)(92),
    "__bool__": lambda c, key: bool(c),
}

# ---- transactions -----------------------------------------------------------------------------


def _transaction(pool: Pool) -> Any:
    trees, table = (pool.store(kind, name=f"{NAME} {kind}") for kind in ("rtx-sherman", "rtx-race"))
    for store in (trees, table):
        if KEY not in store:
            store.put(KEY, VALUE)
    return SimpleNamespace(pool=pool, trees=trees, table=table)


def _in_transaction(call: Callable[[Transaction, Any], object]) -> Row:
    return lambda on, key: [
        on.pool.transaction(lambda tx, store=store: call(tx, store))
        for store in (on.trees, on.table)
    ]


def _drop_both(pool: Pool) -> None:
    for kind in ("rtx-sherman", "rtx-race"):
        pool.drop(f"{NAME} {kind}")


def _objects(pool: Pool) -> Any:
    return pool.objects(NAME, 7, b"begins")


def _write_object(on: Any, key: object) -> object:
    found = on[1]
    return found.store.pool.transaction(lambda tx: (tx.read(found), tx.write(found, b"anew")))


# ---- channels ---------------------------------------------------------------------------------


def _with(handle: Any, key: object) -> None:
    with handle:
        pass


def _within(call: Callable[[Any], object]) -> Row:
    def row(handle: Any, key: object) -> None:
        with handle:
            call(handle)

    return row


def _received(ring: Any) -> Any:
    ring.subscribe(start="oldest")
    with contextlib.suppress(queue.Empty):
        return ring.receive(timeout=SOON_S)


def _put_get(jobs: Any, call: Callable[[Any], object]) -> object:
    jobs.put(1, timeout=SOON_S)
    found = call(jobs)
    jobs.task_done()
    return found


OWN_OF_CHANNELS: Final = frozenset({
    "enter", "joined", "leave", "lives", "mark", "mark_address", "on_join", "on_leave",
    "open_rows", "operation", "participants", "region", "removed", "row", "suits", "take_part",
    "vacates",
})  # fmt: skip
CHANNEL_ROWS: Final[Mapping[str, Row]] = {
    "refresh": lambda c, key: c.refresh(),
    "resign": lambda c, key: c.resign(),
}


def _origin(array: Any) -> tuple[int, ...]:
    return (0,) * int(array.ndim)


_ARRAY: Final[Mapping[str, Row]] = {
    "add": lambda a, key: a.add(_origin(a)),
    "assign": lambda a, key: a.assign(..., 1),
    "bit_and": lambda a, key: a.bit_and(_origin(a), 1),
    "bit_or": lambda a, key: a.bit_or(_origin(a), 1),
    "bit_xor": lambda a, key: a.bit_xor(_origin(a), 1),
    "compare_and_swap": lambda a, key: a.compare_and_swap(_origin(a), 1, 2),
    "copied": lambda a, key: a.copied(...),
    "dtype": lambda a, key: a.dtype,
    "nbytes": lambda a, key: a.nbytes,
    "ndim": lambda a, key: a.ndim,
    "numpy": lambda a, key: a.numpy().copy(),
    "parts": lambda a, key: [part.copy() for _, part in a.parts()],
    "shape": lambda a, key: a.shape,
    "size": lambda a, key: a.size,
    "swap": lambda a, key: a.swap(_origin(a), 1),
    "__array__": lambda a, key: a.__array__(),
    "__buffer__": lambda a, key: bytes(a.__buffer__()),
    "__delitem__": lambda a, key: a.__delitem__(0),
    "__dlpack__": lambda a, key: bool(a.__dlpack__()),
    "__dlpack_device__": lambda a, key: a.__dlpack_device__(),
    "__getitem__": lambda a, key: a[_origin(a)],
    "__iter__": lambda a, key: _all(a),
    "__len__": lambda a, key: len(a),
    "__setitem__": lambda a, key: a.__setitem__(..., 1),
}
_OF_ARRAYS: Final = frozenset(
    {"dtype", "nbytes", "ndim", "shape", "size", "__delitem__", "__dlpack_device__", "__len__"}
)
_OWN_OF_ARRAYS: Final = frozenset({"at_number", "lay_out", "lost", "number_of"})
_BARRIER: Final[Mapping[str, Row]] = {
    "abort": lambda b, key: b.abort(),
    "broken": lambda b, key: b.broken,
    "n_waiting": lambda b, key: b.n_waiting,
    "parties": lambda b, key: b.parties,
    "reset": lambda b, key: b.reset(),
    "wait": lambda b, key: b.wait(SOON_S),
}
_OWN_OF_BARRIERS: Final = frozenset(
    {"announce", "change", "look_after", "missed", "regroup", "regrouped", "vacates_register"}
)
_LOCK: Final[Mapping[str, Row]] = {
    "acquire": lambda lock, key: lock.acquire(timeout=SOON_S),
    "inherited": lambda lock, key: lock.inherited,
    "locked": lambda lock, key: lock.locked(),
    "release": lambda lock, key: (lock.acquire(timeout=SOON_S), lock.release()),
    "__enter__": _with,
    "__exit__": _with,
}
_RING: Final[Mapping[str, Row]] = {
    "close": lambda ring, key: ring.close(),
    "lost": lambda ring, key: ring.lost,
    "receive": lambda ring, key: _received(ring),
    "receive_nowait": lambda ring, key: (ring.subscribe(), ring.receive_nowait()),
    "send": lambda ring, key: ring.send(1, SOON_S),
    "send_nowait": lambda ring, key: ring.send_nowait(1),
    "subscribe": lambda ring, key: ring.subscribe(),
    "unsubscribe": lambda ring, key: ring.unsubscribe(),
    "__iter__": lambda ring, key: (ring.subscribe(), iter(ring)),
}
_TABLE: Final[Mapping[str, Row]] = {
    "mine": lambda table, key: table.mine().load(),
    "push_broadcast": lambda table, key: table.push_broadcast().wait(),
    "store_mine": lambda table, key: table.store_mine(7),
    "__getitem__": lambda table, key: table[0].load(),
    "__iter__": lambda table, key: [row.load() for row in table],
}
OF_CHANNELS: Final[Mapping[str, tuple[Mapping[str, Row], frozenset[str], frozenset[str]]]] = {
    "array": (_ARRAY, _OWN_OF_ARRAYS, _OF_ARRAYS),
    "atomic_var": (
        {
            "cas": lambda v, key: v.cas(0, 1),
            "faa": lambda v, key: v.faa(1),
            "load": lambda v, key: v.load(),
            "store": lambda v, key: v.store(1),
            "swap": lambda v, key: v.swap(1),
        },
        frozenset(),
        frozenset(),
    ),
    "barrier": (_BARRIER, _OWN_OF_BARRIERS, frozenset({"parties"})),
    "condition": (
        {
            "acquire": lambda c, key: c.acquire(timeout=SOON_S),
            "inherited": lambda c, key: c.inherited,
            "notify": _within(lambda c: c.notify()),
            "notify_all": _within(lambda c: c.notify_all()),
            "release": lambda c, key: (c.acquire(timeout=SOON_S), c.release()),
            "wait": _within(lambda c: c.wait(SOON_S)),
            "wait_for": _within(lambda c: c.wait_for(lambda: False, SOON_S)),
            "__enter__": _with,
            "__exit__": _with,
        },
        frozenset(),
        frozenset({"inherited"}),
    ),
    "counter": (
        {
            "add": lambda c, key: c.add(),
            "set": lambda c, key: c.set(1),
            "value": lambda c, key: c.value,
        },
        frozenset(),
        frozenset(),
    ),
    "event": (
        {
            "clear": lambda e, key: e.clear(),
            "is_set": lambda e, key: e.is_set(),
            "set": lambda e, key: e.set(),
            "wait": lambda e, key: e.wait(SOON_S),
        },
        frozenset(),
        frozenset(),
    ),
    "lock": (_LOCK, frozenset(), frozenset({"inherited"})),
    "owned_var": (
        {
            "load": lambda v, key: v.load(),
            "push": lambda v, key: v.push().wait(),
            "store": lambda v, key: v.store(bytes(24)),
        },
        frozenset({"clear", "is_second_older", "is_whole", "peek", "place"}),
        frozenset({"store"}),
    ),
    "power_controller": (
        {
            "push": lambda p, key: p.push(p.duty, [0.5] * len(p.duty)),
            "take": lambda p, key: p.take(p.voltage),
        },
        frozenset(),
        frozenset(),
    ),
    "queue": (
        {
            "cancel_join_thread": lambda q, key: q.cancel_join_thread(),
            "close": lambda q, key: q.close(),
            "empty": lambda q, key: q.empty(),
            "forget_lost": lambda q, key: q.forget_lost(),
            "full": lambda q, key: q.full(),
            "get": lambda q, key: _put_get(q, lambda jobs: jobs.get(timeout=SOON_S)),
            "get_many": lambda q, key: _put_get(q, lambda jobs: jobs.get_many(2, timeout=SOON_S)),
            "get_nowait": lambda q, key: _put_get(q, lambda jobs: jobs.get_nowait()),
            "join": lambda q, key: q.join(SOON_S),
            "join_thread": lambda q, key: q.join_thread(),
            "lost": lambda q, key: q.lost(),
            "put": lambda q, key: q.put(1, timeout=SOON_S),
            "put_many": lambda q, key: q.put_many([1], timeout=SOON_S),
            "put_nowait": lambda q, key: q.put_nowait(1),
            "qsize": lambda q, key: q.qsize(),
            "task_done": lambda q, key: _put_get(q, lambda jobs: jobs.get_nowait()),
        },
        frozenset({"ready"}),
        frozenset({"cancel_join_thread", "close", "join_thread"}),
    ),
    "rendezvous": ({"waiting": lambda r, key: r.waiting()}, frozenset(), frozenset()),
    "ring": (_RING, frozenset(), frozenset({"close", "lost", "unsubscribe"})),
    "shared_region": (
        {
            "read": lambda r, key: r.read(0, 8, 16),
            "write": lambda r, key: r.write(0, 8, bytes(16)).wait(),
        },
        frozenset({"part"}),
        frozenset(),
    ),
    "sst": (_TABLE, frozenset(), frozenset()),
}
"""Of each kind of channel: the rows, the names that limpet calls, and the private rows."""


def _channel(kind: str) -> Calls:
    rows, own, private = OF_CHANNELS[kind.partition("-")[0]]
    return Calls(
        lambda pool: CHANNELS[kind].open(pool, NAME),
        {**CHANNEL_ROWS, **rows},
        OWN_OF_CHANNELS | own,
        private,
        remove=lambda pool: pool.channels.remove(NAME),
    )


# ---- the pool ---------------------------------------------------------------------------------


def _pool(pool: Pool) -> Pool:
    _store("race")(pool)
    return pool


POOL_ROWS: Final[Mapping[str, Row]] = {
    "array": lambda p, key: p.array("a", 4),
    "audit": lambda p, key: p.audit(),
    "barrier": lambda p, key: p.barrier("b", 1),
    "cache": lambda p, key: p.cache("c"),
    "channels": lambda p, key: p.channels.list(),
    "client_id": lambda p, key: p.client_id,
    "clients": lambda p, key: p.clients(),
    "close": lambda p, key: p.close(),
    "closed": lambda p, key: p.closed,
    "condition": lambda p, key: p.condition("cond"),
    "counter": lambda p, key: p.counter("n"),
    "create": lambda p, key: None,
    "dict": lambda p, key: p.dict("d"),
    "drop": lambda p, key: (p.store("race", "dropped"), p.drop("dropped")),
    "event": lambda p, key: p.event("e"),
    "events": lambda p, key: p.events(),
    "fail_node": lambda p, key: p.fail_node(p.parameters.nodes - 1),
    "growth": lambda p, key: p.growth(),
    "hosts": lambda p, key: p.hosts(),
    "lock": lambda p, key: p.lock("l"),
    "nodes": lambda p, key: p.nodes(),
    "object": lambda p, key: p.object("o"),
    "objects": lambda p, key: p.objects("os", 3),
    "open": lambda p, key: None,
    "queue": lambda p, key: p.queue("q"),
    "recover": lambda p, key: p.recover(),
    "rename": lambda p, key: (p.store("race", "old"), p.rename("old", "new")),
    "replace_node": lambda p, key: p.replace_node(0),
    "ring": lambda p, key: p.ring("r"),
    "store": lambda p, key: p.store("race", "s"),
    "stores": lambda p, key: p.stores(count=True),
    "transaction": lambda p, key: p.transaction(lambda tx: tx.__setitem__("name", b"v")),
    "watch": lambda p, key: next(p.watch(until_destroyed=False)) if p.closed else None,
    "whole_since": lambda p, key: p.whole_since(),
    "__enter__": _with,
    "__exit__": _with,
}
OWN_OF_POOLS: Final = frozenset({
    "attached", "bare", "depart_at_exit", "entry_of", "exclusively", "free_unreachable",
    "handle_at", "handle_if_there", "handle_of", "known_stores", "linking", "make_contents",
    "mark_failed", "objects_store", "of_stores", "parameters_of", "references", "segments",
    "stay_to_the_end", "stopping_stores", "stored", "strays",
})  # fmt: skip
PRIVATE_OF_POOLS: Final = frozenset(
    {"close", "closed", "create", "object", "open", "whole_since", "__enter__", "__exit__"}
)
MANAGER_ROWS: Final[Mapping[str, Row]] = {
    "fence": lambda m, key: m.fence(),
    "list": lambda m, key: m.list(),
    "names": lambda m, key: m.names(),
    "open": lambda m, key: m.open(SST, "table", participants=2),
    "remove": lambda m, key: m.remove("table"),
}
OWN_OF_MANAGERS: Final = frozenset({
    "attach", "catalogue", "clear", "complete", "follow", "forget", "issue", "let_go",
    "keeper", "parameters_of", "region", "replaced", "require_not_lost", "wait_for",
})  # fmt: skip

OBJECTS: Final[Mapping[str, Calls]] = {
    **{
        kind: Calls(
            _store(kind), STORE_ROWS, OWN_OF_STORES, _private_of(kind), frozenset({"recover"}),
            _dropped,
        )
        for kind in (*KINDS, *UNRECOVERED)
    },
    "dict": Calls(
        lambda pool: _mapping(pool.dict(NAME)), DICT_ROWS, remove=_dropped
    ),
    "cache": Calls(
        lambda pool: _mapping(pool.cache(NAME)),
        CACHE_ROWS, frozenset({"terms"}), remove=_dropped,
    ),
    "transaction": Calls(
        _transaction,
        {
            "get": _in_transaction(lambda tx, store: tx.get(store, KEY)),
            "put": _in_transaction(lambda tx, store: tx.put(store, KEY, VALUE)),
            "insert": _in_transaction(lambda tx, store: tx.insert(store, b"new", VALUE)),
            "update": _in_transaction(lambda tx, store: tx.update(store, KEY, VALUE)),
            "delete": _in_transaction(lambda tx, store: tx.delete(store, KEY)),
            "scan": lambda on, key: on.pool.transaction(lambda tx: tx.scan(on.trees)),
        },
        frozenset({
            "commit", "conflict", "end", "holds", "is_doomed", "looks", "met_while_reading",
            "recalls", "stay",
            # of named objects, which nobody drops, and of objects below
            "__contains__", "__delitem__", "__getitem__", "__setitem__", "read", "write",
        }),
        remove=_drop_both, of=Transaction,
    ),
    "objects": Calls(
        _objects,
        {
            "__getitem__": _write_object,
            "__iter__": lambda on, key: _all(on),
            "__len__": lambda on, key: len(on),
        },
        private=frozenset({"__iter__", "__len__"}), remove=_dropped,
    ),
    **{kind: _channel(kind) for kind in CHANNELS},
    "channels": Calls(
        lambda pool: pool.channels, MANAGER_ROWS, OWN_OF_MANAGERS, frozenset({"fence"})
    ),
    "pool": Calls(_pool, POOL_ROWS, OWN_OF_POOLS, PRIVATE_OF_POOLS),
}  # fmt: skip
