"""The guessing clock: timestamps that are above all that this client, or its slot, ever used.

SWARM orders writes by guessed timestamps (sections 3.2 and 6): the loosely synchronised
clock of the host, moved ahead whenever a guess turned out to be stale. A timestamp is a number of
microseconds since 2025 in 50 bits, which lasts until September 2060. It does not wrap: at the end,
and on a host whose clock is set beyond it, `guess` and `after` raise ClientError.

Timestamps of one writer never repeat and never go back, even if its process is killed and another
one takes its client slot, on a host whose clock is behind (trap S2). So the slot has a word,
`clock`, above every timestamp that was used there. Before a client uses a timestamp above the word,
it raises the word, by more than it needs, so that this is rare. The next client of the slot begins
there.
"""

from __future__ import annotations

from typing import Any, Final

from limpet.shm.endpoint.slots import CLOCK, START_US
from limpet.shm.errors import ClientError, PoolCorrupt

TIME_BITS: Final = 50
TIME_MAX: Final = (1 << TIME_BITS) - 1
"""No timestamp is as great as this: the end of time."""
STRIDE_US: Final = 1 << 14
"""How far ahead a client sets the slot's word; a kill costs the slot that much time."""


class Clock:
    """The timestamps of one client. Used within operations."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.endpoint = client.endpoint
        self.forget()

    def forget(self) -> None:
        """Begin at the slot's word."""
        self.owner = 0
        self.last = 0
        self.ceiling = 0
        self.ahead = 0

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
            self.owner = 0
            self.last = self.endpoint.load(self.client.slot + CLOCK)
            if self.last > TIME_MAX:
                raise PoolCorrupt(
                    f"the clock in the client slot at {self.client.slot:#x} is {self.last:#x}: "
                    "memory was damaged; destroy the pool"
                )
            self.owner = self.client.ident
            self.ceiling = self.last
        if time <= self.last:
            time = self.last + 1
        if time > self.ceiling:
            self._raise(time)
        self.last = time
        return time

    def _raise(self, time: int) -> None:
        if time >= TIME_MAX - STRIDE_US:
            raise ClientError(
                "the clock of this host, or of one whose clients use the same store, is years "
                "ahead; set it right, save what is there, and make the store again"
            )
        scope = self.endpoint.background(True)
        self.ceiling = time + STRIDE_US
        # ORDER: the word is above the timestamp before any client sees the timestamp.
        self.endpoint.store(self.client.slot + CLOCK, self.ceiling)
        self.endpoint.background(scope)
