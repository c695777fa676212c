"""What consumers of a queue hold until they are done with it, so that it can be given back.

A slot is used again soon after its element was taken. So a consumer notes the element in an entry
of its row before it takes it, and clears the entry after `task_done`, the oldest first. Entries of
consumers that have died, or left, stay until they are forgotten.

Memory, behind the counts of the region `.tasks` (tasks.py): of each row `keep` entries, rows at
multiples of a line; then two words for each entry, its link and its spare cell.
    0     state        bits 0-2 see below, bits 3-63 ticket + 1; 0: there is none
    8     size         bytes of the element
    16    cell         of a large one: the slot's word `cell`, as it was
    24    before       the row's word `open` before the last `begin`, or before `task_done`
    32    data         of one that is not large

    PENDING  noted, not taken as far as this says
    TAKEN    of the row's participant, which is not done with it
    CLOSING  the same, unless `open` is not `before` any more: then it is done with
    LOST     of one that was in this row before

Taking     READY(r) -> FREE(r + 1, own row); PENDING -> TAKEN; FREE(r + 1, row) -> FREE(r + 1)
A client that wants to put at FREE(r + 1, row), or asks what that consumer has, does the rest for
it. So a slot says who took its element until the entry says it; an entry that is PENDING while its
slot does not name the row was not taken. No element is both in the queue and in an entry that
counts.

Links do not move, as a link that is in two places would be freed twice: a *cell* is a link's
number, slots' first, then entries'. Each slot and each entry has one, its own at first. When a
large element is taken, its slot's cell goes to the entry, for the entry's spare one.
    cell, spare   bits 0-27 number of the cell + 1; 0: the own one. Bits 28-63 bits of a ticket
The bits of the ticket are other ones at each change: a CAS that comes late changes nothing, unless
it comes a multiple of 2^36 tickets late, exactly, and the same cell is there again.

A consumer that has more open elements than entries has the newest of them there; so has one that
never says `task_done`, of those that it got last. The others are counted only. Entries with lost
elements are not used for others; who joins takes a row without them, if there is one.

A kill leaves behind: an entry that is PENDING, or CLOSING, see above; an entry whose link is
0, which is being cleared; and `fold` goes on where it was cut. Cut by a signal handler: `unsure` is
set, and what is in memory is looked at again (`reload`).
"""

from __future__ import annotations

from typing import Any, Final

from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.shm.errors import StoreCorrupt
from limpet.stores.channels.channel import Channel
from limpet.stores.channels.layout import CLAIMED, LINE
from limpet.stores.channels.queue_layout import (
    BEFORE,
    CELL,
    CELL_MASK,
    CELL_SHIFT,
    CLOSING,
    ENTRY_CELL,
    ENTRY_DATA,
    FREE,
    KEPT_MAX,
    KIND,
    LOST,
    OWNER_MASK,
    OWNER_SHIFT,
    PART,
    PENDING,
    ROUND_MASK,
    ROUND_SHIFT,
    SIZE,
    TAG_MASK,
    TAKEN,
    TICKET_SHIFT,
)
from limpet.stores.channels.regions.region import Links
from limpet.stores.channels.tasks import Tasks

assert SIZE < ENTRY_CELL < BEFORE < ENTRY_DATA
assert PENDING < TAKEN < CLOSING < LOST <= KIND == (1 << TICKET_SHIFT) - 1
MAXSIZE_MAX: Final = 1 << CELL_SHIFT - 1


def entries_for(rows: int, item_size: int, memory: int) -> tuple[int, int]:
    """Entries of a row, and bytes of an element that lies in one, so that all fit `memory`."""
    each = memory // PART // rows - 2 * LINE
    entry = ENTRY_DATA + 16
    keep = min(KEPT_MAX, max(1, each // (entry + (item_size + 7 & ~7))))
    return keep, max(8, min(item_size, (each // keep - entry) & ~7))


class Kept(Channel):
    """A queue's entries, and what they need to know of its places."""

    maxsize: int
    item_size: int
    keep: int
    stride: int
    stripes: int
    links: int
    bases: Any
    header: Any

    def have_entries(self, rows: int) -> None:
        """Obtain the region of counts and entries. Not within an operation."""
        self.entry_size = ENTRY_DATA + (self.item_size + 7 & ~7)
        self.row_size = (self.keep * self.entry_size + LINE - 1) // LINE * LINE
        first = rows * (LINE + self.row_size)
        count = rows * self.keep
        links = Links(first, 16, count)
        at = self.region("tasks", first + 16 * count, links=links)
        self.tasks = Tasks(self.endpoint, at)
        self.entries = at + rows * LINE
        self.cells = at + first
        self.cell_count = self.maxsize + count
        self.held: list[int] = []
        """Numbers of our row's entries that are TAKEN, the oldest first."""
        self.vacant: list[int] = []
        """Numbers of those in which there is nothing."""
        self.unsure = False
        """An operation was cut: `held`, `vacant` and memory may differ."""

    # ---- addresses ------------------------------------------------------------------------------

    def _slot(self, number: int) -> int:
        """Address of a slot."""
        if self.stripes == 1:
            return self.bases[0] + number * self.stride
        return self.bases[number % self.stripes] + number // self.stripes * self.stride

    def _entry(self, row: int, number: int) -> int:
        """Address of an entry."""
        return self.entries + row * self.row_size + number * self.entry_size

    def _spare(self, row: int, number: int) -> int:
        """Address of an entry's word `spare`."""
        return self.cells + 16 * (row * self.keep + number) + 8

    def _cell(self, word: int, own: int) -> int:
        """The number of the cell that such a word names."""
        number = word & CELL_MASK
        if number > self.cell_count:
            raise StoreCorrupt(
                f"{self!r} has {self.cell_count} cells of links, and names number {number}: memory "
                "was damaged; remove the queue, and make it anew"
            )
        return number - 1 if number else own

    def _link(self, cell: int) -> int:
        """Address of a cell's link."""
        if cell < self.maxsize:
            at = self.links + 8 * (cell // self.stripes)
            return self.bases[cell % self.stripes] + at
        return self.cells + 16 * (cell - self.maxsize)

    # ---- a consumer's own, in an operation ------------------------------------------------------

    def _note(self, ticket: int, data: bytes, cell: int) -> int:
        """Note an element that we are about to take: the number of the entry + 1, or 0.

        `cell`: the word `cell` of its slot. A consumer without an empty entry gives up its oldest.
        """
        self.unsure = True
        if not self.vacant and self.held:
            number = self.held[0]
            at = self._entry(self.own_row, number)
            self._clear(self.own_row, number, self.endpoint.load(at))
            del self.held[0]
            self.vacant.append(number)
        elif not self.vacant:
            # All are lost ones' of others; perhaps these were forgotten meanwhile.
            self.reload()
            self.unsure = True
        if not self.vacant:
            return 0
        number = self.vacant.pop()
        header = self.header
        header[0] = ticket + 1 << TICKET_SHIFT | PENDING
        header[1] = len(data)
        header[2] = cell
        header[3] = self.tasks.word
        at = self._entry(self.own_row, number)
        if len(data) > self.item_size:
            self.endpoint.write_words(at, header, 4)
        else:
            self.endpoint.write_gather(at, header, 4, data, b"")
        return number + 1

    def _noted(self, number: int, slot: int, ticket: int, word: int) -> None:
        """The element that is noted in that entry of ours was taken; its slot has `word`."""
        self._settle(self.own_row, number, ticket, slot)
        # CRASH(named): in the entry, and the slot still names us; whoever puts there ends that.
        self.endpoint.cas(slot, word, word & ~(OWNER_MASK << OWNER_SHIFT))
        self.held.append(number)
        self.unsure = False

    def _not_noted(self, number: int) -> None:
        """The element that is noted there was not taken."""
        # The entry is written over by the next one.
        self.vacant.append(number)
        self.unsure = False

    def _settle(self, row: int, number: int, ticket: int, slot: int) -> None:
        """What that entry has noted was taken: let it say so. Anybody may, while the slot names the
        row, and several at the same time."""
        endpoint = self.endpoint
        at = self._entry(row, number)
        noted = ticket + 1 << TICKET_SHIFT | PENDING
        if endpoint.load(at + SIZE) > self.item_size:
            cell = endpoint.load(at + ENTRY_CELL)
            own = self.maxsize + row * self.keep + number
            spare = self._cell(endpoint.load(self._spare(row, number)), own)
            # ORDER: the state after these: they are of the same element.
            if endpoint.load(at) != noted:
                return
            tag = ticket + 1 & TAG_MASK
            endpoint.cas(slot + CELL, cell, tag << CELL_SHIFT | spare + 1)
        # CRASH(swapped): the slot has the other cell; the entry is still PENDING.
        # ORDER: the slot's cell before the entry's state, and that before the slot's word.
        endpoint.cas(at, noted, noted ^ PENDING ^ TAKEN)

    def _finish(self, place: int, slot: int, word: int) -> None:
        """Do the rest for the consumer that has taken what was there before `word` was FREE."""
        row = (word >> OWNER_SHIFT & OWNER_MASK) - 1
        before = (word >> ROUND_SHIFT) - 1 & ROUND_MASK
        if row < self.rows:
            for number in range(self.keep):
                noted = self.endpoint.load(self._entry(row, number))
                ticket = (noted >> TICKET_SHIFT) - 1
                if (
                    noted & KIND == PENDING
                    and ticket % self.maxsize == place
                    and ticket // self.maxsize & ROUND_MASK == before
                ):
                    self._settle(row, number, ticket, slot)
        self.endpoint.cas(slot, word, word & ~(OWNER_MASK << OWNER_SHIFT))

    def _was_taken(self, row: int, word: int) -> bool:
        """Whether what an entry of that row, of this state, has noted was taken by its consumer;
        if it was, the entry says so afterwards."""
        ticket = (word >> TICKET_SHIFT) - 1
        place = ticket % self.maxsize
        slot = self._slot(place)
        there = self.endpoint.load(slot)
        following = ticket // self.maxsize + 1 & ROUND_MASK
        taken = following << ROUND_SHIFT | row + 1 << OWNER_SHIFT | FREE
        if there != taken:
            return False
        self._finish(place, slot, there)
        return True

    def _close(self) -> bool:
        """Count one element as done with; False: we were taken for dead."""
        number = -1
        if self.held and len(self.held) >= self.tasks.ours():
            self.unsure = True
            number = self.held[0]
            at = self._entry(self.own_row, number)
            word = self.endpoint.load(at)
            self.endpoint.store(at + BEFORE, self.tasks.word)
            # ORDER: before the count: an entry that is TAKEN is not done with.
            self.endpoint.store(at, word & ~KIND | CLOSING)
        # LINEARIZES: it is done with.
        # CRASH(done): those who join look after a while.
        if not self.tasks.end():
            return False
        if number >= 0:
            # CRASH(closed): done with, by the count; the entry is cleared by who has the row next.
            self._clear(self.own_row, number, word & ~KIND | CLOSING)
            del self.held[0]
            self.vacant.append(number)
            self.unsure = False
        return True

    def _clear(self, row: int, number: int, word: int) -> bool:
        """Let go of what an entry has, if its state is `word`; whether that was so.

        Several may try: each step is a CAS that does nothing the second time.
        """
        endpoint = self.endpoint
        at = self._entry(row, number)
        if endpoint.load(at + SIZE) > self.item_size:
            ticket = (word >> TICKET_SHIFT) - 1
            cell = self._cell(endpoint.load(at + ENTRY_CELL), ticket % self.maxsize)
            spare_at = self._spare(row, number)
            spare = endpoint.load(spare_at)
            link = self._link(cell)
            reference = endpoint.load(link)
            # ORDER: the state after these: else the cell may be another's by now.
            if endpoint.load(at) != word:
                return False
            if reference:
                index = self.client.hold(reference, link)
                if endpoint.cas(link, reference, 0) == reference:
                    self.client.release(index)
                else:
                    self.client.keep(index)
            # CRASH(emptied): an entry whose link is 0 has no element.
            tag = ticket + 1 & TAG_MASK
            endpoint.cas(spare_at, spare, tag << CELL_SHIFT | cell + 1)
        return bool(endpoint.cas(at, word, 0) == word)

    def reload(self) -> None:
        """Have our row's entries as they are in memory, and our count as it says. In an operation.

        What was noted by an operation that was cut, and not taken, is not counted as open.
        """
        endpoint, row = self.endpoint, self.own_row
        self.tasks.go_on(row)
        tickets = []
        self.held.clear()
        self.vacant.clear()
        for number in range(self.keep):
            at = self._entry(row, number)
            word = endpoint.load(at)
            before = endpoint.load(at + BEFORE)
            kind = word & KIND
            if kind == PENDING:
                if self._was_taken(row, word) or endpoint.load(at) != word:
                    kind = TAKEN
                else:
                    endpoint.cas(at, word, 0)
                    kind = 0
                    if self.tasks.word == before + 1:
                        self.tasks.end()
            elif kind == CLOSING:
                if self.tasks.word == before:
                    endpoint.cas(at, word, word & ~KIND | TAKEN)
                    kind = TAKEN
                else:
                    self._clear(row, number, word)
                    kind = 0
            if kind == TAKEN:
                tickets.append((word >> TICKET_SHIFT, number))
            elif kind == 0:
                self.vacant.append(number)
        self.held.extend([number for _, number in sorted(tickets)])
        self.unsure = False

    def fold(self) -> None:
        """What is in the entries of our row, and not done with, is lost. In an operation."""
        row = self.own_row
        for number in range(self.keep):
            at = self._entry(row, number)
            word = self.endpoint.load(at)
            if word & KIND == PENDING:
                if not self._was_taken(row, word):
                    self.endpoint.cas(at, word, 0)
                word = self.endpoint.load(at)
            if word & KIND == CLOSING and self._is_closed(row, number):
                self._clear(row, number, word)
            elif word & KIND in (TAKEN, CLOSING):
                # CRASH(lost): LOST, and counted as open of one who is dead; both are lost.
                self.endpoint.cas(at, word, word & ~KIND | LOST)
        self.tasks.fold(row)

    def _is_closed(self, row: int, number: int) -> bool:
        """Whether an entry that is CLOSING is done with."""
        before = self.endpoint.load(self._entry(row, number) + BEFORE)
        return self.endpoint.load(self.tasks.address + row * LINE) != before

    # ---- what was lost, in an operation ---------------------------------------------------------

    def suits(self, row: int, level: int) -> bool:
        """Whether a row's entries are there for us: all of them, or (1) any."""
        there = [bool(self.endpoint.load(self._entry(row, one))) for one in range(self.keep)]
        return level > 1 or (not all(there) if level else not any(there))

    def vacates(self, row: int, last: bool) -> bool:
        return last or self.suits(row, 1)

    def _lost(self) -> list[tuple[int, int, int, Any]]:
        """Row, number, state and element of all entries of lost ones, in the order of tickets; an
        entry that somebody has begun to clear has no element, but None."""
        found = []
        for row in range(self.rows):
            for number in range(self.keep):
                one = self._lost_in(row, number)
                if one is not None:
                    found.append((row, number, one[0], one[1]))
        return sorted(found, key=_ticket)

    def _lost_in(self, row: int, number: int) -> Any:
        """State and element of an entry, if it is a lost one's."""
        endpoint = self.endpoint
        at, seat = self._entry(row, number), self.seats + 8 * row
        while True:
            ident = endpoint.load(seat)
            word = endpoint.load(at)
            kind = word & KIND
            if kind == 0:
                return None
            if kind != LOST:
                if ident and not ident & CLAIMED and self.lives(ident):
                    return None
                if kind == PENDING:
                    if not self._was_taken(row, word) and endpoint.load(at) == word:
                        return None
                    continue
                if kind == CLOSING and self._is_closed(row, number):
                    return None
            data = self._noted_element(at, word)
            # ORDER: after all: it is of that participant, and that element.
            if endpoint.load(at) == word and (kind == LOST or endpoint.load(seat) == ident):
                return word, data

    def _noted_element(self, at: int, word: int) -> Any:
        """The element in an entry; None: it is being cleared."""
        size = self.endpoint.load(at + SIZE)
        if size <= self.item_size:
            return self.endpoint.read(at + ENTRY_DATA, size)
        own = ((word >> TICKET_SHIFT) - 1) % self.maxsize
        cell = self._cell(self.endpoint.load(at + ENTRY_CELL), own)
        reference = self.endpoint.load(self._link(cell))
        # ORDER: the state after the link: else that may be of another element.
        if not reference or self.endpoint.load(at) != word:
            return None
        return self.endpoint.read(reference & ADDRESS_MASK, size)

    def _forget(self, row: int, number: int, word: int) -> None:
        """Clear an entry of `_lost`, whatever it is called by now."""
        at = self._entry(row, number)
        while not self._clear(row, number, word):
            now = self.endpoint.load(at)
            if now >> TICKET_SHIFT != word >> TICKET_SHIFT:
                return  # somebody else has
            word = now


def _ticket(one: tuple[int, int, int, Any]) -> int:
    return one[2] >> TICKET_SHIFT
