"""The counts of a cache: items and bytes (`Ledger`), hits and misses (`Counters`).

Items and bytes are counted by laps, so that a kill does no lasting harm. A count beside a table
drifts when a client is killed between a change of the table and the change of the count. Here each
object says in which lap of the hand (room.py) it is accounted for, and each of the last laps has a
bank, one word with its items and units. As the hand passes an object of an earlier lap, it moves it
into the bank of this lap. When the hand has been everywhere, no object is left in an earlier bank.
So the bank of a lap that is three laps old is not counted any more, and the errors that kills left
in it go with it. An eviction scans no more than it needs for itself.

The order makes each error an overcount: an object is added before it is linked, and taken away
after it was unlinked; the hand adds to the new bank before it takes away from the old one. So the
sum is never below the objects that are linked. `post` adds first, and `admits` looks then, so the
linked objects stay within the bounds at all times. The bounds are a word (bounds.py), which is read
with the banks.

Steps
    post      faa(bank of this lap, +units); unless it `admits`: `withdraw` by faa, and evict first
    account   of an unlinked object: set DEAD in its life, which says its lap; faa(that bank, -)
    restamp   faa(bank of this lap, +); CAS the life to this lap; faa(its old bank, -)
    end of a lap   see below

`account` and `restamp` meet at the life: the CAS fails on a DEAD one, and the client that sets DEAD
learns which bank has the object. An object whose lap is not counted any more is taken away from no
bank.

The lap ends, at the end of the table, only when every operation that may have begun in an earlier
lap has ended: such a client could be about to link an object with its lap. `period` has the epoch
that was closed after this lap had begun; the lap ends at a later visit, when no client is pinned at
that epoch or before. The bank of the lap after the next one is cleared before that: it is used by
no client yet, and a client that is late with clearing it keeps the next lap from ending.

A kill leaves behind: at most an object's units too many in a bank, until that bank is not counted.

Hits, misses and so on are counted by the clients of a cache. Each client slot has a line of
counters among the cache's own words (layout.py). Only the process that has the slot writes them; a
count is a posted FAA, as it may have several handles. The line stays when its client is gone, and
the next client of the slot counts on in it, so the counts of a killed client are not lost.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from limpet.shm.endpoint.slots import INCARNATION_BITS
from limpet.stores.cache.layout import (
    ASKED,
    ASKER,
    BANK_MASK,
    BANKS,
    COUNTER_SIZE,
    COUNTERS,
    COUNTS,
    DEAD,
    HAND,
    ITEM,
    ITEMS_SHIFT,
    LAP_AT,
    LAP_MASK,
    LAP_SHIFT,
    LAPS_LIVE,
    LIFE,
    LIFE_KEPT,
    LIMITS,
    PERIOD,
    PERIOD_AT,
    PERIOD_LAPS,
    PERIOD_MASK,
    RESIZING,
    UNIT,
    UNITS_MASK,
)


class Counters:
    """The counters of a cache whose words are at `words`. Used within an operation."""

    def __init__(self, pool: Any, clients: int) -> None:
        self.endpoint = pool.endpoint
        self.client = pool.client
        self.clients = clients
        self.words = 0
        self.line = 0
        """Address of our line; 0: to be looked for."""
        self.owner = 0
        self.asked = 0
        """The bounds with which this process has opened the cache (bounds.py); 0: with none."""

    def place(self, words: int) -> None:
        """The cache's words are at this address now."""
        self.words = words
        self.line = 0

    def count(self, what: int, number: int) -> None:
        """Post a count in the line of this client's slot; in the background scope."""
        if self.owner != self.client.ident or not self.line:
            self._find_line()
        self.endpoint.post_faa(self.line + what, number)

    def _find_line(self) -> None:
        ident = self.client.ident
        self.line = self.words + COUNTERS + COUNTER_SIZE * (ident >> INCARNATION_BITS)
        self.owner = ident
        if self.asked:  # also in a forked child, which has a slot of its own
            # ORDER: the client last: until then the bounds are of an earlier one, which ended.
            self.endpoint.store(self.line + ASKED, self.asked)
            self.endpoint.store(self.line + ASKER, ident)

    def all(self) -> dict[str, int]:
        """The counts of all clients, living and dead ones."""
        raw = self.endpoint.read(self.words + COUNTERS, COUNTER_SIZE * self.clients)
        words = memoryview(raw).cast("Q").tolist()
        each = COUNTER_SIZE // 8
        return {name: sum(words[number::each]) for number, name in enumerate(COUNTS)}

    def ask(self, asked: int) -> None:
        """Note, in the line of this client's slot, the bounds with which it has opened the cache.
        Within an operation."""
        self.asked = asked
        self._find_line()

    def askers(self) -> list[tuple[int, int]]:
        """The clients that have opened the cache with bounds, also dead ones, and the bounds."""
        raw = self.endpoint.read(self.words + COUNTERS, COUNTER_SIZE * self.clients)
        words = memoryview(raw).cast("Q").tolist()
        each = COUNTER_SIZE // 8
        pairs = zip(words[ASKER // 8 :: each], words[ASKED // 8 :: each], strict=True)
        return [(client, asked) for client, asked in pairs if client]

    def own(self) -> dict[str, int]:
        """The counts of this process's client slot."""
        self.count(0, 0)
        raw = self.endpoint.read(self.line, COUNTER_SIZE)
        return dict(zip(COUNTS, memoryview(raw).cast("Q").tolist(), strict=False))


MASK: Final = 0xFFFF_FFFF_FFFF_FFFF


class Ledger:
    """Accounts for the objects of a cache whose words are at `words`."""

    def __init__(self, pool: Any, made: int) -> None:
        self.endpoint = pool.endpoint
        self.grace = pool.grace
        self.made = made
        """The bounds that the cache was made with, packed as a bank."""
        self.limits = self.made
        """The bounds in force, and"""
        self.resizing = False
        """whether others were asked for (bounds.py), when this handle looked last."""
        self.limits_ticket = 0
        self.words = 0
        """Address of the cache's words; set by the store."""
        self.tickets = array("Q", bytes(8 * (LAPS_LIVE + 1)))
        """Of the looks at the banks."""
        self.sum = 0
        """Where verbs are done at once, and a ticket is the result: what they have found."""
        self.latest = self.limits & ~UNITS_MASK
        """Items and units when this handle looked last, a hint; at first it takes them for full."""

    def lap(self) -> int:
        """The lap of the hand now, by a phase of its own."""
        ticket = self.post_lap()
        self.endpoint.wait()
        return self.endpoint.result(ticket) >> LAP_AT

    def post_lap(self) -> int:
        """Post a look at the hand, whose word has the lap; its ticket."""
        return self.endpoint.post_load(self.words + HAND)

    def bank(self, lap: int) -> int:
        """Address of a lap's bank."""
        return self.words + BANKS + 8 * (lap & BANK_MASK)

    def total(self, lap: int) -> int:
        """Items and units, packed as in a bank, of an operation that begins in this lap, by a phase
        of its own."""
        self._post_total(lap)
        self.endpoint.wait()
        return self._total()

    def _post_total(self, lap: int) -> None:
        """Post the looks of `total`."""
        # ORDER: the oldest bank first; all are on one node. The hand moves objects into a later
        # bank, and adds there before it takes away here, so an object that moves is counted once at
        # least. The next lap may begin in the midst of this operation, but not the one after that.
        total = 0
        for place in range(LAPS_LIVE + 1):
            back = LAPS_LIVE - 1 - place
            ticket = self.endpoint.post_load(self.bank(lap - back & LAP_MASK))
            self.tickets[place] = ticket
            total += ticket
        self.sum = total & MASK
        # ORDER: after the FAA of `post`: a client that changes the bounds, and looks at the banks
        # then, sees each object that is admitted by the old ones.
        self.limits_ticket = self.endpoint.post_load(self.words + LIMITS)

    def _total(self) -> int:
        """The sum of the banks, once the phase of `_post_total` has ended."""
        limits = self.endpoint.result(self.limits_ticket)
        self.resizing = limits >> 63 != 0
        self.limits = limits & ~RESIZING or self.made
        if self.endpoint.hints:
            return self.sum
        total = 0
        for place in range(LAPS_LIVE + 1):
            total += self.endpoint.result(self.tickets[place])
        return total & MASK

    def fits(self, total: int) -> bool:
        """Whether so much is within the bounds."""
        most = self.limits
        return total >> ITEMS_SHIFT <= most >> ITEMS_SHIFT and (
            total & UNITS_MASK <= most & UNITS_MASK
        )

    def has_room(self, more: int) -> bool:
        """Whether so much more, packed as in a bank, is within the bounds."""
        return self.fits(self.total(self.lap()) + more)

    def takes(self, size: int) -> bool:
        """Whether an entry of so many bytes is no larger than the cache, by the last look."""
        return size <= (self.limits & UNITS_MASK) * UNIT

    def post(self, lap: int, units: int) -> None:
        """Post the account for an object that is about to be linked in this lap, and a look at all
        banks; after the phase `admits` says whether the object may be linked."""
        self.endpoint.post_faa(self.bank(lap), ITEM + units)
        self._post_total(lap)

    def admits(self, spare: int) -> bool:
        """Whether the cache has no more than it may, with the object of `post`. `spare`: the units
        of an object that it replaces, or 0."""
        total = self._total()
        if spare:
            total = total - ITEM - spare & MASK
        self.latest = total
        return self.fits(total)

    def tight(self, units: int) -> bool:
        """Whether there was no room for an object of so many units more when this handle looked
        last: a hint."""
        return not self.fits(self.latest + ITEM + units)

    def withdraw(self, lap: int, units: int) -> None:
        """Post that an object is taken away from the account of a lap."""
        self.endpoint.post_faa(self.bank(lap), MASK - units - ITEM + 1)

    def account(self, head: int, units: int) -> None:
        """Set DEAD in an object that this client has unlinked, and account for it no more. In the
        background scope."""
        endpoint = self.endpoint
        # ORDER: the other bits stay: a client that has found the object still reads them.
        ticket = endpoint.post_fetch_or(head + LIFE, DEAD)
        # ORDER: before this operation ends, after which the memory may have another use.
        endpoint.wait()
        life = endpoint.result(ticket)
        # A kill here: the bank has an object too many until it is not counted any more.
        # ORDER: the lap after the life, so it is no earlier one than the object's.
        ticket = self.post_lap()
        endpoint.wait()
        lap = endpoint.result(ticket) >> LAP_AT
        its = life >> LAP_SHIFT & LAP_MASK
        if not life & DEAD and (lap - its & LAP_MASK) < LAPS_LIVE:
            self.withdraw(its, units)

    def restamp(self, head: int, life: int, units: int, lap: int) -> int:
        """Account for a linked object in this lap; its life word after that."""
        while not life & DEAD:
            its = life >> LAP_SHIFT & LAP_MASK
            behind = lap - its & LAP_MASK
            if not behind or behind > LAP_MASK >> 1:
                break
            self.endpoint.faa(self.bank(lap), ITEM + units)
            renewed = life & LIFE_KEPT | lap << LAP_SHIFT
            found = self.endpoint.cas(head + LIFE, life, renewed)
            if found == life:
                # A kill here: likewise.
                if behind < LAPS_LIVE:
                    self.withdraw(its, units)
                return renewed
            self.withdraw(lap, units)
            life = found
        return life

    def end_lap(self, hand: int) -> bool:
        """End the lap, as the hand has been everywhere, unless an operation of an earlier lap may
        still run. Within an operation."""
        endpoint = self.endpoint
        lap = hand >> LAP_AT
        period = endpoint.load(self.words + PERIOD)
        if period >> PERIOD_AT != lap & PERIOD_LAPS:
            # ORDER: closed after the lap was seen, so no operation of an earlier lap pins later.
            epoch = self.grace.close_period()
            closed = (lap & PERIOD_LAPS) << PERIOD_AT | epoch & PERIOD_MASK
            endpoint.cas(self.words + PERIOD, period, closed)
            return False
        if self.grace.laggards(period & PERIOD_MASK):
            return False
        endpoint.store(self.bank(lap + 2), 0)
        following = (lap + 1 & LAP_MASK) << LAP_AT
        return bool(endpoint.cas(self.words + HAND, hand, following) == hand)
