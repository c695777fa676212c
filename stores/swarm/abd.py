"""DM-ABD: the protocol of Attiya, Bar-Noy and Dolev on the same registers (SWARM algorithm 1).

The baseline of SWARM section 7: replicated, linearizable and wait-free, with values out of
place, and two round trips for each operation. A store without `guess` has this protocol.

    WRITE(v)                                          READ()
      in parallel m = M.READ(), the value to a buffer   m = M.READ()
      M.WRITE((m.ts.i + 1, tid), v)                     return the value of m

So every tuple is VERIFIED, and no client locks. The header of the buffer, its stamp and hash, is
written with the tuple, because it is known only then.

A WRITE that meets a tombstone has written nothing but its buffer. A WRITE whose tuple is refused
half-way, because the register is being given up, is concurrent with that DELETE and comes before
it.
"""

from __future__ import annotations

from typing import Any

from limpet.shm.errors import NodeFailed
from limpet.stores.swarm.layout import (
    AGAIN,
    DONE,
    HEADER,
    NAMED,
    NO_MEMORY,
    REFUSED,
    ROW,
    VERIFIED,
    WORDS,
)
from limpet.stores.swarm.max_register import Insistence, MaxRegister, Protocol
from limpet.stores.swarm.register import is_tombstone, time_of, tuple_word
from limpet.stores.swarm.replica import Quorum
from limpet.stores.swarm.row import Row


class Abd(Protocol):
    """WRITE and READ of the current register, in two phases each."""

    def __init__(self, max_register: MaxRegister, quorum: Quorum, row: Row, clock: Any) -> None:
        Protocol.__init__(self, max_register, quorum, row, clock)
        self.insistence = Insistence(max_register, quorum, row)

    def write(self, value: bytes) -> int:
        """WRITE; 2 round trips. DONE; or nothing was done: GONE, DELETED, NO_MEMORY, AGAIN."""
        quorum, row = self.quorum, self.row
        known, row.known = row.known and row.suits(len(value)), False
        writer = row.writer
        if known:
            held = row.take_turn(row.buffer, len(value))
        else:
            held = row.acquire(row.buffer, len(value))
        if held < 0:
            return NO_MEMORY
        outcome = quorum.gather(WORDS if known else ROW, quorum.majority)
        ahead = self._write_ahead(value)
        self.endpoint.wait()
        if outcome == DONE and is_tombstone(quorum.top):
            # A copy of the tombstone needs an empty pointer, perhaps that of this buffer.
            row.refuse(held)
            row.buffer.reference = 0
            outcome = self.max_register.confirm()
            return AGAIN if outcome == DONE else outcome
        if outcome == DONE:
            if known:
                row.renew_words()
            elif row.take_metadata():
                row.clear_side()
            else:
                outcome = row.repair()
        if outcome == DONE:
            w = tuple_word(
                self.clock.after(time_of(quorum.top)), writer, VERIFIED, writer, row.side
            )
            row.buffer.prepare(self.register.ident, w, value)
            if held != NAMED:
                row.retarget(held)
            row.buffer.ahead = ahead
            try:
                outcome = self.max_register.write(w, row.buffer)
            finally:
                row.buffer.ahead = 0
            self.endpoint.wait()
            return self._conclude(w, held, outcome)
        row.refuse(held)
        return outcome

    def _conclude(self, w: int, held: int, outcome: int) -> int:
        """WRITE after its second phase, of which this is the outcome."""
        row = self.row
        if outcome == REFUSED:
            outcome = self.insistence.write(w, DONE)
        if outcome == DONE:
            self._end(w, held)
        elif row.buffer.published or row.buffer.doubtful:
            row.keep(held, row.buffer)
            outcome = DONE
        else:
            row.refuse(held)
        return outcome

    # ---- WRITE beside those to other registers (batch_writes.py) --------------------------------

    def begin(self, value: bytes) -> int:
        quorum, row = self.quorum, self.row
        row.known = False
        time = self.clock.after(time_of(quorum.top))
        w = tuple_word(time, row.writer, VERIFIED, row.writer, row.side)
        row.buffer.prepare(self.register.ident, w, value)
        return w

    def post(self, w: int) -> None:
        """Post the second phase, and the value with it."""
        self.max_register.post_write(w, self.row.buffer)

    def finish(self, w: int, held: int, doubtful: bool) -> int:
        row = self.row
        if doubtful:
            row.buffer.doubtful = True
            return self._conclude(w, held, REFUSED)
        return self._conclude(w, held, self.max_register.written(w, row.buffer))

    def _write_ahead(self, value: bytes) -> int:
        """Write the value, without its header, to our buffer; bits: beside which replicas.

        A buffer that our pointers name has the value of a tuple that was overtaken, with its
        header. Until the header is written, its hash does not hold.
        """
        quorum = self.quorum
        ahead = 0
        for n in range(quorum.read):
            k = quorum.order[n]
            address = self.register.beside(self.row.buffer.reference, k)
            if self.row.buffer.named and not quorum.stands_at(k):
                continue
            if address and value:
                try:
                    self.endpoint.write(address + HEADER, value)
                    ahead |= 1 << k
                except NodeFailed as error:
                    quorum.view.fail_if_lost(error.node)
        return ahead

    def _end(self, w: int, held: int) -> None:
        """In the background: put the value in place, and remember our row."""
        quorum, row = self.quorum, self.row
        scope = self.endpoint.background(True)
        quorum.write_in_place(row.buffer)
        row.end(w, held)
        self.endpoint.background(scope)

    def read(self) -> int:
        """READ; 2 round trips. DONE: `result` is the value; DELETED; GONE."""
        quorum = self.quorum
        attempt = missed = 0
        while True:
            outcome = self.max_register.read()
            if outcome != DONE:
                return outcome
            m = quorum.top
            value = quorum.value_of(m)
            if value is not None:
                self.result = value
                self.mend(m, value)
                return DONE
            attempt = attempt + 1 if m == missed else 0
            missed = m
            quorum.look_again(m, attempt)  # there is a greater one
