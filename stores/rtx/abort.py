"""Abort: a transaction gives up, by its owner (rTX 4.3, figure 8).

    1    log's state: INIT -> ABORT
    2    for each participant that it has locked: unlock it, to the version from before
    3    log's state = DONE
    4    free the new data

A client that repairs a transaction decides against it in the same way (repair.py), but unlocks to a
new version, as it does not know the one from before. Then line 2 finds nothing to do. A kill leaves
behind a log in ABORT, and locks: recovery, or a client that meets one of them, releases them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpet.stores.rtx.participants import give_back
from limpet.stores.rtx.try_commit import carry_out

if TYPE_CHECKING:
    from limpet.stores.rtx.log import Log
    from limpet.stores.rtx.participant import Participant


def abort(log: Log, participants: list[Participant], state: int) -> None:
    """Abort the transaction with this lock state. `participants`: of which it may have locked
    some."""
    log.take_over()  # line 1
    # CRASH(aborted): locks are held; recovery, or a client that meets them, releases them.
    for participant in participants:
        participant.undo(state)  # line 2
    carry_out(log)  # line 3
    give_back(log, False)  # line 4
