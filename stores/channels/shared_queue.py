"""The shared queue: globally FIFO, any process puts and gets (LOCO section 5.4).

Its places, and what a put and a get are, are in queue_places.py; what `task_done` counts, in
tasks.py; what is given back of a dead one's, in queue_kept.py. Here is the interface, who waits for
whom, and when all is done.

A waiter looks for a moment and then sleeps (waiting.py). A put wakes one who waits for an element,
a get one who waits for room; and who has slept, and leaves something for another, wakes the next.

`join` looks at the slots, then at what consumers have open, and then at the tail and those slots
that were WRITING again: if these are as before, all elements whose put had returned by then were
done with, also those that a consumer has put before it was done with another.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Iterable
from typing import Any

from limpet.shm.errors import (
    ChannelRemoved,
    NodeFailed,
    ParameterError,
    StoreCorrupt,
    TasksLost,
)
from limpet.stores.channels.deadline import deadline_of, left_us, still_us
from limpet.stores.channels.queue_layout import (
    BATCH,
    EMPTY,
    FORGOTTEN,
    READY,
    ROUND_MASK,
    ROUND_SHIFT,
    STATE_MASK,
    WRITING,
)
from limpet.stores.channels.queue_places import Places
from limpet.stores.channels.tasks import lost_since
from limpet.stores.status import AGAIN, DONE, FULL, NO_MEMORY


class SharedQueue(Places):
    """A queue of Python objects, as `queue.Queue` and `multiprocessing.Queue` are: `pool.queue`."""

    # ---- the interface of queue.Queue -----------------------------------------------------------

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Put an element; waits for room, at most `timeout` seconds. 3 round trips.

        Raises queue.Full, ValueTooLarge, StoreFull (no memory for a large element); then it is not
        in the queue. Killed before it returns, it is in there, or not.
        """
        deadline = None if block and timeout is None else deadline_of(block, timeout)
        data = self.encode(item)
        self.enter()
        try:
            outcome = self._place(data)
        finally:
            self.leave()
        if outcome != DONE:
            self._place_slowly(data, outcome, deadline)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Remove and return the first element; waits for one, at most `timeout` seconds. 3 round
        trips. Raises queue.Empty."""
        deadline = None if block and timeout is None else deadline_of(block, timeout)
        self.enter()
        try:
            data = self._take(False)
            outcome = self.outcome
        finally:
            self.leave()
        if data is None:
            data = self._take_slowly(outcome, deadline)
        return self.decode(data)

    def put_nowait(self, item: Any) -> None:
        """`put` without waiting for room."""
        self.put(item, False)

    def get_nowait(self) -> Any:
        """`get` without waiting for an element."""
        return self.get(False)

    def put_many(
        self, items: Iterable[Any], block: bool = True, timeout: float | None = None
    ) -> None:
        """`put` each of `items`; others' may come between. After an error those before it are in
        the queue."""
        deadline = deadline_of(block, timeout)
        waiting = [self.encode(item) for item in items]
        done = 0
        while done < len(waiting):
            outcome, done = self._place_many(waiting, done)
            if outcome != DONE:
                self._place_slowly(waiting[done], outcome, deadline)
                done += 1

    def get_many(self, limit: int, block: bool = True, timeout: float | None = None) -> list[Any]:
        """Remove and return the first elements, as many as there are, 1 to `limit`. Waits for the
        first of them, as `get` does. If one cannot be decoded, all of them are gone."""
        if limit < 1:
            raise ParameterError(f"get_many takes a limit of at least 1, not {limit}")
        deadline = deadline_of(block, timeout)
        found: list[bytes] = []
        outcome = self._take_many(limit, found)
        if not found:
            found = [self._take_slowly(outcome, deadline)]
        return [self.decode(data) for data in found]

    def task_done(self) -> None:
        """An element that this process got is done with. 1 round trip.

        Raises ValueError: all of them are. Killed before it returns, it is done with, or lost.
        """
        self.enter()
        try:
            self._ready()
            if not self.tasks.ours():
                raise ValueError(f"{self!r}: task_done() called too many times")
            if not self._close():
                raise ValueError(
                    f"{self!r}: this process was taken for dead, and its tasks are lost"
                )
            self.endpoint.wait()
            if not self.tasks.ours() and (
                self.endpoint.load(self.tail) <= self.endpoint.load(self.head)
            ):
                self.done_with.wake()
        finally:
            self.leave()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until all elements that were put are got and done with, at most `timeout` seconds;
        whether they are.

        Raises TasksLost as soon as a process that got some has died, ended or closed its handle
        without `task_done`; so does every `join`, anybody's, until `forget_lost`.
        """
        deadline = deadline_of(True, timeout)
        looks = token = 0
        sleepy = False
        while True:
            try:
                self.enter()
                try:
                    if sleepy:
                        token = self.done_with.prepare()
                    finished = self._finished()
                finally:
                    self.leave()
            except TasksLost as error:
                # Not in an operation: decoding may run anything.
                error.elements = [self.decode(data) for data in error.elements]
                raise
            if finished:
                return True
            left = still_us(deadline)
            if not left:
                return False
            if token:
                self.done_with.sleep(token, left)
            else:
                looks += 1
                sleepy = not self.done_with.spin(looks)

    def lost(self) -> list[Any]:
        """The elements that processes had got which have ended without `task_done`, in the order in
        which they were put, until `forget_lost`. Each consumer has the last few that it got noted
        (`keep`); what else it had is gone."""
        self.enter()
        try:
            self._ready()
            found = [data for _, _, _, data in self._lost() if data is not None]
        finally:
            self.leave()
        return [self.decode(data) for data in found]

    def forget_lost(self, error: TasksLost | None = None) -> int:
        """Let `join` go on without the elements that were lost so far, and let go of them; how many
        it did not forget before. A client that wants them done puts them again before.

        With the `error` that a `join` has raised, only what that tells of: what was lost meanwhile
        is told of by the next one. Killed in there: some may be gone, and are still counted.
        """
        self.enter()
        try:
            self._ready()
            if error is None:
                lost, there = self._lost_and_count()
                noted = [one[:3] for one in there]
            else:
                lost, noted = error.until, error.noted
            for row, number, word in noted:
                # CRASH(forgetting): an entry is empty, and its element still counted.
                self._forget(row, number, word)
            at = self.address + FORGOTTEN
            before = self.endpoint.load(at)
            while (more := lost_since(lost, before)) and (
                self.endpoint.cas(at, before, lost) != before
            ):
                before = self.endpoint.load(at)
            return more
        finally:
            self.leave()

    def qsize(self) -> int:
        """How many elements there are; counts them."""
        self.enter()
        try:
            return self._count()
        finally:
            self.leave()

    def empty(self) -> bool:
        """Whether there is no element."""
        return self.qsize() == 0

    def full(self) -> bool:
        """Whether there are `maxsize` elements."""
        return self.qsize() >= self.maxsize

    def close(self) -> None:
        """This process neither puts nor gets by this handle any more: ValueError. What it has put
        stays in the queue."""
        if not self.closed:
            self.closed = True
            self.manager.forget(self)
            # Of a queue that was removed, or lost, there is nothing to give back.
            with contextlib.suppress(ChannelRemoved, NodeFailed):
                self.resign()

    def join_thread(self) -> None:
        """As multiprocessing's; there is no thread that puts: `put` does."""

    def cancel_join_thread(self) -> None:
        """Likewise."""

    def resign(self) -> None:
        self.enter()
        try:
            if self.joined_as == self.client.ident:
                self.fold()
        finally:
            self.leave()
        super().resign()

    # ---- waiting ----------------------------------------------------------------------------

    def _place_slowly(self, data: bytes, outcome: int, deadline: float | None) -> None:
        looks = token = laggard = node = 0
        sleepy = slept = looked = False
        while outcome != DONE:
            if outcome == NO_MEMORY:
                if looked:
                    self.allocator.replenish(node, len(data), 1, 0, 0, True)
            elif token:
                if laggard:
                    self.membership.gone(laggard, f"all places of {self!r}")
                self.room.sleep(token, left_us(deadline, queue.Full))
                token = 0
                slept = True
            else:
                left_us(deadline, queue.Full)
                looks += 1
                sleepy = not self.room.spin(looks)
            self.enter()
            try:
                if outcome == FULL and sleepy:
                    token = self.room.prepare()
                outcome = self._place(data)
                # Outside of operations they may be another thread's.
                node, laggard, looked = self.node, self.laggard, True
                if slept and outcome == DONE and self._length() < self.maxsize:
                    self.room.wake_one()
            finally:
                self.leave()

    def _take_slowly(self, outcome: int, deadline: float | None) -> Any:
        attempts = looks = token = 0
        sleepy = slept = False
        while True:
            if outcome == AGAIN:
                attempts += 1
                self.endpoint.pause(min(attempts, self.patience))
            elif token:
                self.news.sleep(token, left_us(deadline, queue.Empty))
                token = 0
                slept = True
            else:
                left_us(deadline, queue.Empty)
                looks += 1
                sleepy = not self.news.spin(looks)
            self.enter()
            try:
                if outcome == EMPTY and sleepy:
                    token = self.news.prepare()
                skip = attempts >= self.patience
                data = self._take(skip)
                outcome = self.outcome
                if slept and data is not None and self._length() > 0:
                    self.news.wake_one()
            finally:
                self.leave()
            if data is not None:
                return data
            if skip:
                attempts = 0

    def _place_many(self, waiting: list[bytes], done: int) -> tuple[int, int]:
        """Put some of `waiting` from number `done` on; the last outcome, and how many are done."""
        last = min(len(waiting), done + BATCH)
        self.enter()
        try:
            while done < last:
                outcome = self._place(waiting[done])
                if outcome != DONE:
                    return outcome, done
                done += 1
            return DONE, done
        finally:
            self.leave()

    def _take_many(self, limit: int, found: list[bytes]) -> int:
        """Append elements that are there to `found`, up to `limit`; why there are no more."""
        while len(found) < limit:
            self.enter()
            try:
                last = min(limit, len(found) + BATCH)
                while len(found) < last:
                    data = self._take(False)
                    if data is None:
                        return self.outcome
                    found.append(data)
            finally:
                self.leave()
        return DONE

    def _lost_and_count(self) -> tuple[int, list[tuple[int, int, int, Any]]]:
        """How many were lost ever, and what is there of them, at the same time. In an operation."""
        lost = self.tasks.counted(self)[1]
        while True:
            found = self._lost()
            # ORDER: the counts before and after: nobody has died in between.
            before, lost = lost, self.tasks.counted(self)[1]
            if lost == before:
                return lost, found

    # ---- joining, in an operation ---------------------------------------------------------------

    def _finished(self) -> bool:
        """Whether all that was put is done with. Raises TasksLost."""
        endpoint = self.endpoint
        self._ready()
        tail = endpoint.load(self.tail)
        at = endpoint.load(self.head)
        if at < tail and tail - at > self.maxsize:
            raise StoreCorrupt(
                f"{self!r} says that tickets {at} to {tail} are in its {self.maxsize} places: "
                "memory was damaged; remove the queue, and make it anew"
            )
        empty = True
        cut, words = [], []
        while at < tail and empty:
            number = at // self.maxsize
            slot = self._slot(at - number * self.maxsize)
            word = endpoint.load(slot)
            if word >> ROUND_SHIFT == number & ROUND_MASK:
                empty = word & STATE_MASK != READY
                if word & STATE_MASK == WRITING:
                    cut.append(slot)
                    words.append(word)
            at += 1
        # ORDER: after the slots: what was taken from them is open, or done with.
        living, lost = self.tasks.counted(self)
        before = endpoint.load(self.address + FORGOTTEN)
        if more := lost_since(lost, before):
            lost, there = self._lost_and_count()
            found = [data for _, _, _, data in there if data is not None]
            error = TasksLost(
                f"{more} elements of {self.name!r} of {self.pool.url} were got by "
                "processes that have ended without task_done() for them; lost() gives "
                f"{len(found)} of them back, to be put again; forget_lost() lets join() go on",
                more,
            )
            error.elements = found
            error.until = lost
            error.noted = [one[:3] for one in there]
            raise error
        if not empty or living:
            return False
        # ORDER: after the counts: what was put by who was not done yet is behind this tail.
        return endpoint.load(self.tail) == tail and [endpoint.load(one) for one in cut] == words
