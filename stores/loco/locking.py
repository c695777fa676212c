"""Operations of a kvstore that hold the lock of a key.

In them the key's index is up to date, and the traces of the lock's last holder are repaired
(repair.py). A late client gives the lock back, brings its index up to date, and tries again: an
index is never made anew under a lock (L4).
"""

from __future__ import annotations

import itertools
from typing import Any

from limpet.shm.errors import StoreDropped
from limpet.stores.channels.lock.ticket_lock import TicketLock
from limpet.stores.core.base import Store
from limpet.stores.loco.key_locks import KeyLocks
from limpet.stores.loco.layout import INTENT, LATE_MAX, LOCK_AT, NEAR
from limpet.stores.loco.lookup import KeyEntry, Lookup
from limpet.stores.loco.parameters import WAITERS, LocoParameters
from limpet.stores.loco.repair import repair
from limpet.stores.loco.writer import Writer


class Locking:
    """Begins and ends such operations, for one handle of a store."""

    def __init__(
        self, store: Any, lookup: Lookup, writer: Writer, parameters: LocoParameters
    ) -> None:
        self.client = store.client
        self.endpoint = store.endpoint
        self.lookup = lookup
        self.writer = writer
        self.lock_count = parameters.locks
        self.locks_at = parameters.locks_at
        self.record_size = parameters.record_size
        self.journal_at = parameters.journal_at
        self.key_locks = KeyLocks(store)
        self.locks: list[list[TicketLock | None]] = [
            [None] * parameters.locks for _ in lookup.tables
        ]
        self.repairs = 0

    def replaced(self, node: int) -> None:
        """From now on, this memory node has new memory."""
        for lock in itertools.chain(*self.locks):
            if lock is not None:
                lock.replaced(node)

    def forget(self) -> None:
        """Forget all locks."""
        for row in self.locks:
            row[:] = [None] * len(row)

    def lock(self, table: int, number: int) -> TicketLock:
        """A lock of a table."""
        found = self.locks[table][number]
        if found is None:
            at = self.lock_at(table, number)
            found = self.locks[table][number] = TicketLock(self.key_locks, at, WAITERS)
        return found

    def lock_at(self, table: int, number: int) -> int:
        """Address of a lock of a table, and of its record."""
        base: int = self.lookup.tables[table]
        return base + self.locks_at + number * self.record_size

    def journal_of(self, table: int, number: int) -> int:
        """Address of the journal of this lock."""
        return self.lock_at(table, number) + self.journal_at

    def enter_journal(self, table: int, number: int) -> None:
        """Set the journal to that of this lock."""
        self.writer.journal.at = self.journal_of(table, number)

    # ---- an operation ---------------------------------------------------------------------------

    def enter(self, store: Store, found: KeyEntry, key: bytes) -> TicketLock:
        """Begin an operation that holds the lock of a key; the lock."""
        attempt = 0
        while True:
            lock = self._enter_with_lock(store, found, key)
            ready = False
            try:
                ready = self._begin(found, attempt)
            finally:
                if not ready:
                    self.leave(lock)
            if ready:
                return lock
            attempt += 1
            store.retries += 1
            store.within(self._refresh, found, key)

    def _refresh(self, found: KeyEntry, key: bytes) -> None:
        self.lookup.choose(found, key)
        found.index.refresh(found.hash)

    def leave(self, lock: TicketLock) -> None:
        """End the operation, and release the lock, in one phase with what was written under it."""
        endpoint = self.endpoint
        try:
            # LINEARIZES: free.
            ticket = endpoint.post_cas(lock.address, self.client.ident, 0)
            endpoint.wait()
            lock.dropped(endpoint.result(ticket))
        finally:
            self.client.leave()

    def _enter_with_lock(self, store: Store, found: KeyEntry, key: bytes) -> TicketLock:
        """Begin an operation, with the lock of a key; the lock."""
        endpoint = self.endpoint
        held = False
        self.client.enter()
        try:
            store.require_there()
            self.lookup.choose(found, key)
            if not found.index.is_ready(found.hash):
                found.index.refresh(found.hash)
            lock = self.lock(found.table, found.lock)
            self.enter_journal(found.table, found.lock)
            ticket = endpoint.post_cas(lock.address, 0, self.client.ident)
            # ORDER: read after the lock was taken, on the same node.
            self._read(found)
            word = endpoint.result(ticket)
            held = lock.grabbed(word)
            if held:
                # CRASH(locked): no change was begun; a waiting client passes the lock over.
                if word:
                    self._read(found)
                return lock
        except BaseException:
            if held:
                self.leave(lock)
            else:
                self.client.leave()
            raise
        journal = self.writer.journal.at
        self.client.leave()
        store.retries += 1
        self.key_locks.wait_for(lock, journal)
        return self._enter_held(store, found, lock, key)

    def _read(self, found: KeyEntry) -> None:
        """Read what is under the lock in one phase: the intent, the position, the entry."""
        ticket = self.endpoint.post_load(self.writer.journal.at + INTENT)
        self.lookup.read(found)
        self.writer.journal.found(self.endpoint.result(ticket))

    def _enter_held(
        self, store: Store, found: KeyEntry, lock: TicketLock, key: bytes
    ) -> TicketLock:
        """Go on with a write after a wait for the lock, which is held now."""
        try:
            self.client.enter()
        except BaseException:
            lock.release()
            raise
        try:
            store.require_there()
            self.lookup.choose(found, key)
            self.enter_journal(found.table, found.lock)
            self._read(found)
        except StoreDropped:
            self.client.leave()  # and the lock's memory may be another's
            raise
        except BaseException:
            self.leave(lock)
            raise
        return lock

    def _begin(self, found: KeyEntry, attempt: int) -> bool:
        """With the lock, after `_read`, bring the index up to date, and repair the traces of the
        last holder.

        False: the index is late, and nothing was changed.
        """
        index = found.index
        good = index.is_current(found.lock, found.position) and index.is_ready(found.hash)
        if attempt >= LATE_MAX:
            index.refresh(found.hash)
        elif not good:
            near = index.refresh_near(found.lock, found.position, NEAR << 2 * attempt)
            if not near or not index.is_ready(found.hash):
                return False
        if self.writer.journal.intended:
            self.repairs += 1
            repair(self.writer, found)
            good = False
        if not good:
            self.lookup.seek(found)
        return True

    # ---- traces of dead clients -----------------------------------------------------------------

    def mend(self, store: Store, table: int) -> None:
        """Repair the traces of dead holders of a table's locks."""
        for number in range(self.lock_count):
            attempt = 0
            while not self._mend_once(store, table, number, attempt):
                attempt += 1

    def _mend_once(self, store: Store, table: int, number: int, attempt: int) -> bool:
        """Repair the traces of a dead holder of this lock; False: our index is late again."""
        found = self.lookup.found
        self.client.enter()
        scope = self.endpoint.background(True)
        try:
            store.require_there()
            self.lookup.enter_table(found, table)
            self.enter_journal(table, number)
            if not self.writer.journal.intent():
                return True
            found.hash = number << LOCK_AT
            found.lock = number
            found.index.refresh(found.hash)
            lock = self.lock(table, number)
            if not lock.grab() and not lock.seize():
                return True
            try:
                self._read(found)
                return self._begin(found, attempt)
            finally:
                lock.drop()
        finally:
            self.endpoint.background(scope)
            self.client.leave()
