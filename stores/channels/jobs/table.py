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
    64    lists        for each list: bits 0-31 first place + 1, bits 32-63 last; then its count
    256   news         where consumers sleep (waiting.py)
    320   room         where producers sleep
    384   changes      where clients sleep in `join`, and those that wait for dead letters

Lists, each of places that are linked in both directions
    free places; delayed jobs, by the time when they are due; held jobs, the first delivered first;
    dead letters, the oldest first; ready jobs of priority 0 to 7, by their numbers

The region `.places`: `maxsize` places, then a link for each (Links), then the heads of chains
    0     word         bits 0-1 state; bit 2 LETTER; bits 4-15 deliveries; bits 16-63 the holder's
                       client id, if HELD
    8     order        the job's number
    16    due          pool clock in us; DELAYED: when it is ready; HELD: when it is given back,
                       or 0
    24    level        priority, 0 to 7
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

A delivery names place, word and order: an `ack` that comes after another client got the job finds
another word, or order, and changes nothing. The same client may hold a dead letter, or a job after
`retry`, with the word of an earlier delivery; so it keeps which of its deliveries of a job is the
last (`JobQueue.mine`).

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
from typing import Any, Final

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
    ORDER,
    OWNER_SHIFT,
    PRIORITIES,
    READY,
    REASON,
    REASON_SIZE,
    SIZE,
    STATE_MASK,
    TICKET,
    UNFINISHED,
)
from limpet.stores.channels.layout import MASK, SPIN
from limpet.stores.channels.regions.links import unlink
from limpet.stores.core.status import DONE, EXISTS, FULL, NO_MEMORY

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
        self.data: Any = None
        self.reason = b""

    @property
    def deliveries(self) -> int:
        """How often it was delivered."""
        return self.word >> DELIVERY_SHIFT & DELIVERY_MAX


class JobTable:
    """The jobs of one queue. All methods are called in an operation; `lock` before the others."""

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
        self.heads = self.links + 8 * maxsize
        self.item_size = stride - DATA
        self.max_deliveries = 1
        self.header = array("Q", [0] * 8)
        self.buried = 0
        """A client that is provably dead, or has left."""
        self.holder = 0
        """The holder of the lock when we did not get it."""

    # ---- the lock -------------------------------------------------------------------------------

    def lock(self) -> bool:
        """Take the lock, and make the index anew if that is in doubt; False: `holder` has it."""
        endpoint = self.endpoint
        at = self.control + LOCK
        mine = self.client.ident
        look = 0
        while True:
            # LINEARIZES: a change that was complete before is seen.
            word = endpoint.cas(at, 0, mine)
            if word == 0:
                # CRASH(locked): the lock with a dead holder; the next one makes the index anew.
                return True
            if word in (mine, DIRTY, self.buried):
                if word == mine or endpoint.cas(at, word, mine) == word:
                    self.rebuild()
                    return True
                continue
            look += 1
            if look > LOOKS:
                self.holder = word
                return False
            endpoint.pause(min(look, SPIN))

    def end(self, whole: bool) -> None:
        """Give the lock back, if it is ours. Not `whole`: a change was cut off."""
        endpoint = self.endpoint
        at = self.control + LOCK
        mine = self.client.ident
        if endpoint.load(at) == mine:
            if not whole:
                whole = self._rebuilt()
            endpoint.wait()
            endpoint.cas(at, mine, 0 if whole else DIRTY)

    def _rebuilt(self) -> bool:
        """`rebuild`, unless memory is lost or damaged: then the next holder tries it."""
        done = False
        try:
            self.rebuild()
            done = True
        finally:
            if not done:
                self.endpoint.cas(self.control + LOCK, self.client.ident, DIRTY)
        return done

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
            reference = self.allocator.allocate(self.node(), size, 1)
            if not reference:
                return NO_MEMORY
            index = self.client.held - 1
            endpoint.write(reference & ADDRESS_MASK, data)
            # ORDER: the journal names the link before it is set.
            self.client.retarget(index, self.links + 8 * number)
            # CRASH(linked): a place that is FREE with a link; `rebuild` frees the object.
            endpoint.store(self.links + 8 * number, reference)
        self._remove(FREE_PLACES, number)
        at = self.places + number * self.stride
        header = self.header
        header[0] = endpoint.load(self.control + TICKET)
        header[1] = due
        header[2] = level
        header[3] = size
        header[4] = key
        endpoint.store(self.control + TICKET, header[0] + 1)
        # The other words of these eight are 0, to the first of the reason.
        endpoint.write_words(at + ORDER, header, 8)
        if not reference:
            endpoint.write(at + DATA, data)
        # ORDER: last, after all that it says is there.
        # LINEARIZES: the job is in the queue.
        # CRASH(put): the job is there, and in no list.
        endpoint.store(at, DELAYED if due else READY)
        self._enlist(number, DELAYED if due else READY)
        self._chain(number, key)
        self._count(1)
        if reference:
            if endpoint.load(self.mark.address) == self.mark.number:
                self.client.drop(index)
            else:
                # The object is still in the journal, so `leave` frees it.
                endpoint.cas(self.links + 8 * number, reference, 0)
        return DONE

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
        word = endpoint.load(at)
        if word & STATE_MASK != READY:
            raise self._damaged(number)
        count = word >> DELIVERY_SHIFT & DELIVERY_MAX
        if not letters and count < DELIVERY_MAX:
            count += 1
        held = self.client.ident << OWNER_SHIFT | count << DELIVERY_SHIFT | word & LETTER | HELD
        job = Job(number, held, endpoint.load(at + ORDER))
        size = endpoint.load(at + SIZE)
        if size <= self.item_size:
            job.data = endpoint.read(at + DATA, size)
        else:
            reference = endpoint.load(self.links + 8 * number)
            if not reference:
                # The process that removes the queue has freed it.
                raise ChannelRemoved(f"{self.name} was removed")
            job.data = endpoint.read(reference & ADDRESS_MASK, size)
        if endpoint.load(at + REASON):
            job.reason = endpoint.read(at + REASON, REASON_SIZE)
        endpoint.store(at + DUE, due)
        # LINEARIZES: the job is ours, and counted as delivered.
        # CRASH(taken): HELD by a dead client; `give_back` finds it.
        endpoint.store(at, held)
        self._remove(kind, number)
        self._append(HELD_JOBS, number)
        return job

    def is_held(self, number: int, word: int, order: int) -> bool:
        """Whether the job of this delivery is still held by it."""
        at = self.places + number * self.stride
        return self.endpoint.load(at) == word and self.endpoint.load(at + ORDER) == order

    def ack(self, number: int) -> None:
        """Take a job that we hold out of the queue."""
        at = self.places + number * self.stride
        letter = self.endpoint.load(at) & LETTER
        key = self.endpoint.load(at + KEY)
        # LINEARIZES: the job is done.
        # CRASH(acked): FREE, perhaps with an object, and in the list of held jobs.
        self.endpoint.store(at, FREE)
        unlink(self.client, self.links + 8 * number)
        self._remove(HELD_JOBS, number)
        if key:
            self._unchain(number, key)
        self._insert(FREE_PLACES, number, 0)
        if not letter:
            self._count(-1)

    def extend(self, number: int, due: int) -> None:
        """Set when a job that we hold is given back."""
        self.endpoint.store(self.places + number * self.stride + DUE, due)

    def release(self, number: int, due: int, reason: bytes) -> bool:
        """Give a held job back, at `due` or at once (0); whether it is a new dead letter. Without a
        reason the last one stays."""
        endpoint = self.endpoint
        at = self.places + number * self.stride
        word = endpoint.load(at)
        letter = word & LETTER
        if not letter and (word >> DELIVERY_SHIFT & DELIVERY_MAX) >= self.max_deliveries:
            letter = LETTER
        state = DELAYED if due and not letter else READY
        if reason:
            endpoint.write(at + REASON, reason + bytes(REASON_SIZE - len(reason)))
        endpoint.store(at + DUE, due)
        # LINEARIZES: the job is given back.
        # CRASH(given-back): READY, and in the list of held jobs.
        endpoint.store(at, word & DELIVERIES | letter | state)
        self._remove(HELD_JOBS, number)
        self._enlist(number, letter | state)
        if letter != word & LETTER:
            self._count(-1)
            return True
        return False

    def retry(self, number: int) -> None:
        """Make a dead letter that we hold a job again, as if it was never delivered."""
        # LINEARIZES: it is a job.
        self.endpoint.store(self.places + number * self.stride, READY)
        self._remove(HELD_JOBS, number)
        self._enlist(number, READY)
        self._count(1)

    def give_back(self, now: int, mine: dict[int, Job]) -> tuple[int, int]:
        """Give back the jobs that are held by dead clients, or too long, or by us and not as one of
        `mine`: how many jobs can be got again, and how many became dead letters."""
        endpoint = self.endpoint
        there = endpoint.load(self.control + LISTS + LIST_SIZE * HELD_JOBS) >> BEHIND
        again = letters = steps = owner = 0
        lives = True
        while there:
            number = self._number(there)
            steps += 1
            if steps > self.maxsize:
                raise self._damaged(number)
            at = self.places + number * self.stride
            there = endpoint.load(at + LINK) >> BEHIND
            word = endpoint.load(at)
            due = endpoint.load(at + DUE)
            if word >> OWNER_SHIFT != owner:
                owner = word >> OWNER_SHIFT
                lives = owner == self.client.ident or self.membership.lives(owner)
            dropped = False
            if owner == self.client.ident:
                job = mine.get(endpoint.load(at + ORDER))
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
        endpoint = self.endpoint
        place = self._first(DELAYED_JOBS)
        while place:
            number = self._number(place)
            at = self.places + number * self.stride
            due = endpoint.load(at + DUE)
            if due > now:
                return due
            # LINEARIZES: it is ready.
            endpoint.store(at, endpoint.load(at) & DELIVERIES | READY)
            self._remove(DELAYED_JOBS, number)
            self._enlist(number, READY)
            place = self._first(DELAYED_JOBS)
        return 0

    def count(self, kind: int) -> int:
        """How many places a list has."""
        return self.endpoint.load(self.control + LISTS + LIST_SIZE * kind + COUNT)

    def ready(self) -> int:
        """How many jobs are ready."""
        others = self.count(FREE_PLACES) + self.count(LETTERS)
        others += self.count(DELAYED_JOBS) + self.count(HELD_JOBS)
        # Without the lock, a job may be seen in two lists.
        return self.maxsize - others if others < self.maxsize else 0

    def unfinished(self) -> int:
        """How many jobs are ready, delayed or held."""
        return self.endpoint.load(self.control + UNFINISHED)

    def node(self) -> int:
        """The memory node of the queue."""
        return self.places >> 40

    # ---- the index ------------------------------------------------------------------------------

    def rebuild(self) -> None:
        """Make the index anew from the jobs' words, and free the objects of free places."""
        endpoint = self.endpoint
        for at in range(self.control + LISTS, self.control + LISTS + LIST_SIZE * LIST_COUNT, 8):
            endpoint.store(at, 0)
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
                self._append(FREE_PLACES, number)
                continue
            order = endpoint.load(at + ORDER)
            ticket = max(ticket, order)
            unfinished += not word & LETTER
            jobs.append((order, number, word))
        for _, number, word in sorted(jobs):
            key = endpoint.load(self.places + number * self.stride + KEY)
            endpoint.store(self.places + number * self.stride + CHAIN, 0)
            self._chain(number, key)
            self._enlist(number, word & (STATE_MASK | LETTER))
        endpoint.store(self.control + UNFINISHED, unfinished)
        ticket = max(ticket + 1, endpoint.load(self.control + TICKET))
        endpoint.store(self.control + TICKET, ticket)

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
        at = self.control + UNFINISHED
        self.endpoint.store(at, self.endpoint.load(at) + more & MASK)

    def _first(self, kind: int) -> int:
        """The first place of a list, plus 1; 0: it is empty."""
        return self.endpoint.load(self.control + LISTS + LIST_SIZE * kind) & LOW

    def _enlist(self, number: int, state: int) -> None:
        """Put a job into the list of its state, perhaps with LETTER, in its order."""
        endpoint = self.endpoint
        at = self.places + number * self.stride
        steps = 0
        if state == HELD or state == HELD | LETTER:
            self._append(HELD_JOBS, number)
        elif state == DELAYED:
            due = endpoint.load(at + DUE)
            place = endpoint.load(self.control + LISTS + LIST_SIZE * DELAYED_JOBS) >> BEHIND
            while place and steps < self.maxsize:
                other = self.places + self._number(place) * self.stride
                if endpoint.load(other + DUE) <= due:
                    break
                place = endpoint.load(other + LINK) >> BEHIND
                steps += 1
            self._insert(DELAYED_JOBS, number, place)
        elif state & LETTER:
            self._append(LETTERS, number)
        else:
            kind = LEVELS + endpoint.load(at + LEVEL) % PRIORITIES
            order = endpoint.load(at + ORDER)
            before = endpoint.load(self.control + LISTS + LIST_SIZE * kind) >> BEHIND
            if before and self._order(before) > order:
                # It was given back, and is older than most.
                place, before = self._first(kind), 0
                while place and self._order(place) < order and steps < self.maxsize:
                    before = place
                    other = self.places + self._number(place) * self.stride
                    place = endpoint.load(other + LINK) & LOW
                    steps += 1
            self._insert(kind, number, before)

    def _order(self, place: int) -> int:
        return self.endpoint.load(self.places + self._number(place) * self.stride + ORDER)

    def _append(self, kind: int, number: int) -> None:
        """Add a place at the end of a list."""
        ends = self.endpoint.load(self.control + LISTS + LIST_SIZE * kind)
        self._insert(kind, number, ends >> BEHIND)

    def _insert(self, kind: int, number: int, before: int) -> None:
        """Add a place to a list behind the place `before`; 0: at its beginning."""
        endpoint = self.endpoint
        ends_at = self.control + LISTS + LIST_SIZE * kind
        ends = endpoint.load(ends_at)
        first, last = ends & LOW, ends >> BEHIND
        following = first
        if before:
            at = self.places + self._number(before) * self.stride + LINK
            link = endpoint.load(at)
            following = link & LOW
            endpoint.store(at, link >> BEHIND << BEHIND | number + 1)
        else:
            first = number + 1
        if following:
            at = self.places + self._number(following) * self.stride + LINK
            endpoint.store(at, number + 1 << BEHIND | endpoint.load(at) & LOW)
        else:
            last = number + 1
        endpoint.store(self.places + number * self.stride + LINK, before << BEHIND | following)
        endpoint.store(ends_at, last << BEHIND | first)
        endpoint.store(ends_at + COUNT, endpoint.load(ends_at + COUNT) + 1 & MASK)

    def _remove(self, kind: int, number: int) -> None:
        """Take a place out of a list."""
        endpoint = self.endpoint
        ends_at = self.control + LISTS + LIST_SIZE * kind
        ends = endpoint.load(ends_at)
        first, last = ends & LOW, ends >> BEHIND
        link = endpoint.load(self.places + number * self.stride + LINK)
        following, before = link & LOW, link >> BEHIND
        if before:
            at = self.places + self._number(before) * self.stride + LINK
            endpoint.store(at, endpoint.load(at) >> BEHIND << BEHIND | following)
        else:
            first = following
        if following:
            at = self.places + self._number(following) * self.stride + LINK
            endpoint.store(at, before << BEHIND | endpoint.load(at) & LOW)
        else:
            last = before
        endpoint.store(ends_at, last << BEHIND | first)
        endpoint.store(ends_at + COUNT, endpoint.load(ends_at + COUNT) - 1 & MASK)

    # ---- keys -----------------------------------------------------------------------------------

    def _find(self, key: int) -> bool:
        """Whether a job with this key is in the queue, dead letters left out."""
        place = self.endpoint.load(self.heads + 8 * (key % self.maxsize))
        steps = 0
        while place:
            at = self.places + self._number(place) * self.stride
            if self.endpoint.load(at + KEY) == key and not self.endpoint.load(at) & LETTER:
                return True
            place = self.endpoint.load(at + CHAIN)
            steps += 1
            if steps > self.maxsize:
                raise self._damaged(place)
        return False

    def _chain(self, number: int, key: int) -> None:
        """Make the job of this place one that is found by its key."""
        if key:
            head = self.heads + 8 * (key % self.maxsize)
            self.endpoint.store(
                self.places + number * self.stride + CHAIN, self.endpoint.load(head)
            )
            self.endpoint.store(head, number + 1)

    def _unchain(self, number: int, key: int) -> None:
        """The reverse."""
        at = self.heads + 8 * (key % self.maxsize)
        steps = 0
        place = self.endpoint.load(at)
        while place != number + 1:
            at = self.places + self._number(place) * self.stride + CHAIN
            place = self.endpoint.load(at)
            steps += 1
            if steps > self.maxsize:
                raise self._damaged(number)
        self.endpoint.store(at, self.endpoint.load(self.places + number * self.stride + CHAIN))
