"""The reliable max register (SWARM appendix A, algorithm 8): reading and writing a majority.

2f + 1 replicas, of which f may be lost. A write writes to a majority, and a read reads one; both in
an order that the key's hash begins, and others only in place of lost ones (section 6). That the
greatest tuple that was read is known to a majority, before a read returns, is in write_back.py.

What algorithm 8 keeps in its cache is looked at anew in each operation here, `tops`; so a straggler
overwrites nothing (trap S3).

A tombstone is at a majority when that many replicas have one, of whatever author: no word of M that
has one goes back, so every majority shows one from then on.

A pointer is empty when it has the register's ident. A client that was killed between the two CAS of
a tombstone leaves a pointer with the tombstone's number, to which no word of M leads on that
replica: such a pointer is emptied by the next client of the row (trap S10, `clear_row`).
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.slots import INCARNATION_BITS
from limpet.shm.errors import ClientError, NodeFailed, StoreCorrupt
from limpet.stores.status import VACANT_CLASS
from limpet.stores.swarm.layout import (
    AGAIN,
    ATTEMPTS_MAX,
    DELETED,
    DONE,
    FIXED,
    GONE,
    HEADER,
    IN_PLACE_WORDS,
    REFUSED,
    REPLICAS_ROW,
    WRITER_MASK,
)
from limpet.stores.swarm.recycling import Recycling
from limpet.stores.swarm.words import (
    is_tombstone,
    placed,
    rank_of,
    row_of,
    side_of,
    stamp_of,
)

UNDECIDED: Final = 1
"""No reference: a tuple of our own row may be needed, and is not at a majority."""


class MaxRegister(Recycling):
    """The current register as a whole."""

    def __init__(self, pool: Any, entry: int, replicas: int, writers: int, buffers: int) -> None:
        super().__init__(pool, entry, replicas, writers, buffers)
        self.view = pool.view
        self.majority = replicas // 2 + 1
        self.tops = array("Q", bytes(8 * REPLICAS_ROW))
        """The greatest tuple on each of those."""
        self.valid = 0
        """How many of them are the register that they were taken for."""
        self.top = 0
        self.first = 0
        self.known = False
        """Whether `mine` and `side` are as we left them."""
        self.wrote = False
        """Whether a tuple was written back since."""
        self.needed = 0
        """Bytes of the object that there was no memory for."""
        self.needed_on = 0
        """The node of its head."""
        self.needed_also = 0
        """Bytes of another object that is needed with it, or 0."""
        self.retries = 0
        self.owner = ""
        """The pool and the store, for messages; set by the store."""

    def turn(self, reference: int, area: int, ident: int, capacity: int, first: int) -> None:
        """`turn_to`, with all that there is to know of a register; it is read next."""
        self.turn_to(reference, area)
        self.ident = ident
        self.capacity = capacity
        self.first = first
        self.known = False
        self.wrote = False

    def foresee(self, reference: int, area: int, capacity: int, first: int) -> None:
        """A hint: `turn` may come next, and then a READ. Changes nothing."""
        k = first
        for n in range(self.majority):
            size = 8 * self.width + (0 if n else 8 * IN_PLACE_WORDS + capacity)
            self.endpoint.prefetch(self.heap.replica(reference, k) + area, size)
            k = k + 1 if k + 1 < self.replicas else 0

    def recall(self, words: Any, at: int) -> None:
        """Take our words of M and the empty side from an entry of the cache, if it has them.

        Not what a client noted that we are no more: before a fork, or before it was given up.
        """
        self.known = words[at + 4] >> 1 == self.client.ident
        self.side = words[at + 4] & 1
        for k in range(self.replicas):
            self.mine[k] = words[at + FIXED + k]

    def is_new(self, word: int) -> None:
        """The current register is new, and has our tuple `word` everywhere."""
        for k in range(self.replicas):
            self.mine[k] = word
        self.side = 1 - side_of(word)
        self.known = True

    def note(self, words: Any, at: int) -> None:
        """Note our words of M and the empty side, if they are known, in an entry of the cache."""
        words[at + 4] = self.client.ident << 1 | self.side if self.known else 0
        for k in range(self.replicas):
            words[at + FIXED + k] = self.mine[k]

    def identify(self) -> int:
        """Our number as a writer. Raises ClientError when the store has none for us."""
        if not self.is_writer():
            raise ClientError(
                f"this process has client slot {self.writer} of the pool, and the store was made "
                f"for {self.writers} writers at one time, those in slots 0 to {self.writers - 1}; "
                "make the store with more `writers`, or close the pool in other processes"
            )
        return self.writer

    def is_writer(self) -> bool:
        """Whether the store has a number for us; it is that of our client slot."""
        self.writer = self.client.ident >> INCARNATION_BITS
        return self.writer < self.writers

    # ---- reading --------------------------------------------------------------------------------

    def gather(self, whole: bool, wanted: int) -> int:
        """Read `wanted` replicas, a majority or, of those in service, all; `top` is the greatest
        tuple. One phase, not waited for.

        DONE; GONE: none of them is this register; DELETED: some are not any more. Raises NodeFailed
        when there is no majority.
        """
        self.read = 0
        self.valid = 0
        self.top = 0
        lost = -1
        k = self.first
        for _ in range(self.replicas):
            try:
                if self.endpoint.failed(self.bases[k]):
                    lost = self.bases[k] >> NODE_SHIFT
                else:
                    self.read_front(k, whole and self.read == 0)
                    self._note(k)
            except NodeFailed as error:
                lost = error.node
                self.view.fail_if_lost(lost)
            if self.read == wanted:
                break
            k = k + 1 if k + 1 < self.replicas else 0
        if self.read < self.majority:
            raise NodeFailed(lost, "a majority of the replicas of the key is lost")
        self.place = self.order[0]
        if self.valid < self.read:
            return DELETED if self.valid else GONE
        return DONE

    def _note(self, k: int) -> None:
        at = k * self.stride
        self.order[self.read] = k
        self.read += 1
        top = 0
        if self.ident and self.front[at] == self.ident:
            self.valid += 1
            for index in range(2, 2 + self.buffers):
                top = max(top, self.front[at + index])
        self.tops[k] = top
        self.top = max(self.top, top)

    def learn(self) -> bool:
        """Take our row of M, and which pointer is empty, from what was read; False: none is.

        False also when what others have not seen is to be put in order first: `clear_row`.
        """
        index = 2 + self.writer % self.buffers
        left = right = True
        for n in range(self.read):
            k = self.order[n]
            self.mine[k] = self.front[k * self.stride + index]
            at = k * self.stride + self.pointers + 2 * self.writer
            left = left and self.front[at] == self.ident
            right = right and self.front[at + 1] == self.ident
        self.side = 0 if left else 1
        return left or right

    def count(self, word: int) -> int:
        """On how many of the replicas that were read the tuple, or a greater one, is; of a
        tombstone, on how many any one is."""
        least = stamp_of(word)
        if is_tombstone(word):
            least &= ~WRITER_MASK
        found = 0
        for n in range(self.read):
            if stamp_of(self.tops[self.order[n]]) >= least:
                found += 1
        return found

    def above(self, word: int) -> int:
        """On how many of the replicas that were read a greater tuple is."""
        found = 0
        for n in range(self.read):
            if stamp_of(self.tops[self.order[n]]) > stamp_of(word):
                found += 1
        return found

    def where(self, word: int) -> int:
        """A replica of those that were read whose greatest tuple is this word."""
        for n in range(self.read):
            if self.tops[self.order[n]] == word:
                return self.order[n]
        return self.place

    def value_of(self, word: int) -> Any:
        """The value of a tuple that was read; None: it was given up, as a greater one is there.

        A phase of its own unless the value is in place.
        """
        value = self.read_in_place(stamp_of(word))
        if value is None:
            for n in range(self.read):
                k = self.order[n]
                there = self.tops[k]
                for turn in range(2):
                    # its writer may name it on the other side, where the first one was in use
                    if stamp_of(there) == stamp_of(word) and value is None:
                        row = row_of(there) % self.writers
                        reference = self.named(k, row, side_of(there) ^ turn)
                        value = self.read_buffer(reference, stamp_of(word), k)
            self.endpoint.wait()
        return value

    def look_again(self, word: int, attempt: int) -> None:
        """Wait, as the same tuple had no value so often. Raises StoreCorrupt in the end."""
        self.wait_again(attempt, word, "has no value")

    def wait_again(self, attempt: int, word: int, what: str) -> None:
        """Wait before one more attempt, after so many in which nothing has changed.

        `word`, `what`: which tuple is in the way, and why. Raises StoreCorrupt in the end.
        """
        self.retries += 1
        if attempt > ATTEMPTS_MAX:
            raise StoreCorrupt(
                f"{self.owner}: the key {self.key()!r}: its register at {self.reference:#x} has "
                f"the tuple {word:#x}, which {what}, and nobody changes that: memory was damaged. "
                "Save what is left, and make the store again"
            )
        if attempt:
            self.view.membership.progress()
            self.endpoint.pause(attempt)

    # ---- writing --------------------------------------------------------------------------------

    def acquire(self, size: int) -> int:
        """A buffer for a value of that many bytes; its place in the hand, or -1: there is no memory
        ready.

        Its head is on the first node of the register's that is in service.
        """
        self.needed = HEADER + size
        self.needed_also = 0
        self.needed_on = self.node
        for _ in range(self.replicas):
            if self.endpoint.failed(self.needed_on << NODE_SHIFT):
                self.needed_on = self.needed_on + 1 if self.needed_on + 1 < self.nodes else 0
                continue
            try:
                self.buffer = self.allocator.allocate(self.needed_on, self.needed, self.replicas)
                self.published = False
                if self.buffer:
                    return self.client.held - 1
                # Is there hope on this node?
                self.endpoint.load(self.heap.table_word(self.needed_on, 0))
                return -1
            except NodeFailed as error:
                self.view.fail_if_lost(error.node)
                self.needed_on = self.needed_on + 1 if self.needed_on + 1 < self.nodes else 0
        raise NodeFailed(self.node, "all nodes of the key's replicas are lost")

    def expect(self, size: int) -> None:
        """Have memory on its way that a WRITE of so many bytes touches besides what it reads."""
        k = self.first
        for n in range(self.replicas):
            if n < self.majority:
                self.endpoint.prefetch(self.beside(self.buffer, k), HEADER + size)
            else:
                self.endpoint.prefetch(self.pointer(k, self.writer, 0), 16)
            k = k + 1 if k + 1 < self.replicas else 0

    def aim(self, held: int) -> None:
        """From now on the register may name our buffer, at that place of the hand."""
        # ORDER: before the first pointer.
        self.client.aim(held, self.home())

    def keep(self, held: int) -> None:
        """Our buffer is in the register's care, if that is not being given up; no more in hand."""
        stands = True
        for n in range(self.read):
            if not self._stands(self.order[n]):
                stands = False  # settling the hand sees to it
        if not self.published:
            self.client.release(held)  # there was a greater tuple wherever it would have been
        elif stands:
            self.client.keep(held)

    def _stands(self, k: int) -> bool:
        """Whether replica `k` is not given up, as far as that can be seen."""
        try:
            return self.endpoint.load(self.bases[k]) == self.ident
        except NodeFailed:
            return True

    def write(self, word: int) -> int:
        """WRITE what is prepared to a majority: those that were read, others if they are lost.

        DONE, or REFUSED: our row has to be put in order, or there is no such register.
        """
        done = pending = 0
        lost = -1
        k = self.first
        for _ in range(self.replicas):
            try:
                if self.endpoint.failed(self.bases[k]):
                    lost = self.bases[k] >> NODE_SHIFT
                elif not self.valid and not self.mine[k]:
                    return REFUSED
                else:
                    outcome = self.put(k, word)
                    if outcome == REFUSED:
                        return REFUSED
                    if outcome == AGAIN:
                        pending |= 1 << k
                    done += 1
            except NodeFailed as error:
                lost = error.node
                self.view.fail_if_lost(lost)
            if done == self.majority:
                break
            k = k + 1 if k + 1 < self.replicas else 0
        if done < self.majority:
            raise NodeFailed(lost, "a majority of the replicas of the key is lost")
        if pending and not self.valid:
            # What we found there is not ours to change: the memory may be another's by now.
            return REFUSED
        return DONE if self._max_again(pending, word) else self.write(word)

    def _max_again(self, pending: int, word: int) -> bool:
        """MAX again where our word of M was another: on the replicas of these bits, all at a time.

        False when a node was lost meanwhile.
        """
        while pending:
            self.endpoint.wait()
            self.retries += 1
            for k in range(self.replicas):
                try:
                    if pending >> k & 1 and self.max(k, word) == DONE:
                        pending &= ~(1 << k)
                except NodeFailed as error:
                    self.view.fail_if_lost(error.node)
                    return False
        return True

    def clear_row(self) -> int:
        """Empty a pointer of our row, both of which are in use. AGAIN: read once more.

        A client of our slot was killed between two steps, or a copy was put beside what we wrote.
        What no word of M leads to is given up, numbers of tombstones, too. Then, unless a greater
        tuple is at a majority, the greatest of our row is written to one; and what that makes
        useless is given up.
        """
        lane = self.endpoint.background(True)
        try:
            self.read_all()
            self._drop_numbers()
            self._give_up_junk(UNDECIDED)
            own = 0
            for k in range(self.replicas):
                word = self._own_word(k)
                if row_of(word) == self.writer and not is_tombstone(word):
                    own = max(own, word)
            if own:
                stands = self._needed(own)
                if stands != UNDECIDED:
                    self.read_all()
                    self._give_up_junk(stands)
                    self._name_once(own, stands)
        finally:
            self.endpoint.background(lane)
        return AGAIN

    def _needed(self, own: int) -> int:
        """The buffer of our greatest tuple, once no other of ours is needed; 0: nor is that.

        UNDECIDED: it could not be written to a majority.
        """
        if self.count(self.top) >= self.majority and stamp_of(self.top) > stamp_of(own):
            return 0
        return self._spread(own)

    def _name_once(self, own: int, stands: int) -> None:
        """Empty the pointers of the other side that name the buffer of our tuple, too."""
        for k in range(self.replicas):
            try:
                if self.front[k * self.stride + 2 + self.writer % self.buffers] == own:
                    at = self.pointer(k, self.writer, 1 - side_of(own))
                    self.endpoint.cas(at, stands, self.ident)
            except NodeFailed:
                continue

    def _own_word(self, k: int) -> int:
        """Our word of M, as read into `front`."""
        return self.front[k * self.stride + 2 + self.writer % self.buffers]

    def _drop_numbers(self) -> None:
        """Empty the pointers of our row that have the number of a tombstone which is not there.

        Its author, or who wrote it back, was killed before the word of M.
        """
        for k in range(self.replicas):
            word = self._own_word(k)
            leads = is_tombstone(word) and row_of(word) == self.writer
            for side in range(2):
                there = self.front[k * self.stride + self.pointers + 2 * self.writer + side]
                if (
                    there in (0, self.ident)  # its node is lost; it is empty
                    or self.front[k * self.stride] != self.ident
                    or there >> 48 & 0xFF != VACANT_CLASS
                    or (leads and side_of(word) == side)
                ):
                    continue
                try:
                    self.endpoint.cas(self.pointer(k, self.writer, side), there, self.ident)
                except NodeFailed:
                    continue  # it went with its node

    def _give_up_junk(self, stands: int) -> None:
        """Free what our row names but for `stands`; UNDECIDED: what no word of M leads to."""
        for k in range(self.replicas):
            for side in range(2):
                reference = self.named(k, self.writer, side)
                if reference in (0, self.buffer, stands):
                    continue
                if stands != UNDECIDED or not self._is_led_to(reference):
                    self.give_up(k, self.writer, reference)

    def _is_led_to(self, reference: int) -> bool:
        for k in range(self.replicas):
            word = self._own_word(k)
            if (
                row_of(word) == self.writer
                and self.named(k, self.writer, side_of(word)) == reference
            ):
                return True
        return False

    def _spread(self, own: int) -> int:
        """Write a tuple of our own row, whose buffer is ours, to a majority; that buffer.

        0 when it has no value any more: it was given up, as others have written since, or it was a
        guess that was about to be written again. UNDECIDED: it is not at a majority yet.
        """
        reference = 0
        first = 0
        for k in range(self.replicas):
            if not reference and self._own_word(k) == own:
                reference = self.named(k, self.writer, side_of(own))
                first = k
        value = self.read_buffer(reference, stamp_of(own), first) if reference else None
        if value is None:
            return 0
        before = self.buffer
        self.buffer = reference
        self.prepare(own, value)
        done = 0
        k = self.first
        for _ in range(self.replicas):
            word = self._own_word(k)
            if word and done < self.majority:
                moved = rank_of(word) > rank_of(own) or word == own
                done += moved or self._move(k, word, own)
            k = k + 1 if k + 1 < self.replicas else 0
        self.buffer = before
        return reference if done >= self.majority else UNDECIDED

    def _move(self, k: int, before: int, own: int) -> bool:
        """Have our word of M on replica `k` be `own`, whose buffer is at hand; whether it is."""
        try:
            self.write_buffer(k)
            for turn in range(2):
                side = side_of(own) ^ turn
                at = self.pointer(k, self.writer, side)
                found = self.endpoint.cas(at, self.ident, self.buffer)
                if found in (self.ident, self.buffer):
                    word = placed(own, self.writer, side)
                    at = self.bases[k] + 8 * (2 + self.writer % self.buffers)
                    return self.endpoint.cas(at, before, word) == before
        except NodeFailed as error:
            self.view.fail_if_lost(error.node)
        return False
