"""The table of a queue with acks: jobs in places, lists of them, and the lock over both.

A job's *word* alone says whether the job is there, which client holds it, and how often it was
delivered. All else that says where a job is (lists, counts, chains of keys) is an index, which can
be made anew from the words. A client changes the words and the index with the lock, within one
operation. So each change of a job is one store of its word, and a client that finds the lock with a
dead holder, or DIRTY, makes the index anew (`rebuild`) before it does anything else.

The queue's own region
    0     lock         the holder's client id; 0: free; DIRTY: free, and the index is in doubt
    8     ticket       the number of the next job; 0: no index was ever made
    16    unfinished   jobs that are ready, delayed or held, without dead letters
    32    lists        for each list: bits 0-31 first place + 1, bits 32-63 last; then its count
    256   news         where consumers sleep (waiting.py)
    320   room         where producers sleep
    384   changes      where clients sleep in `join`, and those that wait for dead letters or
                       results

Lists, each of places that are linked in both directions
    free places; delayed jobs, by the time when they are due; held jobs, the first delivered first;
    dead letters, the oldest first; kept results, by the time until which they are kept; ready jobs
    of priority 0 to 7, by their numbers

The region `.places`: `maxsize` places, then a link for each to its element, then one to its result
(Links), then the heads of chains
    0     word         bits 0-1 state; bit 2 LETTER; bits 4-15 deliveries; bits 16-63 the holder's
                       client id, if HELD
    8     order        the job's number
    16    due          pool clock in us; DELAYED: when it is ready; HELD: when it is given back,
                       or 0; KEPT: until when
    24    level        bits 0-2 priority; bits 3-63 for how many us a result is kept; 0: for none
    32    size         bytes of the element
    40    key          hash of the key for deduplication, or 0
    48    neighbours   in its list: bits 0-31 next place + 1, bits 32-63 the one before
    56    chain        the next place + 1 with a key of the same head
    64    reason       text, why it was given back last; zeros behind
    128   data         of an element of up to `item_size` bytes; a larger one is an object, which
                       the place's link names

    FREE -> READY, DELAYED        put: all other words of the place are written before
    READY -> HELD                 get; deliveries + 1, but for a dead letter
    DELAYED -> READY              it is due
    HELD -> FREE                  ack, by the holder
    HELD -> READY, DELAYED        nack; or another client: the holder is dead, or it is due
    HELD -> READY | LETTER        the same after `max_deliveries`. A dead letter goes READY -> HELD
                                  -> READY as a job does, and keeps LETTER
    HELD | LETTER -> READY        retry: deliveries are 0 again
    HELD -> KEPT                  ack of a job whose result is kept; LETTER | DELAYED. The result is
                                  an object, its size and then its bytes, which a link names
    KEPT -> FREE                  it was kept for its time

A delivery names place, word and order: an `ack` that comes after another client got the job finds
another word, or order, and changes nothing. The same client may hold a dead letter, or a job after
`retry`, with the word of an earlier delivery; so it keeps which of its deliveries of a job is the
last (`JobQueue.mine`).

Round trips. All words of a queue are on one node, whose order is kept. A client that has the lock
is the only one to change them, so it reads what it needs once, and posts its changes, in the order
in which they are written here, with the lock's release behind them:

    put   1 the lock; the queue's own region    no fewer: 2 depends on which place is the first of
          2 the free place                      its list, and 3 on the places beside it
          3 all changes; the lock
    get   likewise, 2 the first ready place
    ack   1 the lock; the region; the place     no fewer: the changes depend on the lock
          2 all changes; the lock

A handle of a submitted job names place and order. It reads the word, and then the order: if that is
still the job's, so was the word.

A place that is linked beside another one is not read: half of its word `neighbours` is set. More
are needed for a key, for an element that is an object, for jobs that are given back or due, which
are put in order, and while the lock is another client's.

Why no job is lost, or delivered by two clients at the same time: with the lock, words are changed
by one client. A lock changes its owner by CAS: from free, from a client that is provably dead
(`Membership.gone` has ended one that stood still for a lease), or from ourselves.

A kill leaves behind: the lock with the id of a dead client. `rebuild` finds the jobs by their
words, and frees objects of places that are FREE. Jobs that a dead client held stay HELD until a
consumer looks (`give_back`).

Known limits: a client that is stopped with the lock stops all others until it goes on, or is ended
after a lease. Two keys with the same hash of 64 bits are the same key. A lock that a client was cut
off with twice (pure build only) is free at the client's next operation.
"""

from __future__ import annotations

from array import array
from typing import Any, Final, NamedTuple

from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.shm.errors import ChannelRemoved, StoreCorrupt
from limpet.stores.channels.channel import Mark
from limpet.stores.channels.jobs.layout import (
    BEHIND,
    CHAIN,
    COUNT,
    DATA,
    DELAYED,
    DELAYED_JOBS,
    DELIVERIES,
    DELIVERY_MAX,
    DELIVERY_SHIFT,
    DIRTY,
    DUE,
    FREE,
    FREE_PLACES,
    HELD,
    HELD_JOBS,
    KEEP_SHIFT,
    KEPT,
    KEY,
    LETTER,
    LETTERS,
    LEVEL,
    LEVELS,
    LINK,
    LIST_COUNT,
    LIST_SIZE,
    LISTS,
    LOCK,
    LOOKS,
    LOW,
    NEAR,
    NOWHERE,
    ORDER,
    OWNER_SHIFT,
    PRIORITIES,
    READY,
    REASON,
    REASON_SIZE,
    REGION,
    RESULTS,
    SIZE,
    STATE_MASK,
    TICKET,
    UNFINISHED,
)
from limpet.stores.channels.layout import LINE, MASK, SPIN
from limpet.stores.channels.phases import cas_alone, load_alone
from limpet.stores.channels.regions.links import unlink
from limpet.stores.core.object_layout import IMAGE_SIZE
from limpet.stores.core.status import DONE, EXISTS, FULL, NO_MEMORY

assert REASON == LINE
assert [*range(8, 72, 8)] == [ORDER, DUE, LEVEL, SIZE, KEY, LINK, CHAIN, REASON]
assert REASON + REASON_SIZE == DATA
DIED: Final = b"its consumer died"
DROPPED: Final = b"its delivery was dropped without ack()"
TIME_OVER: Final = b"its time was over"


class Job:
    """A job as it was delivered: its place, its word and its number, and its element."""

    def __init__(self, number: int, word: int, order: int) -> None:
        self.number = number
        self.word = word
        self.order = order
        self.keep_us = 0
        """For how long its result is kept; 0: it is not."""
        self.data: Any = None
        self.reason = b""

    @property
    def deliveries(self) -> int:
        """How often it was delivered."""
        return self.word >> DELIVERY_SHIFT & DELIVERY_MAX


class JobCopy(NamedTuple):
    """A job as a snapshot has it: its number, its element and the words of its place."""

    order: int
    data: bytes
    level: int
    due: int
    key: int
    deliveries: int
    letter: bool
    reason: bytes


class JobTable:
    """The jobs of one queue. All methods are called in an operation; `lock`, or `look`, before
    the others."""

    def __init__(
        self, pool: Any, control: int, places: int, maxsize: int, stride: int, mark: Mark, name: str
    ) -> None:
        """`control`, `places`: addresses of the two regions. `stride`: bytes of a place."""
        self.client = pool.client
        self.endpoint = pool.endpoint
        self.membership = pool.membership
        self.allocator = pool.allocator
        self.mark = mark
        self.name = name
        self.control = control
        self.places = places
        self.maxsize = maxsize
        self.stride = stride
        self.links = places + maxsize * stride
        self.results = self.links + 8 * maxsize
        self.heads = self.results + 8 * maxsize
        self.item_size = stride - DATA
        self.max_deliveries = 1
        self.header = array("Q", [0] * 8)
        self.words = array("Q", bytes(REGION))
        """The queue's own region up to its lists, as it is while we have the lock."""
        self.near = array("Q", bytes(8 * NEAR))
        self.lines = array("Q", bytes(LINE * NEAR))
        """Places that were read with the lock, and of each its first LINE bytes."""
        self.seen = 0
        """How many places were read with the lock; the last NEAR of them are there."""
        self.image = self.endpoint.image(IMAGE_SIZE)
        self.width = REASON_SIZE >> 3
        """Words from `reason` on that `take` reads at first."""
        self.locked = False
        """The lock may be ours."""
        self.buried = 0
        """A client that is provably dead, or has left."""
        self.holder = 0
        """The holder of the lock when we did not get it."""

    # ---- the lock -------------------------------------------------------------------------------

    def lock(self, place: int) -> bool:
        """Take the lock, and make the index anew if that is in doubt; False: `holder` has it.
        `place`: the number of one that is read in the same phase, or NOWHERE."""
        endpoint = self.endpoint
        at = self.control + LOCK
        mine = self.client.ident
        look = 0
        while True:
            self.locked = True
            # LINEARIZES: a change that was complete before is seen.
            ticket = endpoint.post_cas(at, 0, mine)
            # ORDER: after the CAS: no other client changes them then.
            endpoint.post_read(self.control, self.words, REGION >> 3)
            self.seen = 0
            if place != NOWHERE:
                self._post_place(place)
            endpoint.wait()
            word = endpoint.result(ticket)
            if word == 0:
                # CRASH(locked): the lock with a dead holder; the next one makes the index anew.
                return True
            if word in (mine, DIRTY, self.buried):
                if word == mine or cas_alone(endpoint, at, word, mine) == word:
                    self.rebuild()
                    return True
                continue
            self.locked = False
            look += 1
            if look > LOOKS:
                self.holder = word
                return False
            endpoint.pause(min(look, SPIN))

    def look(self) -> int:
        """Read the queue's own region without the lock; the lock's word. 1 round trip."""
        self.endpoint.post_read(self.control, self.words, REGION >> 3)
        self.endpoint.wait()
        return self.words[LOCK >> 3]

    def end(self, whole: bool) -> None:
        """Give the lock back, if it is ours. Not `whole`: a change was cut off."""
        endpoint = self.endpoint
        at = self.control + LOCK
        mine = self.client.ident
        if self.locked:
            if not whole:
                whole = endpoint.load(at) != mine or self._rebuilt()
            # ORDER: after all changes, on one node.
            endpoint.post_cas(at, mine, 0 if whole else DIRTY)
            endpoint.wait()
            self.locked = False

    def _rebuilt(self) -> bool:
        """`rebuild`, unless memory is lost or damaged: then the next holder tries it."""
        done = False
        try:
            self.rebuild()
            done = True
        finally:
            if not done:
                self.endpoint.cas(self.control + LOCK, self.client.ident, DIRTY)
                self.locked = False
        return done

    # ---- words, with the lock -------------------------------------------------------------------

    def _post_place(self, number: int) -> int:
        """Post the read of a place; where in `lines` its words will be."""
        base = self.seen % NEAR
        self.near[base] = number
        self.seen += 1
        base *= LINE >> 3
        at = self.places + number * self.stride
        self.endpoint.post_read(at, self.lines, LINE >> 3, base)
        return base

    def _base(self, number: int) -> int:
        """Where in `lines` the words of a place are; NOWHERE: it was not read."""
        found = NOWHERE
        for base in range(min(self.seen, NEAR)):
            if self.near[base] == number:
                found = base * (LINE >> 3)
        return found

    def _word(self, number: int, offset: int) -> int:
        """A word of a place; a phase, if it was not read."""
        base = self._base(number)
        if base == NOWHERE:
            base = self._post_place(number)
            self.endpoint.wait()
        return self.lines[base + (offset >> 3)]

    def _set(self, number: int, offset: int, word: int) -> None:
        """Post that a word of a place is set."""
        base = self._base(number)
        if base != NOWHERE:
            self.lines[base + (offset >> 3)] = word
        self.header[0] = word
        self.endpoint.post_write(self.places + number * self.stride + offset, self.header, 1)

    def _set_half(self, number: int, shift: int, place: int) -> None:
        """Post that one neighbour of a place is set: the next one (`shift` 0), or that before."""
        base = self._base(number)
        mask = LOW
        mask <<= shift
        if base != NOWHERE:
            base += LINK >> 3
            self.lines[base] = self.lines[base] & ~mask & MASK | place << shift
        at = self.places + number * self.stride + LINK
        self.endpoint.post_mcas(at, 0, place << shift, 0, mask)

    def _post_control(self, offset: int, count: int) -> None:
        """Post the write of so many words of `words`."""
        self.endpoint.post_write(self.control + offset, self.words, count, offset >> 3)

    # ---- jobs -------------------------------------------------------------------------------

    def put(self, data: bytes, level: int, due: int, key: int) -> int:
        """Put an encoded element: DONE; EXISTS: a job with that key is there; FULL; NO_MEMORY."""
        endpoint = self.endpoint
        if key and self._find(key):
            return EXISTS
        place = self._first(FREE_PLACES)
        if not place:
            return FULL
        number = self._number(place)
        size = len(data)
        reference, index = 0, 0
        if size > self.item_size:
            # CRASH(linked): a place that is FREE with a link; `rebuild` frees the object.
            reference = self._link(self.links + 8 * number, 0, data)
            if not reference:
                return NO_MEMORY
            index = self.client.held - 1
        self._remove(FREE_PLACES, number)
        at = self.places + number * self.stride
        base = self._base(number)
        order = self.words[TICKET >> 3]
        self.words[TICKET >> 3] = order + 1
        for offset in range(8):
            self.header[offset] = 0
        self.header[0] = order
        self.header[1] = due
        self.header[2] = level
        self.header[3] = size
        self.header[4] = key
        for offset in range(7):
            self.lines[base + 1 + offset] = self.header[offset]
        # The other words of these eight are 0, to the first of the reason.
        endpoint.post_write(at + ORDER, self.header, 8)
        if not reference:
            endpoint.post_gather(at + DATA, self.header, 0, data, b"")
        # ORDER: last, after all that it says is there.
        # LINEARIZES: the job is in the queue.
        # CRASH(put): the job is there, and in no list.
        self._set(number, 0, DELAYED if due else READY)
        self._enlist(number, DELAYED if due else READY)
        self._chain(number, key)
        self._count(1)
        if reference:
            self._linked(self.links + 8 * number, reference, index)
        return DONE

    def _link(self, link: int, words: int, data: bytes) -> int:
        """Make an object of so many words of `header`, and data, and post the link to it; its
        reference, which is the last one in the journal; 0: no memory."""
        reference = self.allocator.allocate(self.node(), 8 * words + len(data), 1)
        if not reference:
            return 0
        self.endpoint.post_gather(reference & ADDRESS_MASK, self.header, words, data, b"")
        # ORDER: the journal names the link before it is set.
        self.client.retarget(self.client.held - 1, link)
        self.header[0] = reference
        self.endpoint.post_write(link, self.header, 1)
        return reference

    def _linked(self, link: int, reference: int, index: int) -> None:
        """After the change that needs it: take the object of `_link` out of the journal."""
        endpoint = self.endpoint
        # ORDER: the link before the look at the mark, which may be on another node.
        endpoint.wait()
        ticket = endpoint.post_load(self.mark.address)
        endpoint.wait()
        if endpoint.result(ticket) == self.mark.number:
            self.client.drop(index)
        else:
            # The object is still in the journal, so `leave` frees it.
            endpoint.cas(link, reference, 0)

    def take(self, letters: bool, due: int) -> Any:
        """Deliver the first ready job, or dead letter, to us; a Job, or None. `due`: when it is
        given back."""
        endpoint = self.endpoint
        kind = LETTERS if letters else LIST_COUNT - 1
        place = self._first(kind)
        while not place and kind > LEVELS:
            kind -= 1
            place = self._first(kind)
        if not place:
            return None
        number = self._number(place)
        at = self.places + number * self.stride
        base = self._base(number)
        if base == NOWHERE:
            base = self._post_place(number)
        width = self.width
        self.image.post(at + REASON, width)
        endpoint.wait()
        word = self.lines[base]
        if word & STATE_MASK != READY:
            raise self._damaged(number)
        count = word >> DELIVERY_SHIFT & DELIVERY_MAX
        if not letters and count < DELIVERY_MAX:
            count += 1
        held = self.client.ident << OWNER_SHIFT | count << DELIVERY_SHIFT | word & LETTER | HELD
        job = Job(number, held, self.lines[base + (ORDER >> 3)])
        job.keep_us = self.lines[base + (LEVEL >> 3)] >> KEEP_SHIFT
        size = self.lines[base + (SIZE >> 3)]
        if self.image.word(0):
            job.reason = self.image.cut(0, REASON_SIZE)
        if size <= self.item_size:
            least = REASON_SIZE + size + 7 >> 3
            self.width = max(min(least, IMAGE_SIZE >> 3), width - 1)
            if least <= width:
                job.data = self.image.cut(REASON_SIZE, size)
            else:
                job.data = endpoint.fetch(at + DATA, size)
        else:
            ticket = endpoint.post_load(self.links + 8 * number)
            endpoint.wait()
            reference = endpoint.result(ticket)
            if not reference:
                # The process that removes the queue has freed it.
                raise ChannelRemoved(f"{self.name} was removed")
            job.data = endpoint.fetch(reference & ADDRESS_MASK, size)
        self._set(number, DUE, due)
        # LINEARIZES: the job is ours, and counted as delivered.
        # CRASH(taken): HELD by a dead client; `give_back` finds it.
        self._set(number, 0, held)
        self._remove(kind, number)
        self._append(HELD_JOBS, number)
        return job

    def is_held(self, number: int, word: int, order: int) -> bool:
        """Whether the job of this delivery is still held by it."""
        return self._word(number, 0) == word and self._word(number, ORDER) == order

    def ack(self, number: int) -> None:
        """Take a job that we hold out of the queue."""
        letter = self._word(number, 0) & LETTER
        key = self._word(number, KEY)
        # LINEARIZES: the job is done.
        # CRASH(acked): FREE, perhaps with an object, and in the list of held jobs.
        self._set(number, 0, FREE)
        if self._word(number, SIZE) > self.item_size:
            unlink(self.client, self.links + 8 * number)
        self._remove(HELD_JOBS, number)
        if key:
            self._unchain(number, key)
        self._insert(FREE_PLACES, number, 0)
        if not letter:
            self._count(-1)

    def keep(self, number: int, due: int, data: bytes) -> bool:
        """Take a job that we hold out of the queue, and keep its result until `due`; False: no
        memory."""
        letter = self._word(number, 0) & LETTER
        key = self._word(number, KEY)
        link = self.results + 8 * number
        # That of a client which was killed at its `keep`: no client has seen it.
        unlink(self.client, link)
        self.header[0] = len(data)
        # CRASH(result-linked): a place that is HELD with a result; the next `keep` frees it.
        reference = self._link(link, 1, data)
        if not reference:
            return False
        index = self.client.held - 1
        self._set(number, DUE, due)
        # LINEARIZES: the job is done, and has its result.
        # CRASH(kept): KEPT, perhaps with the object of its element, and in the list of held jobs.
        self._set(number, 0, self._word(number, 0) & DELIVERIES | KEPT)
        self._remove(HELD_JOBS, number)
        if key:
            self._unchain(number, key)
        self._enlist(number, KEPT)
        if not letter:
            self._count(-1)
        self._linked(link, reference, index)
        if self._word(number, SIZE) > self.item_size:
            unlink(self.client, self.links + 8 * number)
        return True

    def forget(self, now: int, most: int) -> int:
        """Free places whose results were kept until now, at most so many; how many."""
        done = 0
        place = self._first(RESULTS)
        while place and done < most:
            number = self._number(place)
            if self._word(number, DUE) > now:
                break
            # LINEARIZES: it is forgotten.
            self._set(number, 0, FREE)
            unlink(self.client, self.results + 8 * number)
            if self._word(number, SIZE) > self.item_size:
                unlink(self.client, self.links + 8 * number)
            self._remove(RESULTS, number)
            self._insert(FREE_PLACES, number, 0)
            done += 1
            place = self._first(RESULTS)
        return done

    def place_for(self, key: int) -> int:
        """Where `put` puts a job, or finds the one with that key: the place + 1; 0: nowhere."""
        return (self._find(key) if key else 0) or self._first(FREE_PLACES)

    def order(self, number: int) -> int:
        """The number of the job of a place."""
        return self._word(number, ORDER)

    def look_at(self, number: int, order: int) -> int:
        """The word of a job that was there, FREE if it is gone. Without the lock; 1 round trip."""
        at = self.places + number * self.stride
        word = self.endpoint.post_load(at)
        # ORDER: after the word, which is this job's if this is.
        ticket = self.endpoint.post_load(at + ORDER)
        self.endpoint.wait()
        return self.endpoint.result(word) if self.endpoint.result(ticket) == order else FREE

    def due(self, number: int) -> int:
        """Until when a result is kept."""
        return self._word(number, DUE)

    def result(self, number: int) -> bytes:
        """The result of a job that is KEPT."""
        address = load_alone(self.endpoint, self.results + 8 * number) & ADDRESS_MASK
        if not address:
            # The process that removes the queue has freed it.
            raise ChannelRemoved(f"{self.name} was removed")
        return self.endpoint.fetch(address + 8, load_alone(self.endpoint, address))

    def reason(self, number: int) -> bytes:
        """Why a job was given back last."""
        return self.endpoint.fetch(self.places + number * self.stride + REASON, REASON_SIZE)

    def extend(self, number: int, due: int) -> None:
        """Set when a job that we hold is given back."""
        self._set(number, DUE, due)

    def release(self, number: int, due: int, reason: bytes) -> bool:
        """Give a held job back, at `due` or at once (0); whether it is a new dead letter. Without a
        reason the last one stays."""
        word = self._word(number, 0)
        letter = word & LETTER
        if not letter and (word >> DELIVERY_SHIFT & DELIVERY_MAX) >= self.max_deliveries:
            letter = LETTER
        state = DELAYED if due and not letter else READY
        if reason:
            text = reason + bytes(REASON_SIZE - len(reason))
            at = self.places + number * self.stride + REASON
            self.endpoint.post_gather(at, self.header, 0, text, b"")
        self._set(number, DUE, due)
        # LINEARIZES: the job is given back.
        # CRASH(given-back): READY, and in the list of held jobs.
        self._set(number, 0, word & DELIVERIES | letter | state)
        self._remove(HELD_JOBS, number)
        self._enlist(number, letter | state)
        if letter != word & LETTER:
            self._count(-1)
            return True
        return False

    def retry(self, number: int) -> None:
        """Make a dead letter that we hold a job again, as if it was never delivered."""
        # LINEARIZES: it is a job.
        self._set(number, 0, READY)
        self._remove(HELD_JOBS, number)
        self._enlist(number, READY)
        self._count(1)

    def give_back(self, now: int, mine: dict[int, Job]) -> tuple[int, int]:
        """Give back the jobs that are held by dead clients, or too long, or by us and not as one of
        `mine`: how many jobs can be got again, and how many became dead letters."""
        there = self._ends(HELD_JOBS) >> BEHIND
        again = letters = steps = owner = 0
        lives = True
        while there:
            number = self._number(there)
            steps += 1
            if steps > self.maxsize:
                raise self._damaged(number)
            there = self._word(number, LINK) >> BEHIND
            word = self._word(number, 0)
            due = self._word(number, DUE)
            if word >> OWNER_SHIFT != owner:
                owner = word >> OWNER_SHIFT
                lives = owner == self.client.ident or self.membership.lives(owner)
            dropped = False
            if owner == self.client.ident:
                job = mine.get(self._word(number, ORDER))
                dropped = job is None or job.word != word
            if not lives or dropped or 0 < due <= now:
                reason = DROPPED if dropped else TIME_OVER if lives else DIED
                if self.release(number, 0, reason):
                    letters += 1
                else:
                    again += 1
        return again, letters

    def ready_due(self, now: int) -> int:
        """Make the delayed jobs ready that are due; when the next one is, or 0."""
        place = self._first(DELAYED_JOBS)
        while place:
            number = self._number(place)
            due = self._word(number, DUE)
            if due > now:
                return due
            # LINEARIZES: it is ready.
            self._set(number, 0, self._word(number, 0) & DELIVERIES | READY)
            self._remove(DELAYED_JOBS, number)
            self._enlist(number, READY)
            place = self._first(DELAYED_JOBS)
        return 0

    def count(self, kind: int) -> int:
        """How many places a list has; with the lock, or after `look`."""
        return self.words[LISTS + LIST_SIZE * kind + COUNT >> 3]

    def ready(self) -> int:
        """How many jobs are ready."""
        others = self.count(FREE_PLACES) + self.count(LETTERS) + self.count(RESULTS)
        others += self.count(DELAYED_JOBS) + self.count(HELD_JOBS)
        # Without the lock, a job may be seen in two lists.
        return self.maxsize - others if others < self.maxsize else 0

    def unfinished(self) -> int:
        """How many jobs are ready, delayed or held; with the lock, or after `look`."""
        return self.words[UNFINISHED >> 3]

    def node(self) -> int:
        """The memory node of the queue."""
        return self.places >> 40

    # ---- the index ------------------------------------------------------------------------------

    def copies(self, first: int, count: int) -> list[JobCopy]:
        """The jobs in so many places from this one on, but for results. With the lock."""
        endpoint = self.endpoint
        found = []
        for number in range(first, min(first + count, self.maxsize)):
            at = self.places + number * self.stride
            word = endpoint.load(at)
            state = word & STATE_MASK
            if state == FREE or word & KEPT == KEPT:
                continue
            size = endpoint.load(at + SIZE)
            if size <= self.item_size:
                data = endpoint.read(at + DATA, size)
            else:
                reference = endpoint.load(self.links + 8 * number)
                data = endpoint.fetch(reference & ADDRESS_MASK, size)
            deliveries = (word & DELIVERIES) >> DELIVERY_SHIFT
            if state == HELD and not word & LETTER:
                deliveries -= 1  # of the delivery that is under way nothing is known
            found.append(JobCopy(
                endpoint.load(at + ORDER),
                data,
                endpoint.load(at + LEVEL),
                endpoint.load(at + DUE) if state == DELAYED else 0,
                endpoint.load(at + KEY),
                deliveries,
                bool(word & LETTER),
                endpoint.read(at + REASON, REASON_SIZE).rstrip(b"\0"),
            ))  # fmt: skip
        return found

    def amend(self, number: int, job: JobCopy) -> None:
        """Give a job that was put, which no other client knows, its key, deliveries and reason, and
        make it a dead letter if it was one. `rebuild` then finds where it belongs. With the lock.
        """
        at = self.places + number * self.stride
        self.endpoint.store(at + KEY, job.key)
        self.endpoint.write(at + REASON, job.reason.ljust(REASON_SIZE, b"\0"))
        word = self.endpoint.load(at) | job.deliveries << DELIVERY_SHIFT | (job.letter and LETTER)
        self.endpoint.store(at, word)

    def rebuild(self) -> None:
        """Make the index anew from the jobs' words, and free the objects of free places."""
        endpoint = self.endpoint
        self.seen = 0
        for offset in range(LISTS, LISTS + LIST_SIZE * LIST_COUNT, 8):
            self.words[offset >> 3] = 0
        self._post_control(LISTS, LIST_SIZE * LIST_COUNT >> 3)
        for number in range(self.maxsize):
            endpoint.store(self.heads + 8 * number, 0)
        jobs = []
        ticket = unfinished = 0
        for number in range(self.maxsize):
            at = self.places + number * self.stride
            word = endpoint.load(at)
            if word & STATE_MASK == FREE:
                # CRASH(rebuilding): the lock with a dead holder; the next one begins anew.
                unlink(self.client, self.links + 8 * number)
                unlink(self.client, self.results + 8 * number)
                self._append(FREE_PLACES, number)
                continue
            order = endpoint.load(at + ORDER)
            ticket = max(ticket, order)
            unfinished += not word & LETTER
            jobs.append((order, number, word))
        for _, number, word in sorted(jobs):
            self._set(number, CHAIN, 0)
            if word & KEPT != KEPT:
                self._chain(number, self._word(number, KEY))
            self._enlist(number, word & (STATE_MASK | LETTER))
        self.words[UNFINISHED >> 3] = unfinished
        self.words[TICKET >> 3] = max(ticket + 1, endpoint.load(self.control + TICKET))
        self._post_control(TICKET, 2)
        endpoint.wait()

    def _number(self, place: int) -> int:
        """The number of a place that a list names."""
        if place == 0 or place > self.maxsize:
            raise self._damaged(place - 1)
        return place - 1

    def _damaged(self, number: int) -> StoreCorrupt:
        return StoreCorrupt(
            f"{self.name} has a list with place {number} of {self.maxsize} in the wrong state: "
            "memory was damaged; its lists are made anew"
        )

    def _count(self, more: int) -> None:
        self.words[UNFINISHED >> 3] = self.words[UNFINISHED >> 3] + more & MASK
        # `rebuild` finds a ticket that is behind all jobs, if this comes too late.
        self._post_control(TICKET, 2)

    def _ends(self, kind: int) -> int:
        """The first place of a list, and the last."""
        return self.words[LISTS + LIST_SIZE * kind >> 3]

    def _set_ends(self, kind: int, ends: int, more: int) -> None:
        """Post that a list has these ends, and so many places more."""
        offset = LISTS + LIST_SIZE * kind
        self.words[offset >> 3] = ends
        self.words[offset + COUNT >> 3] = self.words[offset + COUNT >> 3] + more & MASK
        self._post_control(offset, 2)

    def _first(self, kind: int) -> int:
        """The first place of a list, plus 1; 0: it is empty."""
        return self._ends(kind) & LOW

    def _enlist(self, number: int, state: int) -> None:
        """Put a job into the list of its state, perhaps with LETTER, in its order."""
        steps = 0
        if state == HELD or state == HELD | LETTER:
            self._append(HELD_JOBS, number)
        elif state in (DELAYED, KEPT):
            kind = DELAYED_JOBS if state == DELAYED else RESULTS
            due = self._word(number, DUE)
            place = self._ends(kind) >> BEHIND
            while place and steps < self.maxsize:
                other = self._number(place)
                if self._word(other, DUE) <= due:
                    break
                place = self._word(other, LINK) >> BEHIND
                steps += 1
            self._insert(kind, number, place)
        elif state & LETTER:
            self._append(LETTERS, number)
        else:
            kind = LEVELS + self._word(number, LEVEL) % PRIORITIES
            order = self._word(number, ORDER)
            before = self._ends(kind) >> BEHIND
            # The job that was put last is behind all others.
            if before and order + 1 != self.words[TICKET >> 3] and self._order(before) > order:
                # It was given back, and is older than most.
                place, before = self._first(kind), 0
                while place and self._order(place) < order and steps < self.maxsize:
                    before = place
                    place = self._word(self._number(place), LINK) & LOW
                    steps += 1
            self._insert(kind, number, before)

    def _order(self, place: int) -> int:
        return self._word(self._number(place), ORDER)

    def _append(self, kind: int, number: int) -> None:
        """Add a place at the end of a list."""
        self._insert(kind, number, self._ends(kind) >> BEHIND)

    def _insert(self, kind: int, number: int, before: int) -> None:
        """Add a place to a list behind the place `before`; 0: at its beginning."""
        ends = self._ends(kind)
        first, last = ends & LOW, ends >> BEHIND
        following = first
        if before:
            other = self._number(before)
            following = 0 if before == last else self._word(other, LINK) & LOW
            self._set_half(other, 0, number + 1)
        else:
            first = number + 1
        if following:
            self._set_half(self._number(following), BEHIND, number + 1)
        else:
            last = number + 1
        self._set(number, LINK, before << BEHIND | following)
        self._set_ends(kind, last << BEHIND | first, 1)

    def _remove(self, kind: int, number: int) -> None:
        """Take a place out of a list."""
        link = self._word(number, LINK)
        ends = self._ends(kind)
        first, last = ends & LOW, ends >> BEHIND
        following, before = link & LOW, link >> BEHIND
        if before:
            self._set_half(self._number(before), 0, following)
        else:
            first = following
        if following:
            self._set_half(self._number(following), BEHIND, before)
        else:
            last = before
        self._set_ends(kind, last << BEHIND | first, -1)

    # ---- keys -----------------------------------------------------------------------------------

    def _find(self, key: int) -> int:
        """The place + 1 of a job with this key, dead letters left out; 0: there is none."""
        place = load_alone(self.endpoint, self.heads + 8 * (key % self.maxsize))
        steps = 0
        while place:
            number = self._number(place)
            if self._word(number, KEY) == key and not self._word(number, 0) & LETTER:
                return place
            place = self._word(number, CHAIN)
            steps += 1
            if steps > self.maxsize:
                raise self._damaged(place)
        return 0

    def _chain(self, number: int, key: int) -> None:
        """Make the job of this place one that is found by its key."""
        if key:
            head = self.heads + 8 * (key % self.maxsize)
            self._set(number, CHAIN, load_alone(self.endpoint, head))
            self.header[0] = number + 1
            self.endpoint.post_write(head, self.header, 1)

    def _unchain(self, number: int, key: int) -> None:
        """The reverse."""
        at = self.heads + 8 * (key % self.maxsize)
        following = self._word(number, CHAIN)
        place = load_alone(self.endpoint, at)
        before = 0
        steps = 0
        while place != number + 1:
            before = place
            place = self._word(self._number(before), CHAIN)
            steps += 1
            if steps > self.maxsize:
                raise self._damaged(number)
        if before:
            self._set(self._number(before), CHAIN, following)
        else:
            self.header[0] = following
            self.endpoint.post_write(at, self.header, 1)
