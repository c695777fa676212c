"""The tracker of a memory node: a ring buffer of messages that name changed entries.

Loco's kvstore broadcasts changes of the index on ring buffers called trackers (LOCO section 6).
Here a node's data array has one tracker, to which all clients append:

    position  word: the number of messages that were ever announced; it only goes up
    ring      `size` words: message number p is at p mod size
              bits 0-27 an entry that has changed; bits 28-63 the lap, p div size + 1

A message is one word, and so is never torn (G2). It only names the entry, whose contents at the
look count: so a message may be applied twice, late, or by chance too early.

Append: load the position p and the word of message p. If that has p's lap already, a client has
written it and not announced it yet: help. Else a CAS from the word that was read to our message
takes number p and writes it, both at once; then a CAS of the position from p to p + 1 announces it.
No client can take p + 1 before. When `append` returns, the position is above p.

A kill leaves behind: a message that is not announced (CRASH unannounced); the next one to
append announces it, and nothing depended on it yet.

The length of the ring: by default as many messages as the table has entries, or more (trap L4). To
look at all entries anew then costs no more than the messages that were missed. A shorter ring saves
8 bytes a message; a client that is late by more than its length begins its index anew, and the next
time again.

Damage: a message may name an entry that the array does not have; then the index raises
StoreCorrupt. The word of message p has p's lap or the one before, as long as the position is p; for
any other, and for a position above 2^62, `append` raises StoreCorrupt instead of trying for ever.

A lap is 36 bits. It would have to come round while one client stands still between its load and its
CAS, and the word to have the same entry: after 2^36 laps.
"""

from __future__ import annotations

from typing import Any, Final

from limpet.shm.errors import StoreCorrupt
from limpet.stores.loco.layout import LAP_MASK, POSITION, RING, ROW_BITS, ROW_MASK

POSITION_MAX: Final = 1 << 62


class Tracker:
    """The tracker of the table at address `base`, with a ring of `size` messages."""

    def __init__(self, endpoint: Any, base: int, size: int) -> None:
        self.endpoint = endpoint
        self.size = size
        self.shift = size.bit_length() - 1
        self.at = 0
        self.ring = 0
        self.move(base)

    def move(self, base: int) -> None:
        """Become the tracker of the table at this address."""
        self.at = base + POSITION
        self.ring = base + RING

    def position(self) -> int:
        """How many messages there are."""
        return self.endpoint.load(self.at)

    def message(self, number: int) -> int:
        """The entry that a message names; -1: the ring has gone round since."""
        word = self.endpoint.load(self.ring + 8 * (number & self.size - 1))
        if word >> ROW_BITS != self._lap(number):
            return -1
        return word & ROW_MASK

    def _lap(self, number: int) -> int:
        return (number >> self.shift) + 1 & LAP_MASK

    def append(self, entry: int) -> int:
        """Announce a change of this entry to all clients; the message's number.

        2 round trips. Raises StoreCorrupt.
        """
        number = -1
        while number < 0:
            number = self._try(entry)
        return number

    def _try(self, entry: int) -> int:
        """Append: the number. Or -1, after helping another client, or losing to one."""
        endpoint = self.endpoint
        number = endpoint.load(self.at)
        slot = self.ring + 8 * (number & self.size - 1)
        there = endpoint.load(slot)
        endpoint.wait()
        lap = self._lap(number)
        if number > POSITION_MAX:
            raise self._damaged(number, there)
        if there >> ROW_BITS == lap:
            endpoint.cas(self.at, number, number + 1)
            return -1
        if there >> ROW_BITS != (lap - 1 & LAP_MASK):
            # ORDER: after the message: if the position is the same, the ring has not gone round.
            if endpoint.load(self.at) == number:
                raise self._damaged(number, there)
            return -1
        if endpoint.cas(slot, there, lap << ROW_BITS | entry) != there:
            return -1
        endpoint.wait()
        # CRASH(unannounced): the next client that appends announces it.
        endpoint.cas(self.at, number, number + 1)
        return number

    def _damaged(self, number: int, there: int) -> StoreCorrupt:
        return StoreCorrupt(
            f"the tracker at {self.at:#x} has {number} messages, and the place of the next one has "
            f"the word {there:#x}: memory was damaged; destroy the pool"
        )
