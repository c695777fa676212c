"""Writing a tuple that was read back to a majority (SWARM appendix A, algorithm 8, line 20).

A client that writes a tuple back writes a copy of its value to a buffer and a row of its own (trap
S9). Only that attempt knows the buffer it has in the client journal (trap S11), so the attempt
resolves it before it ends, whether it succeeds or not.
"""

from __future__ import annotations

from limpet.shm.errors import NodeFailed
from limpet.stores.swarm.layout import AGAIN, DONE, NAMED, NO_MEMORY, REFUSED
from limpet.stores.swarm.quorum import Quorum
from limpet.stores.swarm.replica import Buffer, Replica
from limpet.stores.swarm.row import Row
from limpet.stores.swarm.words import is_tombstone, placed, row_of, side_of, stamp_of


class WriteBack:
    """Writes back tuples that were read from the current register."""

    def __init__(self, quorum: Quorum, row: Row) -> None:
        self.quorum = quorum
        self.row = row
        self.endpoint = self.quorum.endpoint
        self.buffer = Buffer()
        """The buffer of the copy. A WRITE that this interrupts has its own (row.py)."""

    def run(self, word: int) -> int:
        """Make a tuple that was read known to a majority, as a copy in our row.

        DONE, NO_MEMORY, or AGAIN: read once more.
        """
        row = self.row
        row.identify()
        row.wrote = row.turns.unnoted = True
        row_is_free = row.take_metadata()
        if is_tombstone(word):
            if row_is_free:
                row.clear_side()  # its number takes the pointer
            outcome = self._tombstone(word)
        elif not row_is_free:
            outcome = REFUSED
        else:
            outcome = self._value(word)
        return row.repair() if outcome == REFUSED else outcome

    def _value(self, word: int) -> int:
        """`run` with a tuple that has a value. As `run`, or REFUSED: our row is not in order."""
        row = self.row
        value = self.quorum.value_of(word)
        if value is None:
            return AGAIN
        if row_of(word) == row.writer:
            return self._own(word, value)
        held = row.take_turn(self.buffer, len(value))
        if held < 0:
            return NO_MEMORY
        copy = self._copy_of(word)
        self.buffer.prepare(self.quorum.register.ident, word, value)
        if held != NAMED:
            row.retarget(held)
        if not self._put_copy(copy):
            if not self.buffer.published:
                row.client.release(held)
            # Otherwise the buffer stays in the journal: it is linked, or its node was lost now.
            return AGAIN
        for n in range(self.quorum.read):
            self._name(self.quorum.at(n), copy)
        self.endpoint.wait()
        scope = self.endpoint.background(True)
        row.keep(held, self.buffer)
        self.endpoint.background(scope)
        return DONE

    def _copy_of(self, word: int) -> int:
        """The tuple, with its value in our row."""
        return placed(word, self.row.writer, self.row.side)

    def _put_copy(self, copy: int) -> bool:
        """Write a copy to those replicas that were read with a smaller tuple; whether all have it.

        False: some may have it, as a node was lost, or the register is being given up.
        """
        pending = 0
        for n in range(self.quorum.read):
            replica = self.quorum.at(n)
            if stamp_of(replica.tops[replica.k]) < stamp_of(copy):
                try:
                    outcome = replica.write(copy, self.buffer)
                except NodeFailed as error:
                    self.quorum.view.fail_if_lost(error.node)
                    return False
                if outcome == REFUSED:
                    return False
                if outcome == AGAIN:
                    pending |= 1 << replica.k
        return self.quorum.max_again(pending, copy)

    def _tombstone(self, word: int) -> int:
        """`run` with a tombstone: to replicas without any. As `run`, or REFUSED.

        Its number may be on either side, since at most one side is in use on each replica.
        """
        row = self.row
        self.buffer.reference = self.quorum.ticket()
        if not self.buffer.reference:
            return AGAIN
        own = placed(word, row.writer, row.side)
        done = True
        for n in range(self.quorum.read):
            replica = self.quorum.at(n)
            if not is_tombstone(replica.tops[replica.k]):
                done = row.move(replica, replica.mine[replica.k], own, self.buffer) and done
        self.endpoint.wait()
        return DONE if done else REFUSED

    def _own(self, word: int, value: bytes) -> int:
        """`run` with a tuple of our own row: the buffer is ours, so no copy is needed."""
        row = self.row
        replica = self.quorum.replicas[self.quorum.where(word)]
        self.buffer.reference = replica.named(row.writer, side_of(word))
        if not self.buffer.reference:
            self.buffer.reference = replica.named(row.writer, 1 - side_of(word))
        self.buffer.prepare(self.quorum.register.ident, word, value)
        done = True
        for n in range(self.quorum.read):
            replica = self.quorum.at(n)
            if stamp_of(replica.tops[replica.k]) < stamp_of(word):
                done = row.move(replica, replica.mine[replica.k], word, self.buffer) and done
        self.endpoint.wait()
        return DONE if done else REFUSED

    def _name(self, replica: Replica, copy: int) -> None:
        """Name the copy's buffer on one more replica, so that it is not lost with a node."""
        register = self.quorum.register
        try:
            self.quorum.buffers.write(self.buffer, replica.k)
            at = register.pointer(replica.k, self.row.writer, side_of(copy))
            self.endpoint.cas(at, register.ident, self.buffer.reference)
        except NodeFailed as error:
            self.quorum.view.fail_if_lost(error.node)
