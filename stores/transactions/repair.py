"""Repair: a lock whose lease is over, by any client that meets it (rTX section 4.3, figure 10).

The text of the paper that we have lacks the figure. It is rebuilt here from section 4.3, which
names lines 1, 2-14 and 12:

    Repair(lockv)
     1    log = the log of lockv's owner
     2    if the checksum of log is not lockv: return      (section 4.4)
     3    if log is INIT:
     4        CAS the log's state, INIT -> ABORT
     5    if log is ABORT:
     6        for each object of the log: release its lock
     8    if log is DONE: return
    10    if log is DOING, and its lease is over:
    11        write set = the entries of the log
    12        TryCommit(log)

Here, of a lock with state m:

    line 1      `Log.current`; a held slot (parts.py) says itself which log it is
    line 2      the log is not m's, or is DONE: the lock is released; its transaction is over (R2)
    lines 3-4   INIT, lease over: `Log.take_over`, then as ABORT
    lines 5-6   ABORT: `carry_out` (try_commit.py), of which all but lines 4-5 are the same
    lines 10-12 DOING, lease over: `Log.take_over` and `carry_out`, which are TryCommit
    else        wait

A lock without a log (Opt1, section 4.5), when its lease is over: unless the data begins with m,
write a copy of it that does, and CAS the pointer to that; release the lock.

A client that recovers a dead owner repairs at once what that left. It goes by the client journal: a
log, or without one the memory for the new data, which begins with m, and the object for which it is
meant. If that is locked with m and not changed, the copy is written to this memory: so recovery
needs no other, and the operation has not happened, as those who read meanwhile have seen. Several
may do that, as they all write the same. In a pool of several hosts the owner may still run, so
nothing is written there: the new data, which was whole before the client journal named the object,
is installed.
"""

from __future__ import annotations

from typing import Any

from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.shm.errors import AddressError, NodeFailed, StoreCorrupt
from limpet.stores.core.object_layout import POINTER
from limpet.stores.core.records import is_vacant
from limpet.stores.core.status import AGAIN, ATTEMPTS_PER_CHECK, DONE, NO_MEMORY
from limpet.stores.transactions.changes import begin_change, end_change
from limpet.stores.transactions.layout import (
    ABORT,
    EXTENT_PAIR,
    LOCKED,
    LOG_DONE,
    LOGGED,
    OBJECT_MASK,
    SLOT,
    STATE_MASK,
)
from limpet.stores.transactions.lllock import LLLocks
from limpet.stores.transactions.log import Log
from limpet.stores.transactions.parts import Part, is_held
from limpet.stores.transactions.try_commit import carry_out, give_back, participants_of


class Repair:
    """Repairs by one handle of a store, whose data is of `size` bytes and begins with its state."""

    def __init__(self, store: Any, locks: LLLocks) -> None:
        self.store = store
        self.endpoint = store.endpoint
        self.client = store.client
        self.heap = store.heap
        self.locks = locks
        self.repairs = 0
        """Locks without a log, and transactions with one, whose lease was over: released, or
        carried out or aborted, by this handle."""

    def repair_lock(self, at: int, state: int) -> int:
        """Repair a lock with this state, if its lease is over. Within an operation. DONE: it is
        released; AGAIN: its owner has time left, so wait; NO_MEMORY: repair needs an object."""
        if not state & LOGGED:
            if not self.locks.is_expired(state) and not self._is_overdue(state):
                return AGAIN
            return self._unlogged(at, state)
        try:
            log = Log.current(self.locks, state)  # line 1
            if log is not None:
                return self._logged(at, state, log)
        except NodeFailed:
            if not self._is_overdue(state):
                return AGAIN
        self.locks.release(at, state)  # raises in turn if it is the object that is lost
        return DONE

    def _slot(self, slot: int) -> int:
        """Repair a slot, if a transaction holds it; results as of `repair_lock`."""
        word = self.endpoint.load(slot)
        if not is_held(word):
            return DONE
        # ORDER: after the word: the log was not given back when it was there, and we are pinned.
        part = Part(self.endpoint, word)
        log, owner = Log(self.locks, part.log()), part.owner()
        try:
            if log.owner() == owner:
                return self._logged(0, owner, log)
        except NodeFailed:
            if not self._is_overdue(owner):
                return AGAIN
        # Its owner is no client any more if its node has other memory: that waits for operations.
        for change in part.changes():
            part.let_go_of(change, False)
        self.endpoint.wait()
        return DONE

    def clear_slot(self, slot: int) -> bool:
        """Release a slot at once: abort the transaction that holds it if it is not decided, or
        carry it out. False: the log is lost, and its owner may have the slot for a lease."""
        word = self.endpoint.load(slot)
        if not is_held(word):
            return True
        # ORDER: as in `_slot`
        part = Part(self.endpoint, word)
        log, owner = Log(self.locks, part.log()), part.owner()
        try:
            if log.owner() == owner:
                log.take_over()
                carry_out(log)
                return True
        except NodeFailed:
            if not self._is_overdue(owner):
                return False
        for change in part.changes():
            part.let_go_of(change, False)
        self.endpoint.wait()
        return True

    def _logged(self, at: int, state: int, log: Log) -> int:
        """Carry out or abort the transaction of a log. `at`: the object that was met; 0: a slot
        was."""
        decided = log.state() & STATE_MASK
        if decided == LOG_DONE:
            # Line 2. An owner that was stopped may have locked it since (R2).
            if at:
                self.locks.release(at, state)
            else:
                carry_out(log)
            return DONE
        if decided != ABORT and not log.is_expired() and not self._is_overdue(state):
            return AGAIN
        if not log.take_over():  # lines 3-4, or TryCommit, lines 1-3
            return AGAIN
        self.repairs += decided != ABORT
        # CRASH(taken-over): decided; the next one takes it over when the lease is over.
        self.store.carry_out(log)  # lines 5-6, or line 12: TryCommit, lines 4-8
        return DONE

    def _is_overdue(self, state: int) -> bool:
        """Whether we have seen this lock for a lease of the pool, whatever the owner's clock is.

        `state`: of the lock, or of the transaction that holds a slot: none is ever drawn again, and
        so no other hold of anything has it. (The word of a held slot can come again.)
        """
        return bool(self.store.pool.membership.overdue(("lock", state), state))

    def _unlogged(self, at: int, state: int) -> int:
        """Release an expired lock without a log, with the pointer changed."""
        old = self._pointer_under(at, state)
        if old is None:
            return DONE
        if self._begins_with(old, state):
            self.repairs += self.locks.release(at, state)
            return DONE
        new = self.store.copy_for(at, old, state)
        if not new:
            return NO_MEMORY
        self.client.retarget(0, at + POINTER)
        if not is_vacant(old):
            self.client.log(old, at + POINTER)
        self.locks.post_install(at, old, new)
        # CRASH(copied): the owner's CAS fails; a client that meets the lock releases it.
        # ORDER: the pointer before the lock, on one node.
        self.repairs += self.locks.release(at, state)
        return DONE

    def _pointer_under(self, at: int, state: int) -> int | None:
        """A pointer that an object had under this lock; None: it has another one, or none."""
        pointer = int(self.endpoint.load(at + POINTER))
        # ORDER: the pointer before the lock.
        return pointer if self.endpoint.load(at) == state else None

    def _begins_with(self, pointer: int, state: int) -> bool:
        """Whether the data there was installed under this lock state."""
        return not is_vacant(pointer) and self._first_word(pointer) == state

    def _first_word(self, pointer: int) -> int:
        """The first word of the data there, whose memory need not be hardware-coherent."""
        return int.from_bytes(self.endpoint.read(pointer & ADDRESS_MASK, 8), "little")

    # ---- waiting --------------------------------------------------------------------------------

    def await_holder(self, at: int, attempt: int, writes: bool) -> None:
        """Wait a little for the holder of an object or slot, and repair it now and then if its
        lease is over. Outside of operations.

        A reader does not wait for a lock without a log, so it needs no memory to repair it.
        """
        self.endpoint.pause(attempt)
        if attempt % ATTEMPTS_PER_CHECK == 0:
            self.store.pool.exclusively(self.store.pool.membership.sweep_sometimes)
            while self._repair_if_held(at, writes) == NO_MEMORY:
                node, size = at >> NODE_SHIFT & 0xFF, self.store.leaf.page.size
                self.store.allocator.replenish(node, size, 1, 0, 0, True)

    def _repair_if_held(self, at: int, writes: bool) -> int:
        with self.client:
            self.store.require_there()
            return self.repair_if_held(at, writes)

    def repair_if_held(self, at: int, writes: bool) -> int:
        """Repair the lock of an object, or a slot, if its holder is one that we wait for. Within an
        operation. `at`: 0, an object, or a slot with SLOT."""
        if not at:
            return DONE
        scope = self.endpoint.background(True)
        try:
            if at & SLOT:
                return self._slot(at & ~SLOT)
            state = self.endpoint.load(at)
            if not state & LOCKED or not (writes or state & LOGGED):
                return DONE
            return self.repair_lock(at, state)
        finally:
            self.endpoint.background(scope)

    # ---- pairs of a client journal --------------------------------------------------------------

    def resolved(self, reference: int, link_address: int) -> bool:
        """Whether a pair of a client journal is linked: of a dead client's, or of our own."""
        at = link_address & OBJECT_MASK
        try:
            if link_address & EXTENT_PAIR:
                return bool(self.store.is_linked(reference))
            if at:
                return self._settle_object(at, reference)
        except (NodeFailed, StoreCorrupt, AddressError):
            return True  # it is lost with the object; or damaged, and recovery goes on
        self._settle_log(reference)
        return False

    def listed(self, reference: int, link_address: int) -> list[int]:
        """References to objects that a pair of a client journal stands for: those of a log."""
        if link_address & (OBJECT_MASK | EXTENT_PAIR):
            return []
        try:
            left: list[int] = []
            for participant in participants_of(Log(self.locks, reference)):
                participant.unlinked(True, left)
                participant.unlinked(False, left)
        except StoreCorrupt:
            return []  # of a client that is past it
        return left

    def _settle_log(self, reference: int) -> None:
        log = Log(self.locks, reference)
        try:
            log.take_over()
            give_back(log, self.store.carry_out(log))
        except (NodeFailed, StoreCorrupt, AddressError):
            pass  # what it names is lost with it; or damaged, and recovery goes on

    def _settle_object(self, at: int, reference: int) -> bool:
        state = self._first_word(reference)
        old = self._pointer_under(at, state)
        if old is not None:
            if not self._begins_with(old, state):
                if not self.client.remotely_fenced:
                    # In the memory for the new data, which no client has seen.
                    self.store.copy(old, reference, state)
                # In a pool of several hosts this makes the change of the dead client.
                begin_change(self.client)
                # ORDER: the pointer before the lock, on one node.
                self.locks.post_install(at, old, reference)
            self.locks.release(at, state)
            end_change(self.client)
        return bool(self.endpoint.load(at + POINTER) == reference)
