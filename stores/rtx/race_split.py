"""A subtable of `rtx-race` is split by one transaction (rTX section 5).

A client that finds no room, or a frozen slot, splits the subtable by a
transaction with a log (stores/rtx/commit.py) that writes three objects,

    the entry           from the subtable to a vacant word, which says that it is split
    the two halves      from 0 to new subtables

Both halves come first in the order of addresses, so they are there when the entry is split.

The paper has inserts look at the lock before they work on the subtable. That is not enough (trap
R7): one that stands still between the look and its CAS writes to a subtable that has been copied,
and its pair is lost, or seen and then lost. Here the slots of the old subtable are frozen
(race/splitter.py) before they are copied, so a CAS that comes late fails, and no client needs to
look at the lock. Readers go on all the time.

A frozen slot cannot be written to before the split is done, so nothing is frozen before that is
certain (R13): it is decided first, and the transaction has all memory that it takes in its log by
then. A client that carries a decided split out, its owner or another one, does all of

    1. freeze each slot of the old subtable. One that a transaction of a user holds
       (hash_slots.py) is let go of first: that transaction is aborted, or carried out
    2. CAS each slot of the halves that gets a pair from UNSET to what the frozen slot at the same
       place says. The others stay UNSET, which is vacant to all who use a half
    3. swing the pointers, and release the locks, as of every transaction (stores/rtx/log.py)

Any number of clients may be at it, as in race/splitter.py, and none of it takes memory. Before a
split is decided, its owner looks whether a slot is held, and gives way to the transaction that
holds it.

A kill leaves behind: the log in the client journal (stores/rtx/log.py). Recovery gives the halves
back, if it was not decided; else it carries the split out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from limpet.shm.endpoint.words import ADDRESS_MASK, HELD, HELD_MASK
from limpet.shm.errors import StoreCorrupt
from limpet.stores.race.index import Index, Place
from limpet.stores.race.layout import DIRECTORY_ENTRY, UNSET
from limpet.stores.race.splitter import Splitter
from limpet.stores.rtx.commit import Commit
from limpet.stores.rtx.layout import LOCKED, POINTER, SLOT
from limpet.stores.status import AGAIN, DONE

if TYPE_CHECKING:
    from limpet.stores.rtx.log import Log

SLOTS_PER_OBJECT: Final = 8
"""A slot takes so many times less than an object of a transaction, for the lease."""


class TransactionSplitter(Splitter):
    """Splits each subtable by a transaction."""

    def __init__(self, pool: Any, index: Index, parameters: Any, store: Any) -> None:
        super().__init__(pool, index, parameters)
        self.locks = store.locks
        self.repair = store.repair
        self.link = store.link
        self.objects_needed = 3
        """Two halves, and the log, which takes memory of the same size."""

    def wait(self, busy: int, table: int, attempt: int) -> None:
        self.repair.stay(busy, attempt, True)

    def split(self, place: Place) -> int:
        commit = Split(self, place.pointer)
        for number in (place.number, 2 * place.number, 2 * place.number + 1):
            at = self.index.entry(place.table, number) - POINTER
            version = self.endpoint.load(at)
            if version & LOCKED:
                place.busy = at
                return AGAIN
            commit.expect(at, version)
            if number == place.number:
                commit.write(at, None)
            else:
                commit.write(at, Half(self, number))
        # ORDER: after the versions: it was not split in any of them.
        if not self.is_current(place):
            return DONE
        outcome = commit.run()
        place.busy = commit.busy or place.entry - POINTER
        return int(outcome)

    def is_current(self, place: Place) -> bool:
        """Whether a key's subtable has not been split since it was chosen."""
        return self.endpoint.load(place.entry) == place.pointer

    def fill_halves(self, parent: Any, halves: dict[int, int]) -> None:
        """Freeze the subtable that a decided split takes from the entry of `parent`, and have its
        pairs in the halves; `halves`: their pointers, by the objects of their entries."""
        index = self.index
        number, first, second = 0, 0, 0
        for table, directory in enumerate(index.tables):
            if 0 <= parent.at - directory < index.directory_size:
                number = index.entries - (parent.at - directory) // DIRECTORY_ENTRY
                first = index.entry(table, 2 * number) - POINTER
                second = index.entry(table, 2 * number + 1) - POINTER
        if first not in halves or second not in halves:
            raise StoreCorrupt(f"{index.name}: the log of a split of {parent.at:#x} is damaged")
        first, second = halves[first] & ADDRESS_MASK, halves[second] & ADDRESS_MASK
        # CRASH(split-decided): recovery, or whoever meets a lock when the lease is over, goes on.
        attempt = 0
        while held := self.freeze(parent.old):
            if not self.repair.clear_slot(held):
                attempt += 1
                self.endpoint.pause(attempt)
                self.pool.membership.progress()
        self.fill_pairs(int(number).bit_length() - 1, first, second)

    def first_held(self, pointer: int) -> int:
        """The first slot of a subtable that a transaction holds, or 0."""
        base = pointer & ADDRESS_MASK
        held = self.index.slots_of(base) & np.uint64(HELD_MASK) == HELD
        held[:, :, 0] = False  # headers of buckets
        found = np.flatnonzero(held)
        return base + 8 * int(found[0]) if len(found) else 0


class Half:
    """The new subtable of a half, of this number in its directory."""

    def __init__(self, splitter: TransactionSplitter, number: int) -> None:
        self.splitter = splitter
        self.number = number
        self.size = int(splitter.index.subtable_size)

    def write(self, address: int, state: int) -> None:
        """Write it there with nothing in it, to be filled when the split is decided."""
        filled = self.splitter.filled(self.number, UNSET)
        self.splitter.endpoint.write_words(address, filled, len(filled))


class Split(Commit):
    """The transaction that splits a subtable."""

    def __init__(self, splitter: TransactionSplitter, old: int) -> None:
        super().__init__(splitter.pool, splitter.locks)
        self.allocator = splitter.allocator
        self.begin(splitter.link)
        self.splitter = splitter
        self.old = old
        self.effort = int(splitter.index.subtable_size) // 8 // SLOTS_PER_OBJECT

    def complete(self) -> bool:
        held = self.splitter.first_held(self.old)
        if held:
            self.busy = held | SLOT
        return not held

    def carry_out(self, log: Log) -> None:
        self.splitter.repair.store.carry_out(log)
