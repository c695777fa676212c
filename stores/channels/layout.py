"""Constants of channels. Plain, as compiled modules need them."""

from typing import Final

from limpet.shm.endpoint.field_ends import A_SECOND_MAX, LASTS, WRAPS, Field

DESCRIPTION_SIZE: Final = 8
DESCRIPTION: Final = 16
SIZE_MASK: Final = 0xFFFF_FFFF
MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
WORD: Final = 8
LINE: Final = 64
"""Bytes of a cache line: words that different processes write lie in different lines."""

SLEEPERS: Final = 1
WOKEN: Final = 2
WAKE_FLAGS: Final = SLEEPERS | WOKEN
WAKE: Final = WAKE_FLAGS + 1
SLEEP_US: Final = 5000
"""The longest sleep of a waiting client before it looks again for the dead."""
POLL_US: Final = 1000
"""The same where we may wait for clients of other hosts, which cannot wake us."""
SPINS: Final = 20
"""How often a waiting client looks before it sleeps in the kernel."""
SPIN: Final = 3
"""The argument of `pause` for the longest wait of a look: about a microsecond."""
YIELD: Final = 8
"""The argument of `pause` from which it yields the core to other processes."""
MOMENT: Final = 24
MOMENTS: Final = 10
"""The arguments of `pause`, from the first on and so many, of sleeps from 20 to 200 us."""
CLAIMED: Final = 1 << 63
"""A bit of a participant's word: the row is taken, but not ready."""

FIELDS: Final = (
    Field(
        "waiting: count of wakes",
        1 << 30,
        A_SECOND_MAX,
        WRAPS,
        "a client stopped for 2^30 wakes before it falls asleep sleeps for SLEEP_US, and looks",
    ),
    Field("event: times set", 1 << 63, A_SECOND_MAX, LASTS, "it would wrap, too"),
)
