"""The log of a change in place: all that it writes, as it will be, whole (DrTM+H's value logging).

An object of its own for each change, with the words of every log (stores/entry_log.py); it has no
lease:

    0     owner    id of the client
    8     state    INIT: locks are being taken; DOING: decided, it is carried out
    24    count    entries
    32    entries  24 bytes each: object, old, new
                   object 0: `new` was allocated for the change, or `old` is freed by it
                   else: an object that is locked and changed; `new` is the image of what it will
                   be, or 0, and `old` memory that is given up, or 0

An image is an object of its own, of the size of what it is an image of. None of these words counts.

It is in the owner's journal from before the first lock is taken until all are given back.
"""

from __future__ import annotations

from typing import Any

from limpet.stores.entry_log import Entry, EntryLog, free_entries
from limpet.stores.rtx.layout import DOING, STATE


class ValueLog(EntryLog):
    """A log, by its owner, or by who recovers that. `locks`: those of the store's objects."""

    def __init__(self, locks: Any, reference: int) -> None:
        super().__init__(locks.client, reference)
        self.locks = locks
        self.place = 0
        """In its owner's journal."""

    def carry_out(self, locked: list[Entry]) -> None:
        """Write in place what is decided, of these entries, whose objects are locked still."""
        raise NotImplementedError

    def undo(self, locked: list[Entry]) -> None:
        """Undo, of these entries, what was done before it was decided, if anything was."""

    # ---- the owner's ----------------------------------------------------------------------------

    def take_up(self, place: int, link: int) -> None:
        """Begin to write it. It is at this place of the client journal; `link` names its store
        there."""
        self.open(self.client.ident)
        # ORDER: it is one before the client journal says so.
        self.client.retarget(place, link)
        self.place = place

    def add(self, entry: Entry, index: int = -1) -> None:
        """Append an entry; what it has at that place of the client journal is in the log from then
        on."""
        self.note(entry)
        if index >= 0:
            # CRASH(noted): it is in the log and in the client journal; recovery frees it.
            self.client.drop(index)

    def decide(self) -> None:
        """INIT -> DOING."""
        # ORDER: all images before the state that makes them count.
        self.endpoint.store(self.at + STATE, DOING)

    def close(self, committed: bool) -> None:
        """All is done and unlocked, or nothing has happened: free the log, and what it leaves."""
        give_back(self.client.heap, self.entries(), committed)
        self.client.release(self.place)

    # ---- any client's
    # ------------------------------------------------------------------------------

    def settle(self) -> bool:
        """Carry out what is decided, or undo it, for a dead owner; whether it was decided.

        Only objects that it still has locked: others have been changed since. By one client at a
        time, perhaps again after one that was killed at it.
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
        """Free what the change leaves behind."""
        give_back(heap, self.entries(), committed)


def give_back(heap: Any, entries: list[Entry], committed: bool) -> None:
    """Free what a change with these entries leaves behind: images are of no use any more."""
    free_entries(heap, entries, committed)
    if committed:
        free_entries(heap, [entry for entry in entries if entry.at], False)
