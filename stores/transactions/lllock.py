"""LLLock: a lock that says whose it is and since when (rTX section 4.1, figure 4).

Written after the prose of the paper, and not after the figure. A TXObj (section 4.2) is
16 bytes: the lock word, and the pointer to its data, a reference to an object (words.py) or 0.

Lock word
    bit 63      LOCKED
    bit 62      LOGGED: the transaction has a log (log.py)
    bits 50-61  slot of the owner in the control segment
    bits 0-49   time when the owner drew this state, in us since 2025 (unique_ids.py)
    unlocked    the same without LOCKED and LOGGED, of the transaction that unlocked it last, or 0:
                this is the version of the data

The paper's word has a lease of milliseconds, which transactions of one client share (R1). Ours has
the time of unique_ids.py, which a slot never draws twice, whatever process has it: no state of a
lock is ever seen again, so a CAS that expects one can succeed only once. The lease is what is added
to it: something for clocks that differ, and for each object of the transaction; with a log it is
there. A client that has seen a lock for a whole lease of the pool (membership.py) takes the lock's
lease to be over, so a clock that was set back keeps no client waiting.

Repair is safe without fencing (the argument for all modules here):
    1. While an object is locked with a state m, every CAS of its pointer that belongs to m expects
       the pointer P that it had when m was set. So the first one that succeeds makes all others
       fail, for ever: a client that may still make one is pinned, so P is not used again meanwhile.
    2. With a log: these CASes are made once the log is DOING, and m is released after they were.
    3. Without a log (Opt1, section 4.5): an owner writes just this object, and locks it from the
       version that it has read, so nothing makes it give up. m is released after the pointer has
       left P: to what the owner wrote, or, if the lease is over, to a copy of P. Both begin with m,
       so no client repairs twice.
    4. A lock whose transaction is over is released by a CAS from m (R2).

So a reader may take the pointer of an object that is locked without a log: it is committed. With a
log it waits: the transaction may be decided already, and another object show it.
"""

from __future__ import annotations

from array import array
from typing import Any

from limpet.shm.clients.unique_ids import Tickets
from limpet.shm.endpoint.layout import CLIENT_SLOTS, SLOT_SIZE
from limpet.shm.endpoint.slots import INCARNATION_BITS, START_US
from limpet.stores.core.object_layout import POINTER
from limpet.stores.core.records import vacant_word
from limpet.stores.transactions.layout import (
    AT_ONCE_MAX,
    LOCKED,
    SLOT_MASK,
    SLOT_SHIFT,
    TIME_MASK,
    VERSION_MASK,
    WORDS,
)


class LLLocks:
    """The locks, for one client.

    A lease lasts `drift_us`, for clocks that differ and writes that are late, and `each_us` for
    each object of its transaction.
    """

    def __init__(self, pool: Any, drift_us: int, each_us: int) -> None:
        self.endpoint = pool.endpoint
        self.client = pool.client
        self.clock = pool.clock
        self.tickets = Tickets(pool.client)
        self.drift_us = drift_us
        self.each_us = each_us
        self.words = array("Q", bytes(8 * 2 * WORDS))
        """Room for words of a log (log.py), and then of a part (parts.py), that are written at
        once."""
        self.word = array("Q", (0,))
        """Room for one word that is written."""
        self.in_use = array("Q", bytes(8 * AT_ONCE_MAX))
        """Room for references to objects whose used bits are set at once, or cleared."""

    def forget(self) -> None:
        """Take new tickets next time."""
        self.tickets.forget()

    def draw(self, logged: int) -> int:
        """A state that no lock ever had; `logged`: LOGGED or 0."""
        slot = self.client.ident >> INCARNATION_BITS
        return LOCKED | logged | slot << SLOT_SHIFT | self.clock.guess()

    def post_acquire(self, at: int, version: int, state: int) -> int:
        """Post the lock of the object at this version; the ticket of its result, another one than
        `version` if it has another one, or is locked."""
        return self.endpoint.post_cas(at, version, state)

    def post_release(self, at: int, state: int) -> int:
        """Post the unlocking of the object, to a new version, if it is locked with this state; the
        ticket of its result, `state` then."""
        return self.endpoint.post_cas(at, state, state & VERSION_MASK)

    def post_install(self, at: int, old: int, new: int) -> int:
        """Post the change of the pointer of a locked object; the ticket of its result, another one
        than `old` if it was changed already."""
        return self.endpoint.post_cas(at + POINTER, old, new)

    def release(self, at: int, state: int) -> bool:
        """A phase of its own: `post_release`; whether the object was locked with this state."""
        ticket = self.post_release(at, state)
        self.endpoint.wait()
        return self.endpoint.result(ticket) == state

    def vacated(self) -> int:
        """A pointer to nothing, which no object ever had, for one that is given up."""
        return vacant_word(self.tickets.take())

    def lease(self, objects: int) -> int:
        """When the lease ends of a transaction that begins to lock so many objects."""
        return self.now() + self.drift_us + objects * self.each_us

    def now(self) -> int:
        """The time in us since 2025."""
        return self.endpoint.microseconds() - START_US

    def is_expired(self, state: int) -> bool:
        """Whether the lease of a lock without a log is over."""
        return self.now() > (state & TIME_MASK) + self.drift_us + self.each_us


def slot_of(state: int) -> int:
    """The number of the client slot of the client that drew a lock state."""
    return state >> SLOT_SHIFT & SLOT_MASK


def slot_at(state: int) -> int:
    """The address of that client slot."""
    return CLIENT_SLOTS + slot_of(state) * SLOT_SIZE
