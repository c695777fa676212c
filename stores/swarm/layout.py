"""Constants of SWARM's registers. Plain, as compiled modules need them."""

from typing import Final

WRITERS_MAX: Final = 64
WRITER_MASK: Final = WRITERS_MAX - 1

TIME_SHIFT: Final = 14
STAMP_SHIFT: Final = 8
ROW_SHIFT: Final = 1
TIME_MAX: Final = (1 << 64 - TIME_SHIFT) - 1
"""The time of a tombstone. No clock says that: it ends before (shm/clients/unique_ids.py)."""
GUESSED: Final = 0
VERIFIED: Final = 1 << STAMP_SHIFT - 1

READ: Final = 1
WRITE: Final = 2

REPLICAS_ROW: Final = 8
"""Places for the state of each replica."""
HEADER: Final = 32
"""Bytes of an out-of-place buffer before the value."""
HEADER_WORDS: Final = HEADER // 8
IN_PLACE_WORDS: Final = 3
"""Stamp, length and hash before the value that is in place."""
IN_PLACE_LEAST: Final = 64
"""Bytes for the value in place, however short the first one is."""
IN_PLACE_MAX: Final = 8192
"""Bytes of the largest value that is stored in place, too."""
CAPACITY_MASK: Final = 0xFFFF_FFFF
"""Bits of the area and capacity, in the word of a cache entry that has both."""
FIXED: Final = 5
"""Words of an entry of the cache (cache.py) before those of the replicas."""

NOWHERE: Final = -1
"""No entry of the cache."""

ATTEMPTS_MAX: Final = 1000
"""How often an operation may try again while nothing changes, until that is damaged memory."""

DONE: Final = 0
AGAIN: Final = 1
NO_MEMORY: Final = 2
DELETED: Final = 6
"""There is a tombstone, at a majority by now."""
GONE: Final = 7
"""The register is given up: the remembered place of the key is out of date."""

REFUSED: Final = 8
"""The pointer is not empty, so nothing was written."""
