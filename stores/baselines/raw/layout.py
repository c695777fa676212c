"""Constants of RAW's objects. Plain, as compiled modules need them.

Nothing in an object counts.
"""

from typing import Final

DELETED: Final = 1 << 63
SIZES_MASK: Final = DELETED - 1
PREFETCH_SIZE: Final = 192
"""Bytes of a pair that are asked for at once."""
