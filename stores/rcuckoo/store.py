"""RCuckoo: a cuckoo hash table that its clients lock and change themselves, with inline values.

Grant and Snoeren, "Cuckoo for Clients: Disaggregated Cuckoo Hashing". One table on
each memory node, chosen by the key's hash; the layout of a table is in layout.py. A key's entry is
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

A kill leaves behind: locks, perhaps a row that is not whole, perhaps entries in two rows; and
a journal that says so, in the hand (client.py), so that whoever recovers the client repairs the
table (repair.py), before its slot can be another client's. An extent is in hand from before it is
in use until it is linked, and its link is decided by the rows of its key, wherever they have moved
since.

A client that waits for a lock, or for a row that is not whole, looks in the journals whose it is.
If the owner is dead the client recovers it, at once, where the paper waits 100 ms; if the owner
stands still for a lease it is killed first, or waited for, if the pool says so
(docs/operations.md).

Limits that are the paper's: rows have a fixed size, the table does not grow; a client that stands
still while it holds a lock is waited for, for a lease; nothing is replicated.

Deviations, besides: an insert reads all rows under its locks only when it needs a path (the paper
always does); the table is checked for a path from both of the key's rows.

Round trips without conflict: get 1 (2 for a miss, and for an extent that is read at once), update,
delete and insert 2, one more for each group of locks after the first, and for a path.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.slots import INCARNATION_BITS
from limpet.shm.endpoint.words import REFERENCE_MASK
from limpet.shm.errors import StoreFull
from limpet.stores.rcuckoo.layout import (
    FOUND,
    INLINE,
    JOURNALS,
    LACKING,
    LOST,
    PATH_MAX,
)
from limpet.stores.rcuckoo.lookup import Lookup
from limpet.stores.rcuckoo.parameters import RcuckooParameters
from limpet.stores.rcuckoo.repair import JOURNAL
from limpet.stores.rcuckoo.search import PathSearch
from limpet.stores.status import (
    AGAIN,
    DELETE,
    DONE,
    EXISTS,
    FULL,
    INSERT,
    MISSING,
    NO_MEMORY,
    UPDATE,
)

MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
PLANS_MAX: Final = 256
"""How often a search asks for rows that it lacks."""
LOST_MAX: Final = 1000
"""How often a path that was found may be gone when it is locked."""


class Rcuckoo(Lookup):
    """The `rcuckoo` store. `RcuckooParameters`."""

    def __init__(self, pool: Any, kind: str, name: str, parameters: RcuckooParameters) -> None:
        super().__init__(pool, kind, name, parameters)
        self.rows_per_lock = parameters.rows_per_lock
        self.searches: list[PathSearch | None] = [None] * parameters.tables
        """Of each table, when an insert has needed one."""
        self.planned = 0
        """Rows of the path that was found in the cache; they are in `plan_rows`."""
        self.plan_rows = array("Q", bytes(8 * PATH_MAX))
        self.plan_hash = 0
        """Of the key that it was found for."""

    def replaced(self, node: int) -> None:
        super().replaced(node)
        self.forget()

    def forget(self) -> None:
        self.searches = [None] * len(self.searches)

    # ---- changing -------------------------------------------------------------------------------

    def _change(self, key: bytes, value: bytes, size: int, mode: int) -> int:
        """Make attempts at a write until one comes to something; `size`: bytes of its extent."""
        self.operations += 1
        self.planned = 0
        attempt = lost = 0
        tried = False
        while True:
            self.client.enter()
            try:
                self.require_there()
                outcome = self._change_once(key, value, size, mode, attempt > 0)
                if outcome == LOST and not self._plan():
                    outcome = FULL
                    # What is cached may be out of date.
                    self.search().forget()
                    self.planned = 0
            finally:
                self.client.leave()
            if outcome == NO_MEMORY:
                self.have_memory(key, mode, self.node_of(key), size)
            elif outcome == AGAIN:
                attempt += 1
                self._stay(attempt)
            elif (outcome == FULL and tried) or lost > LOST_MAX:
                raise StoreFull(self._why_full(key))
            elif outcome in (FULL, LOST):
                self.retries += 1
                lost += 1
                tried = tried or outcome == FULL
            else:
                return outcome

    def _why_full(self, key: bytes) -> str:
        return (
            f"{self.name}: no room for the key {key!r}, by up to {self.parameters.depth} moves; "
            f"the store was made with capacity {self.parameters.capacity}"
        )

    def _change_once(self, key: bytes, value: bytes, size: int, mode: int, again: bool) -> int:
        self._choose(key)
        self._plan_locks()
        # ORDER: before memory is taken, which is not used again while who has the locks is pinned.
        if again and not self.locks.are_free():
            return AGAIN
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
        outcome = self._locked(key, value, reference, mode)
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

    def _plan_locks(self) -> None:
        """Have the set of locks be those of the key's rows, and of the path that was found."""
        locks = self.locks
        if self.plan_hash != self.hash:
            self.planned = 0  # another thread's, for another key
        locks.plan()
        locks.add(self.first)
        locks.add(self.second)
        for index in range(self.planned):
            locks.add(self.plan_rows[index])

    def _locked(self, key: bytes, value: bytes, reference: int, mode: int) -> int:
        """Lock, look, and write if there is something to write; the locks are given back."""
        locks = self.locks
        if not locks.acquire():
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
        found = self._find(key)
        for index in range(2):
            if not (found and index != self.place) and not rows.is_whole(index):
                self.locks.release(self.locks.count)
                raise self._damaged()
        if found:
            if mode == INSERT:
                return EXISTS
            header = rows.header(self.place, self.slot)
            if not header & INLINE:
                self.client.hold(header & REFERENCE_MASK, self.link)
            self._commit_one(key, value, reference, mode)
            return DONE
        if mode in (UPDATE, DELETE):
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
        if self.search().search(self.first, self.second, True) != FOUND:
            return LOST
        self._commit_path(key, value, reference)
        return DONE

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
        rows, search, journal = self.rows, self.search(), self.journal
        length = search.length
        for step in range(length):
            row = search.path_rows[step]
            at = 2 + search.place_of(row)
            if not rows.is_whole(at):
                self.locks.release(self.locks.count)
                raise self._damaged()
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

    def search(self) -> PathSearch:
        """The search of the present table."""
        search = self.searches[self.table]
        if search is None:
            search = self.searches[self.table] = PathSearch(self.parameters, self.places)
        return search

    def _learn_locked(self) -> None:
        """Read all rows under the locks that we hold, a lock's at a time, to the places from 2 on.

        The search knows them then.
        """
        search = self.search()
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
        search = self.search()
        search.begin()
        for _ in range(PLANS_MAX):
            outcome = search.search(self.first, self.second, False)
            if outcome == FOUND:
                self.planned = search.length
                self.plan_hash = self.hash
                for step in range(search.length):
                    self.plan_rows[step] = search.path_rows[step]
                return True
            if outcome != LACKING:
                return False
            self._learn_unknown()
        return False

    def _learn_unknown(self) -> None:
        """Read the rows that a search has missed, without locks."""
        search = self.search()
        self.rows.room(search.lacking)
        for index in range(search.lacking):
            self.rows.read(index, search.unknown[index], 1)
        self.endpoint.wait()
        for index in range(search.lacking):
            row = search.unknown[index]
            search.keep(search.learn(self.rows, index, row), row)
