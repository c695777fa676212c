"""Words of a tree's node and of a hint; page.py and routes.py give their meaning.

No word of a node counts up: a node is written once. The words of its object, lock and pointer, do
(stores/transactions/layout.py). Number, line and place of a hint are in private memory and only a
guess: a client compares the entry that it finds by them with the key.
"""

from __future__ import annotations

from typing import Final

INSTALLED: Final = 0
CHECKSUM: Final = 1
SHAPE: Final = 2
SIBLING: Final = 3
FENCES: Final = 4
SLOTS: Final = 5
"""Words of a page."""

GONE: Final = 0xFF
"""The level that a client reads where a node was vacated."""
LEVEL_MASK: Final = 0xFF
COUNT_SHIFT: Final = 8
HEAP_SHIFT: Final = 24
HAS_HIGH: Final = 1 << 40
LENGTH_MASK: Final = 0xFFFF
KEY_SHIFT: Final = 16
VALUE_SHIFT: Final = 32
EXTENT: Final = 1 << 48
ENTRY_SIZE: Final = 128
"""About how many bytes of an entry are prefetched."""

NUMBER_MASK: Final = 0xFFFF_FFFF
SIGN: Final = 0x8000_0000
LINE_SHIFT: Final = 32
LINE_MASK: Final = 0x3FF
PLACE_SHIFT: Final = 42
PLACE_MASK: Final = 0x3F
TAG_SHIFT: Final = 48

LEAVES_MAX: Final = 8
"""So many leaves are read in one operation of a scan."""

RUN_MAX: Final = 128
"""A client notes fewer leaves than these in one run (fences.py)."""

SPARSE: Final = 17
ELSEWHERE: Final = 18
UNTIDY: Final = 19
"""Outcomes of an attempt, beside those of status.py: it is done, and the leaf is to be merged; the
leaf is to be looked for; it is done, and something is left to be tidied up."""
