"""The words of a kvstore. Plain constants, as compiled modules need them.

A table is one region of a memory node:

    0         trackers  one for the keys of each lock, each from a multiple of 64 on: the number of
                        its messages so far, and the last of them, a word each (local_index.py)
    then      reaches   a word for each part of the data array, from a multiple of 64 on
                        (local_index.py)
    then      locks     a record for each, from a multiple of 64 on: lock, journal (data_array.py)
    then      array     the data array (data_array.py), from a multiple of 64 on
"""

from typing import Final

from limpet.shm.endpoint.field_ends import A_SECOND_MAX, LASTS, WRAPS, Field

RING: Final = 8
"""Offset of the first message in a tracker, behind their number."""

PHASE_MASK: Final = 3
VACANT: Final = 0
"""Vacant: any client that needs an entry may claim it."""
CLAIMED: Final = 1
"""Being inserted: not valid. This bit is also in VALID: those have a key."""
VALID: Final = 3
DELETED: Final = 2
"""Being deleted: not valid any more."""
LOCK_SHIFT: Final = 2
LOCK_BITS: Final = 12
COUNTER_SHIFT: Final = 14
COUNTER_MAX: Final = (1 << 50) - 1
"""An entry with it is not claimed again: counters do not wrap. That takes decades."""
ENTRY_SHIFT: Final = 2
"""State words that are equal without their phase belong to one life of an entry."""

STATE: Final = 0
CHECKSUM: Final = 1
SIZES: Final = 2
LINK: Final = 3
KEY: Final = 4
"""Words of an entry."""
KEY_LENGTH_MASK: Final = 0xFFFF
VALUE_LENGTH_SHIFT: Final = 16
VALUE_LENGTH_MASK: Final = 0xFFFF_FFFF

INTENT: Final = 0
CLAIM: Final = 8
REDO: Final = 16
"""Offsets in a journal, in bytes."""
INSERTING: Final = 1
UPDATING: Final = 2
DELETING: Final = 3
INTENT_SHIFT: Final = 2
INTENT_MASK: Final = 3
INTENT_ENTRY_MASK: Final = (1 << 30) - 1
SEQUENCE: Final = 1 << 32

ROW_BITS: Final = 28
"""The bits of a message that are the entry, and GONE. The rest is bits of the key's hash."""
ROW_MASK: Final = (1 << ROW_BITS) - 1
GONE: Final = 1 << ROW_BITS - 1
"""In a message: the entry does not have the key any more."""
ARRAY_MAX: Final = GONE - 1
LOCK_AT: Final = 40
"""The first bit of a key's hash that names its lock. All of them are in the messages."""
RING_MIN: Final = 2
RING_MAX: Final = 1 << ROW_BITS

READ_AT_ONCE: Final = 64
"""Messages, or states of entries, that are read in one phase."""
NEAR: Final = 1024
"""Messages that a client applies while it holds a lock; four times as many at each next attempt."""
LATE_MAX: Final = 8
"""After so many attempts, each of them late again, a client begins its index anew while it holds
the lock. That happens only if others announce more messages than the ring has room for each time
that it looks at a part; so the ring has to be much shorter than a part."""

TORN: Final = 8
"""A status: the entry's checksum does not hold."""

assert ROW_BITS <= LOCK_AT <= 64 - LOCK_BITS
assert LOCK_SHIFT + LOCK_BITS == COUNTER_SHIFT
assert COUNTER_MAX == (1 << 64 - COUNTER_SHIFT) - 1

FIELDS: Final = (
    Field(
        "kvstore entry: counter",
        COUNTER_MAX,
        1_000_000,
        LASTS,
        "counts the claims of one entry; with the last one it is not claimed again",
    ),
    Field(
        "kvstore journal: sequence",
        1 << 32,
        A_SECOND_MAX,
        WRAPS,
        "shows waiting clients that the holder of a lock makes progress",
    ),
)
