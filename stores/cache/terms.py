"""The terms of a write of a cache, its entry's times and tags, and its condition: `Terms`."""

from __future__ import annotations

from limpet.stores.cache.layout import US_PER_MS


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
