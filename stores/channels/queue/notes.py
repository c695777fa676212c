"""Notes of a queue's consumers: elements that each has got and is not done with.

A slot is used again soon after its element was taken. So a consumer notes the element in an entry
of its row before it takes it, and clears the entry after `task_done`, the oldest first. Entries of
consumers that have died, or left, stay until they are forgotten: their elements can be given back.

Memory, behind the counts of the region `.tasks` (tasks.py): of each row `keep` entries, rows at
multiples of a line; then two words for each entry, its link and its spare cell (tasks.py).
    0     state        bits 0-2 see below, bits 3-63 ticket + 1; 0: there is none
    8     size         bytes of the element
    16    cell         of a large element: the slot's word `cell`, as it was
    24    before       the row's word `open` before the last `begin`, or before `task_done`
    32    data         of an element that is not large

    PENDING  noted; the slot says whether it was taken
    TAKEN    the row's participant has it, and is not done with it
    CLOSING  the same as long as `open` is `before`; else it is done with
    LOST     an earlier participant of this row had it

Taking     READY(r) -> FREE(r + 1, own row); PENDING -> TAKEN; FREE(r + 1, row) -> FREE(r + 1)
A client that wants to put at FREE(r + 1, row), or looks at that consumer's entries, does the rest
for it. So the slot names the row that took its element until the entry is TAKEN; if an entry is
PENDING and its slot does not name the row, the element was not taken. No element is both in the
queue and in an entry that counts.

When a large element is taken, its slot and the entry exchange cells: the slot gets the entry's
spare cell. The bits of a ticket in those words differ at each change: a late CAS changes nothing,
unless it is a multiple of 2^36 tickets late, exactly, and the same cell is there again.

A consumer with more open elements than entries has the newest of them noted; one that never calls
`task_done` has the last that it got. The others are only counted. Entries with lost elements are
not used again; a client that joins takes a row without them, if there is one.

A kill leaves behind: an entry that is PENDING, or CLOSING, see above; an entry whose link is 0,
which is being cleared; and `fold` half done, which the next `fold` goes on with. After a cut by a
signal handler `unsure` is set, and the state is read again from memory (`reload`).
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.stores.channels.layout import CLAIMED, LINE
from limpet.stores.channels.participants import Participants
from limpet.stores.channels.phases import cas_alone, load_alone
from limpet.stores.channels.queue.layout import (
    BEFORE,
    CELL,
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
from limpet.stores.channels.queue.tasks import QueueSlots, Tasks
from limpet.stores.channels.regions.links import unlink_from

assert SIZE < ENTRY_CELL < BEFORE < ENTRY_DATA
assert PENDING < TAKEN < CLOSING < LOST <= KIND == (1 << TICKET_SHIFT) - 1
MAXSIZE_MAX: Final = 1 << CELL_SHIFT - 1


def entries_for(rows: int, item_size: int, memory: int) -> tuple[int, int]:
    """Entries of a row, and bytes of an element that lies in one, so that all fit `memory`."""
    each = memory // PART // rows - 2 * LINE
    entry = ENTRY_DATA + 16
    keep = min(KEPT_MAX, max(1, each // (entry + (item_size + 7 & ~7))))
    return keep, max(8, min(item_size, (each // keep - entry) & ~7))


def row_size(keep: int, item_size: int) -> int:
    """Bytes of a row of `keep` entries."""
    return (keep * (ENTRY_DATA + (item_size + 7 & ~7)) + LINE - 1) // LINE * LINE


class Notes:
    """The entries of all rows; a client changes those of its own row."""

    def __init__(
        self,
        participants: Participants,
        slots: QueueSlots,
        tasks: Tasks,
        entries: int,
        keep: int,
        item_size: int,
    ) -> None:
        """`entries`: the address of the first row's. `keep`: entries of a row. `item_size`: bytes
        of an element up to which it lies in its entry."""
        self.participants = participants
        self.slots = slots
        self.tasks = tasks
        self.client = participants.client
        self.endpoint = participants.endpoint
        self.entries = entries
        self.keep = keep
        self.item_size = item_size
        self.entry_size = ENTRY_DATA + (item_size + 7 & ~7)
        self.row_size = row_size(keep, item_size)
        self.header = array("Q", [0, 0, 0, 0])
        self.states = array("Q", bytes(8 * keep))
        self.sizes = array("Q", bytes(8 * keep))
        """State and size of our row's entries, as we have written them, or read them last."""
        self.taken: list[int] = []
        """Numbers of our row's entries that are TAKEN, the oldest first."""
        self.empty: list[int] = []
        """Numbers of its empty entries."""
        self.unsure = False
        """An operation was cut off: `taken`, `empty` and memory may differ."""

    def entry(self, row: int, number: int) -> int:
        """Address of an entry."""
        return self.entries + row * self.row_size + number * self.entry_size

    def _own_cell(self, row: int, number: int) -> int:
        """The number of an entry's own cell."""
        return self.slots.maxsize + row * self.keep + number

    def _spare(self, row: int, number: int) -> int:
        """Address of an entry's word `spare`, behind the link of its own cell."""
        return self.slots.link(self._own_cell(row, number)) + 8

    # ---- a consumer's own, in an operation ------------------------------------------------------

    def note(self, row: int, ticket: int, data: bytes, cell: int) -> int:
        """Post the note of an element that we are about to take: the number of the entry + 1, or 0.

        `cell`: the word `cell` of its slot. A consumer without an empty entry gives up its oldest.
        """
        self.unsure = True
        if not self.empty and self.taken:
            number = self.taken[0]
            at = self.entry(row, number)
            if self.sizes[number] > self.item_size:
                self._clear(row, number, self.states[number])
            else:
                # ORDER: before the entry is written over, on the same node.
                self.endpoint.post_cas(at, self.states[number], 0)
            del self.taken[0]
            self.empty.append(number)
        elif not self.empty:
            # All entries have lost elements; perhaps these were forgotten meanwhile.
            self.reload(row)
            self.unsure = True
        if not self.empty:
            return 0
        number = self.empty.pop()
        header = self.header
        header[0] = ticket + 1 << TICKET_SHIFT | PENDING
        header[1] = len(data)
        header[2] = cell
        header[3] = self.tasks.word
        self.states[number] = header[0]
        self.sizes[number] = header[1]
        self.endpoint.post_gather(
            self.entry(row, number), header, 4, b"" if len(data) > self.item_size else data, b""
        )
        return number + 1

    def mark_taken(self, row: int, number: int, slot: int, ticket: int, word: int) -> None:
        """The element that is noted in that entry of ours was taken; its slot has `word`. In the
        background: other clients do it for us, should we die before."""
        endpoint = self.endpoint
        if self.sizes[number] > self.item_size:
            self._record_taken(row, number, ticket, slot)
        else:
            noted = self.states[number]
            endpoint.post_cas(self.entry(row, number), noted, noted ^ PENDING ^ TAKEN)
        self.states[number] ^= PENDING ^ TAKEN
        # ORDER: the entry's state before the slot's word, which may be on another node.
        endpoint.wait()
        # CRASH(named): in the entry, and the slot still names us; the next put there clears that.
        endpoint.post_cas(slot, word, word & ~(OWNER_MASK << OWNER_SHIFT))
        self.taken.append(number)
        self.unsure = False

    def withdraw(self, number: int) -> None:
        """Note that the element in that entry was not taken."""
        # The entry is written over by the next one.
        self.empty.append(number)
        self.unsure = False

    def _record_taken(self, row: int, number: int, ticket: int, slot: int) -> None:
        """Mark the element of this entry as taken. Any client may do that while the slot names the
        row, also several at the same time."""
        endpoint = self.endpoint
        at = self.entry(row, number)
        noted = ticket + 1 << TICKET_SHIFT | PENDING
        size_ticket = endpoint.post_load(at + SIZE)
        cell_ticket = endpoint.post_load(at + ENTRY_CELL)
        spare_ticket = endpoint.post_load(self._spare(row, number))
        # ORDER: the state after these, on one node, so that they are of the same element.
        state_ticket = endpoint.post_load(at)
        endpoint.wait()
        if endpoint.result(size_ticket) > self.item_size:
            if endpoint.result(state_ticket) != noted:
                return
            cell = endpoint.result(cell_ticket)
            own = self._own_cell(row, number)
            spare = self.slots.cell(endpoint.result(spare_ticket), own)
            tag = ticket + 1 & TAG_MASK
            # ORDER: the slot's cell before the entry's state, and that before the slot's word,
            # which are on different nodes.
            cas_alone(endpoint, slot + CELL, cell, tag << CELL_SHIFT | spare + 1)
        # CRASH(swapped): the slot has the other cell; the entry is still PENDING.
        cas_alone(endpoint, at, noted, noted ^ PENDING ^ TAKEN)

    def finish(self, place: int, slot: int, word: int) -> None:
        """Do the rest for the consumer that took the element before `word` was FREE."""
        row = (word >> OWNER_SHIFT & OWNER_MASK) - 1
        before = (word >> ROUND_SHIFT) - 1 & ROUND_MASK
        endpoint = self.endpoint
        if row < self.participants.count:
            tickets = [endpoint.post_load(self.entry(row, one)) for one in range(self.keep)]
            endpoint.wait()
            for number in range(self.keep):
                noted = endpoint.result(tickets[number])
                ticket = (noted >> TICKET_SHIFT) - 1
                if (
                    noted & KIND == PENDING
                    and ticket % self.slots.maxsize == place
                    and ticket // self.slots.maxsize & ROUND_MASK == before
                ):
                    self._record_taken(row, number, ticket, slot)
        cas_alone(endpoint, slot, word, word & ~(OWNER_MASK << OWNER_SHIFT))

    def was_taken(self, row: int, word: int) -> bool:
        """Whether the consumer of that row took the element of its entry with this state; if it
        did, the entry is TAKEN afterwards."""
        ticket = (word >> TICKET_SHIFT) - 1
        place = ticket % self.slots.maxsize
        slot = self.slots.slot(place)
        there = self.endpoint.load(slot)
        following = ticket // self.slots.maxsize + 1 & ROUND_MASK
        taken = following << ROUND_SHIFT | row + 1 << OWNER_SHIFT | FREE
        if there != taken:
            return False
        self.finish(place, slot, there)
        return True

    def close(self, row: int) -> bool:
        """Count one element as done with; False: we were declared dead. 1 round trip."""
        endpoint = self.endpoint
        number, at, word = -1, 0, 0
        if self.taken and len(self.taken) >= self.tasks.ours():
            self.unsure = True
            number = self.taken[0]
            at = self.entry(row, number)
            word = self.states[number] & ~KIND | CLOSING
            self.states[number] = word
            self.header[0] = self.tasks.word
            endpoint.post_write(at + BEFORE, self.header, 1)
            self.header[0] = word
            # ORDER: before the count, on the same node: an entry that is TAKEN is not done with.
            endpoint.post_write(at, self.header, 1)
        fewer = self.tasks.fewer()
        # LINEARIZES: the element is done with.
        # CRASH(done): clients that join look after a while.
        ticket = self.tasks.post(fewer)
        endpoint.wait()
        if not self.tasks.is_done(ticket, fewer):
            return False
        if number >= 0:
            # CRASH(closed): done with, by the count; the next owner of the row clears the entry.
            scope = endpoint.background(True)
            if self.sizes[number] > self.item_size:
                self._clear(row, number, word)
            else:
                endpoint.post_cas(at, word, 0)
            endpoint.background(scope)
            del self.taken[0]
            self.empty.append(number)
            self.unsure = False
        return True

    def _clear(self, row: int, number: int, word: int) -> bool:
        """Clear an entry with its element, if its state is `word`; whether that was so.

        Several clients may try: each step is a CAS that does nothing the second time.
        """
        endpoint = self.endpoint
        at = self.entry(row, number)
        spare_at = self._spare(row, number)
        size_ticket = endpoint.post_load(at + SIZE)
        cell_ticket = endpoint.post_load(at + ENTRY_CELL)
        spare_ticket = endpoint.post_load(spare_at)
        endpoint.wait()
        if endpoint.result(size_ticket) > self.item_size:
            ticket = (word >> TICKET_SHIFT) - 1
            cell = self.slots.cell(endpoint.result(cell_ticket), ticket % self.slots.maxsize)
            spare = endpoint.result(spare_ticket)
            link = self.slots.link(cell)
            reference = load_alone(endpoint, link)
            # ORDER: the state after these: else the cell may have another element by now.
            if load_alone(endpoint, at) != word:
                return False
            if reference:
                unlink_from(self.client, link, reference)
            # CRASH(emptied): an entry whose link is 0 has no element.
            tag = ticket + 1 & TAG_MASK
            endpoint.post_cas(spare_at, spare, tag << CELL_SHIFT | cell + 1)
        # ORDER: after the spare cell, on the same node.
        return cas_alone(endpoint, at, word, 0) == word

    def reload(self, row: int) -> None:
        """Read our row's entries from memory, and set our count by them. In an operation.

        An element that an operation noted and, cut off, did not take is not open.
        """
        endpoint = self.endpoint
        self.tasks.go_on(row)
        tickets = []
        self.taken.clear()
        self.empty.clear()
        for number in range(self.keep):
            at = self.entry(row, number)
            word = endpoint.load(at)
            self.sizes[number] = endpoint.load(at + SIZE)
            before = endpoint.load(at + BEFORE)
            kind = word & KIND
            if kind == PENDING:
                if self.was_taken(row, word) or endpoint.load(at) != word:
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
                self.states[number] = word & ~KIND | TAKEN
                tickets.append((word >> TICKET_SHIFT, number))
            elif kind == 0:
                self.empty.append(number)
        self.taken.extend([number for _, number in sorted(tickets)])
        self.unsure = False

    def fold(self, row: int) -> None:
        """Mark the elements in the entries of our row that are not done with as lost. In an
        operation."""
        for number in range(self.keep):
            at = self.entry(row, number)
            word = self.endpoint.load(at)
            if word & KIND == PENDING:
                if not self.was_taken(row, word):
                    self.endpoint.cas(at, word, 0)
                word = self.endpoint.load(at)
            if word & KIND == CLOSING and self._is_closed(row, number):
                self._clear(row, number, word)
            elif word & KIND in (TAKEN, CLOSING):
                # CRASH(lost): LOST, and counted as open of a dead participant; both are lost.
                self.endpoint.cas(at, word, word & ~KIND | LOST)
        self.tasks.fold(row)

    def _is_closed(self, row: int, number: int) -> bool:
        """Whether an entry that is CLOSING is done with."""
        before = self.endpoint.load(self.entry(row, number) + BEFORE)
        return self.endpoint.load(self.tasks.address + row * LINE) != before

    # ---- lost elements, in an operation ---------------------------------------------------------

    def suits(self, row: int, level: int) -> bool:
        """Whether a row's entries are free for us: all of them, or (1) any."""
        there = [bool(self.endpoint.load(self.entry(row, one))) for one in range(self.keep)]
        return level > 1 or (not all(there) if level else not any(there))

    def lost(self) -> list[tuple[int, int, int, Any]]:
        """Row, number, state and element of all entries whose elements are lost, in the order of
        tickets; the element is None in an entry that a client has begun to clear."""
        found = []
        for row in range(self.participants.count):
            for number in range(self.keep):
                one = self._lost_in(row, number)
                if one is not None:
                    found.append((row, number, one[0], one[1]))
        return sorted(found, key=_ticket)

    def _lost_in(self, row: int, number: int) -> Any:
        """State and element of an entry, if its element is lost; else None."""
        endpoint = self.endpoint
        at = self.entry(row, number)
        while True:
            ident = self.participants.word(row)
            word = endpoint.load(at)
            kind = word & KIND
            if kind == 0:
                return None
            if kind != LOST:
                if ident and not ident & CLAIMED and self.participants.lives(ident):
                    return None
                if kind == PENDING:
                    if not self.was_taken(row, word) and endpoint.load(at) == word:
                        return None
                    continue
                if kind == CLOSING and self._is_closed(row, number):
                    return None
            data = self._noted_element(at, word)
            # ORDER: last: then all of it is of that participant, and of that element.
            if endpoint.load(at) == word and (kind == LOST or self.participants.word(row) == ident):
                return word, data

    def _noted_element(self, at: int, word: int) -> Any:
        """The element in an entry; None: it is being cleared."""
        size = self.endpoint.load(at + SIZE)
        if size <= self.item_size:
            return self.endpoint.read(at + ENTRY_DATA, size)
        own = ((word >> TICKET_SHIFT) - 1) % self.slots.maxsize
        cell = self.slots.cell(self.endpoint.load(at + ENTRY_CELL), own)
        reference = self.endpoint.load(self.slots.link(cell))
        # ORDER: the state after the link: else that may be of another element.
        if not reference or self.endpoint.load(at) != word:
            return None
        return self.endpoint.read(reference & ADDRESS_MASK, size)

    def forget(self, row: int, number: int, word: int) -> None:
        """Clear an entry that `lost` has found, in any state."""
        at = self.entry(row, number)
        while not self._clear(row, number, word):
            now = self.endpoint.load(at)
            if now >> TICKET_SHIFT != word >> TICKET_SHIFT:
                return  # another client has cleared it
            word = now


def _ticket(one: tuple[int, int, int, Any]) -> int:
    return one[2] >> TICKET_SHIFT
