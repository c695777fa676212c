"""The drill of forks: what a process has, its forked child has not, nor does the child free it.

A process forks where code of its own runs while an object of the pool is its own: in the block of a
`with`, in a function that the object calls, between two calls that belong together. The child then

    exits     at once, by os._exit
    unwinds   raises SystemExit, which leaves every block on the way
    goes on   as if it were its parent, to the end of the block
    uses      the object anew, in a block of its own, while its parent goes on

It may get errors that say that it has nothing there. Beside it, and after it, the object must still
be its parent's: no other client gets it, and the parent goes on to the end without an error. Then
the child's client is recovered; a new child uses the object, as it is free; and stores, channels
and memory are sound.

An object comes in by a row in USES, a kind of store by itself, if it is registered.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import os
import queue
import signal
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from limpet.fault.drill.engine import Fault, demand_sound
from limpet.fault.inject.children import end_with_parent
from limpet.fault.matrix.fault_profile import profile_of
from limpet.fault.matrix.operations import Broken, demand
from limpet.fault.matrix.testbed import within
from limpet.shm.errors import LimpetError
from limpet.stores.cache.layout import OTHERS
from limpet.stores.channels.sst import SST
from limpet.stores.pool import Pool
from limpet.stores.registry import KINDS, store_class

PATIENCE_S: Final = 30.0
WAYS: Final = ("exits", "unwinds", "goes on", "uses")
KEYS: Final = [b"key %d" % number for number in range(8)]
TOLD: Final = (LimpetError, RuntimeError, ValueError, KeyError, queue.Empty, queue.Full)
"""Errors by which a child is told that it does not have what its parent has."""

Inside = Callable[[], object]


@dataclasses.dataclass(frozen=True)
class Use:
    """A use of an object. `hold` calls its second argument where the process has the object, which
    another handle tests by `held`."""

    hold: Callable[[Any, Inside], object]
    held: Callable[[Any], bool] = lambda other: True


# ---- channels -----------------------------------------------------------------------------------


def _lock(pool: Any, inside: Inside) -> None:
    with pool.lock("lock"):
        inside()


def _recursive_lock(pool: Any, inside: Inside) -> None:
    lock = pool.lock("recursive", recursive=True)
    with lock, lock:
        inside()


def _semaphore(pool: Any, inside: Inside) -> None:
    with pool.semaphore("semaphore", 1):
        inside()


def _rwlock(pool: Any, inside: Inside) -> None:
    with pool.rwlock("rwlock").write():
        inside()


def _condition(pool: Any, inside: Inside) -> None:
    condition = pool.condition("condition")
    with condition:
        condition.wait_for(lambda: inside() or True)
        condition.notify_all()


def _own(name: str) -> str:
    """A name that no other process uses, but for a child that goes on."""
    return f"{name} of {os.getpid()}"


def _barrier(pool: Any, inside: Inside) -> None:
    with contextlib.suppress(KeyError):
        pool.channels.remove(_own("barrier"))
    pool.barrier(_own("barrier"), 1, action=inside).wait(PATIENCE_S)


def _task(pool: Any, inside: Inside) -> None:
    tasks = pool.queue(_own("tasks"), 8)
    tasks.put("task", timeout=0)
    demand(tasks.get(timeout=PATIENCE_S) == "task", "another task is in the queue")
    inside()
    tasks.task_done()
    demand(tasks.join(0), "a task that was done is not done")


def _writer(pool: Any, inside: Inside) -> None:
    ring = pool.ring(_own("written"), 4096)
    ring.send_nowait("before")
    inside()
    ring.send_nowait("after")
    ring.close()


def _reader(pool: Any, inside: Inside) -> None:
    ring = pool.ring(_own("read"), 4096)
    ring.subscribe()
    ring.send_nowait("message")
    inside()
    demand(ring.receive_nowait() == "message", "another message is in the ring")
    ring.unsubscribe()
    ring.close()


def _register(pool: Any, inside: Inside) -> None:
    table = pool.channels.open(SST, "sst", participants=8)
    table.store_mine(os.getpid())
    table.push_broadcast()
    inside()
    demand(table.mine().load() == os.getpid(), "another process has written to the row")
    table.resign()


def _is_locked(name: str, **given: Any) -> Callable[[Any], bool]:
    return lambda other: not other.lock(name, **given).acquire(blocking=False)


def _no_writer(other: Any) -> bool:
    with contextlib.suppress(LimpetError):
        other.ring(_own("written"), 4096).send_nowait("another's")
        return False
    return True


# ---- caches, mappings, transactions -------------------------------------------------------------


def _cache_lock(pool: Any, inside: Inside) -> None:
    with pool.cache("cache").lock("key"):
        inside()


def _computation(pool: Any, inside: Inside) -> None:
    cache = pool.cache("cache")
    name, ours = _own("computed"), os.getpid()
    cache.pop(name, None)
    cache.get_or_compute(name, lambda: [inside(), os.getpid()])
    demand(cache[name] == [None, ours], "another process has computed the value")


def _coroutine(pool: Any, inside: Inside) -> None:
    cache = pool.cache("cache")
    name = _own("computed")
    cache.pop(name, None)

    async def compute() -> object:
        return inside()

    asyncio.run(cache.get_or_compute_async(name, compute))


@functools.lru_cache(maxsize=1)
def _numbers(pool: Any) -> Any:
    """The mapping that a process and its child both have."""
    return pool.dict("numbers")


def _update(pool: Any, inside: Inside) -> None:
    numbers = _numbers(pool)
    numbers["n"] = 0
    calls: list[int] = []

    def add(number: int) -> int:
        if not calls:
            calls.append(number)
            inside()
        return number + 1

    numbers.update_with("n", add)


def _transaction(pool: Any, inside: Inside) -> None:
    calls: list[int] = []

    def work(transaction: Any) -> None:
        transaction["number"] = b"%d" % os.getpid()
        if not calls:
            calls.append(1)
            inside()

    pool.transaction(work)


def _is_computed(other: Any) -> bool:
    cache = other.cache("cache")
    name = cache.codec.encode_key(_own("computed"))
    return bool(cache.store.begin_flight(name, 0, 60_000)[0] == OTHERS)


# ---- stores -------------------------------------------------------------------------------------


def _store(pool: Any, kind: str) -> Any:
    given: dict[str, Any] = {"capacity": 300, **profile_of(kind).parameters}
    if "sherman" in kind:
        del given["capacity"]
    return pool.store(kind, name="forked", **given)


def _iteration(kind: str) -> Callable[[Any, Inside], None]:
    def walk(pool: Any, inside: Inside) -> None:
        store = _store(pool, kind)
        store.put_many([(key, b"value") for key in KEYS])
        for number, _ in enumerate(store):
            if number == 2:
                inside()
                store.put(KEYS[0], b"new value")
        demand(store.get(KEYS[0]) in (b"value", b"new value"), "a value is not there")

    return walk


def _view(kind: str) -> Callable[[Any, Inside], None]:
    def look(pool: Any, inside: Inside) -> None:
        store = _store(pool, kind)
        store.put(KEYS[0], b"viewed" * 50)
        with store.view(KEYS[0]) as value:
            inside()
            store.put(KEYS[0], b"replaced" * 50)
            for _ in range(20):
                store.put(KEYS[1], b"others" * 50)
            demand(bytes(value) == b"viewed" * 50, "a value has changed under its view")

    return look


def _reservation(kind: str) -> Callable[[Any, Inside], None]:
    def reserve(pool: Any, inside: Inside) -> None:
        store = _store(pool, kind)
        with store.reserve(KEYS[2], 300) as buffer:
            inside()
            buffer[:] = b"reserved".ljust(300)
        demand(store.get(KEYS[2]) == b"reserved".ljust(300), "what was reserved is not there")

    return reserve


def _handle(pool: Any, inside: Inside) -> None:
    with type(pool).open(pool.url) as mine:
        mine.dict("numbers")["handle"] = 1
        inside()
        demand(mine.dict("numbers")["handle"] == 1, "a value is not there")


VIEWING: Final = [kind for kind in KINDS if store_class(kind).views]
USES: Final[Mapping[str, Use]] = {
    "lock": Use(_lock, _is_locked("lock")),
    "lock, recursive": Use(_recursive_lock, _is_locked("recursive")),
    "semaphore": Use(_semaphore, lambda other: other.semaphore("semaphore").locked()),
    "rwlock": Use(_rwlock, lambda other: other.rwlock("rwlock").write().locked()),
    "condition": Use(
        _condition, lambda other: not other.condition("condition").acquire(blocking=False)
    ),
    "barrier": Use(_barrier, lambda other: other.barrier(_own("barrier"), 1).n_waiting == 1),
    "queue, a task": Use(_task, lambda other: not other.queue(_own("tasks")).join(0)),
    "ring, its writer": Use(_writer, _no_writer),
    "ring, a reader": Use(_reader),
    "sst, a row": Use(_register),
    "cache, a lock": Use(
        _cache_lock, lambda other: not other.cache("cache").lock("key").acquire(blocking=False)
    ),
    "cache, a computation": Use(_computation, _is_computed),
    "cache, a coroutine": Use(_coroutine, _is_computed),
    "dict, update_with": Use(_update),
    "transaction": Use(_transaction),
    "handle": Use(_handle),
    **{f"{kind}, iteration": Use(_iteration(kind)) for kind in KINDS},
    **{f"{kind}, view": Use(_view(kind)) for kind in VIEWING},
    **{f"{kind}, reservation": Use(_reservation(kind)) for kind in VIEWING},
}


class Forks(Fault):
    """Forks in one use. There are no steps."""

    broken = (Broken, *TOLD)
    pool_class = Pool

    def __init__(self, subject: str, url: str) -> None:
        super().__init__(subject, url)
        self.forked = False
        """Whether this is the child."""
        self.running: list[int] = []
        """Children that have not been reaped."""

    def settings(self, way: str) -> dict[str, Any]:
        return {"nodes": 3, "node_size": "8MiB"}

    def open(self) -> Use:
        return USES[self.subject]

    def strike(self, way: str) -> None:
        try:
            with Pool.open(self.url) as other, within(PATIENCE_S, "a process or its child"):
                self._drill(self.pool, other, self.work, way)
        finally:
            for child in self.running:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            self.running.clear()

    def _drill(self, pool: Pool, other: Pool, use: Use, way: str) -> None:
        def inside() -> None:
            if self.forked:
                return
            if way == "uses":
                self._child(lambda: use.hold(pool, lambda: None))
                return
            self._fork(way)
            demand(use.held(other), "another client gets it while its owner is inside")

        use.hold(pool, lambda: None)
        try:
            use.hold(pool, inside)
        except SystemExit:
            if not self.forked:
                raise
        except (*TOLD, Broken):
            if not self.forked:
                raise
        except BaseException:
            if self.forked:
                traceback.print_exc()
                os._exit(1)
            raise
        finally:
            if self.forked:
                self._end_well(pool)
        demand(self.runs > 0, "the process has not forked")
        self._child(lambda: use.hold(pool, lambda: None))
        self._reap()
        demand_sound(pool)
        clients = pool.clients()
        demand(len(clients) == 2, f"clients are left: {clients}")

    def _fork(self, way: str) -> None:
        parent = os.getpid()
        child = os.fork()
        if child:
            self.runs += 1
            self.running.append(child)
            self._reap()
            return
        self.forked = True
        end_with_parent(parent)
        if way == "exits":
            os._exit(0)
        if way == "unwinds":
            raise SystemExit

    def _child(self, work: Callable[[], object]) -> None:
        """Fork a child that does some work."""
        parent = os.getpid()
        self.runs += 1
        child = os.fork()
        if child == 0:
            self.forked = True
            status = 1
            try:
                end_with_parent(parent)
                work()
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        self.running.append(child)

    def _reap(self) -> None:
        """Wait for the children, which must end well."""
        while self.running:
            status = os.waitstatus_to_exitcode(os.waitpid(self.running[0], 0)[1])
            self.running.pop(0)
            demand(not status, f"a child has ended with {status}")

    def _end_well(self, pool: Pool) -> NoReturn:
        """End the child, as one that has used the handle and closes it."""
        status = 1
        try:
            pool.close()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
