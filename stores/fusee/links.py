"""Names of links of a replicated index in a client's journal, and constants of its log entries.

Each replica of a slot has an address of its own, and its first one may be lost, so the client
journal has the slot's name instead (Heap.settle asks the store then):

    bit 63      ENTRY: it names an entry of a directory (stores/fusee/tables.py), else a slot
    bits 48-59  number of the store's entry in the catalogue; of a BUFFER, bits 48-55 are
    bits 3-47   of a slot: its address in replica 0 of its subtable, whether that is lost or not; of
                an entry: its directory in bits 40-47, and below its offset there
    bit 2       BUFFER: it names neither, and bits 3-47 and above 55 have other uses; so a store of
                BUFFERs has one of the first 256 entries
    bit 1       OLD: the object was linked there when our round began; else it is a proposed one
    bit 0       REPLICATED

A client that has a name in its client journal is pinned, so the subtable is not used again.

A log entry has no counter. The numbers of vacant words in slots count up (stores/core/records.py).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from limpet.shm.endpoint.layout import ENTRIES_MAX
from limpet.stores.core.object_layout import HEADER

OLD: Final = 2
BUFFER: Final = 4
"""No slot: an object that belongs to another object (stores/swarm/key_register.py)."""
BUFFER_ENTRIES: Final = 1 << 8
"""A store that makes BUFFERs has an entry of the catalogue with a number below this."""
ENTRY: Final = 1 << 63
PLACE_BITS: Final = 0xFFFF_FFFF_FFF8
OFFSET_BITS: Final = 0xFF_FFFF_FFF8


class Link(NamedTuple):
    """A slot of a replicated index, or an entry of its directories."""

    entry: int
    place: int
    old: bool

    @classmethod
    def of(cls, link_address: int) -> Link:
        entry = link_address >> 48 & (
            BUFFER_ENTRIES - 1 if link_address & BUFFER else ENTRIES_MAX - 1
        )
        return cls(entry, link_address & PLACE_BITS, bool(link_address & OLD))


def is_slot(link_address: int) -> bool:
    """Whether a replicated link is a slot."""
    return not link_address & BUFFER and not link_address & ENTRY


def is_entry(link_address: int) -> bool:
    """Whether a replicated link is an entry of a directory."""
    return not link_address & BUFFER and link_address & ENTRY != 0


REPLICAS_ROW: Final = 8
"""Places in an array with one word for each replica of a slot."""

BIRTH: Final = 0
DEATH: Final = 8
ENTRY_SIZE: Final = 16
KEY_OFFSET: Final = ENTRY_SIZE + HEADER
"""Offset of the key in an object with a log entry."""

EXPECTED_SIZE: Final = 128
"""So many bytes of a pair are fetched while its slot is read."""

STAMP_SHIFT: Final = 2
BIRTH_MASK: Final = (1 << STAMP_SHIFT) - 1
"""Bits of the word `birth` that are the mark; the others are of the stamp."""

INSERTED: Final = 1
UPDATED: Final = 2

GONE: Final = 1
"""In place of the word that replaced an object, where that word does not matter."""

IDLE: Final = 0
UPDATING: Final = 1
DELETING: Final = 2
INSERTING: Final = 3
SWAPPING: Final = 4

FAILED: Final = -1

RULE_1: Final = 1
RULE_2: Final = 2
RULE_3: Final = 3
LOSE: Final = 4
FINISH: Final = 5
"""Results of `evaluate_rules` (FUSEE algorithm 2)."""
