"""Words of a cache in memory, and the outcomes of its steps. Plain constants.

The head of an object, before its sizes (records.py); 48 bytes, so head, sizes and checksum are one
cache line
    0     life       bits 0-1 hits, at most 3; bit 2 DEAD: unlinked, and no longer accounted for;
                     bit 3 PENDING: no value yet, its flight computes one; bit 4 SLIDES: sliding
                     expiry; bit 5 TAGGED: it has tags; bits 8-27 the lap in which it is accounted
                     for (ledger.py); bits 28-63 born, in ms, the low bits
    8     deadline   us since 1970; 0: never
    16    times      bits 0-31 sliding expiry, in ms, or, of an entry that does not slide, how long
                     its value took to compute, in ms; bits 32-63 for how long after the deadline
                     the value may be served while another is computed, in ms
    24    birth      the number of the last invalidation when the value was begun
    32    tags       up to five numbers of tags of 12 bits each; 0: none
    40    flight     0, or the flight that computes a new value: bits 0-47 its client, 48-63 its
                     number among those of the process

life, deadline, times and flight change while the object is linked: each by an atomic verb on its
word. The checksum of the pair leaves them out. A client that changes one was pinned before it found
the object, so the memory has no other use yet; if the object was unlinked meanwhile, the change has
no effect.

The cache's words, behind the directory of memory node 0
    0     hand           bits 44-63 lap, 36-43 directory, 12-35 prefix of the hash, 0-11 group
    8     period         bits 48-63 bits of the lap, 0-47 the epoch closed in it (ledger.py)
    16    limits         the bounds in force: bit 63 RESIZING; bits 36-62 items, 0-35 units of 16
                         bytes; 0 in both: those that the cache was made with (bounds.py)
    24    target         the bounds that were asked for last, likewise, without the bit
    64    banks          8 words, one for each of the last laps: items << 36 | units of 16 bytes
    128   invalidations  how many there were
    136   landings       7 words where callers sleep until a flight ends (channels/waiting.py), each
                         for the keys of some hashes
    192   counts         128 bytes for each client slot: see COUNTS; then the client that opened the
                         cache with bounds of its own, and those bounds, as asked (bounds.py)
    then  tags           4,096 words: the number of the last invalidation of a tag; tag 0 is of all

The outcomes of steps, and kinds of writes, are besides those of stores/core/status.py.
"""

from __future__ import annotations

from typing import Final

LIFE: Final = 0
DEADLINE: Final = 8
TIMES: Final = 16
BIRTH: Final = 24
TAGS: Final = 32
FLIGHT: Final = 40
PREFIX: Final = 48

HITS_MASK: Final = 3
HITS_MAX: Final = 3
DEAD: Final = 4
PENDING: Final = 8
SLIDES: Final = 16
TAGGED: Final = 32
LAP_SHIFT: Final = 8
LAP_MASK: Final = 0xFFFFF
BORN_SHIFT: Final = 28
BORN_MASK: Final = (1 << 36) - 1
PILOT_MASK: Final = (1 << 48) - 1
NUMBER_AT: Final = 48
LIFE_KEPT: Final = ~(LAP_MASK << LAP_SHIFT) & 0xFFFF_FFFF_FFFF_FFFF
"""All of a life but its lap."""

HAND: Final = 0
PERIOD: Final = 8
LIMITS: Final = 16
TARGET: Final = 24
BANKS: Final = 64
INVALIDATIONS: Final = 128
LANDINGS: Final = 136
LANDING_COUNT: Final = 7
COUNTERS: Final = 192
COUNTER_SIZE: Final = 128
ASKER: Final = 64
ASKED: Final = 72
"""In the line of a client slot, behind its counts."""
TAGS_MAX: Final = 4096
TAG_BITS: Final = 12
TAG_MASK: Final = TAGS_MAX - 1
TAGS_EACH: Final = 5
SPAN_MASK: Final = 0xFFFF_FFFF
"""The lower half of the times."""

ITEMS_SHIFT: Final = 36
ITEM: Final = 1 << ITEMS_SHIFT
UNITS_MASK: Final = (1 << ITEMS_SHIFT) - 1
RESIZING: Final = 1 << 63
UNIT: Final = 16
BANK_MASK: Final = 7
LAPS_LIVE: Final = 3

LAP_AT: Final = 44
TABLE_AT: Final = 36
PREFIX_AT: Final = 12
GROUP_MASK: Final = (1 << PREFIX_AT) - 1
PREFIX_MASK: Final = (1 << 24) - 1
PERIOD_AT: Final = 48
PERIOD_MASK: Final = (1 << PERIOD_AT) - 1
PERIOD_LAPS: Final = 0xFFFF

COUNTS: Final = (
    "hits",
    "misses",
    "sets",
    "deletes",
    "evictions",
    "expirations",
    "computations",
    "evicted_ms",
)
"""`evicted_ms`: the ages of all evicted entries, together."""
HITS, MISSES, SETS, DELETES, EVICTIONS, EXPIRATIONS, COMPUTATIONS, EVICTED_MS = (
    8 * number for number in range(8)
)

US_PER_MS: Final = 1000
EARLY_SHIFT: Final = 10
"""Times by which a computation is early are in 1/1024 of the time that it takes."""
SLIDE_SHARE: Final = 16
"""A sliding deadline is written again when 1/16 of its time has passed."""


def words_size(clients: int) -> int:
    """Bytes of the cache's words."""
    return COUNTERS + COUNTER_SIZE * clients + 8 * TAGS_MAX


def tags_at(clients: int) -> int:
    """Where the words of tags begin."""
    return COUNTERS + COUNTER_SIZE * clients


def pilot_of(flight: int) -> int:
    """The client of a flight."""
    return flight & PILOT_MASK


assert len(COUNTS) * 8 <= ASKER < ASKED < COUNTER_SIZE
assert INVALIDATIONS + 8 == LANDINGS
assert LANDINGS + 8 * LANDING_COUNT == COUNTERS
assert TAGS_EACH * TAG_BITS <= 64


FRESH: Final = 0
STALE: Final = 1
"""The deadline has passed, but the value may be served while another one is computed."""
VOID: Final = 2
"""It does not count: a read misses it, and any client may remove it."""
UNDECIDED: Final = 3
"""Its value is being computed, and it has no value that may be served."""

OVER: Final = 16
"""How a write ended: the cache would have too much."""
SWAP: Final = 8
"""A write that is made if the value that is there has the checksum of the terms."""
FINISH: Final = 9
"""A write that is made if this client has the flight of the entry."""

LANDED: Final = 0
"""How the beginning of a flight ended: there is a value."""
MINE: Final = 1
"""This client computes the value."""
OTHERS: Final = 2
"""Another client computes the value."""
