"""TryCommit: what was decided is carried out, however often it is tried (rTX 4.3, figure 9).

The text of the paper that we have lacks the figure. It is rebuilt here from section 4.3, which
names lines 1-3, 4-5, 6-7 and 8:

    TryCommit(log):
     1    if log is INIT, or DOING and its lease is over:
     2        CAS the log's state to DOING, with a new lease
     3    if it was not, or the CAS has failed: return False
     4    for mptr, dptr, ndptr in log:
     5        CAS(mptr.pointer, dptr, ndptr)
     6    for mptr, dptr, ndptr in log:
     7        CAS(mptr.LLLock, lock state, unlocked)
     8    log's state = DONE
     9    return True

Lines 1-3 are `Log.decide` for the owner, where the transaction takes effect, and `Log.take_over`
for a client that repairs it, which counts the takeovers so that each of them is a CAS of its own.
Lines 4-8 are `carry_out`; also a log that is DONE already goes through lines 6-7: an owner that was
stopped may have locked another object since (trap R2). A log that is ABORT goes through 6-8. What
is lost with its memory node is passed over.

A kill in lines 4-7 leaves behind a log in DOING, with some objects new and some unlocked: the next
client that meets one of its locks, or recovers the dead client, starts again at line 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpet.shm.errors import NodeFailed
from limpet.stores.rtx.layout import COMMITTED, DOING, STATE_MASK
from limpet.stores.rtx.participants import participants_of

if TYPE_CHECKING:
    from limpet.stores.rtx.log import Log


def carry_out(log: Log) -> bool:
    """Lines 4-8 of figure 9: carry out what is decided; whether it was to commit."""
    state = log.lock_state or log.owner()
    # The owner that has decided it goes through all of it, whoever has taken it over.
    word = DOING if log.decided else log.state()
    commits = word & STATE_MASK == DOING or word & COMMITTED != 0
    participants = participants_of(log)
    count = len(participants)
    # `count` steps of lines 4-5, and then as many of lines 6-7
    done = 0 if word & STATE_MASK == DOING else count
    while done < 2 * count:
        try:
            while done < count:  # line 4
                participant = participants[done]
                participant.publish()  # line 5
                done += 1
            while done < 2 * count:  # line 6
                participant = participants[done - count]
                participant.release(state, commits)  # line 7
                done += 1
        except NodeFailed:
            done += 1  # it is lost with its memory node
    # ORDER: after the locks: else one that is held would have a log that asks for nothing.
    log.finish(commits)  # line 8
    return commits
