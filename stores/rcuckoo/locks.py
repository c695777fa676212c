"""The lock table: a word for each lock, with its holder; and the journal of a client's operation.

A lock protects `rows_per_lock` rows. Locks are virtual (RCuckoo 3.4.2): lock l is word l mod P of
the table's P, so distant rows may share a word. It is 0, or the id of the client that holds it,
which never comes again. A client takes a lock by a CAS from 0 to its id, and gives it back by one
from its id to 0: so a late one of a client that was taken for dead changes nothing. The locks of an
operation are taken in ascending order, after the modulo, and each only if the one before it was
taken: all in one phase, with the reads of the rows behind them.

Deviation: the paper's lock is a bit, which a masked CAS takes with up to 63 others, so that the
table fits into the memory of a NIC; and nobody can read whose a bit is (section 4.2). Memory here
is not scarce, and a client that waits reads the holder in the lock. `locks_per_message` keeps the
paper's cost for its figures: a phase takes no more than so many adjacent locks, as a masked CAS
would; 0: it takes all.

A client that meets a taken lock gives its own back (as in section 4.1; in section 3.4.1 it spins
while it holds, so that one dead client could stop all), and tries again after a pause. It looks
whether the locks are free only before it takes memory for the attempt, or when it was refused often
(`TRIES` in writer.py).

A `LockJournal` notes what its client is about to lock and to write in a table, in words of its own
beside the table, in the phase that does it: that costs no round trip. Repair works from it; the
paper's recomputes the CRC of a row that was half written (section 4.3), which makes garbage valid.

A journal, one for each client slot of the pool

    0     owner    id of the client that used it last
    8     lease    0, or the id of the client that repairs for the owner (repair.py)
    16    held     words that end at `state`: addresses of the locks of the operation, in
                   ascending order
    88    state    bits 0-3   how many these are
                   bits 4-7   rows of the path that is being written; 0: none
                   bits 8-63  sequence, one more in each state, modulo 2^56: it shows a waiting
                              client that the holder of a lock gets on
    96    path     pairs that end at `redo`: row << 3 | slot, sequence of the row before; where the
                   new entry goes first, the empty entry last
    208   redo     the new entry: its tag and sizes in a word (layout.py), 0 if it is emptied; then
                   as it will be in the first row of the path

Its owner writes it, locks and state before it takes a lock, path and redo image and then the state
before it writes a row. Nothing is written when the operation ends: a lock of a journal counts only
if its word has the owner's id, and the path only if all of them have. The rows are complete before
the first lock is given back, and an operation that is to lock again has none until then.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

from limpet.stores.rcuckoo.layout import (
    HELD_MAX,
    OWNER,
    PATH_MAX,
    PATH_SHIFT,
    REDO,
    REDO_AT,
    SEQUENCE_MASK,
    SEQUENCE_SHIFT,
    STATE,
)

if TYPE_CHECKING:
    from limpet.stores.rcuckoo.parameters import RcuckooParameters
    from limpet.stores.rcuckoo.rows import Entry


class LockJournal:
    """Our journal of a table. Its user sets `at`, its address."""

    def __init__(self, endpoint: Any) -> None:
        self.endpoint = endpoint
        self.at = 0
        self.sequence = 0
        self.count = 0
        self.held = array("Q", bytes(8 * (1 + HELD_MAX)))
        self.path = array("Q", bytes(16 * PATH_MAX))
        self.steps = 0

    def adopt(self, ident: int) -> None:
        """Make it the journal of this client, if it is another's; not in a phase."""
        if self.endpoint.load(self.at + OWNER) != ident:
            self.endpoint.store(self.at + OWNER, ident)
        self.sequence = self.endpoint.load(self.at + STATE) >> SEQUENCE_SHIFT

    def _state(self, path: int) -> int:
        """The next state, with so many rows of a path."""
        self.sequence = self.sequence + 1 & SEQUENCE_MASK
        return self.sequence << SEQUENCE_SHIFT | path << PATH_SHIFT | self.count

    def post_held(self, words: Any, count: int) -> None:
        """Note that the first `count` locks of `words` will be taken; it begins an operation."""
        self.count = count
        self.steps = 0
        for index in range(count):
            self.held[index] = words[index]
        self.held[count] = self._state(0)
        # ORDER: the state, the last word, after the locks that it counts.
        self.endpoint.post_write(self.at + STATE - 8 * count, self.held, count + 1)

    def step(self, row: int, slot: int, sequence: int) -> None:
        """Add a step to the path: an entry of a row, and the row's sequence."""
        self.path[2 * self.steps] = row << 3 | slot
        self.path[2 * self.steps + 1] = sequence
        self.steps += 1

    def post_path(self, entry: Entry) -> None:
        """Note the path, and the new entry; and that it is written."""
        size = 2 * self.steps
        for index in range(size):
            entry.words[REDO_AT - size + index] = self.path[index]
        self.endpoint.post_write(
            self.at + REDO - 8 * size, entry.words, size + 1 + entry.count, REDO_AT - size
        )
        self.held[0] = self._state(self.steps)
        # ORDER: path and entry before the state that makes them valid, and that before any row.
        self.endpoint.post_write(self.at + STATE, self.held, 1)


class Locks:
    """The locks of the table whose lock table is at address `base`, which its user sets."""

    def __init__(
        self, endpoint: Any, client: Any, parameters: RcuckooParameters, journal: LockJournal
    ) -> None:
        self.endpoint = endpoint
        self.client = client
        self.journal = journal
        self.base = 0
        self.rows_per_lock = parameters.rows_per_lock
        self.locks = parameters.locks
        self.message = 8 * parameters.locks_per_message
        self.words = array("Q", bytes(8 * HELD_MAX))
        self.tickets = array("Q", bytes(8 * HELD_MAX))
        self.count = 0
        self.posted = 0
        self.held = 0
        self.busy = 0
        """Address of the lock for which we wait."""

    # ---- planning -------------------------------------------------------------------------------

    def plan(self) -> None:
        """Begin a set of locks."""
        self.count = 0

    def lock_at(self, row: int) -> int:
        """Address of the lock of a row."""
        return self.base + 8 * (row // self.rows_per_lock % self.locks)

    def add(self, row: int) -> None:
        """Add the row's lock to the set, which has room for 9."""
        word = self.lock_at(row)
        index = self.count
        while index and self.words[index - 1] >= word:
            index -= 1
        if index == self.count or self.words[index] != word:
            later = self.count
            while later > index:
                self.words[later] = self.words[later - 1]
                later -= 1
            self.words[index] = word
            self.count += 1

    def wait_for(self, row: int) -> None:
        """Note that we wait for the row's lock."""
        self.busy = self.lock_at(row)

    def message_of(self, index: int) -> int:
        """The number of the message that takes a lock of the set."""
        return (self.words[index] - self.base) // self.message if self.message else 0

    # ---- taking and giving back -----------------------------------------------------------------

    def are_free(self) -> bool:
        """Whether no client has a lock of the set. A phase of its own."""
        endpoint = self.endpoint
        for index in range(self.count):
            self.tickets[index] = endpoint.post_load(self.words[index])
        endpoint.wait()
        for index in range(self.count):
            if endpoint.result(self.tickets[index]):
                self.busy = self.words[index]
                return False
        return True

    def acquire(self) -> bool:
        """Post the journal's note, and the CASes that take the set: `are_taken`, after `wait`.

        Of several messages, all but the last are phases of their own; False: a lock of these is
        taken by another client, and we have none.
        """
        self.posted = self.held = 0
        self.journal.post_held(self.words, self.count)
        self._post_message()
        while self.posted < self.count:
            self.endpoint.wait()
            if not self.are_taken():
                return False
            self._post_message()
        return True

    def _post_message(self) -> None:
        """Post the CASes of the next message."""
        endpoint = self.endpoint
        ident = self.client.ident
        index = self.posted
        # ORDER: the journal's note before the first lock, and each lock after the one before it: so
        # two clients that want the same ones do not refuse each other.
        ticket = self.tickets[index] = endpoint.post_cas(self.words[index], 0, ident)
        index += 1
        while index < self.count and self.message_of(index) == self.message_of(self.posted):
            ticket = endpoint.post_cas_if(ticket, 0, self.words[index], 0, ident)
            self.tickets[index] = ticket
            index += 1
        self.posted = index

    def are_taken(self) -> bool:
        """After the phase: whether we have all locks that were posted; else we have none."""
        endpoint = self.endpoint
        while self.held < self.posted:
            if endpoint.result(self.tickets[self.held]):
                self.busy = self.words[self.held]
                if self.held:
                    self.post_release(self.held)
                    endpoint.wait()
                return False
            self.held += 1
        # CRASH(locked): the journal names the locks; the repairing client gives them back.
        return True

    def post_release(self, count: int) -> None:
        """Give back the first `count` locks of the set, in the phase that its caller ends."""
        endpoint = self.endpoint
        ident = self.client.ident
        for index in range(count):
            # ORDER: the rows before any lock.
            # CRASH(unlocking): the repairing client gives back the others.
            endpoint.post_cas(self.words[index], ident, 0)
