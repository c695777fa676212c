"""Numbers that no two clients of a pool ever use, nor one client twice.

A client takes a range of them by one fetch-and-add on the word `tickets` of the control segment.
What is left of its range when it ends, or forks, is never used. Sixteen million ranges a second
would last for a year.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from limpet.shm.layout import TICKETS

if TYPE_CHECKING:
    from limpet.shm.client import Client

RANGE: Final = 256


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
        """A number from 0 on."""
        if self._next == self._end or self._owner != self.client.ident:
            endpoint = self.client.endpoint
            lane = endpoint.background(True)
            self._next = endpoint.faa(TICKETS, RANGE)
            endpoint.background(lane)
            self._end = self._next + RANGE
            self._owner = self.client.ident
        self._next += 1
        return self._next - 1
