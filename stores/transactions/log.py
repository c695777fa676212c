"""The log of a transaction, and its idempotent commit (rTX sections 4.2 and 4.3, figures 8-10).

A log is an object of its own. It is written whole before it is found by any client; a client that
reads it is pinned, and its memory is not used again as long as that client is. So no reader meets
the entries of one transaction under the header of another (R3), and no CAS on its state hits
another one's (R4).

The paper reuses one buffer a thread, with a checksum for R3. Here a held slot names its log by an
address (parts.py). With one buffer that word would come again, and the late CAS of a client that
lets go of one hold would end the next hold of the same slot; 8 bits of the word are free for a
sequence, which is not enough (R6). So logs take turns, in memory that the client has ready
(alloc/slabs.py): the grace period is the sequence. Nothing is claimed from other clients for that,
nor given back to them. The part of the log's own memory node is in the log, so most transactions
take one object for both.

The memory of a log, and of a part, has no used bit set, unless it came late (below). A used bit
keeps memory from being given out while something links it; a log is over when the operation of its
owner is, and until then its memory is given out to no client:

    by its owner    it was taken from `ready` (alloc/slabs.py). The owner finds it free, and its bit
                    clear, when it next looks for memory, after the operation. A period is closed
                    then, and all that met the log in a lock were pinned in it, or before.
    by others       a block leaves a living owner when the operations have ended that began before
                    the owner could know (alloc/reclaim.py), and a dead one after recovery, which
                    settles the log first. If its bits are clear then, a period of its own follows.

So a late client that frees a log once more, as it may any object, changes nothing.

    0     owner    lock state of the transaction: LOCKED, LOGGED, slot and time
    8     state    bits 0-1 state; bit 2 COMMITTED; bits 3-63 how often it was taken over
    16    lease    until when no other client takes it over, in us since 2025
    24    count    entries
    32    entries  24 bytes each, a participant (participant.py): object (the paper's mptr), old
                   pointer (dptr), new pointer (ndptr)
                   object 0: `new` was allocated for the transaction, `old` is freed by it
                   object PART: `new` is a part, with slots of a hash index (parts.py); `old`, too,
                   unless the part is in the log itself
                   new vacant: the object is given up (stores/core/records.py)

Two words of the owner's slot (slots.py) say which log is its present one: `tx_log`, and `tx_time`,
the time in its lock state, written after it and before any lock is taken, and 0 again before the
log is freed. So a pinned client that finds there the time of a lock state may use the log.

States
    INIT   locks are being taken, reads validated
    DOING  decided: it commits. INIT -> DOING is where a transaction with a log takes effect
    ABORT  decided: it does not. By the owner, or by a client that meets a lock of it when its lease
           is over, or its owner dead
    DONE   carried out by another client; COMMITTED says how it was decided. An owner that stood
           still may yet lock an object. It will release the lock, or a client that recovers it, or
           one that meets the lock (R2). The owner itself has carried the log out when it sets
           `tx_time` to 0: one control word less to wait for than the paper's DONE

A client that finds DOING and the lease over takes the log over, by a CAS that counts the takeovers,
and goes through all of it: the pointer of each object from old to new, its lock from m to the
version, each slot of a part from held to what it becomes. All these are CASes that succeed once, so
any number of clients may be at it (lllock.py).

Memory is given back by the owner when its transaction is DONE, or by a client that recovers the
owner: the old objects if it was COMMITTED, else the new ones. Until then the log is in the owner's
journal (client.py), so its pin keeps both from being used again.

The log names new objects before they are in use, so the client journal needs one pair for all:

    1   the owner takes memory for the log, and for all that it is to name, from what it has ready
        in its own blocks; nothing in shared memory says so
    2   it writes the log: header, entries, and the part of the log's node, from its own image of
        the first WORDS words, so most logs take one copy; and the new data. All of it is posted,
        and the phase has ended before step 3
    3   the client journal names the log as a log (`name`)
    4   it sets the used bits of the new data, many at once (`use`)
    5   the log can be found (`publish`)

A kill before 3 leaves nothing: the memory was free, and is. After 3 it leaves the log in the client
journal, which is decided, if it was not, carried out, and its memory given back. A used bit of what
it names may be clear still: to free that changes nothing. Its memory is not used again meanwhile,
as a block of a dead client has a grace period before it is given out (shm/alloc/blocks.py).

An object of more than LATE_SIZE bytes, or an extent, comes late: after 3 it is allocated, into the
client journal, and written; then the log names it, each entry before the count that makes it one,
and it leaves the client journal.

A participant on a lost memory node is passed over. If that is the log's node, which is that of its
first object, and the owner does not go on, then no client knows what was decided for objects on
other nodes: they are unlocked as they are, slots let go of as they were, and what was allocated
there is not given back. So a transaction over several memory nodes is whole only as long as none of
them is lost in the midst of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from limpet.shm.errors import NodeFailed
from limpet.stores.transactions.changes import begin_change, end_change
from limpet.stores.transactions.entry_log import EntryLog
from limpet.stores.transactions.layout import (
    ABORT,
    AT_ONCE_MAX,
    COMMITTED,
    COUNT,
    DOING,
    ENTRIES,
    ENTRY_SIZE,
    INIT,
    LEASE,
    LOG_DONE,
    OWNER,
    ROUND,
    STATE,
    STATE_MASK,
    TIME_MASK,
    TX_LOG,
    TX_TIME,
    WORDS,
)
from limpet.stores.transactions.lllock import slot_at

if TYPE_CHECKING:
    from limpet.stores.transactions.entry_log import LogEntry
    from limpet.stores.transactions.lllock import LLLocks


HEADER: Final = ENTRIES // 8
ENTRY: Final = ENTRY_SIZE // 8
"""Words of the header, and of an entry."""


class Log(EntryLog):
    """A log, by any client that works on it. `reference`: of its object."""

    def __init__(self, locks: LLLocks, reference: int) -> None:
        self.attach(locks, reference)

    def attach(self, locks: LLLocks, reference: int) -> None:
        """Use this object for the log there. Constructors call it, as that is compiled."""
        self.find(locks.client, reference)
        self.locks = locks
        self.lock_state = 0
        """Of the log's owner: the lock state of its transaction."""
        self.link = 0
        """Of the log's owner: how the client journal names it."""
        self.decided = False
        """Of the log's owner: whether it has decided that the transaction commits."""
        self.is_there = False
        """Of the log's owner: whether the client journal names it as a log."""
        self.count = 0
        """Of the log's owner: how many entries it has noted."""
        self.written = 0
        """Of the log's owner: how many of these are in the log."""
        self.end = 0
        """Of the log's owner: so many words of its image it has."""
        self.in_journal = False
        """Of the log's owner: whether its memory was in the client journal from the beginning."""
        self.late = False
        """Of the log's owner: whether something was written late, so the lease begins anew."""
        self.left = 0
        """Of the log's owner: how many objects it is to take into use, or to free."""

    # ---- the owner's ----------------------------------------------------------------------------

    def begin(self, state: int, link: int, in_journal: bool, entries: list[Any]) -> None:
        """Begin the log of the transaction with this lock state. It is the first in the client
        journal, and may be there already; `link` is to name its store there. `entries`: all that
        are noted, and perhaps some of which nothing is new and nothing is locked."""
        self.lock_state = state
        self.link = link
        self.in_journal = in_journal
        self.noted = entries
        locks = self.locks
        locks.words[OWNER >> 3] = state
        locks.words[STATE >> 3] = INIT
        self.end = HEADER

    def note(self, entry: LogEntry) -> None:
        """Append an entry. It is in the log itself after `write_down`; or at once, if that was
        done: then the objects allocated for it are in the client journal until here."""
        index = self.count
        place = HEADER + ENTRY * (index - self.written)
        if place > WORDS - ENTRY:
            self._write_noted()
            place = HEADER
        locks = self.locks
        locks.words[place] = entry.at
        locks.words[place + 1] = entry.old
        locks.words[place + 2] = entry.new
        if self.end < place + ENTRY:
            self.end = place + ENTRY
        entry.place = self.at + ENTRIES + ENTRY_SIZE * index
        self.count = index + 1
        if self.is_there:
            self._write_noted()
            # ORDER: the entries before the count.
            self._write_word(COUNT, index + 1)

    def note_late(self, entry: LogEntry) -> None:
        """As `note`, when clients can find the log already: the log then names the entry's objects
        in place of the client journal."""
        self.note(entry)
        self.named_late()

    def named_late(self) -> None:
        """A phase of its own: the log names the objects that are in the client journal behind
        it."""
        self.endpoint.wait()
        # CRASH(noted): all is in the log, and in the client journal; recovery frees it.
        self.client.drop_from(1)
        self.late = True

    def place_of(self, offset: int, count: int) -> int:
        """Where in the image `count` words of the log from `offset` on are, which are written with
        it then; WORDS: they are not in it."""
        place = offset >> 3
        if self.written or place + count > WORDS:
            return WORDS
        if self.end < place + count:
            self.end = place + count
        return place

    def _write_noted(self) -> None:
        """Post what is noted and not in the log yet, without the count."""
        locks, more = self.locks, self.count - self.written
        if self.written:
            at = self.at + ENTRIES + ENTRY_SIZE * self.written
            self.endpoint.post_write(at, locks.words, ENTRY * more, HEADER)
        else:
            self.endpoint.post_write(self.at, locks.words, self.end)
        self.written += more
        self.end = HEADER

    def _write_word(self, offset: int, value: int) -> None:
        """Post a word of it."""
        self.locks.word[0] = value
        self.endpoint.post_write(self.at + offset, self.locks.word, 1)

    def write_down(self, objects: int) -> None:
        """Post all that is noted. `objects`: for so many its lease is."""
        locks, count = self.locks, self.count
        lease = locks.lease(objects)
        if self.written:
            self._write_noted()
            self._write_word(LEASE, lease)
            self._write_word(COUNT, count)
        else:
            locks.words[LEASE >> 3] = lease
            locks.words[COUNT >> 3] = count
            self.endpoint.post_write(self.at, locks.words, self.end)
            self.written = count
            self.end = HEADER

    def name(self) -> None:
        """The phase of `write_down` has ended: have the client journal name the log."""
        # ORDER: it is one before the client journal says so.
        if self.in_journal:
            self.client.retarget(0, self.link)
        else:
            self.client.log(self.reference, self.link)
            # CRASH(written): the log names memory that is not in use yet; recovery frees that.
        self.is_there = True

    def use(self, reference: int) -> None:
        """Take an object that the log names into use, together with others."""
        if self.left == AT_ONCE_MAX:
            self.use_left()
        self.locks.in_use[self.left] = reference
        self.left += 1

    def use_left(self) -> None:
        """Take into use what `use` has collected."""
        self.client.heap.take_all(self.locks.in_use, self.left)
        self.left = 0

    def publish(self, state: int, objects: int) -> None:
        """Make the log findable for every client that meets a lock with this state. `objects`: how
        many the lease is meant for."""
        slot = self.client.slot
        if self.left:
            # ORDER: before any object can be linked.
            self.use_left()
        if self.late:
            self._write_word(LEASE, self.locks.lease(objects))
        # ORDER: the log and where it is before the time that makes it count, and that before locks.
        self.endpoint.store_two(slot + TX_LOG, self.reference, slot + TX_TIME, state & TIME_MASK)

    def decide(self) -> bool:
        """A phase of its own: INIT -> DOING; False: a client has aborted it."""
        endpoint = self.endpoint
        begin_change(self.client)
        # LINEARIZES: a transaction with a log
        ticket = endpoint.post_cas(self.at + STATE, INIT, DOING)
        endpoint.wait()
        end_change(self.client)
        self.decided = endpoint.result(ticket) == INIT
        return self.decided

    def abort(self) -> None:
        """A phase of its own: INIT -> ABORT, if no other client was first."""
        self.endpoint.post_cas(self.at + STATE, INIT, ABORT)
        self.endpoint.wait()

    def give_up(self) -> None:
        """The transaction is aborted: the objects that were collected for `use` stay free."""
        self.left = 0

    def free(self, reference: int) -> None:
        """Free an object that is not linked any more, together with others."""
        if self.left == AT_ONCE_MAX:
            self.free_left()
        self.locks.in_use[self.left] = reference
        self.left += 1

    def free_left(self) -> None:
        """Free what `free` has collected."""
        if self.client.endpoint.durable:
            self.client.persist_links()
        self.client.heap.free_all(self.locks.in_use, self.left)
        self.left = 0

    def close(self) -> None:
        """Free the log, with all that is left: all is carried out."""
        if self.in_journal:
            self.free(self.reference)
        self.free_left()
        # A client that is killed here leaves the log in the client journal, and all is freed again.
        self.client.drop(0)

    # ---- any client's ----------------------------------------------------------------------------

    @staticmethod
    def current(locks: LLLocks, state: int) -> Log | None:
        """The log of the transaction with this lock state; None: it is over, or the log was lost,
        and its node has new memory."""
        slot = slot_at(state)
        time = state & TIME_MASK
        endpoint = locks.endpoint
        # ORDER: time, log, time: it is the log of that time, and not freed since we are pinned.
        if endpoint.load(slot + TX_TIME) != time:
            return None
        log = Log(locks, endpoint.load(slot + TX_LOG))
        if endpoint.load(slot + TX_TIME) != time or log.owner() != state:
            return None
        return log

    def is_lost(self) -> bool:
        """Whether it is lost with its memory node."""
        try:
            self.state()
        except NodeFailed:
            return True
        return False

    def commits(self) -> bool:
        """Whether it is decided that the transaction commits, and not all carried out yet."""
        return self.decided or self.state() & STATE_MASK == DOING

    def is_expired(self) -> bool:
        """Whether its lease is over."""
        return self.locks.now() > self.endpoint.load(self.at + LEASE)

    def take_over(self) -> bool:
        """Decide an undecided log against it, or take over a DOING one; False: another client
        did."""
        word = self.state()
        if word & STATE_MASK == INIT:
            return self.endpoint.cas(self.at + STATE, word, ABORT) == word
        if word & STATE_MASK == DOING:
            if self.endpoint.cas(self.at + STATE, word, word + ROUND) != word:
                return False
            # ORDER: after the CAS; a late one lands in a log that is not used again meanwhile.
            self.endpoint.store(self.at + LEASE, self.locks.lease(1))
        return True

    def finish(self, committed: bool) -> None:
        """All is carried out, by a client that repairs it: DONE. (The owner's log is over when it
        is hidden.)"""
        word = self.state()
        over = LOG_DONE | (COMMITTED if committed else 0)
        while word & STATE_MASK != LOG_DONE:
            seen = self.endpoint.cas(self.at + STATE, word, over)
            word = over if seen == word else seen

    def hide(self) -> None:
        """No client finds it any more by a lock of its transaction."""
        state = self.lock_state or self.owner()
        self.endpoint.cas(slot_at(state) + TX_TIME, state & TIME_MASK, 0)
