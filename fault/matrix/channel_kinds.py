"""The table of channels: one row for each kind, which all drills read. A new kind is a row here.

A row says how the kind is made, which operations it has, what a turn and a round of work are, and
what must hold. A *round* is every call of the channel, by one client alone, with the result that
each must return: survivors and successors of dead clients make it in the crash matrix
(channel_matrix.py), clients in damaged memory (damage.py), where any result is allowed but a
signal, a hang, or an undocumented error, and another client after cuts (cuts.py). A *turn* is the
work of one of several clients, which comes back in bounded time as long as no client keeps what it
needs (subjects.py): a kind without one is a part of others, or an example. Full memory
(full_memory.py) refuses pages to all kinds; calls.py has all `methods`.

Every call that waits is given a time: `patience_s`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from limpet.fault.matrix.operations import demand
from limpet.shm.endpoint.slots import INCARNATION_BITS
from limpet.shm.errors import BrokenBarrierError, ChannelFull, ResultExpired, TasksLost
from limpet.stores.channels.atomic_var import AtomicVar
from limpet.stores.channels.owned_var import OwnedVar
from limpet.stores.channels.power_controller import PowerController
from limpet.stores.channels.rendezvous import Rendezvous
from limpet.stores.channels.shared_region import SharedRegion
from limpet.stores.channels.sst import SST
from limpet.stores.pool import Pool

Open = Callable[[Pool, str], Any]
Call = Callable[[Any], object]
Judge = Callable[[Any, float], None]
Turn = Callable[[Any, int], object]
TEXT: Final = "text of the drill "
WIDE: Final = b"twenty-four bytes of it."
SOON_S: Final = 0.002
"""A method that waits gives up after this."""
KEEP_S: Final = 0.001
"""The result of a job is kept for this time."""
MANY: Final = 1000
"""More elements and holds than there are, but in damaged memory."""
TURN_S: Final = 1.0
"""A turn that waits for others gives up after this."""


@dataclasses.dataclass(frozen=True)
class Channels:
    """One kind of channel.

    `calls`: those at whose steps clients are killed and cut off. `prepare(handle)` sets the state
    in which they begin; `judge(handle, patience_s)` demands that a call that was killed happened or
    did not, and so that the state is there if there was none. `round(handle, patience_s)` demands
    the results that a client alone may rely on. `release(handle)`: the step of a client after that,
    where the next client can begin only then. `fresh`: needs a new pool each time.
    `waits_for_ever`: as in its paper it waits for a missing participant, and takes no timeout.

    `turn(handle, number)` makes a change, and `read(handle, number)` reads what others change, on a
    handle of `shared`, or of `open`. `large` opens one that takes pages of several blocks.

    `methods`: a call of each public method; `own`: the public methods that limpet calls itself;
    `private`: those that look at no shared memory.
    """

    open: Open
    calls: Mapping[str, Call]
    round: Judge
    prepare: Call = lambda handle: None
    judge: Judge = lambda handle, patience_s: None
    release: Call = lambda handle: None
    fresh: bool = False
    waits_for_ever: bool = False
    checksum: str = "none: its words are changed one by one, each by an atomic verb"
    expected: tuple[type[Exception], ...] = ()
    """Errors that calls are documented to raise, besides those of limpet."""
    turn: Turn | None = None
    read: Turn = lambda handle, number: None
    shared: Open | None = None
    large: Open | None = None
    methods: Mapping[str, Call] = dataclasses.field(default_factory=dict)
    own: frozenset[str] = frozenset()
    private: frozenset[str] = frozenset()


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
    handle[1:3, :3] = [[7, 8, 9], [10, 11, 12]]
    demand(handle.swap((2, 0), 5) == 10, "swap() returned something else")
    demand(handle.compare_and_swap((2, 0), 5, 10), "compare_and_swap() found something else")
    demand(handle[1:, :3].tolist() == [[7, 8, 9], [10, 11, 12]], f"the array has {handle[1:, :3]}")
    demand(sum(len(part) for _, part in handle.parts()) == 3, "a stripe is missing")
    _striped_clear(handle)


def _striped_clear(handle: Any) -> None:
    handle[:, :3] = 0


def _striped_rows(handle: Any) -> None:
    handle[1:, :3] = [[1, 2, 3], [4, 5, 6]]


def _striped_judge(handle: Any, patience_s: float) -> None:
    first, rest = handle[0, 2], handle[1:, :3].ravel().tolist()
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


def _barrier_prepare(handle: Any) -> None:
    if handle.broken:
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


def _let_go(handle: Any) -> None:
    """Release the lock if this thread has it, as after a call that was cut off."""
    with contextlib.suppress(RuntimeError):
        for _ in range(MANY):
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


def _semaphore(handle: Any, patience_s: float) -> None:
    """Of one or two permits."""
    count = handle.limit
    free = [handle.acquire(timeout=patience_s) for _ in range(count)]
    demand(all(free), f"a permit was not to be had: {handle!r}")
    demand(not handle.acquire(False) and handle.locked(), f"one more permit was had: {handle!r}")
    handle.release(count)
    for wanted in (count - 1, count):
        with handle if wanted < count else contextlib.nullcontext():
            found = handle.get_value()
            demand(found == wanted, f"it has {found} permits, and not {wanted}: {handle!r}")


def _release_all(handle: Any) -> None:
    """Give back what this client holds, as after a call that was cut off."""
    handle.resign()


def _acquire_two(handle: Any) -> None:
    handle.acquire()
    handle.release(1 + handle.acquire(timeout=TURN_S))


def _rwlock(handle: Any, patience_s: float) -> None:
    for side in (handle.read(patience_s), handle.write(patience_s), handle.read(patience_s)):
        with side:
            demand(side.locked(), "what we have is free")
            other = handle.read() if side.line else handle.write()
            demand(not other.acquire(False), f"it was had for both uses: {handle!r}")
        demand(not side.locked(), f"what we gave back is not free: {handle!r}")
    with handle.write(patience_s) as side:
        demand(not side.inherited, "it is said to be inherited, and was given back")


def _read_write(handle: Any) -> None:
    with handle.read(), handle.read():
        pass
    with handle.write():
        pass


# ---- queues and rings -------------------------------------------------------------------------


def _drain(handle: Any) -> list[Any]:
    found: list[Any] = []
    with contextlib.suppress(queue.Empty):
        while len(found) < MANY:
            found.append(handle.get_nowait())
            handle.task_done()
    return found


def _be_done(handle: Any) -> None:
    """Mark the tasks that this client has got as done, as after a call that was cut off."""
    with contextlib.suppress(ValueError):
        for _ in range(MANY):
            handle.task_done()


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


def _drain_jobs(handle: Any) -> tuple[list[Any], list[Any]]:
    """The jobs that are in the queue, and the dead letters. Results are kept no more afterwards."""
    found: tuple[list[Any], list[Any]] = ([], [])
    for values, source in zip(found, (handle, handle.dead_letters), strict=True):
        with contextlib.suppress(queue.Empty):
            while len(values) < MANY:
                with source.get_nowait() as delivery:
                    values.append(delivery.value)
    for _ in range(MANY):
        if not handle.counts()["kept"]:
            break
        time.sleep(KEEP_S)
        with contextlib.suppress(queue.Empty):
            handle.get_nowait()
    return found


def _jobs(handle: Any, patience_s: float) -> None:
    _drain_jobs(handle)
    items = [TEXT + str(number) * size for number, size in ((1, 1), (2, 300), (3, 1), (4, 5))]
    handle.put(items[0], timeout=patience_s, key="first")
    demand(not handle.put(items[1], timeout=patience_s, key="first"), "a key was put twice")
    handle.put(items[1], timeout=patience_s)
    handle.put_many(items[2:], timeout=patience_s, priority=1)
    demand(handle.full() and handle.qsize() == 4, f"qsize() is {handle.qsize()}, not 4")
    found = [handle.get(timeout=patience_s)]
    while len(found) < 4:
        found += handle.get_many(3, timeout=patience_s)
    values = [delivery.value for delivery in found]
    demand(values == [*items[2:], *items[:2]], f"the queue gave {values}")
    for delivery in found[2:]:
        delivery.ack()
    for delivery in found[:2]:
        delivery.nack(reason="again")
    for again in (handle.get(timeout=patience_s) for _ in range(2)):
        demand((again.deliveries, again.reason) == (2, "again"), f"it gave {again}")
        again.ack()
    job = handle.submit(items[0], keep_s=KEEP_S)
    handle.get(timeout=patience_s).ack(items[1])
    with contextlib.suppress(ResultExpired):
        demand(job.result(patience_s) == items[1], "the result of a job is another one")
    demand(handle.empty() and handle.join(patience_s), "all was done, and it says that it is not")
    _drain_jobs(handle)
    demand(handle.counts()["free"] == 4, f"the counts are {handle.counts()}")


def _jobs_prepare(handle: Any) -> None:
    _drain_jobs(handle)
    handle.put_many([TEXT + "a", TEXT + "b" * 300], timeout=1)


def _jobs_judge(handle: Any, patience_s: float) -> None:
    found, letters = ([item.removeprefix(TEXT) for item in part] for part in _drain_jobs(handle))
    a, b = "a", "b" * 300
    more: list[list[str]] = [[], ["c"], ["c" * 300], ["c", "d"]]
    allowed: list[tuple[list[str], list[str]]] = [([a, b, *put], []) for put in more]
    allowed += [([b], []), ([], []), ([b], [a]), (["c", a, b], [])]
    demand(
        (found, letters) in allowed,
        f"the queue had {[item[:3] for item in found]}, and dead letters {letters}",
    )


def _jobs_ack(handle: Any) -> None:
    for delivery in handle.get_many(2, False):
        with delivery:
            pass


def _jobs_fail(handle: Any) -> None:
    """Up to the dead letter; `a` is first in each turn."""
    for _ in range(handle.parameters["max_deliveries"]):
        handle.get_nowait().nack(reason="a reason of the victim")


def _jobs_retry(handle: Any) -> None:
    _jobs_fail(handle)
    handle.dead_letters.get_nowait().retry()


def _jobs_keep(handle: Any) -> None:
    handle.submit(TEXT + "c", priority=7, keep_s=KEEP_S)
    handle.get_nowait().ack("d" * 300)


def _settled(jobs: Any, call: Call) -> object:
    jobs.put(1, timeout=SOON_S)
    found: Any = call(jobs)
    for delivery in found if isinstance(found, list) else [found]:
        delivery.ack()
    return found


def _jobs_turn(handle: Any, number: int) -> None:
    with contextlib.suppress(queue.Full):
        handle.put(number, timeout=TURN_S)
    with contextlib.suppress(queue.Empty):
        handle.get_nowait().ack()


def _deque(handle: Any, patience_s: float) -> None:
    """Of four elements."""
    handle.clear()
    items = [TEXT + str(number) * size for number, size in ((1, 1), (2, 300), (3, 1), (4, 300))]
    handle.extend(items[1:3])
    handle.appendleft(items[0])
    handle.append(items[3])
    demand(len(handle) == 4 and list(handle) == items, f"the deque has {list(handle)}")
    demand(handle[1] == items[1] and handle[-1] == items[3], "an index gave another element")
    found = [handle.popleft(), handle.pop(), handle.popleft(), handle.pop()]
    demand(found == [items[0], items[3], items[1], items[2]], f"the deque gave {found}")
    demand(not handle, "it is empty, and says that it is not")


def _deque_prepare(handle: Any) -> None:
    handle.clear()
    handle.extend([TEXT + "a", TEXT + "b" * 300])


def _deque_judge(handle: Any, patience_s: float) -> None:
    found = [item.removeprefix(TEXT) for item in handle]
    a, b, c = "a", "b" * 300, "c" * 300
    before = [[a, b], [b], [a], []]
    demand(
        found in [*before, [a, b, c], [c, a, b], [a, b, "c"]],
        f"the deque had {[item[:3] for item in found]}",
    )


def _deque_drop(handle: Any) -> None:
    """Each of these drops one at the other end."""
    handle.extend([TEXT + "c", TEXT + "d" * 300, TEXT + "e"])
    handle.appendleft(TEXT + "f" * 300)


def _deque_drop_judge(handle: Any, patience_s: float) -> None:
    found = "".join(item.removeprefix(TEXT)[0] for item in handle)
    demand(found in ("ab", "abc", "abcd", "bcde", "fbcd"), f"the deque had {found}")


def _deque_turn(handle: Any, number: int) -> None:
    handle.append(number)
    with contextlib.suppress(IndexError):
        handle.popleft()


def _topic(handle: Any, patience_s: float) -> None:
    """Of four messages."""
    items = [TEXT + str(number) * size for number, size in ((1, 1), (2, 300), (3, 1), (4, 300))]
    fast, slow = handle.subscribe(), handle.subscribe()
    for item in items * 2:
        handle.publish(item)
        demand(fast.get(timeout=patience_s) == item, "a message was not received")
    found = [slow.get(timeout=patience_s) for _ in range(4)]
    demand((found, slow.lost) == (items, 4), f"{slow.lost} were missed, and it gave {found}")
    late = handle.subscribe(start="oldest")
    demand([late.get_nowait() for _ in range(4)] == items, "not all that is kept was received")


def _topic_prepare(handle: Any) -> None:
    for text in ("a", "b" * 300):
        handle.publish(TEXT + text)


def _topic_judge(handle: Any, patience_s: float) -> None:
    reader = handle.subscribe(start="oldest")
    found: list[str] = []
    with contextlib.suppress(queue.Empty):
        while len(found) < MANY:
            found.append(reader.get_nowait().removeprefix(TEXT)[0])
    # Those of rounds before these have numbers.
    text = "".join(found).lstrip("1234")
    demand(text in ("ab", "abc", "abcd"), f"the topic has {text}")


def _topic_publish(handle: Any) -> None:
    handle.publish(TEXT + "c")
    handle.publish(TEXT + "d" * 300)


def _topic_read(handle: Any, number: int) -> None:
    with contextlib.suppress(queue.Empty):
        handle.subscribe(start="oldest").get_nowait()


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


_LOCK_CALLS: Final = {"with": _locked, "acquire twice": _locked_again}


# ---- turns, of several clients ------------------------------------------------------------------


def _queue_turn(handle: Any, number: int) -> None:
    with contextlib.suppress(queue.Full):
        handle.put(number, timeout=TURN_S)
    with contextlib.suppress(queue.Empty):
        handle.get_nowait()


def _ring_turn(handle: Any, number: int) -> None:
    try:
        handle.send(number, timeout=TURN_S)
    except ChannelFull:  # another client sends
        _ring_read(handle, number)


def _ring_read(handle: Any, number: int) -> None:
    if not handle.reader.ident:
        handle.subscribe()
    with contextlib.suppress(queue.Empty):
        handle.receive_nowait()


def _table_turn(handle: Any, number: int) -> None:
    handle.store_mine(number)
    handle.push_broadcast()


def _table_read(handle: Any, number: int) -> None:
    for variable in handle:
        variable.peek()


def _own_barrier(pool: Pool, name: str) -> Any:
    """Of one party: more would wait for each other by design. The slot's next client has it."""
    assert pool.client_id
    slot = pool.membership.ident >> INCARNATION_BITS
    return pool.barrier(f"{name} {slot}", 1, on_death="continue")


# ---- methods ------------------------------------------------------------------------------------


def plain(*names: str) -> dict[str, Call]:
    """Calls of methods without arguments, and of properties, by their names."""

    def of(name: str) -> Call:
        def call(handle: Any) -> object:
            found = getattr(handle, name)
            return found() if callable(found) else found

        return call

    return {name: of(name) for name in names}


def _within(call: Call) -> Call:
    def method(handle: Any) -> None:
        with handle:
            call(handle)

    return method


def _received(ring: Any) -> Any:
    ring.subscribe(start="oldest")
    with contextlib.suppress(queue.Empty):
        return ring.receive(timeout=SOON_S)


def _put_get(jobs: Any, call: Call) -> object:
    jobs.put(1, timeout=SOON_S)
    found = call(jobs)
    jobs.task_done()
    return found


def _origin(array: Any) -> tuple[int, ...]:
    return (0,) * int(array.ndim)


_ARRAY_METHODS: Final[Mapping[str, Call]] = {
    **plain("dtype", "nbytes", "ndim", "shape", "size", "__array__", "__dlpack_device__"),
    "add": lambda a: a.add(_origin(a)),
    "assign": lambda a: a.assign(..., 1),
    "bit_and": lambda a: a.bit_and(_origin(a), 1),
    "bit_or": lambda a: a.bit_or(_origin(a), 1),
    "bit_xor": lambda a: a.bit_xor(_origin(a), 1),
    "compare_and_swap": lambda a: a.compare_and_swap(_origin(a), 1, 2),
    "copied": lambda a: a.copied(...),
    "numpy": lambda a: a.numpy().copy(),
    "parts": lambda a: [part.copy() for _, part in a.parts()],
    "swap": lambda a: a.swap(_origin(a), 1),
    "__buffer__": lambda a: bytes(a.__buffer__()),
    "__delitem__": lambda a: a.__delitem__(0),
    "__dlpack__": lambda a: bool(a.__dlpack__()),
    "__getitem__": lambda a: a[_origin(a)],
    "__iter__": lambda a: list(a),
    "__len__": lambda a: len(a),
    "__setitem__": lambda a: a.__setitem__(..., 1),
}
_LOCK_METHODS: Final[Mapping[str, Call]] = {
    "acquire": lambda lock: lock.acquire(timeout=SOON_S),
    "inherited": lambda lock: lock.inherited,
    "release": lambda lock: (lock.acquire(timeout=SOON_S), lock.release()),
    "__enter__": _locked,
    "__exit__": _locked,
}

_HOLDERS: Final = frozenset(
    {
        "bury",
        "commit",
        "enter_line",
        "give",
        "give_back",
        "give_surely",
        "leave_line",
        "look_in_line",
        "obtain",
        "parts",
        "pass_over",
        "read_table",
        "value",
    }
)
_ARRAY: Final = Channels(
    lambda pool, name: pool.array(name, 9),
    {"add": lambda handle: handle.add(0, 3), "slice": _array_slice},
    _array, _array_clear, _array_judge,
    turn=lambda handle, number: handle.add(number % len(handle), 1),
    read=lambda handle, number: demand(handle[number % len(handle)] >= 0, "an element is negative"),
    large=lambda pool, name: pool.array(name, 3_000),
    methods=_ARRAY_METHODS,
    own=frozenset({"at_number", "lay_out", "lost", "number_of"}),
    private=frozenset(
        {"dtype", "nbytes", "ndim", "shape", "size", "__delitem__", "__dlpack_device__", "__len__"}
    ),
)  # fmt: skip
_DEQUE: Final = Channels(
    lambda pool, name: pool.deque(name, size=4, item_size=64),
    {
        "append": lambda handle: handle.append(TEXT + "c"),
        "append large": lambda handle: handle.append(TEXT + "c" * 300),
        "appendleft": lambda handle: handle.appendleft(TEXT + "c" * 300),
        "pop": lambda handle: handle.pop(),
        "popleft": lambda handle: handle.popleft(),
        "clear": lambda handle: handle.clear(),
    },
    _deque, _deque_prepare, _deque_judge, lambda handle: _let_go(handle.lock),
    expected=(queue.Full, IndexError, RuntimeError),
    turn=_deque_turn,
    read=lambda handle, number: list(handle),
    shared=lambda pool, name: pool.deque(name, 64),
    large=lambda pool, name: pool.deque(name, size=4, item_size=3_000),
    methods={
        **plain("clear", "copies", "maxlen", "__len__", "__bool__"),
        "append": lambda d: d.append(1),
        "appendleft": lambda d: d.appendleft(1),
        "extend": lambda d: d.extend([1]),
        "extendleft": lambda d: d.extendleft([1]),
        "pop": lambda d: (d.append(1), d.pop()),
        "popleft": lambda d: (d.append(1), d.popleft()),
        "__getitem__": lambda d: (d.append(1), d[0]),
        "__iter__": lambda d: list(d),
    },
    own=frozenset({"put_copies"}),
    private=frozenset({"maxlen"}),
)  # fmt: skip
_TOPIC: Final = Channels(
    lambda pool, name: pool.topic(name, 4, item_size=64), {"publish": _topic_publish},
    _topic, _topic_prepare, _topic_judge, lambda handle: _let_go(handle.lock),
    expected=(queue.Empty, RuntimeError),
    turn=lambda handle, number: handle.publish(number),
    read=_topic_read,
    large=lambda pool, name: pool.topic(name, 4, item_size=3_000),
    methods={
        **plain("published", "subscribe"),
        "publish": lambda t: t.publish(1),
    },
    own=frozenset({"receive"}),
)  # fmt: skip
_BARRIER: Final = Channels(
    lambda pool, name: pool.barrier(name, 1),
    {"wait": lambda handle: handle.wait(1), "reset": _barrier_break}, _barrier, _barrier_prepare,
    turn=lambda handle, number: handle.wait(TURN_S),
    read=lambda handle, number: demand(not handle.broken, "the barrier is broken"),
    shared=_own_barrier,
    methods={
        **plain("abort", "broken", "n_waiting", "parties", "reset"),
        "wait": lambda b: b.wait(SOON_S),
    },
    own=frozenset(
        {
            "announce", "came_as", "change", "check_participants", "expire", "give_up", "look",
            "missed", "regroup", "regrouped", "vacates_register",
        }
    ),
    private=frozenset({"parties"}),
)  # fmt: skip
_LOCK: Final = Channels(
    lambda pool, name: pool.lock(name), _LOCK_CALLS, _lock, judge=_lock, release=_let_go,
    expected=(RuntimeError,),
    turn=lambda handle, number: _locked(handle),
    read=lambda handle, number: handle.locked(),
    methods={**_LOCK_METHODS, "locked": lambda lock: lock.locked()},
    private=frozenset({"inherited"}),
)  # fmt: skip
_RING: Final = Channels(
    lambda pool, name: pool.ring(name, 512),
    {"send": _ring_send, "receive": _ring_receive}, _ring, _ring_prepare, _ring_judge,
    release=lambda handle: handle.close(), expected=(queue.Full, queue.Empty, ValueError),
    turn=_ring_turn, read=_ring_read,
    # Its writer waits for no reader.
    shared=lambda pool, name: pool.ring(name, 4096, overrun="skip"),
    large=lambda pool, name: pool.ring(name, 20_000),
    methods={
        **plain("close", "lost", "subscribe", "unsubscribe"),
        "receive": _received,
        "receive_nowait": lambda ring: (ring.subscribe(), ring.receive_nowait()),
        "send": lambda ring: ring.send(1, SOON_S),
        "send_nowait": lambda ring: ring.send_nowait(1),
        "__iter__": lambda ring: (ring.subscribe(), iter(ring)),
    },
    private=frozenset({"close", "lost", "unsubscribe"}),
)  # fmt: skip


_SEMAPHORE: Final = Channels(
    lambda pool, name: pool.semaphore(name, 2),
    {"with": _locked, "two": _acquire_two}, _semaphore, judge=_semaphore, release=_release_all,
    expected=(RuntimeError, ValueError),
    turn=lambda handle, number: _locked(handle),
    read=lambda handle, number: handle.get_value(),
    shared=lambda pool, name: pool.semaphore(name, 1),
    methods={
        **plain("get_value", "inherited", "locked"),
        "acquire": lambda s: s.acquire(timeout=SOON_S),
        "release": lambda s: (s.acquire(timeout=SOON_S), s.release()),
        "__enter__": _locked,
        "__exit__": _locked,
    },
    own=_HOLDERS,
    private=frozenset({"inherited"}),
)  # fmt: skip
_RWLOCK: Final = Channels(
    lambda pool, name: pool.rwlock(name), {"read, write": _read_write}, _rwlock, judge=_rwlock,
    release=_release_all, expected=(RuntimeError, TimeoutError),
    turn=lambda handle, number: _within(lambda side: None)(handle.write(TURN_S)),
    read=lambda handle, number: _within(lambda side: None)(handle.read(TURN_S)),
    methods={
        **plain("inherited"),
        "read": lambda lock: _within(lambda side: side.locked())(lock.read(SOON_S)),
        "write": lambda lock: _within(lambda side: side.locked())(lock.write(SOON_S)),
    },
    own=_HOLDERS | {"check_wait", "drop", "is_taken", "take", "take_in_line", "uses"},
    private=frozenset({"inherited"}),
)  # fmt: skip


def _variant(of: Channels, opened: Open, **changes: Any) -> Channels:
    """Another way to open a channel: the turns and the size are those of the first one."""
    return dataclasses.replace(of, open=opened, turn=None, large=None, **changes)


CHANNELS: Final[Mapping[str, Channels]] = {
    "counter": Channels(
        lambda pool, name: pool.counter(name),
        {"add": lambda handle: handle.add(3), "set": lambda handle: handle.set(8)},
        _counter, lambda handle: handle.set(5), _one_of("value", 5, 8),
        turn=lambda handle, number: handle.add(),
        read=lambda handle, number: handle.value,
        methods={
            **plain("add", "value"),
            "set": lambda c: c.set(1),
        },
    ),
    "array": _ARRAY,
    "array-d": _variant(
        _ARRAY, lambda pool, name: pool.array(name, 9, "d"),
        calls={"add": lambda handle: handle.add(0, 1.5)},
        round=_doubles, prepare=lambda handle: None, judge=lambda handle, patience_s: None,
    ),
    "array-striped": Channels(
        lambda pool, name: pool.array(name, (3, 3), "i2", stripes=2),
        {"add": lambda handle: handle.add((0, 2), 3), "rows": _striped_rows},
        _striped, _striped_clear, _striped_judge,
        large=lambda pool, name: pool.array(name, (3, 8_000), "i2", stripes=2),
        methods=_ARRAY_METHODS, own=_ARRAY.own, private=_ARRAY.private,
    ),
    "atomic_var": Channels(
        lambda pool, name: pool.channels.open(AtomicVar, name),
        {"swap": lambda handle: handle.swap(6), "faa": lambda handle: handle.faa(1)},
        _atomic, lambda handle: handle.store(5), _one_of("load", 5, 6),
        methods={
            "cas": lambda v: v.cas(0, 1),
            "faa": lambda v: v.faa(1),
            "load": lambda v: v.load(),
            "store": lambda v: v.store(1),
            "swap": lambda v: v.swap(1),
        },
    ),
    "owned_var": Channels(
        lambda pool, name: pool.channels.open(OwnedVar, name, size=len(WIDE)),
        {"push": _owned_push},
        _owned, lambda handle: _owned(handle, 1), _one_of("load", WIDE, WIDE[::-1]),
        methods={
            "load": lambda v: v.load(),
            "push": lambda v: v.push().wait(),
            "store": lambda v: v.store(bytes(24)),
        },
        own=frozenset({"clear", "is_second_older", "is_whole", "peek", "place"}),
        private=frozenset({"store"}),
    ),
    "sst": Channels(
        lambda pool, name: pool.channels.open(SST, name, participants=pool.parameters.clients),
        {"push": _table_push}, _table, turn=_table_turn, read=_table_read,
        methods={
            "mine": lambda table: table.mine().load(),
            "push_broadcast": lambda table: table.push_broadcast().wait(),
            "store_mine": lambda table: table.store_mine(7),
            "__getitem__": lambda table: table[0].load(),
            "__iter__": lambda table: [row.load() for row in table],
        },
    ),
    "shared_region": Channels(
        lambda pool, name: pool.channels.open(SharedRegion, name, size=64, participants=16),
        {"write": lambda handle: handle.write(0, 8, WIDE).wait()}, _region, fresh=True,
        methods={
            "read": lambda r: r.read(0, 8, 16),
            "write": lambda r: r.write(0, 8, bytes(16)).wait(),
        },
        own=frozenset({"part"}),
    ),
    "power_controller": Channels(
        lambda pool, name: pool.channels.open(PowerController, name, converters=2),
        {"push": lambda handle: handle.push(handle.duty, [0.25, 0.75])}, _power,
        methods={
            "push": lambda p: p.push(p.duty, [0.5] * len(p.duty)),
            "take": lambda p: p.take(p.voltage),
        },
    ),
    "event": Channels(
        lambda pool, name: pool.event(name),
        {"set": lambda handle: handle.set(), "clear": lambda handle: handle.clear()},
        _event, lambda handle: handle.set(), _one_of("is_set", True, False),
        turn=lambda handle, number: handle.clear() if number % 2 else handle.set(),
        read=lambda handle, number: handle.wait(0.001),
        methods={
            **plain("clear", "is_set", "set"),
            "wait": lambda e: e.wait(SOON_S),
        },
        own=frozenset({"count_since"}),
    ),
    "barrier": _BARRIER,
    "barrier-continue": _variant(
        _BARRIER, lambda pool, name: pool.barrier(name, 1, on_death="continue")
    ),
    "rendezvous": Channels(
        lambda pool, name: pool.channels.open(Rendezvous, name, nodes=1),
        {"waiting": lambda handle: handle.waiting()}, _rendezvous,
        release=lambda handle: handle.sst.resign(), waits_for_ever=True,
        methods={"waiting": lambda r: r.waiting()},
    ),
    "lock": _LOCK,
    "lock-recursive": _variant(
        _LOCK, lambda pool, name: pool.lock(name, recursive=True, overtaking=False)
    ),
    "semaphore": _SEMAPHORE,
    "semaphore-bounded": _variant(
        _SEMAPHORE, lambda pool, name: pool.bounded_semaphore(name, 2)
    ),
    "rwlock": _RWLOCK,
    "rwlock-readers": _variant(_RWLOCK, lambda pool, name: pool.rwlock(name, prefer="readers")),
    "condition": Channels(
        lambda pool, name: pool.condition(name), {"notify": _notify}, _condition, release=_let_go,
        expected=(RuntimeError,),
        turn=lambda handle, number: _within(lambda c: c.notify_all())(handle),
        read=lambda handle, number: handle.lock.locked(),
        methods={
            **_LOCK_METHODS,
            "notify": _within(lambda c: c.notify()),
            "notify_all": _within(lambda c: c.notify_all()),
            "wait": _within(lambda c: c.wait(SOON_S)),
            "wait_for": _within(lambda c: c.wait_for(lambda: False, SOON_S)),
        },
        own=frozenset({"begin_wait", "is_over", "moment", "step_out", "taken"}),
        private=frozenset({"inherited"}),
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
        _queue, _queue_prepare, _queue_judge, _be_done,
        expected=(queue.Full, queue.Empty, ValueError),
        turn=_queue_turn,
        read=lambda handle, number: handle.qsize(),
        large=lambda pool, name: pool.queue(name, 4, item_size=3_000),
        methods={
            **plain("cancel_join_thread", "close", "copies", "empty", "forget_lost"),
            **plain("full", "join_thread", "lost", "qsize"),
            "get": lambda q: _put_get(q, lambda jobs: jobs.get(timeout=SOON_S)),
            "get_many": lambda q: _put_get(q, lambda jobs: jobs.get_many(2, timeout=SOON_S)),
            "get_nowait": lambda q: _put_get(q, lambda jobs: jobs.get_nowait()),
            "join": lambda q: q.join(SOON_S),
            "put": lambda q: q.put(1, timeout=SOON_S),
            "put_many": lambda q: q.put_many([1], timeout=SOON_S),
            "put_nowait": lambda q: q.put_nowait(1),
            "task_done": lambda q: _put_get(q, lambda jobs: jobs.get_nowait()),
        },
        own=frozenset({"put_copies", "ready"}),
        private=frozenset({"cancel_join_thread", "close", "join_thread"}),
    ),
    "jobs": Channels(
        lambda pool, name: pool.queue(name, 4, item_size=64, acks=True, max_deliveries=3),
        {
            "put": lambda handle: handle.put_nowait(TEXT + "c"),
            "put large": lambda handle: handle.put_nowait(TEXT + "c" * 300),
            "put many": lambda handle: handle.put_many([TEXT + "c", TEXT + "d"]),
            "ack": _jobs_ack,
            "nack": lambda handle: handle.get_nowait().nack(reason="a reason of the victim"),
            "fail": _jobs_fail,
            "retry": _jobs_retry,
            "keep": _jobs_keep,
        },
        _jobs, _jobs_prepare, _jobs_judge,
        expected=(queue.Full, queue.Empty, ValueError),
        turn=_jobs_turn,
        read=lambda handle, number: handle.qsize(),
        large=lambda pool, name: pool.queue(name, 4, item_size=3_000, acks=True),
        methods={
            **plain("copies", "counts", "empty", "full", "give_back", "qsize"),
            "dead_letters": lambda q: q.dead_letters.qsize(),
            "get": lambda q: _settled(q, lambda jobs: jobs.get(timeout=SOON_S)),
            "get_many": lambda q: _settled(q, lambda jobs: jobs.get_many(2, timeout=SOON_S)),
            "get_nowait": lambda q: _settled(q, lambda jobs: jobs.get_nowait()),
            "job": lambda q: q.job("0-1").done(),
            "join": lambda q: q.join(SOON_S),
            "put": lambda q: q.put(1, timeout=SOON_S),
            "put_many": lambda q: q.put_many([1], timeout=SOON_S),
            "put_nowait": lambda q: q.put_nowait(1),
            "submit": lambda q: q.submit(1, timeout=SOON_S, keep_s=KEEP_S),
        },
        own=frozenset({"deliver", "drop", "put_copies", "result_of", "settle"}),
    ),
    "deque": _DEQUE,
    "deque-maxlen": _variant(
        _DEQUE, lambda pool, name: pool.deque(name, 4, item_size=64),
        calls={"drop": _deque_drop}, judge=_deque_drop_judge,
    ),
    "topic": _TOPIC,
    "ring": _RING,
    "ring-skip": _variant(_RING, lambda pool, name: pool.ring(name, 512, overrun="skip")),
}  # fmt: skip
