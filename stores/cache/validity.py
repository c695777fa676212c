"""Whether an entry may be served: its deadline, and invalidations.

Invalidations have numbers, from a counter. An entry has the number that the counter had when its
value was begun, its `birth`; the word of a tag has the number of the tag's last invalidation. The
entry counts as long as neither a word of its tags nor the word of tag 0, which all entries have, is
above its birth. So one write of a word invalidates all entries of a tag at once. A value begun
before that is never served afterwards, however late it is stored. By a chance of one in 4,096, two
tags have the same number: then the entries of both are invalidated.

Deadlines are by the pool's clock (shm/endpoint/pool_clock.py), in us since 1970, as a pool may
outlive a boot and be shared by hosts.

`Terms` are those of a write: its entry's times and tags, and its condition.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from limpet.stores.cache.layout import (
    BIRTH,
    DEADLINE,
    FLIGHT,
    FRESH,
    INVALIDATIONS,
    LIFE,
    PENDING,
    PREFIX,
    SLIDE_SHARE,
    SPAN_MASK,
    STALE,
    TAG_BITS,
    TAG_MASK,
    TAGGED,
    TAGS,
    TAGS_EACH,
    TIMES,
    UNDECIDED,
    US_PER_MS,
    VOID,
)


class Terms:
    """The terms of a write. Times in ms; `deadline` in us since 1970."""

    def __init__(
        self,
        ttl: int = 0,
        slide: int = 0,
        stale: int = 0,
        tags: int = 0,
        birth: int = -1,
        checksum: int = 0,
        keep: bool = False,
        took: int = 0,
        flight: int = 0,
        renew: bool = False,
    ) -> None:
        """`ttl`: 0: for ever. `slide`: as `ttl`, and put off at each read. `birth`: -1: now.
        `keep`: deadline, times and tags are those of the entry that is replaced; `renew`: all but
        the deadline, which is by `ttl`. `took`: to compute
        the value; not kept of an entry that slides. `flight`: the one that the write begins or
        ends."""
        self.span = slide or ttl
        """From a write to the deadline; 0: there is none."""
        self.slide = slide
        self.stale = stale
        self.took = took
        self.tags = tags
        self.born_now = birth < 0
        self.birth = 0 if birth < 0 else birth
        self.checksum = checksum
        self.keep = keep or renew
        self.renew = renew
        self.flight = flight
        self.pending = False
        self.miss = False
        """Whether the flight that is begun is a miss of a caller, and counted."""

    def deadline(self, now: int) -> int:
        """The deadline of an entry that is written or touched now; 0: never."""
        return now + self.span * US_PER_MS if self.span else 0


FLIGHT_US: Final = 60_000_000
"""How long an expired entry stays while a client computes another value."""


class Validity:
    """Judges entries."""

    def __init__(self, endpoint: Any) -> None:
        self.endpoint = endpoint
        self.words = 0
        """Address of the cache's words, and below that of the tags'; set by the store."""
        self.tags = 0
        self.head = array("Q", bytes(PREFIX))
        """The words of the head that is judged (layout.py)."""
        self.tickets = array("Q", bytes(8 * TAGS_EACH))

    def post_everything(self) -> int:
        """Post a look at the word of tag 0, after an entry was found linked; its ticket.

        ORDER: in a later phase than the read of its slot. If the word is not above the birth then,
        the entry counted when the slot was read.
        """
        return self.endpoint.post_load(self.tags)

    def state(self, everything: int) -> int:
        """FRESH, STALE, VOID or UNDECIDED: the object with the words of `head`. `everything`: the
        word of tag 0. Of an entry with tags, a phase of its own."""
        life, birth = self.head[LIFE >> 3], self.head[BIRTH >> 3]
        if everything > birth:
            return VOID
        if life & TAGGED and self._is_invalidated(self.head[TAGS >> 3], birth):
            return VOID
        endpoint = self.endpoint
        deadline = self.head[DEADLINE >> 3]
        late = deadline != 0 and endpoint.microseconds() >= deadline
        if life & PENDING:
            return VOID if late else UNDECIDED
        if not late:
            return FRESH
        now = endpoint.microseconds()
        end = deadline + (self.head[TIMES >> 3] >> 32) * US_PER_MS
        if now < end:
            return STALE
        flies = now < end + FLIGHT_US and self.head[FLIGHT >> 3] != 0
        return UNDECIDED if flies else VOID

    def _is_invalidated(self, tags: int, birth: int) -> bool:
        """Whether one of these tags was invalidated since."""
        count = 0
        while tags:
            self.tickets[count] = self.endpoint.post_load(self.tags + 8 * (tags & TAG_MASK))
            tags >>= TAG_BITS
            count += 1
        self.endpoint.wait()
        since = 0
        for place in range(count):
            since += self.endpoint.result(self.tickets[place]) > birth
        return since > 0

    def slide(self, at: int) -> None:
        """Post that the deadline of an entry that was read is put off, if enough of its time has
        passed. `at`: the address of its head, whose words are in `head`."""
        span = (self.head[TIMES >> 3] & SPAN_MASK) * US_PER_MS
        deadline = self.endpoint.microseconds() + span
        before = self.head[DEADLINE >> 3]
        if span and deadline > before + span // SLIDE_SHARE:
            # By a CAS: a deadline that `touch` has set meanwhile stays.
            self.endpoint.post_cas(at + DEADLINE, before, deadline)

    def birth(self) -> int:
        """The birth of a value that is begun now, by a phase of its own."""
        ticket = self.post_birth()
        self.endpoint.wait()
        return self.endpoint.result(ticket)

    def post_birth(self) -> int:
        """Post the look of `birth`; its ticket."""
        return self.endpoint.post_load(self.words + INVALIDATIONS)

    def invalidate(self, tag: int) -> None:
        """Invalidate all entries with this tag whose value was begun before now; 2 round trips."""
        endpoint = self.endpoint
        at = self.tags + 8 * tag
        ticket = endpoint.post_faa(self.words + INVALIDATIONS, 1)
        found_ticket = endpoint.post_load(at)
        endpoint.wait()
        number = endpoint.result(ticket) + 1
        there = endpoint.result(found_ticket)
        # LINEARIZES: invalidate, once the word is at least its number
        while there < number:
            found_ticket = endpoint.post_cas(at, there, number)
            endpoint.wait()
            found = endpoint.result(found_ticket)
            if found == there:
                break
            there = found
