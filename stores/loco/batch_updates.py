"""Updates of several keys of a kvstore in two phases: `BatchUpdates`.

Each key is in a row, with the lock and the journal of its own; none knows of the others, and a
batch is not atomic. The verbs of a phase are posted:

    1   the locks of all rows, by one CAS each; after it, on the same node, the word of the lock's
        journal, and the entry that our index has for the key
    2   of rows whose lock we have: the new words to the journal, the intent, the entry, the end of
        the intent; then the lock is given back

So 32 updates of keys with different locks are 2 round trips. Rows whose lock an earlier row has are
updated when that is done, in the same way, all of them together. Locks are only tried: a client
that has some never waits for another. Equal keys never share a batch: it ends before the second of
them.

A row is LEFT, and put singly after the batch, if its lock is not free; if the journal has an
intent, which is to be repaired first; if our index, which is not brought up to date for this, has
no entry for the key, or that is not valid, not whole, or of another key, or links to an object; and
if key or value do not fit an entry. An entry that is valid and has the key, under the key's lock,
is the key's only one (data_array.py), so an index that is out of date does no harm. As a new key
has no entry, its lock is not even tried.

If a node is lost in phase 1, no row is changed: locks on other nodes are given back. If it is lost
in phase 2, its rows are LEFT, and its locks are gone with it.

A kill leaves behind: locks, each with what a single update leaves. A waiting client passes them
over one by one, and the next holder of each completes what its journal says.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.errors import LimpetError, NodeFailed
from limpet.stores.core.base import Window
from limpet.stores.core.status import BATCH, INSERT, LEFT, MADE, READY
from limpet.stores.loco.data_array import EntryJournal
from limpet.stores.loco.layout import INTENT, UPDATING
from limpet.stores.loco.local_index import LocalIndex
from limpet.stores.loco.locking import Locking
from limpet.stores.loco.lookup import Lookup
from limpet.stores.loco.parameters import LocoParameters
from limpet.stores.race.batch import Batch

DEFERRED: Final = 4
"""The state of a row whose lock an earlier row has."""


class BatchUpdates:
    """Puts pairs whose keys are there to a kvstore. Used within operations."""

    def __init__(
        self, client: Any, lookup: Lookup, locking: Locking, parameters: LocoParameters
    ) -> None:
        self.client = client
        self.endpoint = lookup.endpoint
        self.lookup = lookup
        self.locking = locking
        self.key_size = parameters.key_size
        self.value_size = parameters.value_size
        self.journal = EntryJournal(lookup.endpoint)
        self.entries = lookup.rows
        self.batch = Batch(BATCH)
        self.batch.width = BATCH
        self.states = self.batch.states
        self.locks: list[Any] = [None] * BATCH
        self.tables = array("Q", bytes(8 * BATCH))
        self.found = array("Q", bytes(8 * BATCH))
        """Of each row: the entry that our index has."""
        self.journals = array("Q", bytes(8 * BATCH))
        self.tickets = self.batch.tickets
        """Of each row: that of its lock, or of its end."""
        self.intents = array("Q", bytes(8 * BATCH))
        self.held = array("Q", bytes(8 * BATCH))
        """1: we have the lock; or, before its `wait`, its CAS is posted."""
        self.count = 0

    def put(self, pairs: Any, start: int, left: list[int], window: Window | None) -> int:
        """Put the pairs from `start` on that make a batch, or, with a window, which has the pairs,
        put or update them; which pair comes next. Those to be put one by one are appended to
        `left`."""
        batch = self.batch
        self.count = batch.take_in(pairs, start, 0, None if window is None else window.modes)
        if window is not None:
            window.end = start + max(self.count, 1)
        if not self.count:
            left.append(start)
            return start + 1
        ready = self._select()
        while ready > 1:
            try:
                self._lock_all()
                self._update_all()
            finally:
                self._unlock_all()
            ready = self._choose_deferred()
        batch.leave_out(start, left)
        return start + self.count

    def _select(self) -> int:
        """Find the entries of the rows in our indexes, and their locks; how many may be updated."""
        lookup = self.lookup
        lookup.make_rows()
        for row in range(self.count):
            key, value = self.batch.keys[row], self.batch.values[row]
            hashed = self.batch.hashes[row]
            table = self.tables[row] = (hashed >> 32) * lookup.table_count >> 32
            self.held[row] = 0
            fits = len(key) <= self.key_size and len(value) <= self.value_size
            fits = fits and self.batch.modes[row] != INSERT
            self.states[row] = READY if fits else LEFT
            index: LocalIndex = lookup.indexes[table]
            if fits and index.is_ready(hashed):
                index.prefetch(hashed)
            else:
                self.states[row] = LEFT
        ready = 0
        for row in range(self.count):
            if self.states[row] == READY:
                ready += self._choose(row)
        return ready

    def _choose_deferred(self) -> int:
        """`_choose` for the rows that were deferred; how many may be updated now."""
        ready = 0
        for row in range(self.count):
            if self.states[row] == DEFERRED:
                self.states[row] = READY
                ready += self._choose(row)
        return ready

    def _choose(self, row: int) -> bool:
        """Find the entry and the lock of a row; False: it is LEFT, or DEFERRED."""
        table, hashed = self.tables[row], self.batch.hashes[row]
        index: LocalIndex = self.lookup.indexes[table]
        entry = index.find(hashed)
        if entry < 0:
            self.states[row] = LEFT
            return False
        number = index.lock_of(hashed)
        journal = self.locking.journal_of(table, number)
        if self._has(row, journal):
            self.states[row] = DEFERRED
            return False
        entries = self.entries[row]
        entries.base = index.entries.base
        self.endpoint.prefetch(entries.address(entry), 8 * entries.entry_words, True)
        self.endpoint.prefetch(journal, 64, True)
        self.found[row] = entry
        self.locks[row] = self.locking.lock(table, number)
        self.journals[row] = journal
        return True

    def _has(self, row: int, journal: int) -> bool:
        """Whether an earlier row has the lock with this journal."""
        same = 0
        for other in range(row):
            same += self.states[other] == READY and self.journals[other] == journal
        return same != 0

    # ---- phase 1 --------------------------------------------------------------------------------

    def _lock_all(self) -> None:
        """Try the locks of all rows, and read what is under them. A row whose lock we do not have,
        or that is not to be updated, is LEFT."""
        endpoint, mine = self.endpoint, self.client.ident
        lost = 0
        try:
            for row in range(self.count):
                if self.states[row] == READY:
                    lock, entries = self.locks[row], self.entries[row]
                    self.tickets[row] = endpoint.post_cas(lock.address, 0, mine)
                    self.held[row] = 1
                    # ORDER: read after the lock was taken, on the same node.
                    self.intents[row] = endpoint.post_load(self.journals[row] + INTENT)
                    entries.post(self.found[row])
        except NodeFailed as error:
            lost = 1 << error.node
        # A kill here leaves locks under which no change was begun; waiting clients pass them over.
        lost = self._wait(lost)
        for row in range(self.count):
            if self.states[row] == READY:
                node = self.journals[row] >> NODE_SHIFT & 0xFF
                self.held[row] = (
                    self.held[row]
                    and not lost >> node & 1
                    and not endpoint.failed(self.journals[row])
                    and endpoint.result(self.tickets[row]) == 0
                )
                if lost or not self.held[row] or not self._may_update(row):
                    self.states[row] = LEFT

    def _wait(self, lost: int) -> int:
        """End the phase; the nodes that are lost, as bits, with those of `lost`."""
        while True:
            try:
                self.endpoint.wait()
                return lost
            except NodeFailed as error:
                lost |= 1 << error.node

    def _may_update(self, row: int) -> bool:
        """Whether the entry of a row, whose lock we have, is that of its key, and in order."""
        entries = self.entries[row]
        self.intents[row] = self.endpoint.result(self.intents[row])
        return (
            not self.journal.found(self.intents[row])
            and entries.is_valid()
            and entries.key_is(self.batch.keys[row])
            and entries.is_whole()
            and not entries.link()
        )

    # ---- phase 2 --------------------------------------------------------------------------------

    def _update_all(self) -> None:
        """Update the entries of all rows under their locks."""
        for row in range(self.count):
            if self.states[row] == READY:
                self.states[row] = LEFT
                try:
                    self._update(row)
                    self.states[row] = MADE
                except NodeFailed:
                    self.held[row] = 0  # the lock is gone with its node
                except LimpetError:
                    pass  # its single put meets the error again

    def _update(self, row: int) -> None:
        """As `Writer._update`, of a value in the entry itself."""
        entries, journal, entry = self.entries[row], self.journal, self.found[row]
        state = entries.state()
        count = entries.compose(state, self.batch.keys[row], self.batch.values[row], 0)
        journal.at = self.journals[row]
        journal.found(self.intents[row])
        journal.keep(entries, count)
        journal.declare(UPDATING, entry, state)
        # A kill from here on is as one in `Writer._update`.
        entries.write(entry, count, 0)
        # ORDER: the whole entry before the journal, and that before the lock.
        journal.end()

    def _unlock_all(self) -> None:
        """Give back the locks of all rows that have one."""
        endpoint, mine = self.endpoint, self.client.ident
        lost = 0
        posted = False
        for row in range(self.count):
            if self.held[row]:
                try:
                    lock = self.locks[row]
                    # LINEARIZES: free.
                    self.tickets[row] = endpoint.post_cas(lock.address, mine, 0)
                    posted = True
                except NodeFailed as error:
                    lost |= 1 << error.node
                    self.held[row] = 0
        if posted:
            lost = self._wait(lost)
        for row in range(self.count):
            node = self.journals[row] >> NODE_SHIFT & 0xFF
            if self.held[row] and (lost >> node & 1 or endpoint.result(self.tickets[row]) == mine):
                self.held[row] = 0
        failed: BaseException | None = None
        for row in range(self.count):
            if self.held[row]:
                self.held[row] = 0
                try:
                    self._dropped(row)
                except BaseException as raised:
                    failed = raised  # of a signal handler: the other locks are given back first
        if failed is not None:
            raise failed

    def _dropped(self, row: int) -> None:
        """After the CAS that should have given a lock back: other clients wait for it."""
        lock = self.locks[row]
        try:
            lock.dropped(self.endpoint.result(self.tickets[row]))
        except NodeFailed:
            pass  # the lock is gone with its node
        except BaseException:
            if lock.is_ours():
                lock.drop()
            raise
