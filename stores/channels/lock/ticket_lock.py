"""The ticket lock (LOCO section 5.4), which no dead or stopped process can jam.

In the paper a process draws a ticket by fetch-and-add and waits until that number is served. A
process that dies with a ticket blocks all others (trap L1), and one that dies between the draw and
the word that names it leaves a ticket without an owner. Here mutual exclusion and order are
separate:

Lock word, at byte 0: the holder
    bits 0-47   holder     client id, never used again; 0: free
    bit 48      QUEUED     there may be a queue: the holder looks when it releases
    bit 49      HANDOFF    only the head of the queue may take the lock
    bit 50      INHERITED  the last holder died, so the protected data may be half changed
Behind it, from byte 8 on, the queue: the head, and the tickets in their places (ticket_queue.py).

To take the lock is one CAS of the lock word, from free to the own id: one round trip, and no fewer,
as another client may have it. To release it is another CAS, in the background: no client waits for
it, since nothing that the holder does next depends on it, and verbs on the word come in the order
in which they were posted. Its answer says whether a client is to be woken. A client that finds the
lock held takes the first free ticket, by one CAS of its place, so that a ticket and
its owner appear together. The head of the queue sleeps until a release wakes it; it takes the lock
before it counts the head up. Only the head is woken.

Overtaking. A newcomer may take a free lock though others queue: a running client does not wait for
one that has to be woken first. A head that was woken and finds the lock held sets HANDOFF, so
others overtake it during one sleep only. Without `overtaking` the order is that of the tickets.

A waiter is not a holder, and delays no client by a lease (trap G11): HANDOFF serves only a head
that runs. A waiting process that finds the lock free, and kept for the head, for TURN_S passes the
head over. A running head sets HANDOFF after a sleep. If HANDOFF is missing for TURN_S and the
longest sleep, while the lock was free or changed its holder, a waiting process passes the head
over, too.

Why it is correct: the lock word alone excludes; it goes from free to an id, and from that id to
free, by the holder's CAS or by that of a client that has seen that the holder is dead; and ids do
not come again. The queue only names the waiting clients: whatever its state, no two clients hold
the lock, and every waiting client looks again after SLEEP_US or a few times that.

A kill leaves behind: a lock word with a dead holder, and tickets of dead owners. A waiter finds
them when it has slept in vain, and frees the lock, INHERITED, or counts the head up. A ticket that
was given back (a timeout, Ctrl-C) is passed over, too, or used again by its owner's next wait. A
ticket whose owner stands still, while the lock is free, is passed over after TURN_S; the owner
draws another. A holder that stands still keeps the lock; a timeout ends the wait for it.
"""

from __future__ import annotations

from typing import Any

from limpet.shm.endpoint.states import DISOWNED, former
from limpet.shm.errors import AddressError, ClientError, ParameterError, PoolClosed
from limpet.stores.channels.lock.ticket_layout import (
    BEHIND_MAX,
    FULL_ATTEMPT,
    HALF,
    HANDOFF,
    HOLDER,
    INHERITED,
    PLACES,
    QUEUED,
)
from limpet.stores.channels.lock.ticket_queue import TicketQueue
from limpet.stores.channels.waiting import spin

LOOK = 0
SPIN = 1
NO_PLACE = 2
DOZE = 3
TAKEN = 4
GIVEN_UP = 5
"""States of a wait."""

WAITS = 6
PASSED = 7
"""Results of a look, beside TAKEN."""
FULL_US = 1000
"""So long sleeps a wait that finds no place."""


def ticket_lock_size(places: int) -> int:
    """Bytes that a lock with so many places takes; zeros are a lock that is free."""
    if places < 2 or places & (places - 1):
        raise ParameterError(f"a lock has a power of two of places, at least 2, not {places}")
    return PLACES + 8 * places


class TicketLock:
    """The lock at `address`, for the threads of this process, in the operations of `channel`.

    `places`: a power of two, at least the number of clients that may wait at one time; clients that
    find no place wait without order. `size`: bytes that it takes. `inherited`, for the holder:
    whether the last holder died with it.
    """

    queue_class: type[TicketQueue] = TicketQueue
    """The class of its queue."""

    def __init__(self, channel: Any, address: int, places: int, overtaking: bool = True) -> None:
        self.size = ticket_lock_size(places)
        self.channel = channel
        self.client = channel.client
        self.endpoint = channel.endpoint
        self.address = address
        self.places = places
        self.inherited = False
        self.barred = HANDOFF if overtaking else HANDOFF | QUEUED
        """A newcomer may take the lock unless it has one of these."""
        self.queue = self.queue_class(channel, address, places)

    def replaced(self, node: int) -> None:
        """`node` has new memory: a lock that was there raises NodeFailed, also in a wait."""
        self.address = self.queue.address = former(self.address, node)

    def acquire(self, timeout: float = -1.0) -> bool:
        """Take the lock; False if it was not free for `timeout` seconds (below 0: wait for ever).

        1 round trip when it is free, and `release` none. Not within an operation. Raises the errors
        of `channel.enter`, and exceptions of signal handlers: the lock is not held then.
        """
        wait = TicketWait(self, timeout)
        try:
            return wait.try_at_once(timeout == 0) or (timeout != 0 and wait.run())
        except BaseException:
            wait.give_up()
            raise

    def release(self) -> None:
        """Release the lock. Raises RuntimeError if this process does not hold it."""
        self.channel.enter()
        try:
            self.drop()
        finally:
            self.channel.leave()

    def locked(self) -> bool:
        """Whether a client holds the lock, or has died holding it."""
        return self.holder() != 0

    def holder(self) -> int:
        """The client id of the holder, also of one that has died with the lock; 0: it is free."""
        self.channel.enter()
        try:
            ticket = self.endpoint.post_load(self.address)
            self.endpoint.wait()
            return self.endpoint.result(ticket) & HOLDER
        finally:
            self.channel.leave()

    # ---- the lock word, within an operation ---------------------------------------------------

    def is_ours(self) -> bool:
        """Whether this process holds the lock."""
        return self.endpoint.load(self.address) & HOLDER == self.client.ident

    def grab(self) -> bool:
        """Take the lock if it is free and no waiting client comes first; 1 round trip."""
        # LINEARIZES: free, and no client has waited.
        ticket = self.endpoint.post_cas(self.address, 0, self.client.ident)
        self.endpoint.wait()
        return self.grabbed(self.endpoint.result(ticket))

    def grabbed(self, word: int) -> bool:
        """As `grab`, after the CAS of the lock word from 0 to our id, which found this word."""
        if word == 0:
            # CRASH(holding): the id of a dead client; a waiting client frees the lock, INHERITED.
            self.inherited = False
            return True
        return self._take(False)

    def drop(self) -> None:
        """As `release`."""
        endpoint, mine = self.endpoint, self.client.ident
        scope = endpoint.background(True)
        # LINEARIZES: free.
        ticket = endpoint.post_cas(self.address, mine, 0)
        endpoint.wait()
        self.dropped(endpoint.result(ticket))
        endpoint.background(scope)

    def dropped(self, seen: int) -> None:
        """As `drop`, after the CAS of the lock word from our id to 0, which found this word."""
        endpoint, mine = self.endpoint, self.client.ident
        if seen != mine:
            word = mine
            while seen != word:
                word = seen
                if word & HOLDER != mine:
                    if endpoint.load(self.client.slot) != self.client.word:
                        raise ClientError(DISOWNED)
                    raise RuntimeError("a lock was released that this process does not hold")
                seen = endpoint.cas(self.address, word, word & ~HOLDER)
            # ORDER: free before we look at the queue; a waiter looks again before it sleeps.
            # CRASH(released): no client is woken; the head finds the lock free after its sleep.
            if self.queue.wake():
                endpoint.cas(self.address, word & ~HOLDER, 0)

    def _take(self, head: bool) -> bool:
        """Take the lock if it is free, as the head of the queue or as a newcomer."""
        while True:
            word = self.endpoint.load(self.address)
            if word & HOLDER or (not head and word & self.barred):
                return False
            flags = QUEUED if head else word & QUEUED
            # LINEARIZES: free.
            if self.endpoint.cas(self.address, word, self.client.ident | flags) == word:
                self.inherited = word & INHERITED != 0
                return True

    def seize(self) -> bool:
        """Take the lock if only dead clients have it, or queue for it."""
        self._bury()
        head = self.queue.head()
        while self.queue.pass_over(head, True):
            head += 1
        if self.queue.wake():
            word = self.endpoint.load(self.address)
            if not word & HOLDER:
                self.endpoint.cas(self.address, word, word & INHERITED)
        return self._take(False)

    def _bury(self) -> None:
        """Free the lock if its holder is dead."""
        word = self.endpoint.load(self.address)
        if word & HOLDER and not self.channel.lives(word & HOLDER):
            # CRASH(buried): free and INHERITED, until a client takes it.
            self.endpoint.cas(self.address, word, (word & ~HOLDER) | INHERITED)

    # ---- the turn of a ticket, within an operation ----------------------------------------------

    def check_turn(self, ticket: int, idle: bool) -> int:
        """Whether it is the turn of our ticket (0: we have none): TAKEN; WAITS; or PASSED over.

        `idle`: we have slept in vain, so look for dead clients.
        """
        if idle:
            self._bury()
        first = head = self.queue.head()
        while head != ticket and self.queue.pass_over(head, idle):
            head += 1
        if head == ticket and self._take(True):
            # CRASH(unserved): the holder's own ticket is the head; it is passed over with the lock.
            self.queue.count_up(ticket)
            return TAKEN
        if head != first and head != ticket:
            self.queue.wake()
        if not ticket:
            return TAKEN if self._take(False) else WAITS
        return PASSED if head > ticket else WAITS


class TicketWait:
    """One thread's wait for a ticket lock: a small state machine.

        LOOK      in an operation: take a ticket if we have none, look whether it is our turn
                    -> TAKEN, GIVEN_UP; LOOK once more: the ticket was passed over, or the time is
                    over; SPIN: we are the head; NO_PLACE: we have no ticket; DOZE
        SPIN      look for a moment whether the lock comes free    -> LOOK, DOZE
        NO_PLACE  pause for 1 ms                                   -> LOOK
        DOZE      say in our place that we sleep, look again, sleep until we are woken
                    -> LOOK
        TAKEN, GIVEN_UP   the end

    After a sleep in vain the next look is `idle`: it looks for dead clients. A waiter that gives up
    has looked once whether the holder or the head is dead.

    Of what a signal handler raises, where this is not compiled, between any two steps: the lock was
    taken within an operation in which it was not ours before, so it is given back within it; and
    after the operation, as it is noted that it was `taken`. A ticket that was drawn just then is
    passed over by others, as that of a client that does not run.
    """

    def __init__(self, lock: TicketLock, timeout: float) -> None:
        """`timeout`: in seconds; below 0: for ever."""
        self.lock = lock
        self.queue = lock.queue
        self.channel = lock.channel
        self.endpoint = lock.endpoint
        self.now = lock.channel.membership.now
        self.timed = timeout > 0
        self.end = self.now() + timeout if timeout > 0 else 0.0
        self.left = 1.0
        """Seconds until the end, at our last look."""
        self.ticket = 0
        """Our ticket; 0: none."""
        self.behind = 0
        """How many tickets are before ours, at our last look."""
        self.flags = QUEUED
        """Bits that the head sets in the lock word: others overtake it in its first sleep only."""
        self.idle = False
        self.taken = False
        self.apart = False
        """Whether this process had not the lock when the operation began that may take it."""

    def try_at_once(self, seizes: bool) -> bool:
        """Take the lock if it is free, or, if it `seizes` it, only the dead have it."""
        self.apart = False
        self.channel.enter()
        try:
            self.apart = not self.lock.is_ours()
            self.taken = self.lock.grab() or (seizes and self.lock.seize())
        except BaseException:
            self._undo()
            raise
        finally:
            self.channel.leave()
        return self.taken

    def run(self) -> bool:
        """Wait; whether the lock was taken. Raises as `TicketLock.acquire` does: then `give_up`."""
        if not self.lock.barred & QUEUED and self._barge():
            return True
        state = LOOK
        while state != TAKEN and state != GIVEN_UP:
            state = self._step(state)
        if state == GIVEN_UP:
            self.give_up()
        return state == TAKEN

    def look(self, slept: bool, idle: bool) -> tuple[int, int, int] | None:
        """A look of a wait that sleeps elsewhere (task_waits.py), after a sleep or not, which was
        `idle` or not. None: the lock is taken; else where to sleep: place, value and microseconds.
        After an error, or in place of the next look: `give_up`."""
        self.idle = idle
        if slept and self.behind == 0:
            self.flags = QUEUED | HANDOFF
        while True:
            state = self._check_turn()
            if state == TAKEN:
                return None
            if state == NO_PLACE:
                return 0, 0, FULL_US
            if state != LOOK:
                self.channel.enter()
                try:
                    asleep = self.queue.doze(self.ticket, self.flags)
                finally:
                    self.channel.leave()
                if asleep:
                    return self.queue.place(self.ticket), asleep & HALF, self._patience_us()

    def _undo(self) -> None:
        """A step was cut off, within its operation: give the lock back, if we have just taken it,
        and not another thread of this process before."""
        self.taken = False
        if self.apart and self.lock.is_ours():
            self.lock.drop()

    def give_up(self) -> None:
        """Leave the queue, and give back the lock. Outside of operations."""
        # ORDER: forgotten before it is given back: then it may be another thread's.
        ticket, self.ticket = self.ticket, 0
        try:
            if self.taken:
                self.taken = False
                self.lock.release()
        finally:
            if ticket:
                self.queue.give_back(ticket)

    def _step(self, state: int) -> int:
        """Make the step of this state; the next state."""
        if state == LOOK:
            return self._check_turn()
        if state == SPIN:
            return LOOK if self._spin() else DOZE
        if state == NO_PLACE:
            self.endpoint.pause(FULL_ATTEMPT)
            self.idle = True
            return LOOK
        self._doze()
        return LOOK

    def _check_turn(self) -> int:
        self.apart = False
        self.channel.enter()
        try:
            self.apart = not self.lock.is_ours()
            if not self.ticket:
                self.ticket, self.flags = self.queue.draw(), QUEUED
                if self.lock.barred & QUEUED:
                    self.endpoint.fetch_or(self.lock.address, QUEUED)
            found = self.lock.check_turn(self.ticket, self.idle)
            self.taken = found == TAKEN
            self.behind = 0
            if found == WAITS and self.ticket:
                self.behind = self.ticket - self.queue.head()
                if self.flags != QUEUED and self.behind == 0:
                    self.endpoint.fetch_or(self.lock.address, self.flags)
        except BaseException:
            self._undo()
            raise
        finally:
            self.channel.leave()
        if found == TAKEN:
            return TAKEN
        if found == PASSED:
            self.ticket = 0
            self.idle = False
            return LOOK
        self.left = self.end - self.now() if self.timed else 1.0
        if self.left <= 0:
            if self.idle:
                return GIVEN_UP
            self.idle = True
            return LOOK
        self.idle = False
        if not self.ticket:
            return NO_PLACE
        return SPIN if self.behind == 0 else DOZE

    def _doze(self) -> None:
        """Sleep until we are woken, unless it is our turn."""
        self.channel.enter()
        try:
            asleep = self.queue.doze(self.ticket, self.flags)
        finally:
            self.channel.leave()
        if asleep:
            place = self.queue.place(self.ticket)
            self.idle = not self.endpoint.futex_wait(place, asleep & HALF, self._patience_us())
            if self.behind == 0:
                self.flags = QUEUED | HANDOFF

    def _patience_us(self) -> int:
        """How long to sleep: the next two in line notice a death soonest."""
        times = min(max(self.behind, 1), BEHIND_MAX)
        return int(min(self.queue.sleep_us * times, self.left * 1e6 + 1))

    def _barge(self) -> bool:
        """Take the lock if it becomes free within a moment, before we queue."""
        look = 1
        try:
            while spin(self.endpoint, look):
                look += 1
                if not self.endpoint.load(self.lock.address) & (HOLDER | HANDOFF):
                    self.apart = False
                    self.channel.enter()
                    try:
                        self.apart = not self.lock.is_ours()
                        self.taken = self.lock._take(False)
                    except BaseException:
                        self._undo()
                        raise
                    finally:
                        self.channel.leave()
                    if self.taken:
                        return True
        except AddressError as error:
            raise PoolClosed("the pool was closed while this thread waited") from error
        return False

    def _spin(self) -> bool:
        """Whether the lock becomes free within a moment."""
        look = 1
        while self.endpoint.load(self.lock.address) & HOLDER:
            if not spin(self.endpoint, look):
                return False
            look += 1
        return True
