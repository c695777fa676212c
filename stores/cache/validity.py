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

from typing import Any, Final

from limpet.stores.cache.layout import (
    BIRTH,
    DEADLINE,
    FLIGHT,
    FRESH,
    INVALIDATIONS,
    PENDING,
    SLIDE_SHARE,
    STALE,
    TAG_BITS,
    TAG_MASK,
    TAGGED,
    TAGS,
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

    def state(self, head: int, life: int) -> int:
        """FRESH, STALE, VOID or UNDECIDED: the object whose head is here, with this life."""
        endpoint = self.endpoint
        birth = endpoint.load(head + BIRTH)
        if endpoint.load(self.tags) > birth:
            return VOID
        if life & TAGGED and self._is_invalidated(endpoint.load(head + TAGS), birth):
            return VOID
        deadline = endpoint.load(head + DEADLINE)
        late = deadline != 0 and endpoint.microseconds() >= deadline
        if life & PENDING:
            return VOID if late else UNDECIDED
        if not late:
            return FRESH
        now = endpoint.microseconds()
        end = deadline + (endpoint.load(head + TIMES) >> 32) * US_PER_MS
        if now < end:
            return STALE
        flies = now < end + FLIGHT_US and endpoint.load(head + FLIGHT) != 0
        return UNDECIDED if flies else VOID

    def _is_invalidated(self, tags: int, birth: int) -> bool:
        """Whether one of these tags was invalidated since."""
        while tags:
            if self.endpoint.load(self.tags + 8 * (tags & TAG_MASK)) > birth:
                return True
            tags >>= TAG_BITS
        return False

    def slide(self, head: int) -> None:
        """Put off the deadline of an entry that was read, if enough of its time has passed."""
        endpoint = self.endpoint
        span = (endpoint.load(head + TIMES) & 0xFFFF_FFFF) * US_PER_MS
        deadline = endpoint.microseconds() + span
        if span and deadline > endpoint.load(head + DEADLINE) + span // SLIDE_SHARE:
            endpoint.store(head + DEADLINE, deadline)

    def birth(self) -> int:
        """The birth of a value that is begun now."""
        return self.endpoint.load(self.words + INVALIDATIONS)

    def invalidate(self, tag: int) -> None:
        """Invalidate all entries with this tag whose value was begun before now."""
        endpoint = self.endpoint
        number = endpoint.faa(self.words + INVALIDATIONS, 1) + 1
        at = self.tags + 8 * tag
        there = endpoint.load(at)
        # LINEARIZES: invalidate, once the word is at least its number
        while there < number:
            found = endpoint.cas(at, there, number)
            if found == there:
                break
            there = found
