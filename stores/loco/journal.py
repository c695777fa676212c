"""The journal beside each lock of a table: what its holder is doing.

    0     intent  bits 0-1 nothing, inserting, updating or deleting; bits 2-29 the entry
                  bits 32-63 sequence, one more at each end; it may wrap, as it only shows to who
                  waits for the lock that its holder gets on
    8     claim   the state word of that entry: as it is claimed, or, of the others, as it is valid
    16    redo    when updating: the words of the entry from `checksum` on, as they are to be

The client that holds the lock writes it. A client that finds an intent when it gets the lock
repairs (repair.py): it is the intent of a client that died, or whose operation ended with an error
of its own, while it held the lock.

The claim tells whether an entry is the intended one: an entry that was claimed under this lock has
the lock's number in its state, and no other lock's holder claims it with that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from limpet.stores.loco.layout import (
    CHECKSUM,
    CLAIM,
    INTENT,
    INTENT_ENTRY_MASK,
    INTENT_SHIFT,
    REDO,
    SEQUENCE,
)

if TYPE_CHECKING:
    from limpet.stores.loco.data_array import DataArray

SEQUENCE_MASK: Final = 0xFFFF_FFFF << 32


class Journal:
    """A journal. Its user sets `at`, its address."""

    def __init__(self, endpoint: Any) -> None:
        self.endpoint = endpoint
        self.at = 0
        self.sequence = 0

    def intent(self) -> int:
        """What the holder is doing; 0: nothing. Without the sequence, which is kept."""
        word = self.endpoint.load(self.at + INTENT)
        self.sequence = word & SEQUENCE_MASK
        return word & INTENT_ENTRY_MASK

    def claim(self) -> int:
        """The state word of the entry that it does it to."""
        return self.endpoint.load(self.at + CLAIM)

    def declare(self, what: int, entry: int, claim: int) -> None:
        """Say what is going to be done to an entry with this state word; after `intent`."""
        self.endpoint.store(self.at + CLAIM, claim)
        # ORDER: claim, and redo image, before the intent that makes them count.
        self.endpoint.store(self.at + INTENT, self.sequence | entry << INTENT_SHIFT | what)

    def keep(self, entries: DataArray, count: int) -> None:
        """Note the first words of an entry, but the state, as they are to be."""
        self.endpoint.write_words(self.at + REDO, entries.words, count - CHECKSUM, CHECKSUM)

    def load(self, entries: DataArray) -> None:
        """Have the words of an entry, but the state, be those that were noted."""
        count = entries.entry_words - CHECKSUM
        self.endpoint.read_words(self.at + REDO, entries.words, count, CHECKSUM)

    def end(self) -> None:
        """Say that it is done; after `intent`."""
        self.sequence = self.sequence + SEQUENCE & SEQUENCE_MASK
        self.endpoint.store(self.at + INTENT, self.sequence)
