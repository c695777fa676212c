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
index begins anew. A client that holds a lock does not do that, and applies only a few messages
(`refresh_near`): else it gives the lock back, and brings its index up to date without it (trap L4;
locking.py).

Parts. An index begins empty, with the position that the tracker has then, so a process need not
look at the whole array before its first get. The entries are cut into parts; the hash of a key
names its home, and an insert claims an entry of the home if one is vacant there, else of the next
part that has one. A word of the table for each part, its reach, says how many parts after it have,
or had, keys whose home it is:

    reach    0 at first; only goes up, by CAS, before an entry is claimed so far away

The first operation on a key of a home looks at the entries of all parts in its reach, a few
thousand by default, whose keys the index has from then on. All messages since the index began are
applied, of whatever part. A kill leaves a reach that is larger than need be: then others look at
one more part, once.

To apply a message is to look at the entry that it names, and to take over its key, if the entry is
valid or claimed. If the entry begins another life during the look, or is claimed and not written
yet, the key may be missing or wrong; then another message follows, beyond the position that was
loaded, and the entry is looked at again.

Why a key is missing if none of the entries that the index has for it is valid and has it (L3). Let
p be the position that `refresh` loaded. If the key is valid at that moment in a life of entry e,
then e was announced when it was written, before it became valid. So that message is among the first
p, and when it was applied the key was there; the index has e for the key until e is looked at in
another life. If e is found in another life, or not valid any more, it changed after p was loaded,
within the operation: then the key was missing at that moment.

A message from before the index began was not applied. Then e was claimed before, and the reach of
the key's home was raised before that; so when the reach was read, later, e was in one of the parts
that the index has learned since. If e changed before that look, there is a message of it that is
applied, or will be, after the look.

The tracker of a memory node (`Tracker`) is a ring buffer of messages that name changed entries.

Loco's kvstore broadcasts changes of the index on ring buffers called trackers (LOCO section 6).
Here a node's data array has one tracker, to which all clients append:

    position  word: the number of messages that were ever announced; it only goes up
    ring      `size` words: message number p is at p mod size
              bits 0-27 an entry that has changed; bits 28-63 the lap, p div size + 1

A message is one word, and so is never torn (G2). It only names the entry, whose contents at the
look count: so a message may be applied twice, late, or by chance too early.

Append: load the position p and the word of message p. If that has p's lap already, a client has
written it and not announced it yet: help. Else a CAS from the word that was read to our message
takes number p and writes it, both at once; then a CAS of the position from p to p + 1 announces it.
No client can take p + 1 before. When `append` returns, the position is above p.

A kill leaves behind: a message that is not announced (CRASH unannounced); the next one to
append announces it, and nothing depended on it yet.

The length of the ring: by default as many messages as the table has entries, or more (trap L4). To
look at all entries anew then costs no more than the messages that were missed. A shorter ring saves
8 bytes a message; a client that is late by more than its length begins its index anew, and the next
time again.

Damage: a message may name an entry that the array does not have; then the index raises
StoreCorrupt. The word of message p has p's lap or the one before, as long as the position is p; for
any other, and for a position above 2^62, `append` raises StoreCorrupt instead of trying for ever.

A lap is 36 bits. It would have to come round while one client stands still between its load and its
CAS, and the word to have the same entry: after 2^36 laps.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final

from limpet.shm.endpoint.fabric import hash64, words_prefetch
from limpet.shm.errors import StoreCorrupt
from limpet.shm.private_memory import zeroed_words
from limpet.stores.loco.layout import (
    CLAIMED,
    LAP_MASK,
    PHASE_MASK,
    POSITION,
    RING,
    ROW_BITS,
    ROW_MASK,
    VALID,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet.stores.loco.data_array import DataArray


POSITION_MAX: Final = 1 << 62


class Tracker:
    """The tracker of the table at address `base`, with a ring of `size` messages."""

    def __init__(self, endpoint: Any, base: int, size: int) -> None:
        self.endpoint = endpoint
        self.size = size
        self.shift = size.bit_length() - 1
        self.at = 0
        self.ring = 0
        self.move(base)

    def move(self, base: int) -> None:
        """Become the tracker of the table at this address."""
        self.at = base + POSITION
        self.ring = base + RING

    def position(self) -> int:
        """How many messages there are."""
        return self.endpoint.load(self.at)

    def message(self, number: int) -> int:
        """The entry that a message names; -1: the ring has gone round since."""
        word = self.endpoint.load(self.ring + 8 * (number & self.size - 1))
        if word >> ROW_BITS != self._lap(number):
            return -1
        return word & ROW_MASK

    def _lap(self, number: int) -> int:
        return (number >> self.shift) + 1 & LAP_MASK

    def append(self, entry: int) -> int:
        """Announce a change of this entry to all clients; the message's number.

        2 round trips. Raises StoreCorrupt.
        """
        number = -1
        while number < 0:
            number = self._try(entry)
        return number

    def _try(self, entry: int) -> int:
        """Append: the number. Or -1, after helping another client, or losing to one."""
        endpoint = self.endpoint
        number = endpoint.load(self.at)
        slot = self.ring + 8 * (number & self.size - 1)
        there = endpoint.load(slot)
        endpoint.wait()
        lap = self._lap(number)
        if number > POSITION_MAX:
            raise self._damaged(number, there)
        if there >> ROW_BITS == lap:
            endpoint.cas(self.at, number, number + 1)
            return -1
        if there >> ROW_BITS != (lap - 1 & LAP_MASK):
            # ORDER: after the message: if the position is the same, the ring has not gone round.
            if endpoint.load(self.at) == number:
                raise self._damaged(number, there)
            return -1
        if endpoint.cas(slot, there, lap << ROW_BITS | entry) != there:
            return -1
        endpoint.wait()
        # CRASH(unannounced): the next client that appends announces it.
        endpoint.cas(self.at, number, number + 1)
        return number

    def _damaged(self, number: int, there: int) -> StoreCorrupt:
        return StoreCorrupt(
            f"the tracker at {self.at:#x} has {number} messages, and the place of the next one has "
            f"the word {there:#x}: memory was damaged; destroy the pool"
        )


SPREAD: Final = 0x9E37_79B9
LOOKS: Final = 2048
"""Looks at entries between two updates of the progress word; a lease has time for many more."""


class LocalIndex:
    """The index of one table. Used within operations."""

    def __init__(
        self,
        entries: DataArray,
        tracker: Tracker,
        reaches: int,
        progress: Callable[[], None],
    ) -> None:
        """`reaches`: address of that of part 0. `progress`: updates the progress word; called
        during long walks."""
        self.entries = entries
        self.tracker = tracker
        self.reaches = reaches
        self.progress = progress
        self.endpoint = entries.endpoint
        self.parts = entries.parts
        self.shift = (2 * entries.count).bit_length()
        self.mask = (1 << self.shift) - 1
        """Mask of a place's number; no more than half of the places are taken."""
        self.forget()

    def forget(self) -> None:
        """Forget all keys; the next `refresh` begins the index anew."""
        self.known = False
        self.applied = 0
        self.words = array("Q")
        self.link_addresses = array("Q")
        """For each entry, the number of its place plus 1; 0: it has none."""
        self.states = array("Q")
        """For each entry, its state at the last look."""
        self.learned = array("Q")
        """For each part, whether the entries in it were looked at."""
        self.reached = array("Q")
        """For each home, 1 + the reach that it had, if the parts in this reach are learned; or
        0."""
        self.cursors = zeroed_words(self.parts)
        """For each part, 1 + the entry at which the next search for a vacant one begins; or 0."""
        self.at = 0
        self.mark = 0
        self.left = 0
        self.steps = 0
        self.home = 0
        self.part = 0
        self.first = 0
        self.end = 0
        self.searcher = 0
        self.looks = 0

    # ---- looking up -----------------------------------------------------------------------------

    def refresh(self, hashed: int) -> None:
        """Apply all messages so far, and learn the keys of the home of the key with this hash. One
        load, if there is nothing to do."""
        position = self.tracker.position()
        if position != self.applied or not self.known:
            self._catch_up(position, True)
        if not self.reached[self.home_of(hashed)]:
            self._learn_home(self.home_of(hashed))

    def is_current(self, hashed: int) -> bool:
        """Whether `refresh` has nothing to do; one load."""
        return self.tracker.position() == self.applied and self.is_ready(hashed)

    def refresh_all(self) -> None:
        """As `refresh`, for all keys."""
        home = 0
        while home < self.parts:
            self.refresh(self._hash_of(home))
            home += 1
            if not self.is_ready(self._hash_of(0)):
                home = 0  # it has begun anew, without the homes that it had learned

    def _hash_of(self, home: int) -> int:
        """A hash with that home."""
        return (home * (self.mask + 1) + self.parts - 1) // self.parts << ROW_BITS

    def refresh_near(self, limit: int) -> bool:
        """As `refresh`, if there are at most `limit` messages; whether the index is up to date
        now."""
        position = self.tracker.position()
        if position == self.applied or not self.known:
            return self.known
        if position - self.applied > limit:
            return False
        self._catch_up(position, False)
        return self.known

    def is_ready(self, hashed: int) -> bool:
        """Whether the keys of the home of the key with this hash are learned."""
        return self.known and self.reached[self.home_of(hashed)] > 0

    def home_of(self, hashed: int) -> int:
        """The home of the key with this hash: its places in this index are together, too."""
        return (hashed >> ROW_BITS & self.mask) * self.parts >> self.shift

    def prefetch(self, hashed: int) -> None:
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

        `anew`: begin the index anew if messages were overwritten; else forget it.
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
                    self.read_entry(entry)
                    self.applied += 1
            if anew and not self.known:
                self._begin()
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

    def _begin(self) -> None:
        """Begin anew, without any keys."""
        self.words = zeroed_words(self.mask + 1)
        self.link_addresses = zeroed_words(self.entries.count)
        self.states = zeroed_words(self.entries.count)
        self.learned = zeroed_words(self.parts)
        self.reached = zeroed_words(self.parts)
        # ORDER: the position before any reach and entry: later changes have messages after it.
        self.applied = self.tracker.position()
        self.known = True

    def _learn_home(self, home: int) -> None:
        """Learn the parts in the reach of a home, in the background scope."""
        scope = self.endpoint.background(True)
        try:
            # ORDER: the reach after the position that the index began with.
            reach = self.endpoint.load(self.reaches + 8 * home)
            if reach >= self.parts:
                raise self._too_far(home, reach)
            for step in range(reach + 1):
                self._learn_part((home + step) % self.parts)
            self.reached[home] = reach + 1
        finally:
            self.endpoint.background(scope)

    def _learn_part(self, part: int) -> None:
        """Look at the entries of a part, unless that was done."""
        if not self.learned[part]:
            for entry in range(self.first_of(part), self.first_of(part + 1)):
                self.read_entry(entry)
            self.learned[part] = 1

    def first_of(self, part: int) -> int:
        """The first entry of a part; of the number of parts: the number of entries."""
        return part * self.entries.count // self.parts

    def _too_far(self, home: int, reach: int) -> StoreCorrupt:
        return StoreCorrupt(
            f"the reach at {self.reaches + 8 * home:#x} is {reach}, of {self.parts} parts: memory "
            "was damaged; destroy the pool"
        )

    def read_entry(self, entry: int) -> None:
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

    def note_change(self, entry: int, hashed: int, state: int, number: int) -> None:
        """Note our own change of an entry, which message `number` has announced.

        `hashed`: of its key, if it is claimed.
        """
        # Else it begins anew at the next `refresh`, which looks at the entry.
        if self.known:
            self.states[entry] = state
            if state & CLAIMED:
                self._put(entry, hashed)
            else:
                self._drop(entry)
            if self.applied == number:
                self.applied = number + 1

    def see(self, entry: int, state: int) -> None:
        """Note the state of an entry that a search for a vacant one has met."""
        if self.known:
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

    def search(self, ident: int, hashed: int) -> None:
        """Begin a search for a vacant entry for the key with this hash, whose home is learned. Each
        client begins at another place of a part."""
        if self.searcher != ident:
            self.cursors = zeroed_words(self.parts)
            self.searcher = ident
        self.home = self.home_of(hashed)
        self.steps = 0
        self._search_part()

    def _search_part(self) -> None:
        """Go on in the part that is so many steps from the home."""
        self.part = (self.home + self.steps) % self.parts
        self.first = self.first_of(self.part)
        self.end = self.first_of(self.part + 1)
        self.left = self.end - self.first
        if not self.cursors[self.part]:
            share = (self.searcher >> 36) * SPREAD & 0xFFFF_FFFF
            self.cursors[self.part] = self.first + (share * self.left >> 32) + 1

    def candidate(self) -> int:
        """The next entry that is not known to be valid; -1 when all were seen. It is in the reach
        of the home."""
        while True:
            while self.left:
                self.left -= 1
                entry = self.cursors[self.part] - 1
                following = entry + 1 if entry + 1 < self.end else self.first
                self.cursors[self.part] = following + 1
                if self.states[entry] & PHASE_MASK != VALID:
                    self._reach_out()
                    return entry
            self.steps += 1
            if self.steps == self.parts:
                return -1
            self._search_part()

    def _reach_out(self) -> None:
        """Raise the reach of the home as far as the search has come."""
        at = self.reaches + 8 * self.home
        while self.reached[self.home] <= self.steps:
            # ORDER: before an entry there is claimed. Those who begin their index afterwards look
            # there; all others apply the message.
            reach = self.endpoint.load(at)
            if reach < self.steps:
                self.endpoint.cas(at, reach, self.steps)
            else:
                self.reached[self.home] = reach + 1
            self.endpoint.wait()

    def reaches_to(self, hashed: int, entry: int) -> bool:
        """Whether the entry is in the reach of the home of the key with this hash."""
        home = self.home_of(hashed)
        part = ((entry + 1) * self.parts - 1) // self.entries.count
        return (part - home) % self.parts <= self.endpoint.load(self.reaches + 8 * home)
