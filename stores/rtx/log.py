"""The log of a transaction, and its idempotent commit (rTX sections 4.2 and 4.3, figures 8-10).

Written after the prose of the paper, and not after the figures.

A log is an object of its own (the paper reuses one buffer a thread). It is written whole before it
is found by any client; whoever reads it is pinned, and it is not used again as long as he is. So no
reader meets the entries of one transaction under the header of another (R3), and no CAS on its
state hits another one's (R4).

    0     owner    lock state of the transaction: LOCKED, LOGGED, slot and time
    8     state    bits 0-1 state; bit 2 COMMITTED; bits 3-63 how often it was taken over
    16    lease    until when no other client takes it over, in us since 2025
    24    count    entries
    32    entries  24 bytes each: object, old pointer, new pointer
                   object 0: `new` was allocated for the transaction, `old` is freed by it
                   object PART: `old` and `new` are a part, with slots of a hash index (parts.py)
                   new vacant: the object is given up (stores/vacant.py)

Two words of the owner's slot (slots.py) say which log is its present one: `tx_log`, and `tx_time`,
the time in its lock state, written after it and before any lock is taken, and 0 again before the
log is freed. So whoever finds its time there while he is pinned may use the log.

States
    INIT   locks are being taken, reads validated
    DOING  decided: it commits. INIT -> DOING is where a transaction with a log takes effect
    ABORT  decided: it does not. By the owner, or by whoever meets a lock of it when its lease is
           over, or its owner dead
    DONE   carried out; COMMITTED says how it was decided. An owner that stood still may yet lock
           an object, and will release it, or who recovers it will, or who meets it (R2)

A client that finds DOING and the lease over takes the log over, by a CAS that counts the takeovers,
and goes through all of it: the pointer of each object from old to new, its lock from m to the
version, each slot of a part from held to what it becomes. All these are CASes that succeed once, so
any number of clients may be at it (lllock.py).

Memory is given back by the owner when its transaction is DONE, or by whoever recovers it: the old
objects if it was COMMITTED, else the new ones. Until then the log is in the owner's journal
(client.py), so its pin keeps both from being used again.

A kill leaves behind: the log in the client journal. It is decided, if it was not, carried out, and
its memory given back.

What is on a lost memory node is passed over. If that is the log's node, which is that of its first
object, and the owner does not go on, then no client knows what was decided for objects on other
nodes: they are unlocked as they are, slots let go of as they were, and what was allocated there is
not given back. So a transaction over
several memory nodes is whole only as long as none of them is lost in the midst of it.
"""

from __future__ import annotations

from typing import Any

from limpet.shm.endpoint.layout import slot_address
from limpet.shm.endpoint.words import ADDRESS_MASK, LARGE_CLASS, REFERENCE_MASK
from limpet.shm.errors import NodeFailed, StoreCorrupt
from limpet.stores.rtx.layout import (
    ABORT,
    COMMITTED,
    COUNT,
    DOING,
    DONE,
    ENTRIES,
    ENTRY_SIZE,
    INIT,
    LEASE,
    OWNER,
    PART,
    ROUND,
    STATE,
    STATE_MASK,
    TIME_MASK,
    TX_LOG,
    TX_TIME,
)
from limpet.stores.rtx.lllock import LLLocks, is_vacant, slot_of
from limpet.stores.rtx.parts import Part


class Entry:
    """What a transaction does to an object; object 0: it only has `new`, or drops `old`; object
    PART: both are the part."""

    def __init__(self, at: int, old: int, new: int) -> None:
        self.at = at
        self.old = old
        self.new = new


class Log:
    """A log, by whoever works on it. `reference`: of its object."""

    def __init__(self, locks: Any, reference: int) -> None:
        self.locks = locks
        self.endpoint = locks.endpoint
        self.reference = reference
        self.at = reference & ADDRESS_MASK
        self.noted: list[Entry] | None = None
        self.noted_parts: list[Part] = []
        """Of the log's writer: the entries and parts that it has written, so it parses none; None:
        another client works on the log, and reads them."""

    @staticmethod
    def size(entries: int) -> int:
        """Bytes of a log of so many entries."""
        return ENTRIES + ENTRY_SIZE * entries

    @staticmethod
    def current(locks: LLLocks, state: int) -> Log | None:
        """The log of the transaction with this lock state; None: it is over, or the log was lost,
        and its node has new memory."""
        slot = slot_address(slot_of(state))
        time = state & TIME_MASK
        endpoint = locks.endpoint
        # ORDER: time, log, time: it is the log of that time, and not freed since we are pinned.
        if endpoint.load(slot + TX_TIME) != time:
            return None
        log = Log(locks, endpoint.load(slot + TX_LOG))
        if endpoint.load(slot + TX_TIME) != time or log.owner() != state:
            return None
        return log

    # ---- the owner's ----------------------------------------------------------------------------

    def open(self, state: int) -> None:
        """Begin to write it."""
        self.endpoint.store(self.at + OWNER, state)
        self.endpoint.store(self.at + STATE, INIT)
        self.endpoint.store(self.at + COUNT, 0)
        self.noted = []

    def note(self, entry: Entry) -> None:
        """Append an entry."""
        assert self.noted is not None
        endpoint = self.endpoint
        index = len(self.noted)
        at = self.at + ENTRIES + ENTRY_SIZE * index
        endpoint.store(at, entry.at)
        endpoint.store(at + 8, entry.old)
        endpoint.store(at + 16, entry.new)
        # ORDER: the entry before the count.
        endpoint.store(self.at + COUNT, index + 1)
        self.noted.append(entry)

    def note_part(self, part: Part) -> None:
        """Append the entry of a part."""
        self.note(Entry(PART, part.reference, part.reference))
        self.noted_parts.append(part)

    def amend(self, entry: Entry, index: int, old: int) -> None:
        """Set the old pointer of the entry of this index, which no reader goes by before it is
        DOING."""
        self.endpoint.store(self.at + ENTRIES + ENTRY_SIZE * index + 8, old)
        entry.old = old

    def publish(self, state: int, objects: int) -> None:
        """Have every client find it, who meets a lock with this state."""
        slot = self.locks.client.slot
        self.endpoint.store(self.at + LEASE, self.locks.lease(objects))
        self.endpoint.store(slot + TX_LOG, self.reference)
        # ORDER: the log and where it is before the time that makes it count, and that before locks.
        self.endpoint.store(slot + TX_TIME, state & TIME_MASK)

    def begin(self) -> bool:
        """INIT -> DOING; False: a client has aborted it."""
        # LINEARIZES: a transaction with a log
        return self.endpoint.cas(self.at + STATE, INIT, DOING) == INIT

    # ---- any client's
    # ------------------------------------------------------------------------------

    def is_lost(self) -> bool:
        """Whether it is lost with its memory node."""
        try:
            self.state()
        except NodeFailed:
            return True
        return False

    def owner(self) -> int:
        """Lock state of its transaction."""
        return self.endpoint.load(self.at + OWNER)

    def state(self) -> int:
        """Its state word."""
        return self.endpoint.load(self.at + STATE)

    def commits(self) -> bool:
        """Whether it is decided that the transaction commits, and not all carried out yet."""
        return self.state() & STATE_MASK == DOING

    def entries(self) -> list[Entry]:
        """All entries; their writer reads none. Raises StoreCorrupt if there cannot be as many."""
        if self.noted is not None:
            return self.noted
        count, heap = self.endpoint.load(self.at + COUNT), self.locks.client.heap
        size_class = self.reference >> 48 & 0xFF
        room = heap.value_max(1) if size_class == LARGE_CLASS else heap.sizes[size_class]
        if self.size(count) > room:
            raise StoreCorrupt(f"the log at {self.at:#x} is damaged: {count} entries")
        first = self.at + ENTRIES
        places = range(first, first + ENTRY_SIZE * count, ENTRY_SIZE)
        return [self._entry(at) for at in places]

    def _entry(self, at: int) -> Entry:
        endpoint = self.endpoint
        return Entry(endpoint.load(at), endpoint.load(at + 8), endpoint.load(at + 16))

    def parts(self) -> list[Part]:
        """Its parts."""
        if self.noted is not None:
            return self.noted_parts
        return [Part(self.endpoint, entry.new) for entry in self.entries() if entry.at == PART]

    def pairs(self, committed: bool) -> list[int]:
        """References to the pairs of its parts that are not linked when it was decided so."""
        found: list[int] = []
        for part in self.parts():
            found += _references(part, committed)
        return found

    def is_expired(self) -> bool:
        """Whether its lease is over."""
        return self.locks.now() > self.endpoint.load(self.at + LEASE)

    def take_over(self) -> bool:
        """Decide an undecided log against it, or take over a DOING one; False: another one did."""
        word = self.state()
        if word & STATE_MASK == INIT:
            return self.endpoint.cas(self.at + STATE, word, ABORT) == word
        if word & STATE_MASK == DOING:
            if self.endpoint.cas(self.at + STATE, word, word + ROUND) != word:
                return False
            # ORDER: after the CAS; a late one lands in a log that is not used again meanwhile.
            self.endpoint.store(self.at + LEASE, self.locks.lease(1))
        return True

    def finish(self) -> bool:
        """Carry out what is decided (TryCommit, figure 9); whether it was to commit.

        Also when it is DONE: an owner that stood still may have locked another object since (R2).
        """
        state = self.owner()
        word = self.state()
        commits = word & STATE_MASK == DOING or bool(word & COMMITTED)
        entries = [entry for entry in self.entries() if entry.at > PART]
        self._apply(entries, state, word & STATE_MASK == DOING, commits)
        return commits

    def _apply(self, entries: list[Entry], state: int, installs: bool, commits: bool) -> None:
        """Carry out what is decided, and let go of all that the transaction locks and holds."""
        if installs:
            for entry in entries:
                self._install(entry)
                # CRASH(installing): some objects are new; the next one goes on.
        for entry in entries:
            self._release(entry, state)
            # CRASH(releasing): some locks are released; the next one goes on.
        for part in self.parts():
            _let_go(part, commits)
        # ORDER: after the locks.
        while (word := self.state()) & STATE_MASK != DONE:
            self.endpoint.cas(self.at + STATE, word, DONE | (COMMITTED if commits else 0))

    def _install(self, entry: Entry) -> None:
        """Have an object be new, unless it is lost with its memory node."""
        locks: LLLocks = self.locks
        try:
            locks.install(entry.at, entry.old, entry.new)
        except NodeFailed:
            return

    def _release(self, entry: Entry, state: int) -> None:
        """Release the lock of an object, unless it is lost with its memory node."""
        locks: LLLocks = self.locks
        try:
            locks.release(entry.at, state)
        except NodeFailed:
            return

    def give_back(self, heap: Any, committed: bool) -> None:
        """Free what the transaction leaves behind. By its owner, or for a dead one."""
        state = self.owner()
        slot = slot_address(slot_of(state))
        # ORDER: no client finds the log any more before it is freed.
        self.endpoint.cas(slot + TX_TIME, state & TIME_MASK, 0)
        for reference in self.pairs(committed):
            heap.free(reference)
        free_entries(heap, self.entries(), committed)


def _let_go(part: Part, commits: bool) -> None:
    """Let go of the slots of a part, unless they are lost with their memory node."""
    try:
        part.let_go(commits)
    except NodeFailed:
        return


def _references(part: Part, committed: bool) -> list[int]:
    """References to the pairs of a part that are not linked; none if they are lost with it."""
    try:
        return part.references(committed)
    except NodeFailed:
        return []


def free_entries(heap: Any, entries: list[Entry], committed: bool) -> None:
    """Free the old objects of a transaction if it was committed, else the new ones."""
    for entry in entries:
        pointer = entry.old if committed else entry.new
        if not is_vacant(pointer):
            heap.free(pointer & REFERENCE_MASK)
