"""Words of a tree's node; page.py says what they mean."""

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
"""Level of what is read where a node was vacated."""
SPARED_BLOCKS: Final = 2
"""Free blocks of a memory node that are left to deletes, which write a node to free one."""
LEVEL_MASK: Final = 0xFF
COUNT_SHIFT: Final = 8
HEAP_SHIFT: Final = 24
HAS_HIGH: Final = 1 << 40
LENGTH_MASK: Final = 0xFFFF
KEY_SHIFT: Final = 16
VALUE_SHIFT: Final = 32
EXTENT: Final = 1 << 48
