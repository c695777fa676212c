"""Finding keys in a kvstore (store.py): gets, which take no lock, and whom they wait for."""

from __future__ import annotations

import contextlib
import itertools
from array import array
from typing import Any, Final

from limpet.shm.endpoint.fabric import hash64
from limpet.shm.endpoint.states import former
from limpet.shm.endpoint.words import REFERENCE_MASK
from limpet.shm.errors import NodeFailed, StoreCorrupt
from limpet.stores import regions
from limpet.stores.base import as_bytes
from limpet.stores.channels.lock.ticket_lock import TicketLock
from limpet.stores.inline import InlineStore
from limpet.stores.loco.check import Survey
from limpet.stores.loco.data_array import DataArray
from limpet.stores.loco.journal import Journal
from limpet.stores.loco.key_locks import KeyLocks
from limpet.stores.loco.layout import LATE_MAX, NEAR, PHASE_MASK, TORN, VACANT
from limpet.stores.loco.local_index import LocalIndex
from limpet.stores.loco.parameters import WAITERS, LocoParameters
from limpet.stores.loco.repair import repair
from limpet.stores.loco.tracker import Tracker
from limpet.stores.status import BATCH, DONE, MISSING

PATIENCE: Final = 8
"""After so many attempts a client looks whom it waits for; and a get takes the key's lock."""


class Lookup(InlineStore):
    """The tables of a `loco` store, and finding keys in them. `LocoParameters`."""

    Parameters = LocoParameters

    def __init__(self, pool: Any, kind: str, name: str, parameters: LocoParameters) -> None:
        super().__init__(pool, kind, name, parameters)
        self.foretells = True
        self.tables = regions.attach(pool, name, parameters.tables, parameters.table_size)
        self.table_count = parameters.tables
        self.lock_count = parameters.locks
        self.locks_at = parameters.locks_at
        self.record_size = parameters.record_size
        self.journal_at = parameters.journal_at
        self.entries_at = parameters.entries_at
        self.journal = Journal(pool.endpoint)
        self.indexes: list[LocalIndex] = [self._index(base) for base in self.tables]
        self.key_locks = KeyLocks(self)
        self.locks: list[list[TicketLock | None]] = [[None] * parameters.locks for _ in self.tables]
        self.index = self.indexes[0]
        self.entries = self.index.entries
        self.batch = array("Q", bytes(16 * BATCH))
        """Of the keys of a batch: hash and table."""
        self.table = 0
        self.hash = 0
        self.entry = -1
        self.repairs = 0

    def _index(self, base: int) -> LocalIndex:
        entries = DataArray(self.pool.endpoint, base + self.entries_at, self.parameters)
        tracker = Tracker(self.pool.endpoint, base, self.parameters.tracker)
        return LocalIndex(entries, tracker, self.pool.membership.progress)

    @staticmethod
    def make(pool: Any, name: str, parameters: LocoParameters) -> None:
        """Make one region a table; zeros are an empty one."""
        regions.make(pool, name, parameters.tables, parameters.table_size)

    @staticmethod
    def unmake(pool: Any, name: str, parameters: LocoParameters) -> None:
        regions.unmake(pool, name, parameters.tables)

    def replaced(self, node: int) -> None:
        self.tables = [former(base, node) for base in self.tables]
        for number, base in enumerate(self.tables):
            self.indexes[number].tracker.move(base)
            self.indexes[number].entries.base = base + self.entries_at
            self.indexes[number].forget()
        for lock in itertools.chain(*self.locks):
            if lock is not None:
                lock.replaced(node)

    def forget(self) -> None:
        for index in self.indexes:
            index.forget()
        for row in self.locks:
            row[:] = [None] * len(row)

    def stats(self) -> dict[str, Any]:
        """Counts of this handle: as of every store, and the `repairs` that it has made."""
        return {**super().stats(), "repairs": self.repairs}

    # ---- operations -----------------------------------------------------------------------------

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of `key`, or `default`. 1 round trip; one more for a value in an object."""
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
            finally:
                self.client.leave()
            if outcome == MISSING:
                return default
            attempt += 1
            self.retries += 1
            if attempt % PATIENCE == 0:
                return self._get_locked(key, default)
            self.endpoint.pause(attempt)

    def _get_batch(self, keys: list[bytes], found: list[bytes | None]) -> list[int]:
        """Append the values of at most BATCH keys; the places of those that were torn."""
        torn = []
        linked = False
        self._expect_keys(keys)
        for row in range(len(keys)):
            self._turn_to_row(row)
            self.index.refresh()
        for row, key in enumerate(keys):
            self._turn_to_row(row)
            value = None
            outcome = self._look_up(key)
            if outcome == DONE:
                linked = linked or self.entries.link() != 0
                value = self._value_here()
            elif outcome == TORN:
                torn.append(len(found))
            found.append(value)
        self.endpoint.wait()
        if linked:
            self.endpoint.wait()
        return torn

    def _expect_keys(self, keys: list[bytes]) -> None:
        for row, key in enumerate(keys):
            self.choose(key)
            self.index.expect(self.hash)
            self.batch[2 * row] = self.hash
            self.batch[2 * row + 1] = self.table
        size = 8 * self.entries.entry_words
        for row in range(len(keys)):
            self._turn_to_row(row)
            entry = self.index.find(self.hash) if self.index.known else -1
            if entry >= 0:
                self.endpoint.prefetch(self.entries.address(entry), size)

    def _turn_to_row(self, row: int) -> None:
        """Turn to a key of the batch."""
        self.hash = self.batch[2 * row]
        self.enter_table(self.batch[2 * row + 1])

    # ---- where a key is -------------------------------------------------------------------------

    def choose(self, key: bytes) -> None:
        """Work out a key's hash and table."""
        self.hash = hash64(key)
        self.enter_table((self.hash >> 32) * self.table_count >> 32)

    def table_of(self, key: bytes) -> int:
        """Which table a key belongs to."""
        return (hash64(key) >> 32) * self.table_count >> 32

    def enter_table(self, table: int) -> None:
        """Have index and entries be those of this table."""
        self.table = table
        self.index = self.indexes[table]
        self.entries = self.index.entries

    def _get_once(self, key: bytes) -> int:
        self.choose(key)
        # ORDER: the index is up to date before the key is looked up, and entries are read (L3).
        self.index.refresh()
        outcome = self._look_up(key)
        self.endpoint.wait()
        return outcome

    def _look_up(self, key: bytes) -> int:
        """Read the entry of the key that was chosen, whose index is up to date: `entry`.

        DONE, TORN, or MISSING.
        """
        entries = self.entries
        self.entry = self.index.find(self.hash)
        while self.entry >= 0:
            # LINEARIZES: get; or, if the key is missing, when the index was brought up to date, or
            # when an entry was changed since then
            entries.read(self.entry)
            if entries.is_valid() and entries.key_is(key):
                return DONE if entries.is_whole() else TORN
            self.entry = self.index.find_next()
        return MISSING

    def _value(self) -> bytes:
        """The value of the entry that was read."""
        if self.entries.link():
            value = self._value_here()
            self.endpoint.wait()
            return value
        return self.entries.value()

    def _value_here(self) -> bytes:
        link = self.entries.link()
        if not link:
            return self.entries.value()
        self.objects.load(link & REFERENCE_MASK)
        return self.objects.value()

    def _get_locked(self, key: bytes, default: Any) -> Any:
        """The same, holding the lock: whoever was writing has ended, or died and been repaired."""
        lock = self.enter_locked(key)
        try:
            outcome = self._look_up(key)
            self.endpoint.wait()
            if outcome == DONE:
                return self._value()
            if outcome == TORN:
                raise self.damaged(self.entry)
            return default
        finally:
            self.leave_locked(lock)

    def damaged(self, entry: int) -> StoreCorrupt:
        return StoreCorrupt(
            f"{self.name}: entry {entry} of table {self.table} does not match its checksum, and "
            "nobody is writing it: memory was damaged. Other keys can be read; destroy the pool"
        )

    # ---- locks ----------------------------------------------------------------------------------

    def enter_locked(self, key: bytes) -> TicketLock:
        """Begin an operation that holds the lock of a key; the lock.

        The key's index is up to date then, and what the lock's last holder left is repaired. A
        client that is late gives the lock back, brings its index up to date, and tries again.
        """
        attempt = 0
        while True:
            lock = self._take_lock(key)
            ready = False
            try:
                ready = self._begin_change(attempt)
            finally:
                if not ready:
                    self.leave_locked(lock)
            if ready:
                return lock
            attempt += 1
            self.retries += 1
            self.client.enter()
            try:
                self.require_there()
                self.choose(key)
                self.index.refresh()
            finally:
                self.client.leave()

    def _take_lock(self, key: bytes) -> TicketLock:
        """Begin an operation, with the lock of a key; the lock."""
        held = False
        self.client.enter()
        try:
            self.require_there()
            self.choose(key)
            if not self.index.known:
                self.index.refresh()
            lock = self.lock(self.table, self.hash & self.lock_count - 1)
            self.enter_journal(self.table, self.hash & self.lock_count - 1)
            held = lock.grab()
            if held:
                # CRASH(locked): nothing was begun; who waits for the lock passes it over.
                return lock
            self.endpoint.wait()
        except BaseException:
            if held:
                self.leave_locked(lock)
            else:
                self.client.leave()
            raise
        journal = self.journal.at
        self.client.leave()
        self.retries += 1
        self.key_locks.wait_for(lock, journal)
        return self._enter_held(lock, key)

    def _enter_held(self, lock: TicketLock, key: bytes) -> TicketLock:
        """The same, once we have waited for the lock."""
        try:
            self.client.enter()
        except BaseException:
            lock.release()
            raise
        try:
            self.require_there()
            self.choose(key)
            self.enter_journal(self.table, self.hash & self.lock_count - 1)
        except BaseException:
            self.leave_locked(lock)
            raise
        return lock

    def leave_locked(self, lock: TicketLock) -> None:
        """End the operation, and let the next one have the lock."""
        try:
            lock.drop()
            self.endpoint.wait()
        finally:
            self.client.leave()

    def lock(self, table: int, number: int) -> TicketLock:
        """A lock of a table."""
        found = self.locks[table][number]
        if found is None:
            at = self.tables[table] + self.locks_at + number * self.record_size
            found = self.locks[table][number] = TicketLock(self.key_locks, at, WAITERS)
        return found

    def enter_journal(self, table: int, number: int) -> None:
        """Have the journal be that of this lock."""
        base = self.tables[table]
        self.journal.at = base + self.locks_at + number * self.record_size + self.journal_at

    def _begin_change(self, attempt: int) -> bool:
        """Having a lock, be up to date, and repair what its last holder left.

        False: the index is late, and nothing was done.
        """
        if attempt >= LATE_MAX:
            self.index.refresh()
        elif not self.index.refresh_near(NEAR << 2 * attempt):
            return False
        if self.journal.intent():
            self.repairs += 1
            repair(self)
        return True

    def vacate(self, entry: int, state: int) -> None:
        """Tell everybody that an entry is not valid, and have it be nobody's.

        With its lock held. What it links to is in hand then, and no longer linked.
        """
        link_address = self.entries.link_address(entry)
        vacant = state & ~PHASE_MASK | VACANT
        number = self.index.tracker.append(entry)
        self.index.learn(entry, 0, vacant, number)
        # ORDER: told before it is vacant; no link before that, either.
        link = self.endpoint.load(link_address)
        if link:
            self.client.hold(link & REFERENCE_MASK, link_address)
            self.endpoint.store(link_address, 0)
        self.endpoint.store(self.entries.address(entry), vacant)

    def recover(self) -> dict[str, Any]:
        """Recover the dead, and repair what they left under the locks of this store."""
        found = super().recover()
        for table in range(len(self.tables)):
            with contextlib.suppress(NodeFailed):  # what is on it is gone with it
                self._mend(table)
        return found

    def _mend(self, table: int) -> None:
        """Repair what dead holders of a table's locks left."""
        for number in range(self.lock_count):
            attempt = 0
            while not self._mend_once(table, number, attempt):
                attempt += 1

    def _mend_once(self, table: int, number: int, attempt: int) -> bool:
        """Repair what a dead holder of this lock left; False: our index is late, once more."""
        self.client.enter()
        lane = self.endpoint.background(True)
        try:
            self.require_there()
            self.enter_table(table)
            self.enter_journal(table, number)
            if not self.journal.intent():
                return True
            self.index.refresh()
            lock = self.lock(table, number)
            if not lock.grab() and not lock.seize():
                return True
            try:
                return self._begin_change(attempt)
            finally:
                lock.drop()
        finally:
            self.endpoint.background(lane)
            self.client.leave()

    def survey(self) -> Survey:
        return Survey(self)
