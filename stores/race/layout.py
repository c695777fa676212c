"""Words of RACE hashing in memory; their tables are in index.py. Plain constants.

Counters of less than a word: the numbers of vacant slots, in `rtx-race`, `fusee` and `swarm`, and
of entries that `rtx-race` has split; 54 bits, 57 years of ten million a second
(stores/core/records.py). Locks of entries are those of stores/transactions/layout.py, or client
ids.
"""

from __future__ import annotations

from typing import Final

from limpet.shm.endpoint.words import ADDRESS_MASK, REFERENCE_MASK, TENTATIVE
from limpet.stores.core.status import VACANT_CLASS

MIX_FIRST: Final = 0x9E37_79B9_7F4A_7C15
MIX_SECOND: Final = 0xD1B5_4A32_D192_ED03
MIX_DIRECTORY: Final = 0xC2B2_AE3D_27D4_EB4F
MASK: Final = 0xFFFF_FFFF_FFFF_FFFF

SLOTS: Final = 0xFEFE_FEFE
"""Which of the words of two combined buckets are slots."""

FROZEN: Final = 1 << 55
OBJECT_MASK: Final = REFERENCE_MASK & ~FROZEN
"""The bits of a valid slot word that are the reference to its object."""
FROZEN_VACANT: Final = FROZEN | TENTATIVE
"""A slot that was vacant, or not decided, when its subtable was frozen."""
UNSET: Final = VACANT_CLASS << 48 | 2
"""A slot of a half that is not filled yet."""

PREFETCH_SIZE: Final = 64
"""Bytes of each pair that a split prefetches: its header and the front of its key."""

DIRECTORY_ENTRY: Final = 16
SPLIT: Final = VACANT_CLASS << 48
"""The pointer of an entry that is split."""

assert not (FROZEN_VACANT | UNSET | SPLIT) & ADDRESS_MASK
