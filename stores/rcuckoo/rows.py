"""The rows of a table, and a client's views of them (RCuckoo section 3.1).

Row: a header of 48 bytes, which is the end of a cache line, and 8 entries right behind it.

    0     sequence      even: the row is whole; odd: a client is writing it, or was killed at that
    8     sum           CRC of all words of the row but this one (fabric.py: `crc_pair`), where rows
                        have sums; elsewhere 0
    16    tags          byte i: 8 bits of the hash of the key in entry i
    24    key sizes     byte i: bytes of that key
    32    value sizes   two words; 16 bits of each entry: 0 no entry; EXTENT: the value is in an
                        extent; else one more than the bytes of the value, which is in the entry

Between two rows are two words of 0, so that a row is read without them.

Entry
    value in the row    the key and zeros up to a whole word, the value likewise. Words behind it
                        are of earlier entries, and mean nothing
    in an extent        a word with the object's reference, the key and zeros

An extent is an object as other stores have them (records.py), with key, value and checksum. The
paper's extents have no checksum, and do not show that their memory has been used again (C11); ours
lie in memory that is not used again while any client may read it (epoch.py). A row of zeros is
whole, and empty.

Writing. Only the client that holds a row's lock (locks.py) writes it, an entry at a time, in up to
three writes on one node, whose order is kept:

    1   the sequence, odd, and the other words of the header as they will be, if any changes. Not of
        a row with a sum
    2   the entry; not of one that is emptied
    3   the sequence, even, 2 more than before; of a row with a sum, all words of the header up to
        the last one that changes

Reading without the lock. A row without a sum is only read where its memory is mapped: the header,
then the entries that a client looks at, where they are, and then the sequence again. These words
count if both sequences are the same even word, since a sequence never comes again (64 bits).

A row with a sum is read as a whole, by one read, and counts if its sum holds: so two adjacent rows
are one read, and that is all of a get on a fabric. (A sequence proves a copy only if it is read
before all other words, and again behind them: each row would be a read of its own, and two words
more, which makes four messages of a get in place of one or two.)

Rows have sums where clients cannot look at them where they are, or where a sequence does not prove
a row: in a pool of several hosts, whose clients may be behind a network; one word of a client that
was declared dead may land late there (`guard`, verbs.pyx), and in a header it would lose other
clients' keys, and nobody would see it. Where memory is not hardware-coherent, and a line may be as
old as can be. And in a store that was made with `sums`. The paper has such a CRC everywhere. It
also finds words that were damaged in memory; the sequence does not.

A kill leaves a row
    before any word of it     unchanged: the first word that is written is the sequence, or, with a
                              sum, in the entry
    then, up to the end of 3  with an odd sequence; or with a sum that does not hold, and the old
                              even sequence or the new one. Each header word is old or new, and so
                              right for every other entry; the one entry is anything, and has its
                              words in the client's journal (locks.py), or in the next row of the
                              path
    after 3                   whole and new
Nobody takes a row with an odd sequence, or a wrong sum, for whole. Before another client can take
its lock, repair (repair.py) writes it again in the same way; so of a repairer that is killed, too.
A client that was fenced is dead (membership.py), so none of its writes comes late; or, in a pool of
several hosts, it makes no step but the one in which it stood (`guard`).

Deviations from the paper. Its row ends with the version and the CRC, so each get and each write
computes CRCs. Its lock table is kept apart (locks.py): one lock of many rows is most often that of
both rows of a key, which takes one CAS in place of two.

`DependentHash` chooses a key's two rows, most often close together (RCuckoo section 3.3).

    L1(K) = h1(K) mod T
    L2(K) = L1 + d mod T,   d = (h2(K) mod floor(f^(f + Z(h3(K))))) | 1

T rows, Z the number of trailing zeros, f the parameter `locality`. The paper has no `| 1`: there,
one key of ten has L1 = L2 at f = 2.3, and so only one row. T is even and d odd here, so the two
rows are never the same. Offsets wrap around within a table.

f = 0 means independent hashing, for comparison: d is any odd distance, all equally likely.

The three hashes are the upper halves of products of one hash of the key (XXH64) with odd numbers.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final

from limpet.shm.endpoint import fabric
from limpet.shm.endpoint.fabric import crc_pair, lowest_bit, words_put
from limpet.stores.rcuckoo.layout import (
    ENTRY_AT,
    EXTENT,
    HEAD_AT,
    HEAD_WORDS,
    KEY_SIZE_SHIFT,
    KEY_SIZES,
    REDO_AT,
    SEQUENCE,
    SLOTS,
    SUM,
    TAGS,
    VALUE_SIZE_SHIFT,
    VALUE_SIZES,
)

if TYPE_CHECKING:
    from limpet.stores.rcuckoo.parameters import RcuckooParameters


MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
MIX_FIRST: Final = 0x9E37_79B9_7F4A_7C15
MIX_SECOND: Final = 0xD1B5_4A32_D192_ED03
MIX_THIRD: Final = 0x8CB9_2BA7_2F3D_8DD7
RANGES: Final = 32
ONES: Final = 0x0101_0101_0101_0101
LOW: Final = 0x7F7F_7F7F_7F7F_7F7F
"""Each byte 1; each byte without its highest bit."""


class DependentHash:
    """The places of keys in tables of `rows` rows. `place` sets `first` and `second`."""

    def __init__(self, rows: int, locality: float) -> None:
        self.rows = rows
        self.first = 0
        self.second = 0
        ranges = [rows] * (RANGES + 1)
        if locality:
            for zeros in range(RANGES + 1):
                ranges[zeros] = int(min(rows, locality ** (locality + zeros)))
        self.ranges = array("Q", ranges)

    def place(self, hashed: int) -> None:
        """Work out the two rows of the key with this hash."""
        self.first = ((hashed * MIX_FIRST & MASK) >> 32) * self.rows >> 32
        third = (hashed * MIX_THIRD & MASK) >> 32
        zeros = lowest_bit(third) if third else RANGES
        distance = ((hashed * MIX_SECOND & MASK) >> 32) % self.ranges[zeros] | 1
        second = self.first + distance
        self.second = second - self.rows if second >= self.rows else second

    def other(self, hashed: int, row: int) -> int:
        """The other row of the key with this hash, one of whose rows is `row`."""
        self.place(hashed)
        return self.second if row == self.first else self.first


class Row:
    """A row as it was read: the words of its header, `head`, and its entries.

    `direct`: the header was read, and an entry is read only if it is looked at, where it is.
    Else all of it was read together, and is in `image` from word `at` on. Sizes are cut to what an
    entry has, so that damaged ones do no harm.
    """

    def __init__(self, rows: Rows, image: fabric.Image, direct: bool) -> None:
        """`image`: if it is direct, for an entry."""
        self.endpoint = rows.endpoint
        self.direct = direct
        self.image = image
        self.at = 0
        self.address = 0
        self.head = array("Q", bytes(8 * HEAD_WORDS))
        self.entry_words = rows.entry_words
        self.key_max = rows.parameters.key_size
        self.value_max = rows.parameters.value_size
        self.offset = 0
        """The byte of the image with the entry that was looked at last."""

    def arrive(self, image: fabric.Image, at: int) -> None:
        """From now on, be the row that was read there; of one that is not direct."""
        self.image = image
        self.at = at
        for index in range(HEAD_WORDS):
            self.head[index] = image.word(at + index)

    def sequence(self) -> int:
        return self.head[SEQUENCE]

    def size(self, slot: int) -> int:
        """0: there is no entry; EXTENT; or one more than the bytes of its value."""
        return self.head[VALUE_SIZES + (slot >> 2)] >> 16 * (slot & 3) & 0xFFFF

    def _look_at(self, slot: int) -> None:
        """Have an entry in the image, at `offset`."""
        at = HEAD_WORDS + self.entry_words * slot
        if self.direct:
            # Some lines of a row that was posted: no exchange, so not counted as one.
            scope = self.endpoint.background(True)
            self.image.read(self.address + 8 * at, self.entry_words)
            self.endpoint.background(scope)
            self.offset = 0
        else:
            self.offset = 8 * (self.at + at)

    def find(self, key: bytes, tag: int) -> int:
        """The entry with this key, which is looked at; or -1."""
        if len(key) > self.key_max:
            return -1
        differ = self.head[TAGS] ^ tag * ONES | self.head[KEY_SIZES] ^ len(key) * ONES
        left = ~((differ & LOW) + LOW | differ | LOW) & MASK  # the top bits of bytes that are 0
        while left:
            slot = lowest_bit(left) >> 3
            if self._has(slot, key):
                return slot
            left &= left - 1
        return -1

    def _has(self, slot: int, key: bytes) -> bool:
        """Whether an entry is there and has this key, whose size it has."""
        size = self.size(slot)
        if not size:
            return False
        self._look_at(slot)
        return self.image.equal(self.offset + 8 if size == EXTENT else self.offset, key)

    def vacant(self) -> int:
        """An entry that is empty; or -1."""
        for slot in range(SLOTS):
            if not self.size(slot):
                return slot
        return -1

    def key_size(self, slot: int) -> int:
        """Bytes of the key of an entry."""
        size = self.head[KEY_SIZES] >> 8 * slot & 0xFF
        return size if size < self.key_max else self.key_max

    def tag(self, slot: int) -> int:
        """The tag of an entry."""
        return self.head[TAGS] >> 8 * slot & 0xFF

    def key(self, slot: int) -> bytes:
        """The key of an entry."""
        self._look_at(slot)
        at = self.offset + 8 if self.size(slot) == EXTENT else self.offset
        return self.image.cut(at, self.key_size(slot))

    def reference(self, slot: int) -> int:
        """The reference to the extent of an entry; 0: its value is in the row."""
        self._look_at(slot)
        return self.reference_there(slot)

    def reference_there(self, slot: int) -> int:
        """The same, of the entry that was looked at last."""
        return self.image.word(self.offset >> 3) if self.size(slot) == EXTENT else 0

    def value(self, slot: int) -> bytes:
        """The value of an entry that has it in the row; of others b""."""
        self._look_at(slot)
        return self.value_there(slot)

    def value_there(self, slot: int) -> bytes:
        """The same, of the entry that was looked at last."""
        size = self.size(slot)
        if size == EXTENT or not size:
            return b""
        at = self.offset + (self.key_size(slot) + 7 & ~7)
        return self.image.cut(at, size - 1 if size <= self.value_max else self.value_max)


class Entry:
    """An entry that is to be written, with room before it for the path in the journal (locks.py).

    Words: path, which ends at REDO_AT; tag and sizes in a word (layout.py); from ENTRY_AT on
    `count` words as they will be in the row.
    """

    def __init__(self, parameters: RcuckooParameters) -> None:
        self.words = array("Q", bytes(8 * (ENTRY_AT + parameters.entry_words)))
        self.count = 0
        self.tag = 0
        self.key_size = 0
        self.size = 0

    def fill(self, tag: int, key: bytes, value: bytes, reference: int) -> None:
        """Be this entry. `reference`: to the extent of the value; 0: it is `value`."""
        self.tag = tag
        self.key_size = len(key)
        key_size = len(key) + 7 & ~7
        if reference:
            self.size = EXTENT
            self.words[ENTRY_AT] = reference
            words_put(self.words, 8 * ENTRY_AT + 8, key, key_size)
            self.count = 1 + (key_size >> 3)
        else:
            self.size = 1 + len(value)
            value_size = len(value) + 7 & ~7
            words_put(self.words, 8 * ENTRY_AT, key, key_size)
            words_put(self.words, 8 * ENTRY_AT + key_size, value, value_size)
            self.count = key_size + value_size >> 3
        self._set_sizes()

    def empty(self) -> None:
        """Be none: an entry is emptied."""
        self.tag = self.key_size = self.size = self.count = 0
        self._set_sizes()

    def copy(self, row: Row, slot: int) -> None:
        """Be an entry of a row."""
        self.fill(row.tag(slot), row.key(slot), row.value(slot), row.reference(slot))

    def load(self, sizes: int) -> None:
        """Be the one with this word of tag and sizes, whose words are here already."""
        self.tag = sizes & 0xFF
        self.key_size = sizes >> KEY_SIZE_SHIFT & 0xFF
        self.size = sizes >> VALUE_SIZE_SHIFT
        self.count = 0
        if self.size:
            value_size = 8 if self.size == EXTENT else self.size - 1
            count = (self.key_size + 7 >> 3) + (value_size + 7 >> 3)
            self.count = min(count, len(self.words) - ENTRY_AT)
        self._set_sizes()

    def _set_sizes(self) -> None:
        self.words[REDO_AT] = (
            self.tag | self.key_size << KEY_SIZE_SHIFT | self.size << VALUE_SIZE_SHIFT
        )


class Rows:
    """The rows of the table whose first row is at address `base`, which its user sets.

    `summed`: rows have sums. `row_words`: from one row to the next; `size`: of these, a row's own.
    """

    def __init__(self, endpoint: Any, parameters: RcuckooParameters, summed: bool) -> None:
        self.endpoint = endpoint
        self.parameters = parameters
        self.summed = summed
        self.base = 0
        self.entry_words = parameters.entry_words
        self.row_words = parameters.row_words
        self.size = self.row_words - HEAD_AT
        self.words = array("Q", bytes(8 * (HEAD_WORDS + 1)))
        """A header that is written; and the sequence that ends the write."""

    def address(self, row: int) -> int:
        """Address of a row, and of its sequence."""
        return self.base + 8 * self.row_words * row

    def image(self, count: int, in_place: bool) -> fabric.Image:
        """Make an image of so many rows."""
        return fabric.Image(self.endpoint, 8 * self.row_words * count, in_place)

    # ---- reading --------------------------------------------------------------------------------

    def row(self, direct: bool) -> Row:
        """Make a place for a row."""
        return Row(self, fabric.Image(self.endpoint, 8 * self.entry_words, direct), direct)

    def post(self, image: fabric.Image, row: int, count: int) -> None:
        """Post a read of `count` rows from `row` on into the image."""
        image.post(self.address(row), count * self.row_words - HEAD_AT)

    def read(self, number: int) -> Row:
        """A copy of a row. Not in a phase; nothing proves it but `is_whole`."""
        image = self.image(1, False)
        image.read(self.address(number), self.size)
        found = Row(self, image, False)
        found.arrive(image, 0)
        return found

    def read_whole(self, number: int) -> Row | None:
        """A copy of a row as it was at one moment; None: it is being written. Not in a phase."""
        found = self.read(number)
        # ORDER: the row, whose first word is read first, and its sequence again.
        stays = self.endpoint.load(self.address(number)) == found.head[SEQUENCE]
        return found if stays and self.is_whole(found) else None

    def is_whole(self, row: Row) -> bool:
        """Whether no client had begun to write the row, and its sum holds, if it has one."""
        if row.head[SEQUENCE] & 1:
            return False
        return not self.summed or row.head[SUM] == self._sum(row)

    def _sum(self, row: Row) -> int:
        """The sum that the words of a row have; the image is a copy."""
        words = row.image.words
        there = words[row.at + SUM]
        words[row.at + SUM] = 0
        found = crc_pair(words, row.at, self.size)
        words[row.at + SUM] = there
        return found

    def is_same(self, row: Row, later: Row) -> bool:
        """Whether no client has written a row since it was read before. Both are copies (`read`).

        All words are compared: those of a row with a sum are written in one go, so its sequence and
        its sum may be the new ones while other words are still the old ones.
        """
        size = 8 * self.size
        return row.image.cut(0, size) == later.image.cut(0, size)

    # ---- writing --------------------------------------------------------------------------------

    def post_entry(self, row: Row, number: int, slot: int, sequence: int, entry: Entry) -> None:
        """Post the writes that set an entry of a row, which was read under its lock.

        `sequence`: the row's new one.
        """
        words = self.words
        words[HEAD_WORDS] = sequence
        words[SEQUENCE] = sequence if self.summed else sequence - 1 & MASK
        words[SUM] = 0
        ones, shift = 0xFF, 8 * slot
        words[TAGS] = row.head[TAGS] & ~(ones << shift) | entry.tag << shift
        words[KEY_SIZES] = row.head[KEY_SIZES] & ~(ones << shift) | entry.key_size << shift
        words[VALUE_SIZES] = row.head[VALUE_SIZES]
        words[VALUE_SIZES + 1] = row.head[VALUE_SIZES + 1]
        at = VALUE_SIZES + (slot >> 2)
        ones, shift = 0xFFFF, 16 * (slot & 3)
        words[at] = words[at] & ~(ones << shift) | entry.size << shift
        address = self.address(number)
        kept = (
            words[TAGS] == row.head[TAGS]
            and words[KEY_SIZES] == row.head[KEY_SIZES]
            and words[VALUE_SIZES] == row.head[VALUE_SIZES]
            and words[VALUE_SIZES + 1] == row.head[VALUE_SIZES + 1]
        )
        # Words that stay are not written: the fewer, the fewer can land late (docs/hosts.md).
        count = TAGS if kept else at + 1
        if self.summed:
            self._add_sum(row, slot, entry)
        else:
            # ORDER: the odd sequence before the others; it is the first word (verbs.pyx).
            self.endpoint.post_write(address, words, count)
        # CRASH(torn): a row with an odd sequence, or with a sum that does not hold; the client that
        # finds the writer dead repairs it (repair.py).
        if entry.count:
            # ORDER: the odd sequence, if the row has no sum, before the entry.
            self.endpoint.post_write(
                address + 8 * (HEAD_WORDS + self.entry_words * slot), entry.words, entry.count,
                ENTRY_AT,
            )  # fmt: skip
        # ORDER: after the entry, and after the odd sequence if the row has no sum.
        # LINEARIZES: insert, update, delete
        if self.summed:
            self.endpoint.post_write(address, words, count)
        else:
            self.endpoint.post_write(address, words, 1, HEAD_WORDS)

    def _add_sum(self, row: Row, slot: int, entry: Entry) -> None:
        """Add the sum that the row will have. The image becomes the row."""
        words = row.image.words
        at = row.at + HEAD_WORDS + self.entry_words * slot
        for index in range(entry.count):
            words[at + index] = entry.words[ENTRY_AT + index]
        for index in range(HEAD_WORDS):
            words[row.at + index] = self.words[index]
        self.words[SUM] = words[row.at + SUM] = self._sum(row)


class LockedRows:
    """The rows under the locks of an operation, as they were read: in runs, a lock's at a time."""

    def __init__(self, rows: Rows, size: int, in_place: bool) -> None:
        """`size`: of a run, at most."""
        self.rows = rows
        self.size = size
        self.in_place = in_place
        self.images: list[fabric.Image] = []
        """Of each run, once it is needed."""
        self.view = rows.row(False)

    def post(self, run: int, row: int, count: int) -> None:
        """Post the read of a run, of `count` rows from `row` on."""
        while len(self.images) <= run:
            self.images.append(self.rows.image(self.size, self.in_place))
        self.rows.post(self.images[run], row, count)

    def row(self, run: int, offset: int) -> Row:
        """A row of a run. It is the same object each time."""
        self.show(self.view, run, offset)
        return self.view

    def show(self, row: Row, run: int, offset: int) -> None:
        """Have `row` be this one of a run."""
        row.arrive(self.images[run], offset * self.rows.row_words)
