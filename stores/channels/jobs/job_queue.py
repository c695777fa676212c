"""The queue with acks: a job is delivered until a consumer acknowledges it.

The jobs, and all that a kill can leave behind, are in the table (table.py). Here are the interface
and the waiting. An operation takes the table's lock, makes its change, and gives the lock back;
while it waits it is in no operation.

A consumer that is dead, or has left the pool, holds no job for long: each consumer that finds no
ready job, and each that has not looked for GIVE_BACK_US, asks whether the holders of jobs live. A
waiting consumer looks at least every SLEEP_US (waiting.py).

A waiting client is woken as in shared_queue.py: a put wakes one consumer, and a consumer that
leaves ready jobs wakes the next; the end of a job wakes one producer.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Iterable
from typing import Any, Final

from limpet.shm.endpoint import forks
from limpet.shm.endpoint.fabric import hash64
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.errors import (
    DeliveryLost,
    JobFailed,
    LimpetError,
    ParameterError,
    ResultExpired,
    ValueTooLarge,
)
from limpet.shm.times import US, Seconds, units_of
from limpet.stores.channels.channel import Channel
from limpet.stores.channels.jobs.layout import (
    ASK,
    BATCH,
    CHANGES,
    CONTROL_SIZE,
    DATA,
    DELAYED_JOBS,
    DELIVERY_MAX,
    DIRTY,
    FREE,
    FREE_PLACES,
    GIVE_BACK_US,
    HELD_JOBS,
    ITEM_SIZE,
    KEEP_S,
    KEEP_SHIFT,
    KEPT,
    LETTER,
    LETTERS,
    MAX_DELIVERIES,
    MAXSIZE,
    MAXSIZE_MAX,
    NEWS,
    NOWHERE,
    OWNER_SHIFT,
    PRIORITIES,
    REASON_SIZE,
    RESULTS,
    ROOM,
    TICKET,
)
from limpet.stores.channels.jobs.table import DROPPED, Job, JobCopy, JobTable
from limpet.stores.channels.layout import LINE, MOMENT, MOMENTS, SLEEP_US
from limpet.stores.channels.regions.region import DESCRIPTION_MAX, Links
from limpet.stores.channels.waiting import Wait, Waiting, deadline_after, deadline_of, whole
from limpet.stores.core.codecs import Codec
from limpet.stores.core.status import DONE, EXISTS, FULL, NO_MEMORY

LONGEST_S: Final = 1_000_000_000
"""The longest time of a job: 31 years."""
ACK: Final = 0
NACK: Final = 1
RETRY: Final = 2
EXTEND: Final = 3
KEEP: Final = 4


class Delivery:
    """A job that this process holds until it acknowledges it, or gives it back.

    As a context manager it acknowledges the job at the end of the block, and gives it back when the
    block raises. A delivery that the program drops, as after Ctrl-C, gives the job back, too.
    """

    def __init__(self, jobs: JobQueue, job: Job) -> None:
        self.queue = jobs
        self.job = job
        self.forks = forks.count
        self.settled = False
        """Whether it was acknowledged, given back, or found to be lost."""

    @property
    def value(self) -> Any:
        """The element; each look decodes it."""
        return self.queue.decode(self.job.data)

    @property
    def deliveries(self) -> int:
        """How often the job was delivered, this delivery included."""
        return int(self.job.deliveries)

    @property
    def reason(self) -> str:
        """Why the job was given back last; "": it never was."""
        return _text(self.job.reason)

    def ack(self, result: Any = None) -> None:
        """The job is done: take it out of the queue. `result`: kept for the process that has
        submitted it (`JobQueue.submit`); of a job that was put, it is dropped. Raises DeliveryLost:
        it was delivered again, or may be; ValueError: this was called before. ValueTooLarge,
        StoreFull: no room for the result; the job is still this process's."""
        if self.job.keep_us:
            self._settle(KEEP, self.job.keep_us, self.queue.encode(result))
        else:
            self._settle(ACK, 0, b"")

    def nack(self, delay: Seconds = 0, reason: str = "") -> None:
        """Give the job back: it can be got again, first of its priority, or after `delay` seconds.
        After its last delivery it becomes a dead letter. Raises as `ack` does."""
        delay_us = _us("delay", delay) if delay != 0 else 0
        if not isinstance(reason, str):
            raise ParameterError(f"`reason` is a text, not {reason!r}")
        text = reason.encode(errors="replace")[:REASON_SIZE].replace(b"\0", b" ")
        self._settle(NACK, delay_us, text)

    def retry(self) -> None:
        """Make this dead letter a job again, as if it was never delivered. Raises as `ack` does;
        ParameterError: it is none."""
        if not self.job.word & LETTER:
            raise ParameterError(f"{self!r} is no dead letter: `nack` gives a job back")
        self._settle(RETRY, 0, b"")

    def extend(self, seconds: Seconds | None = None) -> None:
        """Hold the job for so many seconds from now, by default the queue's visibility timeout.
        Raises ParameterError if the queue has none; DeliveryLost."""
        if not self.queue.visibility_us:
            raise ParameterError(
                f"{self.queue.title()} has no visibility timeout: this process holds its jobs as "
                "long as it lives"
            )
        us = self.queue.visibility_us if seconds is None else _us("seconds", seconds)
        self._check()
        self.queue.settle(self.job, EXTEND, us, b"")

    def _settle(self, what: int, delay_us: int, reason: bytes) -> None:
        self._check()
        try:
            self.queue.settle(self.job, what, delay_us, reason)
            self.settled = True
        except DeliveryLost:
            self.settled = True
            raise

    def _check(self) -> None:
        if self.settled:
            raise ValueError(f"{self!r} was acknowledged, given back or lost before")

    def __enter__(self) -> Delivery:
        return self

    def __exit__(self, kind: Any = None, error: Any = None, trace: Any = None) -> None:
        if self.settled:
            return
        if kind is None:
            self.ack()
        else:
            # The block's error goes on.
            with contextlib.suppress(LimpetError):
                self.nack(reason=f"{kind.__name__}: {error}")

    def __del__(self) -> None:
        if not self.settled and self.forks == forks.count:
            self.settled = True
            self.queue.drop(self.job)

    def __repr__(self) -> str:
        return f"<Delivery {self.deliveries} of job {self.job.order} of {self.queue.title()}>"


class SubmittedJob:
    """A job whose result is kept: `JobQueue.submit`, or `JobQueue.job` in any process."""

    def __init__(self, jobs: JobQueue, number: int, order: int) -> None:
        self.queue = jobs
        self.number = number
        self.order = order

    @property
    def id(self) -> str:
        """A text that names it for `JobQueue.job`."""
        return f"{self.number}-{self.order}"

    def done(self) -> bool:
        """Whether `result` would return, or raise, at once."""
        try:
            self.result(0)
        except TimeoutError:
            return False
        except (JobFailed, ResultExpired):
            pass
        return True

    def result(self, timeout: Seconds | None = None) -> Any:
        """The result that a consumer gave to `ack`; waits for it, at most `timeout` seconds.

        Raises TimeoutError; JobFailed: it is a dead letter; ResultExpired: it is done, and its
        result was kept for its time, or the dead letter was taken away.
        """
        return self.queue.result_of(self, deadline_after(timeout))

    def __repr__(self) -> str:
        return f"<job {self.id} of {self.queue.title()}>"


class DeadLetters:
    """The dead letters of a queue: jobs that were delivered `max_deliveries` times without `ack`.

    To get one is a delivery: `ack` takes it out, `retry` makes it a job again, `nack` keeps it.
    """

    def __init__(self, jobs: JobQueue) -> None:
        self.queue = jobs

    def get(self, block: bool = True, timeout: Seconds | None = None) -> Delivery:
        """The oldest dead letter, as a delivery; as `JobQueue.get`."""
        return self.queue.deliver(1, True, deadline_of(block, timeout))[0]

    def get_nowait(self) -> Delivery:
        """`get` without waiting for one."""
        return self.get(False)

    def qsize(self) -> int:
        """How many there are, without those that a client holds."""
        return self.queue.counts()["dead"]

    def __repr__(self) -> str:
        return f"<DeadLetters of {self.queue.title()}>"


class JobQueue(Channel):
    """A queue of jobs, each delivered until it is acknowledged: `pool.queue(name, acks=True)`."""

    table_class: type[JobTable] = JobTable
    waiting_class: type[Waiting] = Waiting
    """The classes of its parts."""

    def __init__(
        self,
        manager: Any,
        name: str,
        parent: Any = None,
        *,
        maxsize: int = MAXSIZE,
        item_size: int = ITEM_SIZE,
        codec: str = "pickle",
        max_deliveries: int = MAX_DELIVERIES,
        visibility_timeout: Seconds = 0,
    ) -> None:
        """`maxsize`: places, one for each job that is not acknowledged, and each dead letter.
        `item_size`: an encoded element of up to so many bytes lies in its place, a larger one in an
        object of the pool. `max_deliveries`: then a job becomes a dead letter.
        `visibility_timeout`: seconds after which a job is taken from a consumer that lives; 0:
        never."""
        maxsize = whole("a queue's `maxsize`", maxsize, 1, MAXSIZE_MAX)
        item_size = whole("a queue's `item_size`", item_size, 1, MAXSIZE_MAX)
        whole("a queue's `max_deliveries`", max_deliveries, 1, DELIVERY_MAX)
        visibility_us = _us("visibility_timeout", visibility_timeout)
        coding = Codec.named(codec)
        stride = (DATA + item_size + LINE - 1) // LINE * LINE
        size = maxsize * (stride + 24)
        if size > manager.pool.heap.value_max(1) - DESCRIPTION_MAX:
            raise ValueTooLarge(
                f"{maxsize} places of {stride} bytes do not fit into a memory node; make the queue "
                "shorter, or the pool with larger nodes"
            )
        super().__init__(
            manager,
            name,
            parent,
            size=CONTROL_SIZE,
            kind="jobs",
            maxsize=maxsize,
            item_size=item_size,
            codec=codec,
            max_deliveries=max_deliveries,
            visibility_timeout=visibility_us / US,
        )
        self.encode = coding.encode
        self.decode = coding.decode
        self.maxsize = maxsize
        self.largest = manager.pool.heap.value_max(1)
        self.visibility_us = visibility_us
        remote = self.pool.parameters.multi_host
        self.news = self.waiting_class(self.endpoint, self.address + NEWS, remote)
        self.room = self.waiting_class(self.endpoint, self.address + ROOM, remote)
        self.changes = self.waiting_class(self.endpoint, self.address + CHANGES, remote)
        links = Links(maxsize * stride, 8, 2 * maxsize)
        places = self.region("places", size, self.address >> NODE_SHIFT, links)
        self.table = self.table_class(
            self.pool, self.address, places, maxsize, stride, self.marked, self.title()
        )
        self.table.max_deliveries = max_deliveries
        self.looked = 0
        """When this process has looked for dead consumers."""
        self.mine: dict[int, Job] = {}
        """The jobs that deliveries of this process hold, by their numbers; of each its last
        delivery. Another job that this client holds was dropped, or got by a call that was cut
        off."""
        self._begin(NOWHERE)
        done = False
        try:
            if not self.endpoint.load(self.address + TICKET):
                self.table.rebuild()
            done = True
        finally:
            self._finish(done)

    # ---- an operation with the lock ---------------------------------------------------------

    def _begin(self, place: int) -> None:
        """Begin an operation that has the table's lock. `place`: as of `JobTable.lock`."""
        attempt = 0
        table = self.table
        taken = False
        while not taken:
            if attempt:
                self.endpoint.pause(min(MOMENT + attempt, MOMENT + MOMENTS))
            if attempt >= ASK and self.membership.gone(table.holder, f"the lock of {self.title()}"):
                table.buried = table.holder
            attempt += 1
            self.enter()
            try:
                taken = table.lock(place)
            finally:
                if not taken:
                    self._finish(False)

    def _begin_look(self) -> None:
        """Begin an operation that only looks, without the lock; the index is made anew before, if a
        dead client has left it in doubt."""
        self.enter()
        sound = False
        try:
            word = self.table.look()
            sound = word == 0 or (word != DIRTY and self.lives(word))
        finally:
            if not sound:
                self.leave()
        if not sound:
            self._begin(NOWHERE)
            self.table.end(True)

    def _finish(self, whole: bool) -> None:
        """End the operation, and give the lock back if that was not done."""
        ended = False
        try:
            self.table.end(whole)
            ended = True
        finally:
            try:
                if not ended:
                    self.table.end(False)
            finally:
                self.leave()

    # ---- producers ----------------------------------------------------------------------------

    def put(
        self,
        item: Any,
        block: bool = True,
        timeout: Seconds | None = None,
        *,
        delay: Seconds = 0,
        priority: int = 0,
        key: str | bytes | None = None,
    ) -> bool:
        """Put a job; waits for room, at most `timeout` seconds.

        `delay`: seconds until it can be got. `priority`: 0 to 7, the highest first. `key`: if a job
        with this key is in the queue, and no dead letter, nothing is put. Returns whether it was
        put. Raises queue.Full, ValueTooLarge, StoreFull (no memory for a large element); then the
        job is not in the queue. After a kill before it returns, it is or is not.
        """
        deadline = None if block and timeout is None else deadline_of(block, timeout)
        hashed = 0 if key is None else _hash(key)
        delay_us = _us("delay", delay) if delay != 0 else 0
        level = whole("a job's `priority`", priority, 0, PRIORITIES - 1) if priority != 0 else 0
        return self._put_one([self.encode(item)], level, delay_us, hashed, deadline)[0] == DONE

    def submit(
        self,
        item: Any,
        block: bool = True,
        timeout: Seconds | None = None,
        *,
        keep_s: Seconds = KEEP_S,
        delay: Seconds = 0,
        priority: int = 0,
        key: str | bytes | None = None,
    ) -> SubmittedJob:
        """Put a job whose result is kept for `keep_s` seconds; its handle. The rest as `put`.

        If a job with this key is in the queue, the handle is that one's; if that one was `put`, it
        gets no result (ResultExpired). Until its result is forgotten, a job takes its place of the
        queue, and is not counted by `qsize` or `join`.
        """
        deadline = deadline_of(block, timeout)
        keep_us = _us("keep_s", keep_s)
        if not keep_us:
            raise ParameterError(f"`keep_s` is a number of seconds above 0, not {keep_s!r}")
        hashed = 0 if key is None else _hash(key)
        level = keep_us << KEEP_SHIFT | whole("a job's `priority`", priority, 0, PRIORITIES - 1)
        waiting = [self.encode(item)]
        found = self._put_one(waiting, level, _us("delay", delay), hashed, deadline)
        return SubmittedJob(self, *found[2])

    def job(self, name: str) -> SubmittedJob:
        """The handle of a job that any process has submitted, by its `id`."""
        number, _, order = name.partition("-")
        if not (number.isdecimal() and order.isdecimal() and int(number) < self.maxsize):
            raise ParameterError(f"{name!r} is no `id` of a job of {self.title()}")
        return SubmittedJob(self, int(number), int(order))

    def copies(self) -> list[JobCopy]:
        """The jobs in the order of their numbers, each as it is at one moment; without results. A
        job that is put, or ends, meanwhile may be there or not."""
        found: list[JobCopy] = []
        for first in range(0, self.maxsize, BATCH):
            self._begin(NOWHERE)
            whole = False
            try:
                found += self.table.copies(first, BATCH)
                whole = True
            finally:
                self._finish(whole)
        return sorted(found)

    def put_copies(self, jobs: list[JobCopy]) -> None:
        """Put jobs of another queue into this one, which no other client uses yet. Raises
        queue.Full, StoreFull."""
        marked: list[tuple[int, JobCopy]] = []
        done = 0
        while done < len(jobs):
            self._begin(NOWHERE)
            whole = False
            try:
                status, last = DONE, min(len(jobs), done + BATCH)
                while done < last and status == DONE:
                    job = jobs[done]
                    place = self.table.place_for(0)
                    # Without its key, which a dead letter and a job may share.
                    status = self.table.put(job.data, job.level, job.due, 0)
                    if status == DONE:
                        done += 1
                        if job.key or job.deliveries or job.letter or job.reason:
                            marked.append((place - 1, job))
                whole = True
                self.table.end(True)
            finally:
                self._finish(whole)
            if status == NO_MEMORY:
                size = len(jobs[done].data)
                self.pool.allocator.replenish(self.table.node(), size, 1, 0, 0, True)
            elif status != DONE:
                raise queue.Full
        if marked:
            self._begin(NOWHERE)
            try:
                for number, job in marked:
                    self.table.amend(number, job)
            finally:
                self._finish(False)  # the index is made anew

    def _put_one(
        self, waiting: list[bytes], level: int, delay_us: int, key: int, deadline: float | None
    ) -> tuple[int, int, tuple[int, int]]:
        """Put the one element of `waiting`, and wait for room; as `_put_some`, DONE or EXISTS."""
        wait = Wait(self.room, deadline)
        while True:
            found = self._put_some(waiting, 0, level, delay_us, key, wait)
            status = found[0]
            if status == NO_MEMORY:
                self.pool.allocator.replenish(self.table.node(), len(waiting[0]), 1, 0, 0, True)
            elif status != FULL:
                return found
            elif not wait.pause():
                raise queue.Full

    def put_nowait(self, item: Any) -> bool:
        """`put` without waiting for room."""
        return self.put(item, False)

    def put_many(
        self,
        items: Iterable[Any],
        block: bool = True,
        timeout: Seconds | None = None,
        *,
        delay: Seconds = 0,
        priority: int = 0,
    ) -> None:
        """`put` each of `items`; jobs of others may come between. After an error the items before
        it are in the queue."""
        deadline = deadline_of(block, timeout)
        delay_us = _us("delay", delay)
        level = whole("a job's `priority`", priority, 0, PRIORITIES - 1)
        waiting = [self.encode(item) for item in items]
        done = 0
        while done < len(waiting):
            status, done, _ = self._put_some(waiting, done, level, delay_us, 0, None)
            if status != DONE:
                self._put_one([waiting[done]], level, delay_us, 0, deadline)
                done += 1

    def _put_some(
        self,
        waiting: list[bytes],
        done: int,
        level: int,
        delay_us: int,
        key: int,
        wait: Wait | None,
    ) -> tuple[int, int, tuple[int, int]]:
        """Put some of `waiting` from number `done` on; the last status, how many are done, and, if
        results are kept, the place and the number of the job. `wait`: that of the caller, if it
        waits for room."""
        status = DONE
        where = (0, 0)
        place = 0
        last = done
        # Before the change begins: the end of one that was cut off costs a new index.
        while last < min(len(waiting), done + BATCH) and len(waiting[last]) <= self.largest:
            last += 1
        if last == done:
            raise ValueTooLarge(
                f"the element takes {len(waiting[last])} bytes; an object has room for "
                f"{self.largest} here"
            )
        table = self.table
        self._begin(NOWHERE)
        whole = False
        try:
            if wait is not None:
                wait.note()
            due = self.endpoint.microseconds() + delay_us if delay_us else 0
            while done < last and status == DONE:
                if level >= PRIORITIES:
                    place = table.place_for(key)
                status = table.put(waiting[done], level, due, key)
                if status == FULL and table.forget(self.endpoint.microseconds(), BATCH):
                    status = DONE
                else:
                    done += status == DONE
            if place and status in (DONE, EXISTS):
                where = (place - 1, table.order(place - 1))
            room = wait is not None and wait.slept and table.count(FREE_PLACES) > 0
            whole = True
            table.end(True)
            if done:
                self.news.wake_one()
            if room:
                self.room.wake_one()
        finally:
            self._finish(whole)
        return status, done, where

    # ---- consumers ----------------------------------------------------------------------------

    def get(self, block: bool = True, timeout: Seconds | None = None) -> Delivery:
        """The first ready job of the highest priority, as a delivery to this process; waits for
        one, at most `timeout` seconds. Raises queue.Empty.

        First in, first out within a priority; a job that was given back comes in its old place.
        """
        return self.deliver(1, False, deadline_of(block, timeout))[0]

    def get_nowait(self) -> Delivery:
        """`get` without waiting for a job."""
        return self.get(False)

    def get_many(
        self, limit: int, block: bool = True, timeout: Seconds | None = None
    ) -> list[Delivery]:
        """The first ready jobs, as many as there are, 1 to `limit`. Waits for the first of them, as
        `get` does. Each is acknowledged on its own."""
        if limit < 1:
            raise ParameterError(f"get_many takes a limit of at least 1, not {limit}")
        deadline = deadline_of(block, timeout)
        found = self.deliver(min(limit, BATCH), False, deadline)
        with contextlib.suppress(queue.Empty):
            while len(found) < limit:
                found += self.deliver(min(limit - len(found), BATCH), False, 0.0)
        return found

    def deliver(self, limit: int, letters: bool, deadline: float | None) -> list[Delivery]:
        """`get_many`, of jobs or of dead letters."""
        wait = Wait(self.changes if letters else self.news, deadline)
        while True:
            found: list[Delivery] = []
            whole = False
            try:
                now, due = self._deliver(limit, letters, found, wait)
                whole = True
            finally:
                if not whole:
                    found.clear()
                    with contextlib.suppress(LimpetError):  # the first error goes on
                        self.give_back()
            if found:
                return found
            if not wait.pause(min(due - now, SLEEP_US) if due else SLEEP_US):
                raise queue.Empty

    def _deliver(
        self, limit: int, letters: bool, found: list[Delivery], wait: Wait
    ) -> tuple[int, int]:
        """Append deliveries to `found`, up to `limit`; the time, and when a delayed job is due."""
        table = self.table
        self._begin(NOWHERE)
        whole = False
        try:
            wait.note()
            now = self.endpoint.microseconds()
            due = table.ready_due(now)
            forgotten = table.forget(now, BATCH)
            again = dead = 0
            if now - self.looked >= GIVE_BACK_US or now < self.looked:
                again, dead = self._look(now)
            self._take(limit, letters, now, found)
            if not found and self.looked != now and table.count(HELD_JOBS):
                again, dead = self._look(now)
                self._take(limit, letters, now, found)
            ready = table.ready()
            whole = True
            table.end(True)
            if ready and (found or again):
                self.news.wake_one()
            if dead:
                self.changes.wake()
            if forgotten:
                self.room.wake_one()
        finally:
            self._finish(whole)
        return now, due

    def _take(self, limit: int, letters: bool, now: int, found: list[Delivery]) -> None:
        """Append deliveries to `found`, up to `limit`. With the lock."""
        due = now + self.visibility_us if self.visibility_us else 0
        while len(found) < limit:
            job = self.table.take(letters, due)
            if job is None:
                break
            delivery = Delivery(self, job)
            self.mine[job.order] = job
            found.append(delivery)

    def _look(self, now: int) -> tuple[int, int]:
        """Give back the jobs of dead consumers, and those that were dropped. With the lock."""
        found = self.table.give_back(now, self.mine)
        self.looked = now
        return found

    def drop(self, job: Job) -> None:
        """Give back a job whose delivery the program has dropped."""
        try:
            self.settle(job, NACK, 0, DROPPED)
        except LimpetError:
            # Its time was over; or within an operation, the next one does it; or this client has
            # left the queue.
            self._forget(job)
        except BaseException:  # a signal handler has cut it off
            self._forget(job)
            self.give_back()
            raise

    def _forget(self, job: Job) -> None:
        """The job is not among ours; if it is held by us nevertheless, the next look gives it
        back."""
        if self.mine.get(job.order) is job:
            del self.mine[job.order]
            self.looked = 0

    def settle(self, job: Job, what: int, delay_us: int, text: bytes) -> None:
        """Acknowledge a job, also with the result `text`, give it back for this reason, or hold it
        on. Raises DeliveryLost."""
        if what == KEEP and len(text) > self.largest - 8:
            raise ValueTooLarge(
                f"the result takes {len(text)} bytes; an object has room for {self.largest - 8}"
            )
        while not self._settle(job, what, delay_us, text):
            self.pool.allocator.replenish(self.table.node(), len(text) + 8, 1, 0, 0, True)

    def _settle(self, job: Job, what: int, delay_us: int, text: bytes) -> bool:
        """As `settle`; False: no memory for the result."""
        table = self.table
        self._begin(job.number)
        whole = letter = False
        done = True
        try:
            # A delivery before this process's last one of the same job may have the same word.
            ours = self.mine.get(job.order) is job
            due = self.endpoint.microseconds() + delay_us if delay_us or what == EXTEND else 0
            held = (
                ours
                and job.word >> OWNER_SHIFT == self.client.ident
                and table.is_held(job.number, job.word, job.order)
            )
            if held and what == ACK:
                table.ack(job.number)
            elif held and what == KEEP:
                done = table.keep(job.number, due, text)
            elif held and what == NACK:
                letter = table.release(job.number, due, text)
            elif held and what == RETRY:
                table.retry(job.number)
            elif held:
                table.extend(job.number, due)
            finished = table.unfinished() == 0
            whole = True
            table.end(True)
            if ours and what != EXTEND and done:
                del self.mine[job.order]
            if held and what == ACK:
                self.room.wake_one()
            elif held and what != EXTEND and what != KEEP:
                self.news.wake_one()
            if finished or letter or what == KEEP:
                self.changes.wake()
        finally:
            self._finish(whole)
        if not held:
            raise DeliveryLost(
                f"this process does not hold job {job.order} of {self.title()} any more: its time "
                "was over, or it was got before a fork; the job is delivered again"
            )
        return done

    def give_back(self) -> int:
        """Give back the jobs that dead consumers held, as each `get` does once in a while; how
        many."""
        self._begin(NOWHERE)
        whole = False
        try:
            again, dead = self._look(self.endpoint.microseconds())
            whole = True
            self.table.end(True)
            if again:
                self.news.wake()
            if dead:
                self.changes.wake()
        finally:
            self._finish(whole)
        return again + dead

    # ---- results --------------------------------------------------------------------------------

    def result_of(self, job: SubmittedJob, deadline: float | None) -> Any:
        """As `SubmittedJob.result`."""
        wait = Wait(self.changes, deadline)
        while True:
            self.enter()
            try:
                wait.note()
                word = self.table.look_at(job.number, job.order)
                owner = word >> OWNER_SHIFT
                lost = owner != 0 and owner != self.client.ident and not self.lives(owner)
            finally:
                self.leave()
            if word == FREE:
                raise ResultExpired(f"the result of {job!r} was forgotten, or none was kept")
            if word & LETTER:
                found = self._result(job, word)
                if found is not None:
                    return self.decode(found)
                continue
            if lost:
                self.give_back()
            if not wait.pause():
                raise TimeoutError(f"{job!r} has no result yet")

    def _result(self, job: SubmittedJob, word: int) -> bytes | None:
        """The result of a job that has this word; None: it has another one by now. Raises
        JobFailed, ResultExpired."""
        table = self.table
        failed = over = False
        found: bytes | None = None
        self._begin(job.number)
        whole = False
        try:
            if table.is_held(job.number, word, job.order):
                failed = word & KEPT != KEPT
                if failed:
                    found = table.reason(job.number)
                else:
                    over = table.due(job.number) <= self.endpoint.microseconds()
                    found = table.result(job.number)
            whole = True
        finally:
            self._finish(whole)
        if over:
            raise ResultExpired(f"the result of {job!r} was kept until now")
        if failed and found is not None:
            raise JobFailed(f"{job!r} is a dead letter: {_text(found)}")
        return found

    # ---- looking --------------------------------------------------------------------------------

    @property
    def dead_letters(self) -> DeadLetters:
        """The jobs that were delivered `max_deliveries` times without `ack`."""
        return DeadLetters(self)

    def counts(self) -> dict[str, int]:
        """How many jobs are `ready`, `delayed`, and `held` by clients; how many dead letters are
        there (`dead`); how many results are `kept`; and how many places are `free`. Each is right
        for a moment."""
        table = self.table
        self._begin_look()
        try:
            free, dead = table.count(FREE_PLACES), table.count(LETTERS)
            delayed, held = table.count(DELAYED_JOBS), table.count(HELD_JOBS)
            kept, ready = table.count(RESULTS), table.ready()
        finally:
            self._finish(True)
        return {
            "ready": ready, "delayed": delayed, "held": held, "dead": dead, "kept": kept,
            "free": free,
        }  # fmt: skip

    def qsize(self) -> int:
        """How many jobs are ready or delayed; while other clients change that, about so many."""
        counts = self.counts()
        return counts["ready"] + counts["delayed"]

    def empty(self) -> bool:
        """Whether no job is ready or delayed."""
        return self.qsize() == 0

    def full(self) -> bool:
        """Whether no place is free."""
        return self.counts()["free"] == 0

    def join(self, timeout: Seconds | None = None) -> bool:
        """Wait until every job is acknowledged, or a dead letter, at most `timeout` seconds;
        whether they are."""
        wait = Wait(self.changes, deadline_of(True, timeout))
        while True:
            self._begin_look()
            try:
                wait.note()
                unfinished = self.table.unfinished()
            finally:
                self._finish(True)
            if not unfinished:
                return True
            if not wait.pause():
                return False


def _text(reason: bytes) -> str:
    return reason.rstrip(b"\0").decode(errors="ignore")


def _us(what: str, time: Seconds) -> int:
    """A time as microseconds. Raises ParameterError."""
    return units_of(f"`{what}`", time, US, LONGEST_S * US)


def _hash(key: str | bytes) -> int:
    """The number that stands for a key; never 0."""
    if isinstance(key, str):
        key = key.encode()
    if not isinstance(key, bytes):
        raise ParameterError(f"a job's `key` is a text, not {key!r}")
    return hash64(key) or 1
