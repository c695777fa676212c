"""Results of an attempt at an operation on a store, and its modes. Constants."""

from typing import Final

PUT: Final = 0
INSERT: Final = 1
UPDATE: Final = 2
DELETE: Final = 3
READ: Final = 4
"""Modes of an operation; `_write` is not given the last two."""

DONE: Final = 0
AGAIN: Final = 1
"""Another client was faster: start the operation again."""
NO_MEMORY: Final = 2
EXISTS: Final = 3
MISSING: Final = 4
FULL: Final = 5
"""None of the key's slots is vacant."""
AT_ONCE: Final = 6
"""Start the operation again, without a pause."""
LOGGED_WRITE: Final = 16
"""Nothing has changed: more than one leaf has to be changed, by a transaction with a log."""

ATTEMPTS_PER_CHECK: Final = 4
"""After so many attempts, and as many more each time, a client checks whether the client that it
waits for is alive."""

UNPROVEN: Final = object()
"""The result of a get without a pin that proved nothing."""

BATCH: Final = 32
"""Keys whose reads `get_many` overlaps, in two round trips."""
WINDOW: Final = 16
"""Operations of a pipeline that are done at once, if a program does not say how many."""
WINDOW_MAX: Final = 4096
LEFT: Final = 0
READY: Final = 1
MADE: Final = 2
CONTESTED: Final = 3
"""States of a key in a batch of puts (race/batch.py, fusee/batch_rounds.py)."""
VACANT_CLASS: Final = 0xFF
"""The size class in a slot word that stands for no object."""
