"""The journal beside each lock of a table: the step of its holder.

    0     intent  bits 0-1 nothing, inserting, updating or deleting; bits 2-29 the entry
                  bits 32-63 sequence, one more at each end; it may wrap, as it only shows
                  waiting clients that the holder makes progress
    8     claim   the state word of that entry: for an insert as it is claimed, else as it is valid
    16    redo    when updating: the new words of the entry from `checksum` on

The client that holds the lock writes it. A client that finds an intent when it gets the lock
repairs (repair.py): the last holder died, or its operation ended with an error, while it held the
lock.

The claim identifies the intended entry: an entry that was claimed under this lock has the lock's
number in its state, and no holder of another lock claims it with that number.
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
        """The holder's intent; 0: none. Without the sequence, which is remembered."""
        word = self.endpoint.load(self.at + INTENT)
        self.sequence = word & SEQUENCE_MASK
        return word & INTENT_ENTRY_MASK

    def resume(self, at: int, word: int) -> int:
        """As `intent`, of the journal at `at`, whose intent was read: `word`."""
        self.at = at
        self.sequence = word & SEQUENCE_MASK
        return word & INTENT_ENTRY_MASK

    def claim(self) -> int:
        """The state word of the intended entry."""
        return self.endpoint.load(self.at + CLAIM)

    def declare(self, what: int, entry: int, claim: int) -> None:
        """Note the intent for an entry with this state word; after `intent`."""
        self.endpoint.store(self.at + CLAIM, claim)
        # ORDER: claim, and redo image, before the intent that makes them valid.
        self.endpoint.store(self.at + INTENT, self.sequence | entry << INTENT_SHIFT | what)

    def keep(self, entries: DataArray, count: int) -> None:
        """Note the first new words of an entry, except the state."""
        self.endpoint.write_words(self.at + REDO, entries.words, count - CHECKSUM, CHECKSUM)

    def load(self, entries: DataArray) -> None:
        """Load the noted words, all but the state, as the words of the entry."""
        count = entries.entry_words - CHECKSUM
        self.endpoint.read_words(self.at + REDO, entries.words, count, CHECKSUM)

    def end(self) -> None:
        """Clear the intent; after `intent`."""
        self.sequence = self.sequence + SEQUENCE & SEQUENCE_MASK
        self.endpoint.store(self.at + INTENT, self.sequence)
