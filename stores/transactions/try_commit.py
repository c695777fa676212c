"""TryCommit and abort: the end of a transaction, by its owner or a client that repairs it.

TryCommit carries out what was decided, however often it is tried (rTX 4.3, figure 9).

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
stopped may have locked another object since (trap R2). A log that is ABORT goes through 6-8.
Participants that are lost with their memory node are passed over. Lines 4-7 are one phase, with all
participants: each object is unlocked after its pointer is swung, as both are on one memory node.
Whether others are new already makes no difference to clients, which go by the log until an object
is unlocked. The owner needs no line 8: no client finds its log any more (`Log.hide`), so it frees
the log after line 7. The owner looks at the log once more only if another client was first at some
of its CASes.

A kill in lines 4-7 leaves behind a log in DOING, with some objects new and some unlocked: the next
client that meets one of its locks, or recovers the dead client, starts again at line 1.

`participants_of` a log are those that it names (participant.py).

Abort: the owner gives the transaction up (rTX 4.3, figure 8).

    1    log's state: INIT -> ABORT
    2    for each participant that it has locked: unlock it, to the version from before
    3    free the new data

A client that repairs a transaction decides against it in the same way (repair.py), but unlocks to a
new version, as it does not know the one from before. Then line 2 finds nothing to do. A kill leaves
behind a log in ABORT, and locks: recovery, or a client that meets one of them, releases them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpet.shm.errors import NodeFailed
from limpet.stores.transactions.layout import COMMITTED, DOING, PART, STATE_MASK
from limpet.stores.transactions.participant import Extent
from limpet.stores.transactions.parts import part_at
from limpet.stores.transactions.tx_object import TXObj

if TYPE_CHECKING:
    from limpet.stores.transactions.log import Log
    from limpet.stores.transactions.participant import Participant


def participants_of(log: Log) -> list[Participant]:
    """All participants; the client that has written the log reads none. Raises StoreCorrupt."""
    if log.noted is not None:
        return log.noted
    found: list[Participant] = []
    for entry in log.entries():
        if entry.at > PART:
            found.append(TXObj(log.locks, entry.at, entry.old, entry.new))
        elif entry.at == PART:
            part = part_at(log.endpoint, entry.new)
            part.old = entry.old
            found.append(part)
        else:
            found.append(Extent(entry.old, entry.new))
    return found


def give_back(log: Log, committed: bool) -> None:
    """Free what a transaction leaves behind, but for its log. By its owner, who then closes it,
    or for a dead one."""
    # ORDER: no client finds the log any more before what it names is freed.
    log.hide()
    if log.noted is not None:
        for participant in log.noted:
            participant.free_unlinked(log, committed)
    else:
        # ORDER: all is read before anything is freed.
        left: list[int] = []
        for participant in participants_of(log):
            participant.unlinked(committed, left)
        for reference in left:
            log.client.heap.free(reference)


def carry_out(log: Log) -> bool:
    """Lines 4-8 of figure 9: carry out what is decided; whether it was to commit."""
    state = log.lock_state or log.owner()
    # The owner that has decided it goes through all of it, whether it was taken over or not.
    word = DOING if log.decided else log.state()
    commits = word & STATE_MASK == DOING or word & COMMITTED != 0
    participants = participants_of(log)
    while not _apply(log, participants, state, word & STATE_MASK == DOING, commits):
        pass  # a memory node was lost meanwhile, whose participants are passed over now
    if not log.decided:
        # ORDER: after the locks: else one that is held would have a log that asks for nothing.
        log.finish(commits)  # line 8
    elif not _is_ours(participants):
        # Others have carried it out by the log; or have let go of what it held, as it was, if the
        # log is lost: NodeFailed says so.
        log.state()
    return commits


def _is_ours(participants: list[Participant]) -> bool:
    """After `_apply`, by the owner: whether it has done all of it, and no other client a part."""
    ours = True
    for participant in participants:
        ours = ours and participant.has_applied()
    return ours


def _apply(
    log: Log, participants: list[Participant], state: int, publishes: bool, commits: bool
) -> bool:
    """A phase of its own: lines 4-7, or, if it does not publish, 6-7. False: a memory node was lost
    in it, and it is to be repeated."""
    count = len(participants)
    # `count` steps of lines 4-5, and then as many of lines 6-7
    done = 0 if publishes else count
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
    try:
        log.endpoint.wait()
    except NodeFailed:
        return False
    return True


def abort(log: Log, participants: list[Participant], state: int) -> None:
    """Abort the transaction with this lock state. `participants`: of which it may have locked
    some."""
    log.abort()  # line 1
    # CRASH(aborted): locks are held; recovery, or a client that meets them, releases them.
    for participant in participants:
        participant.undo(state)  # line 2
    while not _apply(log, participants, state, False, False):  # line 2, of slots
        pass
    give_back(log, False)  # line 3
