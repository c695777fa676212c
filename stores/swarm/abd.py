"""DM-ABD: the protocol of Attiya, Bar-Noy and Dolev on the same registers (SWARM algorithm 1).

The baseline of SWARM section 7: replicated, linearizable and wait-free, with values out of
place, and two round trips for each operation. A store without `guess` has this protocol.

    WRITE(v)                                          READ()
      in parallel m = M.READ(), the value to a buffer   m = M.READ()
      M.WRITE((m.ts.i + 1, tid), v)                     return the value of m

So every tuple is VERIFIED, and nobody locks. What the buffer's value has before it, its stamp and
hash, is written with the tuple, as it is known only then.

A WRITE that meets a tombstone has written nothing but its buffer; one whose tuple is refused
half-way, as the register is being given up, is concurrent with that DELETE and comes before it.
"""

from __future__ import annotations

from typing import Any

from limpet.shm.errors import NodeFailed
from limpet.stores.swarm.layout import (
    DONE,
    HEADER,
    HEADER_WORDS,
    NO_MEMORY,
    REFUSED,
    VERIFIED,
)
from limpet.stores.swarm.safe_guess import SafeGuess
from limpet.stores.swarm.words import is_tombstone, time_of, tuple_word


class Abd(SafeGuess):
    """WRITE in two phases; READ is that of Safe-Guess, which finds every tuple VERIFIED."""

    def __init__(self, pool: Any, entry: int, replicas: int, writers: int, buffers: int) -> None:
        super().__init__(pool, entry, replicas, writers, buffers)
        self.ahead = 0
        """During `write`, bits: the replicas beside which the value has been written already."""

    def put_value(self, value: bytes) -> int:
        """WRITE; 2 round trips. As that of Safe-Guess."""
        self.known = False
        writer = self.identify()
        held = self.acquire(len(value))
        if held < 0:
            return NO_MEMORY
        outcome = self.gather(False, self.majority)
        ahead = self._write_ahead(value)
        self.endpoint.wait()
        if outcome == DONE and is_tombstone(self.top):
            outcome = self._confirm()
        if outcome == DONE and not self.learn():
            outcome = self.clear_row()
        if outcome == DONE:
            w = tuple_word(self.clock.after(time_of(self.top)), writer, VERIFIED, writer, self.side)
            self.prepare(w, value)
            self.aim(held)
            self.ahead = ahead
            try:
                outcome = self.write(w)
            finally:
                self.ahead = 0
            self.endpoint.wait()
            if outcome == REFUSED:
                outcome = self._insist(w, DONE)
            if outcome == DONE:
                self._settle(w, held)
                return DONE
            if self.published:
                self.keep(held)
                return DONE
        self.client.release(held)
        return outcome

    def _write_ahead(self, value: bytes) -> int:
        """The value, without what is before it, to our buffer; bits: beside which replicas."""
        ahead = 0
        for n in range(self.read):
            k = self.order[n]
            address = self.beside(self.buffer, k)
            if address and value:
                try:
                    self.endpoint.write(address + HEADER, value)
                    ahead |= 1 << k
                except NodeFailed as error:
                    self.view.fail_if_lost(error.node)
        return ahead

    def write_buffer(self, k: int) -> None:
        """As that of In-n-Out; of a value that is there, only what is before it."""
        if self.ahead >> k & 1:
            address = self.beside(self.buffer, k)
            self.endpoint.write_gather(address, self.header, HEADER_WORDS, b"", b"")
        else:
            SafeGuess.write_buffer(self, k)

    def _settle(self, w: int, held: int) -> None:
        """In the background: the value is put in place; what it makes useless is given up."""
        lane = self.endpoint.background(True)
        self._try_in_place()
        self.recycle(w)
        self.keep(held)
        self.endpoint.background(lane)
