"""The participants of a transaction, as its log has them (participant.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpet.stores.rtx.extents import Extent
from limpet.stores.rtx.layout import PART
from limpet.stores.rtx.parts import part_at
from limpet.stores.rtx.tx_object import TXObj

if TYPE_CHECKING:
    from limpet.stores.rtx.log import Log
    from limpet.stores.rtx.participant import Participant


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
