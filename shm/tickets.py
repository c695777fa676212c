"""Numbers that no two clients of a pool use at one time, nor one client twice.

A client takes a range of them by one fetch-and-add on the word `tickets` of the control segment.
What is left of its range when it ends, or forks, is left out. The word counts to 2^64; numbers have
46 bits of it, which is what the words of vacant slots have room for. So they come again after 2^46,
which takes 81 days at ten million a second: a client that was stopped for just so long, between its
look at a vacant slot and its CAS, may find the number again that it saw, if the same slot was made
vacant with it. Who is not stopped meets no number twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from limpet.shm.field_ends import A_SECOND_MAX, WRAPS, Field
from limpet.shm.layout import TICKETS

if TYPE_CHECKING:
    from limpet.shm.client import Client

RANGE: Final = 256
TICKETS_MAX: Final = 1 << 46
"""No number is as great as that."""
FIELDS: Final = (
    Field(
        "number of a vacant slot",
        TICKETS_MAX,
        A_SECOND_MAX,
        WRAPS,
        "deceived is a CAS on a vacant slot of a client that was stopped for 2^46 numbers",
    ),
)

assert TICKETS_MAX % RANGE == 0


class Tickets:
    """The numbers that one client has taken."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.forget()

    def forget(self) -> None:
        """Take new ones next time."""
        self._owner = 0
        self._next = self._end = 0

    def take(self) -> int:
        """A number from 0 on, below TICKETS_MAX."""
        if self._next == self._end or self._owner != self.client.ident:
            endpoint = self.client.endpoint
            lane = endpoint.background(True)
            taken = endpoint.faa(TICKETS, RANGE)
            endpoint.background(lane)
            self._next = taken % TICKETS_MAX // RANGE * RANGE
            self._end = self._next + RANGE
            self._owner = self.client.ident
        self._next += 1
        return self._next - 1
