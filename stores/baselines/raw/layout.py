"""Constants of RAW's objects. Plain, as compiled modules need them.

No word of an object counts up.
"""

from typing import Final

DELETED: Final = 1 << 63
SIZES_MASK: Final = DELETED - 1
PREFETCH_SIZE: Final = 192
"""Bytes of a pair that the first read fetches."""
