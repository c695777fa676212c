"""Parts of a queue in memory: the counts of open tasks, and the addresses of its slots.

Open tasks (`Tasks`) are elements that consumers have got and are not done with, counted for `join`.

Memory: a line for each participant's row of the queue
    0     open    bits 0-39 elements of the row's participant, bits 40-63 turn
    8     lost    bits 0-39 elements of participants before, bits 40-63 turn

A consumer counts an element before the CAS that takes it from the queue, and takes it off again
when that CAS has failed. So a client that does not see an element in the queue any more sees it
here, until `task_done`. Open elements of a participant that is dead, or has left, are lost. `fold`
adds them to `lost`, and then begins the row's next turn: while the turns of both words are the
same, `open` is not in `lost` yet. The sum of the lost elements never becomes less, so one number
says how many of them were forgotten.

notes.py has the elements themselves, as far as they can be given back.

A row that its process has already, by a forgotten endpoint, keeps its counts.

Numbers that end. A count of open elements stays at COUNT_MAX, which only a process that never calls
`task_done` reaches: as long as that process lives, `join` waits. Counts of lost elements wrap; they
are compared by differences (`lost_since`), of fewer than 2^39. Turns wrap: the words of a process
that was stopped for a multiple of 2^24 turns of its row, exactly, count.

The words are changed by CAS, and the turn is in them: so a process that was declared dead, and goes
on later, does not change the count of its successor.

A kill leaves behind: an element that is counted and was not taken, if the kill was between the two
steps. A kill in `fold`: words of different turns; the next `fold` goes on.

Addresses of slots, and of the links to large elements (`QueueSlots`). Slot s is in stripe s %
stripes, on different memory nodes. Behind a stripe's slots there is a link for each: 0, or a
reference to an object. Links do not move, as a link that is in two places would be freed twice: a
*cell* is a link's number, those of slots first, then those of entries (notes.py). Each slot and
each entry has one cell, its own at first.

    cell, spare   bits 0-27 number of the cell + 1; 0: the own one. Bits 28-63 bits of a ticket
"""

from __future__ import annotations

from array import array
from typing import Any

from limpet.shm.errors import StoreCorrupt
from limpet.stores.channels.layout import CLAIMED, LINE
from limpet.stores.channels.queue.layout import CELL_MASK, COUNT_BITS


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


TURN_SHIFT = COUNT_BITS
COUNT_MASK = 0xFF_FFFF_FFFF
COUNT_MAX = 0x7F_FFFF_FFFF
TURN_MASK = 0xFF_FFFF
LOST = 8


def lost_since(lost: int, before: int) -> int:
    """How many elements were lost between two of the sums that `counted` returns."""
    more = lost - before & COUNT_MASK
    return more if more <= COUNT_MAX else 0


class Tasks:
    """The counts of all rows, at `address`; ours may be changed after `fold`."""

    def __init__(self, endpoint: Any, address: int) -> None:
        self.endpoint = endpoint
        self.address = address
        self.own = 0
        self.word = 0

    def fold(self, row: int) -> None:
        """Count the open elements of this row, which is ours, as lost. In an operation."""
        at = self.address + row * LINE
        word = self.endpoint.load(at)
        lost = self.endpoint.load(at + LOST)
        following = (word >> TURN_SHIFT) + 1 & TURN_MASK
        if lost >> TURN_SHIFT == word >> TURN_SHIFT:
            count = (lost & COUNT_MASK) + (word & COUNT_MASK) & COUNT_MASK
            # CRASH(folding): counted as lost, and not as open, as the turns show.
            self.endpoint.cas(at + LOST, lost, following << TURN_SHIFT | count)
        self.own = at
        self.word = following << TURN_SHIFT
        self.endpoint.cas(at, word, self.word)

    def go_on(self, row: int) -> None:
        """Read the counts of this row, which are ours. In an operation."""
        self.own = self.address + row * LINE
        self.word = self.endpoint.load(self.own)

    def more(self) -> int:
        """Our word with one more as open."""
        return self.word + (self.word & COUNT_MASK < COUNT_MAX)

    def fewer(self) -> int:
        """Our word with one fewer as open, unless there were too many to count."""
        return self.word - (self.word & COUNT_MASK < COUNT_MAX)

    def post(self, word: int) -> int:
        """Post that our word becomes this one; the ticket."""
        return self.endpoint.post_cas(self.own, self.word, word)

    def is_done(self, ticket: int, word: int) -> bool:
        """After the phase of `post`: whether it did; False: we were declared dead, and have to join
        again."""
        if self.endpoint.result(ticket) != self.word:
            return False
        self.word = word
        return True

    def end(self) -> bool:
        """Count one fewer as open, in a phase of its own; False: as `is_done`."""
        word = self.fewer()
        ticket = self.post(word)
        self.endpoint.wait()
        return self.is_done(ticket, word)

    def ours(self) -> int:
        """How many of ours are open."""
        return self.word & COUNT_MASK

    def counted(self, participants: Any) -> tuple[int, int]:
        """Upper bounds: how many elements of living participants are open, and how many of others
        are lost (modulo 2^40). In an operation; 3 round trips, and more if a participant has died
        with open elements, or a row changes its participant."""
        living = gone = 0
        rows = list(range(participants.count))
        while rows:
            idents = participants.words(rows)
            counts = self._read(rows)
            # ORDER: after the counts, so that they are those of that participant.
            same = participants.words(rows)
            again = []
            for index, row in enumerate(rows):
                ident = idents[index]
                word, lost = counts[2 * index], counts[2 * index + 1]
                count = word & COUNT_MASK
                if same[index] != ident:
                    again.append(row)
                    continue
                if ident and count and word >> TURN_SHIFT == lost >> TURN_SHIFT:
                    if not ident & CLAIMED and participants.lives(ident):
                        living += count
                    # ORDER: the count after the look at the client, which may have been done with
                    # its elements just before it ended.
                    elif self._read([row])[0] != word:
                        again.append(row)
                        continue
                    else:
                        gone += count
                gone += lost & COUNT_MASK
            rows = again
        return living, gone

    def _read(self, rows: list[int]) -> list[int]:
        """The words `open` and `lost` of these rows, in turn. 1 round trip."""
        endpoint = self.endpoint
        tickets = []
        for row in rows:
            at = self.address + row * LINE
            tickets.append(endpoint.post_load(at))
            tickets.append(endpoint.post_load(at + LOST))
        endpoint.wait()
        return [endpoint.result(one) for one in tickets]
