"""The reliable max register M (SWARM appendix A, algorithm 8): READ and WRITE.

    WRITE(v)                                       READ()
      write v to replicas with less, until a         read a majority; v is the greatest
      majority has v or more                         write v to replicas with less, until a
                                                     majority has v or more; return v

A READ writes back the tuple it has read (write_back.py). A write back needs memory and a row. A
client with no memory ready, or without a row, reads all replicas in service instead. With l nodes
lost, it returns the greatest tuple that f + 1 - l of the 2f + 1 - l replicas have, or have a
greater one than (`_least`). Each majority of the replicas left has one of these, whatever else is
lost; a replaced node has the greatest of all (refilling.py). A write that was complete when the
read began is on as many replicas, since at most l of its replicas are lost.

`Protocol` is the interface of a register's protocol to its store: READ and WRITE of a value.
`Insistence` is a WRITE although our row is not in order: the row is repaired until the tuple is
written. It is for a tuple that other clients may have seen at a minority already, so it cannot be
given up.
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
    NO_MEMORY,
    REFUSED,
    ROW,
    WHOLE,
    WORDS,
)
from limpet.stores.swarm.quorum import Quorum
from limpet.stores.swarm.replica import Buffer
from limpet.stores.swarm.row import Row
from limpet.stores.swarm.words import is_tombstone, placed
from limpet.stores.swarm.write_back import WriteBack


class MaxRegister:
    """The current register as a whole."""

    def __init__(self, quorum: Quorum, row: Row, write_back: WriteBack) -> None:
        self.quorum = quorum
        self.row = row
        self.write_back = write_back
        self.register = self.quorum.register
        self.endpoint = self.quorum.endpoint

    def read(self) -> int:
        """READ: the quorum's `top` is at a majority, or on enough of the replicas left; no complete
        write is greater.

        DONE; DELETED: it is a tombstone; GONE. Raises StoreCorrupt when its value is nowhere.
        """
        quorum = self.quorum
        attempt = missed = 0
        while True:
            outcome = quorum.gather(WHOLE, quorum.majority)
            self.endpoint.wait()
            if outcome == GONE:
                return GONE
            if outcome == DELETED or quorum.count_at_least(quorum.top) >= quorum.majority:
                return DELETED if outcome == DELETED or is_tombstone(quorum.top) else DONE
            outcome = self.write_back.run(quorum.top) if self.row.is_writer() else NO_MEMORY
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
        for _ in range(quorum.count):
            replica = quorum.replicas[k]
            try:
                if replica.failed():
                    lost = self.register.bases[k] >> NODE_SHIFT
                elif not quorum.mine[k] and (buffer.named or not quorum.valid):
                    return REFUSED
                elif buffer.named and not quorum.stands_at(k):
                    # ORDER: the ident was read, under this pin, before the buffer is written.
                    return REFUSED
                else:
                    outcome = replica.write(word, buffer)
                    if outcome == REFUSED:
                        return REFUSED
                    if outcome == AGAIN:
                        pending |= 1 << k
                    done += 1
            except NodeFailed as error:
                lost = error.node
                quorum.view.fail_if_lost(lost)
            if done == quorum.majority:
                break
            k = k + 1 if k + 1 < quorum.count else 0
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
