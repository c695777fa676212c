"""The steps of an operation on one entry of a cache: `Entries`; its object, and its flight's word.

All run within an operation. The index finds an entry, which is then in the image (`CacheObjects`),
with the words in front of the pair of its object, its head (layout.py), and the word of tag 0: they
are read in the phase of the pair. So to find and judge an entry takes 2 round trips, as a get of
`race`, and one more if it has tags, whose words are looked at then. The words that a read writes
(hits, deadline, counts) are posted in the background.

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

    def __init__(self, heap: Any, validity: Validity) -> None:
        super().__init__(heap, 1, True)
        self.prefix = PREFIX
        self.whole = True
        self.heading = array("Q", bytes(64))
        """Life, deadline, times, birth, tags and flight; then sizes and checksum."""
        self.validity = validity
        """Its `head` has the first six of these words, of the object in the image."""
        self.judged = True
        """Whether an entry that is found is to be judged, so its head is read with it."""
        self.ticket = 0
        """The ticket of the look at the word of tag 0, made in the phase that reads the object."""

    def write_hashed(self, reference: int, key: bytes, value: bytes, hashed: int) -> None:
        """Write head and pair; one write."""
        sizes = len(key) | len(value) << 16
        self.heading[6] = sizes
        self.heading[7] = checksum(value, (hashed + sizes) & MASK)
        self.endpoint.post_gather(reference & ADDRESS_MASK, self.heading, 8, key, value)

    def post_keyed(self, reference: int, key: bytes) -> None:
        """As the base's, with its head and the word of tag 0, if it is `judged`."""
        if self.judged:
            self.endpoint.post_read(reference & ADDRESS_MASK, self.validity.head, PREFIX >> 3)
            self.ticket = self.validity.post_everything()
        Objects.post_keyed(self, reference, key)

    def load_keyed(self, reference: int, key: bytes) -> bool:
        """Likewise."""
        self.endpoint.read_words(reference & ADDRESS_MASK, self.validity.head, PREFIX >> 3)
        found = Objects.load_keyed(self, reference, key)
        self.ticket = self.validity.post_everything()
        self.endpoint.wait()
        return found

    def state(self) -> int:
        """Of the object in the image: as `Validity.state`."""
        return self.validity.state(self.endpoint.result(self.ticket))

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

    def state(self) -> int:
        """Of the entry in the image: as `Validity.state`."""
        return self.objects.state()

    # ---- reading ----------------------------------------------------------------------------

    def read(self, found: bool) -> Any:
        """The value of the entry in the image, counted as a hit; None, counted as a miss, if it
        does not count or no entry was `found`. The accounting scope is the background then."""
        if found and self.objects.state() == FRESH:
            value = self.objects.value()
            self.endpoint.background(True)
            self.meet()
            return value
        self.endpoint.background(True)
        self.counters.count(MISSES, 1)
        return None

    def meet(self) -> None:
        """Post that the hit is counted in the entry in the image, if that is needed, and its
        deadline put off. In the background scope."""
        life = self.validity.head[LIFE >> 3]
        if self.counts_hits and life & HITS_MASK < HITS_MAX:
            self.endpoint.post_cas(self.objects.at() + LIFE, life, life + 1)
        if life & SLIDES:
            self.validity.slide(self.objects.at())
        self.counters.count(HITS, 1)

    def inspect(self, place: Place, key: bytes) -> tuple[bytes, int, int, int, int] | None:
        """Value, checksum, deadline, times and tags of an entry that counts; it is not a hit. Of
        the times, the lower half is 0 unless the entry slides."""
        self.index.post_choose(place, key)
        if not self.index.find(place, key) or self.objects.state() != FRESH:
            return None
        validity = self.validity
        times = validity.head[TIMES >> 3]
        if not validity.head[LIFE >> 3] & SLIDES:
            times = times >> 32 << 32
        deadline, tags = validity.head[DEADLINE >> 3], validity.head[TAGS >> 3]
        return self.objects.value(), self.objects.checksum(), deadline, times, tags

    # ---- writing ----------------------------------------------------------------------------

    def refusal(self, mode: int, terms: Terms) -> int:
        """DONE, or how a write in this mode ends when it finds the entry in the image."""
        if mode == PUT:
            return DONE
        if mode == FINISH:
            flight = self.validity.head[FLIGHT >> 3]
            ours = flight & PILOT_MASK == self.client.ident
            return DONE if ours and flight == terms.flight else MISSING
        state = self.objects.state()
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

    def head_next(self, terms: Terms, lap: int, birth: int, replaces: bool) -> None:
        """Prepare the head of the object that is written next. `birth`: of a value that is begun
        now. `replaces`: it replaces the object in the image."""
        heading, validity = self.objects.heading, self.validity
        now = self.endpoint.microseconds()
        born = now // US_PER_MS & BORN_MASK
        life = born << BORN_SHIFT | lap << LAP_SHIFT
        if terms.pending:
            life |= PENDING
        if terms.keep and replaces:
            life |= validity.head[LIFE >> 3] & (SLIDES | TAGGED)
            heading[1] = validity.head[DEADLINE >> 3]
            heading[2] = validity.head[TIMES >> 3]
            heading[3] = validity.head[BIRTH >> 3]
            heading[4] = validity.head[TAGS >> 3]
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
            heading[3] = birth if terms.born_now else terms.birth
            heading[4] = terms.tags
        heading[0] = life
        heading[5] = terms.flight if terms.pending else 0

    def touch(self, place: Place, key: bytes, terms: Terms) -> bool:
        """Give an entry that counts another deadline; whether there was one. 3 round trips."""
        endpoint = self.endpoint
        self.index.post_choose(place, key)
        if not self.index.find(place, key) or self.objects.state() != FRESH:
            return False
        head = self.objects.at()
        deadline = terms.deadline(endpoint.microseconds())
        stale = self.validity.head[TIMES >> 3] >> 32
        # ORDER: a sliding expiry goes before its deadline, and comes after the new one; all are on
        # one node.
        endpoint.post_swap(head + TIMES, stale << 32)
        endpoint.post_swap(head + DEADLINE, deadline)
        endpoint.post_swap(head + TIMES, terms.slide | stale << 32)
        if terms.slide:
            ticket = endpoint.post_fetch_or(head + LIFE, SLIDES)
        else:
            ticket = endpoint.post_load(head + LIFE)
        endpoint.wait()
        # LINEARIZES: touch, unless the object was replaced before
        return endpoint.result(ticket) & DEAD == 0

    # ---- unlinking --------------------------------------------------------------------------

    def unlink(self, place: Place, slot: int) -> int:
        """Remove the entry in the image, which is in that slot: as `Slots.remove`. If it is DONE,
        the accounting scope is the background then."""
        head = self.objects.at()
        units = self.objects.units()
        outcome = self.slots.remove(place, slot)
        if outcome == DONE:
            self.endpoint.background(True)
            self.ledger.account(head, units)
        return outcome

    def count(self, what: int) -> None:
        """Count one, at the end of an operation."""
        self.endpoint.background(True)
        self.counters.count(what, 1)

    def delete(self, place: Place, key: bytes) -> int:
        """DONE, AGAIN, FULL, or MISSING: there was none that counts. An entry that does not count
        is removed, too."""
        self.index.post_choose(place, key)
        slot = self.index.find(place, key)
        if not slot:
            return MISSING
        counts = self.objects.state() == FRESH
        outcome = self.unlink(place, slot)
        if outcome == DONE:
            self.count(DELETES if counts else EXPIRATIONS)
            if not counts:
                return MISSING
        return outcome

    def delete_as(self, place: Place, key: bytes, checksum: int) -> int:
        """Delete an entry that counts and has this checksum: as `delete`; EXISTS: it has another
        one."""
        self.index.post_choose(place, key)
        slot = self.index.find(place, key)
        if not slot:
            return MISSING
        if self.objects.state() != FRESH:
            return MISSING
        if self.objects.checksum() != checksum:
            return EXISTS
        outcome = self.unlink(place, slot)
        if outcome == DONE:
            self.count(DELETES)
        return outcome

    def take(self, place: Place, key: bytes) -> tuple[int, Any]:
        """Delete an entry: as `delete`, and its value."""
        self.index.post_choose(place, key)
        slot = self.index.find(place, key)
        if not slot:
            return MISSING, None
        counts = self.objects.state() == FRESH
        value = self.objects.value() if counts else None
        outcome = self.unlink(place, slot)
        if outcome == DONE:
            self.count(DELETES if counts else EXPIRATIONS)
            if not counts:
                return MISSING, None
        return outcome, value

    def purge(self, place: Place, key: bytes) -> bool:
        """Remove an entry that does not count; whether there was one."""
        self.index.post_choose(place, key)
        slot = self.index.find(place, key)
        if not slot:
            return False
        if self.objects.state() != VOID or self.unlink(place, slot) != DONE:
            return False
        self.count(EXPIRATIONS)
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
        birth_ticket = entries.validity.post_birth()
        entries.index.post_choose(place, key)
        if not entries.index.find(place, key):
            return None
        birth = self.endpoint.result(birth_ticket)
        other = entries.validity.head[FLIGHT >> 3]
        state = objects.state()
        value: Any = None
        if state == FRESH:
            value = objects.value()
            if early and self._is_early(early):
                terms.flight = flight = self.following()
                # LINEARIZES: the beginning of an early flight
                if self._changed(0, flight) == 0:
                    # A kill here: the value is served until its deadline, as if there were none.
                    self._count_miss(terms)
                    return MINE, value, birth, flight
            scope = self.endpoint.background(True)
            entries.meet()
            self.endpoint.background(scope)
            return LANDED, value, 0, 0
        if state == STALE:
            value = objects.value()
        elif state != UNDECIDED:
            return None  # it does not count any more: a new entry takes its place
        if other and other != dead:
            return OTHERS, value, 0, other
        terms.flight = flight = self.following()
        # LINEARIZES: the beginning of a flight
        found = self._changed(other, flight)
        # A kill here: a waiting caller sees that the client is dead, and takes over.
        if found != other:
            return OTHERS, value, 0, found
        self._count_miss(terms)
        return MINE, value, birth, flight

    def _count_miss(self, terms: Terms) -> None:
        """At the end of an operation that has begun a flight."""
        if terms.miss:
            self.entries.count(MISSES)

    def _changed(self, expected: int, flight: int) -> int:
        """Change the flight of the entry in the image, by a CAS; the one that was there."""
        ticket = self.endpoint.post_cas(self.entries.objects.at() + FLIGHT, expected, flight)
        self.endpoint.wait()
        return self.endpoint.result(ticket)

    def find(self, place: Place, key: bytes) -> int:
        """The flight of a key without a value, its client alive or not; 0: there is none."""
        entries = self.entries
        entries.index.post_choose(place, key)
        if not entries.index.find(place, key) or entries.objects.state() != UNDECIDED:
            return 0
        return entries.validity.head[FLIGHT >> 3]

    def _is_early(self, early: int) -> bool:
        """Whether the deadline of the entry in the image is near, and no client computes another
        value."""
        validity = self.entries.validity
        deadline = validity.head[DEADLINE >> 3]
        if not deadline or validity.head[FLIGHT >> 3] or validity.head[LIFE >> 3] & SLIDES:
            return False
        took = validity.head[TIMES >> 3] & SPAN_MASK
        return self.endpoint.microseconds() + (took * early * US_PER_MS >> EARLY_SHIFT) >= deadline

    def alight(self, place: Place, key: bytes, flight: int) -> bool:
        """End this flight of a key without a value; False: the key has it no more, or it is that of
        another client, as of the process that this one was forked from."""
        if flight & PILOT_MASK != self.client.ident:
            return False
        entries = self.entries
        entries.index.post_choose(place, key)
        slot = entries.index.find(place, key)
        if not slot:
            return False
        validity = entries.validity
        if validity.head[FLIGHT >> 3] != flight:
            return False
        if not validity.head[LIFE >> 3] & PENDING or entries.unlink(place, slot) != DONE:
            self._changed(flight, 0)
        return True
