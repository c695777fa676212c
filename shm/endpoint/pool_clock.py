"""The clock of a pool: the wall clock, or, among processes of one host, one that cannot be set.

A wall clock that is set forward ends what has not ended: a computation of a cache, the lock of a
key, the lease of a transaction, and two processes have what one should. So the processes of a pool
of one host take the kernel's clock since boot (CLOCK_BOOTTIME, which goes on while the host is
suspended), and add what they have agreed on, in the word POOL_CLOCK:

    bits 42-63   the boot in which it holds: the low bits of the hash of its id; all 0: none
    bits 0-41    ms from 1970 to that boot, by the wall clock of the process that set it

So times are in us since 1970 all the same, as the wall clock was when the pool was made. The first
process that joins sets the word by CAS, and the first one that joins after a reboot sets it anew:
times of an earlier boot, in a file or on a device, go on to mean what they meant, as exactly as the
wall clock is right. In a pool of several hosts the word is 0, and each host's wall clock counts.

A process of another time namespace sees another clock since boot; `shift_boot_clock` has the
difference. Where the kernel does not tell it, the process takes the one by which it agrees with its
wall clock when it joins.
"""

from __future__ import annotations

import time
from typing import Any, Final

from limpet.shm.endpoint.fabric import shift_boot_clock
from limpet.shm.endpoint.layout import POOL_CLOCK

US_PER_MS: Final = 1000
MS_PER_S: Final = 1000
BOOT_SHIFT: Final = 42
OFFSET_MASK: Final = (1 << BOOT_SHIFT) - 1
BOOT_MASK: Final = (1 << 64 - BOOT_SHIFT) - 1


def wall_us() -> int:
    """The wall clock, in us since 1970."""
    return time.time_ns() // 1000


def since_boot_us() -> int:
    """The clock since boot, as this process's time namespace has it."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


def word_of(boot: int, shift_s: int | None) -> int:
    """The word for a boot, by the clocks as they are now; `shift_s`: of our time namespace."""
    offset = (wall_us() - since_boot_us()) // US_PER_MS + (shift_s or 0) * MS_PER_S
    return (boot & BOOT_MASK or 1) << BOOT_SHIFT | min(max(offset, 0), OFFSET_MASK)


def agree(endpoint: Any, boot: int, shift_s: int | None) -> None:
    """Set the endpoint's clock to that of the other processes of this boot; for a process that
    joins a pool of one host. `shift_s`: seconds by which its time namespace is ahead of the host's
    clock since boot; None: it is not known."""
    ours = word_of(boot, shift_s)
    word = endpoint.load(POOL_CLOCK)
    while word >> BOOT_SHIFT != ours >> BOOT_SHIFT:
        found = endpoint.cas(POOL_CLOCK, word, ours)
        word = ours if found == word else found
    ahead = (word & OFFSET_MASK) * US_PER_MS + since_boot_us() - wall_us()
    shift_boot_clock(ahead if shift_s is None else shift_s * MS_PER_S * US_PER_MS)
