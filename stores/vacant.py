"""Words that stand for nothing, none of which ever comes again (trap F3).

A slot whose pair is deleted, or the pointer of an object that is given up, gets a word with a
number that nobody in the pool has used (shm/tickets.py). So a CAS that expects one succeeds once,
however late it comes, and whoever finds the same word again knows that nothing was there meanwhile.

    bits 56-63  bits 47-54 of the number, which begins at 2
    bits 48-55  VACANT_CLASS, which no reference to an object has
    bits 1-47   bits 0-46 of the number
    bit 0       0

The numbers 0 and 1 are left to SPLIT and UNSET (race/fields.py). The word has room for numbers
below 2^55, more than there are tickets: `take` raises PoolCorrupt before it could run over.
"""

from __future__ import annotations

from typing import Final

from limpet.stores.outcomes import VACANT_CLASS

FIRST: Final = 2
LOW_BITS: Final = 47
LOW_MASK: Final = 0x7FFF_FFFF_FFFF


def vacant_word(ticket: int) -> int:
    """The word with this ticket's number."""
    number = ticket + FIRST
    return number >> LOW_BITS << 56 | VACANT_CLASS << 48 | (number & LOW_MASK) << 1
