"""Checks a whole `rcuckoo` store: counting, iterating, audits, checking.

They look at one row at a time, and other clients may be at work. An entry that moves from a row
still to be read to one that was read would be missed; so rows that have changed since are read
again, until that shows no new key.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from limpet.shm.endpoint.fabric import hash64
from limpet.shm.errors import NodeFailed, StoreCorrupt
from limpet.stores.core.names import shown
from limpet.stores.core.whole import check_each, wrong_with_object
from limpet.stores.rcuckoo.layout import (
    EXTENT,
    HEAD_WORDS,
    KEY_SIZES,
    LEASE,
    LOOKS_MAX,
    SLOTS,
    VALUE_SIZES,
)
from limpet.stores.rcuckoo.repair import WRITTEN, JournalLook, Repair

BATCH: Final = 64
"""Rows that are read in one operation."""
PASSES: Final = 2
BUSY_MAX: Final = 64
"""Looks at a row that a living client is changing."""
Copies = tuple[int | None, tuple[int, int], tuple[int, int]]


class RcuckooCheck:
    """Checks by a store's handle, one operation at a time."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.rows = store.lookup.rows
        self.endpoint = store.endpoint

    # ---- the whole table ------------------------------------------------------------------------

    def _words(self, table: int) -> Any:
        """A copy of a table's rows, as an array of words."""
        store, rows = self.store, self.rows
        address, count = store.lookup.tables[table] + store.lookup.rows_at, store.lookup.row_count
        raw = self.endpoint.read(address, 8 * rows.row_words * count)
        return np.frombuffer(raw, dtype="<u8").reshape(count, rows.row_words)

    def _sizes(self, words: Any) -> Any:
        """The sizes of values in these rows, as an array of shape (rows, 8)."""
        heads = np.ascontiguousarray(words[:, VALUE_SIZES : VALUE_SIZES + SLOTS // 4])
        return heads.view("<u2")

    def count(self) -> int:
        """How many entries there are; one that is being moved, or was when its client died, counts
        twice."""
        within = self.store.within
        return sum(
            int(np.count_nonzero(self._sizes(within(self._words, table))))
            for table in self._tables()
        )

    def references(self) -> Any:
        """References to all extents on nodes in service, as uint64."""
        found = [np.empty(0, dtype=np.uint64)]
        for table in self._tables():
            with contextlib.suppress(NodeFailed):  # its extents are on the same node
                words = self._words(table)
                first = words[:, HEAD_WORDS :: self.rows.entry_words][:, :SLOTS]
                found.append(first[self._sizes(words) == EXTENT])
        return np.concatenate(found)

    def _tables(self) -> range:
        return range(len(self.store.lookup.tables))

    # ---- keys -----------------------------------------------------------------------------------

    def keys(self) -> Iterator[bytes]:
        """Every key that is there all the while, once; a table's at a time.

        A key that others move from row to row each time that we look at both may be missed.
        """
        for table in self._tables():
            found: dict[bytes, None] = {}
            sequences = [-1] * self.store.lookup.row_count
            for number in range(self.store.lookup.row_count + PASSES):
                before = len(found)
                changed = self._changed(table, sequences)
                for start in range(0, len(changed), BATCH):
                    self._read_keys(table, changed[start : start + BATCH], sequences, found)
                if not changed or (number >= PASSES and len(found) == before):
                    break
            yield from found

    def _changed(self, table: int, sequences: list[int]) -> list[int]:
        """The rows that have other sequences than these."""
        size = 8 * self.rows.row_words
        base = self.store.lookup.tables[table] + self.store.lookup.rows_at
        scope = self.endpoint.background(True)
        try:
            return [
                row
                for row, sequence in enumerate(sequences)
                if sequence < 0 or self.endpoint.load(base + size * row) != sequence
            ]
        finally:
            self.endpoint.background(scope)

    def _read_keys(
        self, table: int, some: list[int], sequences: list[int], found: dict[bytes, None]
    ) -> None:
        for row in some:
            attempt = 0
            while not self._read_row(table, row, sequences, found):
                self._wait(table, row, attempt)
                attempt += 1

    def _read_row(
        self, table: int, number: int, sequences: list[int], found: dict[bytes, None]
    ) -> bool:
        """Add a row's keys, and its sequence; False if it is not whole."""
        store, rows = self.store, self.rows
        with store.client:
            store.require_there()
            self.endpoint.background(True)  # until the operation ends
            store.lookup.enter_table(store.lookup.tables[table])
            row = rows.read_whole(number)
            if row is None:
                return False
            sequences[number] = row.sequence()
            found |= {row.key(slot): None for slot in range(SLOTS) if row.size(slot)}
            return True

    def _wait(self, table: int, row: int, attempt: int) -> None:
        """Wait for a row that is not whole; StoreCorrupt when no client completes it."""
        store = self.store
        if attempt > LOOKS_MAX and self._is_torn(table, row):
            raise StoreCorrupt(
                f"{store.name}: row {row} of table {table} is not whole, and no client is writing "
                "it"
            )
        self.endpoint.pause(attempt)
        if attempt % 8 == 7:
            repair = Repair(store, store.lookup.tables[table])
            store.pool.exclusively(functools.partial(repair.recover_holder, self._lock(table, row)))

    def _is_torn(self, table: int, row: int) -> bool:
        """Whether the row is not whole, and no client is writing it."""
        store = self.store
        with store.client:
            store.require_there()
            store.lookup.enter_table(store.lookup.tables[table])
            return bool(store.lookup.is_torn(row))

    def _locked(self, table: int, row: int) -> bool:
        """Whether a client has the row's lock."""
        return bool(self.endpoint.load(self._lock(table, row)))

    def _lock(self, table: int, row: int) -> int:
        """Address of a row's lock.

        Outside of operations: it must not change state that another thread's operation relies on.
        """
        lookup, parameters = self.store.lookup, self.store.parameters
        number = row // parameters.rows_per_lock % parameters.locks
        return int(lookup.tables[table] + lookup.locks_at + 8 * number)

    # ---- checking -------------------------------------------------------------------------------

    def check(self) -> None:
        """Verify every invariant of the tables in memory; StoreCorrupt names the one that does not
        hold.

        Other clients may be at work; rows that a stopped client is writing are left out.
        NodeFailed: a table is lost with its node, and the others are sound.
        """
        check_each(self._tables(), self._check_table)

    def _check_table(self, table: int) -> None:
        seen: dict[bytes, int] = {}
        for row in range(self.store.lookup.row_count):
            attempt = 0
            while (wrong := self._check_row(table, row, seen)) is None:
                if attempt > BUSY_MAX and self._locked(table, row):
                    break  # its writer lives, and stands still in the midst of the write
                self._wait(table, row, attempt)
                attempt += 1
            if wrong:
                raise StoreCorrupt(f"{self.store.name}: row {row} of table {table}: {wrong}")
        self._check_locks(table)

    def _check_row(self, table: int, number: int, seen: dict[bytes, int]) -> str | None:
        """The fault of a row, "" if it has none; None: it is not whole."""
        store, rows = self.store, self.rows
        with store.client:
            store.require_there()
            self.endpoint.background(True)  # until the operation ends
            store.lookup.enter_table(store.lookup.tables[table])
            row = rows.read_whole(number)
            if row is None:
                return None
            there = [slot for slot in range(SLOTS) if row.size(slot)]
            faults = (self._wrong(table, number, row, slot) for slot in there)
            wrong = next(filter(None, faults), "")
            if self.endpoint.load(rows.address(number)) != row.sequence():
                return None  # another client has changed it since
        keys = [row.key(slot) for slot in there]
        if not wrong and len(set(keys)) < len(keys):
            wrong = f"a key is there twice: {', '.join(map(shown, keys))}"
        for key in keys:
            if not wrong and seen.setdefault(key, number) != number and self._twice(table, key):
                wrong = f"{shown(key)} is also in row {seen[key]}"
        return wrong

    def _wrong(self, table: int, number: int, row: Any, slot: int) -> str:
        """The fault of an entry, or "" if it has none."""
        store, key = self.store, row.key(slot)
        hashed, size = hash64(key), row.head[KEY_SIZES] >> 8 * slot & 0xFF
        if size > store.key_size:
            return f"a key of {size} bytes"
        if row.tag(slot) != hashed & 0xFF:
            return f"the tag is not that of {shown(key)}"
        store.lookup.places.place(hashed)
        if number not in (store.lookup.places.first, store.lookup.places.second):
            return f"{shown(key)} does not belong there"
        if (hashed >> 32) * len(store.lookup.tables) >> 32 != table:
            return f"{shown(key)} belongs into another table"
        if reference := row.reference(slot):
            return wrong_with_object(store, reference, key, "extent")
        length = row.size(slot) - 1
        return "" if length <= store.value_size else f"{shown(key)} has {length} bytes inline"

    def _twice(self, table: int, key: bytes) -> bool:
        """Whether a key is in both of its rows, and no client is moving it."""
        for attempt in range(BUSY_MAX):
            both, rows, sequences = self._copies(key)
            if both is not None and both < 2:
                return False
            if both == 2 and attempt > PASSES:
                # ORDER: the copies, the locks, the copies again: if a client had been moving the
                # key, one of the rows would have another sequence by now.
                locked = any(self._locked(table, row) for row in rows)
                if not locked and self._has_stayed(key, (both, rows, sequences)):
                    return True
            self._wait(table, rows[0], attempt)
        return False

    def _has_stayed(self, key: bytes, copies: Copies) -> bool:
        """Whether the copies of a key are as they were."""
        return self._copies(key) == copies

    def _copies(self, key: bytes) -> Copies:
        """The number of its rows that have a key (None: these are being changed), the rows, their
        sequences as read."""
        store = self.store
        with store.client:
            store.require_there()
            self.endpoint.background(True)  # until the operation ends
            both, found = store.lookup.copies_of(store.found, key), store.found
            sequences = found.one.sequence(), found.two.sequence()
            return both, (found.first, found.second), sequences

    def _check_locks(self, table: int) -> None:
        """Verify that every lock that is taken is in its holder's journal."""
        base = self.store.lookup.tables[table]
        first = base + self.store.lookup.locks_at
        for word in range(first, first + 8 * self.store.parameters.locks, 8):
            attempt = 0
            while holder := self.stray(base, word):
                attempt += 1
                if attempt > LOOKS_MAX:
                    raise self.of_nobody(word, holder)
                self.endpoint.pause(attempt)

    def stray(self, base: int, word: int) -> int:
        """The holder of a lock if that is in no client slot, or does not say that it has it; 0: all
        is well."""
        scope = self.endpoint.background(True)
        try:
            holder = self.endpoint.load(word)
            repair = Repair(self.store, base)
            # A dead client is in its slot until it is recovered.
            if repair.has_journal(holder) and self.store.pool.membership.place(holder) is not None:
                look = repair.look(repair.journal_of(holder))
                if look.owner == holder and word in look.named:
                    return 0
            return holder if self.endpoint.load(word) == holder else 0
        finally:
            self.endpoint.background(scope)

    def of_nobody(self, word: int, holder: int) -> StoreCorrupt:
        """The error for a lock that is always `stray`."""
        return StoreCorrupt(
            f"{self.store.name}: the lock at {word:#x} has the holder {holder:#x}, and no client "
            "says that it has it: memory was damaged; destroy the pool"
        )

    # ---- traces of dead clients -----------------------------------------------------------------

    def left_by(self, ident: int) -> set[str]:
        """The named crash points that a dead client shows."""
        found = set()
        for base in self.store.lookup.tables:
            with contextlib.suppress(NodeFailed):
                repair = Repair(self.store, base)
                if any(self.endpoint.load(at + LEASE) == ident for at in repair.journals()):
                    found.add("repairing")
                look = repair.look(repair.journal_of(ident))
                if look.owner == ident and look.held:
                    found |= self._shown(base, look)
        return found

    def _shown(self, base: int, look: JournalLook) -> set[str]:
        if not look.path:
            return {"locked"}
        if look.held != look.named:
            return {"unlocking"}
        rows = self.rows
        self.store.lookup.enter_table(base)
        found = set()
        states = []
        for number, _, sequence in look.path:
            row = rows.read(number)
            states.append("torn" if not rows.is_whole(row) else row.sequence() - sequence)
        if "torn" in states:
            found.add("torn")
        if states[0] == WRITTEN:
            found.add("written")
        if states[0] == 0:
            found.add("moving" if any(states) else "committed")
        return found
