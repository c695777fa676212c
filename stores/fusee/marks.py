"""Constants of the log entry and of rounds. Plain, as compiled modules need them.

Nothing in a log entry counts. Of a slot, the numbers of vacant words do (stores/vacant.py).
"""

from typing import Final

from limpet.stores.object_layout import HEADER

REPLICAS_ROW: Final = 8
"""Places for what is to be known of each replica of a slot."""

BIRTH: Final = 0
DEATH: Final = 8
ENTRY_SIZE: Final = 16
KEY_OFFSET: Final = ENTRY_SIZE + HEADER
"""Where the key of an object with a log entry begins."""

INSERTED: Final = 1
UPDATED: Final = 2

GONE: Final = 1
"""In place of the word that replaced an object, when that is not told from others."""

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
"""What `evaluate_rules` says (FUSEE algorithm 2)."""
