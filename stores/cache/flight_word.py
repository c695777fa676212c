"""The word of an entry that says which client computes its value: `FlightWord`.

It is in the head of the entry's object (layout.py): 0, or a client. flight.py has the protocol, and
the callers that wait; this module changes the word, within an operation.
"""

from __future__ import annotations

from typing import Any

from limpet.stores.cache.entries import Entries
from limpet.stores.cache.layout import (
    DEADLINE,
    EARLY_SHIFT,
    FLIGHT,
    LIFE,
    PENDING,
    SLIDES,
    TIMES,
    US_PER_MS,
)
from limpet.stores.cache.status import FRESH, LANDED, MINE, OTHERS, STALE, UNDECIDED
from limpet.stores.race.index import Place
from limpet.stores.status import DONE


class FlightWord:
    """Begins and ends this client's flights of entries."""

    def __init__(self, entries: Entries) -> None:
        self.entries = entries
        self.endpoint = entries.endpoint
        self.client = entries.client

    def board(self, place: Place, key: bytes, dead: int, early: int) -> Any:
        """Begin the flight of a key, unless it has a value or another client has it.

        `early`: if it is not 0, a flight may begin before the deadline: by as many times the
        time that the value took to compute, in 1/1024.
        As `CacheStore.begin_flight` returns; None: there is no entry to compute.
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
                # LINEARIZES: the beginning of an early flight
                if self.endpoint.cas(head + FLIGHT, 0, self.client.ident) == 0:
                    # A kill here: the value is served until its deadline, as if there were none.
                    return MINE, objects.value(), birth
            entries.meet(head, self.endpoint.load(head + LIFE))
            return LANDED, objects.value(), 0
        value = None
        if state == STALE:
            value = objects.value()
        elif state != UNDECIDED:
            return None  # it does not count any more: a new entry takes its place
        birth = entries.validity.birth()
        pilot = self.endpoint.load(head + FLIGHT)
        if pilot and pilot != dead:
            return OTHERS, value, pilot
        # LINEARIZES: the beginning of a flight
        found = self.endpoint.cas(head + FLIGHT, pilot, self.client.ident)
        # A kill here: a waiting caller sees that the client is dead, and takes over.
        return (MINE, value, birth) if found == pilot else (OTHERS, value, found)

    def pilot(self, place: Place, key: bytes) -> int:
        """The client that has the flight of a key without a value, alive or not; 0: there is
        none."""
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

    def alight(self, place: Place, key: bytes) -> bool:
        """End this client's flight of a key without a value; False: it has none."""
        entries = self.entries
        entries.index.choose(place, key)
        slot = entries.index.find(place, key)
        if not slot:
            return False
        head = entries.objects.at()
        if self.endpoint.load(head + FLIGHT) != self.client.ident:
            return False
        pending = self.endpoint.load(head + LIFE) & PENDING
        if not pending or entries.unlink(place, slot) != DONE:
            self.endpoint.cas(head + FLIGHT, self.client.ident, 0)
        return True
