"""The places of the shared queue, and how elements are put and got (loco.txt section 5.4).

The paper adapts the cyclic ring queue of Morrison and Afek (LCRQ, PPoPP 2013), where a place is
taken by fetch-and-add on head or tail; who is killed then leaves a hole that nobody can tell from
a slow one. Here a place is taken by CAS on its slot, which says who took it; head and tail follow,
moved on by whoever finds them behind. A ticket is a number of a place in the order: ticket t has
slot t % maxsize in round t // maxsize.

Memory: a region of its own, and regions `.stripe0`, `.stripe1`..., slot s in stripe s % stripes, on
different memory nodes

    0     tail         the next ticket to put at, or one that is taken already
    64    head         the next ticket to get from, or one that is done with
    128   news         where consumers sleep (waiting.py)
    192   room         where producers sleep
    256   done with    where those sleep who join
    320   forgotten    how many elements were lost that join does not speak of any more
    .tasks             what consumers have got and are not done with (tasks.py, queue_kept.py)

A slot, in bytes from its start
    0     word         bits 0-1 state, bits 2-15 the owner's row + 1, or 0, bits 16-63 round
    8     size         bytes of the element
    16    cell         which link names the object that has the element, if it is larger than DATA
    24    data         item_size bytes
Behind a stripe's slots a link for each: 0, or a reference to an object. A slot's cell is its own
at first, and another one when a large element was taken (queue_kept.py).

    FREE(r)            for who puts in round r, if the ticket is that of the tail
    FREE(r, owner)     the owner has taken the element of round r - 1, and is to note that
    WRITING(r, owner)  being written by the participant of that row
    READY(r)           the element of round r
    SKIPPED(r, owner)  there is none in round r; but the owner, unless it is 0, may still write here

    put    t = tail: FREE(r) -> WRITING(r, own row); tail t -> t + 1; write; WRITING -> READY(r)
    get    h = head: READY(r); read; note; READY(r) -> FREE(r + 1, own row); head h -> h + 1;
           note that it was taken; FREE(r + 1, own row) -> FREE(r + 1)

The element is what was read, since the word never is READY(r) again: so a consumer that is killed
before its CAS has taken nothing, and one that is killed after it owns the element: each element is
got at most once, by the dead one perhaps, of which it can be had back (`lost`). `put` takes effect
with READY, for whoever gets, in the order of the tickets: when a put has returned, the tail is
behind its ticket.

Tickets are numbers of 64 bits, which never end. Rounds wrap after 2^48: which of two is the later
one is told by their difference. No slot is more than a round ahead of the tail. A client that was
stopped in the midst of an operation for a multiple of 2^48 rounds of a slot, exactly, would take
its word for the one that it knew.

Nobody waits for anybody. A consumer that finds WRITING at the head, while the tail says that others
may have put behind it, is patient for some yields, and then makes it SKIPPED. The producer finds
its CAS fail, gives the slot up (owner 0), and puts again; if it is killed, its row tells, and if
its put ended with an error, its pin. A slot whose owner neither gave it up, nor is dead, nor has
left its operation is skipped in the next rounds, too, as its plain writes could land in another's
element: a producer that stands still in there takes one place away. A
place that is WRITING or SKIPPED before the head has passed it counts as taken for `Full`.

`Empty` is certain: the slot of the head is free, or WRITING and nobody has put behind it.

A kill leaves behind: a slot that is WRITING, and perhaps has a link: see above; the object is
freed by whoever writes there next. A link to an element that was got, and not noted: as well. A
slot that is FREE with an owner: whoever puts there does the rest. An object in hand.

A row is taken over when its participant is dead; the newcomer first gives up its slots. Links are
freed as stores do it: in hand before, by CAS to 0; several may try.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from limpet.shm.endpoint.layout import CLIENT_SLOTS, NODE_SHIFT, SLOT_SIZE
from limpet.shm.endpoint.slots import INCARNATION_BITS, PIN
from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.shm.errors import ChannelRemoved, StoreCorrupt, ValueTooLarge
from limpet.stores.channels.checks import whole
from limpet.stores.channels.layout import CLAIMED, LINE
from limpet.stores.channels.queue_kept import MAXSIZE_MAX, Kept, entries_for
from limpet.stores.channels.queue_layout import (
    CELL,
    CONTROL_SIZE,
    DATA,
    DONE_WITH,
    EMPTY,
    FORGOTTEN,
    FREE,
    HEAD,
    ITEM_SIZE,
    LATER,
    MAXSIZE,
    NEWS,
    OWNER_MASK,
    OWNER_SHIFT,
    PATIENCE,
    READY,
    ROOM,
    ROUND_MASK,
    ROUND_SHIFT,
    SIZE,
    SKIPPED,
    STATE_MASK,
    TAIL,
    WRITING,
)
from limpet.stores.channels.regions.links import unlink
from limpet.stores.channels.regions.region import Links
from limpet.stores.channels.waiting import Waiting
from limpet.stores.codecs import Codec
from limpet.stores.status import AGAIN, DONE, FULL, NO_MEMORY

assert NEWS < ROOM < DONE_WITH < FORGOTTEN < CONTROL_SIZE
assert SIZE < CELL < DATA
DESCRIPTION_MAX: Final = 4096
"""Bytes of a region besides its memory, at most."""
SIZE_MAX: Final = 1 << 31


class Places(Kept):
    """The places of a queue of Python objects."""

    def __init__(
        self,
        manager: Any,
        name: str,
        parent: Any = None,
        *,
        maxsize: int = MAXSIZE,
        item_size: int = ITEM_SIZE,
        codec: str = "pickle",
    ) -> None:
        """`maxsize`: elements, at least 1. `item_size`: bytes of an encoded element up to which it
        lies in its slot; a larger one takes an object of the pool. Less where nodes are small."""
        maxsize = whole("a queue's `maxsize`", maxsize, 1, MAXSIZE_MAX)
        item_size = whole("a queue's `item_size`", item_size, 1, SIZE_MAX)
        coding = Codec.named(codec)
        participants = manager.pool.parameters.clients
        most = manager.pool.heap.value_max(1) - DESCRIPTION_MAX
        keep, inline = entries_for(participants, item_size, most)
        stride = (DATA + inline + LINE - 1) // LINE * LINE
        stripes = min(manager.pool.parameters.nodes, maxsize)
        each = (maxsize + stripes - 1) // stripes
        if each * (stride + 8) > most:
            raise ValueTooLarge(
                f"{maxsize} places of {stride} bytes do not fit into {stripes} memory nodes; make "
                "the queue shorter, or the pool with larger nodes"
            )
        super().__init__(
            manager,
            name,
            parent,
            size=CONTROL_SIZE,
            kind="queue",
            maxsize=maxsize,
            item_size=item_size,
            codec=codec,
        )
        self.codec = codec
        self.encode = coding.encode
        self.decode = coding.decode
        self.maxsize = maxsize
        self.item_size = inline
        self.keep = keep
        self.stride = stride
        self.stripes = stripes
        self.links = each * stride
        links = Links(self.links, 8, each)
        self.bases = array(
            "Q",
            [self.region(f"stripe{k}", each * (stride + 8), k, links) for k in range(self.stripes)],
        )
        self.heap = self.pool.heap
        self.allocator = self.pool.allocator
        self.tail = self.address + TAIL
        self.head = self.address + HEAD
        remote = self.pool.parameters.multi_host
        self.news = Waiting(self.endpoint, self.address + NEWS, remote)
        self.room = Waiting(self.endpoint, self.address + ROOM, remote)
        self.done_with = Waiting(self.endpoint, self.address + DONE_WITH, remote)
        self.have_entries(participants)
        self.header = array("Q", [0, 0, 0, 0])
        self.unfinished = 0
        """The slot that this process is writing to."""
        self.outcome = 0
        """Why the last `_take` gave nothing."""
        self.cell = 0
        """The word `cell` of the slot that was read last."""
        self.node = 0
        """Where memory for the next large element is to be."""
        self.laggard = 0
        """The id of the client that kept the last place from being put to: it has neither given
        that up nor died."""
        self.closed = False
        self.patience = PATIENCE
        self.take_part(participants)

    def _length(self) -> int:
        """How many tickets have been put at, and not got from: at most so many have an element.

        In an operation, for who was woken, and has come: whether others could come, too.
        """
        head = self.endpoint.load(self.head)
        return self.endpoint.load(self.tail) - head

    # ---- putting, in an operation -----------------------------------------------------------

    def _place(self, data: bytes) -> int:
        """Put an encoded element: DONE, FULL, or NO_MEMORY on `node`."""
        endpoint = self.endpoint
        row = self._ready()
        size = len(data)
        reference = 0
        skipped = 0
        index = -1
        self.laggard = 0
        while True:
            tail = endpoint.load(self.tail)
            number = tail // self.maxsize
            place = tail - number * self.maxsize
            number &= ROUND_MASK
            slot = self._slot(place)
            word = endpoint.load(slot)
            endpoint.wait()
            ahead = (word >> ROUND_SHIFT) - number & ROUND_MASK
            state = word & STATE_MASK
            if ahead == 0 and state == FREE:
                if word >> OWNER_SHIFT & OWNER_MASK:
                    self._finish(place, slot, word)
                    continue
                if size > self.item_size and not reference:
                    reference = self._make(data, slot >> NODE_SHIFT)
                    if not reference:
                        return NO_MEMORY
                    index = self.client.held - 1
                    continue
                writing = number << ROUND_SHIFT | row + 1 << OWNER_SHIFT | WRITING
                self.unfinished = slot
                if endpoint.cas(slot, word, writing) != word:
                    continue
                # CRASH(claimed): the dead one's row is in the slot; a consumer skips it.
                # ORDER: the tail is behind every ticket whose put has returned.
                endpoint.cas(self.tail, tail, tail + 1)
                endpoint.wait()
                self._fill(slot, place, data, reference, index)
                # LINEARIZES: the element is there, in the order of tickets.
                if endpoint.cas(slot, writing, number << ROUND_SHIFT | READY) == writing:
                    self._filled(reference, index)
                    return DONE
                self._give_up(slot, reference, index)
            elif ahead < LATER:
                if ahead > 1 and endpoint.load(self.tail) == tail:
                    raise self._damaged(tail)
                endpoint.cas(self.tail, tail, tail + 1)
            elif state == SKIPPED or (state == WRITING and self._abandoned(word)):
                if self._abandoned(word):
                    endpoint.cas(slot, word, number << ROUND_SHIFT | FREE)
                    continue
                skipped += 1
                owner = word & OWNER_MASK << OWNER_SHIFT
                if skipped > self.maxsize:
                    ident = endpoint.load(self.seats + 8 * ((owner >> OWNER_SHIFT) - 1))
                    # By now the row may have been claimed by another one, who does not lag.
                    self.laggard = 0 if ident & CLAIMED else ident
                    return FULL
                endpoint.cas(slot, word, number << ROUND_SHIFT | owner | SKIPPED)
            elif endpoint.load(self.tail) == tail:
                return FULL

    def _damaged(self, ticket: int) -> StoreCorrupt:
        return StoreCorrupt(
            f"{self!r} has ticket {ticket} for its next one, whose place is rounds ahead: memory "
            "was damaged; remove the queue, and make it anew"
        )

    def _ready(self) -> int:
        """Our row; nothing of ours is unfinished then. Raises ValueError when closed."""
        if self.closed:
            raise ValueError(f"{self!r} is closed")
        row = self.row()
        if self.unfinished:
            self._release(self.unfinished)
        if self.unsure:
            self.reload()
        return row

    def _make(self, data: bytes, node: int) -> int:
        """Write a large element to an object, last in the hand; 0: there is no memory ready."""
        if len(data) > self.heap.value_max(1):
            raise ValueTooLarge(
                f"the element takes {len(data)} bytes; an object has room for "
                f"{self.heap.value_max(1)} here"
            )
        self.node = node
        reference = self.allocator.allocate(node, len(data), 1)
        if reference:
            self.endpoint.write(reference & ADDRESS_MASK, data)
        return reference

    def _fill(self, slot: int, place: int, data: bytes, reference: int, index: int) -> None:
        """Write an element into a slot of ours."""
        endpoint = self.endpoint
        link = 0
        if reference or endpoint.load(slot + SIZE) > self.item_size:
            link = self._link(self._cell(endpoint.load(slot + CELL), place))
            # CRASH(stale-link): to an element that was got, or of a put that was cut.
            unlink(self.client, link)
        if reference:
            endpoint.store(slot + SIZE, len(data))
            # ORDER: the hand knows where it is linked before it is; a link has a large size.
            self.client.aim(index, link)
            endpoint.store(link, reference)
        else:
            self.header[0] = len(data)
            # ORDER: the cell stays.
            self.header[1] = endpoint.load(slot + CELL)
            endpoint.write_gather(slot + SIZE, self.header, 2, data, b"")

    def _filled(self, reference: int, index: int) -> None:
        """The element in that slot is there for the others."""
        self.unfinished = 0
        if reference:
            if self.endpoint.load(self.mark_address) == self.mark:
                self.client.keep(index)
            else:
                # It is still in the hand, so `leave` frees it.
                self.endpoint.cas(self.client.homes[index], reference, 0)
        self.endpoint.wait()
        self.news.wake_one()

    def _give_up(self, slot: int, reference: int, index: int) -> None:
        """A consumer has skipped the slot while we wrote to it."""
        if reference:
            self.endpoint.store(self.client.homes[index], 0)
            self.client.aim(index, 0)
        self._release(slot)

    def _release(self, slot: int) -> None:
        """Say that we do not write to this slot any more, if it is ours."""
        word = self.endpoint.load(slot)
        while word & WRITING and word >> OWNER_SHIFT & OWNER_MASK == self.own_row + 1:
            given_up = word >> ROUND_SHIFT << ROUND_SHIFT | SKIPPED
            self.endpoint.cas(slot, word, given_up)
            word = self.endpoint.load(slot)
        self.unfinished = 0

    def joined(self) -> None:
        # What our row has been writing to is of one who is dead.
        for number in range(self.maxsize):
            self._release(self._slot(number))
        if self.endpoint.load(self.seats + 8 * self.own_row) == self.client.ident:
            self.reload()
        else:
            self.fold()
            self.reload()

    def _abandoned(self, word: int) -> bool:
        """Whether the owner in a slot's word will not write there any more."""
        owner = word >> OWNER_SHIFT & OWNER_MASK
        if owner == 0 or owner == self.own_row + 1:
            return True
        # A row that is being taken over was a dead one's.
        ident = self.endpoint.load(self.seats + 8 * (owner - 1))
        if ident & CLAIMED or not self.lives(ident):
            return True
        # ORDER: the pin after the slot's word: who has it from an operation that ended with an
        # error, and is in none now, does not write there any more.
        pin = CLIENT_SLOTS + (ident >> INCARNATION_BITS) * SLOT_SIZE + PIN
        return not self.endpoint.load(pin)

    # ---- getting, in an operation -----------------------------------------------------------

    def _take(self, skip: bool) -> Any:
        """The first element, as bytes; None: there is none (`outcome` EMPTY), or its producer is at
        it (AGAIN), which is skipped instead if `skip`."""
        endpoint = self.endpoint
        row = self._ready()
        while True:
            head = endpoint.load(self.head)
            number = head // self.maxsize
            place = head - number * self.maxsize
            number &= ROUND_MASK
            slot = self._slot(place)
            word = endpoint.load(slot)
            endpoint.wait()
            ahead = (word >> ROUND_SHIFT) - number & ROUND_MASK
            state = word & STATE_MASK
            if 0 < ahead < LATER or (ahead == 0 and state == SKIPPED):
                if ahead > 1 and endpoint.load(self.tail) <= head:
                    raise self._damaged(head)
                endpoint.cas(self.head, head, head + 1)
            elif ahead or state == FREE:
                self.outcome = EMPTY
                return None
            elif state == READY:
                data = self._read(slot, word, place)
                if data is None:
                    continue
                large = len(data) > self.item_size
                noted = self._note(head, data, self.cell)
                begun = self.tasks.begin()
                endpoint.wait()
                taken = (number + 1 & ROUND_MASK) << ROUND_SHIFT | FREE
                if noted:
                    taken |= row + 1 << OWNER_SHIFT
                # CRASH(begun): counted as open, and in the queue, for another one to get.
                # LINEARIZES: it is ours, and what we read is whole.
                if not begun or endpoint.cas(slot, word, taken) != word:
                    self._begin_again(begun)
                    if begun and noted:
                        self._not_noted(noted - 1)
                    row = self.own_row
                    continue
                # CRASH(taken): the slot names us, so it is noted for us; others move the head on.
                endpoint.cas(self.head, head, head + 1)
                if noted:
                    self._noted(noted - 1, slot, head, taken)
                else:
                    self.unsure = False
                    if large:
                        unlink(self.client, self._link(self._cell(self.cell, place)))
                endpoint.wait()
                self.room.wake_one()
                return data
            # ORDER: the tail after the slot: if it is not behind the next ticket, nobody had put
            # behind this one when we looked at the slot.
            elif endpoint.load(self.tail) <= head + 1:
                self.outcome = EMPTY
                return None
            elif not skip:
                self.outcome = AGAIN
                return None
            else:
                endpoint.cas(slot, word, word & ~STATE_MASK | SKIPPED)
                skip = False

    def _read(self, slot: int, word: int, place: int) -> Any:
        """The element in a slot, if it is still READY; a large one's `cell` is known."""
        size = self.endpoint.load(slot + SIZE)
        if size <= self.item_size:
            return self.endpoint.read(slot + DATA, size)
        self.cell = self.endpoint.load(slot + CELL)
        reference = self.endpoint.load(self._link(self._cell(self.cell, place)))
        # ORDER: the word after size and link: else these may be of different elements.
        if self.endpoint.load(slot) != word:
            return None
        if not reference:
            # The process that removes the queue has freed it.
            raise ChannelRemoved(f"{self!r} was removed")
        return self.endpoint.read(reference & ADDRESS_MASK, size)

    def _begin_again(self, begun: bool) -> None:
        """The element that was counted as open is not ours."""
        if begun:
            self.tasks.end()
        else:
            self.joined_as = 0
            self._ready()

    def _count(self) -> int:
        self._ready()
        head, tail = self.endpoint.load(self.head), self.endpoint.load(self.tail)
        count = 0
        # of what was before the last `maxsize` tickets, nothing is there any more
        if head < tail and tail - head > self.maxsize:
            head = tail - self.maxsize
        while head < tail:
            number = head // self.maxsize
            word = self.endpoint.load(self._slot(head - number * self.maxsize))
            count += word == ((number & ROUND_MASK) << ROUND_SHIFT | READY)
            head += 1
        return count
