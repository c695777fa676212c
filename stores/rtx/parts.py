"""Slots that a transaction holds: words of a hash index which it changes, and how it has them.

A slot (race/index.py) is one word that single operations change by one CAS, without locks; it has
no lock word beside it. So a transaction that changes slots puts a word of its own into each of
them, as multi-word CAS does (Harris, Fraser and Pratt, "A practical multi-word compare-and-swap
operation", DISC '02). It leads to a *part* of the log (log.py): an object on the slot's memory
node, so that what the slot was is not lost with the node of the log.

    0     log      reference to the log, which says whether the transaction commits
    8     owner    lock state of the transaction, as in the log: else what is there is something
                   else, in memory that the log's node was given when it was replaced
    16    count    entries
    24    entries  24 bytes each: address of the slot, its word before, its word after

Held slot
    bits 56-63  fingerprint of the key that is written
    bits 4-55   as of a reference to the part
    bits 1-3    HELD, as which no reference has them (words.py)
    bit 0       0

The part is written whole before its first slot is held, and freed with the log, when none is held
any more. So whoever meets a held slot, and was pinned before, may read both, and no word of a held
slot comes again meanwhile: CASes that expect it succeed once.

What a held slot stands for: while the log is INIT, no client can say: the transaction may have
validated already, and what it has read be changed since. Once it is DOING or DONE, the word after,
or if it was aborted the one before, whether the slot still is held or not. So who meets it

    to read               goes by the log if that is decided; else waits
    to write              waits until it is let go of
    to freeze             has it let go of at once, if the split is decided; else waits
    to settle a client journal   leaves the objects of both words to the transaction (`concerns`)

and who waits sees to the log when the lease is over (repair.py). A slot that is held is not frozen,
so its subtable is not split meanwhile (rtx/race.py); nor is one held that is frozen, as its
word is another one.

A held slot whose log was lost with its memory node is what it was before, when whoever waits has
seen it for a lease of the pool; its owner, if it lives and has committed, sets it before that.
"""

from __future__ import annotations

from typing import Any, Final

from limpet.shm.endpoint.words import ADDRESS_MASK, HELD, HELD_MASK, LINK_MASK, REFERENCE_MASK
from limpet.shm.errors import StoreCorrupt
from limpet.stores.race.index import is_vacant
from limpet.stores.rtx.layout import ENTRY_SIZE, PART_COUNT, PART_ENTRIES, PART_LOG, PART_OWNER

FINGERPRINT: Final = 0xFF << 56
COUNT_MAX: Final = 1 << 20
"""No transaction changes as many slots; it is no part."""


class Change:
    """A slot's address, its word before, and its word after."""

    def __init__(self, slot: int, old: int, new: int) -> None:
        self.slot = slot
        self.old = old
        self.new = new


def is_held(word: int) -> bool:
    """Whether a transaction holds the slot with this word."""
    return word & HELD_MASK == HELD


def held_word(part: int, change: Change) -> int:
    """The word of a slot while it is held, by the reference of the part."""
    valid = change.new if is_vacant(change.old) else change.old
    return valid & FINGERPRINT | part | HELD


class Part:
    """A part, by whoever works on it. `word`: a reference to it, or of a slot that it holds."""

    def __init__(self, endpoint: Any, word: int) -> None:
        self.endpoint = endpoint
        self.reference = word & REFERENCE_MASK & ~HELD
        self.at = word & ADDRESS_MASK
        self.noted: list[Change] | None = None
        """Of the part's writer: the entries that it has written, so it parses none."""

    @staticmethod
    def size(entries: int) -> int:
        """Bytes of a part of so many entries."""
        return PART_ENTRIES + ENTRY_SIZE * entries

    def open(self, log: int, owner: int) -> None:
        """Begin to write it."""
        self.endpoint.store(self.at + PART_LOG, log)
        self.endpoint.store(self.at + PART_OWNER, owner)
        self.endpoint.store(self.at + PART_COUNT, 0)
        self.noted = []

    def note(self, change: Change) -> None:
        """Append an entry."""
        assert self.noted is not None
        endpoint = self.endpoint
        index = len(self.noted)
        at = self.at + PART_ENTRIES + ENTRY_SIZE * index
        endpoint.store(at, change.slot)
        endpoint.store(at + 8, change.old)
        endpoint.store(at + 16, change.new)
        # ORDER: the entry before the count.
        endpoint.store(self.at + PART_COUNT, index + 1)
        self.noted.append(change)

    def log(self) -> int:
        """Reference to the log."""
        return int(self.endpoint.load(self.at + PART_LOG))

    def owner(self) -> int:
        """Lock state of the transaction."""
        return int(self.endpoint.load(self.at + PART_OWNER))

    def changes(self) -> list[Change]:
        """All entries; their writer reads none. Raises StoreCorrupt if there cannot be as many."""
        if self.noted is not None:
            return self.noted
        load = self.endpoint.load
        first, count = self.at + PART_ENTRIES, load(self.at + PART_COUNT)
        if count > COUNT_MAX:
            raise StoreCorrupt(f"the part of a log at {self.at:#x} is damaged: {count} entries")
        places = range(first, first + ENTRY_SIZE * count, ENTRY_SIZE)
        return [Change(load(at), load(at + 8), load(at + 16)) for at in places]

    def hold(self, change: Change) -> bool:
        """Hold a slot; False if it has changed."""
        held = held_word(self.reference, change)
        return bool(self.endpoint.cas(change.slot, change.old, held) == change.old)

    def let_go(self, committed: bool) -> None:
        """Let go of all slots, as the transaction was decided."""
        for change in self.changes():
            self.let_go_of(change, committed)
            # CRASH(releasing): some slots are let go of; the next one goes on.

    def let_go_of(self, change: Change, committed: bool) -> None:
        """Let go of one slot."""
        held = held_word(self.reference, change)
        self.endpoint.cas(change.slot, held, change.new if committed else change.old)

    def references(self, committed: bool) -> list[int]:
        """References to the pairs that are not linked, when it was decided like that. Raises
        NodeFailed: they are lost with the part."""
        self.endpoint.load(self.at + PART_COUNT)
        words = [change.old if committed else change.new for change in self.changes()]
        return [word & REFERENCE_MASK for word in words if not is_vacant(word)]


def concerns(endpoint: Any, word: int, slot: int, reference: int) -> bool:
    """Whether an object is named by the word before, or after, of a slot that is held by `word`."""
    return any(
        not (named ^ reference) & LINK_MASK
        for change in Part(endpoint, word).changes()
        if change.slot == slot
        for named in (change.old, change.new)
        if not is_vacant(named)
    )
