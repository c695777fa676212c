"""Journals: the locks and writes that each client is about to make in a table.

The paper's lock table does not name the holder of a lock (RCuckoo section 4.2), and its repair
recomputes the CRC of a row that was half written (section 4.3), which makes garbage valid. So each
client notes the locks before it takes them, and the rows and words before it writes them. The notes
are in words of its own beside the table, in the same batch: they cost no round trip.

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

from typing import TYPE_CHECKING, Any

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
    from limpet.stores.rcuckoo.rows import Rows


class Journal:
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
