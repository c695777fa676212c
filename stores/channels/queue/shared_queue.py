"""The shared queue: globally FIFO, any process puts and gets (LOCO section 5.4).

Its parts: the cyclic ring with put and take (cyclic_ring.py), the addresses of its slots
(tasks.py), the notes of consumers, from which lost elements are given back (notes.py), the count of
open tasks behind `task_done` (tasks.py), and the look of `join` (completion.py). Here are the
interface and the waiting.

A waiting client looks for a moment and then sleeps (waiting.py). A put wakes a client that waits
for an element, a get one that waits for room; and a client that has slept wakes the next one if
elements, or room, are left.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Iterable
from typing import Any, Final

from limpet.shm.errors import (
    ChannelRemoved,
    NodeFailed,
    ParameterError,
    TasksLost,
    ValueTooLarge,
)
from limpet.shm.times import Seconds
from limpet.stores.channels.channel import Channel
from limpet.stores.channels.layout import LINE
from limpet.stores.channels.participants import Participants
from limpet.stores.channels.queue.completion import Completion
from limpet.stores.channels.queue.cyclic_ring import CyclicRing
from limpet.stores.channels.queue.layout import (
    BATCH,
    CONTROL_SIZE,
    DATA,
    DONE_WITH,
    FORGOTTEN,
    ITEM_SIZE,
    MAXSIZE,
    NEWS,
    PATIENCE,
    REJOIN,
    ROOM,
    Refusal,
)
from limpet.stores.channels.queue.notes import MAXSIZE_MAX, Notes, entries_for, row_size
from limpet.stores.channels.queue.tasks import QueueSlots, Tasks
from limpet.stores.channels.regions.region import DESCRIPTION_MAX, Links
from limpet.stores.channels.waiting import Wait, Waiting, deadline_of, whole
from limpet.stores.core.codecs import Codec
from limpet.stores.core.status import AGAIN, NO_MEMORY

assert NEWS < ROOM < DONE_WITH < FORGOTTEN < CONTROL_SIZE
SIZE_MAX: Final = 1 << 31


class SharedQueue(Channel):
    """A queue of Python objects, as `queue.Queue` and `multiprocessing.Queue` are: `pool.queue`."""

    ring_class: type[CyclicRing] = CyclicRing
    tasks_class: type[Tasks] = Tasks
    notes_class: type[Notes] = Notes
    completion_class: type[Completion] = Completion
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
    ) -> None:
        """`maxsize`: elements, at least 1. `item_size`: an encoded element of up to so many bytes
        lies in its slot, a larger one in an object of the pool; less where nodes are small."""
        maxsize = whole("a queue's `maxsize`", maxsize, 1, MAXSIZE_MAX)
        item_size = whole("a queue's `item_size`", item_size, 1, SIZE_MAX)
        coding = Codec.named(codec)
        participants = manager.pool.parameters.clients
        most = manager.pool.heap.value_max(1) - DESCRIPTION_MAX
        keep, inline = entries_for(participants, item_size, most)
        stride = (DATA + inline + LINE - 1) // LINE * LINE
        stripes = min(manager.pool.parameters.nodes, maxsize)
        each = (maxsize + stripes - 1) // stripes
        if each * (stride + 8) > most:
            raise ValueTooLarge(
                f"{maxsize} places of {stride} bytes do not fit into {stripes} memory nodes; make "
                "the queue shorter, or the pool with larger nodes"
            )
        super().__init__(
            manager,
            name,
            parent,
            size=CONTROL_SIZE,
            kind="queue",
            maxsize=maxsize,
            item_size=item_size,
            codec=codec,
        )
        self.codec = codec
        self.encode = coding.encode
        self.decode = coding.decode
        self.maxsize = maxsize
        self.item_size = inline
        self.keep = keep
        remote = self.pool.parameters.multi_host
        self.news = self.waiting_class(self.endpoint, self.address + NEWS, remote)
        self.room = self.waiting_class(self.endpoint, self.address + ROOM, remote)
        self.done_with = self.waiting_class(self.endpoint, self.address + DONE_WITH, remote)
        self._have_parts(participants, stride, stripes, each)
        self.closed = False
        self.patience = PATIENCE
        self.take_part(participants)

    def _have_parts(self, participants: int, stride: int, stripes: int, each: int) -> None:
        """Obtain the regions of slots and of notes, and make the parts on them."""
        links = Links(each * stride, 8, each)
        size = each * (stride + 8)
        bases = [self.region(f"stripe{k}", size, k, links) for k in range(stripes)]
        entries = participants * self.keep
        cells = participants * (LINE + row_size(self.keep, self.item_size))
        at = self.region("tasks", cells + 16 * entries, links=Links(cells, 16, entries))
        self.open_rows(participants)
        rows = Participants(self.pool, self.seats, participants)
        slots = QueueSlots(
            self.title(), bases, self.maxsize, stride, links.first, at + cells, entries
        )
        self.tasks = self.tasks_class(self.endpoint, at)
        self.notes = self.notes_class(
            rows, slots, self.tasks, at + participants * LINE, self.keep, self.item_size
        )
        self.ring = self.ring_class(
            self.pool, self.address, self.marked, self.notes, self.news, self.room
        )
        self.completion = self.completion_class(
            self.ring, self.address + FORGOTTEN, f"{self.name!r} of {self.pool.url}"
        )

    # ---- a participant, in an operation -----------------------------------------------------

    def ready(self) -> int:
        """Our row, with no unfinished put or get of ours. Raises ValueError when closed."""
        if self.closed:
            raise ValueError(f"{self.title()} is closed")
        row = self.row()
        if self.ring.unfinished:
            self.ring.release(row, self.ring.unfinished)
        if self.notes.unsure:
            self.notes.reload(row)
        return row

    def _take(self, skip: bool) -> Any:
        """The first element, as bytes; or EMPTY or AGAIN, as `CyclicRing.take` returns them."""
        found = self.ring.take(self.ready(), skip)
        while type(found) is not bytes and found == REJOIN:
            self.joined_as = 0
            found = self.ring.take(self.ready(), skip)
        return found

    def joined(self) -> None:
        row = self.own_row
        self.ring.give_up_all(row)
        if self.endpoint.load(self.seats + 8 * row) != self.client.ident:
            self.notes.fold(row)
        self.notes.reload(row)

    def suits(self, row: int, level: int) -> bool:
        return self.notes.suits(row, level)

    def vacates(self, row: int, last: bool) -> bool:
        return last or self.notes.suits(row, 1)

    # ---- the interface of queue.Queue -----------------------------------------------------------

    def put(self, item: Any, block: bool = True, timeout: Seconds | None = None) -> None:
        """Put an element; waits for room, at most `timeout` seconds. 3 round trips.

        Raises queue.Full, ValueTooLarge, StoreFull (no memory for a large element); then the
        element is not in the queue. After a kill before it returns, the element is in the queue or
        not.
        """
        deadline = None if block and timeout is None else deadline_of(block, timeout)
        data = self.encode(item)
        self.enter()
        try:
            refused = self.ring.put(self.ready(), data)
        finally:
            self.leave()
        if refused is not None:
            self._put_slowly(data, refused, deadline)

    def get(self, block: bool = True, timeout: Seconds | None = None) -> Any:
        """Remove and return the first element; waits for one, at most `timeout` seconds. 3 round
        trips. Raises queue.Empty."""
        deadline = None if block and timeout is None else deadline_of(block, timeout)
        self.enter()
        try:
            found = self._take(False)
        finally:
            self.leave()
        if type(found) is not bytes:
            found = self._take_slowly(found, deadline)
        return self.decode(found)

    def put_nowait(self, item: Any) -> None:
        """`put` without waiting for room."""
        self.put(item, False)

    def get_nowait(self) -> Any:
        """`get` without waiting for an element."""
        return self.get(False)

    def put_many(
        self, items: Iterable[Any], block: bool = True, timeout: Seconds | None = None
    ) -> None:
        """`put` each of `items`; elements of others may come between. After an error the items
        before it are in the queue."""
        deadline = deadline_of(block, timeout)
        waiting = [self.encode(item) for item in items]
        done = 0
        while done < len(waiting):
            refused, done = self._put_some(waiting, done)
            if refused is not None:
                self._put_slowly(waiting[done], refused, deadline)
                done += 1

    def get_many(self, limit: int, block: bool = True, timeout: Seconds | None = None) -> list[Any]:
        """Remove and return the first elements, as many as there are, 1 to `limit`. Waits for the
        first of them, as `get` does. If one cannot be decoded, all of them are gone."""
        if limit < 1:
            raise ParameterError(f"get_many takes a limit of at least 1, not {limit}")
        deadline = deadline_of(block, timeout)
        found: list[bytes] = []
        status = self._take_many(limit, found)
        if not found:
            found = [self._take_slowly(status, deadline)]
        return [self.decode(data) for data in found]

    def task_done(self) -> None:
        """Count one element that this process got as done with. 1 round trip.

        Raises ValueError if all of them are. After a kill before it returns, it is done with, or
        lost.
        """
        self.enter()
        try:
            row = self.ready()
            if not self.tasks.ours():
                raise ValueError(f"{self.title()}: task_done() called too many times")
            if not self.notes.close(row):
                raise ValueError(
                    f"{self.title()}: this process was declared dead, and its tasks are lost"
                )
            if not self.tasks.ours() and self.ring.length() <= 0:
                self.done_with.wake()
        finally:
            self.leave()

    def copies(self) -> list[bytes]:
        """The elements, encoded, in their order: those that are in the queue all the time, and some
        of those that are put or got meanwhile. Elements that a process has got are not in it."""
        self.enter()
        try:
            ticket = self.endpoint.load(self.ring.head)
            # With the ticket of the tail, as for `count`.
            left = max(0, self.endpoint.load(self.ring.tail) - ticket) + 1
        finally:
            self.leave()
        if left > self.maxsize:
            ticket, left = ticket + left - self.maxsize, self.maxsize
        found: list[bytes] = []
        while left:
            here = min(left, BATCH)
            self.enter()
            try:
                found += self.ring.copies(ticket, here)
            finally:
                self.leave()
            ticket, left = ticket + here, left - here
        return found

    def put_copies(self, elements: list[bytes]) -> None:
        """Put encoded elements. Raises queue.Full, StoreFull."""
        done = 0
        while done < len(elements):
            refused, done = self._put_some(elements, done)
            if refused is not None:
                self._put_slowly(elements[done], refused, deadline_of(False, None))
                done += 1

    def join(self, timeout: Seconds | None = None) -> bool:
        """Wait until all elements that were put are got and done with, at most `timeout` seconds;
        whether they are.

        Raises TasksLost as soon as a process that got some has died, ended or closed its handle
        without `task_done`; so does every `join`, of any process, until `forget_lost`.
        """
        wait = Wait(self.done_with, deadline_of(True, timeout))
        while True:
            try:
                self.enter()
                try:
                    wait.note()
                    self.ready()
                    complete = self.completion.is_complete()
                finally:
                    self.leave()
            except TasksLost as error:
                # Not in an operation: decoding may run any code.
                error.elements = [self.decode(data) for data in error.elements]
                raise
            if complete:
                return True
            if not wait.pause():
                return False

    def lost(self) -> list[Any]:
        """The elements of processes that have ended without `task_done`, in the order in which they
        were put, until `forget_lost`. The last few of each consumer are noted (`keep`); older ones
        are gone."""
        self.enter()
        try:
            self.ready()
            found = [data for _, _, _, data in self.notes.lost() if data is not None]
        finally:
            self.leave()
        return [self.decode(data) for data in found]

    def forget_lost(self, error: TasksLost | None = None) -> int:
        """Let `join` go on without the elements lost so far, and forget them; how many were
        not forgotten before. To have them done, put them again first.

        With the `error` that a `join` has raised, only the elements of that error: the next `join`
        reports those that were lost meanwhile. After a kill in it, some may be gone and still
        counted.
        """
        self.enter()
        try:
            self.ready()
            return self.completion.forget(error)
        finally:
            self.leave()

    def qsize(self) -> int:
        """How many elements there are; counts them."""
        self.enter()
        try:
            self.ready()
            return self.ring.count()
        finally:
            self.leave()

    def empty(self) -> bool:
        """Whether there is no element."""
        return self.qsize() == 0

    def full(self) -> bool:
        """Whether there are `maxsize` elements."""
        return self.qsize() >= self.maxsize

    def close(self) -> None:
        """Close this handle: puts and gets by it raise ValueError from now on. The elements that it
        has put stay in the queue."""
        if not self.closed:
            self.closed = True
            self.manager.forget(self)
            # A queue that was removed, or lost, has no row to give back.
            with contextlib.suppress(ChannelRemoved, NodeFailed):
                self.resign()

    def join_thread(self) -> None:
        """As multiprocessing's: returns at once, as `put` itself puts, and no thread does."""

    def cancel_join_thread(self) -> None:
        """Likewise."""

    def resign(self) -> None:
        self.enter()
        try:
            if self.joined_as == self.client.ident:
                self.notes.fold(self.own_row)
        finally:
            self.leave()
        super().resign()

    # ---- waiting ----------------------------------------------------------------------------

    def _put_slowly(self, data: bytes, refused: Refusal | None, deadline: float | None) -> None:
        wait = Wait(self.room, deadline)
        while refused is not None:
            if refused.outcome == NO_MEMORY:
                self.pool.allocator.replenish(refused.node, len(data), 1, 0, 0, True)
            else:
                if wait.token and refused.laggard:
                    self.membership.gone(refused.laggard, f"all places of {self.title()}")
                if not wait.pause():
                    raise queue.Full
            self.enter()
            try:
                wait.note()
                refused = self.ring.put(self.ready(), data)
                if wait.slept and refused is None and self.ring.length() < self.maxsize:
                    self.room.wake_one()
            finally:
                self.leave()

    def _take_slowly(self, found: Any, deadline: float | None) -> Any:
        """The first element; `found` is the status of the last `_take`."""
        wait = Wait(self.news, deadline)
        attempts = 0
        while True:
            if found == AGAIN:
                attempts += 1
                self.endpoint.pause(min(attempts, self.patience))
            elif not wait.pause():
                raise queue.Empty
            self.enter()
            try:
                wait.note()
                skip = attempts >= self.patience
                found = self._take(skip)
                if wait.slept and type(found) is bytes and self.ring.length() > 0:
                    self.news.wake_one()
            finally:
                self.leave()
            if type(found) is bytes:
                return found
            if skip:
                attempts = 0

    def _put_some(self, waiting: list[bytes], done: int) -> tuple[Refusal | None, int]:
        """Put some of `waiting` from number `done` on; the reason if one was not put, and how many
        are done."""
        last = min(len(waiting), done + BATCH)
        self.enter()
        try:
            row = self.ready()
            while done < last:
                refused = self.ring.put(row, waiting[done])
                if refused is not None:
                    return refused, done
                done += 1
            return None, done
        finally:
            self.leave()

    def _take_many(self, limit: int, found: list[bytes]) -> int:
        """Append elements to `found`, up to `limit`; the status that ended it, or 0."""
        while len(found) < limit:
            self.enter()
            try:
                last = min(limit, len(found) + BATCH)
                while len(found) < last:
                    one = self._take(False)
                    if type(one) is not bytes:
                        return int(one)
                    found.append(one)
            finally:
                self.leave()
        return 0
