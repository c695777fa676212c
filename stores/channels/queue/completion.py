"""Whether all elements of a queue are done with, for `join`; and forgetting lost elements.

`join` looks at the slots, then at the open tasks of consumers, and then again at the tail and at
the slots that were WRITING. If these are as before, all elements whose put had returned by then are
done with, also those that a consumer has put before it was done with another element.

The word `forgotten` of the queue is the number of lost elements that `join` does not report.
"""

from __future__ import annotations

from typing import Any

from limpet.shm.errors import StoreCorrupt, TasksLost
from limpet.stores.channels.phases import cas_alone, load_alone
from limpet.stores.channels.queue.cyclic_ring import CyclicRing
from limpet.stores.channels.queue.layout import (
    LOOKED_AT,
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
        that can be given back, encoded. 6 round trips, and more for more places."""
        endpoint, maxsize = self.endpoint, self.ring.maxsize
        tail_ticket = endpoint.post_load(self.ring.tail)
        head_ticket = endpoint.post_load(self.ring.head)
        endpoint.wait()
        tail, at = endpoint.result(tail_ticket), endpoint.result(head_ticket)
        if at < tail and tail - at > maxsize:
            raise StoreCorrupt(
                f"{self.ring.name} says that tickets {at} to {tail} are in its {maxsize} places: "
                "memory was damaged; remove the queue, and make it anew"
            )
        empty = True
        cut: list[tuple[int, int]] = []
        # With the ticket of the tail: that moves with READY, and not before it. A damaged tail may
        # have no next one, so the tickets are counted.
        left = tail - at + 1 if at <= tail else 0
        while left and empty:
            here = left if left < LOOKED_AT else LOOKED_AT
            empty = self._are_taken(at, here, cut)
            at += here
            left -= here
        # ORDER: after the slots: an element that was taken from them is open, or done with.
        living, lost = self.tasks.counted(self.participants)
        # ORDER: after the counts: if a client was not done yet, an element that it put is behind
        # this tail.
        forgotten = endpoint.post_load(self.forgotten)
        tail_ticket = endpoint.post_load(self.ring.tail)
        tickets = [endpoint.post_load(slot) for slot, _ in cut]
        endpoint.wait()
        if more := lost_since(lost, endpoint.result(forgotten)):
            raise self._lost_error(more)
        if not empty or living or self.has_more(tail, endpoint.result(tail_ticket)):
            return False
        return [endpoint.result(ticket) for ticket in tickets] == [word for _, word in cut]

    def _are_taken(self, ticket: int, count: int, cut: list[tuple[int, int]]) -> bool:
        """Whether so many tickets from this one on have no element that is READY; appends the
        addresses and words of slots that are WRITING."""
        words = self.ring.words_of(ticket, count)
        for step in range(count):
            number = (ticket + step) // self.ring.maxsize
            word = words[step]
            if word >> ROUND_SHIFT == number & ROUND_MASK:
                if word & STATE_MASK == READY:
                    return False
                if word & STATE_MASK == WRITING:
                    place = (ticket + step) % self.ring.maxsize
                    cut.append((self.ring.slots.slot(place), word))
        return True

    def has_more(self, tail: int, now: int) -> bool:
        """Whether an element was put since the tail was `tail`; it is `now`."""
        return now != tail

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
        before = load_alone(self.endpoint, self.forgotten)
        while more := lost_since(lost, before):
            seen = cas_alone(self.endpoint, self.forgotten, before, lost)
            if seen == before:
                break
            before = seen
        return more
