"""Layout of the shared queue. Plain constants; the tables: cyclic_ring.py, notes.py, tasks.py."""

from typing import Final, NamedTuple

from limpet.shm.endpoint.field_ends import A_SECOND_MAX, LASTS, STAYS, WRAPS, Field
from limpet.stores.core.status import FULL

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
ROUND_MASK: Final = (1 << 48) - 1
LATER: Final = 1 << 47
"""Rounds that differ by less than this are later ones; they wrap around."""

EMPTY: Final = 6
REJOIN: Final = 7
"""Beside those of stores/core/status.py: the queue is empty; this process was declared dead."""


class Refusal(NamedTuple):
    """Why an element was not put. `outcome`: FULL; or NO_MEMORY, on `node`. `laggard`: the id of
    the client that keeps the last place: it has neither given that up nor died.
    """

    outcome: int
    node: int = 0
    laggard: int = 0


NO_ROOM: Final = Refusal(FULL)

MAXSIZE: Final = 1024
ITEM_SIZE: Final = 104
PATIENCE: Final = 24
"""Pauses of a consumer for a producer that others have overtaken."""
BATCH: Final = 64
"""Elements of a batch that are put or got in one operation."""
LOOKED_AT: Final = 256
"""Slots that a look at all elements reads in one phase at most."""

KEPT_MAX: Final = 4
"""Entries of a row; fewer where they would take more than this share of a node's memory."""
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

COUNT_BITS: Final = 40
"""Of the counts of tasks.py; the turn has the rest."""

FIELDS: Final = (
    Field(
        "queue: round",
        ROUND_MASK + 1,
        A_SECOND_MAX,
        WRAPS,
        "compared by differences; deceived is a client that was stopped in an operation "
        "for 2^48 rounds of a slot",
    ),
    Field("queue: ticket in an entry", 1 << 61, A_SECOND_MAX, LASTS, "a count of 64 bits, shifted"),
    Field(
        "queue: tag of a cell",
        TAG_MASK + 1,
        A_SECOND_MAX,
        WRAPS,
        "deceived is a CAS of a client that was stopped for 2^36 tickets, if the cell is the same",
    ),
    Field(
        "tasks: open",
        1 << COUNT_BITS - 1,
        A_SECOND_MAX,
        STAYS,
        "of a process that never calls task_done; as long as it lives, `join` waits",
    ),
    Field(
        "tasks: lost",
        1 << COUNT_BITS,
        A_SECOND_MAX,
        WRAPS,
        "compared by differences, of fewer than 2^39 elements that were not forgotten",
    ),
    Field(
        "tasks: turn",
        1 << 64 - COUNT_BITS,
        10_000,
        WRAPS,
        "deceived is a process that was declared dead, and stopped for 2^24 turns of its row",
    ),
)
