"""Finding keys in a kvstore: gets, which take no lock.

A client looks a key up in its own index of the table (local_index.py), and reads the entry
(data_array.py). store.py has the linearization points.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from limpet.shm.endpoint.fabric import hash64
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.states import former
from limpet.shm.endpoint.words import REFERENCE_MASK
from limpet.shm.errors import StoreCorrupt
from limpet.stores.core import regions
from limpet.stores.core.inline import InlineIndex
from limpet.stores.core.records import Objects
from limpet.stores.core.status import AGAIN, BATCH, DONE, MISSING
from limpet.stores.loco.data_array import DataArray
from limpet.stores.loco.layout import TORN
from limpet.stores.loco.local_index import LocalIndex, Tracker
from limpet.stores.loco.parameters import LocoParameters

PATIENCE: Final = 8
"""After so many attempts a get takes the key's lock."""


class KeyEntry:
    """A key's table, and its entry there.

    `hash`: of the key. `table`: its number; `index`, `entries`: of the table. `entry`: the one that
    was read, or -1. It is valid within the operation that has chosen it.
    """

    def __init__(self, index: LocalIndex) -> None:
        self.hash = 0
        self.table = 0
        self.index = index
        self.entries: DataArray = index.entries
        self.entry = -1


class Lookup(InlineIndex):
    """The tables of a store, and finding keys in them, for one client. `found`: the result of
    the running operation."""

    def __init__(self, pool: Any, name: str, parameters: LocoParameters, objects: Objects) -> None:
        """`objects`: reads values that are too long for an entry."""
        super().__init__()
        self.name = name
        self.endpoint = pool.endpoint
        self.objects = objects
        self.tables = regions.attach(pool, name, parameters.tables, parameters.table_size)
        self.table_count = parameters.tables
        self.entries_at = parameters.entries_at
        self.reaches_at = parameters.reaches_at
        self.indexes: list[LocalIndex] = []
        for base in self.tables:
            entries = DataArray(pool.endpoint, base + self.entries_at, parameters)
            tracker = Tracker(pool.endpoint, base, parameters.tracker)
            reaches = base + parameters.reaches_at
            self.indexes.append(LocalIndex(entries, tracker, reaches, pool.membership.progress))
        self.found = KeyEntry(self.indexes[0])
        self.batch = array("Q", bytes(16 * BATCH))
        """For each key of a batch: hash and table."""

    def replaced(self, node: int) -> None:
        """From now on, this memory node has other memory: what was there is lost, and the indexes
        of the other tables are as good as before."""
        for number, base in enumerate(self.tables):
            lost = former(base, node)
            if lost != base:
                self.tables[number] = lost
                self.indexes[number].tracker.move(lost)
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
            # ORDER: the index is up to date before the key is looked up, and entries are read (L3).
            found.index.refresh(found.hash)
        outcome = self.look_up(found, key)
        self.endpoint.wait()
        if outcome == TORN:
            if late:
                raise self.damaged(found, found.entry)
            return AGAIN
        return outcome

    def glance(self, key: bytes) -> int:
        found = self.found
        self.choose(found, key)
        # ORDER: as in `find_once`.
        if not found.index.is_current(found.hash):
            return AGAIN
        outcome = self.look_up(found, key)
        self.endpoint.wait()
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
        """Append the values of at most BATCH keys; the places of those that are undecided: torn, or
        not in the index."""
        at = self.found
        torn = []
        linked = False
        self.expect_keys(keys)
        for row in range(len(keys)):
            self._turn_to_row(at, row)
            at.index.refresh(at.hash)
        for row, key in enumerate(keys):
            self._turn_to_row(at, row)
            value = None
            # If it began anew for a later row, it does not have the keys of this one's home.
            outcome = self.look_up(at, key) if at.index.is_ready(at.hash) else TORN
            if outcome == DONE:
                linked = linked or at.entries.link() != 0
                value = self._value(at.entries)
            elif outcome == TORN:
                torn.append(len(found))
            found.append(value)
        self.endpoint.wait()
        if linked:
            self.endpoint.wait()
        return torn

    def expect_keys(self, keys: list[bytes]) -> None:
        """Prefetch the places of at most BATCH keys."""
        at = self.found
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

    # ---- the place of a key ---------------------------------------------------------------------

    def choose(self, found: KeyEntry, key: bytes) -> None:
        """Work out a key's hash and table."""
        found.hash = hash64(key)
        self.enter_table(found, (found.hash >> 32) * self.table_count >> 32)

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

    def look_up(self, found: KeyEntry, key: bytes) -> int:
        """Read the entry of the key that was chosen, whose index is up to date: `entry`.

        DONE, TORN, or MISSING.
        """
        entries = found.entries
        found.entry = found.index.find(found.hash)
        while found.entry >= 0:
            # LINEARIZES: get; or, if the key is missing, when the index was brought up to date, or
            # when an entry was changed since then
            entries.read(found.entry)
            if entries.is_valid() and entries.key_is(key):
                return DONE if entries.is_whole() else TORN
            found.entry = found.index.find_next()
        return MISSING

    def damaged(self, found: KeyEntry, entry: int) -> StoreCorrupt:
        """The error for an entry that stays torn."""
        return StoreCorrupt(
            f"{self.name}: entry {entry} of table {found.table} does not match its checksum, and "
            "no client is writing it: memory was damaged. Other keys can be read; destroy the pool"
        )
