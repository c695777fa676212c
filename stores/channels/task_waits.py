"""How a task of an event loop waits: for a word (watcher.py), in a line, for a lock.

A task makes each attempt itself, in the thread of its loop: that takes microseconds. If it has to
wait, it prepares (waiting.py), attempts once more, and sleeps by a watch. So an element is taken by
a step of the task that returns it, without an `await` in between, and a task that is cancelled has
taken nothing.

`until` is a wait of which a change may release all, as for an event. `in_line` is one for which
each change serves one: of the tasks of a loop that wait at the same word only the first one looks;
the next one looks when the first has what it waited for, or was cancelled. So a thousand tasks at a
queue are no more work than one, and get their elements in the order in which they came.

`acquire` is that for `pool.lock`. The task stands in the line of the threads of its process
(lock/lock.py), and is the delegate by a `TicketWait` that sleeps by watches.

Event loops are those of asyncio (`AsyncioScheduler`) and, where it runs, trio (`TrioScheduler`).
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar

from limpet.shm.errors import ChannelRemoved, PoolClosed
from limpet.stores.channels import watcher
from limpet.stores.channels.layout import SLEEP_US
from limpet.stores.channels.lock.lock import Gate
from limpet.stores.channels.lock.ticket_lock import TicketWait
from limpet.stores.channels.waiting import Waiting

T = TypeVar("T")
LOOK_S: Final = 0.2
"""Seconds between looks of a task in a lock's line: for removal of the channel."""
PENDING: Final[Any] = object()
"""The result of an attempt that has to wait."""


class AsyncioParking:
    """A task that sleeps until `wake`."""

    def __init__(self, loop: Any) -> None:
        self.loop = loop
        self.future = loop.create_future()

    def wake(self) -> None:
        """In the loop's thread; may be called again."""
        if not self.future.done():
            self.future.set_result(None)

    async def wait(self, seconds: float | None = None) -> None:
        """Sleep, at most so long."""
        timer = None if seconds is None else self.loop.call_later(seconds, self.wake)
        try:
            await self.future
        finally:
            if timer is not None:
                timer.cancel()


class AsyncioScheduler:
    """The loop that runs in this thread, and the task that runs in it."""

    def __init__(self, loop: Any) -> None:
        self.loop = loop
        self.call = loop.call_soon_threadsafe

    def is_there(self) -> bool:
        """Whether its tasks may still run: it is not closed."""
        return not self.loop.is_closed()

    def parking(self) -> Any:
        """For one sleep of the task."""
        return AsyncioParking(self.loop)

    def task(self) -> int:
        """The number of the task; 0: a callback runs."""
        task = sys.modules["asyncio"].current_task(self.loop)
        return 0 if task is None else id(task)


class TrioParking:
    """As AsyncioParking."""

    def __init__(self) -> None:
        self.event = sys.modules["trio"].Event()
        self.wake = self.event.set

    async def wait(self, seconds: float | None = None) -> None:
        """Sleep, at most so long."""
        if seconds is None:
            await self.event.wait()
        else:
            with sys.modules["trio"].move_on_after(seconds):
                await self.event.wait()


class TrioScheduler:
    """As AsyncioScheduler."""

    def __init__(self, token: Any) -> None:
        self.loop = token
        self.call = token.run_sync_soon

    def is_there(self) -> bool:
        """Trio ends its tasks before it ends."""
        return True

    def parking(self) -> Any:
        """For one sleep of the task."""
        return TrioParking()

    def task(self) -> int:
        """The number of the task."""
        return id(sys.modules["trio"].lowlevel.current_task())


def scheduler() -> Any:
    """That of this thread; None: no loop runs here."""
    if (asyncio := sys.modules.get("asyncio.events")) is not None:
        loop = asyncio._get_running_loop()
        if loop is not None:
            return AsyncioScheduler(loop)
    if (trio := sys.modules.get("trio")) is not None:
        try:
            return TrioScheduler(trio.lowlevel.current_trio_token())
        except RuntimeError:
            pass  # no loop of trio runs
    return None


def here() -> Any:
    """That of this thread. Raises RuntimeError."""
    found = scheduler()
    if found is None:
        raise RuntimeError("no event loop of asyncio or trio runs in this thread")
    return found


def whose() -> int:
    """The number of the task that runs, or of this thread if none does."""
    loop = scheduler()
    return (loop.task() if loop is not None else 0) or threading.get_ident()


# ---- one sleep ----------------------------------------------------------------------------------


async def at_word(
    endpoint: Any,
    address: int,
    value: int,
    *,
    remote: bool = False,
    pass_on: Callable[[], object] | None = None,
    orphaned: Callable[[], object] | None = None,
) -> bool:
    """Sleep until the word has another value, or for a tick; whether for a tick."""
    loop = here()
    parking = loop.parking()
    watch = watcher.Watch(endpoint, address, value, loop.call, parking.wake, pass_on, remote,
                          orphaned)  # fmt: skip
    watcher.add(watch)
    woken = False
    try:
        await parking.wait()
        woken = True
    finally:
        if not woken:
            watcher.drop(watch)
    return watch.idle


async def sleep(waiting: Waiting, token: int) -> bool:
    """`Waiting.sleep`, for a task; whether it slept in vain."""
    return await at_word(
        waiting.endpoint, waiting.address, token, remote=waiting.sleep_us < SLEEP_US
    )


# ---- waits --------------------------------------------------------------------------------------


async def until(channel: Any, waiting: Waiting, attempt: Callable[[], T]) -> T:
    """Wait until `attempt()` is not PENDING, and return that. Its changes wake all that wait."""
    idle = False
    while True:
        token = _prepare(channel, waiting)
        found = attempt()
        if found is not PENDING:
            if idle:  # a client was killed before it woke those that wait
                _wake_others(channel, waiting.wake)
            return found
        idle = await sleep(waiting, token)


_lines: dict[Any, deque[Any]] = {}
"""The tasks that wait, by loop and word; in the order in which they came."""


async def in_line(
    channel: Any, waiting: Waiting, attempt: Callable[[], T], more: Callable[[], bool] | None = None
) -> T:
    """Wait until `attempt()` is not PENDING, and return that. Each change wakes one that waits.

    `more`: whether there is something left for others, which are woken then.
    """
    loop = here()
    key = (loop.loop, id(waiting.endpoint), waiting.address)
    if key not in _lines:
        found = attempt()
        if found is not PENDING:
            return found
    line = _lines.setdefault(key, deque())
    mine = loop.parking()
    line.append(mine)
    remote = waiting.sleep_us < SLEEP_US

    def pass_on() -> None:
        with channel.operation():
            waiting.prepare()
            waiting.wake_one()

    found = PENDING
    try:
        if line[0] is not mine:
            await mine.wait()
        while True:
            token = _prepare(channel, waiting)
            found = attempt()
            if found is not PENDING:
                return found
            await at_word(waiting.endpoint, waiting.address, token, remote=remote, pass_on=pass_on)
    finally:
        first = line[0] is mine
        line.remove(mine)
        if not line:
            del _lines[key]
            if found is not PENDING and more is not None:
                _wake_others(channel, waiting.wake_one, more)
        elif first:
            line[0].wake()


def _prepare(channel: Any, waiting: Waiting) -> int:
    with channel.operation():
        return int(waiting.prepare())


def _wake_others(
    channel: Any, wake: Callable[[], object], more: Callable[[], bool] | None = None
) -> None:
    """Wake others after an attempt that took, if there is `more`. Of a pool that was closed since,
    or a channel that was removed, what was taken goes out, and the next call raises."""
    with contextlib.suppress(PoolClosed, ChannelRemoved):
        if more is None or more():
            with channel.operation():
                wake()


# ---- locks --------------------------------------------------------------------------------------


class Opened:
    """The lock by which a task's gate is opened: any thread of the process, in an operation."""

    def __init__(self, here: Any) -> None:
        self.here = here
        self.lock = threading.Lock()
        self.lock.acquire()
        self.parking: Any = None
        self.acquire = self.lock.acquire

    def release(self) -> None:
        """Open it."""
        self.lock.release()
        # If the loop is closed, the task's `finally` finds the gate open.
        with contextlib.suppress(RuntimeError):
            self.here.call(self._wake)

    def _wake(self) -> None:
        if self.parking is not None:
            self.parking.wake()


async def acquire(lock: Any) -> None:
    """Take a `pool.lock`, which is not free."""
    loop = here()
    owner = lock.whose() if lock.recursive else 1
    opened = Opened(loop)
    gate = Gate(owner, opened, loop.is_there)
    if not lock._join_line(gate):
        try:
            while not opened.acquire(False):
                opened.parking = loop.parking()
                await opened.parking.wait(LOOK_S)
                with lock.operation():
                    pass  # the channel may have been removed, the pool closed
        except BaseException:
            lock._abandon(gate)
            raise
        if gate.has_lock():
            return
    wait = TicketWait(lock.ticket, -1.0)
    over = slept = idle = False

    def give_up() -> None:
        nonlocal over
        if not over:
            over = True
            try:
                wait.give_up()
            finally:
                lock._end_delegation(owner, False)

    try:
        while (place := wait.look(slept, idle)) is not None:
            address, value, us = place
            if address:
                remote = us < SLEEP_US
                idle = await at_word(lock.endpoint, address, value, remote=remote, orphaned=give_up)
            else:
                await loop.parking().wait(us / 1e6)
                idle = True
            slept = True
        over = True
    except BaseException:
        give_up()
        raise
    lock._end_delegation(owner, True)
