"""Unique ids and timestamps: numbers that one client never uses twice.

No two clients use the same id (`Tickets`). A client takes a range of ids by one fetch-and-add on
the word `tickets` of the control segment. When it ends, or forks, the rest of its range is never
used.

Ids end at 2^54: ten million a second last for 57 years. The words of vacant slots have room for all
of them (stores/core/records.py). Beyond that no key can be deleted where vacant slots have ids
(race/layout.py names the kinds), and new objects of `race`, `rtx-race` and `fusee` have no stamp
(stores/core/records.py); every key can still be read.

A timestamp (`Clock`) is above all that this client, or its slot or number, ever used. SWARM orders
writes by guessed timestamps (sections 3.2 and 6): the loosely synchronised clock of the host, moved
ahead whenever a guess turned out to be stale. A timestamp is a number of microseconds since 2025 in
50 bits, which lasts until September 2060. It does not wrap: at the end, and on a host whose clock
is set beyond it, `guess` and `after` raise ClientError.

Timestamps of one writer never repeat and never go back, even if its process is killed and another
one takes its client slot, on a host whose clock is behind (trap S2). So the slot has a word,
`clock`, above every timestamp that was used there; and so has each writer number
(writer_numbers.py). Before a client uses a timestamp above the word, it raises the word, by more
than it needs, so that this is rare. The next client of the slot, or number, begins there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from limpet.shm.endpoint.field_ends import A_SECOND_MAX, LASTS, Field
from limpet.shm.endpoint.layout import TICKETS
from limpet.shm.endpoint.slots import CLOCK, START_US
from limpet.shm.errors import ClientError, PoolCorrupt

if TYPE_CHECKING:
    from limpet.shm.clients.client import Client


RANGE: Final = 256
TICKETS_MAX: Final = 1 << 54
"""No number is as great as this."""
FIELDS: Final = (
    Field(
        "number of a vacant slot, or of a stamp",
        TICKETS_MAX,
        A_SECOND_MAX,
        LASTS,
        "nothing can be deleted any more where slots are numbered; all that is there can be read",
    ),
)


class Tickets:
    """The unique ids that one client has taken."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.forget()

    def forget(self) -> None:
        """Take a new range next time."""
        self._owner = 0
        self._next = self._end = 0

    def take(self) -> int:
        """A number from 0 on. Raises PoolCorrupt when there is none left."""
        if self._next == self._end or self._owner != self.client.ident:
            endpoint = self.client.endpoint
            scope = endpoint.background(True)
            taken = endpoint.load(TICKETS)
            # ORDER: the addition after the check: it must not wrap past 2^64 to earlier numbers.
            if taken <= TICKETS_MAX - RANGE:
                taken = endpoint.faa(TICKETS, RANGE)
            endpoint.background(scope)
            if taken > TICKETS_MAX - RANGE:
                raise PoolCorrupt(
                    f"the control segment is damaged, or the pool has been in use for too long: "
                    f"{taken} numbers of vacant slots and stamps were given out; destroy the pool"
                )
            self._next = taken
            self._end = self._next + RANGE
            self._owner = self.client.ident
        self._next += 1
        return self._next - 1


TIME_BITS: Final = 50
TIME_MAX: Final = (1 << TIME_BITS) - 1
"""No timestamp is as great as this: the end of time."""
STRIDE_US: Final = 1 << 14
"""How far ahead a client sets the word; a kill costs its slot that much time."""


class Clock:
    """The timestamps of one client: those of its slot, or of the word where it has to `begin`. Used
    within operations."""

    def __init__(self, client: Any, stride_us: int = STRIDE_US) -> None:
        """`stride_us`: how far ahead of a timestamp the word is set."""
        self.client = client
        self.endpoint = client.endpoint
        self.stride_us = stride_us
        self.forget()

    def forget(self) -> None:
        """Begin anew at the next use."""
        self.owner = 0
        self.word = 0
        self.last = 0
        self.ceiling = 0
        self.ahead = 0

    def begin(self, word: int) -> None:
        """Begin above all timestamps that were used with the word at this address."""
        self.owner = 0
        self.last = self.endpoint.load(word)
        if self.last > TIME_MAX:
            raise PoolCorrupt(
                f"the clock at {word:#x} in the control segment is {self.last:#x}: memory was "
                "damaged; destroy the pool"
            )
        self.ceiling = self.last
        self.word = word
        self.owner = self.client.ident

    def guess(self) -> int:
        """A timestamp that is probably above all others. Raises ClientError at the end of time."""
        return self._use(self._now() + self.ahead)

    def after(self, time: int) -> int:
        """A timestamp above this one, which has shown a guess to be stale: guess later ones."""
        now = self._now()
        if time > now + self.ahead:
            self.ahead = time - now
        return self._use(time + 1)

    def _now(self) -> int:
        now = self.endpoint.microseconds()
        return now - START_US if now > START_US else 0

    def _use(self, time: int) -> int:
        if self.owner != self.client.ident:
            self.begin(self.client.slot + CLOCK)
        if time <= self.last:
            time = self.last + 1
        if time > self.ceiling:
            self._raise(time)
        self.last = time
        return time

    def _raise(self, time: int) -> None:
        if time >= TIME_MAX - self.stride_us:
            raise ClientError(
                "the clock of this host, or of one whose clients use the same store, is years "
                "ahead; set it right, save what is there, and make the store again"
            )
        scope = self.endpoint.background(True)
        # ORDER: the word is above the timestamp before any client sees the timestamp. By CAS: a
        # client that was given up while it stood still may do this late.
        while self.ceiling < time:
            after = time + self.stride_us
            found = self.endpoint.cas(self.word, self.ceiling, after)
            self.ceiling = after if found == self.ceiling else found
        self.endpoint.background(scope)
