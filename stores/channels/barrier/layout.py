"""Layout of the barrier. Plain constants; the tables are in barrier.py."""

from typing import Final

from limpet.shm.endpoint.field_ends import A_SECOND_MAX, WRAPS, Field

COME: Final = 0xFF
LOST_SHIFT: Final = 8
AGAIN_SHIFT: Final = 16
AGAIN_MASK: Final = 0xFFFF
BROKEN: Final = 1 << 32
ROUND_SHIFT: Final = 33
ROUND_MASK: Final = 0x7FFF_FFFF
LATER: Final = 1 << 30
"""Rounds that differ by less than this are later ones; they wrap around."""
RENEWAL: Final = (1 << 28) - 1
"""In rounds without these bits `resets` is brought up to date."""
ANCIENT: Final = range(1 << 29, 3 << 29)
"""Registers whose last round is so many rounds ago are given back; more is a later round."""
THREADS_SHIFT: Final = 32
PID_SHIFT: Final = 40
PARTIES_MAX: Final = 0xFF
FIELDS: Final = (
    Field(
        "barrier: round",
        ROUND_MASK + 1,
        A_SECOND_MAX,
        WRAPS,
        "compared by differences; deceived is a party that was stopped for 2^31 rounds",
    ),
    Field(
        "barrier: regroupings of a round",
        AGAIN_MASK + 1,
        1000,
        WRAPS,
        "deceived is a party that was stopped for 2^16 deaths, or newcomers, in one round",
    ),
)
RESET: Final = 8
RESETS: Final = BROKEN | BROKEN - 1
WORD_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
NOWHERE: Final = WORD_MASK
"""In place of the round of a thread: it was not counted yet."""
ON_DEATH: Final = ("break", "continue")
PROCESSES_MIN: Final = 64
