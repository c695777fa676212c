"""Where a key is in an `rcuckoo` store, and all operations that only read (store.py has the rest).

Get (RCuckoo section 3.2.1): read both rows, by one covering read if they are adjacent. An entry
counts if its row is whole. Before a key is called missing, the versions of both rows are read
again: between the two reads it may have been moved from the row that was read later to the one that
was read first (C3). A long value is read from its extent.

What is kept here between `enter` and `leave` is of the operation that is inside. Outside of them it
is a hint, as another thread may have come: whom to wait for, which rows to lock besides.
"""

from __future__ import annotations

import functools
from array import array
from typing import Any, Final

from limpet.shm.endpoint.fabric import hash64
from limpet.shm.endpoint.layout import NODE_SHIFT, SLOTS_USED
from limpet.shm.endpoint.states import former
from limpet.shm.endpoint.words import REFERENCE_MASK, REPLICATED
from limpet.shm.errors import StoreCorrupt
from limpet.stores import regions
from limpet.stores.base import as_bytes
from limpet.stores.inline import InlineStore
from limpet.stores.rcuckoo.check import Survey
from limpet.stores.rcuckoo.dependent_hash import DependentHash
from limpet.stores.rcuckoo.journal import Journal
from limpet.stores.rcuckoo.layout import INLINE, LOOKS_MAX
from limpet.stores.rcuckoo.locks import Locks
from limpet.stores.rcuckoo.parameters import RcuckooParameters
from limpet.stores.rcuckoo.repair import Repair
from limpet.stores.rcuckoo.rows import Rows
from limpet.stores.status import AGAIN, DONE, MISSING

PATIENCE: Final = 8
"""After so many attempts, or more where there are many clients, a client looks whom it waits for;
and again after twice as many, four times, eight times, and every eight times from then on."""
CLIENTS_PER_ATTEMPT: Final = 4
"""A look reads a word of every client's journal. It is made once in so many attempts that what it
costs each of them does not grow with the number of clients (trap C14)."""
SPARE: Final = 2
"""A place in `rows` behind those of a key's two rows; and the next one."""


class Lookup(InlineStore):
    """The tables of an `rcuckoo` store, and finding keys in them. `RcuckooParameters`."""

    Parameters = RcuckooParameters
    resolves = True

    def __init__(self, pool: Any, kind: str, name: str, parameters: RcuckooParameters) -> None:
        super().__init__(pool, kind, name, parameters)
        clients = pool.parameters.clients
        self.link = pool.entry_of(name)[0] << 48 | REPLICATED
        size = parameters.table_size(clients)
        self.tables = array("Q", regions.attach(pool, name, parameters.tables, size))
        self.journal_size = parameters.journal_size
        self.locks_at = parameters.locks_at(clients)
        self.rows_at = parameters.rows_at(clients)
        self.row_count = parameters.rows
        self.places = DependentHash(parameters.rows, parameters.locality)
        self.rows = Rows(pool.endpoint, parameters)
        self.journal = Journal(pool.endpoint)
        self.locks = Locks(pool.endpoint, parameters, self.journal)
        self.hash = 0
        self.table = 0
        self.first = 0
        self.second = 0
        self.at_first = 0
        self.at_second = 1
        """Places of the key's rows in `rows`."""
        self.place = 0
        self.slot = 0
        self._take_patience()

    @staticmethod
    def make(pool: Any, name: str, parameters: RcuckooParameters) -> None:
        """Make one region a table; zeros are an empty one."""
        size = parameters.table_size(pool.parameters.clients)
        regions.make(pool, name, parameters.tables, size)

    @staticmethod
    def unmake(pool: Any, name: str, parameters: RcuckooParameters) -> None:
        regions.unmake(pool, name, parameters.tables)

    def replaced(self, node: int) -> None:
        for table in range(len(self.tables)):
            self.tables[table] = former(self.tables[table], node)

    # ---- operations -----------------------------------------------------------------------------

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of `key`, or `default`. 1 round trip; 2 for a miss, and for a long value."""
        if type(key) is not bytes:
            key = as_bytes("key", key)
        self.operations += 1
        attempt = 0
        while True:
            self.client.enter()
            try:
                self.require_there()
                outcome = self._get_once(key)
                if outcome == DONE:
                    return self._value()
                if attempt > LOOKS_MAX and self.is_damaged():
                    raise self._damaged()
            finally:
                self.client.leave()
            if outcome == MISSING:
                return default
            attempt += 1
            self._stay(attempt)

    def _get_batch(self, keys: list[bytes], found: list[bytes | None]) -> list[int]:
        """Append the values of at most BATCH keys; the places of those whose rows are changing."""
        busy = []
        again = False
        size = 8 * self.rows.row_words
        for key in keys:
            self._choose(key)
            self.endpoint.prefetch(self.rows.address(self.first), size)
            self.endpoint.prefetch(self.rows.address(self.second), size)
        for key in keys:
            self._choose(key)
            self._read_pair()
            value = None
            if self._find(key):
                if self.rows.is_whole(self.place):
                    header = self.rows.header(self.place, self.slot)
                    again = again or not header & INLINE
                    value = self._value_at(header)
                else:
                    busy.append(len(found))
            else:
                again = True
                if not self._are_settled():
                    busy.append(len(found))
            found.append(value)
        self.endpoint.wait()
        if again:
            self.endpoint.wait()
        return busy

    # ---- where a key is -------------------------------------------------------------------------

    def _choose(self, key: bytes) -> None:
        """Work out a key's hash, table and rows."""
        self.hash = hash64(key)
        self.table = self._table_of(self.hash)
        self.enter_table(self.tables[self.table])
        self.places.place(self.hash)
        self.first = self.places.first
        self.second = self.places.second

    def _table_of(self, hashed: int) -> int:
        return (hashed >> 32) * len(self.tables) >> 32

    def node_of(self, key: bytes) -> int:
        """The node with the key's table, and with its extent."""
        return self.tables[self._table_of(hash64(key))] >> NODE_SHIFT & 0xFF

    def enter_table(self, base: int) -> None:
        """Have rows and locks be those of the table at this address."""
        self.rows.base = base + self.rows_at
        self.locks.base = base + self.locks_at

    def _read_pair(self) -> None:
        """Read the key's rows to places 0 and 1; adjacent ones by one covering read."""
        rows = self.rows
        if self.second == self.first + 1:
            self.at_first = 0
            rows.read(0, self.first, 2)
        elif self.first == self.second + 1:
            self.at_first = 1
            rows.read(0, self.second, 2)
        else:
            self.at_first = 0
            self.endpoint.prefetch(rows.address(self.second), 8 * rows.row_words)
            rows.read(0, self.first, 1)
            rows.read(1, self.second, 1)
        self.at_second = 1 - self.at_first

    def _find(self, key: bytes) -> bool:
        """Whether the rows that were read have the key; then `place` and `slot` are its entry's."""
        fingerprint = self.hash & 0xFF
        self.place = self.at_first
        self.slot = self.rows.find(self.place, key, fingerprint)
        if self.slot < 0:
            self.place = self.at_second
            self.slot = self.rows.find(self.place, key, fingerprint)
        return self.slot >= 0

    def _get_once(self, key: bytes) -> int:
        self._choose(key)
        self._read_pair()
        self.endpoint.wait()
        if self._find(key):
            rows = self.rows
            if rows.is_whole(self.place):
                return DONE
            self.locks.wait_for(self.first if self.place == self.at_first else self.second)
            return AGAIN
        settled = self._are_settled()
        self.endpoint.wait()
        return MISSING if settled else AGAIN

    def _are_settled(self) -> bool:
        """Whether both rows are whole, and have not changed since both were read.

        So at the end of that read the key had, in both, what it has there.
        """
        rows = self.rows
        for place in range(2):
            if not rows.is_whole(place):
                self.locks.wait_for(self.first if place == self.at_first else self.second)
                return False
        # ORDER: after both rows were read.
        first = self.endpoint.load(rows.trailer(self.first))
        second = self.endpoint.load(rows.trailer(self.second))
        self.locks.wait_for(self.first)
        return first == rows.version(self.at_first) and second == rows.version(self.at_second)

    def is_damaged(self) -> bool:
        """Whether one of the rows that were read is not whole, and nobody is writing it."""
        for place in range(2):
            if not self.rows.is_whole(place):
                row = self.first if place == self.at_first else self.second
                if self.is_torn(row):
                    return True
        return False

    def is_torn(self, row: int) -> bool:
        """Whether a row of the present table is not whole, and nobody is writing it.

        "Not whole" and "not locked" are two facts of two moments (trap C13): a writer may end, and
        another one begin, between them. So the row is read once more after its lock: had somebody
        been writing it at the first read, it would be another version of it by now.
        """
        rows, locks = self.rows, self.locks
        rows.room(SPARE + 2)
        rows.read(SPARE, row, 1)
        if rows.is_whole(SPARE):
            return False
        locks.wait_for(row)
        # ORDER: the row, its lock, the row again.
        if self.endpoint.load(locks.busy) & locks.busy_bits:
            return False
        rows.read(SPARE + 1, row, 1)
        return rows.is_same(SPARE, SPARE + 1)

    def _damaged(self) -> StoreCorrupt:
        return StoreCorrupt(
            f"{self.name}: row {self.first} or {self.second} of table {self.table} does not match "
            "its CRC, and nobody is writing it: memory was damaged. Other keys can be read; "
            "destroy the pool"
        )

    def copies_of(self, key: bytes) -> int | None:
        """In how many of its rows a key is; None: they are being changed."""
        self._choose(key)
        self._read_pair()
        self.endpoint.wait()
        if not self._are_settled():
            return None
        first = self.rows.find(0, key, self.hash & 0xFF) >= 0
        return int(first) + (self.rows.find(1, key, self.hash & 0xFF) >= 0)

    def header_of(self, key: bytes) -> int | None:
        """The header of a key's entry; 0: it has none; None: its rows are being changed."""
        self._choose(key)
        self._read_pair()
        self.endpoint.wait()
        found = self._find(key)
        if not self._are_settled():
            return None
        return self.rows.header(self.place, self.slot) if found else 0

    def _value(self) -> bytes:
        """The value of the entry at `place` and `slot`."""
        header = self.rows.header(self.place, self.slot)
        if not header & INLINE:
            self.endpoint.wait()
        return self._value_at(header)

    def _value_at(self, header: int) -> bytes:
        if header & INLINE:
            return self.rows.value(self.place, self.slot)
        self.objects.load(header & REFERENCE_MASK)
        return self.objects.value()

    # ---- waiting --------------------------------------------------------------------------------

    def _stay(self, attempt: int) -> None:
        """Wait a little, and look now and then whom we wait for."""
        self.retries += 1
        self.endpoint.pause(attempt)
        turn = attempt // self.patience
        if attempt == turn * self.patience and (not turn & turn - 1 or not turn & 7):
            self.look_after()
        if attempt > LOOKS_MAX:
            self._refuse_stray()

    def _refuse_stray(self) -> None:
        """StoreCorrupt when we wait for a lock that is set, and that no client has."""
        base, word, bits = self.tables[self.table], self.locks.busy, self.locks.busy_bits
        survey = self.survey()
        for attempt in range(LOOKS_MAX):
            if word == 0 or not survey.stray(base, word) & bits:
                break
            self.endpoint.pause(attempt)
        else:
            raise StoreCorrupt(
                f"{self.name}: locks {bits:#x} of the word at {word:#x} are set, and no client "
                "says that it has them: memory was damaged; destroy the pool"
            )

    def _take_patience(self) -> None:
        """Know how many attempts a look is worth, with as many clients as there are now."""
        used = self.endpoint.load(SLOTS_USED)
        self.patience = max(PATIENCE, used // CLIENTS_PER_ATTEMPT)

    def look_after(self) -> None:
        """Recover who has the lock that we wait for, if it is dead, or stands still for a lease."""
        self._take_patience()
        repair = Repair(self, self.tables[self.table])
        word, bits = self.locks.busy, self.locks.busy_bits
        self.pool.exclusively(self.look_whether_there)
        self.pool.exclusively(functools.partial(repair.look_after, word, bits))

    def resolved(self, reference: int, home: int) -> bool:
        """Decide a pair of a hand: repair for a dead client, or for ourselves (base.py)."""
        return bool(Repair.resolved(self, reference))

    def survey(self) -> Survey:
        return Survey(self)
