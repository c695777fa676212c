"""The queue of a ticket lock: tickets, in whose order waiting clients are served.

Head, at byte 8 of the lock: the number of tickets that are over; the next one, counted from 1, is
the head of the queue. Places, from byte 16 on, a power of two of them. Ticket t lies in place t %
places:
    bits 0-2    state      WAITING, SLEEPING (in the kernel), GIVEN_BACK
    bits 3-14   slot       the owner's, in the control segment
    bits 15-34  life       the low bits of its incarnation
    bits 35-63  round      t / places + 1, modulo 2**29: whether ticket t is taken

A client takes the first ticket that is free, by one CAS of its place, so that a ticket and its
owner appear together. A ticket only says that a client waits: the lock word alone excludes
(ticket_lock.py).

A kill leaves behind: tickets of dead owners; a client that waits passes them over when it has slept
in vain. A ticket that was given back is passed over, too, or used again by its owner's next wait.

Numbers that wrap: a ticket's owner is taken for alive if its slot has a client with the same
`life`, some multiple of 2**20 processes later; it is passed over after TURN_S. A round is taken for
another one if a client was stopped for a multiple of 2**29 rounds between two verbs; then one
ticket is passed over, or waited for in vain until TURN_S is over.
"""

from __future__ import annotations

from typing import Any

from limpet.shm.endpoint.layout import CLIENT_SLOTS, SLOT_SIZE
from limpet.shm.endpoint.slots import INCARNATION_BITS, INCARNATION_MASK
from limpet.stores.channels.layout import POLL_US, SLEEP_US
from limpet.stores.channels.lock.ticket_layout import (
    BEHIND_MAX,
    GIVEN_BACK,
    HANDOFF,
    HEAD,
    HOLDER,
    LATER,
    LIFE_MASK,
    LIFE_SHIFT,
    PLACES,
    ROUND_MASK,
    ROUND_SHIFT,
    SLEEPING,
    SLOT_MASK,
    SLOT_SHIFT,
    STATE_MASK,
    TURN_S,
    WAITING,
)


class HeadSighting:
    """A head of the queue that this process waits for: decides whether to pass it over.

    A head delays others by TURN_S at most while the lock is free and kept for it; and by TURN_S and
    the longest sleep while the lock is free or changes its holder and the head does not show that
    it runs.
    """

    def __init__(self, turn_s: float, sleep_us: int) -> None:
        self.turn_s = turn_s
        self.patience_s = turn_s + sleep_us * BEHIND_MAX * 1e-6
        self.head = 0
        self.since_s = 0.0
        """The ticket, and the time at which we first saw it as the head."""
        self.held_by = 0
        self.has_changed = False
        """The holder of the lock then, and whether the lock has been free or another's since."""
        self.kept = False
        self.kept_s = 0.0
        """Whether the lock was free and kept for the head at our last look, and from what time."""

    def is_overdue(self, head: int, lock: int, now: float) -> bool:
        """Look again: whether to pass the head over, when the lock word is `lock`."""
        if self.head != head:
            self.head = head
            self.since_s = self.kept_s = now
            self.kept = self.has_changed = False
            self.held_by = lock & HOLDER
        self.has_changed = self.has_changed or self.held_by == 0 or lock & HOLDER != self.held_by
        if not lock & HANDOFF:
            self.kept = False
            return self.has_changed and now - self.since_s >= self.patience_s
        if lock & HOLDER:
            self.kept = False
        elif not self.kept:
            self.kept = True
            self.kept_s = now
        return self.kept and now - self.kept_s >= self.turn_s


class TicketQueue:
    """The queue of the lock at `address`. In an operation of `channel`."""

    def __init__(self, channel: Any, address: int, places: int) -> None:
        self.channel = channel
        self.client = channel.client
        self.endpoint = channel.endpoint
        self.address = address
        self.places = places
        self.parked = 0
        """A ticket that we gave back, and may use again."""
        self.sleep_us = POLL_US if channel.pool.parameters.multi_host else SLEEP_US
        self.sighting = HeadSighting(min(TURN_S, channel.membership.lease_s), self.sleep_us)

    def head(self) -> int:
        """The ticket that is served next."""
        return self.endpoint.load(self.address + HEAD) + 1

    def count_up(self, head: int) -> None:
        """Make the next ticket the head. Several clients may do so at once."""
        self.endpoint.cas(self.address + HEAD, head - 1, head)

    def place(self, ticket: int) -> int:
        """Address of a ticket's place."""
        return self.address + PLACES + 8 * (ticket & (self.places - 1))

    def _round(self, ticket: int) -> int:
        """The bits from ROUND_SHIFT on in the place of a ticket that is taken."""
        return ticket // self.places + 1 & ROUND_MASK

    def _mine(self, ticket: int, state: int) -> int:
        """The word of a ticket of ours."""
        ident = self.client.ident
        slot = ident >> INCARNATION_BITS
        life = ident & LIFE_MASK
        return self._round(ticket) << ROUND_SHIFT | life << LIFE_SHIFT | slot << SLOT_SHIFT | state

    def draw(self) -> int:
        """Take a ticket; 0 if there is no place."""
        endpoint = self.endpoint
        ticket = self.head()
        end = ticket + self.places
        parked = self.parked
        self.parked = 0
        if parked >= ticket:
            word = self._mine(parked, GIVEN_BACK)
            if endpoint.cas(self.place(parked), word, self._mine(parked, WAITING)) == word:
                return parked
        while ticket < end:
            place = self.place(ticket)
            word = endpoint.load(place)
            ahead = (word >> ROUND_SHIFT) - self._round(ticket) & ROUND_MASK
            if ahead < LATER:
                ticket += 1
            elif endpoint.cas(place, word, self._mine(ticket, WAITING)) == word:
                # CRASH(queued): a dead owner's ticket; a client behind it passes it over.
                return ticket
        return 0

    def pass_over(self, head: int, idle: bool) -> bool:
        """Count the head up if its ticket was given back or, if `idle`, its owner does not use
        it."""
        word = self.endpoint.load(self.place(head))
        if word >> ROUND_SHIFT != self._round(head):
            return False
        if word & STATE_MASK != GIVEN_BACK and not (idle and self._is_forsaken(head, word)):
            return False
        self.count_up(head)
        return True

    def _is_forsaken(self, head: int, word: int) -> bool:
        """Whether the owner of the head is dead, or stopped while it could take the lock."""
        slot = word >> SLOT_SHIFT & SLOT_MASK
        there = self.endpoint.load(CLIENT_SLOTS + slot * SLOT_SIZE) & INCARNATION_MASK
        if (there ^ word >> LIFE_SHIFT) & LIFE_MASK or not self.channel.lives(
            slot << INCARNATION_BITS | there
        ):
            return True
        now = self.channel.membership.now()
        return self.sighting.is_overdue(head, self.endpoint.load(self.address), now)

    def wake(self) -> bool:
        """Wake the head of the queue if it sleeps; whether there is no queue."""
        endpoint = self.endpoint
        while True:
            head = self.head()
            place = self.place(head)
            word = endpoint.load(place)
            if word >> ROUND_SHIFT != self._round(head):
                return True
            if word & STATE_MASK == GIVEN_BACK:
                self.count_up(head)
                continue
            if word & STATE_MASK == SLEEPING:
                awake = (word & ~STATE_MASK) | WAITING
                if endpoint.cas(place, word, awake) == word:
                    endpoint.futex_wake(place, 1)
            return False

    def doze(self, ticket: int, flags: int) -> int:
        """Note in our place that we are about to sleep; the word to sleep on, 0: look again."""
        endpoint = self.endpoint
        place, asleep = self.place(ticket), self._mine(ticket, SLEEPING)
        endpoint.cas(place, self._mine(ticket, WAITING), asleep)
        # ORDER: our place before the words: a client that changes them later sees that we sleep.
        head = self.head()
        if head > ticket or (
            head == ticket and not endpoint.fetch_or(self.address, flags) & HOLDER
        ):
            return 0
        return asleep

    def give_back(self, ticket: int) -> None:
        """Leave the queue; our next wait may use the ticket again. An operation of its own."""
        endpoint = self.endpoint
        self.channel.enter()
        try:
            place, given = self.place(ticket), self._mine(ticket, GIVEN_BACK)
            word = endpoint.load(place)
            while (word ^ given) & ~STATE_MASK == 0 and word != given:
                endpoint.cas(place, word, given)
                word = endpoint.load(place)
            # ORDER: given back before we look whether it is our turn; the client that made it our
            # turn looks, too.
            # CRASH(given-back): the head was given back; a waiting client passes it over.
            if self.head() >= ticket:
                self.wake()
            else:
                self.parked = ticket
        finally:
            self.channel.leave()
