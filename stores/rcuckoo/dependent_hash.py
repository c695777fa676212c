"""Dependent hashing: a key's two rows, most often close together (RCuckoo section 3.3).

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
from typing import Final

from limpet.shm.endpoint.fabric import lowest_bit

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
