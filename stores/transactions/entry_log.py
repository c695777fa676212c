"""The log that is written before anything is changed: what the logs of all kinds of stores share.

    0     owner    its owner: a lock state (transactions/log.py), or a client's id
                   (baselines/dtx/log.py)
    8     state    INIT: nothing is decided; the other states depend on the kind of log
    16    lease    not every kind of log has one
    24    count    entries
    32    entries  24 bytes each: `at`, `old` and `new`, whose meaning depends on the kind of log

Only the owner writes it, by posted verbs: each entry before the count that makes it one, or all of
it before it is a log (transactions/log.py). It is in the owner's journal from its first word on. A
client that reads it is pinned, so its memory is not used again meanwhile. A kill leaves behind a
log with as many entries as its count says, each of them whole.
"""

from __future__ import annotations

from typing import Any

from limpet.shm.endpoint.words import ADDRESS_MASK, LARGE_CLASS, REFERENCE_MASK
from limpet.shm.errors import StoreCorrupt
from limpet.stores.core.records import is_vacant
from limpet.stores.transactions.layout import COUNT, ENTRIES, ENTRY_SIZE, OWNER, STATE


class LogEntry:
    """An entry of a log, in three words."""

    def __init__(self, at: int, old: int, new: int) -> None:
        self.describe(at, old, new)

    def describe(self, at: int, old: int, new: int) -> None:
        """Use this object for the entry with these words. Constructors call it, as that is
        compiled."""
        self.at = at
        self.old = old
        self.new = new
        self.place = 0
        """Address of the entry in the log, if its owner has written it."""


class EntryLog:
    """A log, by any client that works on it. `reference`: of its object."""

    def __init__(self, client: Any, reference: int) -> None:
        self.find(client, reference)

    def find(self, client: Any, reference: int) -> None:
        """Use this object for the log there. Constructors call it, as that is compiled."""
        self.client = client
        self.endpoint = client.endpoint
        self.reference = reference
        self.at = reference & ADDRESS_MASK
        self.noted: list[Any] | None = None
        """Of the log's owner: the entries that it has written, so that it parses none."""

    def owner(self) -> int:
        """The first word: the owner of the log."""
        return self.endpoint.load(self.at + OWNER)

    def state(self) -> int:
        """Its state word."""
        return self.endpoint.load(self.at + STATE)

    def entries(self) -> list[LogEntry]:
        """All entries; their owner reads none. Raises StoreCorrupt if there cannot be as many."""
        if self.noted is not None:
            return self.noted
        endpoint, heap = self.endpoint, self.client.heap
        count = endpoint.load(self.at + COUNT)
        size_class = self.reference >> 48 & 0xFF
        room = heap.value_max(1) if size_class == LARGE_CLASS else heap.sizes[size_class]
        if count > room or log_size(count) > room:
            raise StoreCorrupt(f"the log at {self.at:#x} is damaged: {count} entries")
        found: list[LogEntry] = []
        at = self.at + ENTRIES
        for _ in range(count):
            found.append(LogEntry(endpoint.load(at), endpoint.load(at + 8), endpoint.load(at + 16)))
            at += ENTRY_SIZE
        return found


def log_size(entries: int) -> int:
    """Bytes of a log of so many entries."""
    return ENTRIES + ENTRY_SIZE * entries


def free_entries(heap: Any, entries: list[LogEntry], committed: bool) -> None:
    """Free the old pointers of these entries if what the log says was done, else the new ones."""
    for entry in entries:
        pointer = entry.old if committed else entry.new
        if not is_vacant(pointer):
            heap.free(pointer & REFERENCE_MASK)
