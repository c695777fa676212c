"""Repair of what a transaction left locked, by whoever meets it (rtx.txt section 4.3, figure 10).

The figure is missing from the text that we have; rebuilt from the prose. On a lock with state m:
    no log, lease over       unless the data begins with m: write a copy of it that does, and CAS
                             the pointer to that; release the lock
    log not the owner's      release the lock: the transaction is over (R2)
    present one, or DONE
    ABORT                    release all locks of the log
    INIT, lease over         INIT -> ABORT, then as ABORT
    DOING, lease over        take it over, carry it out (log.py)
    else                     wait

What a dead owner left is repaired at once by whoever recovers it, who goes by its hand: a log, or
without one the memory for the new data, which begins with m, and the object for which it is meant.
If that is locked with m and not changed, the copy is written to this memory: so recovery needs no
other, and the operation has not happened, as those who read meanwhile have seen. Several may do
that, as they all write the same. In a pool of several hosts the owner may still run, so nothing is
written there: the new data, which was whole before the hand named the object, is installed.
"""

from __future__ import annotations

from typing import Any

from limpet.shm.errors import AddressError, NodeFailed, StoreCorrupt
from limpet.shm.words import ADDRESS_MASK
from limpet.stores.outcomes import AGAIN, DONE, NO_MEMORY
from limpet.stores.rtx import fields
from limpet.stores.rtx.fields import ABORT, EXTENT_PAIR, LOGGED, OBJECT_MASK, POINTER, STATE_MASK
from limpet.stores.rtx.lllock import LLLocks, is_vacant
from limpet.stores.rtx.log import Log


class Repair:
    """Repairs by one handle of a store, whose data is of `size` bytes and begins with its state."""

    def __init__(self, store: Any, locks: LLLocks) -> None:
        self.store = store
        self.endpoint = store.endpoint
        self.client = store.client
        self.heap = store.heap
        self.locks = locks

    def look_after(self, at: int, state: int) -> int:
        """See to a lock with this state, within an operation. DONE; AGAIN: wait; or NO_MEMORY."""
        if not state & LOGGED:
            if not self.locks.is_expired(state) and not self._is_overdue(state):
                return AGAIN
            return self._unlogged(at, state)
        log = Log.current(self.locks, state)
        if log is None:
            self.locks.release(at, state)
            return DONE
        try:
            return self._logged(at, state, log)
        except NodeFailed:
            if not self._is_overdue(state):
                return AGAIN
            self.locks.release(at, state)  # raises in turn if it is the object that is lost
            return DONE

    def _logged(self, at: int, state: int, log: Log) -> int:
        decided = log.state() & STATE_MASK
        if decided == fields.DONE:
            self.locks.release(at, state)
            return DONE
        if decided != ABORT and not log.is_expired() and not self._is_overdue(state):
            return AGAIN
        if not log.take_over():
            return AGAIN
        # CRASH(taken-over): decided; the next one takes it over when the lease is over.
        log.finish()
        return DONE

    def _is_overdue(self, state: int) -> bool:
        """Whether we have seen this lock for a lease of the pool, whatever the owner's clock is."""
        return bool(self.store.pool.membership.overdue(("lock", state)))

    def _unlogged(self, at: int, state: int) -> int:
        """Release an expired lock without a log, with the pointer changed."""
        old = self.endpoint.load(at + POINTER)
        # ORDER: the pointer before the lock: it is one that it had under this lock.
        if self.endpoint.load(at) != state:
            return DONE
        if self._begins_with(old, state):
            self.locks.release(at, state)
            return DONE
        new = self.store.copy_for(at, old, state)
        if not new:
            return NO_MEMORY
        self.client.aim(0, at + POINTER)
        if not is_vacant(old):
            self.client.hold(old, at + POINTER)
        self.locks.install(at, old, new)
        # CRASH(copied): the owner's CAS fails; the lock is released by whoever meets it.
        self.locks.release(at, state)
        return DONE

    def _begins_with(self, pointer: int, state: int) -> bool:
        """Whether the data there was installed under this lock state."""
        return not is_vacant(pointer) and self.endpoint.load(pointer & ADDRESS_MASK) == state

    # ---- pairs of a hand ------------------------------------------------------------------------

    def resolved(self, reference: int, home: int) -> bool:
        """Whether a pair of a hand is linked: of a dead client's, or of our own."""
        at = home & OBJECT_MASK
        try:
            if home & EXTENT_PAIR:
                return bool(self.store.is_linked(reference))
            if at:
                return self._settle_object(at, reference)
        except (NodeFailed, StoreCorrupt, AddressError):
            return True  # it is lost with the object; or damaged, and recovery goes on
        self._settle_log(reference)
        return False

    def _settle_log(self, reference: int) -> None:
        log = Log(self.locks, reference)
        try:
            log.take_over()
            log.give_back(self.heap, log.finish())
        except (NodeFailed, StoreCorrupt, AddressError):
            pass  # what it names is lost with it; or damaged, and recovery goes on

    def _settle_object(self, at: int, reference: int) -> bool:
        state = self.endpoint.load(reference & ADDRESS_MASK)
        old = self.endpoint.load(at + POINTER)
        # ORDER: the pointer before the lock: it is one that it had under this lock.
        if self.endpoint.load(at) == state:
            if not self._begins_with(old, state):
                if not self.client.mortal:
                    # In the memory for the new data, which nobody has seen.
                    self.store.copy(old, reference, state)
                self.locks.install(at, old, reference)
            self.locks.release(at, state)
        return bool(self.endpoint.load(at + POINTER) == reference)
