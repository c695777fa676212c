"""Stamps of objects, by which a get proves without a pin what it has read (race/glance.py).

A stamp is a unique id (shm/clients/unique_ids.py), scrambled; some kinds shift it, to have a mark
in its lowest bits (fusee/log.py). No stamp comes again in the pool. Memory that has become
something else holds a stamp that was there only by a chance of one in 2^62, since a scrambled
number looks like none that programs store. When no id is left, new objects have no stamp, but a
word below LEAST, and a get needs a pin to read them.

It is written with its object, before the object is linked, and does not change while it is linked.
"""

from __future__ import annotations

from typing import Any, Final

from limpet.shm.clients.unique_ids import Tickets
from limpet.shm.errors import PoolCorrupt

MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
SCRAMBLE: Final = 0x9E37_79B9_7F4A_7C15
"""An odd number: the product, modulo 2^64 or 2^62, is another one for each unique id."""
STAMP_SIZE: Final = 8
LEAST: Final = 4
"""A get takes a smaller word for none."""


class Stamps:
    """The stamps of one client."""

    def __init__(self, client: Any) -> None:
        self.tickets = Tickets(client)

    def forget(self) -> None:
        """Take new unique ids next time."""
        self.tickets.forget()

    def take(self) -> int:
        """A stamp that no object has had; 0: no unique id is left, and the object has no stamp."""
        try:
            return (self.tickets.take() + 1) * SCRAMBLE & MASK
        except PoolCorrupt:
            return 0
