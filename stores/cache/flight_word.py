"""The word of an entry that says which flight computes its value: `FlightWord`.

It is in the head of the entry's object (layout.py): 0, or a client and the number of its flight.
flight.py has the protocol, and the callers that wait; this module changes the word, within an
operation.

All threads of a process are one client, so the number tells their flights apart: a caller whose
flight was cancelled, as the key was deleted, cannot end the flight that another thread has begun
since. Numbers come again after 65,536 flights of the process. A cancelled flight that lasts so long
has a chance of one in 65,536 to be taken for the one that the key has then.
"""

from __future__ import annotations

import itertools
from typing import Any, Final

from limpet.stores.cache.entries import Entries
from limpet.stores.cache.layout import (
    DEADLINE,
    EARLY_SHIFT,
    FLIGHT,
    LIFE,
    NUMBER_AT,
    PENDING,
    PILOT_MASK,
    SLIDES,
    TIMES,
    US_PER_MS,
)
from limpet.stores.cache.status import FRESH, LANDED, MINE, OTHERS, STALE, UNDECIDED
from limpet.stores.cache.terms import Terms
from limpet.stores.race.index import Place
from limpet.stores.status import DONE

_numbers: Final = itertools.count()
"""One counter for all handles of this process: two of a pool's may be one client."""


class FlightWord:
    """Begins and ends this client's flights of entries."""

    def __init__(self, entries: Entries) -> None:
        self.entries = entries
        self.endpoint = entries.endpoint
        self.client = entries.client

    def following(self) -> int:
        """The word of a flight that this client begins now."""
        number = next(_numbers) & 0xFFFF
        return number << NUMBER_AT | self.client.ident

    def board(self, place: Place, key: bytes, dead: int, early: int, terms: Terms) -> Any:
        """Begin the flight of a key, unless it has a value or another client has it.

        `early`: if it is not 0, a flight may begin before the deadline: by as many times the
        time that the value took to compute, in 1/1024.
        As `CacheStore.begin_flight` returns; None: there is no entry to compute. `terms.flight`
        has the flight from before it is begun, so that a caller that is cut off can end it.
        """
        entries = self.entries
        objects = entries.objects
        entries.index.choose(place, key)
        if not entries.index.find(place, key):
            return None
        head = objects.at()
        state = entries.state(head)
        if state == FRESH:
            if early and self._is_early(head, early):
                birth = entries.validity.birth()
                terms.flight = flight = self.following()
                # LINEARIZES: the beginning of an early flight
                if self.endpoint.cas(head + FLIGHT, 0, flight) == 0:
                    # A kill here: the value is served until its deadline, as if there were none.
                    return MINE, objects.value(), birth, flight
            entries.meet(head, self.endpoint.load(head + LIFE))
            return LANDED, objects.value(), 0, 0
        value = None
        if state == STALE:
            value = objects.value()
        elif state != UNDECIDED:
            return None  # it does not count any more: a new entry takes its place
        birth = entries.validity.birth()
        other = self.endpoint.load(head + FLIGHT)
        if other and other != dead:
            return OTHERS, value, 0, other
        terms.flight = flight = self.following()
        # LINEARIZES: the beginning of a flight
        found = self.endpoint.cas(head + FLIGHT, other, flight)
        # A kill here: a waiting caller sees that the client is dead, and takes over.
        return (MINE, value, birth, flight) if found == other else (OTHERS, value, 0, found)

    def find(self, place: Place, key: bytes) -> int:
        """The flight of a key without a value, its client alive or not; 0: there is none."""
        entries = self.entries
        entries.index.choose(place, key)
        if not entries.index.find(place, key):
            return 0
        head = entries.objects.at()
        if entries.state(head) != UNDECIDED:
            return 0
        return self.endpoint.load(head + FLIGHT)

    def _is_early(self, head: int, early: int) -> bool:
        """Whether the entry's deadline is near, and no client computes another value."""
        endpoint = self.endpoint
        deadline = endpoint.load(head + DEADLINE)
        if not deadline or endpoint.load(head + FLIGHT) or endpoint.load(head + LIFE) & SLIDES:
            return False
        took = endpoint.load(head + TIMES) & 0xFFFF_FFFF
        return endpoint.microseconds() + (took * early * US_PER_MS >> EARLY_SHIFT) >= deadline

    def alight(self, place: Place, key: bytes, flight: int) -> bool:
        """End this flight of a key without a value; False: the key has it no more, or it is that of
        another client, as of the process that this one was forked from."""
        if flight & PILOT_MASK != self.client.ident:
            return False
        entries = self.entries
        entries.index.choose(place, key)
        slot = entries.index.find(place, key)
        if not slot:
            return False
        head = entries.objects.at()
        if self.endpoint.load(head + FLIGHT) != flight:
            return False
        pending = self.endpoint.load(head + LIFE) & PENDING
        if not pending or entries.unlink(place, slot) != DONE:
            self.endpoint.cas(head + FLIGHT, flight, 0)
        return True
