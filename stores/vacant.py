"""Words of vacant slots, none of which ever comes again (trap F3).

A slot whose pair is deleted, or the pointer of an object that is given up, gets a word with a
unique id, a number that no client in the pool has used (shm/clients/unique_ids.py). So a CAS that
expects one succeeds once, however late it is, and a client that finds the same word again knows
that the slot was vacant meanwhile.

    bits 56-63  bits 47-54 of the number
    bits 48-55  VACANT_CLASS, which no reference to an object has
    bits 1-47   bits 0-46 of the number
    bit 0       0

The number is 2^55 - 1 less the unique id. So bits 4-47 begin as an address outside of all nodes:
code that took one of these words for a reference would get AddressError, and write to no memory.

A unique id is below 2^54: ten million a second last for 57 years, and then `take` raises
PoolCorrupt. So the word does not overflow, and bits 56-63 are not 0: it is neither SPLIT nor UNSET
(race/layout.py).
"""

from __future__ import annotations

from typing import Final

from limpet.stores.status import VACANT_CLASS

NUMBER_MAX: Final = 0x7F_FFFF_FFFF_FFFF
LOW_BITS: Final = 47
LOW_MASK: Final = 0x7FFF_FFFF_FFFF


def is_vacant(pointer: int) -> bool:
    """Whether an object with this pointer has no data."""
    return pointer == 0 or pointer >> 48 & 0xFF == VACANT_CLASS


def vacant_word(ticket: int) -> int:
    """The word with this unique id."""
    number = NUMBER_MAX - ticket
    return number >> LOW_BITS << 56 | VACANT_CLASS << 48 | (number & LOW_MASK) << 1
