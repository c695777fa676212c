"""How steps of a cache end, and kinds of writes besides those of stores/status.py. Constants."""

from typing import Final

FRESH: Final = 0
STALE: Final = 1
"""The deadline has passed, but the value may be served while another one is computed."""
VOID: Final = 2
"""It does not count: a read misses it, and any client may remove it."""
UNDECIDED: Final = 3
"""Its value is being computed, and it has no value that may be served."""

OVER: Final = 16
"""How a write ended: the cache would have too much."""
SWAP: Final = 8
"""A write that is made if the value that is there has the checksum of the terms."""
FINISH: Final = 9
"""A write that is made if this client has the flight of the entry."""

LANDED: Final = 0
"""How the beginning of a flight ended: there is a value."""
MINE: Final = 1
"""This client computes the value."""
OTHERS: Final = 2
"""Another client computes the value."""
