"""The steps of an operation on one entry of a cache: `Entries`.

All run within an operation. The index finds an entry, which is then in the image (objects.py).
`head` is the address of the words in front of the pair of its object (layout.py).
"""

from __future__ import annotations

from typing import Any

from limpet.stores.cache.counters import Counters
from limpet.stores.cache.layout import (
    BIRTH,
    BORN_MASK,
    BORN_SHIFT,
    DEAD,
    DEADLINE,
    DELETES,
    EXPIRATIONS,
    FLIGHT,
    HITS,
    HITS_MASK,
    HITS_MAX,
    LAP_SHIFT,
    LIFE,
    MISSES,
    PENDING,
    PILOT_MASK,
    SLIDES,
    SPAN_MASK,
    TAGGED,
    TAGS,
    TIMES,
    US_PER_MS,
)
from limpet.stores.cache.ledger import Ledger
from limpet.stores.cache.objects import CacheObjects
from limpet.stores.cache.status import FINISH, FRESH, SWAP, VOID
from limpet.stores.cache.terms import Terms
from limpet.stores.cache.validity import Validity
from limpet.stores.race.index import Index, Place
from limpet.stores.race.slots import Slots
from limpet.stores.status import DONE, EXISTS, INSERT, MISSING, PUT


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
