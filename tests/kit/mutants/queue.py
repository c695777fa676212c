"""Queues that are wrong in one way each: another ring, or other notes, in place of theirs."""

from __future__ import annotations

from typing import Any

from limpet.stores.channels.queue.cyclic_ring import CyclicRing
from limpet.stores.channels.queue.layout import (
    DATA,
    EMPTY,
    FREE,
    KIND,
    NO_ROOM,
    OWNER_MASK,
    OWNER_SHIFT,
    READY,
    ROUND_SHIFT,
    SIZE,
    STATE_MASK,
    TAKEN,
)
from limpet.stores.channels.queue.notes import Notes
from limpet.stores.channels.queue.shared_queue import SharedQueue


class FetchingRing(CyclicRing):
    def put(self, row: int, data: bytes) -> Any:
        endpoint = self.endpoint
        if len(data) > self.item_size:
            return super().put(row, data)
        if endpoint.load(self.tail) - endpoint.load(self.head) >= self.maxsize:
            return NO_ROOM
        number, place = divmod(endpoint.faa(self.tail, 1), self.maxsize)
        slot = self.slots.slot(place)
        endpoint.store(slot + SIZE, len(data))
        endpoint.write(slot + DATA, data)
        endpoint.store(slot, number << ROUND_SHIFT | READY)
        return None


class FetchAndAdd(SharedQueue):
    """A place is taken by fetch-and-add: who dies then leaves a hole that no client knows of."""

    ring_class = FetchingRing


class _Getting(CyclicRing):
    def take(self, row: int, skip: bool) -> Any:
        endpoint = self.endpoint
        head = endpoint.load(self.head)
        number, place = divmod(head, self.maxsize)
        slot = self.slots.slot(place)
        word = endpoint.load(slot)
        if word >> ROUND_SHIFT != number or word & STATE_MASK != READY:
            return super().take(row, skip)
        if endpoint.load(slot + SIZE) > self.item_size:
            return super().take(row, skip)
        return self._take_small(head, slot, word, number + 1 << ROUND_SHIFT | FREE)

    def _take_small(self, head: int, slot: int, word: int, free: int) -> Any:
        raise NotImplementedError


class TakingFirst(_Getting):
    def _take_small(self, head: int, slot: int, word: int, free: int) -> Any:
        if self.endpoint.cas(slot, word, free) != word:
            return EMPTY
        self.endpoint.cas(self.head, head, head + 1)
        return self.endpoint.read(slot + DATA, min(self.endpoint.load(slot + SIZE), 24))


class TakeThenCopy(SharedQueue):
    """The slot is free, for others to write to, before the element was read."""

    ring_class = TakingFirst


class Storing(_Getting):
    def _take_small(self, head: int, slot: int, word: int, free: int) -> Any:
        data = self.endpoint.read(slot + DATA, self.endpoint.load(slot + SIZE))
        self.endpoint.store(slot, free)
        self.endpoint.cas(self.head, head, head + 1)
        return data


class CopyThenStore(SharedQueue):
    """A read is not validated: two clients get the same element."""

    ring_class = Storing


class UsingAtOnce(CyclicRing):
    def abandoned(self, row: int, word: int) -> bool:
        return True


class Impatient(SharedQueue):
    """A slot that was skipped is used again at once: a stopped producer writes there later."""

    ring_class = UsingAtOnce


class Unfinished(Notes):
    def finish(self, place: int, slot: int, word: int) -> None:
        self.endpoint.cas(slot, word, word & ~(OWNER_MASK << OWNER_SHIFT))


class Unnoted(SharedQueue):
    """A put where a dead one has taken does not do the rest for it: no client knows what it had."""

    notes_class = Unfinished


class Believing(Notes):
    def was_taken(self, row: int, word: int) -> bool:
        for number in range(self.keep):
            self.endpoint.cas(self.entry(row, number), word, word & ~KIND | TAKEN)
        return True


class NotedIsTaken(SharedQueue):
    """A dead client's noted element counts as taken by it, though it is in the queue, too."""

    notes_class = Believing


MUTANTS = (FetchAndAdd, TakeThenCopy, CopyThenStore, Impatient, Unnoted, NotedIsTaken)
