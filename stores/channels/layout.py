"""Constants of channels. Plain, as compiled modules need them."""

from typing import Final

from limpet.shm.endpoint.field_ends import A_SECOND_MAX, LASTS, WRAPS, Field

MARK: Final = 0
DESCRIPTION_SIZE: Final = 8
DESCRIPTION: Final = 16
SIZE_MASK: Final = 0xFFFF_FFFF
MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
WORD: Final = 8
LINE: Final = 64
"""Bytes of a cache line: what different processes write lies in different ones."""

SLEEPERS: Final = 1
WOKEN: Final = 2
WAKE_FLAGS: Final = SLEEPERS | WOKEN
WAKE: Final = WAKE_FLAGS + 1
SLEEP_US: Final = 5000
"""The longest sleep before one looks again who has died."""
POLL_US: Final = 1000
"""The same where other hosts, which cannot wake us, may be waited for."""
SPINS: Final = 20
"""How often a waiting client looks before it sleeps in the kernel."""
SPIN: Final = 3
"""The attempt, for `pause`, that a look waits for at most: about a microsecond."""
YIELD: Final = 8
"""The attempt at which `pause` lets other processes have the core."""
CLAIMED: Final = 1 << 63
"""Of a participant's word: the row is its own, but not ready."""

FIELDS: Final = (
    Field(
        "waiting: count of wakes",
        1 << 30,
        A_SECOND_MAX,
        WRAPS,
        "who was stopped for 2^30 wakes before it fell asleep sleeps for SLEEP_US, and looks again",
    ),
    Field("event: times set", 1 << 63, A_SECOND_MAX, LASTS, "it would wrap, too"),
)
