"""Finding keys in a kvstore: gets, which take no lock.

A client looks a key up in its own index of the table (local_index.py), and reads the entry
(data_array.py). store.py has the linearization points.

An entry that stays torn is being written by a client that stands still, or is dead. A get takes
the lock of a dead one, and repairs (locking.py). It does not wait for one that stands still, but
returns the new value out of the redo image in the lock's journal (`_redone`). Why that is right,
with two phases on one node, where order is kept:

    1  the lock, the intent, the claim, the entry
    2  the redo image, the intent

If the intent is the same twice, with its sequence, one update of this entry was under way all the
time, and its redo image was whole before the intent. The updates before it had ended, so it is this
one that tore the entry: at least one of its words was there in phase 1. From then on no client
finds the entry whole with its old value: the update, or the repair after its kill, makes it the new
one. So the get is linearized in phase 1, after the update.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from limpet.shm.endpoint.fabric import hash64
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.states import former
from limpet.shm.endpoint.words import REFERENCE_MASK
from limpet.shm.errors import StoreCorrupt
from limpet.stores.channels.lock.ticket_layout import HOLDER
from limpet.stores.core import regions
from limpet.stores.core.inline import InlineIndex
from limpet.stores.core.records import Objects
from limpet.stores.core.status import AGAIN, BATCH, DONE, MISSING
from limpet.stores.loco.data_array import DataArray, EntryJournal
from limpet.stores.loco.layout import (
    CHECKSUM,
    CLAIM,
    INTENT,
    INTENT_MASK,
    INTENT_SHIFT,
    REDO,
    TORN,
    UPDATING,
)
from limpet.stores.loco.local_index import LocalIndex, Trackers
from limpet.stores.loco.parameters import LocoParameters

PATIENCE: Final = 8
"""After so many attempts a get takes the key's lock, unless its holder lives."""


class KeyEntry:
    """A key's table, and its entry there.

    `hash`: of the key; `lock`: the number of its lock. `table`: its number; `index`, `entries`: of
    the table. `entry`: the one that was read, or -1. `position`: of the tracker, as it was loaded
    before. It is valid within the operation that has chosen it.
    """

    def __init__(self, index: LocalIndex) -> None:
        self.hash = 0
        self.lock = 0
        self.table = 0
        self.index = index
        self.entries: DataArray = index.entries
        self.entry = -1
        self.position = 0


class Lookup(InlineIndex):
    """The tables of a store, and finding keys in them, for one client. `found`: the result of
    the running operation."""

    def __init__(self, pool: Any, name: str, parameters: LocoParameters, objects: Objects) -> None:
        """`objects`: reads values that are too long for an entry."""
        super().__init__()
        self.name = name
        self.endpoint = pool.endpoint
        self.membership = pool.membership
        self.objects = objects
        self.journal = EntryJournal(pool.endpoint)
        self.tables = regions.attach(pool, name, parameters.tables, parameters.table_size)
        self.table_count = parameters.tables
        self.entries_at = parameters.entries_at
        self.reaches_at = parameters.reaches_at
        self.locks_at = parameters.locks_at
        self.journal_at = parameters.journal_at
        self.record_size = parameters.record_size
        self.indexes: list[LocalIndex] = []
        for base in self.tables:
            entries = DataArray(pool.endpoint, base + self.entries_at, parameters)
            trackers = Trackers(pool.endpoint, base, parameters)
            reaches = base + parameters.reaches_at
            self.indexes.append(LocalIndex(entries, trackers, reaches, pool.membership.progress))
        self.found = KeyEntry(self.indexes[0])
        self.parameters = parameters
        self.batch = array("Q", bytes(16 * BATCH))
        """For each key of a batch: hash and table."""
        self.rows: list[DataArray] = []
        """For each key of a batch: the data array of its table, with the words that were read for
        it. Made for the first batch."""
        self.tickets = array("Q", bytes(8 * BATCH))
        """For each key of a batch: that of the position."""
        self.places = array("Q", bytes(8 * BATCH))
        """For each key of a batch: 1 + the entry that is read, or 0."""

    def replaced(self, node: int) -> None:
        """From now on, this memory node has other memory: what was there is lost, and the indexes
        of the other tables are as good as before."""
        for number, base in enumerate(self.tables):
            lost = former(base, node)
            if lost != base:
                self.tables[number] = lost
                self.indexes[number].trackers.base = lost
                self.indexes[number].entries.base = lost + self.entries_at
                self.indexes[number].reaches = lost + self.reaches_at
                self.indexes[number].forget()

    def forget(self) -> None:
        """Forget all keys."""
        for index in self.indexes:
            index.forget()

    # ---- steps of operations --------------------------------------------------------------------

    def is_late(self, attempt: int) -> bool:
        """Whether this attempt of a get takes the key's lock: then the writer has ended, or died
        and its entry was repaired."""
        return attempt != 0 and attempt % PATIENCE == 0

    def find_once(self, key: bytes, attempt: int) -> int:
        found = self.found
        late = attempt != 0 and self.is_late(attempt)
        if not late:
            self.choose(found, key)
            if not found.index.is_ready(found.hash):
                found.index.refresh(found.hash)
            self.read(found)
            if not found.index.is_current(found.lock, found.position):
                # ORDER: the index is up to date before the key is looked up, and entries are read
                # (L3).
                found.index.refresh(found.hash)
                self.seek(found)
        outcome = self.look_up(found, key)
        if outcome == TORN:
            if late:
                raise self.damaged(found, found.entry)
            return self._redone(found, key) if self.is_late(attempt + 1) else AGAIN
        return outcome

    def _redone(self, found: KeyEntry, key: bytes) -> int:
        """Read the value that the entry will have, which was torn: DONE. AGAIN: it is not being
        updated any more, or the client that updates it is dead."""
        endpoint, entries, journal = self.endpoint, found.entries, self.journal
        at = self.tables[found.table] + self.locks_at + found.lock * self.record_size
        journal.at = at + self.journal_at
        lock = endpoint.post_load(at)
        intent = endpoint.post_load(journal.at + INTENT)
        claim = endpoint.post_load(journal.at + CLAIM)
        # ORDER: the entry after the intent, and before the look whether that is still the same.
        entries.post(found.entry)
        endpoint.wait()
        holder = endpoint.result(lock) & HOLDER
        before = endpoint.result(intent)
        updated = journal.found(before)
        if (
            updated & INTENT_MASK != UPDATING
            or updated >> INTENT_SHIFT != found.entry
            or endpoint.result(claim) != entries.state()
            or entries.is_whole()
            or not self.membership.lives(holder)
        ):
            return AGAIN
        count = entries.entry_words - CHECKSUM
        endpoint.post_read(journal.at + REDO, entries.words, count, CHECKSUM)
        intent = endpoint.post_load(journal.at + INTENT)
        endpoint.wait()
        # LINEARIZES: get, as the entry was read above
        if endpoint.result(intent) == before and entries.is_whole() and entries.key_is(key):
            return DONE
        return AGAIN

    def glance(self, key: bytes) -> int:
        found = self.found
        self.choose(found, key)
        if not found.index.is_ready(found.hash):
            return AGAIN
        self.read(found)
        # ORDER: as in `find_once`.
        if not found.index.is_current(found.lock, found.position):
            return AGAIN
        outcome = self.look_up(found, key)
        if outcome == TORN or (outcome == DONE and self.is_object()):
            return AGAIN
        return outcome

    def is_object(self) -> bool:
        return self.found.entries.link() != 0

    def value_found(self) -> bytes:
        entries = self.found.entries
        if entries.link():
            value = self._value(entries)
            self.endpoint.wait()
            return value
        return entries.value()

    def _value(self, entries: DataArray) -> bytes:
        """The value of the entry that was read."""
        link = entries.link()
        if not link:
            return entries.value()
        self.objects.load(link & REFERENCE_MASK)
        return self.objects.value()

    def get_batch(self, keys: list[bytes], found: list[bytes | None]) -> list[int]:
        """Append the values of at most BATCH keys; the places of those that are undecided: torn, in
        another entry than the first of the index, or changed since."""
        at = self.found
        undecided = []
        linked = False
        self.expect_keys(keys)
        for row in range(len(keys)):
            self._turn_to_row(at, row)
            if not at.index.is_ready(at.hash):
                at.index.refresh(at.hash)
        self._read_rows(len(keys))
        late = False
        for row in range(len(keys)):
            self._turn_to_row(at, row)
            if not self._is_current(at, row):
                at.index.refresh(at.hash)
                late = True
        if late:
            self._read_rows(len(keys))
        for row, key in enumerate(keys):
            self._turn_to_row(at, row)
            value = None
            entries = self.rows[row]
            if not self._is_current(at, row):
                undecided.append(len(found))
            elif self.places[row]:
                if entries.is_valid() and entries.key_is(key) and entries.is_whole():
                    linked = linked or entries.link() != 0
                    value = self._value(entries)
                else:
                    undecided.append(len(found))
            found.append(value)
        if linked:
            self.endpoint.wait()
        return undecided

    def _read_rows(self, count: int) -> None:
        """Read the positions and entries of so many keys of a batch in one phase."""
        at = self.found
        for row in range(count):
            self._turn_to_row(at, row)
            at.entries = self.rows[row]
            at.entries.base = at.index.entries.base
            self.tickets[row] = self.post(at)
            self.places[row] = at.entry + 1
        self.endpoint.wait()

    def _is_current(self, at: KeyEntry, row: int) -> bool:
        """Whether the index was up to date for the key of this row as its entry was read."""
        # If it began anew for a later row, it does not have the keys of this one's home.
        position = self.endpoint.result(self.tickets[row])
        return at.index.is_ready(at.hash) and at.index.is_current(at.lock, position)

    def make_rows(self) -> None:
        """Have a place for the entry of each row of a batch."""
        while len(self.rows) < BATCH:
            self.rows.append(DataArray(self.endpoint, 0, self.parameters))

    def expect_keys(self, keys: list[bytes]) -> None:
        """Prefetch the places of at most BATCH keys."""
        at = self.found
        self.make_rows()
        for row, key in enumerate(keys):
            self.choose(at, key)
            at.index.prefetch(at.hash)
            self.batch[2 * row] = at.hash
            self.batch[2 * row + 1] = at.table
        size = 8 * at.entries.entry_words
        for row in range(len(keys)):
            self._turn_to_row(at, row)
            entry = at.index.find(at.hash) if at.index.known else -1
            if entry >= 0:
                self.endpoint.prefetch(at.entries.address(entry), size)

    def _turn_to_row(self, at: KeyEntry, row: int) -> None:
        """Select a key of the batch."""
        at.hash = self.batch[2 * row]
        self.enter_table(at, self.batch[2 * row + 1])
        at.lock = at.index.lock_of(at.hash)

    # ---- the place of a key ---------------------------------------------------------------------

    def choose(self, found: KeyEntry, key: bytes) -> None:
        """Work out a key's hash, table and lock."""
        found.hash = hash64(key)
        self.enter_table(found, (found.hash >> 32) * self.table_count >> 32)
        found.lock = found.index.lock_of(found.hash)

    def table_of(self, key: bytes) -> int:
        """The number of a key's table."""
        return (hash64(key) >> 32) * self.table_count >> 32

    def node_of(self, key: bytes) -> int:
        return self.tables[self.table_of(key)] >> NODE_SHIFT & 0xFF

    def enter_table(self, found: KeyEntry, table: int) -> None:
        """Set index and entries to those of this table."""
        found.table = table
        found.index = self.indexes[table]
        found.entries = found.index.entries

    def post(self, found: KeyEntry) -> int:
        """Post the position of the tracker of the key that was chosen, and then its entry in the
        index, `entry`; the ticket of the position."""
        ticket = found.index.post_position(found.lock)
        found.entry = found.index.find(found.hash)
        if found.entry >= 0:
            found.entries.post(found.entry)
        return ticket

    def read(self, found: KeyEntry) -> None:
        """Read `position` and the entry of the key that was chosen, in one phase."""
        ticket = self.post(found)
        self.endpoint.wait()
        found.position = self.endpoint.result(ticket)

    def seek(self, found: KeyEntry) -> None:
        """Read the entry of the key that was chosen."""
        found.entry = found.index.find(found.hash)
        if found.entry >= 0:
            found.entries.post(found.entry)
            self.endpoint.wait()

    def look_up(self, found: KeyEntry, key: bytes) -> int:
        """Whether the entry that was read of the key that was chosen, whose index was up to date
        before, is its own; or another of the index: `entry`.

        DONE, TORN, or MISSING.
        """
        entries = found.entries
        while found.entry >= 0:
            # LINEARIZES: get; or, if the key is missing, when the index was brought up to date, or
            # when an entry was changed since then
            if entries.is_valid() and entries.key_is(key):
                return DONE if entries.is_whole() else TORN
            found.entry = found.index.find_next()
            if found.entry >= 0:
                entries.post(found.entry)
                self.endpoint.wait()
        return MISSING

    def damaged(self, found: KeyEntry, entry: int) -> StoreCorrupt:
        """The error for an entry that stays torn."""
        return StoreCorrupt(
            f"{self.name}: entry {entry} of table {found.table} does not match its checksum, and "
            "no client is writing it: memory was damaged. Other keys can be read; destroy the pool"
        )
