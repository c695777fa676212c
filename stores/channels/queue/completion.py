"""Whether all elements of a queue are done with, for `join`; and forgetting lost elements.

`join` looks at the slots, then at the open tasks of consumers, and then again at the tail and at
the slots that were WRITING. If these are as before, all elements whose put had returned by then are
done with, also those that a consumer has put before it was done with another element.

The word `forgotten` of the queue is the number of lost elements that `join` does not report.
"""

from __future__ import annotations

from typing import Any

from limpet.shm.errors import StoreCorrupt, TasksLost
from limpet.stores.channels.queue.cyclic_ring import CyclicRing
from limpet.stores.channels.queue.layout import (
    READY,
    ROUND_MASK,
    ROUND_SHIFT,
    STATE_MASK,
    WRITING,
)
from limpet.stores.channels.queue.tasks import lost_since


class Completion:
    """The completion of a queue's elements. Its methods are called in an operation."""

    def __init__(self, ring: CyclicRing, forgotten: int, queue: str) -> None:
        """`forgotten`: the address of that word. `queue`: its name, for errors."""
        self.ring = ring
        self.tasks = ring.tasks
        self.notes = ring.notes
        self.endpoint = ring.endpoint
        self.participants = ring.participants
        self.forgotten = forgotten
        self.queue = queue

    def is_complete(self) -> bool:
        """Whether all elements that were put are done with. Raises TasksLost, with the elements
        that can be given back, encoded."""
        endpoint, slots, maxsize = self.endpoint, self.ring.slots, self.ring.maxsize
        tail = endpoint.load(self.ring.tail)
        at = endpoint.load(self.ring.head)
        if at < tail and tail - at > maxsize:
            raise StoreCorrupt(
                f"{self.ring.name} says that tickets {at} to {tail} are in its {maxsize} places: "
                "memory was damaged; remove the queue, and make it anew"
            )
        empty = True
        cut, words = [], []
        # With the ticket of the tail: that moves with READY, and not before it. A damaged tail may
        # have no next one, so the tickets are counted.
        left = tail - at + 1 if at <= tail else 0
        while left and empty:
            number = at // maxsize
            slot = slots.slot(at - number * maxsize)
            word = endpoint.load(slot)
            if word >> ROUND_SHIFT == number & ROUND_MASK:
                empty = word & STATE_MASK != READY
                if word & STATE_MASK == WRITING:
                    cut.append(slot)
                    words.append(word)
            at += 1
            left -= 1
        # ORDER: after the slots: an element that was taken from them is open, or done with.
        living, lost = self.tasks.counted(self.participants)
        if more := lost_since(lost, endpoint.load(self.forgotten)):
            raise self._lost_error(more)
        if not empty or living:
            return False
        # ORDER: after the counts: if a client was not done yet, an element that it put is behind
        # this tail.
        return not self.has_more(tail) and [endpoint.load(one) for one in cut] == words

    def has_more(self, tail: int) -> bool:
        """Whether an element was put since the tail was `tail`."""
        return self.endpoint.load(self.ring.tail) != tail

    def _lost_error(self, more: int) -> TasksLost:
        lost, there = self.count_lost()
        found = [data for _, _, _, data in there if data is not None]
        error = TasksLost(
            f"{more} elements of {self.queue} were got by processes that have ended without "
            f"task_done() for them; lost() gives {len(found)} of them back, to be put again; "
            "forget_lost() lets join() go on",
            more,
        )
        error.elements = found
        error.until = lost
        error.noted = [one[:3] for one in there]
        return error

    def count_lost(self) -> tuple[int, list[tuple[int, int, int, Any]]]:
        """How many were ever lost, and those that are noted, at the same time."""
        lost = self.tasks.counted(self.participants)[1]
        while True:
            found = self.notes.lost()
            # ORDER: the counts before and after: no consumer has died in between.
            before, lost = lost, self.tasks.counted(self.participants)[1]
            if lost == before:
                return lost, found

    def forget(self, error: TasksLost | None) -> int:
        """Let `join` go on without the elements lost so far, or those of `error`; how many of them
        were not forgotten before."""
        if error is None:
            lost, there = self.count_lost()
            noted = [one[:3] for one in there]
        else:
            lost, noted = error.until, error.noted
        for row, number, word in noted:
            # CRASH(forgetting): an entry is empty, and its element still counted.
            self.notes.forget(row, number, word)
        before = self.endpoint.load(self.forgotten)
        while (more := lost_since(lost, before)) and (
            self.endpoint.cas(self.forgotten, before, lost) != before
        ):
            before = self.endpoint.load(self.forgotten)
        return more
