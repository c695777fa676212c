"""The local index: this process's map from the keys of a memory node to entries.

LOCO section 6: each node has an index of all keys, key -> (node, array index, counter), and applies
to it the messages of the others' trackers. Here it is private to a handle, one for the table of
each memory node: a hash table with open addressing and linear probing, a word for each entry that
has a key.

    bits 0-27   the entry, plus 1; 0: the place is empty
    bits 28-63  bits of the key's hash

A lookup compares the key in the entry itself, and the phase, so the counter is not needed here. Of
several entries for a key, at most one is valid. A lookup of the key reads them one by one (`find`).

Acknowledgements. In the paper a thread of each node applies the messages of the trackers, and an
inserter waits until all nodes have acknowledged its own. So a process that is dead, stopped, or
keeps its interpreter busy would stop all inserts and deletes (trap L1). Here no client waits for
another: a client that looks a key up brings its index up to date first (`refresh`): it loads the
position of the tracker, and applies the messages since. It never looks into an index that is not up
to date, which is the purpose of the acknowledgements. If a message was overwritten in the ring, the
index is made anew from the whole data array. A client that holds a lock does not do that, and
applies only a few messages (`refresh_near`): else it gives the lock back, and brings its index up
to date without it (trap L4; locking.py).

To apply a message is to look at the entry that it names, and to take over its key, if the entry is
valid or claimed. If the entry begins another life during the look, or is claimed and not written
yet, the key may be missing or wrong; then another message follows, beyond the position that was
loaded, and the entry is looked at again.

Why a key is missing if none of the entries that the index has for it is valid and has it (L3). Let
p be the position that `refresh` loaded. If the key is valid at that moment in a life of entry e,
then e was announced when it was written, before it became valid. So that message is among the first
p, and when it was applied the key was there; the index has e for the key until e is looked at in
another life. If e is found in another life, or not valid any more, it changed after p was loaded,
within the operation: then the key was missing at that moment. An index that is made anew uses the
position from before its first look, so the same holds for it.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

from limpet.shm.endpoint.fabric import hash64, words_prefetch
from limpet.shm.errors import StoreCorrupt
from limpet.stores.loco.layout import (
    CLAIMED,
    PHASE_MASK,
    ROW_BITS,
    ROW_MASK,
    VALID,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet.stores.loco.data_array import DataArray
    from limpet.stores.loco.tracker import Tracker

SPREAD: Final = 0x9E37_79B9
LOOKS: Final = 2048
"""Looks at entries between two updates of the progress word; a lease has time for many more."""


class LocalIndex:
    """The index of one table. Used within operations."""

    def __init__(self, entries: DataArray, tracker: Tracker, progress: Callable[[], None]) -> None:
        """`progress`: updates the progress word; called during long walks."""
        self.entries = entries
        self.tracker = tracker
        self.progress = progress
        self.endpoint = entries.endpoint
        self.mask = (1 << (2 * entries.count).bit_length()) - 1
        """Mask of a place's number; no more than half of the places are taken."""
        self.forget()

    def forget(self) -> None:
        """Forget all keys; the next `refresh` makes the index anew."""
        self.known = False
        self.applied = 0
        self.words = array("Q")
        self.link_addresses = array("Q")
        """For each entry, the number of its place plus 1; 0: it has none."""
        self.states = array("Q")
        """For each entry, its state at the last look."""
        self.at = 0
        self.mark = 0
        self.cursor = 0
        self.left = 0
        self.searcher = 0
        self.looks = 0

    # ---- looking up -----------------------------------------------------------------------------

    def refresh(self) -> None:
        """Apply all messages so far. One load, if there are none."""
        position = self.tracker.position()
        if position != self.applied or not self.known:
            self._catch_up(position, True)

    def refresh_near(self, limit: int) -> bool:
        """The same, if there are no more than `limit` messages; whether it is up to date now."""
        position = self.tracker.position()
        if position == self.applied or not self.known:
            return self.known
        if position - self.applied > limit:
            return False
        self._catch_up(position, False)
        return self.known

    def expect(self, hashed: int) -> None:
        """Prefetch the place of the key with this hash."""
        words_prefetch(self.words, hashed >> ROW_BITS & self.mask)

    def find(self, hashed: int) -> int:
        """The first entry that may have the key with this hash; or -1."""
        self.mark = hashed >> ROW_BITS
        self.at = self.mark & self.mask
        return self.find_next()

    def find_next(self) -> int:
        """The next such entry; or -1."""
        word = self.words[self.at]
        while word:
            self.at = self.at + 1 & self.mask
            if word >> ROW_BITS == self.mark:
                return (word & ROW_MASK) - 1
            word = self.words[self.at]
        return -1

    def has(self, entry: int, hashed: int) -> bool:
        """Whether the index has the entry for a key with this hash."""
        link_address = self.link_addresses[entry]
        return link_address > 0 and self.words[link_address - 1] == self._word(entry, hashed)

    def _word(self, entry: int, hashed: int) -> int:
        return hashed >> ROW_BITS << ROW_BITS | entry + 1

    # ---- applying -------------------------------------------------------------------------------

    def _catch_up(self, position: int, anew: bool) -> None:
        """Apply the messages before `position`, in the background scope.

        `anew`: make the index anew if messages were overwritten; else forget it.
        """
        scope = self.endpoint.background(True)
        try:
            # One by one: after an interrupt we begin again at the same message.
            while self.known and self.applied != position:
                entry = -1
                if not self._is_overtaken(position):
                    entry = self.tracker.message(self.applied)
                if entry < 0:
                    self.known = False
                elif entry >= self.entries.count:
                    raise self._damaged(entry)
                else:
                    self.look(entry)
                    self.applied += 1
            if anew and not self.known:
                self._rebuild()
        finally:
            self.endpoint.background(scope)

    def _is_overtaken(self, position: int) -> bool:
        """Whether the ring has gone round since the message that is to be applied next."""
        return position - self.applied > self.tracker.size

    def _damaged(self, entry: int) -> StoreCorrupt:
        return StoreCorrupt(
            f"message {self.applied} of the tracker at {self.tracker.at:#x} names entry {entry} of "
            f"{self.entries.count}: memory was damaged; destroy the pool"
        )

    def _rebuild(self) -> None:
        """Look at all entries."""
        self.words = array("Q", bytes(8 * (self.mask + 1)))
        self.link_addresses = array("Q", bytes(8 * self.entries.count))
        self.states = array("Q", bytes(8 * self.entries.count))
        # ORDER: the position before the entries: later changes have messages after it.
        position = self.tracker.position()
        for entry in range(self.entries.count):
            self.look(entry)
        self.applied = position
        self.known = True

    def look(self, entry: int) -> None:
        """Take over the present key and state of an entry."""
        self.looks += 1
        if self.looks % LOOKS == 0:
            self.progress()
        self.entries.read(entry)
        state = self.entries.state()
        self.states[entry] = state
        if state & CLAIMED:
            self._put(entry, hash64(self.entries.key()))
        else:
            self._drop(entry)

    def learn(self, entry: int, hashed: int, state: int, number: int) -> None:
        """Note our own change of an entry, which message `number` has announced.

        `hashed`: of its key, if it is claimed.
        """
        self.states[entry] = state
        if state & CLAIMED:
            self._put(entry, hashed)
        else:
            self._drop(entry)
        if self.applied == number:
            self.applied = number + 1

    def see(self, entry: int, state: int) -> None:
        """Note the state of an entry that a search for a vacant one has met."""
        self.states[entry] = state

    def _put(self, entry: int, hashed: int) -> None:
        """Add the entry for the key with this hash."""
        if not self.has(entry, hashed):
            self._drop(entry)
            known, self.known = self.known, False
            place = hashed >> ROW_BITS & self.mask
            while self.words[place]:
                place = place + 1 & self.mask
            self.words[place] = self._word(entry, hashed)
            self.link_addresses[entry] = place + 1
            # ORDER: the index counts as unknown until all is done: after an interrupt it is made
            # anew.
            self.known = known

    def _drop(self, entry: int) -> None:
        """Take the entry out of the index."""
        if self.link_addresses[entry]:
            known, self.known = self.known, False
            self._empty(self.link_addresses[entry] - 1)
            self.link_addresses[entry] = 0
            self.known = known

    def _empty(self, hole: int) -> None:
        """Empty a place; later entries move up into it (Knuth, algorithm 6.4 R)."""
        place, word = hole, self.words[hole]
        while word:
            place = place + 1 & self.mask
            word = self.words[place]
            first = word >> ROW_BITS & self.mask
            if word and (place - first & self.mask) >= (place - hole & self.mask):
                self.words[hole] = word
                self.link_addresses[(word & ROW_MASK) - 1] = hole + 1
                hole = place
        self.words[hole] = 0

    # ---- entries that may be vacant -------------------------------------------------------------

    def search(self, ident: int) -> None:
        """Begin a search for a vacant entry. Each client begins at another place."""
        self.left = self.entries.count
        if self.searcher != ident:
            self.searcher = ident
            self.cursor = ((ident >> 36) * SPREAD & 0xFFFF_FFFF) * self.left >> 32

    def candidate(self) -> int:
        """The next entry that is not known to be valid; -1 when all were seen."""
        while self.left:
            self.left -= 1
            entry = self.cursor
            self.cursor = entry + 1 if entry + 1 < self.entries.count else 0
            if self.states[entry] & PHASE_MASK != VALID:
                return entry
        return -1
