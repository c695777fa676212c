"""A table of holders with two waiting lines, which changes as a whole by one CAS.

A semaphore (semaphore.py) and a reader-writer lock (rwlock.py) are faces of it. They need a state
(how many permits are taken) and who holds how many (to give back what a dead process held) to
change together: between two changes a kill would lose permits, or free one twice.

The algorithm is a universal construction: a change is a *record* with the new state and the new
value of one row, and happens by one CAS of the *word*, which names the record. The row itself is
brought up to date by the next change, whichever client makes it. So no step of a client is half a
change, and no client, dead or stopped, is waited for.

The channel's region
    0     word         bits 0-12 the record: 2 * row of its client + which of its two;
                       bits 13-24 the row whose value it changes; bits 25-63 number of the change
    64    first line   where its threads sleep (waiting.py): of a semaphore, and of readers
    128   second line  the same of writers
    192   rows         LINE bytes for each participant (channel.py)
A row
    0     held         bits 0-31 its value; bits 32-63 low bits of the number of the change to it
    8     record 0     the state, and the new value of the row that the word names
    24    record 1
The state
    bits 0-31     taken    permits taken, or readers, modulo 2^32: releases may exceed acquisitions
    bits 32-44    rows of processes with threads in the first line
    bits 45-57    the same of the second line
    bit  58       WRITER   a writer has the lock
    bits 59-63    DIED     permits of dead processes that were given back and not taken again, 31 at
                           most; of a reader-writer lock: whether the last writer died
The value of a row
    bits 0-23     count    permits, or reads, that the process holds
    bit  24       WRITES   it is the writer
    bits 25-26    LINED    it has threads in the first, second line
Zeros are a table in which nothing is taken.

A change, in two phases:
    read     word; its record, the row that it changes, our own row, and the word again: if it is
             the same one, all of these belong together. It is left out if we remember them, as made
             by our last change.
    commit   the row of the last change := its new value, by CAS from what was read;
             our record; the word := our record and its number, by CAS
A client writes only to that one of its two records that the word does not name, so a record that
is named never changes. A CAS of a row fails only if another client has done the same before.

Deaths. A row whose participant is dead, or has not finished joining, has a value that is given back
by a change as any other: permits become free again, but never more of them than the table has at
first. A newcomer that takes over such a row does so in `joined`. Waiting clients look for the dead
each time before they sleep, so within SLEEP_US.

Lines. A thread that found nothing has its row LINED before it sleeps; a change that lets clients of
a line go on wakes one thread of it (of readers: all). With `first`, clients of the other line let
those of this line go first. A waiting client delays others by KEPT_S at most (trap G11): if the
lock is free for that time at each look of a client, that client takes the rows out of the line.
Their threads line up again when they run.

A kill leaves behind: nothing but a dead participant's row (CRASH(held)).

Known limits: 2^24 - 1 permits, and so many of one process; a process that is stopped keeps what it
holds: a timeout ends the wait for it.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Callable
from threading import get_ident
from typing import Any

from limpet.shm.errors import LimpetError, StoreCorrupt
from limpet.stores.channels.channel import Channel
from limpet.stores.channels.holders.layout import (
    COUNT,
    DIED,
    DIED_MAX,
    DIED_ONE,
    DIED_SHIFT,
    EXCLUSIVE,
    FIRST_LINE,
    KEPT_S,
    LINED,
    LINED_BITS,
    LINED_MASK,
    LINED_ONE,
    LINED_SHIFT,
    NEVER,
    NUMBER_MASK,
    NUMBER_SHIFT,
    RECORD_MASK,
    RECORD_SIZE,
    RECORDS,
    ROW_MASK,
    ROW_SHIFT,
    ROWS,
    SECOND_LINE,
    SHARED,
    TAKEN,
    VALUE,
    VERSION_SHIFT,
    WRITER,
    WRITES,
)
from limpet.stores.channels.layout import CLAIMED, LINE, SLEEP_US
from limpet.stores.channels.waiting import Waiting, still_us

assert RECORDS + 2 * RECORD_SIZE <= LINE


class Holders(Channel):
    """A table of up to `limit` shared holds, or one exclusive one."""

    def __init__(
        self,
        manager: Any,
        name: str,
        parent: Any = None,
        *,
        kind: str,
        limit: int,
        first: int = -1,
        **parameters: Any,
    ) -> None:
        """`first`: the line whose clients go first; -1: none."""
        rows = manager.pool.parameters.clients
        super().__init__(manager, name, parent, size=ROWS + rows * LINE, kind=kind, **parameters)
        self.limit = limit
        self.first = first
        remote = self.pool.parameters.multi_host
        self.shared = Waiting(self.endpoint, self.address + FIRST_LINE, remote)
        self.exclusive = Waiting(self.endpoint, self.address + SECOND_LINE, remote)
        self.known = False
        """Whether the next five are the table after our last change, or look."""
        self.word = 0
        self.state = 0
        self.before = 0
        """The word `held` of the row that the last change changes, before it and after it."""
        self.after = 0
        self.mine = 0
        """The word `held` of our row, after the last change."""
        self.wanted = 0
        self.wanted_mine = 0
        """The word, and that of our row, after the change that we tried last."""
        self.taking = False
        """`_take` has tried a change, and `obtain` has not noted it yet."""
        self.record = array("Q", [0, 0])
        self.all_seats = array("Q", [0] * rows)
        self.lined = array("Q", [0, 0])
        """How many threads of this process are in the lines."""
        self.heirs: set[int] = set()
        """Threads of this process whose last hold was a dead one's."""
        self.whose: Callable[[], int] = get_ident
        """The number of the thread that runs; of the task, in an event loop (aio.py)."""
        self.open_rows(rows)

    @property
    def inherited(self) -> bool:
        """For a thread that holds it: whether what it took last was held by a process that died."""
        return self.whose() in self.heirs

    # ---- the table, in an operation -------------------------------------------------------------

    def joined(self) -> None:
        """Our row is ours: give back what a dead participant has left in it."""
        self.known = False
        self.lined[SHARED] = self.lined[EXCLUSIVE] = 0
        self.heirs = set()
        if self.endpoint.load(self.seats + 8 * self.own_row) & CLAIMED:
            self.give_back(self.own_row)

    def read_table(self) -> None:
        """Read the table. Raises StoreCorrupt."""
        endpoint, record = self.endpoint, self.record
        ticket = endpoint.post_load(self.address)
        endpoint.wait()
        word = endpoint.result(ticket)
        while True:
            index = word & RECORD_MASK
            row = word >> ROW_SHIFT & ROW_MASK
            if index >> 1 >= self.rows or row >= self.rows:
                raise StoreCorrupt(
                    f"{self.name!r} of {self.pool.url} has a word that names no row: memory was "
                    "damaged; remove it, and make it anew"
                )
            at = self._at(index >> 1) + RECORDS + (index & 1) * RECORD_SIZE
            endpoint.post_read(at, record, 2)
            held = endpoint.post_load(self._at(row))
            own = endpoint.post_load(self._at(self.own_row))
            # ORDER: last: the others belong to this word if it is still the same.
            ticket = endpoint.post_load(self.address)
            endpoint.wait()
            seen = endpoint.result(ticket)
            if seen == word:
                break
            word = seen
        self.word = word
        self.state = record[0]
        self.before = endpoint.result(held)
        self.after = (word >> NUMBER_SHIFT & VALUE) << VERSION_SHIFT | record[1] & VALUE
        self.mine = self.after if row == self.own_row else endpoint.result(own)
        self.known = True

    def _at(self, row: int) -> int:
        """Address of a row."""
        return self.address + ROWS + row * LINE

    def value(self, row: int) -> int:
        """The word `held` of a row, as of the last `read`."""
        if row == self.word >> ROW_SHIFT & ROW_MASK:
            return self.after
        if row == self.own_row:
            return self.mine
        return self.endpoint.load(self._at(row))

    def commit(self, row: int, held: int, value: int, state: int) -> bool:
        """Change the state, and the value of a row, whose word was `held`; False: another change
        came first, or may have."""
        endpoint, record, own = self.endpoint, self.record, self.own_row
        index = own << 1
        if self.word & RECORD_MASK == index:
            index += 1
        number = (self.word >> NUMBER_SHIFT) + 1 & NUMBER_MASK
        after = (number & VALUE) << VERSION_SHIFT | value
        word = number << NUMBER_SHIFT | row << ROW_SHIFT | index
        self.wanted = word
        self.wanted_mine = after if row == own else NEVER
        self.known = False
        if self.before != self.after:
            # ORDER: the row of the last change before the word, which then names it no more.
            endpoint.post_cas(self._at(self.word >> ROW_SHIFT & ROW_MASK), self.before, self.after)
        record[0] = state
        record[1] = value
        # ORDER: the record before the word that names it.
        endpoint.post_write(self._at(own) + RECORDS + (index & 1) * RECORD_SIZE, record, 2)
        # LINEARIZES: the change, of all that it changes.
        # CRASH(held): a dead participant's row; the next client that looks gives back what it held.
        ticket = endpoint.post_cas(self.address, self.word, word)
        endpoint.wait()
        if endpoint.result(ticket) != self.word:
            return False
        self.word = word
        self.state = state
        self.before = held
        self.after = after
        if row == own:
            self.mine = after
        self.known = True
        return True

    def give_back(self, row: int) -> bool:
        """Give back what is held in a row; whether that was anything."""
        while True:
            self.read_table()
            seat = self.endpoint.load(self.seats + 8 * row)
            held = self.value(row)
            value = held & VALUE
            if not value or (row != self.own_row and not seat & CLAIMED and self.lives(seat)):
                return False
            if self.commit(row, held, 0, self._without(value)):
                self._call()
                return True

    def _without(self, value: int) -> int:
        """The state when what a dead process held is free again."""
        state = self.state
        taken = state & TAKEN
        # Below 0, modulo 2^32, if more permits were released than taken: then none comes back.
        back = value & COUNT
        if taken > TAKEN >> 1:
            back = 0
        elif back > taken:
            back = taken
        state -= back
        if value & WRITES:
            state &= ~WRITER
        elif self.first >= 0:
            back = 0  # readers change nothing
        died = (state >> DIED_SHIFT) + (1 if value & WRITES else back)
        state = state & ~DIED | (died if died < DIED_MAX else DIED_MAX) * DIED_ONE
        for line in range(2):
            if value & LINED << line:
                state -= LINED_ONE << line * LINED_BITS
        return state

    def bury(self) -> bool:
        """Give back what dead processes held; whether that was anything."""
        endpoint, seats = self.endpoint, self.all_seats
        endpoint.post_read(self.seats, seats, self.rows)
        endpoint.wait()
        found = False
        for row in range(self.rows):
            seat = seats[row]
            if (
                seat
                and row != self.own_row
                and (seat & CLAIMED or not self.lives(seat))
                and self.give_back(row)
            ):
                found = True
        return found

    # ---- taking ---------------------------------------------------------------------------------

    def _look(self, line: int, again: bool, lines_up: bool) -> bool:
        """Take, if that is possible; whether it was. `again`: also before clients of the other
        line. `lines_up`: else have our row LINED."""
        looked = False
        flag = LINED << line
        while True:
            if not self.known:
                self.read_table()
                looked = True
            other = self.state >> LINED_SHIFT + (1 - line) * LINED_BITS & LINED_MASK
            if self._fits(line) and (again or self.first != 1 - line or not other):
                if self._take(line):
                    return True
            elif not looked:
                self.known = False
            elif not lines_up or self.mine & flag:
                return False
            else:
                # ORDER: if the state is another one by now, the change fails, and we look again.
                state = self.state + (LINED_ONE << line * LINED_BITS)
                if self.commit(self.own_row, self.mine, self.mine & VALUE | flag, state):
                    return False

    def _fits(self, line: int) -> bool:
        """Whether the state lets a client of this line in."""
        taken = self.state & TAKEN
        if self.state & WRITER:
            return False
        if line == EXCLUSIVE:
            return taken == 0
        return taken > TAKEN >> 1 or taken < self.limit

    def _take(self, line: int) -> bool:
        """Take what fits; False: another change came first."""
        state, value = self.state, self.mine & VALUE
        died = state >> DIED_SHIFT
        if line == EXCLUSIVE:
            value |= WRITES
            state = state & ~DIED | WRITER
        else:
            if value & COUNT < COUNT:
                value += 1
            state = state & ~TAKEN | state + 1 & TAKEN
            if died and self.first < 0:
                state -= DIED_ONE
        self.taking = True
        self.taking = self.commit(self.own_row, self.mine, value, state)
        if not self.taking:
            return False
        if died:
            self.heirs.add(self.whose())
        elif self.heirs:
            self.heirs.discard(self.whose())
        self._call()
        return True

    def _call(self) -> None:
        """After a change: wake those that it lets go on."""
        state = self.state
        shared = state >> LINED_SHIFT & LINED_MASK
        exclusive = state >> LINED_SHIFT + LINED_BITS & LINED_MASK
        if exclusive and self._fits(EXCLUSIVE) and not (self.first == SHARED and shared):
            self.exclusive.wake_one()
        if shared and self._fits(SHARED) and not (self.first == EXCLUSIVE and exclusive):
            if self.first < 0:
                self.shared.wake_one()
            else:
                self.shared.wake()

    def obtain(self, line: int, again: bool, deadline: float | None) -> bool:
        """Take, and wait for it until the deadline; whether it was taken. `again`: also before
        clients of the other line, which would wait for us.

        Raises ChannelRemoved, NodeFailed, and exceptions of signal handlers: it is not held then.
        """
        waiting = self.exclusive if line == EXCLUSIVE else self.shared
        taken = lined = sleepy = done = False
        looks = token = 0
        free_s = 0.0
        try:
            while True:
                still = SLEEP_US if deadline is None else still_us(deadline)
                self.enter()
                try:
                    self.row()
                    if sleepy:
                        if not lined:
                            lined = True
                            self.lined[line] += 1
                        token = waiting.prepare()
                    taken = self._look(line, again, lined)
                    if not taken and (lined or not still) and self.bury():
                        taken = self._look(line, again, lined)
                    free = self.first == 1 - line and self._fits(EXCLUSIVE)
                    self.taking = False
                finally:
                    if self.taking:
                        taken = self._was_taken()
                    self.leave()
                if taken or not still:
                    break
                if token:
                    now = self.membership.now()
                    if not free or not free_s:
                        free_s = now
                    elif now - free_s > KEPT_S:
                        self.pass_over(1 - line)
                        free_s = 0.0
                    waiting.sleep(token, still)
                else:
                    looks += 1
                    sleepy = not waiting.spin(looks)
            if lined:
                self.leave_line(line)
            done = True
        finally:
            if not done:
                self._undo(line, lined, taken)
        return taken

    def _was_taken(self) -> bool:
        """A signal handler has cut `_take` off: whether its change has happened."""
        self.taking = False
        self.read_table()
        return self.word == self.wanted or self.mine == self.wanted_mine

    def _undo(self, line: int, lined: bool, taken: bool) -> None:
        """`obtain` was cut off: give back what it has taken, and leave the line."""
        try:
            if taken:
                self.enter()
                try:
                    self.give(line, 1)
                finally:
                    self.leave()
        finally:
            if lined:
                self.leave_line(line)

    def enter_line(self, line: int) -> None:
        """A task of an event loop begins to wait; as `obtain`, which has the loop of a thread."""
        self.enter()
        try:
            self.row()
            self.lined[line] += 1
        finally:
            self.leave()

    def look_in_line(self, line: int, again: bool) -> int:
        """One look of a task that is in the line, after `Waiting.prepare`; 1: it has taken; 0: it
        has not; -1: nor has a writer or reader, and it lets clients of the other line go first."""
        taken = whole = False
        self.enter()
        try:
            try:
                self.row()
                taken = self._look(line, again, True)
                if not taken and self.bury():
                    taken = self._look(line, again, True)
                free = not taken and self.first == 1 - line and self._fits(EXCLUSIVE)
                self.taking = False
                whole = True
            finally:
                if self.taking:
                    taken = self._was_taken()
                if taken and not whole:
                    self.give(line, 1)
        finally:
            self.leave()
        return 1 if taken else -1 if free else 0

    def leave_line(self, line: int) -> None:
        """A thread, or task, leaves the line, and the process with its last one."""
        self.enter()
        try:
            self.row()
            if self.lined[line]:
                self.lined[line] -= 1
            if not self.lined[line]:
                self._unline(self.own_row, line)
        finally:
            self.leave()

    def _unline(self, row: int, line: int) -> None:
        """Take a row out of a line. In an operation."""
        flag = LINED << line
        done = False
        while not done:
            if not self.known:
                self.read_table()
            held = self.value(row)
            state = self.state - (LINED_ONE << line * LINED_BITS)
            done = not held & flag
            if not done and self.commit(row, held, held & VALUE & ~flag, state):
                self._call()
                done = True

    def pass_over(self, line: int) -> None:
        """Take all rows out of a line: their threads do not run."""
        self.enter()
        try:
            self.row()
            for row in range(self.rows):
                self._unline(row, line)
        finally:
            self.leave()

    # ---- giving back ----------------------------------------------------------------------------

    def give(self, line: int, count: int) -> bool:
        """Give back so many of our holds; False: we do not have these. In an operation."""
        looked = False
        while True:
            if not self.known:
                self.read_table()
                looked = True
            state, value = self.state, self.mine & VALUE
            if line == EXCLUSIVE:
                has = value & WRITES != 0
                value &= ~WRITES
                state &= ~WRITER
            else:
                has = value & COUNT >= count
                value -= count
                state = state & ~TAKEN | state - count & TAKEN
            if has:
                if self.commit(self.own_row, self.mine, value, state):
                    self._call()
                    return True
            elif looked:
                return False
            else:
                self.known = False

    def give_surely(self, line: int, count: int) -> bool:
        """As `give`; a signal handler that raises in it does so when they are given back."""
        if not self.known:
            self.read_table()
        held = self.mine & (COUNT | WRITES)
        done = False
        try:
            has = self.give(line, count)
            done = True
        finally:
            if not done:
                self.read_table()
                # Only this process changes these bits, and no other thread of it is in here.
                if self.mine & (COUNT | WRITES) == held:
                    self.give(line, count)
        return has

    def resign(self) -> None:
        """Stop being a participant; what this process holds is given back as after its death."""
        self.enter()
        try:
            self.row()  # which another handle of this process may have joined
            self.give_back(self.own_row)
        finally:
            self.leave()
        super().resign()

    # ---- looking --------------------------------------------------------------------------------

    def parts(self) -> dict[str, int]:
        """The process of each client that holds something or waits, and its row's value."""
        found = {}
        with self.operation():
            self.row()
            self.read_table()
            for row, ident in self.participants().items():
                value = self.value(row) & VALUE
                place = self.membership.place(ident) if value else None
                if value:
                    name = self.membership.process(*place) if place else "a dead process"
                    found[name] = value
        return found

    def __repr__(self) -> str:
        said = [self.title().removesuffix(">")]
        # Of what is removed, or lost, the name is known.
        with contextlib.suppress(LimpetError):
            parts = self.parts()
            for process, value in parts.items():
                if value & WRITES:
                    said.append(f"{process} writes")
                elif value & COUNT:
                    said.append(f"{process} holds {value & COUNT}")
            waiting = [process for process, value in parts.items() if value & (LINED | LINED << 1)]
            if waiting:
                said.append(f"waiting: {' and '.join(waiting)}")
        return ", ".join(said) + ">"
