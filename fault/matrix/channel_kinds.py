"""The tests of each kind of channel. A new kind is registered in CHANNELS.

A kind has a way to open a handle, the calls at whose steps a client is killed, and a *round*: every
call of the channel, by one client alone, with the result that each must return. Survivors and
successors of dead clients make the round in the crash matrix (channel_matrix.py), and clients make
it in damaged memory (damage.py): there any result is allowed but a signal, a hang, or an
undocumented error.

Every call that waits is given a time: `patience_s`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import queue
from collections.abc import Callable, Mapping
from typing import Any, Final

from limpet.fault.matrix.operations import demand
from limpet.shm.errors import BrokenBarrierError, TasksLost
from limpet.stores.channels.atomic_var import AtomicVar
from limpet.stores.channels.owned_var import OwnedVar
from limpet.stores.channels.power_controller import PowerController
from limpet.stores.channels.rendezvous import Rendezvous
from limpet.stores.channels.shared_region import SharedRegion
from limpet.stores.channels.sst import SST
from limpet.stores.pool import Pool

Judge = Callable[[Any, float], None]
TEXT: Final = "text of the drill "
WIDE: Final = b"twenty-four bytes of it."


@dataclasses.dataclass(frozen=True)
class Channels:
    """One kind of channel.

    `prepare(handle)` sets the state in which `calls` begin; the survivor calls it before each run.
    `judge(handle, patience_s)` demands that a killed call happened or did not. `round(handle,
    patience_s)` demands the results that a client alone may rely on. `release(handle)`: the step of
    a client after that, where the next client can begin only then. `fresh`: needs a new pool each
    time. `waits_for_ever`: as in its paper it waits for a missing participant, and takes no
    timeout.
    """

    open: Callable[[Pool, str], Any]
    calls: Mapping[str, Callable[[Any], object]]
    round: Judge
    prepare: Callable[[Any], object] = lambda handle: None
    judge: Judge = lambda handle, patience_s: None
    release: Callable[[Any], object] = lambda handle: None
    fresh: bool = False
    waits_for_ever: bool = False
    checksum: str = "none: its words are changed one by one, each by an atomic verb"
    expected: tuple[type[Exception], ...] = ()
    """Errors that calls are documented to raise, besides those of limpet."""


# ---- words ------------------------------------------------------------------------------------


def _counter(handle: Any, patience_s: float) -> None:
    before = handle.value
    handle.add(2)
    demand(handle.value == before + 2, "add() was lost")
    handle.set(-7)
    demand(handle.value == -7, "set() was lost")
    handle.set(5)


def _one_of(what: str, *values: Any) -> Judge:
    def judge(handle: Any, patience_s: float) -> None:
        found = getattr(handle, what)
        found = found() if callable(found) else found
        demand(found in values, f"{what} is {found!r}, not one of {values}")

    return judge


def _array(handle: Any, patience_s: float) -> None:
    handle[1] = 41
    handle.add(1)
    handle[2:4] = [7, 8]
    demand(list(handle)[1:4] == [42, 7, 8], f"the array has {list(handle)[:4]}")
    demand(handle[2:4].tolist() == [7, 8], "a slice differs from the elements")
    _array_clear(handle)


def _array_judge(handle: Any, patience_s: float) -> None:
    first, *rest = list(handle)[:4]
    demand(first in (0, 3), f"the first element is {first}")
    demand(rest in ([0, 0, 0], [1, 0, 0], [1, 2, 0], [1, 2, 3]), f"the elements are {rest}")


def _array_clear(handle: Any) -> None:
    handle[0:4] = [0, 0, 0, 0]


def _array_slice(handle: Any) -> None:
    handle[1:4] = [1, 2, 3]


def _doubles(handle: Any, patience_s: float) -> None:
    handle[1] = 0.5
    handle.add(1, 0.25)
    demand(handle[1] == 0.75, f"the element is {handle[1]}")
    demand(len(list(handle)) == len(handle), "the array's length differs from its elements")


def _striped(handle: Any, patience_s: float) -> None:
    """Of three rows, two lie in the first stripe."""
    handle[1, 2] = 41
    demand(handle.add((1, 2)) == 42, "add() was lost")
    handle[1:3] = [[7, 8, 9], [10, 11, 12]]
    demand(handle.swap((2, 0), 5) == 10, "swap() returned something else")
    demand(handle.compare_and_swap((2, 0), 5, 10), "compare_and_swap() found something else")
    demand(handle[1:].tolist() == [[7, 8, 9], [10, 11, 12]], f"the array has {handle[...]}")
    demand(sum(len(part) for _, part in handle.parts()) == 3, "a stripe is missing")
    _striped_clear(handle)


def _striped_clear(handle: Any) -> None:
    handle[...] = 0


def _striped_rows(handle: Any) -> None:
    handle[1:] = [[1, 2, 3], [4, 5, 6]]


def _striped_judge(handle: Any, patience_s: float) -> None:
    first, rest = handle[0, 2], handle[1:].ravel().tolist()
    demand(first in (0, 3), f"the element is {first}")
    done = [number for number in rest if number]
    whole = list(range(1, 7))
    demand(rest == whole[: len(done)] + [0] * (6 - len(done)), f"the rows are {rest}")


def _atomic(handle: Any, patience_s: float) -> None:
    handle.store(3)
    demand(handle.faa(4) == 3 and handle.load() == 7, "faa() was lost")
    demand(handle.swap(1) == 7, "swap() returned something else")
    demand(handle.cas(1, 9) == 1 and handle.load() == 9, "cas() was lost")


def _owned(handle: Any, patience_s: float) -> None:
    handle.store(WIDE)
    handle.push().wait()
    demand(handle.load() == WIDE, "what was pushed was lost")


def _owned_push(handle: Any) -> None:
    handle.store(WIDE[::-1])
    handle.push().wait()


def _table(handle: Any, patience_s: float) -> None:
    handle.store_mine(77)
    handle.push_broadcast().wait()
    demand(handle.mine().load() == 77, "what was pushed was lost")
    demand(77 in [row.load() for row in handle], "the own row is not among the participants'")


def _table_push(handle: Any) -> None:
    handle.store_mine(9)
    handle.push_broadcast().wait()


def _region(handle: Any, patience_s: float) -> None:
    for row in range(2):
        handle.write(row, 8, WIDE).wait()
        demand(handle.read(row, 8, len(WIDE)) == WIDE, "what was written was lost")
    handle.refresh()


def _power(handle: Any, patience_s: float) -> None:
    handle.push(handle.duty, [0.5] * len(handle.duty))
    demand(handle.take(handle.duty) == [0.5] * len(handle.duty), "what was pushed was lost")
    handle.take(handle.voltage)


# ---- events, barriers, locks ------------------------------------------------------------------


def _event(handle: Any, patience_s: float) -> None:
    handle.set()
    demand(handle.is_set() and handle.wait(patience_s), "it was set, and is not")
    handle.clear()
    demand(not handle.is_set() and not handle.wait(0), "it was cleared, and is not")


def _barrier(handle: Any, patience_s: float) -> None:
    for last in (False, True):
        try:
            demand(handle.wait(patience_s) == 0, "the only party is not the first")
            return
        except BrokenBarrierError as error:
            demand(not last, f"it is broken after reset(): {error}")
            handle.reset()


def _barrier_break(handle: Any) -> None:
    handle.abort()
    handle.reset()


def _rendezvous(handle: Any, patience_s: float) -> None:
    handle.waiting()


def _lock(handle: Any, patience_s: float) -> None:
    demand(handle.acquire(timeout=patience_s), "the lock was not to be had")
    demand(handle.locked(), "the lock that we hold is free")
    handle.release()
    demand(handle.acquire(timeout=patience_s), "the lock that we released was not to be had")
    demand(not handle.inherited, "a lock that was released is said to be inherited")
    handle.release()
    demand(not handle.locked(), "the lock that we released is held")


def _locked(handle: Any) -> None:
    with handle:
        pass


def _locked_again(handle: Any) -> None:
    handle.acquire()
    handle.release()
    handle.acquire(blocking=False)
    handle.release()


def _condition(handle: Any, patience_s: float) -> None:
    demand(handle.acquire(timeout=patience_s), "the condition's lock was not to be had")
    demand(not handle.wait(0), "wait() returned True without a notification")
    handle.notify_all()
    demand(handle.wait_for(lambda: 7, patience_s) == 7, "wait_for() returned something else")
    handle.release()


def _notify(handle: Any) -> None:
    with handle:
        handle.notify()


# ---- queues and rings -------------------------------------------------------------------------


def _drain(handle: Any, limit: int = 1000) -> list[Any]:
    found: list[Any] = []
    with contextlib.suppress(queue.Empty):
        while len(found) < limit:
            found.append(handle.get_nowait())
            handle.task_done()
    return found


def _queue(handle: Any, patience_s: float) -> None:
    _drain(handle)
    items = [TEXT + str(number) * size for number, size in ((1, 1), (2, 300), (3, 1), (4, 5))]
    for item in items[:2]:
        handle.put(item, timeout=patience_s)
    handle.put_many(items[2:], timeout=patience_s)
    demand(handle.full() and handle.qsize() == 4, f"qsize() is {handle.qsize()}, not 4")
    found = [handle.get(timeout=patience_s)]
    while len(found) < 4:
        found += handle.get_many(3, timeout=patience_s)
    demand(found == items, f"the queue gave {found}")
    for _ in found:
        handle.task_done()
    demand(handle.empty(), "it is empty, and says that it is not")
    with contextlib.suppress(TasksLost):
        demand(handle.join(patience_s), "all was done, and join() did not return")
    handle.forget_lost()
    demand(handle.join(patience_s), "all was done, and join() did not return")


def _queue_prepare(handle: Any) -> None:
    _drain(handle)
    handle.forget_lost()
    handle.put_many([TEXT + "a", TEXT + "b" * 300], timeout=1)


def _queue_judge(handle: Any, patience_s: float) -> None:
    found = [item.removeprefix(TEXT) for item in _drain(handle)]
    long = "b" * 300
    before = [["a", long], [long], []]
    demand(
        found in [*before, ["a", long, "c"], ["a", long, "c" * 300], ["a", long, "c", "d"]],
        f"the queue had {[item[:3] for item in found]}",
    )


def _queue_get(handle: Any) -> None:
    handle.get_nowait()
    handle.get_nowait()
    handle.task_done()
    handle.task_done()


def _ring(handle: Any, patience_s: float) -> None:
    handle.subscribe()
    items = [TEXT + str(number) * size for number, size in ((1, 1), (2, 90), (3, 1), (4, 30))]
    for item in items * 2:
        handle.send(item, timeout=patience_s)
        found = handle.receive(timeout=patience_s)
        demand(found == item, f"the ring gave {found!r}, not {item!r}")
    handle.subscribe(start="oldest")
    with contextlib.suppress(queue.Empty):
        for _ in range(100):
            handle.receive_nowait()
    handle.unsubscribe()


def _ring_send(handle: Any) -> None:
    handle.send(TEXT + "the victim's")
    handle.send(TEXT + "the victim's " * 9)
    handle.close()


def _ring_receive(handle: Any) -> None:
    handle.subscribe(start="oldest")
    with contextlib.suppress(queue.Empty):
        while True:
            handle.receive_nowait()
    handle.close()


def _ring_prepare(handle: Any) -> None:
    handle.send(TEXT + "a message", timeout=1)
    handle.send(TEXT + "a message " * 6, timeout=1)
    handle.close()


def _ring_judge(handle: Any, patience_s: float) -> None:
    handle.subscribe(start="oldest")
    found: list[str] = []
    with contextlib.suppress(queue.Empty):
        while True:
            found.append(handle.receive_nowait().removeprefix(TEXT))
    allowed = {"a message", "a message " * 6, "the victim's", "the victim's " * 9, "1", "3"}
    allowed |= {"2" * 90, "4" * 30}
    demand(not set(found) - allowed, f"the ring has {found}")
    handle.unsubscribe()


_RING_CALLS: Final = {"send": _ring_send, "receive": _ring_receive}
_LOCK_CALLS: Final = {"with": _locked, "acquire twice": _locked_again}


def _ring_of(overrun: str) -> Channels:
    return Channels(
        lambda pool, name: pool.ring(name, 512, overrun=overrun), _RING_CALLS, _ring, _ring_prepare,
        _ring_judge, release=lambda handle: handle.close(),
        expected=(queue.Full, queue.Empty, ValueError),
    )  # fmt: skip


CHANNELS: Final[Mapping[str, Channels]] = {
    "counter": Channels(
        lambda pool, name: pool.counter(name),
        {"add": lambda handle: handle.add(3), "set": lambda handle: handle.set(8)},
        _counter, lambda handle: handle.set(5), _one_of("value", 5, 8),
    ),
    "array": Channels(
        lambda pool, name: pool.array(name, 9),
        {"add": lambda handle: handle.add(0, 3), "slice": _array_slice},
        _array, _array_clear, _array_judge,
    ),
    "array-d": Channels(
        lambda pool, name: pool.array(name, 9, "d"),
        {"add": lambda handle: handle.add(0, 1.5)}, _doubles
    ),
    "array-striped": Channels(
        lambda pool, name: pool.array(name, (3, 3), "i2", stripes=2),
        {"add": lambda handle: handle.add((0, 2), 3), "rows": _striped_rows},
        _striped, _striped_clear, _striped_judge,
    ),
    "atomic_var": Channels(
        lambda pool, name: pool.channels.open(AtomicVar, name),
        {"swap": lambda handle: handle.swap(6), "faa": lambda handle: handle.faa(1)},
        _atomic, lambda handle: handle.store(5), _one_of("load", 5, 6),
    ),
    "owned_var": Channels(
        lambda pool, name: pool.channels.open(OwnedVar, name, size=len(WIDE)),
        {"push": _owned_push},
        _owned, lambda handle: _owned(handle, 1), _one_of("load", WIDE, WIDE[::-1]),
    ),
    "sst": Channels(
        lambda pool, name: pool.channels.open(SST, name, participants=16),
        {"push": _table_push}, _table
    ),
    "shared_region": Channels(
        lambda pool, name: pool.channels.open(SharedRegion, name, size=64, participants=16),
        {"write": lambda handle: handle.write(0, 8, WIDE).wait()}, _region, fresh=True,
    ),
    "power_controller": Channels(
        lambda pool, name: pool.channels.open(PowerController, name, converters=2),
        {"push": lambda handle: handle.push(handle.duty, [0.25, 0.75])}, _power,
    ),
    "event": Channels(
        lambda pool, name: pool.event(name),
        {"set": lambda handle: handle.set(), "clear": lambda handle: handle.clear()},
        _event, lambda handle: handle.set(), _one_of("is_set", True, False),
    ),
    "barrier": Channels(
        lambda pool, name: pool.barrier(name, 1),
        {"wait": lambda handle: handle.wait(1), "reset": _barrier_break}, _barrier,
    ),
    "barrier-continue": Channels(
        lambda pool, name: pool.barrier(name, 1, on_death="continue"),
        {"wait": lambda handle: handle.wait(1), "reset": _barrier_break}, _barrier,
    ),
    "rendezvous": Channels(
        lambda pool, name: pool.channels.open(Rendezvous, name, nodes=1),
        {"waiting": lambda handle: handle.waiting()}, _rendezvous,
        release=lambda handle: handle.sst.resign(), waits_for_ever=True,
    ),
    "lock": Channels(
        lambda pool, name: pool.lock(name), _LOCK_CALLS, _lock, expected=(RuntimeError,)
    ),
    "lock-recursive": Channels(
        lambda pool, name: pool.lock(name, recursive=True, overtaking=False), _LOCK_CALLS, _lock,
        expected=(RuntimeError,),
    ),
    "condition": Channels(
        lambda pool, name: pool.condition(name), {"notify": _notify}, _condition,
        expected=(RuntimeError,),
    ),
    "queue": Channels(
        lambda pool, name: pool.queue(name, 4, item_size=64),
        {
            "put": lambda handle: handle.put_nowait(TEXT + "c"),
            "put large": lambda handle: handle.put_nowait(TEXT + "c" * 300),
            "put many": lambda handle: handle.put_many([TEXT + "c", TEXT + "d"]),
            "get": _queue_get,
            "close": lambda handle: handle.close(),
        },
        _queue, _queue_prepare, _queue_judge, expected=(queue.Full, queue.Empty, ValueError),
    ),
    "ring": _ring_of("block"),
    "ring-skip": _ring_of("skip"),
}  # fmt: skip
