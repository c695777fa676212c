"""Layout of a queue with acks. Plain constants; the tables are in table.py."""

from typing import Final

LOCK: Final = 0
TICKET: Final = 8
UNFINISHED: Final = 16
LISTS: Final = 32
LIST_SIZE: Final = 16
COUNT: Final = 8
FREE_PLACES: Final = 0
DELAYED_JOBS: Final = 1
HELD_JOBS: Final = 2
LETTERS: Final = 3
RESULTS: Final = 4
LEVELS: Final = 5
PRIORITIES: Final = 8
LIST_COUNT: Final = LEVELS + PRIORITIES
NEWS: Final = 256
ROOM: Final = 320
CHANGES: Final = 384
CONTROL_SIZE: Final = 448

REGION: Final = LISTS + LIST_SIZE * LIST_COUNT
"""Bytes of the queue's own region that a client reads when it takes the lock."""

assert REGION <= NEWS

ORDER: Final = 8
DUE: Final = 16
LEVEL: Final = 24
KEEP_SHIFT: Final = 3
SIZE: Final = 32
KEY: Final = 40
LINK: Final = 48
CHAIN: Final = 56
REASON: Final = 64
REASON_SIZE: Final = 64
DATA: Final = 128

assert PRIORITIES == 1 << KEEP_SHIFT

FREE: Final = 0
READY: Final = 1
DELAYED: Final = 2
HELD: Final = 3
STATE_MASK: Final = 3
LETTER: Final = 4
KEPT: Final = LETTER | DELAYED
DELIVERY_SHIFT: Final = 4
DELIVERY_MAX: Final = 0xFFF
DELIVERIES: Final = DELIVERY_MAX << DELIVERY_SHIFT
OWNER_SHIFT: Final = 16

DIRTY: Final = 1 << 63
LOW: Final = 0xFFFF_FFFF
BEHIND: Final = 32

MAXSIZE: Final = 1024
MAXSIZE_MAX: Final = 1 << 24
ITEM_SIZE: Final = 128
KEEP_S: Final = 300.0
MAX_DELIVERIES: Final = 5
LOOKS: Final = 30
"""How often a client looks at the lock in one operation."""
ASK: Final = 8
"""After so many operations without the lock, a client asks each time whether the holder lives."""
GIVE_BACK_US: Final = 5000
"""A client that gets jobs looks so often for consumers that have died."""
BATCH: Final = 64
"""Jobs of a batch that are put or got with the lock."""
NEAR: Final = 8
"""Places whose words a client keeps while it has the lock."""
NOWHERE: Final = (1 << 64) - 1
"""In place of the number of a place: none."""
