"""Addresses of a queue's slots, and of the links to its large elements.

Slot s is in stripe s % stripes, on different memory nodes. Behind a stripe's slots there is a link
for each: 0, or a reference to an object. Links do not move, as a link that is in two places would
be freed twice: a *cell* is a link's number, those of slots first, then those of entries (notes.py).
Each slot and each entry has one cell, its own at first.

    cell, spare   bits 0-27 number of the cell + 1; 0: the own one. Bits 28-63 bits of a ticket
"""

from __future__ import annotations

from array import array

from limpet.shm.errors import StoreCorrupt
from limpet.stores.channels.queue.layout import CELL_MASK


class QueueSlots:
    """The slots of a queue: addresses, nothing else."""

    def __init__(
        self,
        name: str,
        bases: list[int],
        maxsize: int,
        stride: int,
        links: int,
        cells: int,
        entries: int,
    ) -> None:
        """`bases`: addresses of the stripes. `stride`: bytes of a slot. `links`: offset of the
        links in a stripe. `cells`: the address of the cells of
        `entries` entries, behind those of the slots."""
        self.name = name
        self.bases = array("Q", bases)
        self.stripes = len(bases)
        self.maxsize = maxsize
        self.stride = stride
        self.links = links
        self.cells = cells
        self.cell_count = maxsize + entries

    def slot(self, number: int) -> int:
        """Address of a slot."""
        if self.stripes == 1:
            return self.bases[0] + number * self.stride
        return self.bases[number % self.stripes] + number // self.stripes * self.stride

    def cell(self, word: int, own: int) -> int:
        """The number of the cell that such a word names."""
        number = word & CELL_MASK
        if number > self.cell_count:
            raise StoreCorrupt(
                f"{self.name} has {self.cell_count} cells of links, and names number {number}: "
                "memory was damaged; remove the queue, and make it anew"
            )
        return number - 1 if number else own

    def link(self, cell: int) -> int:
        """Address of a cell's link."""
        if cell < self.maxsize:
            at = self.links + 8 * (cell // self.stripes)
            return self.bases[cell % self.stripes] + at
        return self.cells + 16 * (cell - self.maxsize)
