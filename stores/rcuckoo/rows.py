"""The rows of a table, and this client's copies of them (RCuckoo section 3.1).

Row: 8 entries, and a trailer of two words:

    version   counts the writes of the row, modulo 2^64 (the paper's 8 bits wrap)
    CRC       of all words before it (fabric.py: `crc_pair`, two CRC-32C, 64 bits)

Entry
    0     header     0: no entry. Else bits 56-63 are a fingerprint, 8 bits of the key's hash; and
                     bit 0 set: the value is in the entry; bits 8-31 are its length
                     bit 0 clear: it is in an extent; bits 0-55 are the object's reference
    8     key        a byte of length, then the key, padded with zeros; of one size in all entries
    then  value      of one size in all entries; zeros where it is in an extent

An extent is an object as other stores have them (records.py), with key, value and checksum. The
paper's extents have no checksum, and do not show that their memory has been used again (C11); ours
lie in memory that is not used again while any client may read it (epoch.py).

A row is whole if its CRC holds. A row of zeros is whole, and empty. Only the client that holds a
row's lock (locks.py) writes it: one entry, then version and CRC, so that a row that is read
meanwhile, or whose writer was killed, is not whole. The contents of a row change when its CRC does.

Rows are read into `words`, at numbered places, and changed there before they are written.

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

from limpet.shm.endpoint.fabric import crc_pair, lowest_bit, words_bytes, words_equal, words_put
from limpet.stores.rcuckoo.layout import (
    FINGERPRINT_SHIFT,
    INLINE,
    LENGTH_MASK,
    LENGTH_SHIFT,
    SLOTS,
    TRAILER_WORDS,
)

if TYPE_CHECKING:
    from limpet.stores.rcuckoo.parameters import RcuckooParameters


MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
MIX_FIRST: Final = 0x9E37_79B9_7F4A_7C15
MIX_SECOND: Final = 0xD1B5_4A32_D192_ED03
MIX_THIRD: Final = 0x8CB9_2BA7_2F3D_8DD7
RANGES: Final = 32


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


class Rows:
    """The rows of the table whose first row is at address `base`, which its user sets."""

    def __init__(self, endpoint: Any, parameters: RcuckooParameters) -> None:
        self.endpoint = endpoint
        self.base = 0
        self.entry_words = parameters.entry_words
        self.row_words = parameters.row_words
        self.key_bytes = 8 * ((parameters.key_size + 8) // 8)
        self.value_bytes = 8 * ((parameters.value_size + 7) // 8)
        self.words = array("Q", bytes(16 * self.row_words))

    def address(self, row: int) -> int:
        """Address of a row."""
        return self.base + 8 * self.row_words * row

    def slot_address(self, row: int, slot: int) -> int:
        """Address of an entry's header."""
        return self.base + 8 * (self.row_words * row + self.entry_words * slot)

    def trailer(self, row: int) -> int:
        """Address of a row's version; the CRC follows it."""
        return self.address(row) + 8 * (self.row_words - TRAILER_WORDS)

    def room(self, places: int) -> None:
        """Make room for so many rows in `words`; present rows stay."""
        more = places * self.row_words - len(self.words)
        if more > 0:
            self.words = array("Q", bytes(memoryview(self.words))) + array("Q", bytes(8 * more))

    # ---- reading --------------------------------------------------------------------------------

    def read(self, place: int, row: int, count: int = 1) -> None:
        """Read `count` rows from `row` on to the places from `place` on; one read."""
        size = self.row_words
        self.endpoint.read_words(self.address(row), self.words, count * size, place * size)

    def post(self, place: int, row: int, count: int = 1) -> None:
        """Post `read`."""
        size = self.row_words
        self.endpoint.post_read(self.address(row), self.words, count * size, place * size)

    def is_whole(self, place: int) -> bool:
        """Whether the CRC of the row there holds."""
        start = place * self.row_words
        last = start + self.row_words - 1
        return self.words[last] == crc_pair(self.words, start, self.row_words - 1)

    def is_same(self, place: int, other: int) -> bool:
        """Whether the rows at two places are the same, word for word."""
        one, two = place * self.row_words, other * self.row_words
        for index in range(self.row_words):
            if self.words[one + index] != self.words[two + index]:
                return False
        return True

    def version(self, place: int) -> int:
        """The version of the row there."""
        return self.words[(place + 1) * self.row_words - TRAILER_WORDS]

    def header(self, place: int, slot: int) -> int:
        """The header of an entry of the row there."""
        return self.words[place * self.row_words + slot * self.entry_words]

    def find(self, place: int, key: bytes, fingerprint: int) -> int:
        """Of the entries of the row there, the one with this key; or -1."""
        at = place * self.row_words
        for slot in range(SLOTS):
            header = self.words[at]
            if (
                header >> FINGERPRINT_SHIFT == fingerprint
                and header
                and self.words[at + 1] & 0xFF == len(key)
                and words_equal(self.words, 8 * at + 9, key)
            ):
                return slot
            at += self.entry_words
        return -1

    def vacant(self, place: int) -> int:
        """Of the entries of the row there, one that is empty; or -1."""
        at = place * self.row_words
        for slot in range(SLOTS):
            if not self.words[at]:
                return slot
            at += self.entry_words
        return -1

    def key(self, place: int, slot: int) -> bytes:
        """The key of an entry of the row there."""
        at = place * self.row_words + slot * self.entry_words + 1
        return words_bytes(self.words, 8 * at + 1, min(self.words[at] & 0xFF, self.key_bytes - 1))

    def value(self, place: int, slot: int) -> bytes:
        """The value of an entry of the row there, which has it inline."""
        at = 8 * (place * self.row_words + slot * self.entry_words)
        length = self.words[at >> 3] >> LENGTH_SHIFT & LENGTH_MASK
        return words_bytes(self.words, at + 8 + self.key_bytes, min(length, self.value_bytes))

    # ---- changing -------------------------------------------------------------------------------

    def put_inline(self, place: int, slot: int, fingerprint: int, key: bytes, value: bytes) -> None:
        """Set an entry of the row there, with the value in it."""
        header = fingerprint << FINGERPRINT_SHIFT | len(value) << LENGTH_SHIFT | INLINE
        self._put(place, slot, header, key, value)

    def put_extent(
        self, place: int, slot: int, fingerprint: int, key: bytes, reference: int
    ) -> None:
        """Set an entry of the row there, with the value in an extent."""
        self._put(place, slot, fingerprint << FINGERPRINT_SHIFT | reference, key, b"")

    def _put(self, place: int, slot: int, header: int, key: bytes, value: bytes) -> None:
        at = place * self.row_words + slot * self.entry_words
        self.words[at] = header
        words_put(self.words, 8 * at + 9, key, self.key_bytes - 1)
        self.words[at + 1] = self.words[at + 1] & ~0xFF | len(key)
        words_put(self.words, 8 * at + 8 + self.key_bytes, value, self.value_bytes)

    def clear(self, place: int, slot: int) -> None:
        """Empty an entry of the row there."""
        at = place * self.row_words + slot * self.entry_words
        for index in range(at, at + self.entry_words):
            self.words[index] = 0

    def copy(self, place: int, slot: int, source: int, source_slot: int) -> None:
        """Set an entry of the row there to one of the row at place `source`."""
        to = place * self.row_words + slot * self.entry_words
        at = source * self.row_words + source_slot * self.entry_words
        for index in range(self.entry_words):
            self.words[to + index] = self.words[at + index]

    def load_entry(self, place: int, slot: int, address: int) -> None:
        """Set an entry of the row there to the one at an address."""
        at = place * self.row_words + slot * self.entry_words
        self.endpoint.read_words(address, self.words, self.entry_words, at)

    def post_write(self, place: int, row: int, slot: int, version: int) -> None:
        """Post writes of the entry, as it is in the row there, and the row's new version and
        CRC."""
        start = place * self.row_words
        last = start + self.row_words - 1
        self.words[last - 1] = version
        self.words[last] = crc_pair(self.words, start, self.row_words - 1)
        # ORDER: the entry before the trailer: a row with its old version and a CRC that holds is
        # unchanged.
        # CRASH(torn): the client that finds the writer dead repairs the row (repair.py).
        at = start + slot * self.entry_words
        self.endpoint.post_write(self.slot_address(row, slot), self.words, self.entry_words, at)
        # LINEARIZES: insert, update, delete; the second word, the CRC
        self.endpoint.post_write(self.trailer(row), self.words, TRAILER_WORDS, last - 1)
