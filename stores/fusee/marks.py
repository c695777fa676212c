"""Constants of the log entry and of rounds. Plain, as compiled modules need them.

A log entry has no counter. The numbers of vacant words in slots count up (stores/vacant.py).
"""

from typing import Final

from limpet.stores.object_layout import HEADER

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

FAILED: Final = -1

RULE_1: Final = 1
RULE_2: Final = 2
RULE_3: Final = 3
LOSE: Final = 4
FINISH: Final = 5
"""Results of `evaluate_rules` (FUSEE algorithm 2)."""
