"""Writer numbers: a few small numbers, each of which one client at a time has, and their clocks.

A store whose words have room for a few writers only, as those of SWARM's registers (stores/swarm/),
knows a writer by its number. A pool has 64 of them, for all its stores; a store that is made
for w writers uses those below w. A client takes a number when it writes to such a store for the
first time, and keeps it. So a client that only reads has none, and any client may write, however
many there are (trap S12): when each number below w is taken, it takes the one that was taken first,
also from a client that is at work, which takes one again when it writes next. A number stays with a
client for HOLD_MS at least. So w is how many clients write without taking turns.

Words (control segment), 16 bytes for each number
    0    holder   0: nobody has ever had it. Or bits 0-47 the id of a client, bits 48-62 the ms at
                  which that one took it, bit 63 CLAIMED: it may not use the number yet. By CAS only
    8    clock    above every timestamp that was used with this number (unique_ids.py)

Steps of `holder`
    word -> its word        a client takes a number that nobody has, or whose holder is gone
    word -> CLAIMED         a client claims a number whose holder may be in an operation
    CLAIMED -> its word     that client has the number, once no operation of an earlier holder runs
    CLAIMED -> word         that client gives its claim up, as the holder stands still; the time in
                            the word becomes that of now, so others take another number first
    word -> its word, back  in an operation, a client does what only the number's holder may do, and
                            finds that the holder is gone (`keep`)
    word -> LEFT            the holder has taken a lower number

The holder is *gone* when its slot is free or has another client: then it was recovered, or has
left, and has no operation. If its word is not CLAIMED, nobody else has had the number since. LEFT
is a word that names nobody: the client's slot, and incarnation 0.

Rule. The holder may use its number in an operation if, pinned, it finds DROPS as it was when it
looked at the word last, or finds its word there (`held`). A client that claims a number counts
DROPS up, closes a period, and waits until the holder is not pinned in that period any more. An
operation of the holder that pins later finds another DROPS, looks at the word, and is told that the
number is lost. A holder that stands still in an operation for a lease is recovered or fenced, as
everywhere (membership.py). If the word was CLAIMED, the holder before that one is not known; so the
client waits for all operations. A CLAIMED word is taken only if its client is gone, or has not
ended its claim for CLAIM_LEASES. A remote client reads DROPS when it pins, and its pin lasts
(lasting.py), so it is waited for in the same way.

A kill leaves behind: a word with the id of a client that is gone once it is recovered. A
client that claimed it may have died while it waited; the word is CLAIMED, and the next one waits
for all. A client that is given up by other hosts while it is stopped may still store what it was
about to (docs/hosts.md); that is the same for its number as for all else that it had. The clock is
only ever raised, by CAS, so such a client does not set it back. Each client that takes the number
begins at the clock, which may be CLOCK_STRIDE_US ahead of time; that is less than HOLD_MS, so the
clock does not run away from time.

The times of hosts may differ, and 15 bits of ms begin anew after 33 s: then a number is taken from
another client than the one that has had it for longest, or HOLD_MS later.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from limpet.shm.clients.unique_ids import Clock
from limpet.shm.endpoint.field_ends import WRAPS, Field
from limpet.shm.endpoint.layout import (
    DROPS,
    WRITER_NUMBER_SIZE,
    WRITER_NUMBERS,
    WRITER_NUMBERS_COUNT,
    slot_address,
)
from limpet.shm.endpoint.slots import (
    FREE,
    INCARNATION_BITS,
    INCARNATION_MASK,
    STATE_SHIFT,
    client_id,
)
from limpet.shm.errors import PoolCorrupt

NONE: Final = -1
CLAIM_LEASES: Final = 2
CLOCK_STRIDE_US: Final = 1 << 13
HOLDER_BITS: Final = 48
HOLDER_MASK: Final = 0xFFFF_FFFF_FFFF
TAKEN_MASK: Final = 0x7FFF
CLAIMED: Final = 1 << 63
HOLD_MS: Final = 10
"""Nobody takes a number from a client sooner than this."""
FIELDS: Final = (
    Field(
        "writer number: time when it was taken",
        TAKEN_MASK + 1,
        1000,
        WRAPS,
        "of two numbers the other one may be taken, or the same one later",
    ),
)


def number_address(number: int) -> int:
    """Address of the two words of a number."""
    return WRITER_NUMBERS + WRITER_NUMBER_SIZE * number


class Claim(NamedTuple):
    """A number that the client `ident` has claimed, with the word `mine`: its word before, the
    epoch that has to be over for the holder in `slot` (NONE: for all), or NONE, and when it is
    given up, if the holder stands still."""

    ident: int
    number: int
    word: int
    mine: int
    epoch: int
    slot: int
    until_s: float


class WriterNumbers:
    """The writer number of one client."""

    def __init__(self, client: Any, grace: Any, membership: Any) -> None:
        self.client = client
        self.endpoint = client.endpoint
        self.grace = grace
        self.membership = membership
        self.clock = Clock(client, CLOCK_STRIDE_US)
        """Timestamps of the number that this client has."""
        self.hold_ms = HOLD_MS
        self.claim: Claim | None = None
        self.takes = 0
        """Goes up whenever this client takes a number, or finds that it has lost its own."""
        self.forget()

    def forget(self) -> None:
        """This client has no number."""
        self.number = NONE
        self.word = 0
        self.owner = 0
        self.drops = 0
        """The word DROPS when it looked last."""
        self.takes += 1
        self.clock.forget()

    def held(self) -> int:
        """The number of this client, or NONE. In an operation; it is good until that ends."""
        if self.drops != self.client.drops or self.owner != self.client.ident:
            self._look_again()
        number: int = self.number
        return number

    def _look_again(self) -> None:
        if self.number >= 0 and (
            self.owner != self.client.ident
            or self.endpoint.load(number_address(self.number)) != self.word
        ):
            self.forget()
        self.owner = self.client.ident
        self.drops = self.client.drops

    def words(self, count: int) -> list[int]:
        """The words `holder` of the first `count` numbers."""
        return [self.endpoint.load(number_address(number)) for number in range(count)]

    def is_left(self, word: int) -> bool:
        """Whether the holder with this word is gone, and has left what it had to the next one."""
        return word != 0 and not word & CLAIMED and self._is_gone(word)

    def number_of(self, ident: int) -> int:
        """A number that names the client with this id; NONE: there is none."""
        for number, word in enumerate(self.words(WRITER_NUMBERS_COUNT)):
            if word and not word & CLAIMED and word & HOLDER_MASK == ident:
                return number
        return NONE

    def take(self, limit: int, waits: bool = True) -> None:
        """Have a number below `limit`. Outside of operations. It may have to wait until another
        client's operation has ended, or for HOLD_MS; if not `waits`, only one is taken that no
        client has."""
        attempt = 0
        while not self._take_once(limit, waits) and waits:
            attempt += 1
            self.endpoint.pause(attempt)

    def keep(self, number: int) -> int:
        """In an operation: keep this number from other clients until `let_go`, if its holder is
        gone: the word for `let_go`; 0: it is not, or another client was faster."""
        word: int = self.endpoint.load(number_address(number))
        if self.is_left(word) and self._change(number, word, self._mine()):
            return word
        return 0

    def let_go(self, number: int, word: int) -> None:
        """End `keep`, which has returned this word."""
        mine = self.endpoint.load(number_address(number))
        if not mine & CLAIMED and mine & HOLDER_MASK == self.client.ident:
            self._change(number, mine, word)

    # ---- taking a number ------------------------------------------------------------------------

    def _take_once(self, limit: int, waits: bool) -> bool:
        """One step. Other threads of this process work on between two of them."""
        self.client.begin()
        scope = self.endpoint.background(True)
        try:
            if not self.client.ident:
                self.client.disown()
            if self.owner == self.client.ident and 0 <= self.number < limit:
                # Another thread was first. If the number is lost meanwhile, `held` tells.
                return True
            if self.claim is None or self.claim.ident != self.client.ident:
                self.claim = self._claimed(limit, waits)
            return self.claim is not None and self._is_over(self.claim)
        finally:
            self.endpoint.background(scope)
            self.client.end()

    def _claimed(self, limit: int, waits: bool) -> Claim | None:
        """Claim a number; None: all have been taken just now, or another client was faster."""
        number, word = self._choose(limit, waits)
        mine = self._mine()
        is_ours = word & HOLDER_MASK == self.client.ident
        is_free = not word & CLAIMED and (word == 0 or is_ours or self._is_gone(word))
        if number < 0 or not self._change(number, word, mine if is_free else mine | CLAIMED):
            return None
        epoch, slot = NONE, NONE
        if not is_free:
            # CRASH(number-claimed): the next client of the number waits until all operations end.
            self.endpoint.faa(DROPS, 1)
            # ORDER: pins are looked at after DROPS has changed: a client pins before it looks.
            epoch = self.grace.close_period()
            slot = NONE if word & CLAIMED else (word & HOLDER_MASK) >> INCARNATION_BITS
        until_s = self.membership.now() + self.membership.lease_s
        return Claim(self.client.ident, number, word, mine, epoch, slot, until_s)

    def _choose(self, limit: int, waits: bool) -> tuple[int, int]:
        """The number to take, and its word: one that names us, as a `take` was cut off, or the
        first whose holder is gone, or else the one that was taken first. NONE: all have been taken
        just now."""
        oldest = (NONE, 0)
        longest = self.hold_ms - 1
        now = self._now()
        words = self.words(limit)
        for number, word in enumerate(words):
            if word & HOLDER_MASK == self.client.ident:
                return number, word
        for number, word in enumerate(words):
            if not word or self.is_left(word):
                return number, word
            age = now - (word >> HOLDER_BITS) & TAKEN_MASK
            if word & CLAIMED and not self._is_gone(word) and age < self._claims_ms():
                continue
            if age > longest and waits:
                oldest, longest = (number, word), age
        return oldest

    def _claims_ms(self) -> int:
        """A claim that is older than this is not being ended."""
        return min(int(CLAIM_LEASES * 1000 * self.membership.lease_s), TAKEN_MASK // 2)

    def _is_over(self, claim: Claim) -> bool:
        """Go on with our claim; whether we have its number now."""
        if claim.epoch != NONE:
            left = self._left(claim)
            if left:
                self._hurry(claim, left)
                return False
        self.claim = None
        if claim.epoch != NONE and not self._change(claim.number, claim.mine | CLAIMED, claim.mine):
            return False
        if self.number >= 0 and self.owner == self.client.ident:
            # It is too great for this store. Verbs that a remote client has sent may land late.
            left_word = self.word & ~INCARNATION_MASK
            is_remote = self.client.lasting is not None
            self._change(self.number, self.word, self.word | CLAIMED if is_remote else left_word)
        self.forget()
        # ORDER: before the number is known, as a signal handler may raise in between.
        self.clock.begin(number_address(claim.number) + 8)
        self.number, self.word, self.owner = claim.number, claim.mine, self.client.ident
        return True

    def _left(self, claim: Claim) -> list[Any]:
        """The pins of clients for which our claim waits."""
        return [
            laggard
            for laggard in self.grace.laggards(claim.epoch)
            if claim.slot in (NONE, laggard.slot) and not self.membership.ours(laggard.slot)
        ]

    def _hurry(self, claim: Claim, left: list[Any]) -> None:
        self.membership.progress()
        for laggard in left:
            # It may still be pinned: we look again.
            self.membership.hurry(laggard, "a writer number")
        if self.membership.now() > claim.until_s:
            self.claim = None
            after = claim.word & ~(TAKEN_MASK << HOLDER_BITS) | self._now() << HOLDER_BITS
            self._change(claim.number, claim.mine | CLAIMED, after)

    def _change(self, number: int, word: int, after: int) -> bool:
        return bool(self.endpoint.cas(number_address(number), word, after) == word)

    def _mine(self) -> int:
        ident: int = self.client.ident
        return self._now() << HOLDER_BITS | ident

    def _now(self) -> int:
        now_us: int = self.endpoint.microseconds()
        return now_us // 1000 & TAKEN_MASK

    def _is_gone(self, word: int) -> bool:
        ident = word & HOLDER_MASK
        slot = ident >> INCARNATION_BITS
        if slot >= self.membership.parameters.clients:
            raise PoolCorrupt(
                f"{self.membership.pool}: a writer number has the holder {word:#x}, and there is "
                f"no client slot {slot}: memory was damaged; destroy the pool"
            )
        state = self.endpoint.load(slot_address(slot))
        return state >> STATE_SHIFT == FREE or client_id(slot, state) != ident
