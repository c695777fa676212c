"""Checks a whole `loco` store: counting, iterating, audits, checking.

They walk through the data arrays, and use no index. Other clients may be at work.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from limpet.shm.endpoint.fabric import hash64
from limpet.shm.endpoint.words import REFERENCE_MASK
from limpet.shm.errors import NodeFailed, StoreCorrupt
from limpet.stores.channels.lock.ticket_layout import HOLDER
from limpet.stores.core.whole import check_each, wrong_with_object
from limpet.stores.loco.layout import (
    CLAIMED,
    DELETED,
    DELETING,
    ENTRY_SHIFT,
    INSERTING,
    INTENT_MASK,
    INTENT_SHIFT,
    KEY,
    KEY_LENGTH_MASK,
    LINK,
    LOCK_BITS,
    LOCK_SHIFT,
    PHASE_MASK,
    SIZES,
    STATE,
    UPDATING,
    VACANT,
    VALID,
)

BATCH: Final = 64
"""Entries that are read in one operation."""
LOOKS_MAX: Final = 1000
"""An entry that is wrong in so many looks, while no client is changing it, is damaged."""
INTENT_OF: Final = {CLAIMED: INSERTING, VALID: UPDATING, DELETED: DELETING}


class LocoCheck:
    """Checks by a store's handle, one operation at a time."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.endpoint = store.endpoint

    # ---- the whole table ------------------------------------------------------------------------

    def _words(self, table: int) -> Any:
        """A copy of a data array, as an array of shape (entries, words)."""
        entries = self.store.lookup.indexes[table].entries
        shape = (entries.count, entries.entry_words)
        raw = self.endpoint.read(entries.base, 8 * entries.count * entries.entry_words)
        return np.frombuffer(raw, dtype="<u8").reshape(shape)

    def count(self) -> int:
        """How many entries are valid."""
        found = 0
        for table in range(len(self.store.lookup.tables)):
            phases = self.store.within(self._words, table)[:, STATE] & np.uint64(PHASE_MASK)
            found += int(np.count_nonzero(phases == VALID))
        return found

    def references(self) -> Any:
        """References to all objects that an entry links to, on nodes in service, as uint64."""
        found = [np.empty(0, dtype=np.uint64)]
        for table in range(len(self.store.lookup.tables)):
            with contextlib.suppress(NodeFailed):  # its objects are on the same node
                links = self._words(table)[:, LINK]
                found.append(links[links != 0] & np.uint64(REFERENCE_MASK))
        return np.concatenate(found)

    # ---- keys -----------------------------------------------------------------------------------

    def keys(self) -> Iterator[bytes]:
        """Every key that is there all the while, once."""
        for table in range(len(self.store.lookup.tables)):
            for start in range(0, self.store.parameters.entries, BATCH):
                yield from self._keys(table, start)

    def _keys(self, table: int, start: int) -> list[bytes]:
        """The keys of a batch of entries."""
        store, found = self.store, []
        with store.client:
            store.require_there()
            self.endpoint.background(True)  # until the operation ends
            entries = store.lookup.indexes[table].entries
            count, size = min(BATCH, entries.count - start), 8 * entries.entry_words
            raw = self.endpoint.read(entries.address(start), count * size)
            words = np.frombuffer(raw, dtype="<u8").reshape(count, entries.entry_words)
            states, sizes = words[:, STATE].tolist(), words[:, SIZES].tolist()
            valid = [number for number in range(count) if states[number] & PHASE_MASK == VALID]
            # ORDER: after the read: a valid entry with the same state has the key that was read.
            later = [self.endpoint.post_load(entries.address(start + number)) for number in valid]
            self.endpoint.wait()
            for number, ticket in zip(valid, later, strict=True):
                if self.endpoint.result(ticket) == states[number]:
                    at = size * number + 8 * KEY
                    key = raw[at : at + min(sizes[number] & KEY_LENGTH_MASK, entries.key_room)]
                else:
                    key = self._key(entries, start + number)
                if key is not None:
                    found.append(key)
        return found

    def _key(self, entries: Any, entry: int) -> bytes | None:
        """The key of an entry, if it is valid."""
        while True:
            entries.read(entry)
            state = entries.state()
            if state & PHASE_MASK != VALID:
                return None
            if self.endpoint.load(entries.address(entry)) == state:
                return bytes(entries.key())

    # ---- checking -------------------------------------------------------------------------------

    def check(self) -> None:
        """Verify every invariant of the tables in memory; StoreCorrupt names the one that does not
        hold.

        Other clients may be at work; entries that a dead or stopped client was changing are left
        out. NodeFailed: a table is lost with its node, and the others are sound.
        """
        check_each(range(len(self.store.lookup.tables)), self._check_table)

    def _check_table(self, table: int) -> None:
        seen: dict[bytes, int] = {}
        for entry in range(self.store.parameters.entries):
            attempt = 0
            while wrong := self._check_entry(table, entry, seen):
                attempt += 1
                if attempt > LOOKS_MAX:
                    raise StoreCorrupt(
                        f"{self.store.name}: entry {entry} of table {table}: {wrong}"
                    )
                self.endpoint.pause(attempt)

    def _check_entry(self, table: int, entry: int, seen: dict[bytes, int]) -> str:
        store = self.store
        with store.client:
            store.require_there()
            self.endpoint.background(True)  # until the operation ends
            index = store.lookup.indexes[table]
            state = self.endpoint.load(index.entries.address(entry))
            # ORDER: before the entry is read; what is valid then was announced before.
            index.refresh_lock(self._lock_in(state) & index.locks)
            wrong = self._wrong(table, entry, seen)
            if wrong and self._is_intended(table, entry):
                return ""
            return wrong

    def _wrong(self, table: int, entry: int, seen: dict[bytes, int]) -> str:
        """The fault of an entry, or "" if none is certain now."""
        store, index = self.store, self.store.lookup.indexes[table]
        entries = index.entries
        entries.read(entry)
        state, link = entries.state(), entries.link()
        phase = state & PHASE_MASK
        if phase == VACANT:
            return "vacant, with a link" if link else ""
        if phase != VALID:
            return f"in phase {phase}, and no journal says so"
        if not entries.is_whole():
            return "it does not match its checksum, and no client is writing it"
        key = bytes(entries.key())
        hashed = hash64(key)
        if (hashed >> 32) * len(store.lookup.tables) >> 32 != table:
            return f"{key!r} belongs into another table"
        if not self._has_its_lock(state, hashed):
            return f"{key!r} has another lock"
        if link:
            wrong = wrong_with_object(store, link, key, "object")
            if wrong:
                return wrong
        if not index.reaches_to(hashed, entry):
            return f"{key!r} is beyond the reach of its part"
        if not index.has(entry, hashed):
            return f"the index has it not for {key!r}"
        if seen.setdefault(key, entry) != entry and self._has(entries, seen[key], key):
            return f"{key!r} is also in entry {seen[key]}"
        seen[key] = entry
        return ""

    def _has_its_lock(self, state: int, hashed: int) -> bool:
        """Whether an entry in this state is under the lock of the key with this hash."""
        return bool(self._lock_in(state) == self.store.lookup.indexes[0].lock_of(hashed))

    def _lock_in(self, state: int) -> int:
        """The number of the lock that an entry's state names."""
        return state >> LOCK_SHIFT & (1 << LOCK_BITS) - 1

    def _has(self, entries: Any, entry: int, key: bytes) -> bool:
        found = self._key(entries, entry)
        return found == key

    def _is_intended(self, table: int, entry: int) -> bool:
        """Whether the journal of the entry's lock names the entry."""
        store = self.store
        state = self.endpoint.load(store.lookup.indexes[table].entries.address(entry))
        number = self._lock_in(state)
        if number >= store.locking.lock_count:
            return False
        store.locking.enter_journal(table, number)
        intent = store.writer.journal.intent()
        wanted = INTENT_OF.get(state & PHASE_MASK)
        return intent >> INTENT_SHIFT == entry and intent & INTENT_MASK == wanted

    # ---- traces of dead clients -----------------------------------------------------------------

    def left_by(self, ident: int) -> set[str]:
        """The named crash points that a dead client shows."""
        found = set()
        for table in range(len(self.store.lookup.tables)):
            with contextlib.suppress(NodeFailed):
                found |= self._left_in(table, ident)
        return found

    def _left_in(self, table: int, ident: int) -> set[str]:
        store = self.store
        index = store.lookup.indexes[table]
        found = set()
        for number in range(store.locking.lock_count):
            if self.endpoint.load(store.locking.lock(table, number).address) & HOLDER != ident:
                continue
            store.locking.enter_journal(table, number)
            intent = store.writer.journal.intent()
            entry = intent >> INTENT_SHIFT
            if not intent:
                found.add("locked")
                continue
            index.entries.read(entry)
            state = index.entries.state()
            same = state >> ENTRY_SHIFT == store.writer.journal.claim() >> ENTRY_SHIFT
            phase = state & PHASE_MASK
            if intent & INTENT_MASK == UPDATING:
                found.add("committed" if index.entries.is_whole() else "torn")
            elif same and intent & INTENT_MASK == INSERTING:
                found |= {CLAIMED: {"claimed", "repairing"}, VALID: {"inserted"}}.get(phase, set())
            elif same and phase == DELETED:
                found.add("deleted")
        return found
