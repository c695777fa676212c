"""Changes of entries of a kvstore, by the client that holds the lock of the key (store.py)."""

from __future__ import annotations

from typing import Any, Final

from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.words import REFERENCE_MASK
from limpet.stores.core.status import DELETE, DONE, EXISTS, FULL, INSERT, MISSING, NO_MEMORY, UPDATE
from limpet.stores.loco.data_array import EntryJournal
from limpet.stores.loco.layout import (
    CLAIMED,
    COUNTER_MAX,
    COUNTER_SHIFT,
    DELETED,
    DELETING,
    GONE,
    INSERTING,
    LOCK_SHIFT,
    PHASE_MASK,
    READ_AT_ONCE,
    TORN,
    UPDATING,
    VACANT,
    VALID,
)
from limpet.stores.loco.lookup import KeyEntry, Lookup

FEW: Final = 4
"""A client looks at so many more entries when one was taken that it thought vacant; then at twice
as many each time."""


class Writer:
    """Changes by one handle of a store. `journal`: that of the lock that is held."""

    def __init__(self, pool: Any, lookup: Lookup) -> None:
        self.client = pool.client
        self.endpoint = pool.endpoint
        self.allocator = pool.allocator
        self.lookup = lookup
        self.journal = EntryJournal(pool.endpoint)

    def change(
        self,
        found: KeyEntry,
        key: bytes,
        value: bytes,
        size: int,
        mode: int,
        expected: bytes | None = None,
    ) -> int:
        """Change a key that was chosen, whose index is up to date, and whose entry was read;
        `size`: bytes of the object for the value, or 0. DONE, EXISTS, MISSING, NO_MEMORY, or FULL.
        With `expected` EXISTS, too, if the value is another one."""
        outcome = self.lookup.look_up(found, key)
        entry = found.entry
        if outcome == TORN:
            raise self.lookup.damaged(found, entry)
        if entry < 0 and mode in (UPDATE, DELETE):
            return MISSING
        if entry >= 0 and mode == INSERT:
            return EXISTS
        if expected is not None and self.lookup.value_found() != expected:
            return EXISTS
        if mode == DELETE:
            self._delete(found, entry)
            return DONE
        reference = 0
        if size:
            node = found.entries.base >> NODE_SHIFT & 0xFF
            reference = self.allocator.allocate(node, size, 1)
            if not reference:
                return NO_MEMORY
            self.lookup.objects.write(reference, key, value)
        if entry >= 0:
            self._update(found, entry, key, value, reference)
            return DONE
        return self._insert(found, key, value, reference)

    def _update(
        self, found: KeyEntry, entry: int, key: bytes, value: bytes, reference: int
    ) -> None:
        entries = found.entries
        state, linked = entries.state(), entries.link()
        if reference:
            self.client.retarget(0, entries.link_address(entry))
        if linked:
            self.client.log(linked, entries.link_address(entry))
        count = entries.compose(state, key, value, reference)
        self.journal.keep(entries, count)
        self.journal.declare(UPDATING, entry, state)
        # CRASH(committed): the entry is whole, and stays as it is.
        entries.write(entry, count, linked)
        # ORDER: the whole entry before the journal, and that before the lock.
        self.journal.end()

    def _insert(self, found: KeyEntry, key: bytes, value: bytes, reference: int) -> int:
        entry, state = self._claim(found)
        if entry < 0:
            return FULL
        entries = found.entries
        if reference:
            self.client.retarget(0, entries.link_address(entry))
        count = entries.compose(state, key, value, reference)
        # CRASH(claimed): never valid; the next holder of the lock makes it vacant.
        entries.write(entry, count, 0)
        # ORDER: written before it is announced, and announced before it is valid (L3).
        found.index.announce(entry, found.hash, 0)
        found.index.note_change(entry, found.hash, state)
        # LINEARIZES: insert
        self.endpoint.store(entries.address(entry), state & ~PHASE_MASK | VALID)
        # CRASH(inserted): the next holder of the lock finds it valid, and leaves it so.
        self.journal.end()
        return DONE

    def _claim(self, found: KeyEntry) -> tuple[int, int]:
        """Claim a vacant entry; it and its state, or -1: there is none. 1 round trip, if the index
        has seen the entry's state."""
        endpoint, index = self.endpoint, found.index
        index.search(self.client.ident, found.hash)
        ahead = 0
        entry = index.candidate()
        while entry >= 0:
            address = found.entries.address(entry)
            there = index.states[entry]
            if there & PHASE_MASK != VACANT:
                ticket = endpoint.post_load(address)
                endpoint.wait()
                there = endpoint.result(ticket)
                index.see(entry, there)
            counter = there >> COUNTER_SHIFT
            if there & PHASE_MASK == VACANT and counter < COUNTER_MAX:
                state = claimed_state(found.lock, counter + 1)
                # ORDER: the intent before the claim, or no client could tell which lock's holder
                # claimed it.
                self.journal.declare(INSERTING, entry, state)
                ticket = endpoint.post_cas(address, there, state)
                index.post_ahead(ahead)
                endpoint.wait()
                seen = endpoint.result(ticket)
                if seen == there:
                    return entry, state
                self.journal.end()
                index.see(entry, seen)
                index.see_ahead()
                if seen & PHASE_MASK == VACANT:
                    continue
                if ahead == 0:
                    index.scatter()
                ahead = min(max(FEW, 2 * ahead), READ_AT_ONCE)
            entry = index.candidate()
        return -1, 0

    def _delete(self, found: KeyEntry, entry: int) -> None:
        state, linked = found.entries.state(), found.entries.link()
        self.journal.declare(DELETING, entry, state)
        # LINEARIZES: delete
        self.endpoint.store(found.entries.address(entry), state & ~PHASE_MASK | DELETED)
        # CRASH(deleted): the next holder of the lock makes it vacant.
        found.index.announce(entry, found.hash, GONE)
        self.vacate(found, entry, state, linked)
        found.index.note_change(entry, found.hash, state & ~PHASE_MASK | VACANT)
        self.journal.end()

    def vacate(self, found: KeyEntry, entry: int, state: int, linked: int) -> None:
        """Make an entry vacant that is not valid, and is not announced, or as GONE.

        With its lock held. Its object, `linked`, is in the client journal then, and no longer
        linked.
        """
        if linked:
            link_address = found.entries.link_address(entry)
            self.client.log(linked & REFERENCE_MASK, link_address)
            # ORDER: announced before it is vacant; the link is cleared before that, too.
            self.endpoint.store(link_address, 0)
        self.endpoint.store(found.entries.address(entry), state & ~PHASE_MASK | VACANT)


def claimed_state(lock: int, counter: int) -> int:
    """The state of an entry that is claimed under a lock, as its life of this number begins."""
    return counter << COUNTER_SHIFT | lock << LOCK_SHIFT | CLAIMED
