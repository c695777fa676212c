"""The object that a slot of the index links to: a key, and the words of its register.

As every object of a replicated index it has a log entry in front (stores/fusee/log.py); its
checksum covers the key and the sizes, as the words change. It is written once, to all replicas,
before the slot is changed: with the first value of the key in place, or in a buffer if there is no
room, and its tuple in every word of the metadata array, VERIFIED. So a key is there, with its
value, when the index says so.

A register in memory (`Register`: where its words are, for the current key; SWARM section 4) is an
object with replicas (shm/replicas/replica_layout.py); each replica is one of the unreliable max
registers of algorithm 8 (replica.py). layout.py lists its words. The sizes in the object's header
say where they are: of a register that a journal or a slot names, nothing else is known.

A client that reads the right ident under a pin knows that the register's memory is not freed until
`unpin`: the ident is cleared on every replica before the memory is freed.

The words of M and the locks; constants are in layout.py.

Metadata word (SWARM section 4: timestamp and pointer, 8 bytes)
    bits 14-63  i      time of the guess, in us since 2025 (unique_ids.py); all ones: a tombstone
    bits 8-13   tid    the writer whose value it is
    bit 7       VERIFIED, or else GUESSED
    bits 1-6    row    whose pointers lead to the value's buffer: the writer's row, or that of a
                       client that wrote a copy back (trap S9)
    bit 0       side   which of the row's two pointers

The tuples of the paper are ordered by (i, tid, VERIFIED), which are the upper bits, the *rank*; (i,
tid) is the *stamp* of a write. The place of the value does not count (trap S5).

Lock word: bits 8-63 stamp, bit 1 WRITE, bit 0 READ; a replaced node may get a word with both.

Fields that end: i, in 2060, 35 years and 8 months after 2025. From then on a writer gets
ClientError before it writes anything; older values can still be read. Timestamps are compared as
numbers, so they cannot wrap. The numbers of registers and tombstones have words of their own
(stores/core/records.py).
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from limpet.shm.endpoint.fabric import checksum, hash64, words_bytes
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.words import ADDRESS_MASK, LARGE_CLASS, REPLICATED
from limpet.shm.errors import KeyTooLarge, ValueTooLarge
from limpet.stores.core.names import shown
from limpet.stores.core.object_layout import IMAGE_SIZE, KEY_MAX
from limpet.stores.fusee.links import BUFFER, ENTRY_SIZE, KEY_OFFSET
from limpet.stores.fusee.log import LoggedObjects
from limpet.stores.swarm.layout import (
    HEADER,
    IN_PLACE_LEAST,
    IN_PLACE_MAX,
    IN_PLACE_WORDS,
    LINE,
    REPLICAS_ROW,
    ROW_SHIFT,
    STAMP_SHIFT,
    TIME_MAX,
    TIME_SHIFT,
    VERIFIED,
    WHOLE,
    WRITER_MASK,
)


def rank_of(word: int) -> int:
    """The rank, by which tuples are ordered."""
    return word >> STAMP_SHIFT - 1


def stamp_of(word: int) -> int:
    """The stamp: time and writer."""
    return word >> STAMP_SHIFT


def time_of(word: int) -> int:
    return word >> TIME_SHIFT


def writer_of(word: int) -> int:
    return word >> STAMP_SHIFT & WRITER_MASK


def row_of(word: int) -> int:
    return word >> ROW_SHIFT & WRITER_MASK


def side_of(word: int) -> int:
    return word & 1


def is_tombstone(word: int) -> bool:
    return word >> TIME_SHIFT == TIME_MAX


def tuple_word(time: int, writer: int, flags: int, row: int, side: int) -> int:
    return time << TIME_SHIFT | writer << STAMP_SHIFT | flags | row << ROW_SHIFT | side


def placed(word: int, row: int, side: int) -> int:
    """The tuple `word`, whose value is on this side of this row."""
    return word >> STAMP_SHIFT - 1 << STAMP_SHIFT - 1 | row << ROW_SHIFT | side


MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
MIX: Final = 0x9E37_79B9_7F4A_7C15
"""2**64 over the golden ratio: a multiple of it spreads addresses."""


def area_of(key_size: int) -> int:
    """Bytes from a register's address to its words; its key has that many bytes."""
    return KEY_OFFSET + (key_size + 7 & ~7)


def first_of(reference: int, replicas: int) -> int:
    """The replica of a register that is read first, and has the value in place: spread over all."""
    return (((reference & ADDRESS_MASK) * MIX & MASK) >> 32) * replicas >> 32


# ---- the rules by which a READ judges the words that it has read --------------------------------


def words_to_read(base: int, width: int, length: int, capacity: int) -> int:
    """How many words a READ takes of the replica at `base` that has the value in place: to the end
    of the line in which a value of `length` bytes ends. `width`: the words before those in place.
    """
    least = width + IN_PLACE_WORDS
    start = base & LINE - 1
    line = (start + 8 * least + length + LINE - 1 & ~(LINE - 1)) - start
    return min(line >> 3, least + (capacity >> 3))


def greatest(words: Any, at: int, ident: int, width: int) -> int:
    """The greatest tuple of the `width` words of a replica that were read to `words`, from `at` on;
    0: they are not those of the register with that ident."""
    if not ident or words[at] != ident:
        return 0
    top = 0
    for index in range(at + 2, at + width):
        top = max(top, words[index])
    return top


def is_final(top: int, least: int) -> bool:
    """Line 17 of algorithm 10: whether a READ may return the value of the tuple `top`, the greatest
    that a majority has; `least` is the smallest one of the greatest of each. VERIFIED, at all of
    them, and no tombstone."""
    return (
        top & VERIFIED != 0 and least >> STAMP_SHIFT == top >> STAMP_SHIFT and not is_tombstone(top)
    )


def value_in_place(words: Any, at: int, count: int, stamp: int, ident: int) -> Any:
    """The value of the tuple with this stamp, if it is in place, in the `count` words from `at` on,
    and whole; or None."""
    length = words[at + 1]
    if words[at] != stamp << STAMP_SHIFT or length > 8 * (count - IN_PLACE_WORDS):
        return None
    value = words_bytes(words, 8 * (at + IN_PLACE_WORDS), length)
    seed = (words[at] + ident + length) & MASK
    return value if checksum(value, seed) == words[at + 2] else None


class Register:
    """The place of one register at a time, the one `select`ed last.

    Of a store with that many replicas, writers, and words of M (`buffers`), whose entry of the
    catalogue has the number `entry`. `locks`: whether its writers have timestamp locks. `most`: the
    largest capacity of those that are selected.
    """

    def __init__(
        self, pool: Any, entry: int, replicas: int, writers: int, buffers: int, locks: bool,
        most: int = IN_PLACE_MAX,
    ) -> None:  # fmt: skip
        self.heap = pool.heap
        self.placement = pool.heap.placement
        self.entry = entry
        self.replicas = replicas
        self.writers = writers
        self.buffers = buffers
        self.locks = writers if locks else 0
        self.width = 2 + buffers
        """Words before those in place."""
        self.words_max = self.width + IN_PLACE_WORDS + most // 8
        self.own = -1
        """Our row; -1: we have none."""
        self.asks = False
        """Whether each READ reads the pointers of our row, too, as the next WRITE needs them."""
        self.bases = array("Q", bytes(8 * REPLICAS_ROW))
        """Where the words begin on each replica."""
        self.reference = 0
        self.area = 0
        self.node = 0
        self.ident = 0
        self.capacity = 0
        self.length = 0
        """Of the value in place when it was seen last; 0: it was not in place."""
        self.first = 0
        """The replica that is read first, and has the value in place."""

    def select(self, reference: int, area: int) -> None:
        """Make that register the current one; its words begin `area` bytes after its address.

        This does not set its ident, capacity, length and first replica.
        """
        self.reference = reference
        self.area = area
        row = self.heap.row(reference) if self.replicas > 1 else 0
        for k in range(self.replicas):
            self.bases[k] = ((reference & ADDRESS_MASK) + self.heap.steps[row + k] & MASK) + area
        self.node = reference >> NODE_SHIFT & 0xFF

    def open(self, reference: int, sizes: int) -> bool:
        """Select a register whose object has that word of sizes; False if there can be none.

        This does not set its ident and first replica. Its whole room is read.
        """
        self.select(reference, area_of(sizes & 0xFFFF))
        least = self.size(0)
        room = sizes >> 16
        self.capacity = min(room - least, IN_PLACE_MAX) & ~7 if room >= least else 0
        self.length = self.capacity
        return room >= least

    def count(self, k: int, what: int) -> int:
        """How many words a read of replica `k` takes."""
        if what != WHOLE:
            return self.width
        return words_to_read(self.bases[k], self.width, self.length, self.capacity)

    def link_address(self) -> int:
        """The link address by which a client journal names the register of a buffer."""
        size_class = self.reference >> 48 & 0xFF
        address = self.reference & ADDRESS_MASK
        return size_class << 56 | self.entry << 48 | address | BUFFER | REPLICATED

    def address(self, k: int) -> int:
        """Where the words of replica `k` begin."""
        return self.bases[k]

    def metadata(self, k: int, row: int) -> int:
        """Address of a row's word of M on replica `k`."""
        return self.bases[k] + 8 * (2 + row % self.buffers)

    def pointer(self, k: int, row: int, side: int) -> int:
        """Address of a pointer on replica `k`."""
        return self.bases[k] + 8 * (self.width + IN_PLACE_WORDS + 2 * row + side) + self.capacity

    def lock(self, k: int, writer: int) -> int:
        """Address of a writer's timestamp lock on replica `k`."""
        return self.pointer(k, self.writers, 0) + 8 * writer

    def size(self, capacity: int) -> int:
        """Bytes of a register's words, with room for a value of that many bytes in place."""
        return 8 * (self.width + IN_PLACE_WORDS + 2 * self.writers + self.locks) + capacity

    def beside(self, reference: int, k: int) -> int:
        """Address of the replica of a buffer that is beside replica `k` of the register, or 0."""
        there = reference >> NODE_SHIFT & 0xFF
        if there == self.node:
            # as far from its primary as the register's replica is from the register's primary
            return (reference & ADDRESS_MASK) + self.bases[k] - self.bases[0] & MASK
        first, count = self.placement.firsts[self.node], self.placement.counts[self.node]
        if not first <= there < first + count:
            return 0
        steps = (self.node + k + count - there) % count
        return 0 if steps >= self.replicas else self.heap.replica(reference, steps)


class Registers(LoggedObjects):
    """Objects with a register, as `place` has its words. `in_place`: whether there is room for a
    value."""

    def __init__(self, heap: Any, replicas: int, place: Register, in_place: bool) -> None:
        super().__init__(heap, replicas)
        self.rest = place.size(0)
        self.in_place = in_place

    def size_of(self, key: bytes, value: bytes) -> int:
        """Bytes of the buffer for this value. Raises KeyTooLarge, ValueTooLarge."""
        if len(key) > KEY_MAX:
            raise KeyTooLarge(
                f"the key {shown(key)} has {len(key)} bytes; a key has at most {KEY_MAX}"
            )
        if area_of(len(key)) + self.rest > self.value_max:
            raise KeyTooLarge(
                f"the key {shown(key)} has {len(key)} bytes, which leaves no room for its register "
                f"in an object of {self.value_max} bytes"
            )
        if HEADER + len(value) > self.value_max:
            raise ValueTooLarge(
                f"the value and its header take {HEADER + len(value)} bytes, with the key "
                f"{shown(key)}; an object has room for {self.value_max} here"
            )
        return HEADER + len(value)

    def capacity(self, key: bytes, value: bytes) -> int:
        """Bytes in place for the values of a key whose first one this is; a multiple of 8.

        As much as there is in the register's object anyway.
        """
        if not self.in_place:
            return 0
        least = area_of(len(key)) + self.rest
        wanted = IN_PLACE_LEAST
        if IN_PLACE_LEAST < len(value) <= IN_PLACE_MAX:
            wanted = len(value) + 7 & ~7
        if least + wanted > self.value_max:
            return self.value_max - least & ~7
        size_class = self.heap.size_class(least + wanted)
        if size_class != LARGE_CLASS:
            wanted = self.heap.sizes[size_class] - least & ~7
        return min(wanted, IN_PLACE_MAX)

    def write_hashed(self, reference: int, key: bytes, value: bytes, hashed: int) -> None:
        """Write entry, key and the register's words, `value`, to every replica in service."""
        sizes = len(key) | len(value) << 16
        self._begin(sizes)
        self.header[3] = self._checksum(key, sizes)
        self.endpoint.write_gather(reference & ADDRESS_MASK, self.header, 4, key, value)
        self._write_backups(reference, key, value)

    def ident(self, area: int) -> int:
        """The ident of the register in the image."""
        at = area - ENTRY_SIZE
        if at < IMAGE_SIZE:
            return self.image.word(at >> 3)
        return self.endpoint.load(self.address + at)

    def _checksum(self, key: bytes, sizes: int) -> int:
        return hash64(key, sizes)

    def intact(self) -> bool:
        """Whether the checksum of the object in the image holds."""
        return self.image.word(1) == self._checksum(self.key(), self.sizes)
