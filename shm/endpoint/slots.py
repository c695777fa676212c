"""The words of a client slot. (Used by client.py, membership.py, epoch.py and recovery.py.)

Client slot, 1408 bytes in the control segment. Other clients change, by CAS, the words state,
fence, own, changes and records only; after a power cut the process that makes the pool whole clears
slots (mending.py). All else is written by the slot's client alone.
    0    state        bits 60-63 state, bits 36-59 pid, bits 0-35 incarnation; by CAS only
    8    started      start time of the process, in clock ticks since boot; 0: not known
    16   boot         hash of the host's boot id
    24   namespace    hash of the PID namespace
    32   beat         multi-host pools: wall clock in us at the last renewal of the lease; goes up
                      several times a lease (fencing.py)
    40   fence        multi-host pools: id of a client that asks this one's host to end it
    48   progress     counted up while it makes something that others may wait for (directory.py)
    56   parked       1 while it waits in an operation for the view to change (view.py)
    64   pin          0, or low bits of the epoch and a counter, while an operation runs (epoch.py)
    72   clock        above every timestamp that this slot's clients have used (unique_ids.py);
                      the next client of the slot goes on from there
    80   own          two words of a protocol of stores (stores/transactions/layout.py has the only
                      ones)
    96   locked       the file that the client's life lock is on (liveness.py); 0: none; 1: the
                      client is remote (lasting.py)
    104  era          the other bits of the epoch that is pinned (epoch.py)
    112  machine      the host, the same after its reboots, or 0 (hosts.py)
    120  name         the first 8 bytes of the host's name
    128  changes      of what transactions can read: odd while the client is about to make one, else
                      even; only ever goes up, also for the next client of the slot
                      (stores/transactions/changes.py)
    136  release      the first 8 bytes of the name of its release (release.py)
    144  journal      23 pairs of words: object reference, address of its link (heap.py), or
                      a store's own name of a link (words.py: REPLICATED)
    512  records      16 words: objects that it keeps between operations; other clients set a bit in
                      them (holds.py)
    640  figures      96 words that only ever go up, by plain increments; the next client of the
                      slot counts on in them, so a kill loses none:
                      0-32    the counters of verbs (verbs.pyx), of each scope
                      33-95   21 rows, each of the stores whose number in the catalogue has this
                              remainder: operations; of these, changes; gets that found no value

Client id (48 bits): slot << 36 | incarnation. A slot's incarnation goes up by one each time it is
taken, from 1 on, so an id is not used again while anything could still name it. After 2^36 - 1 it
begins with 1 again. If a word still has the id of a client from 2^36 clients ago (a lock's holder,
say), the new client with that id is taken for its owner until it ends.

States: FREE -> JOINING -> LIVE -> DYING -> FREE (joining.py names the client of each step).
"""

import struct
from typing import Final

from limpet.shm.endpoint.field_ends import A_SECOND_MAX, WRAPS, Field

FREE: Final = 0
JOINING: Final = 1
LIVE: Final = 2
DYING: Final = 3
STATE_SHIFT: Final = 60
STATE_BELOW: Final = (1 << STATE_SHIFT) - 1
STATES: Final = ("free", "joining", "live", "dying")

STARTED: Final = 8
BOOT: Final = 16
NAMESPACE: Final = 24
BEAT: Final = 32
FENCE: Final = 40
PROGRESS: Final = 48
PARKED: Final = 56
PIN: Final = 64
CLOCK: Final = 72
OWN: Final = 80
LOCKED: Final = 96
REMOTE: Final = 1
"""`locked` of a remote client, of which no client here sees a lock."""
ERA: Final = 104
MACHINE: Final = 112
NAME: Final = 120
CHANGES: Final = 128
RELEASE: Final = 136
CLIENT_JOURNAL: Final = 144
CLIENT_JOURNAL_SIZE: Final = 23
RECORDS: Final = 512
RECORDS_COUNT: Final = 16
FIGURES: Final = 640
FIGURES_COUNT: Final = 96
ROWS: Final = 33
"""The first word of the rows."""
ROWS_COUNT: Final = 21
ROW_SIZE: Final = 3
CHANGED: Final = 1
MISSED: Final = 2
CLIENT_JOURNAL_PAIRS: Final = struct.Struct(f"<{2 * CLIENT_JOURNAL_SIZE}Q")

START_US: Final = 1_735_689_600_000_000
"""The origin of `clock`: 1 January 2025 in UTC, in us since 1970."""

PIN_SHIFT: Final = 21
PIN_MASK: Final = (1 << PIN_SHIFT) - 1
PIN_STEP: Final = 2
"""A pin's counter goes up by this much; it is odd, so that no pin is 0."""
ERA_SHIFT: Final = 64 - PIN_SHIFT
"""The bits of an epoch from here on are its era."""
EPOCH_MASK: Final = (1 << ERA_SHIFT) - 1
INCARNATION_BITS: Final = 36
INCARNATION_MASK: Final = (1 << INCARNATION_BITS) - 1


def state_word(state: int, pid: int, incarnation: int) -> int:
    return state << 60 | pid << INCARNATION_BITS | incarnation


def client_id(slot: int, word: int) -> int:
    """The id of the client whose slot, number `slot`, has the state word `word`."""
    return slot << INCARNATION_BITS | word & INCARNATION_MASK


FIELDS: Final = (
    Field(
        "pin: counter",
        1 << PIN_SHIFT - 1,
        A_SECOND_MAX,
        WRAPS,
        "tells two operations of a client apart, for one that looks at it during one wait, and at "
        "its progress word, too",
    ),
    Field(
        "client id: incarnation",
        INCARNATION_MASK,
        10_000,
        WRAPS,
        "begins with 1 again; a word that names a client of 2^36 clients of that slot ago, and "
        "that no client has met since, is taken for the new one's until that one ends",
    ),
)
