"""Constants of RAW's objects. Plain, as compiled modules need them."""

from typing import Final

DELETED: Final = 1 << 63
SIZES_MASK: Final = DELETED - 1
