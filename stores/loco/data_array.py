"""The data array of a memory node: its entries, and a copy of the entry that was read last.

LOCO section 6: each node has an array of values with a checksum for atomicity, a counter for
garbage collection and a valid bit. An entry, in words:

    0     state     bits 0-1    phase: vacant, claimed, valid or deleted
                    bits 2-13   the lock under which it was claimed: that of its key
                    bits 14-63  counter, one more each time that it is claimed; it does not wrap
    1     checksum  of the words from 2 on, as far as they are in use, and of lock and counter
    2     sizes     bits 0-15 length of the key, bits 16-47 length of the value
    3     link      reference of the object (records.py) with key and value, if the value is too
                    long for the entry; else 0
    4     key       padded with zeros to the size that keys have in this store
    then  value     padded with zeros to a multiple of 8; if it is not in an object

Lock and counter name the life of the entry. They and the phase are one word, which changes by one
CAS or store, and the phase is not in the checksum (L2): so a kill while a client sets the phase
leaves no checksum that never holds. The counter is in the checksum, so that a value is not taken
for that of an earlier life whose state word was read just before.

Writers: any client claims a vacant entry, by a CAS on its state. The client that holds its lock
writes the other words. In one life, key and its length do not change. `link` is written before the
other words, by itself: as long as a dead client's new object is not linked, nothing has changed.

An entry is whole if its checksum holds. A valid entry that is not whole is being overwritten, or
was when its writer was killed; then the journal of its lock has its new words (`EntryJournal`).

Invariants
    - a vacant entry has no link
    - an entry that is valid is whole, or named in the journal of its lock
    - an entry that is claimed or deleted is named in the journal of its lock
    - of all valid entries, one has a given key

Beside each lock of a table there is a journal with the step of the lock's holder (`EntryJournal`).

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

from array import array
from typing import TYPE_CHECKING, Any, Final

from limpet.shm.endpoint.fabric import crc_pair, words_bytes, words_equal, words_put
from limpet.stores.loco.layout import (
    CHECKSUM,
    CLAIM,
    ENTRY_SHIFT,
    INTENT,
    INTENT_ENTRY_MASK,
    INTENT_SHIFT,
    KEY,
    KEY_LENGTH_MASK,
    LINK,
    PHASE_MASK,
    REDO,
    SEQUENCE,
    SIZES,
    STATE,
    VALID,
    VALUE_LENGTH_MASK,
    VALUE_LENGTH_SHIFT,
)

if TYPE_CHECKING:
    from limpet.stores.loco.parameters import LocoParameters


MIX: Final = 0x9E37_79B9_7F4A_7C15
MASK: Final = 0xFFFF_FFFF_FFFF_FFFF


class DataArray:
    """The data array whose first entry is at address `base`. `words`: the entry that was read."""

    def __init__(self, endpoint: Any, base: int, parameters: LocoParameters) -> None:
        self.endpoint = endpoint
        self.base = base
        self.count = parameters.entries
        self.parts = parameters.parts
        self.entry_words = parameters.entry_words
        self.value_at = KEY + (parameters.key_size + 7) // 8
        self.key_room = 8 * (self.value_at - KEY)
        self.value_room = 8 * (self.entry_words - self.value_at)
        self.words = array("Q", bytes(8 * self.entry_words))

    def address(self, entry: int) -> int:
        """Address of an entry, and of its state."""
        return self.base + 8 * self.entry_words * entry

    def link_address(self, entry: int) -> int:
        """Address of the link of an entry."""
        return self.address(entry) + 8 * LINK

    # ---- reading --------------------------------------------------------------------------------

    def read(self, entry: int) -> None:
        """Read an entry; one read."""
        self.endpoint.read_words(self.address(entry), self.words, self.entry_words)

    def post(self, entry: int) -> None:
        """Post `read`."""
        self.endpoint.post_read(self.address(entry), self.words, self.entry_words)

    def state(self) -> int:
        """The state of the entry that was read."""
        return self.words[STATE]

    def link(self) -> int:
        """The link of the entry that was read."""
        return self.words[LINK]

    def is_valid(self) -> bool:
        """Whether the entry that was read is valid."""
        return self.words[STATE] & PHASE_MASK == VALID

    def key_is(self, key: bytes) -> bool:
        """Whether the entry that was read has this key."""
        length = self.words[SIZES] & KEY_LENGTH_MASK
        return length == len(key) and words_equal(self.words, 8 * KEY, key)

    def is_whole(self) -> bool:
        """Whether the checksum of the entry that was read holds."""
        return self.words[CHECKSUM] == self._checksum()

    def _checksum(self) -> int:
        """The checksum of the words."""
        count = self.value_at - SIZES
        if not self.words[LINK]:
            length = self.words[SIZES] >> VALUE_LENGTH_SHIFT & VALUE_LENGTH_MASK
            if length > self.value_room:
                length = self.value_room
            count += (length + 7) >> 3
        life = self.words[STATE] >> ENTRY_SHIFT
        return crc_pair(self.words, SIZES, count) ^ (life * MIX & MASK)

    def key(self) -> bytes:
        """The key of the entry that was read."""
        length = self.words[SIZES] & KEY_LENGTH_MASK
        return words_bytes(self.words, 8 * KEY, min(length, self.key_room))

    def value(self) -> bytes:
        """The value of the entry that was read, which has no link."""
        length = self.words[SIZES] >> VALUE_LENGTH_SHIFT & VALUE_LENGTH_MASK
        return words_bytes(self.words, 8 * self.value_at, min(length, self.value_room))

    # ---- changing -------------------------------------------------------------------------------

    def compose(self, state: int, key: bytes, value: bytes, link: int) -> int:
        """Compose the words of an entry with this pair; their number."""
        self.words[STATE] = state
        self.words[LINK] = link
        words_put(self.words, 8 * KEY, key, self.key_room)
        count = self.value_at
        if link:
            self.words[SIZES] = len(key)
        else:
            self.words[SIZES] = len(key) | len(value) << VALUE_LENGTH_SHIFT
            size = len(value) + 7 & ~7
            words_put(self.words, 8 * self.value_at, value, size)
            count += size >> 3
        self.words[CHECKSUM] = self._checksum()
        return count

    def write(self, entry: int, count: int, linked: int) -> None:
        """Write the first `count` words, except the state, to an entry whose link is `linked`."""
        if self.words[LINK] != linked:
            # ORDER: the link before all other words: an entry that is not whole links to the new
            # object, and recovery settles a dead client's journal by the link.
            self.endpoint.store(self.link_address(entry), self.words[LINK])
        # CRASH(torn): the next holder of the lock first completes it from the journal.
        # LINEARIZES: update; the last word
        at = self.address(entry) + 8 * CHECKSUM
        self.endpoint.write_words(at, self.words, count - CHECKSUM, CHECKSUM)


SEQUENCE_MASK: Final = 0xFFFF_FFFF << 32


class EntryJournal:
    """A journal. Its user sets `at`, its address."""

    def __init__(self, endpoint: Any) -> None:
        self.endpoint = endpoint
        self.at = 0
        self.sequence = 0
        self.intended = 0
        """The intent that was read."""

    def intent(self) -> int:
        """The holder's intent; 0: none. Without the sequence, which is remembered."""
        return self.found(self.endpoint.load(self.at + INTENT))

    def found(self, word: int) -> int:
        """As `intent`, of the word of the intent, which was read."""
        self.sequence = word & SEQUENCE_MASK
        self.intended = word & INTENT_ENTRY_MASK
        return self.intended

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
