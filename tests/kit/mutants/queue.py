"""Queues that are wrong in one way each."""

from __future__ import annotations

from typing import Any

from limpet.stores.channels.queue_layout import (
    DATA,
    EMPTY,
    FREE,
    KIND,
    OWNER_MASK,
    OWNER_SHIFT,
    READY,
    ROUND_SHIFT,
    SIZE,
    STATE_MASK,
    TAKEN,
)
from limpet.stores.channels.shared_queue import SharedQueue
from limpet.stores.status import DONE, FULL


class FetchAndAdd(SharedQueue):
    """A place is taken by fetch-and-add: who dies then leaves a hole that nobody knows of."""

    def _place(self, data: bytes) -> int:
        endpoint = self.endpoint
        if len(data) > self.item_size:
            return super()._place(data)
        if endpoint.load(self.tail) - endpoint.load(self.head) >= self.maxsize:
            return FULL
        number, place = divmod(endpoint.faa(self.tail, 1), self.maxsize)
        slot = self._slot(place)
        endpoint.store(slot + SIZE, len(data))
        endpoint.write(slot + DATA, data)
        endpoint.store(slot, number << ROUND_SHIFT | READY)
        return DONE


class _Getting(SharedQueue):
    def _take(self, skip: bool) -> Any:
        endpoint = self.endpoint
        head = endpoint.load(self.head)
        number, place = divmod(head, self.maxsize)
        slot = self._slot(place)
        word = endpoint.load(slot)
        if word >> ROUND_SHIFT != number or word & STATE_MASK != READY:
            return super()._take(skip)
        if endpoint.load(slot + SIZE) > self.item_size:
            return super()._take(skip)
        return self._take_small(head, slot, word, number + 1 << ROUND_SHIFT | FREE)

    def _take_small(self, head: int, slot: int, word: int, free: int) -> Any:
        raise NotImplementedError


class TakeThenCopy(_Getting):
    """The slot is free, for others to write to, before the element was read."""

    def _take_small(self, head: int, slot: int, word: int, free: int) -> Any:
        if self.endpoint.cas(slot, word, free) != word:
            self.outcome = EMPTY
            return super()._take(False)
        self.endpoint.cas(self.head, head, head + 1)
        return self.endpoint.read(slot + DATA, min(self.endpoint.load(slot + SIZE), 24))


class CopyThenStore(_Getting):
    """What was read is not validated: two get the same element."""

    def _take_small(self, head: int, slot: int, word: int, free: int) -> Any:
        data = self.endpoint.read(slot + DATA, self.endpoint.load(slot + SIZE))
        self.endpoint.store(slot, free)
        self.endpoint.cas(self.head, head, head + 1)
        return data


class Impatient(SharedQueue):
    """A slot that was skipped is used again at once: a stopped producer writes there later."""

    def _abandoned(self, word: int) -> bool:
        return True


class Unnoted(SharedQueue):
    """A put where a dead one has taken does not do the rest for it: nobody knows what it had."""

    def _finish(self, place: int, slot: int, word: int) -> None:
        self.endpoint.cas(slot, word, word & ~(OWNER_MASK << OWNER_SHIFT))


class NotedIsTaken(SharedQueue):
    """What a dead one has noted counts as taken by it: it is in the queue, too."""

    def _was_taken(self, row: int, word: int) -> bool:
        for number in range(self.keep):
            self.endpoint.cas(self._entry(row, number), word, word & ~KIND | TAKEN)
        return True


MUTANTS = (FetchAndAdd, TakeThenCopy, CopyThenStore, Impatient, Unnoted, NotedIsTaken)
