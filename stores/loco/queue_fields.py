"""Layout of the shared queue. Plain constants; the tables: queue_places.py, queue_kept.py."""

from typing import Final

TAIL: Final = 0
HEAD: Final = 64
NEWS: Final = 128
ROOM: Final = 192
DONE_WITH: Final = 256
FORGOTTEN: Final = 320
CONTROL_SIZE: Final = 384

SIZE: Final = 8
CELL: Final = 16
DATA: Final = 24

STATE_MASK: Final = 3
FREE: Final = 0
WRITING: Final = 1
READY: Final = 2
SKIPPED: Final = 3
OWNER_SHIFT: Final = 2
OWNER_MASK: Final = 0x3FFF
ROUND_SHIFT: Final = 16

EMPTY: Final = 6
"""Beside those of stores/outcomes.py: there is nothing to get."""

MAXSIZE: Final = 1024
ITEM_SIZE: Final = 104
PATIENCE: Final = 24
"""How often a consumer pauses for a producer that others have overtaken."""
BATCH: Final = 64
"""Elements of a batch that are put or got in one operation."""

KEPT_MAX: Final = 4
"""Entries of a row; fewer where they would take more than this part of a node's memory."""
PART: Final = 4

PENDING: Final = 1
TAKEN: Final = 2
CLOSING: Final = 3
LOST: Final = 4
KIND: Final = 7
TICKET_SHIFT: Final = 3

ENTRY_CELL: Final = 16
BEFORE: Final = 24
ENTRY_DATA: Final = 32
CELL_SHIFT: Final = 28
CELL_MASK: Final = (1 << CELL_SHIFT) - 1
TAG_MASK: Final = (1 << 36) - 1
