"""Words of repairable transactions in memory; lllock.py and log.py say what they mean.

Fields that are narrower than a word, and count
    time of a lock state   50 bits of us since 2025, until September 2060. A client that draws one
                           then gets ClientError, and locks nothing; reads go on
                           (shm/clients/unique_ids.py)
    takeovers of a log     61 bits, 7,000 years of ten million a second
    vacant pointers        54 bits, 57 years of ten million a second (stores/core/records.py)
Leases are words of their own.
"""

from __future__ import annotations

from typing import Final

from limpet.shm.endpoint.slots import OWN

TX_LOG: Final = OWN
"""Word of a client's slot: reference to the log of its present or last transaction (log.py)."""
TX_TIME: Final = OWN + 8
"""Word of a client's slot: time in that one's lock state; 0: it is over."""

OBJECT_SHIFT: Final = 4
OBJECT_SIZE: Final = 1 << OBJECT_SHIFT
OBJECT_MASK: Final = 0xFFFF_FFFF_FFF0
"""Of a link_address in a client journal: the object for which new data is meant; 0: a log, or an
extent."""
EXTENT_PAIR: Final = 2
"""Bit of a link_address: the pair is an object that the store decides (`is_linked`)."""

LOCKED: Final = 1 << 63
LOGGED: Final = 1 << 62
SLOT_SHIFT: Final = 50
SLOT_MASK: Final = 0xFFF
TIME_MASK: Final = (1 << 50) - 1
VERSION_MASK: Final = (1 << 62) - 1

OWNER: Final = 0
STATE: Final = 8
LEASE: Final = 16
COUNT: Final = 24
ENTRIES: Final = 32
ENTRY_SIZE: Final = 24
"""Offsets in a log."""

PART: Final = 1
"""Object of a log's entry that names a part (parts.py)."""
PART_LOG: Final = 0
PART_OWNER: Final = 8
PART_COUNT: Final = 16
PART_ENTRIES: Final = 24
"""Offsets in a part."""
AT_ONCE_MAX: Final = 16
"""So many entries of a part are written at once, and so many used bits set or cleared."""
LATE_SIZE: Final = 4096
"""A larger object comes late: it is allocated when the log is there that is to name it (log.py)."""
WORDS: Final = 64
"""So many words of a log are written at once (log.py); of a part, no more than these."""
COUNT_MAX: Final = 1 << 20
"""No transaction changes as many slots of a memory node; it is no part."""
SLOT: Final = 1
"""In the address of what is in a client's way: it is a slot, and not an object."""

INIT: Final = 0
ABORT: Final = 1
DOING: Final = 2
LOG_DONE: Final = 3
STATE_MASK: Final = 3
COMMITTED: Final = 4
ROUND: Final = 8

UNKNOWN: Final = (1 << 64) - 1
"""In place of a sum of changes (changes.py): a client is in the midst of one."""

KEPT: Final = 64
"""So many reads, and writes, of a transaction are kept to be used again by the next one."""
SPARED_BLOCKS: Final = 2
"""Free blocks of a memory node that are left to deletes, which write a node to free one."""
DRIFT_US: Final = 8000
EACH_US: Final = 100
