"""A node of a tree: sorted entries with keys and values of any length, between two fences.

Sherman's nodes (Wang et al., SIGMOD '22; rTX section 5) are B-link nodes of 1 KB with entries
of one size, changed in place between a front and a rear version. Ours are slotted pages. They are
written once and never changed while they are linked, so a reader has all of one version or all of
another (R8); the checksum is there for `check()` and for damaged memory.

Words
    0     installed  lock state under which it was linked (stores/transactions/lllock.py)
    1     checksum   two CRC-32C (shm/endpoint/crc.py) of the words from 2 on
    2     shape      bits 0-7 level, 0 for a leaf; bits 8-23 number of entries; bits 24-39 offset of
                     the lowest byte in use; bit 40 whether there is a high fence
    3     sibling    object of the next node on this level; 0: there is none
    4     fences     bits 0-15 length of the low fence, bits 16-31 of the high one
    5     slots      one an entry, in the order of keys: bits 0-15 offset of its key, which the
                     value follows; bits 16-31 length of the key; bits 32-47 of the value; bit 48
                     EXTENT: the value is a reference to an object with the pair (records.py)
    ...
    keys and values, without gaps, up to the high fence and the low fence at the very end

Invariants: low <= every key < high; the keys of an inner node are the low fences of its children,
the values their objects, and the first key is its own low fence.
"""

from __future__ import annotations

from typing import Any

from limpet.shm.endpoint.fabric import crc_pair, words_put
from limpet.shm.errors import StoreCorrupt
from limpet.stores.sherman.fences import common_bytes
from limpet.stores.sherman.layout import (
    CHECKSUM,
    COUNT_SHIFT,
    EXTENT,
    FENCES,
    HAS_HIGH,
    HEAP_SHIFT,
    INSTALLED,
    KEY_SHIFT,
    LENGTH_MASK,
    LEVEL_MASK,
    SHAPE,
    SIBLING,
    SLOTS,
    VALUE_SHIFT,
)
from limpet.stores.transactions.staged import NewData


def link_of(value: bytes) -> int:
    """The address or reference that a value is. Raises StoreCorrupt if it cannot be one."""
    if len(value) != 8:
        raise StoreCorrupt(f"a link of {len(value)} bytes in a node: memory was damaged")
    return int.from_bytes(value, "little")


class Page(NewData):
    """A node that was read, or is made. A method that changes it changes a copy, `words`."""

    def __init__(self, endpoint: Any, size: int, in_place: bool = False, more: int = 0) -> None:
        """`in_place`: as `Image` has it; `more`: bytes of the image besides the page."""
        self.endpoint = endpoint
        NewData.__init__(self, size)
        self.image = endpoint.image(size + more, in_place)
        self.words = self.image.words
        self.exact = False
        """Whether the last search found its key."""
        self.slot = 0
        """The entry that the last search found, if it is `exact`."""
        self.found = 0
        """The last result of `find`."""
        self.level = 0
        self.count = 0
        self.heap = size
        self.end = size
        """Where the fences begin, and the entries end."""

    # ---- memory ---------------------------------------------------------------------------------

    def read(self, at: int) -> None:
        """A phase of its own: read the node at this address. Raises StoreCorrupt if it cannot be
        one."""
        self.post(at)
        self.endpoint.wait()
        self.parse(at)

    def post(self, at: int) -> None:
        """Post a read of the node at this address; `parse` comes after the `wait`."""
        self.image.post(at, self.size >> 3)

    def parse(self, at: int) -> None:
        """Take in the bytes read at this address. Raises StoreCorrupt, as `read`."""
        shape = self.image.word(SHAPE)
        self.level = shape & LEVEL_MASK
        self.count = shape >> COUNT_SHIFT & LENGTH_MASK
        self.heap = shape >> HEAP_SHIFT & LENGTH_MASK
        fences = self.image.word(FENCES)
        self.end = self.size - (fences & LENGTH_MASK) - (fences >> KEY_SHIFT & LENGTH_MASK)
        if not 8 * (SLOTS + self.count) <= self.heap <= self.end <= self.size:
            raise StoreCorrupt(
                f"the node at {at:#x} is damaged: {self.count} entries from byte {self.heap} on"
            )

    def begin(self, at: int, state: int) -> None:
        """Post the write of the first word of a node to be installed under this lock state."""
        self.words[INSTALLED] = state
        self.endpoint.post_write(at, self.words, 1)

    def write(self, at: int, state: int) -> None:
        """Post its write to this address, as installed under this lock state."""
        self.image.own()
        self.seal()
        self.words[INSTALLED] = state
        self.words[CHECKSUM] = crc_pair(self.words, SHAPE, (self.size >> 3) - SHAPE)
        self.endpoint.post_write(at, self.words, self.size >> 3)

    def seal(self) -> None:
        """Write the page's present shape to its words."""
        self.words[SHAPE] = (
            self.words[SHAPE] & HAS_HIGH
            | self.level
            | self.count << COUNT_SHIFT
            | self.heap << HEAP_SHIFT
        )

    def is_whole(self) -> bool:
        """Whether its checksum holds."""
        self.image.own()
        words = self.words
        return words[CHECKSUM] == crc_pair(words, SHAPE, (self.size >> 3) - SHAPE)

    # ---- fences ---------------------------------------------------------------------------------

    def reset(self, level: int, low: bytes, high: bytes | None, sibling: int) -> None:
        """Make it an empty node."""
        self.image.forget()
        words = self.words
        end = self.size - len(low)
        words_put(words, end, low, len(low))
        words[FENCES] = len(low)
        words[SHAPE] = 0
        if high is not None:
            end -= len(high)
            words_put(words, end, high, len(high))
            words[FENCES] = len(low) | len(high) << KEY_SHIFT
            words[SHAPE] = HAS_HIGH
        words[SIBLING] = sibling
        self.level = level
        self.count = 0
        self.heap = self.end = end

    def low(self) -> bytes:
        """The low fence."""
        length = self.image.word(FENCES) & LENGTH_MASK
        return self.image.cut(self.size - length, length)

    def begins_at(self, key: bytes) -> bool:
        """Whether the low fence is this key."""
        length = self.image.word(FENCES) & LENGTH_MASK
        return length == len(key) and self.image.equal(self.size - length, key)

    def high(self) -> bytes | None:
        """The high fence; None: there is none."""
        if not self.image.word(SHAPE) & HAS_HIGH:
            return None
        length = self.image.word(FENCES) >> KEY_SHIFT & LENGTH_MASK
        return self.image.cut(self.end, length)

    def low_size(self) -> int:
        """Bytes of the low fence."""
        return self.image.word(FENCES) & LENGTH_MASK

    def has_high(self) -> bool:
        """Whether there is a high fence."""
        return self.image.word(SHAPE) & HAS_HIGH != 0

    def high_size(self) -> int:
        """Bytes of the high fence; 0: there is none."""
        return self.image.word(FENCES) >> KEY_SHIFT & LENGTH_MASK

    def sibling(self) -> int:
        """The object of the next node."""
        return self.image.word(SIBLING)

    def is_below(self, key: bytes) -> bool:
        """Whether all of it is below this key."""
        if not self.image.word(SHAPE) & HAS_HIGH:
            return False
        length = self.image.word(FENCES) >> KEY_SHIFT & LENGTH_MASK
        return self.image.compare(self.end, length, key) <= 0

    def is_above(self, key: bytes) -> bool:
        """Whether all of it is above this key."""
        length = self.image.word(FENCES) & LENGTH_MASK
        return self.image.compare(self.size - length, length, key) > 0

    def begins_below(self, key: bytes) -> bool:
        """Whether the low fence is below this key."""
        length = self.image.word(FENCES) & LENGTH_MASK
        return self.image.compare(self.size - length, length, key) < 0

    def ends_below(self, end: bytes | None) -> bool:
        """Whether the high fence is below `end`; if that is None, whether there is one."""
        if not self.image.word(SHAPE) & HAS_HIGH:
            return False
        length = self.image.word(FENCES) >> KEY_SHIFT & LENGTH_MASK
        return end is None or self.image.compare(self.end, length, end) < 0

    def has(self, key: bytes) -> bool:
        """Whether the key is between the fences."""
        return not self.is_below(key) and not self.is_above(key)

    def has_looked_for(self, key: bytes) -> bool:
        """`has`, for the key that `find` has looked for last: one between two keys of a node is in
        its range."""
        return (self.found > 0 or not self.is_above(key)) and (
            self.found < self.count or not self.is_below(key)
        )

    # ---- entries --------------------------------------------------------------------------------

    def find(self, key: bytes) -> int:
        """Index of the first entry with this key or a larger one; `exact`: with this key."""
        index = self.image.search(SLOTS, self.count, key)
        self.exact = index >= 0
        if self.exact:
            self.slot = self.image.word(SLOTS + index)
        else:
            index = ~index
        self.found = index
        return index

    def find_next(self, key: bytes, index: int) -> int:
        """`find`, of a key that is above all entries before that one: mostly below it, too."""
        if index < self.count:
            slot = self.image.word(SLOTS + index)
            length = slot >> KEY_SHIFT & LENGTH_MASK
            if self.image.compare(slot & LENGTH_MASK, length, key) <= 0:
                return self.find(key)
        self.exact = False
        self.found = index
        return index

    def is_at(self, index: int, key: bytes) -> bool:
        """Whether the entry with this index, if there is one, has this key; it is `exact` then."""
        self.slot = self.image.named(SLOTS + index, key) if index < self.count else 0
        self.exact = self.slot != 0
        return self.exact

    def offset(self, index: int) -> int:
        """Where in the node the key of an entry is."""
        return self.image.word(SLOTS + index) & LENGTH_MASK

    def child(self, key: bytes) -> int:
        """The object of the child in whose range the key is; of an inner node. Raises StoreCorrupt
        if there is none."""
        index = self.find(key)
        if not self.exact:
            index -= 1
        if index < 0:
            raise StoreCorrupt(f"a node of level {self.level} has no child for {key!r}: damaged")
        return self.link(index)

    def child_below(self, end: bytes | None) -> int:
        """The object of the child with the keys just below `end`, or of the last one; of an inner
        node. Raises StoreCorrupt if there is none."""
        index = self.count if end is None else self.find(end)
        if not index:
            raise StoreCorrupt(f"a node of level {self.level} has no child below {end!r}: damaged")
        return self.link(index - 1)

    def key(self, index: int) -> bytes:
        """The key of an entry."""
        slot = self.image.word(SLOTS + index)
        return self.image.cut(slot & LENGTH_MASK, slot >> KEY_SHIFT & LENGTH_MASK)

    def value(self, index: int) -> bytes:
        """The value of an entry, as it is in the node."""
        return self.value_of(self.image.word(SLOTS + index))

    def value_of(self, slot: int) -> bytes:
        """The value of the entry with this slot, as it is in the node."""
        start = (slot & LENGTH_MASK) + (slot >> KEY_SHIFT & LENGTH_MASK)
        return self.image.cut(start, slot >> VALUE_SHIFT & LENGTH_MASK)

    def pairs(self, first: int, end: int, found: list[tuple[bytes, bytes]]) -> int:
        """Append the pairs of entries from `first` on, up to `end` or an entry with an extent; its
        index."""
        return first + self.image.pairs(SLOTS + first, end - first, found)

    def has_extent(self, index: int) -> bool:
        """Whether the value of an entry is in an object of its own."""
        return bool(self.image.word(SLOTS + index) & EXTENT)

    def link(self, index: int) -> int:
        """The address or reference that is the value of an entry. Raises StoreCorrupt."""
        slot = self.image.word(SLOTS + index)
        if slot >> VALUE_SHIFT & LENGTH_MASK != 8:
            return link_of(self.value_of(slot))
        return self.image.number((slot & LENGTH_MASK) + (slot >> KEY_SHIFT & LENGTH_MASK))

    def fits(self, key: bytes, size: int) -> bool:
        """Whether there is room for one more entry, with a value of that size."""
        return self.heap >= 8 * (SLOTS + self.count + 1) + len(key) + size

    def insert(self, index: int, key: bytes, value: bytes, flags: int) -> None:
        """Insert an entry, which `fits`."""
        self.heap = self.image.insert_pieces(SLOTS, self.count, index, self.heap, key, value, flags)
        self.count += 1

    def remove(self, index: int) -> None:
        """Remove an entry, and close the gap."""
        self.heap = self.image.remove_pieces(SLOTS, self.count, index, self.heap)
        self.count -= 1

    def take(self, source: Page, first: int, end: int) -> None:
        """Append a copy of the entries of another page from `first` on, up to `end`. Raises
        StoreCorrupt if they do not fit."""
        heap = source.image.copy_pieces(
            SLOTS + first, end - first, self.words, SLOTS + self.count, self.heap
        )
        if not heap:
            raise StoreCorrupt(f"{end - first} entries do not fit a node of {self.size} bytes")
        self.heap = heap
        self.count += end - first

    def set_value(self, index: int, value: bytes, flags: int) -> bool:
        """Replace the value of an entry; False: there is no room, and nothing changed."""
        slot = self.image.word(SLOTS + index)
        start = (slot & LENGTH_MASK) + (slot >> KEY_SHIFT & LENGTH_MASK)
        before = slot >> VALUE_SHIFT & LENGTH_MASK
        if before == len(value):
            self.image.own()
            words_put(self.words, start, value, len(value))
            self.words[SLOTS + index] = slot & ~EXTENT | flags
            return True
        if self.heap + before < 8 * (SLOTS + self.count) + len(value):
            return False
        key = self.key(index)
        self.remove(index)
        self.insert(index, key, value, flags)
        return True

    def used(self) -> int:
        """Bytes of all entries."""
        return 8 * self.count + self.end - self.heap

    def size_of(self, index: int) -> int:
        """Bytes of an entry."""
        slot = self.image.word(SLOTS + index)
        return 8 + (slot >> KEY_SHIFT & LENGTH_MASK) + (slot >> VALUE_SHIFT & LENGTH_MASK)

    def length(self, index: int) -> int:
        """Bytes of the key of an entry."""
        return self.image.word(SLOTS + index) >> KEY_SHIFT & LENGTH_MASK

    def border(self, index: int) -> bytes:
        """The low fence of a node that begins with this entry, when the entry before it ends
        another one: of a leaf, as few bytes of the key as sort after the key before it."""
        key = self.key(index)
        return key if self.level else self.fence_between(self.key(index - 1), key)

    def fence_between(self, below: bytes, above: bytes) -> bytes:
        """The fence between two neighbouring entries with these keys, as `border` chooses it."""
        return above if self.level else above[: common_bytes(below, above) + 1]

    def border_size(self, index: int) -> int:
        """Bytes of the same; 0: there is no such entry."""
        if index == self.count:
            return 0
        return self._told_apart(index, self.key(index)) if self.level == 0 else self.length(index)

    def border_most(self, index: int) -> int:
        """No fewer bytes than `border_size`, and not counted so closely."""
        return self.length(index) if index < self.count else 0

    def _told_apart(self, index: int, key: bytes) -> int:
        """How many bytes of the key of an entry sort after the key of the entry before it."""
        return common_bytes(self.key(index - 1), key) + 1

    def entries(self) -> list[tuple[bytes, bytes, int]]:
        """Key, value as it is in the node, and flags of each entry."""
        return [
            (self.key(index), self.value(index), self.image.word(SLOTS + index) & EXTENT)
            for index in range(self.count)
        ]
