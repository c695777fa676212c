"""The words of SWARM's registers: their layout, and its constants. Plain, as compiled modules need
them.

A register is an object with replicas. Its key is in the object's header (stores/fusee/log.py), and
then, from the address *area* on, words of 8 bytes:

    0           ident     a number that no other register has; 0 once this one has been given up
    1           capacity  bytes of room for a value in place, a multiple of 8
    2           M         metadata array: `buffers` words, one for each group of writers
    then        stamp     of the value in place, bits 8-63; 0 while there is none
                length    of that value
                hash      of that value, if its length is at most the capacity; else the reference
                          of a buffer that has the value (replica.py)
                value     capacity bytes
    then        P         two pointers for each writer: references to its buffers, or `ident`
    then        L         a timestamp lock for each writer (safe_guess.py); of DM-ABD none

The words stand in the order in which operations need them:

    WRITE       reads ident, capacity, M            16 + 8 * buffers bytes on each of a majority
    READ        reads these and, on the first replica, on to the end of the line of 64 bytes in
                which the value ends, as long as it was when this handle saw it last. A longer value
                is one more round trip. Of a value that is not in place, the stamp and the reference
                are there: the buffer is the second round trip, whatever the length
    both        read the two pointers of a row only when no reference in place leads to its value,
                or when nothing is remembered of the own row

Writers of each word. The row of a writer is its word in M (shared, with fewer words than writers)
and its two pointers (row.py); only that client writes tuples there, its own and copies of those
that it writes back, and only that client changes the pointers. Others set the VERIFIED bit. A lock
is changed by its writer and by readers. The words in place are written by any client,
plainly, after its tuple is at a majority: stamp and hash, or the header of the buffer, say whether
they are right. A first value, and one whose buffer was returned, is nowhere else (row.py).

A kill leaves in place: nothing, an older value, or a torn one, which the hash rejects. The next
READ that finds its value missing in place puts it there, in the background: so a stopped writer, a
lost node or a replaced one costs each key one READ with two more round trips.

The words do not begin a cache line: to reserve what that takes costs a key with values of 1 KiB and
four writers 7,649 bytes instead of 7,121, and saves a read at most one line.
"""

from typing import Final

WRITERS_MAX: Final = 64
WRITER_MASK: Final = WRITERS_MAX - 1

TIME_SHIFT: Final = 14
STAMP_SHIFT: Final = 8
ROW_SHIFT: Final = 1
TIME_MAX: Final = (1 << 64 - TIME_SHIFT) - 1
"""The time of a tombstone. No clock says that: it ends before (shm/clients/unique_ids.py)."""
TUPLE_MAX: Final = 0xFFFF_FFFF_FFFF_FFFF
GUESSED: Final = 0
VERIFIED: Final = 1 << STAMP_SHIFT - 1

READ: Final = 1
WRITE: Final = 2

REPLICAS_ROW: Final = 8
"""Places for the state of each replica."""
HEADER: Final = 32
"""Bytes of an out-of-place buffer before the value."""
HEADER_WORDS: Final = HEADER // 8
IN_PLACE_WORDS: Final = 3
"""Stamp, length and hash, or reference, before the value that is in place."""
LINE: Final = 64
"""Bytes of a cache line: a read ends with one."""
IN_PLACE_LEAST: Final = 64
"""Bytes for the value in place, however short the first one is."""
IN_PLACE_MAX: Final = 8192
"""Bytes of the largest value that is stored in place, too."""
CAPACITY_MASK: Final = 0x3FFF
PLACED_SHIFT: Final = 14
PLACED_MASK: Final = CAPACITY_MASK << PLACED_SHIFT
AREA_SHIFT: Final = 32
"""Of a cache entry's word with a register's area, length in place and capacity (cache.py)."""
FIXED: Final = 7
"""Words of an entry of the cache (cache.py) before those of the replicas."""

WORDS: Final = 0
"""A read of a replica takes ident, capacity and M."""
ROW: Final = 1
"""And the pointers of our row."""
WHOLE: Final = 2
"""Or the value in place, of the first replica."""
ALL_ROWS: Final = 0xFFFF_FFFF_FFFF_FFFF
UNKNOWN: Final = 0xFFFF_FFFF_FFFF_FFFF
"""The length of a value in a buffer, where only its header says that."""

NOWHERE: Final = -1
"""No entry of the cache."""

ATTEMPTS_MAX: Final = 1000
"""How often an operation may try again while nothing changes, until that is damaged memory."""

DONE: Final = 0
AGAIN: Final = 1
NO_MEMORY: Final = 2
DELETED: Final = 6
"""There is a tombstone, at a majority by now."""
GONE: Final = 7
"""The register is given up: the remembered place of the key is out of date."""

NAMED: Final = 1 << 16
"""Instead of a place in the client journal: pointers of our row name the buffer already."""
UNDECIDED: Final = 1
"""Instead of a reference: it is not known, or differs from replica to replica."""
UNVERIFIED: Final = 2
"""Instead of a stamp: the tuple is at a majority, and a READ has to decide it."""

REFUSED: Final = 8
"""The pointer is not empty, so nothing was written."""
NO_NUMBER: Final = 9
"""This client has no writer number: it takes one, outside of the operation."""
