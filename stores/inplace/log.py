"""The log of a change in place: all nodes as they will be, whole (DrTM+H's value logging).

An object of its own for each change, with the words of a transaction's log (stores/rtx/log.py),
without lease and takeovers:

    0     owner    id of the client
    8     state    INIT: locks are being taken; DOING: decided, it is carried out
    24    count    entries
    32    entries  24 bytes each: node, old, new
                   node 0: `new` was allocated for the change, or `old` is freed by it
                   else: a node that is locked and changed; `new` is the image of what it will be,
                   `old` its memory if it is given up

An image is an object of the size of a node. New nodes have none: they are written before the log
says DOING.

It is in the owner's hand from before the first lock is taken until all are given back.
"""

from __future__ import annotations

from typing import Any

from limpet.shm.words import ADDRESS_MASK
from limpet.stores.rtx.fields import DOING, STATE
from limpet.stores.rtx.log import Entry, Log, free_entries


class ValueLog(Log):
    """A log, by its owner, or by who recovers that."""

    def __init__(self, store: Any, reference: int) -> None:
        super().__init__(store.node_locks, reference)
        self.node_size = store.parameters.node_size

    def decide(self) -> None:
        """INIT -> DOING."""
        # ORDER: all images before the state that makes them count.
        self.endpoint.store(self.at + STATE, DOING)

    def settle(self) -> bool:
        """Carry out what is decided, or undo it, for a dead owner; whether it was decided.

        Only nodes that it still has locked: others have been changed since. By one client at a
        time, perhaps again after one that was killed at it.
        """
        owner, decided = self.owner(), self.state() == DOING
        entries = self.entries()
        locked = [each for each in entries if each.at and self.locks.holder(each.at) == owner]
        for entry in locked if decided else []:
            image = self.endpoint.read(entry.new & ADDRESS_MASK, self.node_size)
            self.endpoint.write(entry.at, image)
        for entry in locked:
            self.endpoint.cas(self.locks.word(entry.at), owner, 0)
        return decided

    def give_back(self, heap: Any, committed: bool) -> None:
        """Free what the change leaves behind."""
        give_back(heap, self.entries(), committed)


def give_back(heap: Any, entries: list[Entry], committed: bool) -> None:
    """Free what a change with these entries leaves behind: images are of no use any more."""
    free_entries(heap, entries, committed)
    if committed:
        free_entries(heap, [entry for entry in entries if entry.at], False)
