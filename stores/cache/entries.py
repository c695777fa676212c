"""The steps of an operation on one entry of a cache: `Entries`; its object, and its flight's word.

All run within an operation. The index finds an entry, which is then in the image (`CacheObjects`).
`head` is the address of the words in front of the pair of its object (layout.py).

An object of a cache is a head (layout.py), then the pair as records.py says. `heading` is the next
object's head; a store sets it within the operation that writes the object. The words of a head that
change are read and written by atomic verbs, at `at`.

`FlightWord` changes the word that says which flight computes the value of an entry. The word is in
the head of the entry's object: 0, or a client and the number of its flight. flight.py has the
protocol, and the callers that wait.

All threads of a process are one client, so the number tells their flights apart: a caller whose
flight was cancelled, as the key was deleted, cannot end the flight that another thread has begun
since. Numbers come again after 65,536 flights of the process. A cancelled flight that lasts so long
has a chance of one in 65,536 to be taken for the one that the key has then.
"""

from __future__ import annotations

import itertools
from array import array
from typing import Any, Final

from limpet.shm.endpoint.fabric import checksum
from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.stores.cache.layout import (
    BIRTH,
    BORN_MASK,
    BORN_SHIFT,
    DEAD,
    DEADLINE,
    DELETES,
    EARLY_SHIFT,
    EXPIRATIONS,
    FINISH,
    FLIGHT,
    FRESH,
    HITS,
    HITS_MASK,
    HITS_MAX,
    LANDED,
    LAP_SHIFT,
    LIFE,
    MINE,
    MISSES,
    NUMBER_AT,
    OTHERS,
    PENDING,
    PILOT_MASK,
    PREFIX,
    SLIDES,
    SPAN_MASK,
    STALE,
    SWAP,
    TAGGED,
    TAGS,
    TIMES,
    UNDECIDED,
    UNIT,
    US_PER_MS,
    VOID,
)
from limpet.stores.cache.ledger import Counters, Ledger
from limpet.stores.cache.validity import Terms, Validity
from limpet.stores.core.object_layout import HEADER
from limpet.stores.core.records import Objects
from limpet.stores.core.status import DONE, EXISTS, INSERT, MISSING, PUT
from limpet.stores.race.index import Index, Place
from limpet.stores.race.slots import Slots

MASK: Final = 0xFFFF_FFFF_FFFF_FFFF


class CacheObjects(Objects):
    """Writes objects with a head, and reads them."""

    def __init__(self, heap: Any) -> None:
        super().__init__(heap, 1, True)
        self.prefix = PREFIX
        self.whole = True
        self.heading = array("Q", bytes(64))
        """Life, deadline, times, birth, tags and flight; then sizes and checksum."""

    def write_hashed(self, reference: int, key: bytes, value: bytes, hashed: int) -> None:
        """Write head and pair; one write."""
        sizes = len(key) | len(value) << 16
        self.heading[6] = sizes
        self.heading[7] = checksum(value, (hashed + sizes) & MASK)
        self.endpoint.write_gather(reference & ADDRESS_MASK, self.heading, 8, key, value)

    def at(self) -> int:
        """Address of the head of the object in the image."""
        return self.address - PREFIX

    def checksum(self) -> int:
        """Of the pair in the image."""
        return self.image.word(1)

    def units_of(self, sizes: int) -> int:
        """Units of an object with these sizes."""
        return (PREFIX + HEADER + ((sizes & 0xFFFF) + 7 & ~7) + (sizes >> 16) + UNIT - 1) // UNIT

    def units(self) -> int:
        """Units of the object in the image."""
        return self.units_of(self.sizes)


class Entries:
    """Reads, judges, touches and unlinks entries. `counts_hits`: by the cache's policy."""

    def __init__(
        self, pool: Any, index: Index, slots: Slots, objects: CacheObjects, validity: Validity,
        ledger: Ledger, counters: Counters, counts_hits: bool,
    ) -> None:  # fmt: skip
        self.endpoint = pool.endpoint
        self.client = pool.client
        self.index = index
        self.slots = slots
        self.objects = objects
        self.validity = validity
        self.ledger = ledger
        self.counters = counters
        self.counts_hits = counts_hits

    def state(self, head: int) -> int:
        """Of the object whose head is here: as `Validity.state`."""
        return self.validity.state(head, self.endpoint.load(head + LIFE))

    # ---- reading ----------------------------------------------------------------------------

    def read(self, found: bool) -> Any:
        """The value of the entry in the image, counted as a hit; None, counted as a miss, if it
        does not count or no entry was `found`."""
        if found:
            head = self.objects.at()
            life = self.endpoint.load(head + LIFE)
            if self.validity.state(head, life) == FRESH:
                self.meet(head, life)
                return self.objects.value()
        self.counters.count(MISSES, 1)
        return None

    def meet(self, head: int, life: int) -> None:
        """Count the hit in an entry that is read, if that is needed, and put its deadline off."""
        if self.counts_hits and life & HITS_MASK < HITS_MAX:
            self.endpoint.cas(head + LIFE, life, life + 1)
        if life & SLIDES:
            self.validity.slide(head)
        self.counters.count(HITS, 1)

    def inspect(self, place: Place, key: bytes) -> tuple[bytes, int, int, int, int] | None:
        """Value, checksum, deadline, times and tags of an entry that counts; it is not a hit. Of
        the times, the lower half is 0 unless the entry slides."""
        self.index.choose(place, key)
        if not self.index.find(place, key):
            return None
        head = self.objects.at()
        if self.state(head) != FRESH:
            return None
        deadline = self.endpoint.load(head + DEADLINE)
        times = self.endpoint.load(head + TIMES)
        if not self.endpoint.load(head + LIFE) & SLIDES:
            times = times >> 32 << 32
        tags = self.endpoint.load(head + TAGS)
        return self.objects.value(), self.objects.checksum(), deadline, times, tags

    # ---- writing ----------------------------------------------------------------------------

    def refusal(self, head: int, mode: int, terms: Terms) -> int:
        """DONE, or how a write in this mode ends when it finds the entry in the image."""
        if mode == PUT:
            return DONE
        if mode == FINISH:
            flight = self.endpoint.load(head + FLIGHT)
            ours = flight & PILOT_MASK == self.client.ident
            return DONE if ours and flight == terms.flight else MISSING
        state = self.state(head)
        if terms.pending:
            return DONE if state == VOID else EXISTS
        counts = state == FRESH
        if mode == INSERT:
            return EXISTS if counts else DONE
        if not counts:
            return MISSING
        if mode == SWAP and self.objects.checksum() != terms.checksum:
            return EXISTS
        return DONE

    def head_next(self, terms: Terms, lap: int, head: int) -> None:
        """Prepare the head of the object that is written next. `head`: that of the object it
        replaces, or 0."""
        endpoint = self.endpoint
        heading = self.objects.heading
        now = endpoint.microseconds()
        born = now // US_PER_MS & BORN_MASK
        life = born << BORN_SHIFT | lap << LAP_SHIFT
        if terms.pending:
            life |= PENDING
        if terms.keep and head:
            life |= endpoint.load(head + LIFE) & (SLIDES | TAGGED)
            heading[1] = endpoint.load(head + DEADLINE)
            heading[2] = endpoint.load(head + TIMES)
            heading[3] = endpoint.load(head + BIRTH)
            heading[4] = endpoint.load(head + TAGS)
            if terms.renew:
                heading[1] = terms.deadline(now)
                if life & SLIDES:
                    heading[2] = min(terms.span, SPAN_MASK) | heading[2] >> 32 << 32
        else:
            if terms.slide:
                life |= SLIDES
            if terms.tags:
                life |= TAGGED
            heading[1] = terms.deadline(now)
            heading[2] = (terms.slide or terms.took) | terms.stale << 32
            heading[3] = self.validity.birth() if terms.born_now else terms.birth
            heading[4] = terms.tags
        heading[0] = life
        heading[5] = terms.flight if terms.pending else 0

    def touch(self, place: Place, key: bytes, terms: Terms) -> bool:
        """Give an entry that counts another deadline; whether there was one."""
        endpoint = self.endpoint
        self.index.choose(place, key)
        if not self.index.find(place, key):
            return False
        head = self.objects.at()
        if self.state(head) != FRESH:
            return False
        deadline = terms.deadline(endpoint.microseconds())
        stale = endpoint.load(head + TIMES) >> 32
        # ORDER: a sliding expiry goes before its deadline, and comes after the new one.
        endpoint.store(head + TIMES, stale << 32)
        endpoint.store(head + DEADLINE, deadline)
        endpoint.store(head + TIMES, terms.slide | stale << 32)
        life = endpoint.load(head + LIFE)
        if terms.slide:
            life = endpoint.fetch_or(head + LIFE, SLIDES)
        # LINEARIZES: touch, unless the object was replaced before
        return life & DEAD == 0

    # ---- unlinking --------------------------------------------------------------------------

    def unlink(self, place: Place, slot: int) -> int:
        """Remove the entry in the image, which is in that slot: as `Slots.remove`."""
        head = self.objects.at()
        units = self.objects.units()
        outcome = self.slots.remove(place, slot)
        if outcome == DONE:
            self.ledger.account(head, units)
        return outcome

    def delete(self, place: Place, key: bytes) -> int:
        """DONE, AGAIN, FULL, or MISSING: there was none that counts. An entry that does not count
        is removed, too."""
        self.index.choose(place, key)
        slot = self.index.find(place, key)
        if not slot:
            return MISSING
        counts = self.state(self.objects.at()) == FRESH
        outcome = self.unlink(place, slot)
        if outcome == DONE:
            self.counters.count(DELETES if counts else EXPIRATIONS, 1)
            if not counts:
                return MISSING
        return outcome

    def delete_as(self, place: Place, key: bytes, checksum: int) -> int:
        """Delete an entry that counts and has this checksum: as `delete`; EXISTS: it has another
        one."""
        self.index.choose(place, key)
        slot = self.index.find(place, key)
        if not slot:
            return MISSING
        if self.state(self.objects.at()) != FRESH:
            return MISSING
        if self.objects.checksum() != checksum:
            return EXISTS
        outcome = self.unlink(place, slot)
        if outcome == DONE:
            self.counters.count(DELETES, 1)
        return outcome

    def take(self, place: Place, key: bytes) -> tuple[int, Any]:
        """Delete an entry: as `delete`, and its value."""
        self.index.choose(place, key)
        slot = self.index.find(place, key)
        if not slot:
            return MISSING, None
        counts = self.state(self.objects.at()) == FRESH
        value = self.objects.value() if counts else None
        outcome = self.unlink(place, slot)
        if outcome == DONE:
            self.counters.count(DELETES if counts else EXPIRATIONS, 1)
            if not counts:
                return MISSING, None
        return outcome, value

    def purge(self, place: Place, key: bytes) -> bool:
        """Remove an entry that does not count; whether there was one."""
        self.index.choose(place, key)
        slot = self.index.find(place, key)
        if not slot:
            return False
        if self.state(self.objects.at()) != VOID or self.unlink(place, slot) != DONE:
            return False
        self.counters.count(EXPIRATIONS, 1)
        return True


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
