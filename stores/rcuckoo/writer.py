"""Writing entries in an `rcuckoo` store (RCuckoo sections 3.2.2 and 3.2.3).

An update or a delete locks the key's two rows and reads them, in one phase; in the next one it
writes its entry and the sequence of the row (rows.py), and gives the locks back. An insert goes
through the paper's phases:

    speculative search      a path is searched in the cache (search.py). Before the first attempt
                            nothing is read for it: if one of the key's rows is not cached, or has a
                            vacant entry there, or there is no path, the attempt assumes the
                            degenerate path, to a vacant entry of the key's rows
    locks                   of the key's rows, and of the path (locks.py)
    cache synchronization   the rows under these locks are read
    second search           a path is searched among these rows only; if there is none, the locks
                            are given back, and the insert begins anew with a search in the cache
    execution               entries move one at a time, from the end of the path on, so that each
                            is always in one of its rows; the locks are given back

Both rows of the new key are locked, and not only the path: else another client may insert the key
into the other row (C9). Deviations: rows other than the key's are read only when a path is needed.
A `put`, which may find its key, searches only after an attempt that has not found it.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.slots import INCARNATION_BITS
from limpet.stores.core.base import Attempt
from limpet.stores.core.status import (
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
from limpet.stores.rcuckoo.layout import EMPTY, FOUND, LACKING, LOST, PATH_MAX
from limpet.stores.rcuckoo.lookup import KeyRows, Lookup
from limpet.stores.rcuckoo.parameters import RcuckooParameters
from limpet.stores.rcuckoo.repair import JOURNAL
from limpet.stores.rcuckoo.rows import Entry, LockedRows, Row
from limpet.stores.rcuckoo.search import PathSearch

MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
TRIES: Final = 16
"""After so many refusals a client looks at the locks before it tries again, which reads the rows in
vain. Before that, a look costs more: a round trip in which another client takes the lock."""
WRITTEN: Final = 2
"""A write adds this to the sequence of its row."""
PLANS_MAX: Final = 256
"""How often a search asks for missing rows."""


class Plan(Attempt):
    """The path of one insert, which it locks besides the key's rows."""

    def __init__(self) -> None:
        super().__init__()
        self.is_sought = True
        """Whether the next attempt begins with a speculative search."""
        self.length = 0
        self.rows = array("Q", bytes(8 * PATH_MAX))
        self.lost = 0
        """How often there was no path among the locked rows."""
        self.full = 0
        """How often there was no path in the cache."""


class Writer:
    """Writes by one handle of a store. `link` names the store in the client journal."""

    def __init__(self, pool: Any, lookup: Lookup, parameters: RcuckooParameters, link: int) -> None:
        self.endpoint = pool.endpoint
        self.client = pool.client
        self.allocator = pool.allocator
        self.lookup = lookup
        self.rows = lookup.rows
        self.locks = lookup.locks
        self.journal = lookup.journal
        self.parameters = parameters
        self.rows_per_lock = parameters.rows_per_lock
        self.link = link
        self.entry = Entry(parameters)
        self.moved = Entry(parameters)
        """The entries that are written: the new one; one that moves."""
        self.searches = lookup.searches
        self.locked = LockedRows(
            lookup.rows, min(parameters.rows, parameters.rows_per_lock), lookup.direct
        )
        self.adopted = array("Q", bytes(8 * parameters.tables))
        """For each table, our id when we have made its journal ours."""

    def forget(self) -> None:
        """Forget all rows, and which journals are ours."""
        for table in range(len(self.searches)):
            self.searches[table] = None
        self.adopted = array("Q", bytes(8 * len(self.adopted)))

    def search(self, table: int) -> PathSearch:
        """The search of a table."""
        search = self.searches[table]
        if search is None:
            search = self.searches[table] = PathSearch(self.parameters, self.lookup.places)
        return search

    def change(
        self,
        found: KeyRows,
        key: bytes,
        value: bytes,
        size: int,
        mode: int,
        attempt: int,
        plan: Plan | None,
        expected: bytes | None = None,
    ) -> int:
        """Attempt a write of a key that was chosen; `size`: bytes of its extent, or 0. `expected`:
        it is made only if this is the value; else EXISTS.

        DONE, EXISTS, MISSING; AGAIN: a lock is taken; NO_MEMORY; LOST: it takes a path, and there
        is none among the rows that were locked; FULL: there is none in the cache.
        """
        if plan is None:
            if mode == INSERT:
                plan = self._guess_path(found)
        elif plan.is_sought and not self._search_speculatively(found, plan):
            return FULL
        self._plan_locks(found, plan)
        # ORDER: before memory is taken, which is not used again while the holder of the locks is
        # pinned.
        if attempt and (size or attempt > TRIES) and not self.locks.are_free():
            return AGAIN
        self._open_journal(found)
        reference = 0
        if size:
            node = self.lookup.tables[found.table] >> NODE_SHIFT & 0xFF
            reference = self.allocator.allocate(node, size, 1)
            if not reference:
                self.client.drop(0)
                return NO_MEMORY
            self.client.retarget(1, self.link)
            self.lookup.objects.write(reference, key, value)
        outcome = self._change_locked(found, key, value, reference, mode, plan, expected)
        self._settle_hand(outcome, reference)
        return outcome

    def _settle_hand(self, outcome: int, reference: int) -> None:
        """Settle the client journal, in order: the journal, the new extent, the old one."""
        if outcome == DONE:
            held = 2 if reference else 1
            if self.client.held > held:
                self.client.release(held)
            if reference:
                self.client.drop(1)
        elif reference:
            self.client.release(1)
        self.client.drop(0)

    # ---- speculative search ---------------------------------------------------------------------

    def _search_speculatively(self, found: KeyRows, plan: Plan) -> bool:
        """Find a path in the cache, and read missing rows; whether there is one."""
        search = self.search(found.table)
        search.begin()
        for _ in range(PLANS_MAX):
            outcome = search.search(found.first, found.second, None)
            if outcome == FOUND:
                self._plan_path(plan, search)
                return True
            if outcome != LACKING:
                break
            self._learn_unknown(search)
        # The cache may be out of date.
        search.forget()
        plan.is_sought = False
        plan.length = 0
        return False

    def _guess_path(self, found: KeyRows) -> Plan | None:
        """The path that the first attempt of an insert should lock, by cached rows alone."""
        search = self.searches[found.table]
        if search is None or not search.knows(found.first) or not search.knows(found.second):
            return None
        if search.search(found.first, found.second, None) != FOUND or search.length == 1:
            return None
        plan = Plan()
        self._plan_path(plan, search)
        return plan

    def _plan_path(self, plan: Plan, search: PathSearch) -> None:
        """Have the path that a search has found."""
        plan.is_sought = False
        plan.length = search.length
        for step in range(search.length):
            plan.rows[step] = search.path_rows[step]

    def _learn_unknown(self, search: PathSearch) -> None:
        """Read the rows that a search has missed, without locks."""
        rows = self.rows
        images = []
        for index in range(search.lacking):
            image = rows.image(1, False)
            rows.post(image, search.unknown[index], 1)
            images.append(image)
        self.endpoint.wait()
        found = rows.row(False)
        for index in range(search.lacking):
            row = search.unknown[index]
            found.arrive(images[index], 0)
            search.keep(search.cache_row(found, row), row)

    # ---- locks ----------------------------------------------------------------------------------

    def _plan_locks(self, found: KeyRows, plan: Plan | None) -> None:
        """Set the locks to those of the key's rows, and of the path."""
        locks = self.locks
        locks.plan()
        locks.add(found.first)
        locks.add(found.second)
        if plan is not None:
            for index in range(plan.length):
                locks.add(plan.rows[index])

    def _open_journal(self, found: KeyRows) -> None:
        """Add our journal of the table to the client journal."""
        ident = self.client.ident
        base = self.lookup.tables[found.table]
        self.journal.at = base + (ident >> INCARNATION_BITS) * self.lookup.journal_size
        if self.adopted[found.table] != ident:
            self.journal.adopt(ident)
            self.adopted[found.table] = ident
        self.client.log(self.journal.at | JOURNAL, self.link)

    def _change_locked(
        self,
        found: KeyRows,
        key: bytes,
        value: bytes,
        reference: int,
        mode: int,
        plan: Plan | None,
        expected: bytes | None,
    ) -> int:
        """Lock and look, in one phase; write if there is a change, and give the locks back."""
        locks = self.locks
        if not locks.acquire():
            return AGAIN
        planned = plan is not None and plan.length > 0
        if planned:
            self._hold_locked(found, plan)
        # ORDER: the rows after their locks were taken, on the same node.
        if not planned or found.direct:
            self.lookup.post(found)
        if planned:
            self._post_locked(found)
        self.endpoint.wait()
        if not locks.are_taken():
            return AGAIN
        self._arrive(found, planned)
        outcome = self._execute(found, key, value, reference, mode, plan, expected)
        locks.post_release(locks.count)
        self.endpoint.wait()
        return outcome

    # ---- cache synchronization ------------------------------------------------------------------

    def _arrive(self, found: KeyRows, planned: bool) -> None:
        """Have the key's rows; if these were not read apart, those among all under the locks."""
        if planned and not found.direct:
            search = self.search(found.table)
            for row, number in ((found.one, found.first), (found.two, found.second)):
                run = search.run_of(number)
                self.locked.show(row, run, number - search.begins[run])
        else:
            self.lookup.arrive(found)
        if not found.direct:
            self.lookup.remember(found)

    def _hold_locked(self, found: KeyRows, plan: Plan | None) -> None:
        """Have runs of all rows under the locks of the set."""
        search = self.search(found.table)
        search.release()
        self._hold(search, found.first)
        self._hold(search, found.second)
        if plan is not None:
            for index in range(plan.length):
                self._hold(search, plan.rows[index])

    def _post_locked(self, found: KeyRows) -> None:
        """Post reads of all these rows, a lock's at a time."""
        search = self.search(found.table)
        for run in range(search.runs):
            self.locked.post(run, search.begins[run], search.counts[run])

    def _hold(self, search: PathSearch, row: int) -> None:
        """Have a run of the rows under the lock of a row, if there is none yet."""
        if search.run_of(row) < 0:
            begin = row // self.rows_per_lock * self.rows_per_lock
            search.hold(begin, min(self.rows_per_lock, self.lookup.row_count - begin))

    # ---- second search, and execution -----------------------------------------------------------

    def _execute(
        self,
        found: KeyRows,
        key: bytes,
        value: bytes,
        reference: int,
        mode: int,
        plan: Plan | None,
        expected: bytes | None,
    ) -> int:
        """Write, under the locks: DONE, EXISTS, MISSING or LOST."""
        rows = self.rows
        there = self.lookup.find(found, key)
        if there:
            whole = rows.is_whole(found.row)
        else:
            whole = rows.is_whole(found.one) and rows.is_whole(found.two)
        if not whole:
            self._refuse(found)
        if there:
            if mode == INSERT:
                return EXISTS
            old = found.row.reference_there(found.slot)
            if expected is not None:
                self.lookup.take(found)
                if self.lookup.value(found) != expected:
                    return EXISTS
            if old:
                self.client.log(old, self.link)
            self._write_entry(found, key, value, reference, mode)
            return DONE
        if mode in (UPDATE, DELETE):
            return MISSING
        if self._find_vacant(found):
            self._write_entry(found, key, value, reference, mode)
            return DONE
        if plan is None or not plan.length:
            self._hold_locked(found, plan)
            self._post_locked(found)
            self.endpoint.wait()
        search = self.search(found.table)
        if search.search(found.first, found.second, self.locked) != FOUND:
            return LOST
        self._write_path(found, search, key, value, reference)
        return DONE

    def _refuse(self, found: KeyRows) -> None:
        """For a row that is not whole under its lock: release the locks, raise StoreCorrupt."""
        self.locks.post_release(self.locks.count)
        self.endpoint.wait()
        raise self.lookup.damaged(found)

    def _find_vacant(self, found: KeyRows) -> bool:
        """Whether one of the key's rows has a vacant entry; then `row` and `slot` are of that."""
        found.row = found.one
        found.slot = found.row.vacant()
        if found.slot < 0:
            found.row = found.two
            found.slot = found.row.vacant()
        return found.slot >= 0

    def _write_entry(
        self, found: KeyRows, key: bytes, value: bytes, reference: int, mode: int
    ) -> None:
        """Write one entry of one of the key's rows: `slot` of `row`."""
        rows, journal = self.rows, self.journal
        number, row, slot = self.lookup.number(found), found.row, found.slot
        sequence, entry = row.sequence(), self.entry
        if mode == DELETE:
            entry.empty()
        else:
            entry.fill(found.hash & 0xFF, key, value, reference)
        journal.step(number, slot, sequence)
        journal.post_path(entry)
        # CRASH(committed): nothing is written; the repairing client leaves the row as it is.
        rows.post_entry(row, number, slot, sequence + WRITTEN & MASK, entry)
        # CRASH(written): the row is whole and new; the repairing client gives the locks back.
        if mode != UPDATE:
            self._note(found, number, slot, mode)

    def _note(self, found: KeyRows, number: int, slot: int, mode: int) -> None:
        """Note in the cache what was written there."""
        search = self.searches[found.table]
        if search is not None:
            other = found.first + found.second - number
            search.note(number, slot, EMPTY if mode == DELETE else other)

    def _locked_row(self, search: PathSearch, number: int) -> Row:
        """A row under the locks. It is the same object each time."""
        run = search.run_of(number)
        return self.locked.row(run, number - search.begins[run])

    def _write_path(
        self, found: KeyRows, search: PathSearch, key: bytes, value: bytes, reference: int
    ) -> None:
        """Move the entries of the path that was found, from its end on, and write the new one."""
        rows, journal = self.rows, self.journal
        length = search.length
        for step in range(length):
            number = search.path_rows[step]
            row = self._locked_row(search, number)
            if not rows.is_whole(row):
                self._refuse(found)
            journal.step(number, search.path_slots[step], row.sequence())
        self.entry.fill(found.hash & 0xFF, key, value, reference)
        journal.post_path(self.entry)
        for step in range(length - 1, -1, -1):
            entry = self.entry
            if step:
                row = self._locked_row(search, search.path_rows[step - 1])
                entry = self.moved
                entry.copy(row, search.path_slots[step - 1])
            number = search.path_rows[step]
            row = self._locked_row(search, number)
            sequence = row.sequence() + WRITTEN & MASK
            rows.post_entry(row, number, search.path_slots[step], sequence, entry)
            other = search.path_rows[step - 1] if step else found.first + found.second - number
            search.note(number, search.path_slots[step], other)
            # CRASH(moving): entries are in two rows; the repairing client moves them back.
