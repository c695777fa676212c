"""A tombstone: the last tuple of a register, greater than all others (SWARM section 5.3).

Its number stands where other tuples have the reference to a buffer. The author also writes it to
the key's slot in the index (vacant.py).
"""

from __future__ import annotations

from limpet.stores.swarm.buffers import Buffer
from limpet.stores.swarm.layout import AGAIN, DONE, REFUSED, TIME_MAX, VERIFIED
from limpet.stores.swarm.max_register import MaxRegister
from limpet.stores.swarm.quorum import Quorum
from limpet.stores.swarm.row import Row
from limpet.stores.swarm.words import is_tombstone, tuple_word


class Tombstone:
    """WRITE of a tombstone to the current register."""

    def __init__(self, max_register: MaxRegister, quorum: Quorum, row: Row) -> None:
        self.max_register = max_register
        self.quorum = quorum
        self.row = row
        self.buffer = Buffer()

    def write(self, ticket: int) -> int:
        """WRITE a tombstone that has this number; none was at a majority when we last read.

        DONE: one is at a majority, this one or another; or AGAIN.
        """
        quorum, row = self.quorum, self.row
        writer = row.identify()
        outcome = quorum.gather(False, quorum.majority)
        quorum.endpoint.wait()
        if outcome != DONE or is_tombstone(quorum.top):
            # One of another client, or one left in our row, which may have no room for a second.
            return AGAIN if self.max_register.presence() == DONE else DONE
        if not row.learn():
            return row.repair()
        self.buffer.reference = ticket
        word = tuple_word(TIME_MAX, writer, VERIFIED, writer, row.side)
        wrote = self.max_register.write(word, self.buffer)
        # CRASH(entombed): at a minority or a majority; a client that meets it unmaps the key.
        quorum.endpoint.wait()
        return row.repair() if wrote == REFUSED else DONE
