"""Finding a key in an `rcuckoo` store, and reading its value (RCuckoo sections 3.1 and 3.2.1).

A key is looked up by reading both of its rows in one phase, by one covering read if they are
adjacent. An entry is valid if its row is whole. Before a key counts as missing, the versions of
both rows are read again: between the two reads it may have been moved from the row that was read
later to the one that was read first (C3). A long value is read from its extent. `get_many` has the
same two phases for all of its keys.
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
from limpet.stores.core.status import AGAIN, DONE, MISSING
from limpet.stores.rcuckoo.layout import INLINE, LOOKS_MAX
from limpet.stores.rcuckoo.locks import LockJournal, Locks
from limpet.stores.rcuckoo.parameters import RcuckooParameters
from limpet.stores.rcuckoo.rows import DependentHash, Rows

SPARE: Final = 2
"""A place in `rows` behind those of a key's two rows; and the next one."""


class KeyRows:
    """The two rows of a key, and its entry in them.

    `hash`: of the key. `table`: its number. `first`, `second`: its rows. `at`: the places in `Rows`
    that they are read to, this one and the next; `at_first`, `at_second`: those of each. `place`,
    `slot`: of its entry there, if it was found. It is valid within the operation that has chosen
    it; outside of that it only guides the wait.
    """

    def __init__(self, at: int = 0) -> None:
        self.hash = 0
        self.table = 0
        self.first = 0
        self.second = 0
        self.at = at
        self.at_first = at
        self.at_second = at + 1
        self.place = 0
        self.slot = 0
        self.ticket_first = 0
        self.ticket_second = 0
        """Of the versions that are read again."""


class Lookup(InlineIndex):
    """The tables of a store, and finding keys in them, for one client. `found`: the result of
    the running operation."""

    def __init__(
        self, pool: Any, name: str, parameters: RcuckooParameters, objects: Objects
    ) -> None:
        """`objects`: reads extents."""
        super().__init__()
        self.name = name
        self.endpoint = pool.endpoint
        self.objects = objects
        clients = pool.parameters.clients
        size = parameters.table_size(clients)
        self.tables = array("Q", regions.attach(pool, name, parameters.tables, size))
        self.journal_size = parameters.journal_size
        self.locks_at = parameters.locks_at(clients)
        self.rows_at = parameters.rows_at(clients)
        self.row_count = parameters.rows
        self.places = DependentHash(parameters.rows, parameters.locality)
        self.rows = Rows(pool.endpoint, parameters)
        self.journal = LockJournal(pool.endpoint, parameters.entry_words)
        self.locks = Locks(pool.endpoint, pool.client, parameters, self.journal)
        self.found = KeyRows()
        self.batch: list[KeyRows] = []
        self.extents: list[Objects] = []
        """For each key of a batch, its rows and a reader of its extent, once they are needed."""

    def replaced(self, node: int) -> None:
        """From now on, this memory node has new memory."""
        for table in range(len(self.tables)):
            self.tables[table] = former(self.tables[table], node)

    # ---- steps of operations --------------------------------------------------------------------

    def find_once(self, key: bytes, attempt: int) -> int:
        found = self.found
        self.choose(found, key)
        self.post(found)
        self.endpoint.wait()
        if self.find(found, key):
            if self.rows.is_whole(found.place):
                return DONE
            self.locks.wait_for(self.row_at(found, found.place))
        elif self.are_settled(found):
            return MISSING
        if attempt > LOOKS_MAX and self.is_damaged(found):
            raise self.damaged(found)
        return AGAIN

    def glance(self, key: bytes) -> int:
        found = self.found
        self.choose(found, key)
        self.post(found)
        self.endpoint.wait()
        if self.find(found, key):
            proven = self.rows.is_whole(found.place) and not self.is_object()
            return DONE if proven else AGAIN
        return MISSING if self.are_settled(found) else AGAIN

    def is_object(self) -> bool:
        return not self.header(self.found) & INLINE

    def value_found(self) -> bytes:
        return self.value(self.found)

    def get_batch(self, keys: list[bytes], found: list[bytes | None]) -> list[int]:
        """Append the values of at most BATCH keys; the places of those whose rows are changing."""
        busy = []
        later = []
        start = len(found)
        self._make_batch(len(keys))
        for index, key in enumerate(keys):
            at = self.batch[index]
            self.choose(at, key)
            self.prefetch(at)
        for index in range(len(keys)):
            at = self.batch[index]
            self.enter_table(self.tables[at.table])
            self.post(at)
        self.endpoint.wait()
        for index, key in enumerate(keys):
            at = self.batch[index]
            value = None
            if not self.find(at, key):
                self.enter_table(self.tables[at.table])
                self._post_versions(at)
                later.append(index)
            elif not self.rows.is_whole(at.place):
                busy.append(start + index)
            elif self.header(at) & INLINE:
                value = self.rows.value(at.place, at.slot)
            else:
                self._extent(index).post(self.header(at) & REFERENCE_MASK)
                later.append(index)
            found.append(value)
        if later:
            self.endpoint.wait()
        for index in later:
            at = self.batch[index]
            if at.slot >= 0:
                extent = self._extent(index)
                extent.arrived()
                found[start + index] = extent.value()
            elif not self._are_whole(at) or not self._are_unchanged(at):
                busy.append(start + index)
        return busy

    def _make_batch(self, count: int) -> None:
        """Have places for the rows of so many keys."""
        while len(self.batch) < count:
            self.batch.append(KeyRows(2 * len(self.batch)))
        # ORDER: before any row is read there.
        self.rows.room(2 * count)

    def _extent(self, index: int) -> Objects:
        """The reader of the extent of this key of a batch."""
        while len(self.extents) <= index:
            self.extents.append(self.objects.reader())
        return self.extents[index]

    # ---- the place of a key ---------------------------------------------------------------------

    def choose(self, found: KeyRows, key: bytes) -> None:
        """Work out a key's hash, table and rows; set rows and locks to those of the table."""
        found.hash = hash64(key)
        found.table = self.table_of(found.hash)
        self.enter_table(self.tables[found.table])
        self.places.place(found.hash)
        found.first = self.places.first
        found.second = self.places.second

    def table_of(self, hashed: int) -> int:
        """The table of a key, by its hash."""
        return (hashed >> 32) * len(self.tables) >> 32

    def node_of(self, key: bytes) -> int:
        """The node with the key's table, and with its extent."""
        return self.tables[self.table_of(hash64(key))] >> NODE_SHIFT & 0xFF

    def enter_table(self, base: int) -> None:
        """Set rows and locks to those of the table at this address."""
        self.rows.base = base + self.rows_at
        self.locks.base = base + self.locks_at

    def prefetch(self, found: KeyRows) -> None:
        """Prefetch a key's rows."""
        size = 8 * self.rows.row_words
        self.endpoint.prefetch(self.rows.address(found.first), size)
        self.endpoint.prefetch(self.rows.address(found.second), size)

    def post(self, found: KeyRows) -> None:
        """Post the reads of the key's rows to its places; of adjacent ones one covering read."""
        rows = self.rows
        found.at_first = found.at
        found.at_second = found.at + 1
        if found.second == found.first + 1:
            rows.post(found.at, found.first, 2)
        elif found.first == found.second + 1:
            found.at_first, found.at_second = found.at_second, found.at_first
            rows.post(found.at, found.second, 2)
        else:
            self.endpoint.prefetch(rows.address(found.second), 8 * rows.row_words)
            rows.post(found.at_first, found.first, 1)
            rows.post(found.at_second, found.second, 1)

    def find(self, found: KeyRows, key: bytes) -> bool:
        """Whether the rows that were read have the key; `place` and `slot` are its entry's then."""
        fingerprint = found.hash & 0xFF
        found.place = found.at_first
        found.slot = self.rows.find(found.place, key, fingerprint)
        if found.slot < 0:
            found.place = found.at_second
            found.slot = self.rows.find(found.place, key, fingerprint)
        return found.slot >= 0

    def row_at(self, found: KeyRows, place: int) -> int:
        """The row of the key that was read to this one of its places."""
        return found.first if place == found.at_first else found.second

    def are_settled(self, found: KeyRows) -> bool:
        """Whether both rows are whole, and have not changed since both were read; a phase, if they
        are whole.

        So at the end of that read the key's state in both rows was the one that was read.
        """
        if not self._are_whole(found):
            return False
        self._post_versions(found)
        self.endpoint.wait()
        return self._are_unchanged(found)

    def _are_whole(self, found: KeyRows) -> bool:
        """Whether both rows are whole; else we wait for the lock of one that is not."""
        for place in range(found.at, found.at + 2):
            if not self.rows.is_whole(place):
                self.locks.wait_for(self.row_at(found, place))
                return False
        return True

    def _post_versions(self, found: KeyRows) -> None:
        """Post loads of the rows' versions."""
        # ORDER: after both rows were read.
        found.ticket_first = self.endpoint.post_load(self.rows.trailer(found.first))
        found.ticket_second = self.endpoint.post_load(self.rows.trailer(found.second))

    def _are_unchanged(self, found: KeyRows) -> bool:
        """After the phase of `_post_versions`: whether they are as they were read with the rows."""
        self.locks.wait_for(found.first)
        first = self.endpoint.result(found.ticket_first)
        second = self.endpoint.result(found.ticket_second)
        rows = self.rows
        return first == rows.version(found.at_first) and second == rows.version(found.at_second)

    # ---- the entry ------------------------------------------------------------------------------

    def header(self, found: KeyRows) -> int:
        """The header of the entry that was found."""
        return self.rows.header(found.place, found.slot)

    def value(self, found: KeyRows) -> bytes:
        """The value of the entry that was found; of an extent, a phase."""
        header = self.header(found)
        if header & INLINE:
            return self.rows.value(found.place, found.slot)
        self.objects.post(header & REFERENCE_MASK)
        self.endpoint.wait()
        self.objects.arrived()
        return self.objects.value()

    def copies_of(self, found: KeyRows, key: bytes) -> int | None:
        """The number of its rows that have a key; None: they are being changed."""
        self.choose(found, key)
        self.post(found)
        self.endpoint.wait()
        if not self.are_settled(found):
            return None
        first = self.rows.find(0, key, found.hash & 0xFF) >= 0
        return int(first) + (self.rows.find(1, key, found.hash & 0xFF) >= 0)

    def header_of(self, found: KeyRows, key: bytes) -> int | None:
        """The header of a key's entry; 0: it has none; None: its rows are being changed."""
        self.choose(found, key)
        self.post(found)
        self.endpoint.wait()
        there = self.find(found, key)
        if not self.are_settled(found):
            return None
        return self.header(found) if there else 0

    # ---- damage ---------------------------------------------------------------------------------

    def is_damaged(self, found: KeyRows) -> bool:
        """Whether one of the rows that were read is not whole, and no client is writing it."""
        for place in range(found.at, found.at + 2):
            if not self.rows.is_whole(place) and self.is_torn(self.row_at(found, place)):
                return True
        return False

    def is_torn(self, row: int) -> bool:
        """Whether a row of the present table is not whole, and no client is writing it.

        "Not whole" and "not locked" are two facts of two moments (trap C13): a writer may end, and
        another one begin, between them. So the row is read once more after its lock: if a client
        had been writing it at the first read, it would have another version by now.
        """
        rows, locks = self.rows, self.locks
        rows.room(SPARE + 2)
        rows.read(SPARE, row, 1)
        if rows.is_whole(SPARE):
            return False
        locks.wait_for(row)
        # ORDER: the row, its lock, the row again.
        if self.endpoint.load(locks.busy):
            return False
        rows.read(SPARE + 1, row, 1)
        return rows.is_same(SPARE, SPARE + 1)

    def damaged(self, found: KeyRows) -> StoreCorrupt:
        """The error when `is_damaged`."""
        return StoreCorrupt(
            f"{self.name}: row {found.first} or {found.second} of table {found.table} does not "
            "match its CRC, and no client is writing it: memory was damaged. Other keys can be "
            "read; destroy the pool"
        )
