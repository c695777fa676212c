"""The index of RACE hashing: the place of a key's slot, and the search for it (FUSEE 4.2).

Zuo et al., "One-sided RDMA-conscious extendible hashing for disaggregated memory", ATC '21. All
stores on the index share this part. A writer of slots changes slots (slots.py and its variants), a
splitter lets the index grow (splitter.py and its variants).

Each memory node has a directory, a region; a key's hash chooses which. A directory is a binary trie
in an array: entry 1 is the root, the halves of entry k are entries 2k and 2k + 1, and further bits
of the hash choose between them. The last entry comes first in memory. So a transaction, which works
in the order of addresses, sets both halves before it splits their parent. An entry is 16 bytes, a
TXObj as of stores/rtx:

    0   lock       of growth by transactions (rtx/race.py), or under locks (locked.py,
                   baselines/dtx/race.py); else 0
    8   pointer    0        nothing yet; the first client that inserts makes a subtable
                   SPLIT    split for good: the keys are in its halves. Any word of a vacant slot
                            (stores/core/records.py) has the same meaning
                   else     reference to the subtable with the keys, an object (words.py)

A store begins with the entries of depth `depth`; no client looks at those above them. A handle
remembers how deep a key's entry is, and where its subtable was, so one phase reads the entry and
the buckets: `post_choose` goes by what is remembered, and `read_buckets` looks at the entry after
`wait`. If the entry has changed, it reads the buckets anew. Entry and buckets may be read in any
order, and are where they lie on different nodes: an entry that has been seen with a pointer has it
until it is split, so if it still has it, the subtable was in force all the while.

A subtable is an array of groups of 192 bytes:

    0     main bucket 0
    64    overflow bucket, shared by both
    128   main bucket 1

A bucket is 64 bytes: a header word (number of the entry << 32 | group number, for `check`) and 7
slots. A key has two choices; each is a combined bucket, a main bucket with the overflow bucket
beside it, read as 128 adjacent bytes. So a key's pair is in one of 28 slots, and stays in the slot
into which it was put. A key has the same place in a half as it had before, so a client that goes
through the groups of a subtable that is split meanwhile goes on with the same group of both halves.

Slot word
    bits 56-63  fingerprint: 8 bits of the key's hash
    bit 55      frozen: the subtable is being split (splitter.py); never changed again
    bits 48-54  size class of the object: how much to read, in place of the paper's length
    bits 4-47   address of the object (records.py)
    bits 1-3    replicas of the object, less one; HELD: a transaction holds the slot, and the
                address is that of its part (stores/transactions/parts.py; only in `rtx-race`)
    bit 0       tentative: written by an insert that is not yet decided; readers pass over it
    vacant      0, or size class 255 and a number that no other word of the pool has

A slot is valid when it is neither vacant nor tentative. Invariant: of all valid slots, at most one
holds a given key.

A pinned client that has seen a pointer may use the subtable until it leaves, even if it is split
meanwhile: its slots are frozen before the split and never change again. So a word that a client
reads in a slot was there at some moment after it saw the pointer and before the split; and its CAS
of a frozen slot fails. An entry never has the same subtable twice. A client that reads without a
pin proves what it has read by that (glance.py).

In a durable pool (docs/durable.md) a power cut leaves of each cache line some version since it was
last written back. Each change of a key is a CAS on one slot, and

    - a client that changes a slot has what the slot links to persist before, and the slot before it
      returns (slots.py, client.py);
    - a client that goes by a slot, or by a vacant one, has that slot persist before it returns, or
      before it decides an insert: `depend`. So of two changes of a key in different slots, the
      earlier one persists before the later one happens; in one slot that is so anyway;
    - likewise for the entries that lead to the slot: `locate` notes an entry when it finds there
      another pointer than this handle has seen and made persistent before.

So what a power cut leaves of a key is its state after some change, and no operation that has
returned went by a later one: durable linearizability. Readers write lines back, instead of writers
that mark a word as not yet persistent (link-and-persist), since a slot word has no bit to spare,
and a line that is written back twice costs little beside a second CAS.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

import numpy as np

from limpet.shm.endpoint.fabric import hash64, lowest_bit
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.states import former
from limpet.shm.endpoint.words import ADDRESS_MASK, HELD, HELD_MASK, LINK_MASK, TENTATIVE
from limpet.shm.errors import StoreCorrupt
from limpet.stores.core.object_layout import POINTER
from limpet.stores.core.status import BATCH, VACANT_CLASS
from limpet.stores.race.layout import (
    DIRECTORY_ENTRY,
    FROZEN,
    MASK,
    MIX_DIRECTORY,
    MIX_FIRST,
    MIX_SECOND,
    OBJECT_MASK,
    SLOTS,
)
from limpet.stores.race.parameters import GROUP_SIZE

PREFETCH_SIZE: Final = 192


def is_vacant(word: int) -> bool:
    """Whether a slot with this word has room."""
    return word == 0 or word >> 48 & 0xFF == VACANT_CLASS


def is_valid(word: int) -> bool:
    """Whether a slot with this word has a pair that readers may see."""
    return word != 0 and not word & TENTATIVE and word >> 48 & 0xFF != VACANT_CLASS


def is_frozen(word: int) -> bool:
    """Whether a slot with this word is frozen."""
    return word & FROZEN != 0 and word >> 48 & 0xFF != VACANT_CLASS


def is_split(pointer: int) -> bool:
    """Whether an entry with this pointer is split."""
    return pointer >> 48 & 0xFF == VACANT_CLASS


class Place:
    """The key of an operation: its directory, entry and buckets, and the result of the search.

    A store has one, and uses it again for each operation. `Index.choose` fills it from the key's
    hash; `Index.match` sets `word` and `busy`.
    """

    def __init__(self) -> None:
        self.hash = 0
        self.table = 0
        """Number of the directory."""
        self.depth = 0
        self.number = 0
        """Number of the key's entry."""
        self.entry = 0
        """Address of the entry's pointer."""
        self.pointer = 0
        """The entry's pointer as it was read; 0: the key has no subtable yet."""
        self.base = 0
        """Address of the subtable; 0: there is none."""
        self.first = 0
        self.second = 0
        """Addresses of the two combined buckets."""
        self.posted = False
        """The entry is as the handle remembers it; its read is posted, and `ticket` its result."""
        self.ticket = 0
        self.word = 0
        """The word of the slot that `match` found."""
        self.busy = 0
        """A word of the store's own for the slot that the operation has to wait for; 0: none."""
        self.head = 0
        self.backups = 0
        """For a replicated subtable: the node of its replica 0, and its number of backups."""


class Remembered:
    """A handle's notes on the directories. They are replaced as a whole when they have to be
    deeper: a signal handler can raise between any two parts, and compiled code trusts these bounds.
    """

    def __init__(self, deepest: int, depths: Any, known: Any) -> None:
        self.deepest = deepest
        """The greatest depth that the handle has seen. `depths` is indexed by so many bits of the
        hash, and `known`, the subtables, by the number of the entry."""
        self.depths = depths
        self.known = known


class Holds:
    """Reads slots that a transaction holds. In this class no slot may be held."""

    def __init__(self, name: str) -> None:
        self.name = name

    def held(self, place: Place, slot: int, word: int, key: bytes) -> int:
        """Reference to the pair of a held slot, for a search; 0: it has none, or it is undecided.

        If it is undecided, and may have `key`, `place.busy` is set for the wait.
        """
        raise StoreCorrupt(f"{self.name}: a transaction holds the slot at {slot:#x}: {word:#x}")

    def settled(self, slot: int, word: int) -> int:
        """The word of a slot; of a held slot, the word that it gets if the transaction ends now."""
        return word


class Index:
    """Finds keys. `tables` are the addresses of the directories."""

    def __init__(
        self, pool: Any, name: str, parameters: Any, objects: Any, tables: list[int], holds: Holds
    ) -> None:
        self.name = name
        self.endpoint = pool.endpoint
        self.heap = pool.heap
        self.objects = objects
        self.holds = holds
        self.groups = parameters.groups
        self.subtables = parameters.subtables
        self.bucket_size = parameters.bucket_size
        self.subtable_size = parameters.subtable_size
        self.directory_size = parameters.directory_size
        self.depth_first = parameters.depth
        self.depth_max = parameters.depth_max
        self.entries = (2 << parameters.depth_max) - 1
        """The number of the last entry of a directory."""
        self.tables = array("Q", tables)
        self.words = memoryview(bytearray(256 * BATCH)).cast("Q")
        """The buckets that were read: for each key of a batch a row of 32 words."""
        self.tagged = array("Q", bytes(8 * BATCH))
        """For each row, which of its words have the fingerprint of the row's key."""
        self.forget()

    def forget(self) -> None:
        """Forget depths and subtables."""
        count = self.subtables << self.depth_first
        depths = memoryview(bytearray([self.depth_first]) * count)
        self.seen = Remembered(self.depth_first, depths, array("Q", bytes(16 * count)))

    def replaced(self, node: int) -> None:
        """From now on, `node` has new memory: forget the addresses on it."""
        for table in range(self.subtables):
            self.tables[table] = former(self.tables[table], node)
        self.forget()

    # ---- where a key belongs ----------------------------------------------------------------

    def choose(self, place: Place, key: bytes) -> None:
        """Work out a key's hash, subtable and the addresses of its two combined buckets."""
        self.locate(place, hash64(key))

    def post_choose(self, place: Place, key: bytes) -> None:
        """As `choose`, by what this handle remembers: the read of the entry is posted, and
        `read_buckets` looks at it."""
        self.agree()
        self.post_locate(place, hash64(key))

    def locate(self, place: Place, hashed: int) -> None:
        """As `choose`, by the key's hash."""
        place.posted = False
        self._aim(place, hashed)
        pointer = self.endpoint.load(place.entry)
        while is_split(pointer):
            self._descend(place)
            pointer = self.endpoint.load(place.entry)
        if self._follow(place, pointer):
            # The buckets are elsewhere than this handle remembered: it reads them in another phase.
            self.endpoint.wait()

    def post_locate(self, place: Place, hashed: int) -> None:
        """As `post_choose`, by the key's hash, after `agree` or `agree_to_read`."""
        self._aim(place, hashed)
        place.ticket = self.endpoint.post_load(place.entry)
        place.posted = True
        pointer = self.seen.known[(place.table << self.seen.deepest + 1) + place.number]
        place.pointer = pointer
        if pointer:
            self._locate_in(place, self.base_of(pointer))
        else:
            place.base = 0

    def agree(self) -> None:
        """Go by the view of the nodes that all operations have, until this one ends."""

    def agree_to_read(self) -> None:
        """As `agree`, in an operation that only reads."""

    def post_unpinned(self, place: Place, hashed: int) -> bool:
        """As `post_locate`, in a get without a pin (glance.py). False: it needs one."""
        if self.endpoint.failed(self.tables[(hashed >> 32) * self.subtables >> 32]):
            return False
        self.post_locate(place, hashed)
        return True

    def read_unpinned(self, place: Place) -> bool:
        """As `read_buckets`, in a get without a pin. False: it needs one."""
        self.read_buckets(place)
        return True

    def confirm(self, place: Place) -> bool:
        """After the `wait` of `post_choose`: whether the entry is as we remembered it. If not, the
        place is known now, and its buckets can be read."""
        if not place.posted:
            return True
        place.posted = False
        pointer = self.entry_read(place)
        if pointer == place.pointer:
            return True
        while not self.go_on(place, pointer):
            self.endpoint.wait()
            pointer = self.entry_read(place)
        return False

    def entry_read(self, place: Place) -> int:
        """After the `wait`: the pointer in the entry whose read was posted."""
        if self.endpoint.hints:
            return place.ticket
        return self.endpoint.result(place.ticket)

    def go_on(self, place: Place, pointer: int) -> bool:
        """The entry of a key has turned out to have this pointer. Whether the place is known now;
        if not, the entry is split, and the read of its half is posted."""
        if is_split(pointer):
            self._descend(place)
            place.ticket = self.endpoint.post_load(place.entry)
            return False
        self._follow(place, pointer)
        return True

    def _aim(self, place: Place, hashed: int) -> None:
        """The entry of a key with this hash, as far as we remember."""
        table = (hashed >> 32) * self.subtables >> 32
        prefix = self.prefix(hashed)
        depth = self.seen.depths[self._remembered(table, prefix)]
        number = 1 << depth | prefix >> self.depth_max - depth
        place.hash = hashed
        place.table = table
        place.depth = depth
        place.number = number
        place.entry = self.entry(table, number)

    def _descend(self, place: Place) -> None:
        """Go on from an entry that is split to its half, and remember that."""
        if self.endpoint.durable:
            self.endpoint.dirty(place.entry, 8)
        self.below(place.number)
        prefix = self.prefix(place.hash)
        place.depth += 1
        if place.depth > self.seen.deepest:
            self._remember_deeper()
        self.seen.depths[self._remembered(place.table, prefix)] = place.depth
        place.number = 1 << place.depth | prefix >> self.depth_max - place.depth
        place.entry = self.entry(place.table, place.number)

    def _follow(self, place: Place, pointer: int) -> bool:
        """Go on from an entry to the subtable that it points to, if any, and remember that. Whether
        this handle remembered another one."""
        index = (place.table << self.seen.deepest + 1) + place.number
        other = pointer != self.seen.known[index]
        if other:
            self.seen.known[index] = pointer
            if self.endpoint.durable:
                self.endpoint.dirty(place.entry, 8)
        place.pointer = pointer
        if pointer:
            self._locate_in(place, self.base_of(pointer))
        else:
            place.base = 0
        return other

    def _locate_in(self, place: Place, base: int) -> None:
        """Work out the addresses of the key's combined buckets in the subtable at this address."""
        combined = 2 * self.groups
        first = ((place.hash * MIX_FIRST & MASK) >> 32) * combined >> 32
        second = ((place.hash * MIX_SECOND & MASK) >> 32) * combined >> 32
        if first >> 1 == second >> 1:
            # one group would give the key 14 slots instead of 28
            second = (second + 2) % combined
        place.base = base
        place.first = base + (first >> 1) * GROUP_SIZE + (first & 1) * 64
        place.second = base + (second >> 1) * GROUP_SIZE + (second & 1) * 64

    def table_of(self, key: bytes) -> int:
        """Number of the directory that a key is in."""
        return (hash64(key) >> 32) * self.subtables >> 32

    def node_of(self, table: int) -> int:
        """The memory node of a directory, its subtables and their pairs."""
        return self.tables[table] >> NODE_SHIFT & 0xFF

    def base_of(self, pointer: int) -> int:
        """Address of the subtable that an entry points to."""
        return pointer & ADDRESS_MASK

    def prefix(self, hashed: int) -> int:
        """The bits of a hash that choose an entry of the greatest depth."""
        return ((hashed * MIX_DIRECTORY & MASK) >> 32) >> 32 - self.depth_max

    def _remembered(self, table: int, prefix: int) -> int:
        """The place in `depths` for a key with these bits."""
        deepest = self.seen.deepest
        return table << deepest | prefix >> self.depth_max - deepest

    def _remember_deeper(self) -> None:
        """Remember by one bit more."""
        seen = self.seen
        known = np.frombuffer(seen.known, dtype="<u8").reshape(self.subtables, -1)
        # ORDER: whole before it is used.
        self.seen = Remembered(
            seen.deepest + 1,
            memoryview(bytearray(np.repeat(np.frombuffer(seen.depths, "u1"), 2))),
            array("Q", np.pad(known, ((0, 0), (0, known.shape[1]))).tobytes()),
        )

    def depend(self, place: Place, slot: int) -> None:
        """In a durable pool: note what an outcome depends on, which its writer may not have written
        back yet: the slot that has the key, or, if 0, all buckets that could have it."""
        if slot:
            self.endpoint.dirty(slot, 8)
        elif place.base:
            self.endpoint.dirty(place.first, 128)
            self.endpoint.dirty(place.second, 128)

    # ---- entries of directories -------------------------------------------------------------

    def entry(self, table: int, number: int) -> int:
        """Address of the pointer of an entry."""
        return self.tables[table] + DIRECTORY_ENTRY * (self.entries - number) + POINTER

    def below(self, number: int) -> int:
        """The number of the first half of an entry. Raises StoreCorrupt if it can have none."""
        if number >> self.depth_max:
            raise StoreCorrupt(f"{self.name}: entry {number} of a directory is said to be split")
        return 2 * number

    def roots(self) -> range:
        """Numbers of the first entries of each directory."""
        return range(1 << self.depth_first, 2 << self.depth_first)

    def halves(self, table: int, number: int) -> list[int]:
        """Pointers to the halves of an entry that are there already."""
        if number >> self.depth_max:
            return []
        pointers = [self.endpoint.load(self.entry(table, 2 * number + half)) for half in (0, 1)]
        return [pointer for pointer in pointers if pointer and not is_split(pointer)]

    def slots_of(self, base: int) -> Any:
        """A copy of the subtable there as an array of shape (groups, 3 buckets, 8 words)."""
        raw = self.endpoint.read(base, self.groups * GROUP_SIZE)
        self.endpoint.dirty(base, self.groups * GROUP_SIZE)
        return np.frombuffer(raw, dtype="<u8").reshape(self.groups, 3, 8)

    # ---- finding ----------------------------------------------------------------------------

    def read_buckets(self, place: Place) -> None:
        """Read both combined buckets into row 0 of `words`; one phase, with what was posted before.
        One more if the entry is not as we remembered it."""
        self.read_phase(place)
        while not self.confirm(place):
            self.read_phase(place)

    def read_phase(self, place: Place) -> None:
        """Read both combined buckets into row 0 of `words`, and end the phase."""
        self.post_row(place, 0)
        self.endpoint.wait()
        self.row_arrived(place, 0)

    def post_row(self, place: Place, row: int) -> None:
        """Post `read_row`: after `wait`, `row_arrived`."""
        if place.base:
            self.tagged[row] = self.endpoint.post_tagged(
                place.first, place.second, self.words, 32 * row, place.hash & 0xFF
            )
        else:
            self._empty_row(row)

    def row_arrived(self, place: Place, row: int) -> None:
        """The phase has ended in which this row was read."""
        # Where verbs are done at once, a ticket is the result; and only there are hints of use.
        if place.base and not self.endpoint.hints:
            self.tagged[row] = self.endpoint.result(self.tagged[row])

    def read_row(self, place: Place, row: int) -> None:
        """A row of `words`: 0-15 the first combined bucket, 16-31 the second."""
        if place.base:
            self.tagged[row] = self.endpoint.read_tagged(
                place.first, place.second, self.words, 32 * row, place.hash & 0xFF
            )
        else:
            self._empty_row(row)

    def _empty_row(self, row: int) -> None:
        """A row of a key without a subtable."""
        self.tagged[row] = 0
        for index in range(32 * row, 32 * row + 32):
            self.words[index] = 0

    def find(self, place: Place, key: bytes) -> int:
        """Read the buckets; address of the valid slot with this key, or 0.

        Then `objects` has its pair, and `place.word` is the slot's word.
        """
        self.read_buckets(place)
        return self.match(place, key, 0, True)

    def look_up(self, place: Place, key: bytes) -> int:
        """As `choose` and `find`, for callers that are not compiled."""
        self.choose(place, key)
        return self.find(place, key)

    def match(self, place: Place, key: bytes, row: int, phases: bool) -> int:
        """Of the slots in a row, the address of the valid one with this key, or 0.

        With `phases`, each object read is a round trip of its own. After 0, `place.busy` is set if
        the key may be in a slot that is undecided.
        """
        place.busy = 0
        left = self.tagged[row] & SLOTS
        while left:
            index = lowest_bit(left)
            left &= left - 1
            word = self.words[32 * row + index]
            if not is_valid(word):
                continue
            reference = word & OBJECT_MASK
            if word & HELD_MASK == HELD:
                reference = self.holds.held(place, self.address(place, index), word, key)
                if not reference:
                    continue
            if phases:
                self.objects.post_keyed(reference, key)
                self.endpoint.wait()
                found = self.objects.matches(key)
            else:
                found = self.objects.load_keyed(reference, key)
            if found:
                place.word = word
                place.busy = 0
                return self.address(place, index)
        return 0

    def candidates(self, row: int) -> int:
        """Of the slots in a row, those that are valid and have the key's fingerprint, as bits.
        Their objects are prefetched."""
        left = self.tagged[row] & SLOTS
        found = left
        while left:
            word = self.words[32 * row + lowest_bit(left)]
            if is_valid(word):
                size = self.heap.sizes[word >> 48 & 0x7F]
                if not 0 < size < PREFETCH_SIZE:
                    size = PREFETCH_SIZE
                self.endpoint.prefetch(word & LINK_MASK, size)
            else:
                found ^= left & ~(left - 1)
            left &= left - 1
        return found

    def address(self, place: Place, index: int) -> int:
        """Address of the slot at this place of a row."""
        return (place.second if index & 16 else place.first) + (index & 15) * 8

    def index_of(self, place: Place, slot: int) -> int:
        """The place of a slot in a row."""
        if place.first <= slot < place.first + 128:
            return slot - place.first >> 3
        return 16 + (slot - place.second >> 3)

    def room(self, place: Place) -> int:
        """Place in row 0 of an empty slot, in the emptier main bucket if there is one; or -1."""
        return self.room_in(place, 0)

    def room_in(self, place: Place, row: int) -> int:
        """As `room`, in this row."""
        words = 32 * row
        if not place.base:
            return -1
        best = -1
        most = 0
        for side in range(2):
            start = place.second if side else place.first
            # the main bucket is the second half of a combined bucket if it is its group's second
            # one
            main = 16 * side + (8 if (start - place.base) % GROUP_SIZE else 0)
            empty = 0
            last = -1
            for index in range(main + 1, main + 1 + self.bucket_size):
                if is_vacant(self.words[words + index]):
                    empty += 1
                    last = index
            if empty > most:
                most = empty
                best = last
        if best < 0:
            for index in range(32):
                if 0 < index & 7 <= self.bucket_size and is_vacant(self.words[words + index]):
                    return index
        return best

    def any_frozen(self) -> bool:
        """Whether a slot in row 0 is frozen."""
        frozen = 0
        for index in range(32):
            frozen += index & 7 != 0 and is_frozen(self.words[index])
        return frozen != 0


assert ADDRESS_MASK >> NODE_SHIFT == 0xFF
