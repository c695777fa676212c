"""How a client's hand names a slot of a replicated index. Plain arithmetic.

Each replica of a slot has an address of its own, and its first one may be lost, so the hand has the
slot's place in its store instead (Heap.settle asks the store then):

    bits 48-55  number of the store's entry in the catalogue
    bits 40-47  subtable
    bits 3-39   offset in the subtable, a multiple of 8
    bit 2       BUFFER: it names no slot, and bits 3-47 and above 55 are something else
    bit 1       OLD: the object was in the slot when our round began; else it is one proposed for it
    bit 0       REPLICATED
"""

from __future__ import annotations

from typing import Final, NamedTuple

OLD: Final = 2
BUFFER: Final = 4
"""No slot: an object that belongs to another one, as the store says (stores/swarm/recycling.py)."""
OFFSET_BITS: Final = 0xFF_FFFF_FFF8


class Link(NamedTuple):
    """A slot of a replicated index."""

    entry: int
    subtable: int
    offset: int
    old: bool

    @classmethod
    def of(cls, home: int) -> Link:
        return cls(home >> 48 & 0xFF, home >> 40 & 0xFF, home & OFFSET_BITS, bool(home & OLD))
