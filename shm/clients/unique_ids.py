"""Unique ids: numbers that no two clients of a pool ever use, nor one client twice.

A client takes a range of ids by one fetch-and-add on the word `tickets` of the control segment.
When it ends, or forks, the rest of its range is never used.

Ids end at 2^54: ten million a second last for 57 years. The words of vacant slots have room for all
of them (stores/vacant.py). Beyond that no key of the other kinds can be deleted any more, and new
objects of `race`, `rtx-race` and `fusee` have no stamp (stores/stamps.py); every key can still be
read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from limpet.shm.endpoint.field_ends import A_SECOND_MAX, LASTS, Field
from limpet.shm.endpoint.layout import TICKETS
from limpet.shm.errors import PoolCorrupt

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
    """The numbers that one client has taken."""

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
