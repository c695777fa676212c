"""`limpet.aio`: the shared objects with `await`, on asyncio and, by anyio, trio (docs/async.md).

    jobs = aio.wrap(pool.queue("jobs", acks=True))
    with await jobs.get() as delivery:
        await work(delivery.value)

`wrap` gives an object that has the calls of the other one that wait, as coroutines, and passes all
else on to it: what does not wait takes microseconds, and is called directly. So are stores.

Each class here is a few rows: an attempt that does not wait, the word at which to wait
(stores/channels/waiting.py), and whether a change of it serves one that waits (`in_line`) or all of
them (`until`); stores/channels/task_waits.py has both.

Cancellation, at any point, takes nothing: an element is returned by the call, or it is in the
queue; a lock is held by the caller, or not at all. A party of a barrier that is cancelled breaks
it, as one whose time is over.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload

from limpet.shm.errors import ParameterError
from limpet.shm.times import Seconds, seconds_of
from limpet.stores.channels import task_waits
from limpet.stores.channels.barrier.barrier import Party
from limpet.stores.channels.event import NEVER
from limpet.stores.channels.holders.layout import EXCLUSIVE, KEPT_S, SHARED
from limpet.stores.channels.task_waits import PENDING, in_line, until

if TYPE_CHECKING:
    import limpet
    from limpet.stores.cache import cache
    from limpet.stores.channels import changes, condition, event, topic
    from limpet.stores.channels.barrier import barrier
    from limpet.stores.channels.holders import rwlock, semaphore
    from limpet.stores.channels.jobs import job_queue
    from limpet.stores.channels.lock import lock
    from limpet.stores.channels.queue import shared_queue
    from limpet.stores.channels.ring import ring_buffer

try:
    import anyio
    from anyio.lowlevel import checkpoint
except ImportError:
    raise ImportError("limpet.aio needs anyio: pip install 'limpet[aio]'") from None

MOMENT_S: Final = 20e-6
H = TypeVar("H")
T = TypeVar("T")


def _once(error: type[Exception], call: Callable[..., T], *given: Any, **named: Any) -> T:
    """An attempt: the result of the call, or PENDING if it raises `error`."""
    try:
        return call(*given, **named)
    except error:
        return PENDING  # type: ignore[no-any-return]


async def _within(
    timeout: Seconds | None, over: Callable[[], T], wait: Callable[..., Awaitable[T]], *given: Any
) -> T:
    """The result of `wait(*given)`, or, when the time is over, of `over()`."""
    seconds = None if timeout is None else seconds_of("timeout", timeout)
    await checkpoint()  # before the first attempt: a call that is cancelled takes nothing
    if seconds is None:
        return await wait(*given)
    with anyio.move_on_after(seconds):
        return await wait(*given)
    return over()


def _empty() -> Any:
    raise queue.Empty


def _full() -> Any:
    raise queue.Full


def _late() -> Any:
    raise TimeoutError


class Shared(Generic[H]):
    """The handle of a shared object, for tasks."""

    def __init__(self, handle: H) -> None:
        self.handle = handle

    def __getattr__(self, name: str) -> Any:
        return getattr(self.handle, name)

    def __repr__(self) -> str:
        return f"<aio of {self.handle!r}>"


class Queue(Shared["shared_queue.SharedQueue"]):
    """`pool.queue(name)`. The tasks of a loop get elements in the order in which they came."""

    async def get(self, timeout: Seconds | None = None) -> Any:
        """As `SharedQueue.get`; raises queue.Empty."""
        handle = self.handle
        attempt = partial(_once, queue.Empty, handle.get_nowait)
        return await _within(timeout, _empty, in_line, handle, handle.news, attempt, self._more)

    async def get_many(self, limit: int, timeout: Seconds | None = None) -> list[Any]:
        """As `SharedQueue.get_many`."""
        handle = self.handle
        attempt = partial(_once, queue.Empty, handle.get_many, limit, False)
        found: list[Any] = await _within(
            timeout, _empty, in_line, handle, handle.news, attempt, self._more
        )
        return found

    async def put(self, item: Any, timeout: Seconds | None = None) -> None:
        """As `SharedQueue.put`; raises queue.Full, and what that raises."""
        handle = self.handle
        attempt = partial(_once, queue.Full, handle.put, item, False)
        await _within(timeout, _full, in_line, handle, handle.room, attempt, self._roomy)

    async def join(self, timeout: Seconds | None = None) -> bool:
        """As `SharedQueue.join`."""
        handle = self.handle
        return await _within(
            timeout, bool, until, handle, handle.done_with, lambda: handle.join(0) or PENDING
        )

    def _more(self) -> bool:
        with self.handle.operation():
            return self.handle.ring.length() > 0

    def _roomy(self) -> bool:
        with self.handle.operation():
            return self.handle.ring.length() < self.handle.maxsize


class DeadLetters(Shared["job_queue.DeadLetters"]):
    """Of `Jobs`."""

    async def get(self, timeout: Seconds | None = None) -> job_queue.Delivery:
        """As `DeadLetters.get`; raises queue.Empty."""
        handle = self.handle
        attempt = partial(_once, queue.Empty, handle.get_nowait)
        return await _within(timeout, _empty, until, handle.queue, handle.queue.changes, attempt)


class SubmittedJob(Shared["job_queue.SubmittedJob"]):
    """Of `Jobs`."""

    async def result(self, timeout: Seconds | None = None) -> Any:
        """As `SubmittedJob.result`."""
        handle = self.handle
        attempt = partial(_once, TimeoutError, handle.result, 0)
        return await _within(timeout, _late, until, handle.queue, handle.queue.changes, attempt)


class Jobs(Shared["job_queue.JobQueue"]):
    """`pool.queue(name, acks=True)`. A delivery's own calls do not wait."""

    async def get(self, timeout: Seconds | None = None) -> job_queue.Delivery:
        """As `JobQueue.get`; raises queue.Empty."""
        handle = self.handle
        attempt = partial(_once, queue.Empty, handle.get_nowait)
        return await _within(timeout, _empty, in_line, handle, handle.news, attempt)

    async def get_many(
        self, limit: int, timeout: Seconds | None = None
    ) -> list[job_queue.Delivery]:
        """As `JobQueue.get_many`."""
        handle = self.handle
        attempt = partial(_once, queue.Empty, handle.get_many, limit, False)
        return await _within(timeout, _empty, in_line, handle, handle.news, attempt)

    async def put(
        self,
        item: Any,
        timeout: Seconds | None = None,
        *,
        delay: Seconds = 0,
        priority: int = 0,
        key: str | bytes | None = None,
    ) -> bool:
        """As `JobQueue.put`; raises queue.Full, and what that raises."""
        handle = self.handle
        attempt = partial(
            _once, queue.Full, handle.put, item, False, delay=delay, priority=priority, key=key
        )
        return await _within(
            timeout, _full, in_line, handle, handle.room, attempt, lambda: not handle.full()
        )

    async def submit(self, item: Any, timeout: Seconds | None = None, **how: Any) -> SubmittedJob:
        """As `JobQueue.submit`; raises queue.Full, and what that raises."""
        handle = self.handle
        attempt = partial(_once, queue.Full, handle.submit, item, False, **how)
        found: Any = await _within(
            timeout, _full, in_line, handle, handle.room, attempt, lambda: not handle.full()
        )
        return SubmittedJob(found)

    def job(self, name: str) -> SubmittedJob:
        """As `JobQueue.job`."""
        return SubmittedJob(self.handle.job(name))

    async def join(self, timeout: Seconds | None = None) -> bool:
        """As `JobQueue.join`."""
        handle = self.handle
        return await _within(
            timeout, bool, until, handle, handle.changes, lambda: handle.join(0) or PENDING
        )

    @property
    def dead_letters(self) -> DeadLetters:
        """The dead letters, for tasks."""
        return DeadLetters(self.handle.dead_letters)


class Ring(Shared["ring_buffer.RingBuffer"]):
    """`pool.ring(name)`."""

    async def receive(self, timeout: Seconds | None = None) -> Any:
        """As `RingBuffer.receive`; raises queue.Empty."""
        handle = self.handle
        attempt = partial(_once, queue.Empty, handle.receive_nowait)
        return await _within(timeout, _empty, until, handle, handle.news, attempt)

    async def send(self, item: Any, timeout: Seconds | None = None) -> None:
        """As `RingBuffer.send`; raises queue.Full, and what that raises."""
        handle = self.handle
        attempt = partial(_once, queue.Full, handle.send, item, 0)
        await _within(timeout, _full, until, handle, handle.room, attempt)

    def __aiter__(self) -> Ring:
        return self

    async def __anext__(self) -> Any:
        return await self.receive()


class Subscription(Shared["topic.Subscription"]):
    """Of `Topic`."""

    async def get(self, timeout: Seconds | None = None) -> Any:
        """As `Subscription.get`; raises queue.Empty."""
        handle = self.handle
        attempt = partial(_once, queue.Empty, handle.get_nowait)
        return await _within(timeout, _empty, until, handle.topic, handle.topic.news, attempt)

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Any:
        return await self.get()


class Topic(Shared["topic.Topic"]):
    """`pool.topic(name)`; to publish does not wait."""

    def subscribe(self, start: str = "now") -> Subscription:
        """As `Topic.subscribe`, for tasks."""
        return Subscription(self.handle.subscribe(start))


class Changes(Shared["changes.Changes"]):
    """Of `store.changes()`."""

    async def get(self, timeout: Seconds | None = None) -> changes.Change:
        """As `Changes.get`; raises queue.Empty."""
        handle = self.handle
        attempt = partial(_once, queue.Empty, handle.get_nowait)
        return await _within(timeout, _empty, until, handle, handle.news, attempt)

    def __aiter__(self) -> Changes:
        return self

    async def __anext__(self) -> changes.Change:
        return await self.get()


class Event(Shared["event.Event"]):
    """`pool.event(name)`."""

    async def wait(self, timeout: Seconds | None = None) -> bool:
        """As `Event.wait`."""
        handle, first = self.handle, NEVER

        def attempt() -> Any:
            nonlocal first
            first = handle.count_since(first)
            return first < 0 or PENDING

        return await _within(timeout, bool, until, handle, handle.waiting, attempt)


class Lock(Shared["lock.Lock"]):
    """`pool.lock(name)`; a recursive one is held by a task, and not by its thread."""

    def __init__(self, handle: lock.Lock) -> None:
        super().__init__(handle)
        handle.whose = task_waits.whose

    async def acquire(self, timeout: Seconds | None = None) -> bool:
        """Take the lock; False: it was not free for `timeout` seconds."""
        return await _within(timeout, bool, self._acquire)

    async def _acquire(self) -> bool:
        if not self.handle.acquire(False):
            await task_waits.acquire(self.handle)
        return True

    def release(self) -> None:
        """Give it back. Raises RuntimeError if this process, or task, does not hold it."""
        self.handle.release()

    async def __aenter__(self) -> bool:
        return await self.acquire()

    async def __aexit__(self, *error: object) -> None:
        self.handle.release()


async def _hold(handle: Any, line: int, look: Callable[[], int]) -> bool:
    """Wait in a line of a table of holders (holders.py) until `look` takes. A task that is
    cancelled has taken nothing: no `await` is between a `look` that takes and the return."""
    lined, free_s = False, 0.0

    def attempt() -> Any:
        nonlocal lined, free_s
        if not lined:
            handle.enter_line(line)
            lined = True
        found = look()
        if found > 0:
            return True
        now = handle.membership.now()
        if found == 0 or not free_s:
            free_s = now
        elif now - free_s > KEPT_S:
            handle.pass_over(1 - line)
            free_s = 0.0
        return PENDING

    try:
        word = handle.exclusive if line == EXCLUSIVE else handle.shared
        return bool(await in_line(handle, word, attempt))
    finally:
        if lined:
            handle.leave_line(line)


class Semaphore(Shared["semaphore.Semaphore"]):
    """`pool.semaphore(name)`."""

    async def acquire(self, timeout: Seconds | None = None) -> bool:
        """Take a permit; False: none was free for `timeout` seconds."""
        handle = self.handle
        return await _within(
            timeout, bool, _hold, handle, SHARED, lambda: handle.look_in_line(SHARED, False)
        )

    async def __aenter__(self) -> bool:
        return await self.acquire()

    async def __aexit__(self, *error: object) -> None:
        self.handle.__exit__()


class Side(Shared["rwlock.Side"]):
    """Of `RwLock`."""

    async def acquire(self, timeout: Seconds | None = None) -> bool:
        """Take it; False: it was not to be had for `timeout` seconds. Raises RuntimeError if this
        task would wait for itself."""
        held, line = self.handle.lock, self.handle.line
        held.check_wait(line)
        return await _within(timeout, bool, _hold, held, line, lambda: held.take_in_line(line))

    async def __aenter__(self) -> Side:
        seconds = self.handle.timeout
        if not await self.acquire(None if seconds < 0 else seconds):
            raise TimeoutError(f"{self.handle!r} was not to be had for {seconds} s")
        return self

    async def __aexit__(self, *error: object) -> None:
        self.handle.release()


class RwLock(Shared["rwlock.RwLock"]):
    """`pool.rwlock(name)`; a task has it, and not its thread."""

    def __init__(self, handle: rwlock.RwLock) -> None:
        super().__init__(handle)
        handle.whose = task_waits.whose

    def read(self, timeout: Seconds = -1) -> Side:
        """To read: `async with lock.read():`; as `RwLock.read`."""
        return Side(self.handle.read(timeout))

    def write(self, timeout: Seconds = -1) -> Side:
        """To write, alone; as `read`."""
        return Side(self.handle.write(timeout))


class Condition(Shared["condition.Condition"]):
    """`pool.condition(name)`; its lock is held by a task."""

    def __init__(self, handle: condition.Condition) -> None:
        super().__init__(handle)
        self.lock = Lock(handle.lock)

    async def acquire(self, timeout: Seconds | None = None) -> bool:
        """As `Lock.acquire`."""
        taken = await self.lock.acquire(timeout)
        if taken:
            self.handle.taken()
        return taken

    def release(self) -> None:
        """As `Lock.release`."""
        self.handle.release()

    async def __aenter__(self) -> bool:
        return await self.acquire()

    async def __aexit__(self, *error: object) -> None:
        self.handle.release()

    async def wait(self, timeout: Seconds | None = None) -> bool:
        """As `Condition.wait`. When it is cancelled, too, it takes the lock before it ends."""
        handle = self.handle
        before, vain = handle.begin_wait()
        places: list[int] = []
        count = handle.lock._release_save()
        returns = False
        try:
            notified: bool = await _within(
                timeout, bool, until, handle, handle.waiting,
                lambda: handle.is_over(before, places) or PENDING,
            )  # fmt: skip
            if vain and notified:
                await anyio.sleep(handle.moment(vain) * MOMENT_S)
            returns = True
            return notified
        finally:
            await self._take_again(count, places, vain, returns)

    async def _take_again(self, count: int, places: list[int], vain: int, returns: bool) -> None:
        cancelled = None
        while True:
            try:
                with anyio.CancelScope(shield=True):
                    await self.lock._acquire()
                break
            except anyio.get_cancelled_exc_class() as error:  # by asyncio's own `cancel`
                cancelled = error
        self.handle.lock._acquire_restore(count)
        self.handle.step_out(places, vain, True, returns and cancelled is None)
        if cancelled is not None:
            raise cancelled

    async def wait_for(self, predicate: Callable[[], T], timeout: Seconds | None = None) -> T:
        """As `Condition.wait_for`."""
        end = anyio.current_time() + (0.0 if timeout is None else seconds_of("timeout", timeout))
        found = predicate()
        while not found:
            left = None if timeout is None else end - anyio.current_time()
            if left is not None and left <= 0:
                break
            await self.wait(left)
            found = predicate()
        return found


class Barrier(Shared["barrier.Barrier"]):
    """`pool.barrier(name, parties)`; a task is a party."""

    async def wait(self, timeout: Seconds | None = None) -> int:
        """As `Barrier.wait`. An `action` runs in the loop's thread."""
        handle, party = self.handle, Party()
        limit = handle.timeout if timeout is None else timeout

        def over() -> int:
            while not handle.look(party, False):  # raises when the round is broken
                handle.expire(party)
            return handle.came_as(party)

        try:
            return await _within(limit, over, self._wait, party)
        except BaseException:
            handle.give_up(party)
            raise

    async def _wait(self, party: Party) -> int:
        while not self.handle.look(party, True):
            await task_waits.sleep(self.handle.waiting, party.token)
        return self.handle.came_as(party)


class Cache(Shared["cache.Cache[Any, Any]"]):
    """`pool.cache(name)`."""

    async def get_or_compute(self, key: Any, compute: Callable[[], Awaitable[T]], **how: Any) -> T:
        """As `Cache.get_or_compute_async`."""
        found: T = await self.handle.get_or_compute_async(key, compute, **how)
        return found


class Executor(Shared["limpet.Executor"]):
    """`limpet.Executor`. It starts workers, which takes milliseconds: by threads of anyio."""

    async def run(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """The result of `fn(*args, **kwargs)` in a worker. When this is cancelled, the call is,
        too, unless a worker has it: then it runs on."""
        futures = await self._submit([partial(fn, *args, **kwargs)])
        found: T = await _result(futures[0])
        return found

    async def map(
        self, fn: Callable[..., T], *iterables: Iterable[Any], chunksize: int = 1
    ) -> AsyncIterator[T]:
        """As `Executor.map`: `async for`. All calls are made at the beginning; those that no worker
        has when the loop is left are cancelled."""
        if chunksize < 1:
            raise ParameterError("chunksize must be >= 1")
        calls = zip(*iterables, strict=False)
        chunks = iter(lambda: list(itertools.islice(calls, chunksize)), [])
        futures = await self._submit([partial(_chunk, fn, chunk) for chunk in chunks])
        try:
            for future in futures:
                for found in await _result(future):
                    yield found
        finally:
            for future in futures:
                future.cancel()

    async def _submit(self, calls: list[Callable[[], Any]]) -> list[Any]:
        await checkpoint()
        futures: list[Any] = []

        def submit() -> None:
            futures.extend(map(self.handle.submit, calls))

        done = False
        try:
            await anyio.to_thread.run_sync(submit)
            done = True
        finally:
            if not done:
                for future in futures:
                    future.cancel()
        return futures

    async def shutdown(self, *, cancel_futures: bool = False) -> None:
        """As `Executor.shutdown`, with a wait."""
        stop = partial(self.handle.shutdown, cancel_futures=cancel_futures)
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(stop)

    async def __aenter__(self) -> Executor:
        return self

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        await self.shutdown(cancel_futures=error is not None and not isinstance(error, Exception))


def _chunk(fn: Callable[..., T], calls: list[tuple[Any, ...]]) -> list[T]:
    return [fn(*call) for call in calls]


async def _result(future: Any) -> Any:
    """A future's result."""
    here = task_waits.here()
    parking = here.parking()

    def done(_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and no task waits
            here.call(parking.wake)

    future.add_done_callback(done)
    ended = False
    try:
        await parking.wait()
        ended = True
    finally:
        if not ended:
            future.cancel()
    return future.result()


ROWS: Final[dict[str, type[Shared[Any]]]] = {
    "SharedQueue": Queue,
    "JobQueue": Jobs,
    "DeadLetters": DeadLetters,
    "SubmittedJob": SubmittedJob,
    "RingBuffer": Ring,
    "Topic": Topic,
    "Changes": Changes,
    "Event": Event,
    "Lock": Lock,
    "Semaphore": Semaphore,
    "RwLock": RwLock,
    "Condition": Condition,
    "Barrier": Barrier,
    "Cache": Cache,
    "Executor": Executor,
}
"""The classes here, by the names of those that they wrap."""


@overload
def wrap(handle: shared_queue.SharedQueue) -> Queue: ...
@overload
def wrap(handle: job_queue.JobQueue) -> Jobs: ...
@overload
def wrap(handle: ring_buffer.RingBuffer) -> Ring: ...
@overload
def wrap(handle: event.Event) -> Event: ...
@overload
def wrap(handle: lock.Lock) -> Lock: ...
@overload
def wrap(handle: semaphore.Semaphore) -> Semaphore: ...
@overload
def wrap(handle: rwlock.RwLock) -> RwLock: ...
@overload
def wrap(handle: topic.Topic) -> Topic: ...
@overload
def wrap(handle: changes.Changes) -> Changes: ...
@overload
def wrap(handle: condition.Condition) -> Condition: ...
@overload
def wrap(handle: barrier.Barrier) -> Barrier: ...
@overload
def wrap(handle: cache.Cache[Any, Any]) -> Cache: ...
@overload
def wrap(handle: limpet.Executor) -> Executor: ...
def wrap(handle: Any) -> Any:
    """The handle of a shared object for tasks. ParameterError: there are no coroutines for it."""
    for cls in type(handle).__mro__:
        if cls.__module__.startswith("limpet.") and cls.__name__ in ROWS:
            return ROWS[cls.__name__](handle)
    raise ParameterError(
        f"limpet.aio has no coroutines for {handle!r}, but for {', '.join(ROWS)}; call it directly "
        "if nothing of it waits, or in a thread"
    )
