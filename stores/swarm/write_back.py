"""What was read is made known to a majority (SWARM appendix A, algorithm 8).

A read takes the greatest tuple of a majority, and makes it known to a majority (`write_back`)
before it returns. A client that writes a tuple back writes a copy of its value to a buffer and a
row of its own (trap S9). What one such attempt has in hand is known to that attempt alone (trap
S11): whether it succeeds or not, it is settled when the attempt is over.

A copy takes memory, and a row. A read that has none ready, or of a client that has no number as a
writer, reads all replicas in service instead, and returns the greatest tuple that a majority
without those that are lost has, or has been overtaken by (`_least`). With f + 1 - l of 2f + 1 - l,
each majority of what is left has one of them, and whatever more is lost; a replaced node has the
greatest of all (check.py). And a write that was complete when the read began is on as many, as l
at most of its replicas are lost.
"""

from __future__ import annotations

from limpet.shm.errors import NodeFailed
from limpet.stores.status import VACANT_CLASS
from limpet.stores.swarm.layout import AGAIN, DELETED, DONE, GONE, NO_MEMORY, REFUSED
from limpet.stores.swarm.max_register import MaxRegister
from limpet.stores.swarm.words import is_tombstone, placed, row_of, side_of, stamp_of


class WriteBack(MaxRegister):
    """READ of the current register as a whole."""

    # ---- reading --------------------------------------------------------------------------------

    def maximum(self) -> int:
        """READ: `top` is at a majority, or on enough of what is left; no complete write is greater.

        DONE; DELETED: it is a tombstone; GONE. Raises StoreCorrupt when its value is nowhere.
        """
        attempt = missed = 0
        while True:
            outcome = self.gather(True, self.majority)
            self.endpoint.wait()
            if outcome == GONE:
                return GONE
            if outcome == DELETED or self.count(self.top) >= self.majority:
                return DELETED if outcome == DELETED or is_tombstone(self.top) else DONE
            outcome = self.write_back(self.top) if self.is_writer() else NO_MEMORY
            if outcome == NO_MEMORY:
                return self._least()
            if outcome != AGAIN:
                return DELETED if is_tombstone(self.top) else DONE
            attempt = attempt + 1 if self.top == missed else 0
            missed = self.top
            self.look_again(missed, attempt)

    def _least(self) -> int:
        """`maximum`, without a copy."""
        outcome = self.gather(True, self.replicas)
        self.endpoint.wait()
        if outcome != DONE:
            return outcome
        enough = self.majority - (self.replicas - self.read)
        self.top = 0
        for n in range(self.read):
            word = self.tops[self.order[n]]
            if word > self.top and self.count(word) >= enough:
                self.top = word
        return DELETED if is_tombstone(self.top) else DONE

    def presence(self) -> int:
        """READ that only asks whether the key is deleted, and needs no memory.

        DONE: it was not; DELETED: a tombstone is at a majority; GONE. Raises StoreCorrupt when it
        cannot be brought to one.
        """
        attempt = 0
        while True:
            outcome = self.gather(False, self.majority)
            self.endpoint.wait()
            if outcome != DONE or not is_tombstone(self.top):
                return outcome
            if not self.is_writer():
                return self._least()
            if self.count(self.top) >= self.majority or self.write_back(self.top) == DONE:
                return DELETED
            attempt += 1
            self.wait_again(attempt, self.top, "cannot be brought to a majority")

    def ticket(self) -> int:
        """The number of the tombstone that was read: what its author gives the key's slot; or 0."""
        k = self.where(self.top)
        row = row_of(self.top) % self.writers
        word = self.front[k * self.stride + self.pointers + 2 * row + side_of(self.top)]
        is_number = word >> 48 & 0xFF == VACANT_CLASS and word != self.ident
        return word if is_number and is_tombstone(self.top) else 0

    # ---- writing back ---------------------------------------------------------------------------

    def write_back(self, word: int) -> int:
        """Make a tuple that was read known to a majority, as a copy in our row.

        DONE, NO_MEMORY, or AGAIN: read once more. A WRITE that this interrupts has its buffer back
        afterwards.
        """
        self.identify()
        self.wrote = True
        buffer, published = self.buffer, self.published
        row_is_free = self.learn()
        if is_tombstone(word):
            outcome = self._write_back_tombstone(word)
        elif not row_is_free:
            outcome = REFUSED
        else:
            outcome = self._write_back_value(word)
        self.buffer, self.published = buffer, published
        return self.clear_row() if outcome == REFUSED else outcome

    def _write_back_value(self, word: int) -> int:
        """`write_back` of a tuple with a value. As that, or REFUSED: our row is not in order."""
        value = self.value_of(word)
        if value is None:
            return AGAIN
        if row_of(word) == self.writer:
            return self._write_back_own(word, value)
        held = self.acquire(len(value))
        if held < 0:
            return NO_MEMORY
        copy = placed(word, self.writer, self.side)
        self.prepare(word, value)
        self.aim(held)
        if not self._put_copy(copy):
            if not self.published:
                self.client.release(held)
            # Else it stays in hand: it is linked, or its node was lost just now.
            return AGAIN
        for n in range(self.read):
            self._name(self.order[n], copy)
        self.endpoint.wait()
        lane = self.endpoint.background(True)
        self.recycle(copy)
        self.keep(held)
        self.endpoint.background(lane)
        return DONE

    def _put_copy(self, copy: int) -> bool:
        """WRITE a copy to those replicas that were read with a smaller tuple; whether all have it.

        False: some may have it, as a node was lost, or the register is being given up.
        """
        pending = 0
        for n in range(self.read):
            k = self.order[n]
            if stamp_of(self.tops[k]) < stamp_of(copy):
                try:
                    outcome = self.put(k, copy)
                except NodeFailed as error:
                    self.view.fail_if_lost(error.node)
                    return False
                if outcome == REFUSED:
                    return False
                if outcome == AGAIN:
                    pending |= 1 << k
        return self._max_again(pending, copy)

    def _write_back_tombstone(self, word: int) -> int:
        """`write_back` of a tombstone, to replicas without any. As that, or REFUSED.

        Its number may be on either side, as on each replica one is in use at most.
        """
        self.buffer = self.ticket()
        if not self.buffer:
            return AGAIN
        done = True
        for n in range(self.read):
            k = self.order[n]
            if not is_tombstone(self.tops[k]):
                done = self._move(k, self.mine[k], placed(word, self.writer, self.side)) and done
        self.endpoint.wait()
        return DONE if done else REFUSED

    def _write_back_own(self, word: int, value: bytes) -> int:
        """`write_back` of a tuple of our own row: its buffer is ours, and needs no copy."""
        k = self.where(word)
        self.buffer = self.named(k, self.writer, side_of(word))
        if not self.buffer:
            self.buffer = self.named(k, self.writer, 1 - side_of(word))
        self.prepare(word, value)
        done = True
        for n in range(self.read):
            k = self.order[n]
            if stamp_of(self.tops[k]) < stamp_of(word):
                done = self._move(k, self.mine[k], word) and done
        self.endpoint.wait()
        return DONE if done else REFUSED

    def _name(self, k: int, copy: int) -> None:
        """Name the copy's buffer on replica `k`, too, so that it is not lost with a node."""
        try:
            self.write_buffer(k)
            self.endpoint.cas(self.pointer(k, self.writer, side_of(copy)), self.ident, self.buffer)
        except NodeFailed as error:
            self.view.fail_if_lost(error.node)
