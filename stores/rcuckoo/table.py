"""RCuckoo: a cuckoo hash table that its clients lock and change themselves, with inline values.

Grant and Snoeren, "Cuckoo for Clients: Disaggregated Cuckoo Hashing" (rcuckoo.txt). One table on
each memory node, chosen by the key's hash; the layout of a table is in fields.py. A key's entry is
in one of two rows (dependent_hash.py) of 8 entries (rows.py), under locks (locks.py) that journals
(journal.py) tell whose they are.

Get (section 3.2.1): read both rows, by one covering read if they are adjacent. An entry counts if
its row is whole. Before a key is called missing, the versions of both rows are read again: between
the two reads it may have been moved from the one that was read later to the one that was read first
(C3). A long value is read from its extent.

Update, delete (3.2.2): take the locks of both rows and read them; write the entry, version and CRC;
give the locks back. A long value is written to a new extent before.

Insert (3.2.3): the same if one of the key's rows has an empty entry. Else the rows under the locks
that are held are read, and a path is searched among them (search.py); if there is none, the locks
are given back, a path is searched in the cache, its rows are locked and read, and the search made
again among the locked rows. Entries move one at a time, from the end of the path on, so that each
is always in one of its rows. Both rows of the new key are locked, and not only the path: else
somebody may insert the key into the other one (C9).

What is linearized: each row has its value from CRC to CRC, and a key has the value that it has in
either row; a key in both rows has the same value in both, as they are locked until it is in one.

What a kill leaves behind: locks, perhaps a row that is not whole, perhaps entries in two rows; and
a journal that says so, in the hand (client.py), so that whoever recovers the client repairs the
table (repair.py), before its slot can be another client's. An extent is in hand from before it is
in use until it is linked, and its link is decided by the rows of its key, wherever they have moved
since.

Whoever waits for a lock, or for a row that is not whole, looks in the journals whose it is. If that
client is dead it recovers it, at once, where the paper waits 100 ms; if it stands still for a lease
it is killed first (section 5 of docs/operations.md: or waited for, if the pool says so).

Limits that are the paper's: rows have a fixed size, the table does not grow; a client that stands
still while it holds a lock is waited for, for a lease; nothing is replicated.

Deviations, besides: an insert reads all rows under its locks only when it needs a path (the paper
always does); the table is checked for a path from both of the key's rows.

Round trips without conflict: get 1 (2 for a miss or an extent), update and delete 2, insert 2, and
3 or more when it needs a path.
"""

from __future__ import annotations

import functools
from array import array
from typing import Any, Final

from limpet.shm.errors import KeyExists, KeyTooLarge, NodeFailed, StoreCorrupt, StoreFull
from limpet.shm.fabric import hash64
from limpet.shm.layout import NODE_SHIFT
from limpet.shm.slots import INCARNATION_BITS
from limpet.shm.states import former
from limpet.shm.words import REFERENCE_MASK, REPLICATED
from limpet.stores import regions
from limpet.stores.contract import Store, as_bytes
from limpet.stores.objects import Objects
from limpet.stores.race.outcomes import (
    AGAIN,
    BATCH,
    DONE,
    EXISTS,
    FULL,
    INSERT,
    MISSING,
    NO_MEMORY,
    PUT,
    UPDATE,
)
from limpet.stores.rcuckoo.dependent_hash import DependentHash
from limpet.stores.rcuckoo.fields import (
    DELETE,
    FOUND,
    INLINE,
    JOURNALS,
    LACKING,
    LOST,
    PATH_MAX,
    TRAILER_WORDS,
)
from limpet.stores.rcuckoo.journal import Journal
from limpet.stores.rcuckoo.locks import Locks
from limpet.stores.rcuckoo.parameters import RcuckooParameters
from limpet.stores.rcuckoo.repair import JOURNAL, Repair
from limpet.stores.rcuckoo.rows import Rows
from limpet.stores.rcuckoo.search import PathSearch
from limpet.stores.rcuckoo.survey import Survey

MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
PATIENCE: Final = 8
"""After so many attempts, and as many more each time, a client looks whom it waits for."""
PLANS_MAX: Final = 64
"""How often a search asks for rows that it lacks."""


class Rcuckoo(Store):
    """The `rcuckoo` store. `RcuckooParameters`."""

    Parameters = RcuckooParameters
    resolves = True

    def __init__(self, pool: Any, kind: str, name: str, parameters: RcuckooParameters) -> None:
        super().__init__(pool, kind, name, parameters)
        clients = pool.parameters.clients
        self.link = pool.catalogue.find(name.encode()).number << 48 | REPLICATED
        size = parameters.table_size(clients)
        self.tables = array("Q", regions.attach(pool, name, parameters.tables, size))
        self.journal_size = parameters.journal_size
        self.locks_at = parameters.locks_at(clients)
        self.rows_at = parameters.rows_at(clients)
        self.row_count = parameters.rows
        self.key_size = parameters.key_size
        self.value_size = parameters.value_size
        self.rows_per_lock = parameters.rows_per_lock
        self.objects = Objects(pool.heap)
        self.places = DependentHash(parameters.rows, parameters.locality)
        self.rows = Rows(pool.endpoint, parameters)
        self.journal = Journal(pool.endpoint)
        self.locks = Locks(pool.endpoint, parameters, self.journal)
        self.searches = [PathSearch(parameters, self.places) for _ in range(parameters.tables)]
        self.hash = 0
        self.table = 0
        self.first = 0
        self.second = 0
        self.at_first = 0
        self.at_second = 1
        """Places of the key's rows in `rows`."""
        self.place = 0
        self.slot = 0
        self.planned = 0
        """Rows of the path that was found in the cache; they are in `plan_rows`."""
        self.plan_rows = array("Q", bytes(8 * PATH_MAX))

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
        self.forget()

    def forget(self) -> None:
        for search in self.searches:
            search.forget()

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
                outcome = self._get_once(key)
                if outcome == DONE:
                    return self._value()
            finally:
                self.client.leave()
            if outcome == MISSING:
                return default
            attempt += 1
            self._stay(attempt)

    def get_many(self, keys: Any) -> list[bytes | None]:
        """The values of `keys`, in their order; None for each that is missing. The reads overlap:
        1 round trip for each 32 keys, 2 if one of them is missing or has a long value.
        """
        wanted = [key if type(key) is bytes else as_bytes("key", key) for key in keys]
        found: list[bytes | None] = []
        self.operations += len(wanted)
        for start in range(0, len(wanted), BATCH):
            # one pin a batch: a pin held for long looks like a process that stands still
            self.client.enter()
            try:
                busy = self._get_batch(wanted[start : start + BATCH], found)
            finally:
                self.client.leave()
            for index in busy:
                found[index] = self.get(wanted[index])
        return found

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

    def put(self, key: Any, value: Any) -> None:
        """Insert or update. Raises KeyTooLarge, ValueTooLarge, StoreFull; then nothing changed."""
        self._write(key, value, PUT)

    def insert(self, key: Any, value: Any) -> None:
        """Insert; KeyExists if the key is there. 2 round trips. Raises as `put` does."""
        if self._write(key, value, INSERT) == EXISTS:
            raise KeyExists(f"{self.name}: the key {key!r} is there already")

    def update(self, key: Any, value: Any) -> None:
        """Update; KeyError if the key is not there. 2 round trips. Raises as `put` does."""
        if self._write(key, value, UPDATE) == MISSING:
            raise KeyError(key)

    def delete(self, key: Any) -> None:
        """Delete; KeyError if the key is not there. 2 round trips."""
        if self._change(as_bytes("key", key), b"", 0, DELETE) == MISSING:
            raise KeyError(key)

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
        trailer = 8 * (rows.row_words - TRAILER_WORDS)
        # ORDER: after both rows were read.
        first = self.endpoint.load(rows.address(self.first) + trailer)
        second = self.endpoint.load(rows.address(self.second) + trailer)
        self.locks.wait_for(self.first)
        return first == rows.version(self.at_first) and second == rows.version(self.at_second)

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

    # ---- changing -------------------------------------------------------------------------------

    def _write(self, key: Any, value: Any, mode: int) -> int:
        if type(key) is not bytes:
            key = as_bytes("key", key)
        if type(value) is not bytes:
            value = as_bytes("value", value)
        if len(key) > self.key_size:
            raise KeyTooLarge(
                f"{self.name}: the key has {len(key)} bytes; the store was made with "
                f"key_size={self.key_size}"
            )
        size = 0 if len(value) <= self.value_size else self.objects.size_of(key, value)
        return self._change(key, value, size, mode)

    def _change(self, key: bytes, value: bytes, size: int, mode: int) -> int:
        """Make attempts at a write until one comes to something; `size`: bytes of its extent."""
        self.operations += 1
        attempt = 0
        self.planned = 0
        tried = False
        while True:
            self.client.enter()
            try:
                outcome = self._change_once(key, value, size, mode, attempt > 0)
            finally:
                self.client.leave()
            if outcome == NO_MEMORY:
                self.allocator.replenish(self.tables[self.table] >> NODE_SHIFT & 0xFF, size)
            elif outcome == AGAIN:
                attempt += 1
                self._stay(attempt)
            elif outcome == LOST:
                # There was no path among the locked rows.
                self.retries += 1
                if not self._plan():
                    if tried:
                        raise StoreFull(self._why_full(key))
                    # What is cached may be out of date.
                    tried = True
                    self.searches[self.table].forget()
                    self.planned = 0
            else:
                return outcome

    def _why_full(self, key: bytes) -> str:
        return (
            f"{self.name}: no room for the key {key!r}, by up to {self.parameters.depth} moves; "
            f"the store was made with capacity {self.parameters.capacity}"
        )

    def _change_once(self, key: bytes, value: bytes, size: int, mode: int, again: bool) -> int:
        self._choose(key)
        self._open_journal()
        reference = 0
        if size:
            reference = self.allocator.allocate(
                self.tables[self.table] >> NODE_SHIFT & 0xFF, size, 1
            )
            if not reference:
                self.client.keep(0)
                return NO_MEMORY
            self.client.aim(1, self.link)
            self.objects.write(reference, key, value)
        outcome = self._locked(key, value, reference, mode, again)
        if outcome == DONE:
            # Of the hand, in order: the journal, the new extent, the old one.
            held = 2 if reference else 1
            if self.client.held > held:
                self.client.release(held)
            if reference:
                self.client.keep(1)
        elif reference:
            self.client.release(1)
        self.client.keep(0)
        return outcome

    def _open_journal(self) -> None:
        """Take our journal of the table in hand."""
        base = self.tables[self.table]
        slot = self.client.ident >> INCARNATION_BITS
        self.journal.at = base + JOURNALS + slot * self.journal_size
        if self.journal.owner() != self.client.ident:
            self.journal.adopt(self.client.ident)
        self.client.hold(self.journal.at | JOURNAL, self.link)

    def _locked(self, key: bytes, value: bytes, reference: int, mode: int, again: bool) -> int:
        """Lock, look, and write if there is something to write; the locks are given back."""
        locks = self.locks
        locks.plan()
        locks.add(self.first)
        locks.add(self.second)
        for index in range(self.planned):
            locks.add(self.plan_rows[index])
        if not locks.acquire(again):
            return AGAIN
        self._read_pair()
        if self.planned:
            self._learn_locked()
        self.endpoint.wait()
        outcome = self._work(key, value, reference, mode)
        locks.release(locks.count)
        self.endpoint.wait()
        return outcome

    def _work(self, key: bytes, value: bytes, reference: int, mode: int) -> int:
        rows = self.rows
        for index in range(2):
            if not rows.is_whole(index):
                self._damaged(self.first if index == self.at_first else self.second)
        if self._find(key):
            if mode == INSERT:
                return EXISTS
            header = rows.header(self.place, self.slot)
            if not header & INLINE:
                self.client.hold(header & REFERENCE_MASK, self.link)
            self._commit_one(key, value, reference, mode)
            return DONE
        if mode == UPDATE or mode == DELETE:
            return MISSING
        self.place = self.at_first
        self.slot = rows.vacant(self.place)
        if self.slot < 0:
            self.place = self.at_second
            self.slot = rows.vacant(self.place)
        if self.slot >= 0:
            self._commit_one(key, value, reference, mode)
            return DONE
        if not self.planned:
            self._learn_locked()
            self.endpoint.wait()
        if self.searches[self.table].search(self.first, self.second, True) != FOUND:
            return LOST
        self._commit_path(key, value, reference)
        return DONE

    def _damaged(self, row: int) -> None:
        """A row that we have locked is not whole: that is damage, which no client's death does."""
        self.locks.release(self.locks.count)
        raise StoreCorrupt(
            f"{self.name}: row {row} of table {self.table} does not match its CRC, and nobody is "
            "writing it; destroy the pool, or the store is read as it is"
        )

    def _enter(self, place: int, slot: int, key: bytes, value: bytes, reference: int) -> None:
        """Set the entry there to the new pair."""
        if reference:
            self.rows.put_extent(place, slot, self.hash & 0xFF, key, reference)
        else:
            self.rows.put_inline(place, slot, self.hash & 0xFF, key, value)

    def _commit_one(self, key: bytes, value: bytes, reference: int, mode: int) -> None:
        """Write one entry of one of the key's rows: the one at `place` and `slot`."""
        rows = self.rows
        row = self.first if self.place == self.at_first else self.second
        version = rows.version(self.place)
        if mode == DELETE:
            rows.clear(self.place, self.slot)
        else:
            self._enter(self.place, self.slot, key, value, reference)
        self.journal.step(0, row, self.slot, version)
        self.journal.commit(rows, self.place, self.slot, 1)
        # CRASH(committed): nothing is written; who repairs leaves the row as it is.
        rows.write(self.place, row, self.slot, version + 1 & MASK)
        # CRASH(written): the row is whole and new; who repairs gives the locks back.

    def _commit_path(self, key: bytes, value: bytes, reference: int) -> None:
        """Move the entries of the path that was found, from its end on, and write the new one."""
        rows, search, journal = self.rows, self.searches[self.table], self.journal
        length = search.length
        for step in range(length):
            row = search.path_rows[step]
            at = 2 + search.place_of(row)
            if not rows.is_whole(at):
                self._damaged(row)
            journal.step(step, row, search.path_slots[step], rows.version(at))
        # Of the key's rows, the first two places have copies that are not needed any more.
        self._enter(0, 0, key, value, reference)
        journal.commit(rows, 0, 0, length)
        for step in range(length - 1, -1, -1):
            row, slot = search.path_rows[step], search.path_slots[step]
            at = 2 + search.place_of(row)
            if step:
                before = 2 + search.place_of(search.path_rows[step - 1])
                rows.copy(at, slot, before, search.path_slots[step - 1])
            else:
                rows.copy(at, slot, 0, 0)
            rows.write(at, row, slot, rows.version(at) + 1 & MASK)
            # CRASH(moving): entries are in two rows; who repairs moves them back.

    # ---- paths ----------------------------------------------------------------------------------

    def _learn_locked(self) -> None:
        """Read all rows under the locks that we hold, a lock's at a time, to the places from 2 on.

        The search knows them then.
        """
        search = self.searches[self.table]
        search.release()
        for index in range(2 + self.planned):
            row = self._locked_row(index)
            if search.place_of(row) >= 0:
                continue
            begin = row // self.rows_per_lock * self.rows_per_lock
            count = min(self.rows_per_lock, self.row_count - begin)
            held = search.hold(begin, count)
            self.rows.room(2 + held + count)
            self.rows.read(2 + held, begin, count)
            for offset in range(count):
                at = 2 + held + offset
                search.learn_locked(self.rows, at, begin + offset, held + offset)

    def _locked_row(self, index: int) -> int:
        if index < 2:
            return self.second if index else self.first
        return self.plan_rows[index - 2]

    def _plan(self) -> bool:
        """Find a path in the cache, reading what it lacks; whether there is one."""
        search = self.searches[self.table]
        for _ in range(PLANS_MAX):
            outcome = search.search(self.first, self.second, False)
            if outcome == FOUND:
                self.planned = search.length
                for step in range(search.length):
                    self.plan_rows[step] = search.path_rows[step]
                return True
            if outcome != LACKING:
                return False
            self._learn_unknown()
        return False

    def _learn_unknown(self) -> None:
        search = self.searches[self.table]
        self.client.enter()
        try:
            self.rows.room(search.lacking)
            for index in range(search.lacking):
                self.rows.read(index, search.unknown[index], 1)
            self.endpoint.wait()
            for index in range(search.lacking):
                search.learn(self.rows, index, search.unknown[index])
        finally:
            self.client.leave()

    # ---- waiting --------------------------------------------------------------------------------

    def _stay(self, attempt: int) -> None:
        """Wait a little, and look now and then whom we wait for."""
        self.retries += 1
        self.endpoint.pause(attempt)
        if attempt % PATIENCE == 0:
            self.look_after()

    def look_after(self) -> None:
        """Recover who has the lock that we wait for, if it is dead, or stands still for a lease."""
        repair = Repair(self, self.tables[self.table])
        word, bits = self.locks.busy, self.locks.busy_bits
        self.pool.exclusively(functools.partial(repair.look_after, word, bits))

    def resolved(self, reference: int, home: int) -> bool:
        """Decide a pair of a hand: repair for a dead client, or for ourselves (contract.py)."""
        return bool(Repair.resolved(self, reference))

    # ---- the whole table ------------------------------------------------------------------------

    def __len__(self) -> int:
        return int(self.pool.exclusively(Survey(self).count))

    def keys(self) -> Any:
        """Every key that was there all the while; see Survey.keys."""
        return Survey(self).keys()

    def references(self) -> Any:
        """References to all extents on nodes in service, as uint64; for audits."""
        return Survey(self).references()

    def check(self) -> None:
        """Verify every invariant of the tables in memory; StoreCorrupt says what does not hold."""
        Survey(self).check()

    def left_by(self, ident: int) -> set[str]:
        return Survey(self).left_by(ident)
