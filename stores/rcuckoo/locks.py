"""The lock table: a bit for each lock, taken and given back by masked CAS (RCuckoo 3.4).

A lock protects `rows_per_lock` rows. Locks are virtual: lock l is bit l mod P of the table's P, so
distant rows may share a bit. Of the bits of a 64-bit word, `locks_per_message` adjacent ones (64 by
default) can be taken by one masked CAS, all or none: a group. An operation's groups are taken in
ascending order of their bits, after the modulo, one round trip each.

A client that meets a taken lock gives its own back (as in section 4.1; in section 3.4.1 it spins
while it holds, so that one dead client could stop all), and tries again when it has seen the bits
clear. Locks are given back by a masked CAS that compares nothing, and so cannot fail.

A `LockJournal` notes the locks and writes that a client is about to make in a table. The paper's
lock table does not name the holder of a lock (RCuckoo section 4.2), and its repair recomputes the
CRC of a row that was half written (section 4.3), which makes garbage valid. So each client notes
the locks before it takes them, and the rows and words before it writes them. The notes are in words
of its own beside the table, in the same batch: they cost no round trip.

A journal, one for each client slot of the pool

    0     owner    id of the client that used it last
    8     state    bits 0-3    held: the number of groups that are held, from the first on
                   bit 4       unsure: the next group may be held
                   bits 5-8    number of groups; 0: no lock is taken
                   bits 9-12   rows of the path that is being written; 0: none
                   bits 13-63  sequence, one more in each state of its owner, modulo 2^51
    16    groups   8 pairs: address of a word of the lock table, bits of it; in ascending order
    144   path     7 pairs: row << 3 | slot, version of the row before; where the new entry goes
                   first, the empty entry last
    256   redo     the new entry, as it will be in the first row of the path

The states of an operation on n groups, each one store
    publish             groups; then held 0, unsure
    each MCAS           won: held g + 1; lost: held g, not unsure
    write               path, redo; then the path's length
    unlock, from the last group on: held g, unsure, no path; MCAS; ...; in the end no groups

A state is unsure only between its store and the MCAS that takes or gives back locks: only then a
survivor cannot read whether a dead client has them (repair.py: stranded).

Its owner writes it, and, when the owner is provably dead, the client that holds the table's lease.
Any client that waits for a lock reads it. A reader that sees the same state before and after has
groups and path that belong to it.

The sequence wraps: a state can come again after 2^51 others, 7 years of ten million a second. A
client compares states only for equality, in one operation, or while it waits for one lock. So only
a client that was stopped for 7 years in the midst of a look can be misled, and only if it goes on
at one of 2^51 moments.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

from limpet.shm.endpoint.fabric import bit
from limpet.stores.rcuckoo.layout import (
    ANY,
    COUNT_MASK,
    COUNT_SHIFT,
    GROUPS,
    GROUPS_MAX,
    HELD_MASK,
    OWNER,
    PATH,
    PATH_SHIFT,
    REDO,
    SEQUENCE_MASK,
    SEQUENCE_SHIFT,
    STATE,
    UNSURE,
)

if TYPE_CHECKING:
    from limpet.stores.rcuckoo.parameters import RcuckooParameters
    from limpet.stores.rcuckoo.rows import Rows


class LockJournal:
    """One journal. Its user sets `at`, its address."""

    def __init__(self, endpoint: Any) -> None:
        self.endpoint = endpoint
        self.at = 0
        self.sequence = 0
        self.count = 0

    # ---- for the owner --------------------------------------------------------------------------

    def publish(self, words: Any, bits: Any, count: int) -> None:
        """Note that the groups of locks `bits` in `words` will be taken."""
        endpoint = self.endpoint
        for index in range(count):
            endpoint.store(self.at + GROUPS + 16 * index, words[index])
            endpoint.store(self.at + GROUPS + 16 * index + 8, bits[index])
        self.sequence = endpoint.load(self.at + STATE) >> SEQUENCE_SHIFT
        self.count = count
        # ORDER: the groups before the state that makes them valid.
        self.say(0, UNSURE, 0)

    def say(self, held: int, unsure: int, path: int) -> None:
        """Store a state: groups held, whether the next one is unsure, length of the path."""
        self.sequence = self.sequence + 1 & SEQUENCE_MASK
        self.endpoint.store(
            self.at + STATE,
            self.sequence << SEQUENCE_SHIFT
            | path << PATH_SHIFT
            | self.count << COUNT_SHIFT
            | unsure
            | held,
        )

    def end(self) -> None:
        """Store the state without locks."""
        self.endpoint.store(self.at + STATE, self.sequence << SEQUENCE_SHIFT)

    def step(self, index: int, row: int, slot: int, version: int) -> None:
        """Note a step of a path: an entry of a row, and the row's version."""
        self.endpoint.store(self.at + PATH + 16 * index, row << 3 | slot)
        self.endpoint.store(self.at + PATH + 16 * index + 8, version)

    def commit(self, rows: Rows, place: int, slot: int, length: int) -> None:
        """Note the new entry, as in the row at `place`, and that the path is being written."""
        at = place * rows.row_words + slot * rows.entry_words
        self.endpoint.write_words(self.at + REDO, rows.words, rows.entry_words, at)
        # ORDER: path and entry before the state that makes them valid, and that before any row.
        self.say(self.count, 0, length)

    # ---- for any client -------------------------------------------------------------------------

    def glance(self, journals: Any, word: int, has: Any, may_have: Any) -> int:
        """Read a word of the lock table, and the bits of it that the owners of `journals` have.

        `journals`: addresses, those with the most frequent changes last: they are read just before
        and just after the word. Sets `has` and `may_have`, for each of them: bits that its owner
        surely has when the word is read, and those that it may have, which are all bits if its
        state changes meanwhile.
        """
        endpoint = self.endpoint
        count = len(journals)
        for index in range(count):
            may_have[index] = endpoint.load(journals[index] + STATE)
        found = endpoint.load(word)
        # ORDER: states, the word, the states again: an equal state was the state when the word was
        # read.
        for index in range(count - 1, -1, -1):
            at = journals[index]
            state = may_have[index]
            known = 0
            if state >> COUNT_SHIFT & COUNT_MASK:
                known = min((state & HELD_MASK) + (state & UNSURE != 0), GROUPS_MAX)
            surely = maybe = 0
            for group in range(known):
                pair = at + GROUPS + 16 * group
                if endpoint.load(pair) == word:
                    bits = endpoint.load(pair + 8)
                    maybe |= bits
                    if group < state & HELD_MASK:
                        surely |= bits
            if not self._is_still(at, state):
                surely = 0
                maybe = ANY
            has[index] = surely
            may_have[index] = maybe
        return found

    def _is_still(self, at: int, state: int) -> bool:
        """Whether a journal is in this state still."""
        return self.endpoint.load(at + STATE) == state

    def owner(self) -> int:
        """The client that used it last; 0: none."""
        return self.endpoint.load(self.at + OWNER)

    def adopt(self, ident: int) -> None:
        """Make it the journal of this client."""
        self.endpoint.store(self.at + OWNER, ident)


class Locks:
    """The locks of the table whose lock table is at address `base`, which its user sets."""

    def __init__(self, endpoint: Any, parameters: RcuckooParameters, journal: LockJournal) -> None:
        self.endpoint = endpoint
        self.journal = journal
        self.base = 0
        self.rows_per_lock = parameters.rows_per_lock
        self.locks = parameters.locks
        self.message = parameters.locks_per_message
        self.bits = array("Q", bytes(8 * GROUPS_MAX))
        self.words = array("Q", bytes(8 * GROUPS_MAX))
        self.messages = array("Q", bytes(8 * GROUPS_MAX))
        self.count = 0
        self.busy = 0
        self.busy_bits = 0
        """The word, and its bits, of the lock for which we wait."""

    # ---- planning -------------------------------------------------------------------------------

    def plan(self) -> None:
        """Begin a set of locks."""
        self.count = 0

    def lock_of(self, row: int) -> int:
        """The bit of the lock table for a row."""
        return row // self.rows_per_lock % self.locks

    def add(self, row: int) -> None:
        """Add the row's lock to the set, which has room for 8 groups."""
        lock = self.lock_of(row)
        message = lock // self.message
        bits = bit(lock & 63)
        index = self.count
        while index and self.messages[index - 1] >= message:
            index -= 1
        if index == self.count or self.messages[index] != message:
            self._make_room(index)
            self.messages[index] = message
            self.words[index] = self.base + (lock >> 6 << 3)
            self.bits[index] = 0
        self.bits[index] |= bits

    def _make_room(self, index: int) -> None:
        """Move the groups from `index` on up by one."""
        later = self.count
        while later > index:
            self.messages[later] = self.messages[later - 1]
            self.words[later] = self.words[later - 1]
            self.bits[later] = self.bits[later - 1]
            later -= 1
        self.count += 1

    def wait_for(self, row: int) -> None:
        """Note that we wait for the row's lock."""
        lock = self.lock_of(row)
        self.busy = self.base + (lock >> 6 << 3)
        self.busy_bits = bit(lock & 63)

    # ---- taking and giving back -----------------------------------------------------------------

    def are_free(self) -> bool:
        """Whether no client has a lock of the set, before another attempt.

        If so, the look counts as part of the attempt: the paper's clients attempt without looking.
        """
        endpoint = self.endpoint
        for index in range(self.count):
            if endpoint.load(self.words[index]) & self.bits[index]:
                self.busy = self.words[index]
                self.busy_bits = self.bits[index]
                endpoint.wait()
                return False
        return True

    def acquire(self) -> bool:
        """Take the set; False, and no lock is held, when one of them is taken.

        A round trip for each group but the last, whose caller ends it.
        """
        endpoint = self.endpoint
        journal = self.journal
        journal.publish(self.words, self.bits, self.count)
        for index in range(self.count):
            bits = self.bits[index]
            # CRASH(unsure): a lock in our group that is set, and that no living client may have, is
            # a dead client's; the repairing client gives it back.
            if endpoint.mcas(self.words[index], 0, bits, bits, bits) & bits:
                journal.say(index, 0, 0)
                self.busy = self.words[index]
                self.busy_bits = bits
                endpoint.wait()
                self.release(index)
                return False
            if index + 1 < self.count:
                journal.say(index + 1, UNSURE, 0)
                endpoint.wait()
        journal.say(self.count, 0, 0)
        # CRASH(locked): the journal names the locks; the repairing client gives them back.
        return True

    def release(self, held: int) -> None:
        """Give back the first `held` groups of the set, in the phase that its caller ends."""
        while held:
            held -= 1
            self.journal.say(held, UNSURE, 0)
            # ORDER: the rows, and the state without a path, before the locks.
            # CRASH(unlocking): as `unsure`.
            self.endpoint.mcas(self.words[held], 0, 0, 0, self.bits[held])
        self.journal.end()
