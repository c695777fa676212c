"""The words of a feed (feed.py), a region of its store. Constants, and plain arithmetic.

0      where readers sleep (waiting.py)
8      ON, once all writers know the feed
64     places, of 64 bytes, one for each client slot
       0     owner    id of the client that has used the place last
       8     begun    bytes of the entries of changes that were begun, ever
       16    end      bytes of the entries of changes that are over, ever
then   rings, of `ring` bytes, one for each client slot; byte n of a place at n modulo `ring`

entry  bits 0-31 of a word: bytes of the key; bits 56-63: PUT_EVENT, DELETED or UNSURE
       the key, in whole words
"""

from typing import Final

from limpet.shm.catalogue.regions import PART

NODE: Final = 0
"""The memory node with the feed."""
NAME: Final = PART + "changes"
"""Behind the name of the store, in the region's name."""
WATCHED: Final = 1 << 62
"""In the word DROPS: there is a feed in this pool, or there was one."""
ON: Final = 8
PLACES: Final = 64
PLACE: Final = 64
BEGUN: Final = 8
END: Final = 16
KIND_SHIFT: Final = 56
LENGTH_MASK: Final = 0xFFFF_FFFF
PUT_EVENT: Final = 1
DELETED: Final = 2
UNSURE: Final = 3
SLEEPERS: Final = 1
"""The bit of the first word that says that a reader may sleep (waiting.py)."""
OPEN: Final = -1
"""As the outcome of an attempt: it has ended by an error, and its client does not know whether it
changed something."""
RING_MIN: Final = 512
RING_MAX: Final = 16 << 10
SHARE: Final = 32
"""All rings take about this part of a memory node."""


def ring_size(clients: int, node_size: int) -> int:
    """Bytes of each ring of a pool."""
    return max(RING_MIN, min(node_size // SHARE // clients, RING_MAX)) & ~7


def feed_size(clients: int, node_size: int) -> int:
    """Bytes of a feed."""
    return PLACES + clients * (PLACE + ring_size(clients, node_size))
