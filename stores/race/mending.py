"""A `race` index after a power cut: `Mending` ends or takes back what was under way.

    undecided inserts     their slots become vacant: no client went by them
    an entry that is not  its halves are given up, and its subtable's slots are not frozen any more.
    split                 No operation that returned went by a half, or it had made the entry's
                          SPLIT persistent (index.py: `locate`); and what it would have found there
                          is in the subtable, whose slots do not change once they are frozen
    an entry that is      nothing: both halves were persistent before (splitter.py)
    split

Each step only takes something away, so a cut or a kill in the midst of it does no harm. Every slot
that is left links to an object that was persistent before the slot was (slots.py).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from limpet.shm.endpoint.words import ADDRESS_MASK, LARGE_CLASS, TENTATIVE
from limpet.shm.errors import NodeFailed
from limpet.stores.race.index import Index, is_split, is_valid
from limpet.stores.race.layout import FROZEN, OBJECT_MASK
from limpet.stores.status import VACANT_CLASS

CLASS: Final = np.uint64(0xFF)
CLASS_OF_FROZEN: Final = np.uint64(0x7F)
UNSETTLED: Final = np.uint64(FROZEN | TENTATIVE)


class Mending:
    """Makes an index whole, with no other client there."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.endpoint = index.endpoint
        self.objects = index.objects
        self.large: dict[int, int] = {}
        """By reference, the bytes of pairs and subtables that take blocks of their own."""

    def run(self) -> dict[int, int]:
        """Make it whole; `large`. What is on a lost node is left."""
        for table in range(self.index.subtables):
            try:
                for number in self.index.roots():
                    self.mend_below(table, number)
            except NodeFailed:
                continue
        return self.large

    def mend_below(self, table: int, number: int) -> None:
        """Make the subtables below an entry whole."""
        pointer = self.endpoint.load(self.index.entry(table, number))
        if is_split(pointer):
            half = self.index.below(number)
            self.mend_below(table, half)
            self.mend_below(table, half + 1)
        else:
            self.give_up_halves(table, number)
            if pointer:
                if pointer >> 48 & 0xFF == LARGE_CLASS:
                    self.large[pointer & OBJECT_MASK] = self.index.subtable_size
                self.mend_slots(pointer & ADDRESS_MASK)

    def give_up_halves(self, table: int, number: int) -> None:
        """Have an entry that is not split for good have no halves."""
        if not number >> self.index.depth_max:
            for half in range(2):
                entry = self.index.entry(table, 2 * number + half)
                if self.endpoint.load(entry):
                    self.endpoint.store(entry, 0)

    def mend_slots(self, base: int) -> None:
        """Make the slots of a subtable whole, and note the pairs that take blocks of their own."""
        words = self.index.slots_of(base).ravel()
        classes = words >> np.uint64(48) & CLASS
        unsettled = (words & UNSETTLED != 0) & (classes != VACANT_CLASS)
        for at in np.flatnonzero(unsettled).tolist():
            if at & 7:
                word = int(words[at])
                self.endpoint.store(base + 8 * at, 0 if word & TENTATIVE else word & ~FROZEN)
        large = (words != 0) & (classes & CLASS_OF_FROZEN == LARGE_CLASS)
        for at in np.flatnonzero(large).tolist():
            word = int(words[at])
            if at & 7 and is_valid(word):
                self.objects.load(word & OBJECT_MASK)
                self.large[word & OBJECT_MASK] = self.objects.bytes_used()
