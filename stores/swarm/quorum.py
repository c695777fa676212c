"""Reading a majority of a register's replicas, and the facts that an operation learns from them.

There are 2f + 1 replicas, of which f may be lost. A phase reads a majority, from a first replica
that the key's hash chooses, and other replicas only in place of lost ones (SWARM section 6).
Algorithm 8 caches words of M between operations; here each operation reads them anew, so a
straggler overwrites nothing (trap S3).

A tombstone is at a majority when that many replicas have a tombstone of any author. A word of M
that has a tombstone never changes back, so every majority shows one from then on.
"""

from __future__ import annotations

from array import array
from typing import Any

from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.errors import AddressError, NodeFailed, StoreCorrupt
from limpet.stores.core.status import VACANT_CLASS
from limpet.stores.fusee.links import ENTRY_SIZE, KEY_OFFSET
from limpet.stores.swarm.layout import (
    ATTEMPTS_MAX,
    DELETED,
    DONE,
    GONE,
    IN_PLACE_WORDS,
    REPLICAS_ROW,
    UNKNOWN,
    WHOLE,
    WORDS,
    WRITER_MASK,
)
from limpet.stores.swarm.registers import Register
from limpet.stores.swarm.replica import Buffer, Buffers, Replica
from limpet.stores.swarm.words import is_tombstone, row_of, side_of, stamp_of


class Quorum:
    """The replicas of the current register, and those of them that were read last.

    `owner`: the pool and the store, for messages.
    """

    def __init__(self, pool: Any, register: Register, owner: str) -> None:
        self.endpoint = pool.endpoint
        self.view = pool.view
        self.owner = owner
        self.register = register
        self.buffers = Buffers(self.endpoint, register)
        self.count = self.register.replicas
        self.majority = self.count // 2 + 1
        self.tops = array("Q", bytes(8 * REPLICAS_ROW))
        """The greatest tuple of each replica as it was read."""
        self.mine = array("Q", bytes(8 * REPLICAS_ROW))
        """Our own row's word of M on each replica, as we last saw it; 0: not seen."""
        self.replicas = [
            Replica(self.endpoint, register, self.buffers, k, self.tops, self.mine)
            for k in range(self.count)
        ]
        self.order = array("Q", bytes(8 * REPLICAS_ROW))
        """The replicas that were read, the first of which has the value in place."""
        self.read = 0
        """How many replicas were read."""
        self.valid = 0
        """How many of them still belong to the current register, by their ident."""
        self.there = 0
        """Bits: which ones."""
        self.top = 0
        """The greatest tuple that they have."""
        self.place = 0
        """The replica that has the value in place."""
        self.missing = 0
        """The buffer of the value that was read last, if nothing in place leads to it; else 0."""
        self.retries = 0

    def at(self, n: int) -> Replica:
        """The replica that was read as the one of that number."""
        return self.replicas[self.order[n]]

    def stands_at(self, k: int) -> bool:
        """Whether replica `k` was read, and all that were belong to the current register."""
        return self.valid == self.read and self.there >> k & 1 != 0

    def prefetch(self, reference: int, area: int, length: int, first: int) -> None:
        """Prefetch a register that may be selected and read next. Changes nothing."""
        k = first
        for n in range(self.majority):
            size = 8 * self.register.width + (0 if n else 8 * IN_PLACE_WORDS + length)
            self.endpoint.prefetch(self.register.heap.replica(reference, k) + area, size)
            k = k + 1 if k + 1 < self.count else 0

    # ---- reading --------------------------------------------------------------------------------

    def gather(self, what: int, wanted: int) -> int:
        """Read WORDS, ROW or WHOLE of `wanted` replicas, a majority or, of those in service, all;
        `top` is the greatest tuple. One phase, not waited for.

        DONE; GONE: none of them is this register; DELETED: some are not any more. Raises NodeFailed
        when there is no majority.
        """
        self.read = 0
        self.valid = 0
        self.there = 0
        self.top = 0
        lost = -1
        k = self.register.first
        for _ in range(self.count):
            replica = self.replicas[k]
            try:
                if replica.failed():
                    lost = self.register.bases[k] >> NODE_SHIFT
                else:
                    replica.read(WORDS if what == WHOLE and self.read else what)
                    self._note(replica)
            except NodeFailed as error:
                lost = error.node
                self.view.fail_if_lost(lost)
            if self.read == wanted:
                break
            k = k + 1 if k + 1 < self.count else 0
        if self.read < self.majority:
            raise NodeFailed(lost, "a majority of the replicas of the key is lost")
        return self._outcome()

    def _outcome(self) -> int:
        self.place = self.order[0]
        if self.valid < self.read:
            return DELETED if self.valid else GONE
        return DONE

    def elect(self) -> bool:
        """Choose the replicas that `post` reads: the first ones in service; False: they are no
        majority."""
        self.read = 0
        k = self.register.first
        for _ in range(self.count):
            replica = self.replicas[k]
            if not replica.failed():
                self.order[self.read] = k
                self.read += 1
                if self.read == self.majority:
                    return True
            k = k + 1 if k + 1 < self.count else 0
        return False

    def post(self, what: int) -> None:
        """Post `gather`, of the replicas that were elected; `arrived` says what came of it."""
        for n in range(self.read):
            replica = self.replicas[self.order[n]]
            replica.post(WORDS if what == WHOLE and n else what)

    def arrived(self) -> int:
        """After the `wait` for what was posted: the outcome, as of `gather`."""
        wanted = self.read
        self.read = 0
        self.valid = 0
        self.there = 0
        self.top = 0
        for n in range(wanted):
            replica = self.replicas[self.order[n]]
            self._note(replica)
        return self._outcome()

    def seen(self) -> bool:
        """Whether our row's word of M was seen on all replicas that were elected."""
        known = 0
        for n in range(self.read):
            known += self.mine[self.order[n]] != 0
        return known == self.read

    def _note(self, replica: Replica) -> None:
        self.order[self.read] = replica.k
        self.read += 1
        if replica.note_top():
            self.valid += 1
            self.there |= 1 << replica.k
        self.top = max(self.top, self.tops[replica.k])

    def read_all(self) -> None:
        """Read every replica in service, with all pointers; of others it is all zeros."""
        self.read_words()
        self.read_pointers()

    def read_words(self) -> None:
        """`read_all`, without pointers."""
        for k in range(self.count):
            replica = self.replicas[k]
            replica.read_if_there()

    def read_pointers(self) -> None:
        """`read_all`, only the pointers."""
        for k in range(self.count):
            replica = self.replicas[k]
            replica.read_pointers()

    # ---- the words read -------------------------------------------------------------------------

    def count_at_least(self, word: int) -> int:
        """How many of the replicas that were read have the tuple or a greater one; for a
        tombstone, how many have any tombstone."""
        least = stamp_of(word)
        if is_tombstone(word):
            least &= ~WRITER_MASK
        found = 0
        for n in range(self.read):
            if stamp_of(self.tops[self.order[n]]) >= least:
                found += 1
        return found

    def count_above(self, word: int) -> int:
        """How many of the replicas that were read have a greater tuple."""
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
        `missing` says whether it is to be put in place.

        A phase of its own unless the value is in place; three if nothing in place leads to it.
        """
        self.missing = 0
        replica = self.replicas[self.place]
        value = replica.read_in_place(stamp_of(word))
        if value is None:
            for n in range(self.read):
                replica = self.replicas[self.order[n]]
                there = self.tops[replica.k]
                for turn in range(2):
                    # its writer may name it on the other side, if the first pointer was in use
                    if stamp_of(there) == stamp_of(word) and value is None:
                        row = row_of(there) % self.register.writers
                        if replica.read_row(row):
                            self.endpoint.wait()
                        reference = replica.named(row, side_of(there) ^ turn)
                        value = self.buffers.read(reference, stamp_of(word), replica.k, UNKNOWN)
                        self.missing = reference
            self.endpoint.wait()
        return value

    def need_row(self, row: int) -> None:
        """Have the pointers of a row on the replicas that were read; a phase, unless they are
        there."""
        missing = False
        for n in range(self.read):
            replica = self.replicas[self.order[n]]
            missing = replica.read_row(row) or missing
        if missing:
            self.endpoint.wait()

    def ticket(self) -> int:
        """The number of the tombstone that was read, which its author writes to the slot; or 0."""
        replica = self.replicas[self.where(self.top)]
        row = row_of(self.top) % self.register.writers
        if replica.read_row(row):
            self.endpoint.wait()
        word = replica.pointer(row, side_of(self.top))
        is_number = word >> 48 & 0xFF == VACANT_CLASS and word != self.register.ident
        return word if is_number and is_tombstone(self.top) else 0

    # ---- writing, for several parts -------------------------------------------------------------

    def write_in_place(self, buffer: Buffer) -> None:
        """Write the prepared value in place, on the replica that was read first."""
        replica = self.replicas[self.place]
        replica.write_in_place(buffer)

    def max_again(self, pending: int, word: int) -> bool:
        """Repeat MAX on the replicas of these bits, where our word of M differed: all at a time.

        False when a node was lost meanwhile.
        """
        while pending:
            self.endpoint.wait()
            self.retries += 1
            for k in range(self.count):
                if pending >> k & 1:
                    replica = self.replicas[k]
                    try:
                        if replica.max(word) == DONE:
                            pending &= ~(1 << k)
                    except NodeFailed as error:
                        self.view.fail_if_lost(error.node)
                        return False
        return True

    # ---- damaged memory -------------------------------------------------------------------------

    def look_again(self, word: int, attempt: int) -> None:
        """Wait: the same tuple had no value so many times. Raises StoreCorrupt in the end."""
        self.wait_again(attempt, word, "has no value")

    def wait_again(self, attempt: int, word: int, what: str) -> None:
        """Wait before one more attempt, after so many in which nothing has changed.

        `word`, `what`: the tuple in the way, and why. Raises StoreCorrupt in the end.
        """
        self.retries += 1
        if attempt > ATTEMPTS_MAX:
            raise StoreCorrupt(
                f"{self.owner}: the key {self.key()!r}: its register at "
                f"{self.register.reference:#x} has the tuple {word:#x}, which {what}, and no "
                "client changes that: memory was damaged. Save what is left; make the store again"
            )
        if attempt:
            self.view.membership.progress()
            self.endpoint.pause(attempt)

    def key(self) -> bytes:
        """The key of the current register, as its object has it: for messages."""
        for k in range(self.count):
            at = self.register.bases[k] - self.register.area
            try:
                size = min(self.endpoint.load(at + ENTRY_SIZE) & 0xFFFF, self.register.area)
                return self.endpoint.read(at + KEY_OFFSET, size)
            except (NodeFailed, AddressError):
                continue
        return b""
