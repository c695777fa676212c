"""The log of a change in place: whole images of all that it writes (DrTM+H's value logging).

An object of its own for each change, with the words of every log
(stores/transactions/entry_log.py); it has no lease:

    0     owner    id of the client
    8     state    INIT: locks are being taken; DOING: decided, it is carried out
    24    count    entries
    32    entries  24 bytes each: object, old, new
                   object 0: `new` was allocated for the change, or `old` is freed by it
                   else: an object that is locked and changed; `new` is the image of its new
                   contents, or 0, and `old` memory that is given up, or 0

An image is an object of its own, of the same size as its original. None of these words counts up.

It is in the owner's journal, as a log, from before the first lock is taken until all are given
back. The phase in which its header is written has ended then. Its entries are posted before the
locks, on the same memory node, so a client that is killed has no lock that its log lacks. New
memory stays in the client journal until the phase of the entries has ended, too.

In the log of a change of a tree (`NodeLog`) an object is a node. New nodes have no images: they are
written before the log says DOING.
"""

from __future__ import annotations

from typing import Any

from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.stores.transactions.entry_log import EntryLog, LogEntry, free_entries
from limpet.stores.transactions.layout import DOING, STATE


class ValueLog(EntryLog):
    """A log, for its owner or a client that recovers it. `locks`: of the store's objects."""

    def __init__(self, locks: Any, reference: int) -> None:
        EntryLog.__init__(self, locks.client, reference)
        self.locks = locks
        self.place = 0
        """The log's place in its owner's journal."""

    def carry_out(self, locked: list[LogEntry]) -> None:
        """Write the decided images of these entries in place; their objects are still locked."""
        raise NotImplementedError

    def undo(self, locked: list[LogEntry]) -> None:
        """Undo any changes that were made for these entries before the decision."""

    # ---- for the owner --------------------------------------------------------------------------

    def take_up(self, place: int, link: int) -> None:
        """Have the client journal name the log as one, at this place, when the phase has ended in
        which it was opened; `link` names its store there."""
        # ORDER: it is a valid log before the client journal names it as one.
        self.client.retarget(place, link)
        self.place = place

    def named(self) -> None:
        """The phase has ended in which the entries were noted: the log names the memory that is
        behind it in the client journal."""
        # CRASH(noted): it is in the log and in the client journal; recovery frees it.
        self.client.drop_from(self.place + 1)

    def decide(self) -> None:
        """INIT -> DOING; posted."""
        self.words[0] = DOING
        # ORDER: all images before the state that makes them count.
        self.endpoint.post_write(self.at + STATE, self.words, 1)

    def close(self, committed: bool) -> None:
        """Free the log and its leftovers: all is done and unlocked, or nothing has happened."""
        give_back(self.client.heap, self.entries(), committed)
        self.client.release(self.place)

    # ---- for any client -------------------------------------------------------------------------

    def settle(self) -> bool:
        """Carry out the change of a dead owner if it is decided, or undo it; whether it was.

        This touches only objects that the owner still has locked: others may have been changed
        since. One client at a time does this, perhaps again after a client that was killed at it.
        """
        owner, decided = self.owner(), self.state() == DOING
        entries = [entry for entry in self.entries() if entry.at]
        locked = [entry for entry in entries if self.locks.holder(entry.at) == owner]
        if decided:
            self.carry_out(locked)
        else:
            self.undo(locked)
        # ORDER: all of it before the locks.
        for entry in locked:
            self.endpoint.cas(self.locks.word(entry.at), owner, 0)
        return decided

    def give_back(self, heap: Any, committed: bool) -> None:
        """Free the leftovers of the change."""
        give_back(heap, self.entries(), committed)


def give_back(heap: Any, entries: list[LogEntry], committed: bool) -> None:
    """Free the leftovers of a change with these entries, its images among them."""
    free_entries(heap, entries, committed)
    if committed:
        free_entries(heap, [entry for entry in entries if entry.at], False)


class NodeLog(ValueLog):
    """A log of this store."""

    def __init__(self, store: Any, reference: int) -> None:
        ValueLog.__init__(self, store.node_locks, reference)
        self.node_size = store.parameters.node_size

    def carry_out(self, locked: list[LogEntry]) -> None:
        for entry in locked:
            image = self.endpoint.read(entry.new & ADDRESS_MASK, self.node_size)
            self.endpoint.write(entry.at, image)
