"""The ticket lock (LOCO section 5.4), which no dead or stopped process can jam.

In the paper a process draws a ticket by fetch-and-add and waits until that number is served; who
dies with a ticket blocks all others (trap L1), and who draws one and dies before it has said whose
it is leaves a ticket that nobody can account for. Here mutual exclusion and order are kept apart:

Lock word, at byte 0: who holds the lock
    bits 0-47   holder     client id, never used again; 0: free
    bit 48      QUEUED     there may be a queue: who releases looks
    bit 49      HANDOFF    only the head of the queue may take the lock
    bit 50      INHERITED  the last holder died, so what the lock protects may be half done
Head, at byte 8: how many tickets are over; the next one, counted from 1, is the head of the queue
Places, from byte 16 on, a power of two of them. Ticket t lies in place t % places:
    bits 0-2    state      WAITING, SLEEPING (in the kernel), GIVEN_BACK
    bits 3-14   slot       the owner's, in the control segment
    bits 15-34  life       the low bits of its incarnation
    bits 35-63  round      t / places + 1, modulo 2**29: whether ticket t is taken

To take the lock is one CAS of the lock word, from free to one's id; to release it another. A client
that finds it held takes the first ticket that is free, by one CAS of its place, so that a ticket
and its owner become known together. The head of the queue sleeps until a release wakes it; it takes
the lock before it counts the head up. Only the head is woken.

Overtaking. A newcomer may take a lock that is free, though others queue: one that runs does not
wait for one that has to be woken first. A head that was woken and finds the lock held sets HANDOFF,
so it is overtaken by those of one sleep only. Without `overtaking` the order is that of the
tickets.

A waiter is not a holder, and delays nobody by a lease (trap G11): HANDOFF is a favour to a head
that runs. A waiting process that finds the lock free, and kept for the head, for TURN_S passes the
head over. A head that runs sets HANDOFF after a sleep; if there is none for TURN_S and the longest
sleep, while the lock was free or changed hands, a waiting process passes the head over, too.

Why it is correct: the lock word alone excludes; it goes from free to an id, and from that id to
free, by the holder's CAS or by that of somebody who has seen that this client is dead; and ids do
not come again. The queue says only who waits for what: whatever becomes of it, nobody holds a lock
that another one holds, and everybody looks again after SLEEP_US or a few times that.

A kill leaves behind: a lock word with a dead holder, and tickets of dead owners. A waiter finds
them when it has slept in vain, and frees the lock, INHERITED, or counts the head up. A ticket
that was given back (a timeout, Ctrl-C) is passed over, too, or taken up again by its owner's next
wait. One whose owner stands still, while the lock is free, is passed over after TURN_S; it draws
another. A holder that stands still keeps the lock: who cannot wait for that gives a timeout.

Numbers that wrap: a ticket's owner is taken for alive if its slot has a client with the same
`life`, some multiple of 2**20 processes later; it is passed over after TURN_S. A round is taken
for another if somebody was stopped for a multiple of 2**29 rounds between two verbs; then one
ticket is passed over, or waited for by nobody, which again is over after TURN_S.
"""

from __future__ import annotations

from typing import Any

from limpet.shm.endpoint.layout import CLIENT_SLOTS, SLOT_SIZE
from limpet.shm.endpoint.slots import INCARNATION_BITS, INCARNATION_MASK
from limpet.shm.endpoint.states import former
from limpet.shm.errors import AddressError, ParameterError, PoolClosed
from limpet.stores.channels.layout import POLL_US, SLEEP_US
from limpet.stores.channels.ticket_layout import (
    BEHIND_MAX,
    FULL_ATTEMPT,
    GIVEN_BACK,
    HALF,
    HANDOFF,
    HEAD,
    HOLDER,
    INHERITED,
    LATER,
    LIFE_MASK,
    LIFE_SHIFT,
    PLACES,
    QUEUED,
    ROUND_MASK,
    ROUND_SHIFT,
    SLEEPING,
    SLOT_MASK,
    SLOT_SHIFT,
    STATE_MASK,
    TURN_S,
    WAITING,
)
from limpet.stores.channels.waiting import spin

WAIT = 0
TAKEN = 1
PASSED = 2


def ticket_lock_size(places: int) -> int:
    """Bytes that a lock with so many places takes; zeros are a lock that is free."""
    if places < 2 or places & (places - 1):
        raise ParameterError(f"a lock has a power of two of places, at least 2, not {places}")
    return PLACES + 8 * places


class TicketLock:
    """The lock at `address`, for the threads of this process, in the operations of `channel`.

    `places`: a power of two, at least as many as clients that may wait at one time; those who find
    no place wait without order. `size`: bytes that it takes. `inherited`, for the holder: whether
    the last one died holding it.
    """

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
        self.sleep_us = POLL_US if channel.pool.parameters.multi_host else SLEEP_US
        self.parked = 0
        """A ticket that we gave back, and may take up again."""
        self.turn_s = min(TURN_S, channel.membership.lease_s)
        self.head = 0
        self.head_s = 0.0
        """The head of the queue that we have waited for, and since when it has been that."""
        self.held_by = 0
        self.passed = False
        """The holder of the lock then, and whether that one has not held it all the time since."""
        self.kept = False
        self.kept_s = 0.0
        """Whether the lock was free and kept for it when we last looked, and since when."""

    def replaced(self, node: int) -> None:
        """`node` has other memory: what was there raises NodeFailed, also for who waits for it."""
        self.address = former(self.address, node)

    def acquire(self, timeout: float = -1.0) -> bool:
        """Take the lock; False if it was not to be had for `timeout` seconds (below 0: for ever).

        Two atomics with `release`, when it is free. Not within an operation. Raises what
        `channel.enter` raises, and what a signal handler raises: the lock is not held then.
        """
        self.channel.enter()
        try:
            if self.grab() or (timeout == 0 and self.seize()):
                return True
        finally:
            self.channel.leave()
        return timeout != 0 and self._wait(timeout)

    def release(self) -> None:
        """Let the next one have the lock. Raises RuntimeError if this process does not hold it."""
        self.channel.enter()
        try:
            self.drop()
        finally:
            self.channel.leave()

    def locked(self) -> bool:
        """Whether somebody holds the lock, or has died holding it."""
        return self.holder() != 0

    def holder(self) -> int:
        """The client id of who holds the lock, or has died holding it; 0: nobody."""
        self.channel.enter()
        try:
            return self.endpoint.load(self.address) & HOLDER
        finally:
            self.channel.leave()

    # ---- the lock word, within an operation ---------------------------------------------------

    def is_ours(self) -> bool:
        """Whether this process holds the lock."""
        return self.endpoint.load(self.address) & HOLDER == self.client.ident

    def grab(self) -> bool:
        """Take the lock if it is free and nobody comes first."""
        # LINEARIZES: free, and nobody has waited.
        if self.endpoint.cas(self.address, 0, self.client.ident) == 0:
            # CRASH(holding): the id of a dead client; who waits frees the lock, INHERITED.
            self.inherited = False
            return True
        return self._take(False)

    def drop(self) -> None:
        """As `release`."""
        endpoint, mine = self.endpoint, self.client.ident
        # LINEARIZES: free.
        seen = endpoint.cas(self.address, mine, 0)
        if seen != mine:
            word = mine
            while seen != word:
                word = seen
                if word & HOLDER != mine:
                    raise RuntimeError("a lock was released that this process does not hold")
                seen = endpoint.cas(self.address, word, word & ~HOLDER)
            # ORDER: free before we look at the queue; who queues looks again before it sleeps.
            # CRASH(released): nobody is woken; the head finds the lock free after its sleep.
            if self._wake():
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
        """Take the lock if only the dead have it, or queue for it."""
        self._bury()
        head = self.endpoint.load(self.address + HEAD) + 1
        while self._pass_over(head, True):
            head += 1
        if self._wake():
            word = self.endpoint.load(self.address)
            if not word & HOLDER:
                self.endpoint.cas(self.address, word, word & INHERITED)
        return self._take(False)

    def _bury(self) -> None:
        """Free the lock if its holder is dead."""
        word = self.endpoint.load(self.address)
        if word & HOLDER and not self.channel.lives(word & HOLDER):
            # CRASH(buried): free and INHERITED, until somebody takes it.
            self.endpoint.cas(self.address, word, (word & ~HOLDER) | INHERITED)

    # ---- the queue, within an operation -------------------------------------------------------

    def _place(self, ticket: int) -> int:
        """Address of a ticket's place."""
        return self.address + PLACES + 8 * (ticket & (self.places - 1))

    def _round(self, ticket: int) -> int:
        """What is in the place of a ticket that is taken, from ROUND_SHIFT on."""
        return ticket // self.places + 1 & ROUND_MASK

    def _mine(self, ticket: int, state: int) -> int:
        """The word of a ticket of ours."""
        ident = self.client.ident
        slot = ident >> INCARNATION_BITS
        life = ident & LIFE_MASK
        return self._round(ticket) << ROUND_SHIFT | life << LIFE_SHIFT | slot << SLOT_SHIFT | state

    def _draw(self) -> int:
        """Take a ticket; 0 if there is no place."""
        endpoint = self.endpoint
        ticket = endpoint.load(self.address + HEAD) + 1
        end = ticket + self.places
        parked = self.parked
        self.parked = 0
        if parked >= ticket:
            word = self._mine(parked, GIVEN_BACK)
            if endpoint.cas(self._place(parked), word, self._mine(parked, WAITING)) == word:
                return parked
        while ticket < end:
            place = self._place(ticket)
            word = endpoint.load(place)
            ahead = (word >> ROUND_SHIFT) - self._round(ticket) & ROUND_MASK
            if ahead < LATER:
                ticket += 1
            elif endpoint.cas(place, word, self._mine(ticket, WAITING)) == word:
                # CRASH(queued): a dead owner's ticket; whoever is behind it passes it over.
                return ticket
        return 0

    def _look(self, ticket: int, idle: bool) -> int:
        """What has become of our ticket (0: we have none): WAIT, TAKEN or PASSED.

        `idle`: we have slept in vain, so see to those who are dead.
        """
        if idle:
            self._bury()
        first = head = self.endpoint.load(self.address + HEAD) + 1
        while head != ticket and self._pass_over(head, idle):
            head += 1
        if head == ticket and self._take(True):
            # CRASH(unserved): the holder's own ticket is the head; it is passed over with the lock.
            self.endpoint.cas(self.address + HEAD, ticket - 1, ticket)
            return TAKEN
        if head != first and head != ticket:
            self._wake()
        if not ticket:
            return TAKEN if self._take(False) else WAIT
        return PASSED if head > ticket else WAIT

    def _pass_over(self, head: int, idle: bool) -> bool:
        """Count the head up if its ticket was given back or, if `idle`, nobody will use it."""
        word = self.endpoint.load(self._place(head))
        if word >> ROUND_SHIFT != self._round(head):
            return False
        if word & STATE_MASK != GIVEN_BACK and not (idle and self._forsaken(head, word)):
            return False
        self.endpoint.cas(self.address + HEAD, head - 1, head)
        return True

    def _forsaken(self, head: int, word: int) -> bool:
        """Whether the owner of the head is dead, or does not run though it could."""
        slot = word >> SLOT_SHIFT & SLOT_MASK
        there = self.endpoint.load(CLIENT_SLOTS + slot * SLOT_SIZE) & INCARNATION_MASK
        if (there ^ word >> LIFE_SHIFT) & LIFE_MASK or not self.channel.lives(
            slot << INCARNATION_BITS | there
        ):
            return True
        now = self.channel.membership.now()
        lock = self.endpoint.load(self.address)
        if self.head != head:
            self.head = head
            self.head_s = self.kept_s = now
            self.kept = self.passed = False
            self.held_by = lock & HOLDER
        self.passed = self.passed or self.held_by == 0 or lock & HOLDER != self.held_by
        if not lock & HANDOFF:
            self.kept = False
            patience_s = self.turn_s + self.sleep_us * BEHIND_MAX * 1e-6
            return self.passed and now - self.head_s >= patience_s
        if lock & HOLDER:
            self.kept = False
        elif not self.kept:
            self.kept = True
            self.kept_s = now
        return self.kept and now - self.kept_s >= self.turn_s

    def _wake(self) -> bool:
        """Wake the head of the queue if it sleeps; whether there is no queue."""
        endpoint = self.endpoint
        while True:
            head = endpoint.load(self.address + HEAD) + 1
            place = self._place(head)
            word = endpoint.load(place)
            if word >> ROUND_SHIFT != self._round(head):
                return True
            if word & STATE_MASK == GIVEN_BACK:
                endpoint.cas(self.address + HEAD, head - 1, head)
                continue
            if word & STATE_MASK == SLEEPING:
                awake = (word & ~STATE_MASK) | WAITING
                if endpoint.cas(place, word, awake) == word:
                    endpoint.futex_wake(place, 1)
            return False

    def _doze(self, ticket: int, flags: int) -> int:
        """Say that we are about to sleep; the word to sleep on, 0 if we had better look again."""
        endpoint = self.endpoint
        place, asleep = self._place(ticket), self._mine(ticket, SLEEPING)
        endpoint.cas(place, self._mine(ticket, WAITING), asleep)
        # ORDER: what we look at now was changed before who changed it looks at our place, or after.
        head = endpoint.load(self.address + HEAD) + 1
        if head > ticket or (
            head == ticket and not endpoint.fetch_or(self.address, flags) & HOLDER
        ):
            return 0
        return asleep

    # ---- waiting, outside of operations -------------------------------------------------------

    def _wait(self, timeout: float) -> bool:
        now = self.channel.membership.now
        end = now() + timeout if timeout > 0 else 0.0
        ticket, idle, flags = 0, False, QUEUED
        try:
            if not self.barred & QUEUED and self._barge():
                return True
        except AddressError as error:
            raise PoolClosed("the pool was closed while this thread waited") from error
        try:
            while True:
                asleep = behind = 0
                self.channel.enter()
                try:
                    if not ticket:
                        ticket, flags = self._draw(), QUEUED
                        if self.barred & QUEUED:
                            self.endpoint.fetch_or(self.address, QUEUED)
                    found = self._look(ticket, idle)
                    if found == WAIT and ticket:
                        behind = ticket - self.endpoint.load(self.address + HEAD) - 1
                        if flags != QUEUED and behind == 0:
                            self.endpoint.fetch_or(self.address, flags)
                finally:
                    self.channel.leave()
                if found == TAKEN:
                    return True
                if found == PASSED:
                    ticket = 0
                    idle = False
                    continue
                left = end - now() if timeout > 0 else 1.0
                if left <= 0 and idle:
                    break
                # A waiter that gives up has looked once whether the holder or the head is dead.
                idle = left <= 0
                if idle or (behind == 0 and ticket and self._spin()):
                    continue
                if not ticket:
                    self.endpoint.pause(FULL_ATTEMPT)
                    idle = True
                    continue
                self.channel.enter()
                try:
                    asleep = self._doze(ticket, flags)
                finally:
                    self.channel.leave()
                if asleep:
                    idle = not self.endpoint.futex_wait(
                        self._place(ticket), asleep & HALF, self._patience(behind, left)
                    )
                    if behind == 0:
                        flags = QUEUED | HANDOFF
        except BaseException:
            if ticket:
                self._give_back(ticket)
            raise
        if ticket:
            self._give_back(ticket)
        return False

    def _patience(self, behind: int, left: float) -> int:
        """How long to sleep, in us: the next two in line see at once who is dead."""
        times = min(max(behind, 1), BEHIND_MAX)
        return int(min(self.sleep_us * times, left * 1e6 + 1))

    def _barge(self) -> bool:
        """Take the lock if it comes free within a moment, before we queue."""
        look = 1
        while spin(self.endpoint, look):
            look += 1
            if not self.endpoint.load(self.address) & (HOLDER | HANDOFF):
                self.channel.enter()
                try:
                    if self._take(False):
                        return True
                finally:
                    self.channel.leave()
        return False

    def _spin(self) -> bool:
        """Whether the lock comes free within a moment."""
        look = 1
        while self.endpoint.load(self.address) & HOLDER:
            if not spin(self.endpoint, look):
                return False
            look += 1
        return True

    def _give_back(self, ticket: int) -> None:
        """Queue no longer; the ticket may be taken up by our next wait."""
        endpoint = self.endpoint
        self.channel.enter()
        try:
            place, given = self._place(ticket), self._mine(ticket, GIVEN_BACK)
            word = endpoint.load(place)
            while (word ^ given) & ~STATE_MASK == 0 and word != given:
                endpoint.cas(place, word, given)
                word = endpoint.load(place)
            # ORDER: given back before we look whether it is our turn; who made it so looks, too.
            # CRASH(given-back): the head was given back; whoever waits passes it over.
            if endpoint.load(self.address + HEAD) + 1 >= ticket:
                self._wake()
            else:
                self.parked = ticket
        finally:
            self.channel.leave()
