"""The cyclic ring of a queue: how elements are put and got (LOCO section 5.4).

The paper adapts the cyclic ring queue of Morrison and Afek (LCRQ, PPoPP 2013), where a place is
taken by fetch-and-add on head or tail; a killed client then leaves a hole that no other client can
tell from a slow one. Here a place is taken by CAS on its slot, which names the row that took it;
the next client that finds head or tail behind moves it on. A ticket is the number of a place in the
order: ticket t has slot t % maxsize in round t // maxsize.

Memory: a region of its own, and regions `.stripe0`, `.stripe1`... with the slots (tasks.py)

    0     tail         the next ticket to put at, or one that is taken already
    64    head         the next ticket to get from, or one that is done with
    128   news         where consumers sleep (waiting.py)
    192   room         where producers sleep
    256   done with    where clients sleep in `join`
    320   forgotten    how many lost elements `join` does not report any more
    .tasks             elements that consumers have got and are not done with (tasks.py, notes.py)

A slot, in bytes from its start
    0     word         bits 0-1 state, bits 2-15 the owner's row + 1, or 0, bits 16-63 round
    8     size         bytes of the element
    16    cell         the link to the object that has the element, if it is larger than DATA
    24    data         item_size bytes
A slot's cell is its own at first, and another one when a large element was taken (notes.py).

    FREE(r)            for the put of round r, if the ticket is that of the tail
    FREE(r, owner)     the owner has taken the element of round r - 1, and has yet to note that
    WRITING(r, owner)  the participant of that row is writing
    READY(r)           the element of round r
    SKIPPED(r, owner)  round r has no element; but the owner, unless it is 0, may still write here

    put    t = tail: FREE(r) -> WRITING(r, own row); tail t -> t + 1; write; WRITING -> READY(r)
    get    h = head: READY(r); read; note; READY(r) -> FREE(r + 1, own row); head h -> h + 1;
           note that it was taken; FREE(r + 1, own row) -> FREE(r + 1)

The consumer takes the very element that it read, since the word is never READY(r) again. So a
consumer that is killed before its CAS has taken nothing, and one that is killed after it owns the
element. Each element is got at most once; if a dead consumer got it, `lost` gives it back. `put`
takes effect with READY, for all consumers, in the order of the tickets: when a put has returned,
the tail is behind its ticket.

Round trips: put and get are 3 each, if no other client does the same meanwhile, and the element
lies in its slot. This process guesses the ticket, which is the one after its last: if the tail, or
the head, is another one, it reads that slot, one more. A background phase (|) is not waited for.

    put   1 tail; the slot's word               no fewer: 2 depends on 1, and the element may be
          2 FREE -> WRITING; size and cell      written only when 2 has won
          3 the element; WRITING -> READY;      | look whether a consumer sleeps
            the tail
    get   1 head; the slot's word; the element  no fewer: the note has the element, and is there
          2 its note; one more open             before the slot is not READY any more
          3 READY -> FREE                       | the head; PENDING -> TAKEN; look whether a
                                                producer sleeps; then FREE without the row

The tail moves in the phase of READY, so a consumer may find an element that the tail is not behind
yet, or the tail may stay behind the ticket of a dead producer's; so looks at all elements include
the ticket of the tail. No more can be there: the next put moves the tail first. An element that is
larger than its slot takes 2 more to put, and 3 more to get.

Tickets are numbers of 64 bits, which never end. Rounds wrap after 2^48: the sign of their
difference says which of two is the later one. No slot is more than a round ahead of the tail. A
client that was stopped in the midst of an operation for a multiple of 2^48 rounds of a slot,
exactly, would take the slot's word for the one that it had read.

No client waits for another one. A consumer that finds WRITING at the head, while the tail says that
others may have put behind it, yields some times, and then makes the slot SKIPPED. The CAS of the
producer fails then: it gives the slot up (owner 0), and puts again. If the producer was killed, its
row shows that; if its put ended with an error, its pin does. If the owner has neither given the
slot up, nor died, nor left its operation, the slot is skipped in the next rounds, too, as the
owner's plain writes could land in another element: a producer that stands still there takes one
place away. A place that is WRITING or SKIPPED counts as taken for `Full` until the head has passed
it.

`Empty` is certain: the slot of the head is free, or WRITING and no client has put behind it.

A kill leaves behind: a slot that is WRITING, perhaps with a link: see above; the next put there
frees the object. A link to an element that was got, and not noted: likewise. A slot that is FREE
with an owner: the next put there does the rest. An object in the client's journal.

A row is taken over when its participant is dead; the newcomer first gives up its slots.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from limpet.shm.endpoint.layout import CLIENT_SLOTS, NODE_SHIFT, SLOT_SIZE
from limpet.shm.endpoint.slots import INCARNATION_BITS, PIN
from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.shm.errors import ChannelRemoved, StoreCorrupt, ValueTooLarge
from limpet.stores.channels.channel import Mark
from limpet.stores.channels.layout import CLAIMED
from limpet.stores.channels.phases import cas_alone, load_alone
from limpet.stores.channels.queue.layout import (
    CELL,
    DATA,
    EMPTY,
    FREE,
    HEAD,
    LATER,
    LOOKED_AT,
    NO_ROOM,
    OWNER_MASK,
    OWNER_SHIFT,
    READY,
    REJOIN,
    ROUND_MASK,
    ROUND_SHIFT,
    SIZE,
    SKIPPED,
    STATE_MASK,
    TAIL,
    WRITING,
    Refusal,
)
from limpet.stores.channels.queue.notes import Notes
from limpet.stores.channels.regions.links import unlink
from limpet.stores.channels.waiting import Waiting
from limpet.stores.core.object_layout import IMAGE_SIZE
from limpet.stores.core.status import AGAIN, FULL, NO_MEMORY

assert SIZE < CELL < DATA
LEAST: Final = 4
"""Words of an element, with its size and cell, that a consumer reads at least."""


class CyclicRing:
    """The ring of a queue. Its methods are called in an operation, with our `row`."""

    def __init__(
        self, pool: Any, address: int, mark: Mark, notes: Notes, news: Waiting, room: Waiting
    ) -> None:
        """`address`: of the queue's own region. `news`, `room`: of consumers, of producers."""
        self.client = pool.client
        self.endpoint = pool.endpoint
        self.heap = pool.heap
        self.allocator = pool.allocator
        self.mark = mark
        self.notes = notes
        self.slots = notes.slots
        self.tasks = notes.tasks
        self.participants = notes.participants
        self.news = news
        self.room = room
        self.name = notes.slots.name
        self.maxsize = notes.slots.maxsize
        self.item_size = notes.item_size
        self.tail = address + TAIL
        self.head = address + HEAD
        self.header = array("Q", [0, 0])
        self.image = self.endpoint.image(IMAGE_SIZE)
        self.width = LEAST
        """Words of the next element, with its size and cell, that `take` reads at first."""
        self.next_put = self.next_get = 0
        """The tickets of our next put and get, by our last ones."""
        self.unfinished = 0
        """The slot that this process is writing to; not 0 after an operation that was cut off."""

    def length(self) -> int:
        """Tickets that were put at and not got from: an upper bound of the elements.

        A client that was woken uses it to decide whether to wake another one.
        """
        scope = self.endpoint.background(True)
        tail = self.endpoint.post_load(self.tail)
        head = self.endpoint.post_load(self.head)
        self.endpoint.wait()
        self.endpoint.background(scope)
        found = self.endpoint.result(tail)
        return found - self.endpoint.result(head)

    # ---- putting, in an operation -----------------------------------------------------------

    def put(self, row: int, data: bytes) -> Refusal | None:
        """Put an encoded element; the reason if it was not put, or None."""
        endpoint = self.endpoint
        size = len(data)
        reference = 0
        skipped = 0
        index = -1
        while True:
            tail = self.next_put
            number = tail // self.maxsize
            place = tail - number * self.maxsize
            number &= ROUND_MASK
            slot = self.slots.slot(place)
            tail_ticket = endpoint.post_load(self.tail)
            word_ticket = endpoint.post_load(slot)
            endpoint.wait()
            self.next_put = endpoint.result(tail_ticket)
            if self.next_put != tail:
                continue
            word = endpoint.result(word_ticket)
            ahead = (word >> ROUND_SHIFT) - number & ROUND_MASK
            state = word & STATE_MASK
            if ahead == 0 and state == FREE:
                if word >> OWNER_SHIFT & OWNER_MASK:
                    self.notes.finish(place, slot, word)
                    continue
                if size > self.item_size and not reference:
                    reference = self._make(data, slot >> NODE_SHIFT)
                    if not reference:
                        return Refusal(NO_MEMORY, slot >> NODE_SHIFT)
                    index = self.client.held - 1
                writing = number << ROUND_SHIFT | row + 1 << OWNER_SHIFT | WRITING
                self.unfinished = slot
                word_ticket = endpoint.post_cas(slot, word, writing)
                # ORDER: after the CAS: from then on they stay.
                endpoint.post_read(slot + SIZE, self.header, 2)
                endpoint.wait()
                if endpoint.result(word_ticket) != word:
                    continue
                # CRASH(claimed): the dead one's row is in the slot; a consumer skips it.
                mark = self._fill(slot, place, data, reference, index)
                # LINEARIZES: the element is in the queue, in the order of tickets.
                ready = number << ROUND_SHIFT | READY
                word_ticket = endpoint.post_cas(slot, writing, ready)
                # ORDER: in the last phase, so that the tail is behind the ticket of a put that has
                # returned.
                endpoint.post_cas(self.tail, tail, tail + 1)
                endpoint.wait()
                if endpoint.result(word_ticket) == writing:
                    self.next_put = tail + 1
                    self._filled(reference, index, mark)
                    return None
                self._give_up(row, slot, reference, index)
            elif ahead < LATER:
                if ahead > 1 and load_alone(self.endpoint, self.tail) == tail:
                    raise self._damaged(tail)
                # With the phase that reads the tail again; likewise the CASes below.
                endpoint.post_cas(self.tail, tail, tail + 1)
            elif state == SKIPPED or (state == WRITING and self.abandoned(row, word)):
                if self.abandoned(row, word):
                    endpoint.post_cas(slot, word, number << ROUND_SHIFT | FREE)
                    continue
                skipped += 1
                owner = word & OWNER_MASK << OWNER_SHIFT
                if skipped > self.maxsize:
                    ident = self.participants.word((owner >> OWNER_SHIFT) - 1)
                    # By now another client may have claimed the row; that client is not in the way.
                    return NO_ROOM if ident & CLAIMED else Refusal(FULL, 0, ident)
                endpoint.post_cas(slot, word, number << ROUND_SHIFT | owner | SKIPPED)
            # ORDER: the slot after the tail: it was not free when that was our ticket.
            elif load_alone(self.endpoint, slot) == word:
                return NO_ROOM

    def _damaged(self, ticket: int) -> StoreCorrupt:
        return StoreCorrupt(
            f"{self.name} has ticket {ticket} for its next one, whose place is rounds ahead: "
            "memory was damaged; remove the queue, and make it anew"
        )

    def _make(self, data: bytes, node: int) -> int:
        """Write a large element to an object, last in the client's journal; 0: there is no memory
        ready."""
        if len(data) > self.heap.value_max(1):
            raise ValueTooLarge(
                f"the element takes {len(data)} bytes; an object has room for "
                f"{self.heap.value_max(1)} here"
            )
        reference = self.allocator.allocate(node, len(data), 1)
        if reference:
            self.endpoint.post_gather(reference & ADDRESS_MASK, self.header, 0, data, b"")
        return reference

    def _fill(self, slot: int, place: int, data: bytes, reference: int, index: int) -> int:
        """Post an element into a slot of ours, whose size and cell are in `header`; of a large one,
        the ticket of a look at the channel's mark."""
        endpoint = self.endpoint
        large = self.header[0] > self.item_size
        cell = self.header[1]
        self.header[0] = len(data)
        if reference:
            # ORDER: before the link is set: a link has a large size.
            endpoint.post_write(slot + SIZE, self.header, 1)
        if reference or large:
            link = self.slots.link(self.slots.cell(cell, place))
            # CRASH(stale-link): to an element that was got, or of a put that was cut.
            unlink(self.client, link)
        if not reference:
            # ORDER: the cell stays.
            endpoint.post_gather(slot + SIZE, self.header, 2, data, b"")
            return 0
        # ORDER: the journal names the link before it is set.
        self.client.retarget(index, link)
        self.header[0] = reference
        endpoint.post_write(link, self.header, 1)
        # ORDER: before READY, and before the look at the mark, which may be on other nodes.
        endpoint.wait()
        return endpoint.post_load(self.mark.address)

    def _filled(self, reference: int, index: int, mark: int) -> None:
        """Note that the element in that slot is visible to the others."""
        self.unfinished = 0
        if reference:
            if self.endpoint.result(mark) == self.mark.number:
                self.client.drop(index)
            else:
                # The object is still in the journal, so `leave` frees it.
                cas_alone(self.endpoint, self.client.link_addresses[index], reference, 0)
        self.news.wake_one()

    def _give_up(self, row: int, slot: int, reference: int, index: int) -> None:
        """A consumer has skipped the slot while we wrote to it."""
        if reference:
            self.endpoint.store(self.client.link_addresses[index], 0)
            self.client.retarget(index, 0)
        self.release(row, slot)

    def release(self, row: int, slot: int) -> None:
        """Publish that the participant of this row, which is ours, does not write to the slot any
        more."""
        word = load_alone(self.endpoint, slot)
        while word & WRITING and word >> OWNER_SHIFT & OWNER_MASK == row + 1:
            given_up = word >> ROUND_SHIFT << ROUND_SHIFT | SKIPPED
            self.endpoint.post_cas(slot, word, given_up)
            word = load_alone(self.endpoint, slot)
        self.unfinished = 0

    def give_up_all(self, row: int) -> None:
        """Give up the slots that a dead participant of this row, which is ours now, wrote to."""
        for number in range(self.maxsize):
            self.release(row, self.slots.slot(number))

    def abandoned(self, row: int, word: int) -> bool:
        """Whether the owner in a slot's word will not write there any more."""
        owner = word >> OWNER_SHIFT & OWNER_MASK
        if owner == 0 or owner == row + 1:
            return True
        # A row that is being taken over had a dead participant.
        ident = self.participants.word(owner - 1)
        if ident & CLAIMED or not self.participants.lives(ident):
            return True
        # ORDER: the pin after the slot's word: a client whose operation ended with an error, and
        # that is in none now, does not write there any more.
        pin = CLIENT_SLOTS + (ident >> INCARNATION_BITS) * SLOT_SIZE + PIN
        return not self.endpoint.load(pin)

    # ---- getting, in an operation -----------------------------------------------------------

    def take(self, row: int, skip: bool) -> Any:
        """Take the first element, as bytes. A status if there is none: EMPTY; AGAIN: its producer
        is writing it (if `skip`, it is skipped instead); REJOIN: we were declared dead."""
        endpoint = self.endpoint
        while True:
            head = self.next_get
            number = head // self.maxsize
            place = head - number * self.maxsize
            number &= ROUND_MASK
            slot = self.slots.slot(place)
            head_ticket = endpoint.post_load(self.head)
            word_ticket = endpoint.post_load(slot)
            # ORDER: after the word: what it says is there was written before.
            self.image.post(slot + SIZE, self.width)
            endpoint.wait()
            self.next_get = endpoint.result(head_ticket)
            if self.next_get != head:
                continue
            word = endpoint.result(word_ticket)
            ahead = (word >> ROUND_SHIFT) - number & ROUND_MASK
            state = word & STATE_MASK
            if 0 < ahead < LATER or (ahead == 0 and state == SKIPPED):
                if ahead > 1 and load_alone(self.endpoint, self.tail) <= head:
                    raise self._damaged(head)
                # With the phase that reads the head again; likewise the CAS below.
                endpoint.post_cas(self.head, head, head + 1)
            elif ahead or state == FREE:
                return EMPTY
            elif state == READY:
                size, cell = self.image.word(0), 0
                large = size > self.item_size
                if not large:
                    data = self._element(slot, size)
                else:
                    cell = self.image.word(1)
                    data = self._read_large(slot, word, size, self.slots.cell(cell, place))
                    if data is None:
                        continue
                noted = self.notes.note(row, head, data, cell)
                more = self.tasks.more()
                word_ticket = self.tasks.post(more)
                endpoint.wait()
                if not self.tasks.is_done(word_ticket, more):
                    return REJOIN
                taken = (number + 1 & ROUND_MASK) << ROUND_SHIFT | FREE
                if noted:
                    taken |= row + 1 << OWNER_SHIFT
                # CRASH(begun): counted as open, and still in the queue, for another consumer.
                # LINEARIZES: the element is ours, and the data that we read is whole.
                word_ticket = endpoint.post_cas(slot, word, taken)
                endpoint.wait()
                if endpoint.result(word_ticket) != word:
                    self.tasks.end()
                    if noted:
                        self.notes.withdraw(noted - 1)
                    continue
                # CRASH(taken): the slot names us, so others note the element for us, and move the
                # head.
                self.next_get = head + 1
                scope = endpoint.background(True)
                endpoint.post_cas(self.head, head, head + 1)
                word_ticket = self.room.post_look()
                if noted:
                    self.notes.mark_taken(row, noted - 1, slot, head, taken)
                else:
                    self.notes.unsure = False
                    if large:
                        unlink(self.client, self.slots.link(self.slots.cell(cell, place)))
                    endpoint.wait()
                self.room.wake_one_if(endpoint.result(word_ticket))
                endpoint.background(scope)
                return data
            # ORDER: the tail after the slot: if it is not behind the next ticket, no client had put
            # behind this one when we looked at the slot.
            elif load_alone(self.endpoint, self.tail) <= head + 1:
                return EMPTY
            elif not skip:
                return AGAIN
            else:
                endpoint.post_cas(slot, word, word & ~STATE_MASK | SKIPPED)
                skip = False

    def _element(self, slot: int, size: int) -> bytes:
        """The element of this size in a slot, which `take` has begun to read."""
        least = DATA - SIZE + size + 7 >> 3
        there = self.width
        self.width = max(min(least, IMAGE_SIZE >> 3), there - 1, LEAST)
        if least <= there:
            return self.image.cut(DATA - SIZE, size)
        return self.endpoint.fetch(slot + DATA, size)

    def _read_large(self, slot: int, word: int, size: int, cell: int) -> Any:
        """The large element in a slot, by the link of this cell; None: the slot is not READY."""
        reference = load_alone(self.endpoint, self.slots.link(cell))
        # ORDER: the word after size and link, so that these are of the same element; and before the
        # element, whose memory is not used again while we are pinned.
        if load_alone(self.endpoint, slot) != word:
            return None
        if not reference:
            # The process that removes the queue has freed it.
            raise ChannelRemoved(f"{self.name} was removed")
        return self.endpoint.fetch(reference & ADDRESS_MASK, size)

    # ---- looking, in an operation ---------------------------------------------------------------

    def count(self) -> int:
        """How many elements there are. 2 round trips, and one more for each LOOKED_AT places."""
        endpoint = self.endpoint
        head_ticket = endpoint.post_load(self.head)
        tail_ticket = endpoint.post_load(self.tail)
        endpoint.wait()
        head, tail = endpoint.result(head_ticket), endpoint.result(tail_ticket)
        if head > tail:
            return 0
        # Of all before the last `maxsize` tickets, nothing is there any more.
        if tail - head > self.maxsize:
            head = tail - self.maxsize
        count = 0
        # With the ticket of the tail: that moves with READY, and not before it. A damaged tail may
        # have no next one, so the tickets are counted.
        left = tail - head + 1
        while left:
            here = left if left < LOOKED_AT else LOOKED_AT
            words = self.words_of(head, here)
            for step in range(here):
                number = (head + step) // self.maxsize
                ready = (number & ROUND_MASK) << ROUND_SHIFT | READY
                count += words[step] == ready
            head += here
            left -= here
        return count

    def copies(self, ticket: int, count: int) -> list[bytes]:
        """The elements of so many tickets from this one on that are in the queue, encoded; each as
        it is at one moment."""
        found = []
        for step in range(count):
            number, place = divmod(ticket + step, self.maxsize)
            slot = self.slots.slot(place)
            ready = (number & ROUND_MASK) << ROUND_SHIFT | READY
            if self.endpoint.load(slot) != ready:
                continue
            size = self.endpoint.load(slot + SIZE)
            if size <= self.item_size:
                data = self.endpoint.read(slot + DATA, size)
                # ORDER: after the element: then it was this ticket's all the time.
                there = self.endpoint.load(slot) == ready
            else:
                cell = self.slots.cell(self.endpoint.load(slot + CELL), place)
                data = self._read_large(slot, ready, size, cell)
                there = data is not None
            if there:
                found.append(data)
        return found

    def words_of(self, ticket: int, count: int) -> list[int]:
        """The words of the slots of so many tickets from this one on; 1 round trip."""
        endpoint = self.endpoint
        tickets = []
        for step in range(count):
            place = (ticket + step) % self.maxsize
            tickets.append(endpoint.post_load(self.slots.slot(place)))
        endpoint.wait()
        return [endpoint.result(one) for one in tickets]
