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
import dataclasses
import inspect
import tempfile
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any, Final

from limpet.fault.matrix.channel_kinds import CHANNELS, plain
from limpet.fault.matrix.fault_profile import profile_of
from limpet.stores.cache.cache import Cache
from limpet.stores.channels.sst import SST
from limpet.stores.core.base import Store
from limpet.stores.pool import Pool
from limpet.stores.registry import KINDS, UNRECOVERED, store_class
from limpet.stores.rtx.execution import Transaction

Row = Callable[[Any, Any], object]
NAME: Final = "called"
KEYS: Final = tuple(b"key %d" % number for number in range(40))
KEY: Final = KEYS[0]
VALUE: Final = b"a value of a row"
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


def _of_handle(call: Callable[[Any], object]) -> Row:
    return lambda handle, key: call(handle)


def _plain(*names: str) -> dict[str, Row]:
    return {name: _of_handle(call) for name, call in plain(*names).items()}


def _all(found: Iterable[Any]) -> list[Any]:
    return list(found)


# ---- stores -----------------------------------------------------------------------------------


def _view(store: Any, key: bytes) -> bytes | None:
    with store.view(key) as value:
        return None if value is None else bytes(value)


def _pipeline(store: Any, key: bytes) -> list[Any]:
    with store.pipeline() as window:
        window.put(KEYS[1], VALUE)
        found = [window.get(key), window.get(KEYS[1]), window.get(b"none")]
    return [operation.result() for operation in found]


def _reserve(store: Any, key: bytes) -> None:
    with store.reserve(key, 900) as buffer:
        buffer[:] = b"r" * 900


STORE_ROWS: Final[Mapping[str, Row]] = {
    **_plain("sizes", "first", "last", "check", "growth", "index_size", "recover", "stats"),
    "get": lambda s, key: s.get(key),
    "get_many": lambda s, key: s.get_many([key, KEYS[1], b"none"]),
    "get_slice": lambda s, key: s.get_slice(key, 1, 9),
    "size_of": lambda s, key: s.size_of(key),
    "put": lambda s, key: s.put(key, VALUE),
    "put_many": lambda s, key: s.put_many([(key, VALUE), (KEYS[1], VALUE), (b"+" + key, VALUE)]),
    "pipeline": _pipeline,
    "insert": lambda s, key: s.insert(b"-" + key, VALUE),
    "update": lambda s, key: s.update(key, VALUE * 2),
    "delete": lambda s, key: s.delete(key),
    "delete_many": lambda s, key: s.delete_many([key, KEYS[2], b"none"]),
    "swap": lambda s, key: s.swap(key, VALUE, VALUE[::-1]),
    "view": _view,
    "view_many": lambda s, key: [
        None if value is None else bytes(value) for value in s.view_many([key, b"none", key])
    ],
    "reserve": _reserve,
    "changes": lambda s, key: s.changes(key),
    "scan": lambda s, key: _all(s.scan(KEYS[0], KEYS[-1])),
    "ceiling": lambda s, key: s.ceiling(key),
    "floor": lambda s, key: s.floor(key),
    "keys": lambda s, key: _all(s.keys()),
    "items": lambda s, key: _all(s.items()),
    "__len__": lambda s, key: len(s),
    "__iter__": lambda s, key: _all(s),
    "__contains__": lambda s, key: key in s,
}
OWN_OF_STORES: Final = frozenset({
    "abandon_flight", "await_holder", "back_off", "batches_puts", "begin_flight", "birth",
    "busy_slot", "carry_out", "checker", "commit", "complete", "copy", "copy_for", "counts",
    "delete_as", "delete_once", "entry", "find_memory", "finish_flight", "flight_of", "forget",
    "get_batch", "get_once", "glance", "glance_at", "glance_by", "glanced", "grow", "have_memory",
    "have_ready", "hold", "hold_ledger", "hold_once", "hold_parts", "image_of", "invalidate",
    "is_linked", "is_log", "left_by", "let_go", "let_go_of", "link_reserved", "listed", "look_for",
    "losses_survived", "make", "make_object", "mend", "object_size", "own_counts", "proved",
    "purge", "reconcile", "recover_holder", "references", "refill", "replaced", "require_there",
    "reserve_object", "resolved", "resume", "run", "run_batch", "search_batch", "search_once",
    "show_progress", "slots_taken", "staging", "stop_words", "take", "touch", "unmake", "value_log",
    "while_there", "within", "write", "write_entry",
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
    **_plain("popitem", "clear"),
    "get": lambda d, key: d.get(0),
    "pop": lambda d, key: d.pop(1, None),
    "setdefault": lambda d, key: d.setdefault(99, 1),
    "update": lambda d, key: d.update({2: 3}),
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
    "view": lambda d, key: d.view(0),
    "changes": lambda d, key: d.changes(),
    "copy": lambda d, key: d.copy(),
    "compare_and_set": lambda d, key: d.compare_and_set(0, 0, 1),
    "update_with": lambda d, key: d.update_with(0, lambda value: value),
    "__or__": lambda d, key: d | {1: 2},
    "__ror__": lambda d, key: {1: 2} | d,
    "__ior__": lambda d, key: d.__ior__({1: 2}),
}


def _cache_lock(cache: Cache[Any, Any], key: object) -> None:
    with cache.lock("lock", 1):
        pass


async def _later() -> int:
    return 7


CACHE_ROWS: Final[Mapping[str, Row]] = {
    **_plain("expire", "stats", "check"),
    **MAPPING_ROWS,
    "view": lambda c, key: c.view(0),
    "resize": lambda c, key: c.resize(max_items=c.stats()["max_items"]),
    "set": lambda c, key: c.set(0, 1, ttl=1),
    "add": lambda c, key: c.add(98, 1),
    "replace": lambda c, key: c.replace(0, 1),
    "touch": lambda c, key: c.touch(0, 1),
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


OWN_OF_CHANNELS: Final = frozenset({
    "enter", "joined", "leave", "lives", "mark", "mark_address", "on_join", "on_leave",
    "open_rows", "operation", "participants", "region", "removed", "row", "suits", "take_part",
    "title", "vacates",
})  # fmt: skip
COMMON: Final = plain("refresh", "resign")
"""Methods of every channel."""


def _channel(kind: str) -> Calls:
    channel = CHANNELS[kind]
    methods = {**COMMON, **channel.methods}
    return Calls(
        lambda pool: channel.open(pool, NAME),
        {name: _of_handle(call) for name, call in methods.items()},
        OWN_OF_CHANNELS | channel.own,
        channel.private,
        remove=lambda pool: pool.channels.remove(NAME),
    )


# ---- the pool ---------------------------------------------------------------------------------


def _pool(pool: Pool) -> Pool:
    _store("race")(pool)
    return pool


def _snapshot(pool: Pool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pool.snapshot(f"{folder}/pool")


POOL_ROWS: Final[Mapping[str, Row]] = {
    **_plain("audit", "client_id", "clients", "close", "closed", "events"),
    **_plain("growth", "hosts", "nodes", "recover", "whole_since"),
    "add_node": lambda p, key: p.add_node(),
    "array": lambda p, key: p.array("a", 4),
    "barrier": lambda p, key: p.barrier("b", 1),
    "bounded_semaphore": lambda p, key: p.bounded_semaphore("bs"),
    "cache": lambda p, key: p.cache("c"),
    "channels": lambda p, key: p.channels.list(),
    "condition": lambda p, key: p.condition("cond"),
    "counter": lambda p, key: p.counter("n"),
    "create": lambda p, key: None,
    "deque": lambda p, key: p.deque("dq"),
    "dict": lambda p, key: p.dict("d"),
    "drop": lambda p, key: (p.store("race", "dropped"), p.drop("dropped")),
    "event": lambda p, key: p.event("e"),
    "fail_node": lambda p, key: p.fail_node(p.parameters.nodes - 1),
    "lock": lambda p, key: p.lock("l"),
    "object": lambda p, key: p.object("o"),
    "objects": lambda p, key: p.objects("os", 3),
    "open": lambda p, key: None,
    "queue": lambda p, key: p.queue("q"),
    "rename": lambda p, key: (p.store("race", "old"), p.rename("old", "new")),
    "replace_node": lambda p, key: p.replace_node(0),
    "ring": lambda p, key: p.ring("r"),
    "rwlock": lambda p, key: p.rwlock("rw"),
    "semaphore": lambda p, key: p.semaphore("sem"),
    "snapshot": lambda p, key: _snapshot(p),
    "store": lambda p, key: p.store("race", "s"),
    "stores": lambda p, key: p.stores(count=True),
    "temporary": lambda p, key: None,
    "topic": lambda p, key: p.topic("t"),
    "transaction": lambda p, key: p.transaction(lambda tx: tx.__setitem__("name", b"v")),
    "watch": lambda p, key: next(p.watch(until_destroyed=False)) if p.closed else None,
    "__enter__": _with,
    "__exit__": _with,
}
OWN_OF_POOLS: Final = frozenset({
    "attached", "bare", "create_filled", "depart_at_exit", "entry_of", "exclusively",
    "free_unreachable", "is_in_place", "keep_up", "keepers", "handle_at", "handle_if_there",
    "handle_of", "idents", "known_stores", "linking", "make_contents", "mark_failed",
    "objects_store", "of_stores", "parameters_of", "references", "restored", "segments",
    "stay_to_the_end", "stopping_stores", "stored", "strays",
})  # fmt: skip
PRIVATE_OF_POOLS: Final = frozenset(
    {
        "close",
        "closed",
        "create",
        "object",
        "open",
        "temporary",
        "whole_since",
        "__enter__",
        "__exit__",
    }
)
MANAGER_ROWS: Final[Mapping[str, Row]] = {
    **_plain("fence", "list", "names"),
    "open": lambda m, key: m.open(SST, "table", participants=2),
    "remove": lambda m, key: m.remove("table"),
}
OWN_OF_MANAGERS: Final = frozenset({
    "attach", "catalogue", "clear", "complete", "follow", "forget", "issue", "kind_of",
    "let_go", "parameters_of", "region", "replaced", "require_not_lost", "wait_for",
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
            "await_holder", "commit", "conflict", "end", "holds", "is_doomed", "looks",
            "met_while_reading", "recalls",
            # of named objects, which no call drops, and of objects below
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
