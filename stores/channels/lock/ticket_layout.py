"""Constants of ticket locks. Plain, as compiled modules need them."""

from typing import Final

from limpet.shm.endpoint.field_ends import A_SECOND_MAX, WRAPS, Field

HEAD: Final = 8
PLACES: Final = 16
"""Offset of the first place."""

HOLDER: Final = (1 << 48) - 1
QUEUED: Final = 1 << 48
HANDOFF: Final = 1 << 49
INHERITED: Final = 1 << 50

STATE_MASK: Final = 7
WAITING: Final = 1
SLEEPING: Final = 2
GIVEN_BACK: Final = 3
SLOT_SHIFT: Final = 3
SLOT_MASK: Final = (1 << 12) - 1
LIFE_SHIFT: Final = 15
LIFE_MASK: Final = (1 << 20) - 1
ROUND_SHIFT: Final = 35
ROUND_MASK: Final = (1 << 29) - 1
LATER: Final = 1 << 28
"""Rounds that differ by less than this are later ones; they wrap around."""

BEHIND_MAX: Final = 8
"""Clients that are far from their turn sleep longer, at most by this factor."""
TURN_S: Final = 0.02
"""A free lock is kept for the head of its queue for this time, in seconds."""
FULL_ATTEMPT: Final = 74
"""The argument of `pause` of a client that finds no place: it sleeps 1 ms."""
HALF: Final = (1 << 32) - 1
"""The half of a word that the kernel compares."""

FIELDS: Final = (
    Field(
        "ticket lock: round",
        ROUND_MASK + 1,
        A_SECOND_MAX,
        WRAPS,
        "only the lock word excludes; a ticket that is taken for another is passed over",
    ),
    Field(
        "ticket lock: life of an owner",
        LIFE_MASK + 1,
        10_000,
        WRAPS,
        "a dead owner's ticket that is taken for a living one's is passed over after TURN_S",
    ),
)

assert 1 << LIFE_SHIFT == (SLOT_MASK + 1) << SLOT_SHIFT
assert 1 << ROUND_SHIFT == (LIFE_MASK + 1) << LIFE_SHIFT
assert (
    ROUND_MASK << ROUND_SHIFT | LIFE_MASK << LIFE_SHIFT | SLOT_MASK << SLOT_SHIFT | 7 == 2**64 - 1
)
assert HOLDER | QUEUED == 2 * QUEUED - 1
