"""The reliable max register M (SWARM appendix A, algorithm 8): READ and WRITE.

    WRITE(v)                                       READ()
      write v to replicas with less, until a         read a majority; v is the greatest
      majority has v or more                         write v to replicas with less, until a
                                                     majority has v or more; return v

A READ writes back the tuple it has read (`WriteBack`). A write back needs memory and a row. A
client with no memory ready, or without a row, reads all replicas in service instead. With l nodes
lost, it returns the greatest tuple that f + 1 - l of the 2f + 1 - l replicas have, or have a
greater one than (`_least`). Each majority of the replicas left has one of these, whatever else is
lost; a replaced node has the greatest of all (check.py). A write that was complete when the
read began is on as many replicas, since at most l of its replicas are lost.

`Protocol` is the interface of a register's protocol to its store: READ and WRITE of a value.
`Insistence` is a WRITE although our row is not in order: the row is repaired until the tuple is
written. It is for a tuple that other clients may have seen at a minority already, so it cannot be
given up.

Write-back (algorithm 8, line 20). A client that writes a tuple back writes a copy of its value to a
buffer and a row of its own (trap S9). Only that attempt knows the buffer it has in the client
journal (trap S11), so the attempt resolves it before it ends, whether it succeeds or not.
"""

from __future__ import annotations

from typing import Any

from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.errors import NodeFailed
from limpet.stores.swarm.layout import (
    AGAIN,
    DELETED,
    DONE,
    GONE,
    NAMED,
    NO_MEMORY,
    REFUSED,
    ROW,
    WHOLE,
    WORDS,
)
from limpet.stores.swarm.register import is_tombstone, placed, row_of, side_of, stamp_of
from limpet.stores.swarm.replica import Buffer, Quorum, Replica
from limpet.stores.swarm.row import Row


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
        if (
            row.keep(held, self.buffer)
            and held != NAMED
            and row.is_short(self.buffer.reference >> NODE_SHIFT & 0xFF)
        ):
            row.lend(self.buffer)
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


class MaxRegister:
    """The current register as a whole."""

    def __init__(self, quorum: Quorum, row: Row, write_back: WriteBack) -> None:
        self.quorum = quorum
        self.row = row
        self.write_back = write_back
        self.register = self.quorum.register
        self.endpoint = self.quorum.endpoint
        self.is_open = False
        """Whether the last READ has met a greater tuple, which is not at a majority, and has not
        written it back, for want of a writer number: a later READ may return that one."""

    def read(self) -> int:
        """READ: the quorum's `top` is at a majority, or on enough of the replicas left; no complete
        write is greater.

        DONE; DELETED: it is a tombstone; GONE. Raises StoreCorrupt when its value is nowhere.
        """
        self.is_open = False
        quorum = self.quorum
        attempt = missed = 0
        while True:
            outcome = quorum.gather(WHOLE, quorum.majority)
            self.endpoint.wait()
            if outcome == GONE:
                return GONE
            if outcome == DELETED or quorum.count_at_least(quorum.top) >= quorum.majority:
                return DELETED if outcome == DELETED or is_tombstone(quorum.top) else DONE
            self.is_open = not self.row.is_writer()
            outcome = NO_MEMORY if self.is_open else self.write_back.run(quorum.top)
            if outcome == NO_MEMORY:
                return self._least()
            if outcome != AGAIN:
                return DELETED if is_tombstone(quorum.top) else DONE
            attempt = attempt + 1 if quorum.top == missed else 0
            missed = quorum.top
            quorum.look_again(missed, attempt)

    def _least(self) -> int:
        """`read`, without a copy."""
        quorum = self.quorum
        outcome = quorum.gather(WHOLE, quorum.count)
        self.endpoint.wait()
        if outcome != DONE:
            return outcome
        enough = quorum.majority - (quorum.count - quorum.read)
        top = 0
        for n in range(quorum.read):
            word = quorum.tops[quorum.order[n]]
            if word > top and quorum.count_at_least(word) >= enough:
                top = word
        quorum.top = top
        return DELETED if is_tombstone(top) else DONE

    def presence(self) -> int:
        """READ that only asks whether the key is deleted, and needs no memory.

        DONE: it was not; DELETED: a tombstone is at a majority; GONE. Raises StoreCorrupt when it
        cannot be brought to one.
        """
        quorum = self.quorum
        attempt = 0
        while True:
            outcome = quorum.gather(WORDS, quorum.majority)
            self.endpoint.wait()
            if outcome != DONE or not is_tombstone(quorum.top):
                return outcome
            if not self.row.is_writer():
                return self._least()
            if (
                quorum.count_at_least(quorum.top) >= quorum.majority
                or self.write_back.run(quorum.top) == DONE
            ):
                return DELETED
            attempt += 1
            quorum.wait_again(attempt, quorum.top, "cannot be brought to a majority")

    def confirm(self) -> int:
        """A tombstone was read: DELETED or GONE, once it is at a majority.

        DONE: it was lost with its node before that, and the key is there.
        """
        quorum = self.quorum
        return self.presence() if quorum.count_at_least(quorum.top) < quorum.majority else DELETED

    def post_write(self, word: int, buffer: Buffer) -> None:
        """Post `write`, to the replicas that were elected; `written` says what came of it."""
        quorum = self.quorum
        for n in range(quorum.read):
            replica = quorum.replicas[quorum.order[n]]
            replica.post_write(word, buffer)

    def written(self, word: int, buffer: Buffer) -> int:
        """After the `wait` for a `write` that was posted, and `arrived`: the outcome."""
        quorum = self.quorum
        pending = 0
        refused = False
        for n in range(quorum.read):
            replica = quorum.replicas[quorum.order[n]]
            outcome = replica.written(word, buffer)
            if outcome == AGAIN:
                pending |= 1 << replica.k
            elif outcome == REFUSED:
                refused = True
        if refused or (pending and not quorum.valid):
            return REFUSED
        return DONE if quorum.max_again(pending, word) else self.write(word, buffer)

    def write(self, word: int, buffer: Buffer) -> int:
        """WRITE the tuple `word`, with the value prepared in `buffer`, to a majority: to the
        replicas that were read, and to others if they are lost.

        DONE, or REFUSED: our row has to be put in order, or there is no such register.
        """
        quorum = self.quorum
        done = pending = 0
        lost = -1
        k = self.register.first
        looked = 0
        while looked < quorum.count and done < quorum.majority:
            try:  # around the loop, as it takes as long as a write
                while looked < quorum.count and done < quorum.majority:
                    replica = quorum.replicas[k]
                    looked += 1
                    k = k + 1 if k + 1 < quorum.count else 0
                    if replica.failed():
                        lost = self.register.bases[replica.k] >> NODE_SHIFT
                        continue
                    if not quorum.mine[replica.k] and (buffer.named or not quorum.valid):
                        return REFUSED
                    # ORDER: the ident was read, under this pin, before the buffer is written.
                    if buffer.named and not quorum.stands_at(replica.k):
                        return REFUSED
                    outcome = replica.write(word, buffer)
                    if outcome == REFUSED:
                        return REFUSED
                    if outcome == AGAIN:
                        pending |= 1 << replica.k
                    done += 1
            except NodeFailed as error:
                lost = error.node
                quorum.view.fail_if_lost(lost)
        if done < quorum.majority:
            raise NodeFailed(lost, "a majority of the replicas of the key is lost")
        if pending and not quorum.valid:
            # We must not change the word that we found: the memory may have another use by now.
            return REFUSED
        return DONE if quorum.max_again(pending, word) else self.write(word, buffer)


class Protocol:
    """READ and WRITE of an atomic register; safe_guess.py and abd.py have one each."""

    def __init__(self, max_register: MaxRegister, quorum: Quorum, row: Row, clock: Any) -> None:
        self.max_register = max_register
        self.quorum = quorum
        self.row = row
        self.register = self.quorum.register
        self.endpoint = self.quorum.endpoint
        self.clock = clock
        self.result = b""
        """The value that the last READ has found."""

    def read(self) -> int:
        """READ. DONE: `result` is the value; DELETED; GONE."""
        raise NotImplementedError

    def write(self, value: bytes) -> int:
        """WRITE. DONE; or nothing was done: GONE, DELETED, NO_MEMORY, AGAIN."""
        raise NotImplementedError

    # A WRITE beside those to other registers (batch_writes.py):

    def begin(self, value: bytes) -> int:
        """Begin a WRITE to a register whose row is known, with a buffer that our pointers name, or
        that the client journal has with the register's link address: its tuple, for `post`."""
        raise NotImplementedError

    def post(self, w: int) -> None:
        """Post the phase that writes this tuple, to the replicas that were elected."""
        raise NotImplementedError

    def finish(self, w: int, held: int, doubtful: bool) -> int:
        """After `wait`: DONE; or nothing was done: GONE, DELETED. `doubtful`: a node was lost in
        this phase, so none of its results is sure. Then the tuple is written again, as it may be at
        a minority."""
        raise NotImplementedError

    def mend(self, m: int, value: bytes) -> None:
        """Put in place the value of the tuple that was read last, VERIFIED, if nothing there leads
        to it. In the background."""
        quorum, row = self.quorum, self.row
        if quorum.missing:
            scope = self.endpoint.background(True)
            row.spare.copy_of(quorum.missing, self.register.ident, m, value)
            quorum.write_in_place(row.spare)
            self.endpoint.background(scope)


class Insistence:
    """Of a WRITE to the current register."""

    def __init__(self, max_register: MaxRegister, quorum: Quorum, row: Row) -> None:
        self.max_register = max_register
        self.quorum = quorum
        self.row = row

    def write(self, word: int, outcome: int) -> int:
        """WRITE the tuple that is prepared in our row's buffer. DONE, DELETED, or GONE.

        `outcome`: of the last `gather`. Raises StoreCorrupt when the row cannot be put in order.
        """
        quorum, row = self.quorum, self.row
        row.buffer.named = False  # perhaps not on the replicas that are left
        attempt = 0
        while outcome == DONE:
            row.repair()
            outcome = quorum.gather(ROW, quorum.majority)
            quorum.endpoint.wait()
            if is_tombstone(quorum.top):
                outcome = self.max_register.confirm()
            elif outcome == DONE and row.take_metadata():
                placed_word = placed(word, row.writer, row.side)
                if self.max_register.write(placed_word, row.buffer) == DONE:
                    break
            if outcome == DONE:
                quorum.wait_again(attempt, word, "cannot be written, as the row is not in order")
                attempt += 1
        row.side = -1
        return outcome
