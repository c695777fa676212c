"""The local index: this process's map from the keys of a memory node to entries.

LOCO section 6: each node has an index of all keys, key -> (node, array index, counter), and applies
to it the messages of the others' trackers. Here it is private to a handle, one for the table of
each memory node: a hash table with open addressing and linear probing, of pairs, a word each.

    bits 0-27   the entry, plus 1; 0: the place is empty
    bits 28-63  bits of the key's hash

A lookup compares the key in the entry itself, and the phase, so the counter is not needed here. Of
several entries for a key, at most one is valid. A lookup of the key reads them one by one (`find`).

The trackers of a table (`Trackers`): a ring buffer for the keys of each lock, of messages that tell
which entry has, or had, a key. In the paper each node that inserts has one. Here only the client
that holds the lock appends to it, so no client waits for another, or helps it; and a client that
looks a key up applies the messages about the keys of its lock, and no others.

    0   position  the number of messages that were ever announced; it only goes up
    8   ring      `size` words: message number p is at p mod size
                  bits 0-26   an entry
                  bit 27      GONE: it does not have the key any more
                  bits 28-63  bits of the hash of the key, which name its lock, too

Append: the holder of the lock writes the message, then counts the position up. Before that it is no
message: whatever a client that was killed has written there, the next holder writes over it.

Read: the position p; the messages below p; then the position again. A message that is read while
its place is written again is not taken for one: a client writes number n + size when the position
is n + size, so the words of message n are good if the second position is below that.

Acknowledgements. In the paper a thread of each node applies the messages of the trackers, and an
inserter waits until all nodes have acknowledged its own. So a process that is dead, stopped, or
keeps its interpreter busy would stop all inserts and deletes (trap L1). Here no client waits for
another: a client that looks a key up brings its index up to date first (`refresh`): it loads the
position of the tracker of the key's lock, and applies the messages since. It never looks a key up
in an index that is not up to date for it, which is the purpose of the acknowledgements. If a
message was overwritten in the ring, the index begins anew. A client that holds a lock does not do
that, and applies only a few messages (`refresh_near`): else it gives the lock back, and brings its
index up to date without it (trap L4; locking.py).

Parts. An index begins empty, with the positions that the trackers have then, so a process need not
look at the whole array before its first get. The entries are cut into parts; the hash of a key
names its home, and an insert claims an entry of the home if one is vacant there, else of the next
part that has one. A word of the table for each part, its reach, says how many parts after it have,
or had, keys whose home it is:

    reach    0 at first; only goes up, by CAS, before an entry is claimed so far away

The first operation on a key of a home looks at the entries of all parts in its reach, a few
thousand by default, whose keys the index has from then on. All messages since the index began are
applied, of whatever part. A kill leaves a reach that is larger than need be: then others look at
one more part, once.

Why a key is missing if none of the entries that the index has for it is valid and has it (L3). Keys
of which those bits of the hash are equal have one lock, so all messages of a pair (bits, entry) are
in one ring, in the order in which they came true; and those of other pairs change nothing of it.
Let p be the position that the operation loaded. If the key is valid at that moment in entry e, the
pair was announced when e was written, before it became valid; and that it is GONE is announced
after it is not valid any more, so not before p. So of the messages of this pair below p, the last
one says that e has the key, and the index has the pair. If e is found not valid then, or with
another key, it changed after p was loaded, within the operation: then the key was missing at that
moment.

A message from before the index began was not applied. Then e was claimed before, and the reach of
the key's home was raised before that; so when the reach was read, later, e was in one of the parts
that the index has learned since. A look at e, as its part is learned, finds it valid, or claimed
and whole, as it was when it was announced, and takes the pair over. If e changed before that look,
there are messages of it that are applied after the look; the last of them is right, and those
before it leave nothing behind.

A pair may stay though its entry has another key: one of a key whose lock this process never uses,
or one that was learned of an entry while it was written. It does no harm, and takes a place; if too
many places are taken, the index begins anew.

The phases that the index has seen (`states`) only say where a search for a vacant entry looks
first; the CAS that claims it finds out. An index that knows of no vacant entry brings itself up to
date for all locks before a key is refused (store.py).

The length of a ring: by default as many messages as a lock has entries on average, or more (trap
L4). So an index begins anew when others have changed about as many entries as there are.

Damage: a message may name an entry that the array does not have; then the index raises
StoreCorrupt. So does an append at a position above 2^62.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final

from limpet.shm.endpoint.fabric import hash64, words_prefetch
from limpet.shm.errors import StoreCorrupt
from limpet.shm.private_memory import zeroed_words
from limpet.stores.loco.layout import (
    ARRAY_MAX,
    CLAIMED,
    GONE,
    LOCK_AT,
    PHASE_MASK,
    READ_AT_ONCE,
    RING,
    ROW_BITS,
    ROW_MASK,
    VACANT,
    VALID,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet.stores.loco.data_array import DataArray
    from limpet.stores.loco.parameters import LocoParameters


WORD: Final = 0xFFFF_FFFF_FFFF_FFFF
POSITION_MAX: Final = 1 << 62


class Trackers:
    """The trackers of the table at address `base`, one a lock. `words`: messages that were read."""

    def __init__(self, endpoint: Any, base: int, parameters: LocoParameters) -> None:
        self.endpoint = endpoint
        self.base = base
        self.stride = parameters.tracker_size
        self.size = parameters.tracker
        self.count = parameters.locks
        self.words = array("Q", bytes(8 * READ_AT_ONCE))

    def at(self, lock: int) -> int:
        """Address of the tracker for the keys of this lock, and of its position."""
        return self.base + lock * self.stride

    def position(self, lock: int) -> int:
        """How many messages there are."""
        return self.endpoint.load(self.at(lock))

    def read(self, lock: int, number: int, limit: int) -> int:
        """Read messages from this number on, at most `limit`; how many. -1: they are overwritten.

        1 exchange.
        """
        place = number & self.size - 1
        count = min(limit, READ_AT_ONCE, self.size - place)
        at = self.at(lock)
        self.endpoint.post_read(at + RING + 8 * place, self.words, count)
        # ORDER: after the messages: none of them was written over before.
        ticket = self.endpoint.post_load(at)
        self.endpoint.wait()
        return count if self.has(number, self.endpoint.result(ticket)) else -1

    def has(self, number: int, position: int) -> bool:
        """Whether the ring has the message of this number, at this position."""
        return (position - number & WORD) < self.size

    def append(self, lock: int, number: int, message: int) -> None:
        """Announce the message of this number, the next one, to all clients. With the lock. Raises
        StoreCorrupt."""
        at = self.at(lock)
        if number > POSITION_MAX:
            raise StoreCorrupt(
                f"the tracker at {at:#x} has {number} messages: memory was damaged; destroy the "
                "pool"
            )
        self.endpoint.store(at + RING + 8 * (number & self.size - 1), message)
        # ORDER: the message before it is counted.
        self.endpoint.store(at, number + 1)


SPREAD: Final = 0x9E37_79B9
STEP: Final = 0x5851_F42D_4C95_7F2D
"""Knuth's multiplier of a linear congruential generator of 64 bits."""
TRIES: Final = 16
LOOKS: Final = 2048
"""Looks at entries between two updates of the progress word; a lease has time for many more."""


class LocalIndex:
    """The index of one table. Used within operations."""

    def __init__(
        self,
        entries: DataArray,
        trackers: Trackers,
        reaches: int,
        progress: Callable[[], None],
    ) -> None:
        """`reaches`: address of that of part 0. `progress`: updates the progress word; called
        during long walks."""
        self.entries = entries
        self.trackers = trackers
        self.reaches = reaches
        self.progress = progress
        self.endpoint = entries.endpoint
        self.parts = entries.parts
        self.locks = trackers.count - 1
        """Mask of a lock's number."""
        self.shift = (2 * entries.count + 8).bit_length()
        self.mask = (1 << self.shift) - 1
        """Mask of a place's number."""
        self.most = 3 * (self.mask >> 2)
        """So many places may be taken."""
        self.ahead = array("Q", bytes(8 * READ_AT_ONCE))
        self.tickets = array("Q", bytes(8 * READ_AT_ONCE))
        self.forget()

    def forget(self) -> None:
        """Forget all keys; the next `refresh` begins the index anew."""
        self.known = False
        self.applied = array("Q")
        """For the tracker of each lock: the number of messages that were applied, or were there
        when the index began."""
        self.words = array("Q")
        self.used = 0
        """Places that are taken."""
        self.states = array("Q")
        """For each entry, the state, or its phase alone, that was seen last; a hint."""
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
        self.chance = 0
        self.posted = 0
        self.looks = 0

    # ---- looking up -----------------------------------------------------------------------------

    def lock_of(self, hashed: int) -> int:
        """The number of the lock of the key with this hash."""
        return hashed >> LOCK_AT & self.locks

    def refresh(self, hashed: int) -> None:
        """Apply all messages so far about the keys of this one's lock, and learn the keys of its
        home. One load, if there is nothing to do."""
        ready = False
        while not ready:
            self._bring(self.lock_of(hashed))
            if not self.reached[self.home_of(hashed)]:
                self._learn_home(self.home_of(hashed))
            ready = self.known  # else it was crowded

    def refresh_lock(self, lock: int) -> None:
        """As `refresh`, for all keys of a lock."""
        ready = False
        while not ready:
            self._bring(lock)
            for home in range(self.parts):
                if not self.reached[home]:
                    self._learn_home(home)
            ready = self.known

    def refresh_all(self) -> None:
        """As `refresh`, for all keys."""
        for lock in range(self.locks + 1):
            self.refresh_lock(lock)

    def _bring(self, lock: int) -> None:
        """Apply all messages so far of a lock's tracker, or begin anew."""
        position = self.trackers.position(lock)
        if not self.is_current(lock, position):
            self._catch_up(lock, position, True)

    def post_position(self, lock: int) -> int:
        """Post the load of the position of a lock's tracker; its ticket."""
        return self.endpoint.post_load(self.trackers.at(lock))

    def is_current(self, lock: int, position: int) -> bool:
        """Whether the messages of a lock's tracker, which has this position, are applied."""
        return self.known and self.applied[lock] == position

    def refresh_near(self, lock: int, position: int, limit: int) -> bool:
        """As `refresh_lock`, if there are at most `limit` messages below this position; whether
        the index is up to date now."""
        if self.known and position != self.applied[lock]:
            if position - self.applied[lock] & WORD > limit:
                return False
            self._catch_up(lock, position, False)
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
        return self.words[self._place_of(self._word(entry, hashed))] != 0

    def _word(self, entry: int, hashed: int) -> int:
        return hashed >> ROW_BITS << ROW_BITS | entry + 1

    # ---- applying -------------------------------------------------------------------------------

    def _catch_up(self, lock: int, position: int, anew: bool) -> None:
        """Apply the messages of a lock's tracker before `position`, in the background scope.

        `anew`: begin the index anew if messages were overwritten, or it is crowded.
        """
        scope = self.endpoint.background(True)
        try:
            while self.known and self.applied[lock] != position:
                self._apply_some(lock, position)
            if anew and not self.known:
                self._begin()
        finally:
            self.endpoint.background(scope)

    def _apply_some(self, lock: int, position: int) -> None:
        """Apply as many messages as are read at once; or the index is not known any more."""
        first = self.applied[lock]
        count = -1
        if self.trackers.has(first, position):
            count = self.trackers.read(lock, first, position - first)
        if count < 0:
            self.known = False
        for row in range(count):
            # One by one: after an interrupt we begin again at the same message.
            self._apply(lock, self.trackers.words[row])
            self.applied[lock] = first + row + 1

    def _apply(self, lock: int, message: int) -> None:
        entry = message & ARRAY_MAX
        if entry >= self.entries.count:
            raise StoreCorrupt(
                f"message {self.applied[lock]} of the tracker at {self.trackers.at(lock):#x} names "
                f"entry {entry} of {self.entries.count}: memory was damaged; destroy the pool"
            )
        self.note_change(entry, message, VACANT if message & GONE else VALID)

    def _begin(self) -> None:
        """Begin anew, without any keys."""
        self.words = zeroed_words(self.mask + 1)
        self.used = 0
        self.states = zeroed_words(self.entries.count)
        self.learned = zeroed_words(self.parts)
        self.reached = zeroed_words(self.parts)
        self.applied = array("Q", bytes(8 * (self.locks + 1)))
        # ORDER: the positions before any reach and entry: later changes have messages after them.
        for start in range(0, self.locks + 1, READ_AT_ONCE):
            end = min(start + READ_AT_ONCE, self.locks + 1)
            for lock in range(start, end):
                self.applied[lock] = self.post_position(lock)
            self.endpoint.wait()
            for lock in range(start, end):
                self.applied[lock] = self.endpoint.result(self.applied[lock])
        self.known = True

    def _learn_home(self, home: int) -> None:
        """Learn the parts in the reach of a home, in the background scope."""
        scope = self.endpoint.background(True)
        try:
            # ORDER: the reach after the positions that the index began with.
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
        entries = self.entries
        entries.read(entry)
        state = entries.state()
        self.states[entry] = state
        # One that is claimed and was announced is whole; of another one a message follows.
        if state & PHASE_MASK == VALID or (state & PHASE_MASK == CLAIMED and entries.is_whole()):
            self._put(self._word(entry, hash64(entries.key())))

    def announce(self, entry: int, hashed: int, gone: int) -> None:
        """Announce that an entry has the key with this hash, or with GONE that it has not. With the
        key's lock, in an index that is up to date."""
        lock = self.lock_of(hashed)
        number = self.applied[lock]
        self.trackers.append(lock, number, hashed >> ROW_BITS << ROW_BITS | gone | entry)
        self.applied[lock] = number + 1

    def last_message(self, lock: int) -> int:
        """The last message of a lock's tracker; GONE: there is none. With the lock, in an index
        that is up to date. The bits of the hash are those of the result."""
        number = self.applied[lock]
        if not number or self.trackers.read(lock, number - 1, 1) != 1:
            return GONE
        return self.trackers.words[0]

    def note_change(self, entry: int, hashed: int, state: int) -> None:
        """Note that an entry has the key with this hash, or has it no more; and its state, or the
        phase."""
        self.states[entry] = state
        if state & CLAIMED:
            self._put(self._word(entry, hashed))
        else:
            self._drop(self._word(entry, hashed))

    def see(self, entry: int, state: int) -> None:
        """Note the state of an entry that a search for a vacant one has met."""
        self.states[entry] = state

    def _place_of(self, word: int) -> int:
        """The place of a pair; or the empty one where it would be."""
        place = word >> ROW_BITS & self.mask
        while self.words[place] and self.words[place] != word:
            place = place + 1 & self.mask
        return place

    def _put(self, word: int) -> None:
        """Add a pair."""
        place = self._place_of(word)
        if not self.words[place]:
            known, self.known = self.known, False
            if self.used < self.most:
                self.words[place] = word
                self.used += 1
                # ORDER: the index counts as unknown until all is done: after an interrupt, or if it
                # is crowded, it is made anew.
                self.known = known

    def _drop(self, word: int) -> None:
        """Take a pair out of the index."""
        place = self._place_of(word)
        if self.words[place]:
            known, self.known = self.known, False
            self._empty(place)
            self.used -= 1
            self.known = known

    def _empty(self, hole: int) -> None:
        """Empty a place; later pairs move up into it (Knuth, algorithm 6.4 R)."""
        place, word = hole, self.words[hole]
        while word:
            place = place + 1 & self.mask
            word = self.words[place]
            first = word >> ROW_BITS & self.mask
            if word and (place - first & self.mask) >= (place - hole & self.mask):
                self.words[hole] = word
                hole = place
        self.words[hole] = 0

    # ---- entries that may be vacant -------------------------------------------------------------

    def search(self, ident: int, hashed: int) -> None:
        """Begin a search for a vacant entry for the key with this hash, whose home is learned. Each
        client begins at another place of a part."""
        if self.searcher != ident:
            self.cursors = zeroed_words(self.parts)
            self.searcher = self.chance = ident
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

    def scatter(self) -> None:
        """Go on in the part at a place that seems vacant, chosen by chance: others are where we
        have been."""
        self.left = self.end - self.first
        for _ in range(TRIES):
            self.chance = self.chance * STEP + 1 & WORD
            entry = self.first + ((self.chance >> 32) * self.left >> 32)
            if self.states[entry] & PHASE_MASK != VALID:
                self.cursors[self.part] = entry + 1
                break

    def post_ahead(self, limit: int) -> None:
        """Post loads of the states of the next entries of the part, at most 64, that are not known
        to be valid."""
        entry = self.cursors[self.part] - 1
        self.posted = 0
        for _ in range(min(limit, self.left)):
            if self.states[entry] & PHASE_MASK != VALID:
                self.ahead[self.posted] = entry
                self.tickets[self.posted] = self.endpoint.post_load(self.entries.address(entry))
                self.posted += 1
            entry = entry + 1 if entry + 1 < self.end else self.first

    def see_ahead(self) -> None:
        """See the states that were posted, after `wait`."""
        for row in range(self.posted):
            self.states[self.ahead[row]] = self.endpoint.result(self.tickets[row])

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
