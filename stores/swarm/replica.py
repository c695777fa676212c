"""In-n-Out: a max register for large values on one node (SWARM section 4, algorithms 5-7), and the
majority of its replicas.

To write a tuple to a replica, FIFO and so in one round trip:

    1. write its value to the buffer beside the replica
    2. of a new buffer, CAS the row's empty pointer to it
    3. CAS the word in M from our last tuple there to the new one (MAX, algorithm 7)

The tuple names row and side, so the buffer of the tuple before stands until M has changed. The
buffers of both sides are used by turns (row.py).

A client that comes back to a register that was given up does no harm. With a new buffer, `write`
expects the ident in a pointer, and a word of M that only this register has had. If the word of M
differs, a client tries again only where it read the ident under the same pin (max_register.py), as
the memory may have another use by now. (The headers of the register's buffers have its ident, too.
In memory that is used again, such a header can stand where the pointer was, in an object that no
client has published yet; its writer overwrites it.) A buffer that is used again is only written
where the ident was read before, under the same pin. So a handle may remember places of keys between
operations, and an update need not read first: in a phase, the write depends on the read of the
ident before it, on the same node.

Out-of-place buffers (`Buffers`) have the values of a register (SWARM section 4). A buffer is an
object with as many replicas as its register, and its primary is on the same node. So each replica
of the register has a replica of the buffer beside it:

    0 stamp (bits 8-63)    8 ident of the register    16 length    24 hash    32 value

The hash is XXH64 of the value, seeded by the three words before it: a value is valid, in place or
in a buffer, when its hash holds and its stamp is the one looked for. So a reader rejects torn
values, and values in memory that was used again (trap S6).

In place (layout.py) stands the value of the tuple written last, if there is room, or the reference
of a buffer that has it. The reference is no pointer of the register: the buffer may be free by now,
or have another value, which its header shows.

A majority (`Quorum`), and the facts that an operation learns from it. There are 2f + 1 replicas, of
which f may be lost. A phase reads a majority, from a first replica that the key's hash chooses, and
other replicas only in place of lost ones (SWARM section 6). Algorithm 8 caches words of M between
operations; here each operation reads them anew, so a straggler overwrites nothing (trap S3).

A tombstone is at a majority when that many replicas have a tombstone of any author. A word of M
that has a tombstone never changes back, so every majority shows one from then on.
"""

from __future__ import annotations

import contextlib
from array import array
from typing import Any, Final

from limpet.shm.endpoint.fabric import bit, checksum, words_bytes
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.words import ADDRESS_MASK, LARGE_CLASS
from limpet.shm.errors import AddressError, NodeFailed, StoreCorrupt
from limpet.stores.core.object_layout import IMAGE_SIZE
from limpet.stores.core.status import VACANT_CLASS
from limpet.stores.fusee.links import ENTRY_SIZE, KEY_OFFSET
from limpet.stores.swarm.layout import (
    AGAIN,
    ALL_ROWS,
    ATTEMPTS_MAX,
    DELETED,
    DONE,
    GONE,
    HEADER,
    HEADER_WORDS,
    IN_PLACE_WORDS,
    REFUSED,
    REPLICAS_ROW,
    ROW,
    STAMP_SHIFT,
    TUPLE_MAX,
    UNDECIDED,
    UNKNOWN,
    VERIFIED,
    WHOLE,
    WORDS,
    WRITER_MASK,
)
from limpet.stores.swarm.register import (
    Register,
    greatest,
    is_final,
    is_tombstone,
    rank_of,
    row_of,
    side_of,
    stamp_of,
    value_in_place,
)

MASK: Final = 0xFFFF_FFFF_FFFF_FFFF


class Buffer:
    """A value that one attempt writes out of place: the buffer, and the value `prepare`d for it.

    For a tombstone, which has no value, its number stands in place of the buffer's reference.
    """

    def __init__(self) -> None:
        self.reference = 0
        self.published = False
        """Whether a pointer has named it since it was acquired."""
        self.named = False
        """Whether our pointers named it already when it was acquired."""
        self.strayed = False
        """Whether a replica had it written of whose row nothing was known."""
        self.doubtful = False
        """Whether some pointer may have named it or not, as a node was lost in a phase."""
        self.ahead = 0
        """Bits: the replicas beside which the value is already, but for its header (abd.py)."""
        self.value = b""
        self.header = array("Q", bytes(8 * HEADER_WORDS))

    def use(self, reference: int, named: bool) -> None:
        """Be the buffer at `reference`: a new one, or one that our pointers name."""
        self.reference = reference
        self.named = named
        self.published = named
        self.strayed = False
        self.doubtful = False

    def prepare(self, ident: int, word: int, value: bytes) -> None:
        """Make the header of the tuple `word` with this value, in the register of this ident."""
        self.value = value
        self.header[0] = stamp_of(word) << STAMP_SHIFT
        self.header[1] = ident
        self.header[2] = len(value)
        self.header[3] = checksum(value, (self.header[0] + ident + len(value)) & MASK)

    def copy_of(self, reference: int, ident: int, word: int, value: bytes) -> None:
        """Be a buffer that has this value already, to be put in place."""
        self.reference = reference
        self.prepare(ident, word, value)


class Buffers:
    """The buffers of the current register."""

    def __init__(self, endpoint: Any, register: Register) -> None:
        self.endpoint = endpoint
        self.register = register
        self.heap = self.register.heap
        self.image = array("Q", bytes(IMAGE_SIZE))

    def write(self, buffer: Buffer, k: int) -> None:
        """Write the prepared value to the replica of the buffer that is beside replica `k`.

        A buffer acquired while the register's first node was lost has no replica beside that
        node's. The node may be back by now, even within the operation, and the tuple will count
        there. So the value is then written wherever the buffer has a replica.
        """
        is_tombstone = buffer.reference >> 48 & 0xFF == VACANT_CLASS
        address = 0 if is_tombstone else self.register.beside(buffer.reference, k)
        if address:
            # the value is there already: write only its header
            value = b"" if buffer.ahead >> k & 1 else buffer.value
            self.endpoint.write_gather(address, buffer.header, HEADER_WORDS, value, b"")
        elif not is_tombstone:
            for other in range(self.register.replicas):
                with contextlib.suppress(NodeFailed):
                    self._write_older(buffer, self.register.beside(buffer.reference, other))

    def post(self, buffer: Buffer, k: int) -> None:
        """Post `write`, where the buffer has a replica beside replica `k`."""
        address = self.register.beside(buffer.reference, k)
        self.endpoint.post_gather(address, buffer.header, HEADER_WORDS, buffer.value, b"")

    def post_if(self, ticket: int, buffer: Buffer, k: int) -> None:
        """`post`, if the posted load with that ticket finds the register's ident."""
        address = self.register.beside(buffer.reference, k)
        endpoint: Any = self.endpoint
        endpoint.post_gather_if(
            ticket, self.register.ident, address, buffer.header, HEADER_WORDS, buffer.value, b""
        )

    def _write_older(self, buffer: Buffer, address: int) -> None:
        """Write the prepared value to a replica of the buffer, if there is something older."""
        if (
            address
            and not self.endpoint.failed(address)
            and (
                self.endpoint.load(address + 8) != self.register.ident
                or self.endpoint.load(address) <= buffer.header[0]
            )
        ):
            self.endpoint.write_gather(address, buffer.header, HEADER_WORDS, buffer.value, b"")

    def write_first(self, buffer: Buffer) -> None:
        """Write the prepared value of a new register to every replica in service."""
        for k in range(self.register.replicas):
            if not self.endpoint.failed(self.register.beside(buffer.reference, k)):
                try:
                    self.write(buffer, k)
                except NodeFailed:
                    continue

    def read(self, reference: int, stamp: int, first: int, length: int) -> Any:
        """The value with this stamp, from a buffer's replica, `first` first; or None. One phase, or
        two if its `length` is UNKNOWN and it is large."""
        if not self.heap.plausible(reference):
            return None
        replicas = self.register.replicas
        for steps in range(replicas):
            address = self.register.beside(reference, (first + steps) % replicas)
            if address and not self.endpoint.failed(address):
                try:
                    value = self._read_at(reference, address, stamp, length)
                except NodeFailed:
                    continue
                if value is not None:
                    return value
        return None

    def _read_at(self, reference: int, address: int, stamp: int, length: int) -> Any:
        size_class = reference >> 48 & 0xFF
        size = self.heap.sizes[size_class]
        if size_class == LARGE_CLASS:
            size = self.heap.value_max(self.register.replicas)
        most = size - HEADER
        if length == UNKNOWN:
            count = min(size, IMAGE_SIZE) >> 3
        elif length > most:
            return None
        else:
            count = HEADER_WORDS + (length + 7 >> 3 if HEADER + length <= IMAGE_SIZE else 0)
        self.endpoint.read_words(address, self.image, count)
        if self.image[0] != stamp << STAMP_SHIFT or self.image[1] != self.register.ident:
            return None
        if length != self.image[2]:
            if length != UNKNOWN or self.image[2] > most:
                return None
            length = self.image[2]
            if HEADER + length > IMAGE_SIZE:
                self.endpoint.wait()
        if HEADER + length <= IMAGE_SIZE:
            return self._checked(words_bytes(self.image, HEADER, length))
        return self._checked(self.endpoint.read(address + HEADER, length))

    def _checked(self, value: bytes) -> Any:
        """This value, if it is that of the header which was read; or None."""
        seed = (self.image[0] + self.image[1] + len(value)) & MASK
        return value if checksum(value, seed) == self.image[3] else None

    def post_read(self, reference: int, k: int, length: int) -> bool:
        """Post `read`, from the replica beside replica `k`, of a value whose length is known.
        False: that is not one phase."""
        if not self.heap.plausible(reference) or HEADER + length > IMAGE_SIZE:
            return False
        address = self.register.beside(reference, k)
        if not address or HEADER + length > self.heap.sizes[reference >> 48 & 0xFF]:
            return False
        try:
            self.endpoint.post_read(address, self.image, HEADER_WORDS + (length + 7 >> 3), 0)
        except NodeFailed:
            return False
        return True

    def arrived(self, stamp: int, length: int) -> Any:
        """The value with this stamp that `post_read` has read; or None."""
        if self.image[0] != stamp << STAMP_SHIFT or self.image[1] != self.register.ident:
            return None
        if self.image[2] != length:
            return None
        return self._checked(words_bytes(self.image, HEADER, length))


class Replica:
    """Replica `k` of the current register, and the words that an operation has read of it."""

    def __init__(
        self, endpoint: Any, register: Register, buffers: Buffers, k: int, tops: Any, mine: Any
    ) -> None:
        self.endpoint = endpoint
        self.register = register
        self.buffers = buffers
        self.k = k
        self.front = array("Q", bytes(8 * self.register.words_max))
        """Its words as they were read, `count` of them, and the pointers of these `rows` (bits)."""
        self.count = 0
        self.pointers = array("Q", bytes(16 * self.register.writers))
        self.rows = 0
        self.in_place = array("Q", bytes(8 * IN_PLACE_WORDS))
        self.tops = tops
        """Of all replicas: the greatest tuple of M as it was read."""
        self.mine = mine
        """Of all replicas: our own row's word of M as we last saw it; 0: not seen."""
        self.posted = False
        """Whether a `write` is posted here, and, if so, the tickets of its condition and of MAX."""
        self.pointed = 0
        self.changed = 0

    # ---- reading --------------------------------------------------------------------------------

    def failed(self) -> bool:
        """Whether its node is known to be lost."""
        return self.endpoint.failed(self.register.bases[self.k])

    def read(self, what: int) -> None:
        """Read WORDS, ROW or WHOLE."""
        self.count = self.register.count(self.k, what)
        self.rows = 0
        self.endpoint.read_words(self.register.bases[self.k], self.front, self.count, 0)
        if (what == ROW or self.register.asks) and self.register.own >= 0:
            self.read_row(self.register.own)

    def post(self, what: int) -> None:
        """Post `read`."""
        self.count = self.register.count(self.k, what)
        self.rows = 0
        self.endpoint.post_read(self.register.bases[self.k], self.front, self.count, 0)
        self._post_row(what)

    def _post_row(self, what: int) -> None:
        row = self.register.own
        if (what == ROW or self.register.asks) and row >= 0:
            at = self.register.pointer(self.k, row, 0)
            self.endpoint.post_read(at, self.pointers, 2, 2 * row)
            self.rows = bit(row)

    def read_row(self, row: int) -> bool:
        """Read the pointers of a row, unless that was done; whether it was not. They are zeros if
        its node is lost."""
        if self.rows & bit(row):
            return False
        self.rows |= bit(row)
        try:
            at = self.register.pointer(self.k, row, 0)
            self.endpoint.read_words(at, self.pointers, 2, 2 * row)
        except (NodeFailed, AddressError):
            self.pointers[2 * row] = self.pointers[2 * row + 1] = 0
        return True

    def read_if_there(self) -> None:
        """Read its words; all are zeros if its node is lost."""
        there = not self.failed()
        try:
            if there:
                self.read(WORDS)
        except (NodeFailed, AddressError):
            there = False
        if not there:
            for index in range(self.register.width):
                self.front[index] = 0

    def read_pointers(self) -> None:
        """Read all pointers; they are zeros if its node is lost, and so are its words."""
        count = 2 * self.register.writers
        there = not self.failed()
        try:
            if there:
                at = self.register.pointer(self.k, 0, 0)
                self.endpoint.read_words(at, self.pointers, count, 0)
        except (NodeFailed, AddressError):
            there = False
        if not there:
            for index in range(count):
                self.pointers[index] = 0
            for index in range(self.register.width):
                self.front[index] = 0
        self.rows = ALL_ROWS

    def word(self, index: int) -> int:
        """A word, as it was read."""
        return self.front[index]

    def metadata(self, row: int) -> int:
        """A row's word of M, as it was read."""
        return self.front[2 + row % self.register.buffers]

    def pointer(self, row: int, side: int) -> int:
        """A pointer, as it was read, now or before."""
        self.read_row(row)
        return self.pointers[2 * row + side]

    def named(self, row: int, side: int) -> int:
        """The buffer that a pointer named when it was read; 0: none."""
        word = self.pointer(row, side)
        return 0 if word >> 48 & 0xFF == VACANT_CLASS else word

    def is_taken_for_it(self) -> bool:
        """Whether it was, when it was read, a replica of the current register."""
        return self.register.ident != 0 and self.front[0] == self.register.ident

    def note_top(self) -> bool:
        """Find the greatest tuple in the words read; whether it was the current register."""
        register = self.register
        self.tops[self.k] = greatest(self.front, 0, register.ident, register.width)
        return self.is_taken_for_it()

    def take(self, words: Any, start: int, count: int) -> None:
        """Have the words that were read to `words`, as if `read` had read them."""
        for index in range(count):
            self.front[index] = words[start + index]
        self.count = count
        self.rows = 0

    # ---- the value in place ---------------------------------------------------------------------

    def write_in_place(self, buffer: Buffer) -> bool:
        """Write the prepared value in place, or, if there is no room, where its buffer is; False:
        the node is lost.

        Then the next reads take the value from the buffer.
        """
        fits = len(buffer.value) <= self.register.capacity
        self.register.length = len(buffer.value) if fits else 0
        self.in_place[0] = buffer.header[0]
        self.in_place[1] = buffer.header[2]
        self.in_place[2] = buffer.header[3] if fits else buffer.reference
        address = self.register.bases[self.k] + 8 * self.register.width
        value = buffer.value if fits else b""
        try:
            self.endpoint.write_gather(address, self.in_place, IN_PLACE_WORDS, value, b"")
        except NodeFailed:
            return False
        return True

    def read_in_place(self, stamp: int) -> Any:
        """The value with this stamp, if it is in place, or if what is in place leads to it; or
        None. A phase of its own, unless the words read have it."""
        at = self.register.width
        length = self.front[at + 1]
        if self.front[at] != stamp << STAMP_SHIFT:
            return None
        if length > self.register.capacity:
            self.register.length = 0
            value = self.buffers.read(self.front[at + 2], stamp, self.k, length)
            self.endpoint.wait()
            return value
        self.register.length = length
        end = at + IN_PLACE_WORDS + (length + 7 >> 3)
        if end > self.count:
            self._read_rest(end)
            if self.front[at + 1] != length:
                return None
        return value_in_place(self.front, at, self.count - at, stamp, self.register.ident)

    def post_buffer(self, stamp: int) -> bool:
        """Post the read of the buffer to which what is in place leads, if it has the value with
        this stamp; whether it has."""
        at = self.register.width
        length = self.front[at + 1]
        if self.front[at] != stamp << STAMP_SHIFT or length <= self.register.capacity:
            return False
        self.register.length = 0
        return self.buffers.post_read(self.front[at + 2], self.k, length)

    def fetch_in_place(self, stamp: int) -> Any:
        """The value with this stamp, if it is in place here; or None. A phase of its own."""
        at = self.register.width
        self._read_rest(at + IN_PLACE_WORDS + (self.register.capacity >> 3))
        if self.front[at] != stamp << STAMP_SHIFT or self.front[at + 1] > self.register.capacity:
            return None
        return self.read_in_place(stamp)

    def _read_rest(self, end: int) -> None:
        """Read what is in place again, up to that word: it is longer than it was."""
        at = self.register.width
        address = self.register.bases[self.k] + 8 * at
        try:
            self.endpoint.read_words(address, self.front, end - at, at)
        except NodeFailed:
            self.front[at + 1] = UNKNOWN
        self.count = end
        self.endpoint.wait()

    # ---- algorithms 5 and 7 ---------------------------------------------------------------------

    def write(self, word: int, buffer: Buffer) -> int:
        """Write the value prepared in `buffer`, as the tuple `word` of our row.

        DONE: the replica has this tuple or a greater one. AGAIN: our word of M differed; `mine` has
        it now. REFUSED: our pointer was not empty, or this is not the register any more.
        """
        if rank_of(self.mine[self.k]) >= rank_of(word):
            return DONE
        self.buffers.write(buffer, self.k)
        if buffer.named:
            # CRASH(turned): the tuple before stands; the next WRITE of the row uses the buffer.
            return self.max(word)
        if not self.mine[self.k]:
            buffer.strayed = True
        found = self.endpoint.cas(
            self.register.pointer(self.k, row_of(word), side_of(word)),
            self.register.ident,
            buffer.reference,
        )
        if found != self.register.ident and found != buffer.reference:
            return REFUSED
        buffer.published = True
        # CRASH(pointer): the tuple before stands; the next client of the row empties the pointer.
        return self.max(word)

    def max(self, word: int) -> int:
        """The last step of `write`: MAX of our word of M. DONE, or AGAIN."""
        expected = self.mine[self.k]
        if rank_of(expected) >= rank_of(word):
            return DONE
        found = self.endpoint.cas(self.register.metadata(self.k, row_of(word)), expected, word)
        # CRASH(put): at a minority, perhaps; readers write it back.
        self.mine[self.k] = word if found == expected else found
        return DONE if found == expected or rank_of(found) >= rank_of(word) else AGAIN

    def post_write(self, word: int, buffer: Buffer) -> None:
        """Post `write`, to a register whose word of M we have seen, of a buffer that has a replica
        here. MAX depends on the CAS of the pointer (trap S13). Of a buffer that pointers name, the
        value and MAX depend on the ident."""
        self.posted = rank_of(self.mine[self.k]) < rank_of(word)
        if self.posted:
            row, ident = row_of(word), self.register.ident
            if buffer.named:
                self.pointed = self.endpoint.post_load(self.register.bases[self.k])
                self.buffers.post_if(self.pointed, buffer, self.k)
            else:
                self.buffers.post(buffer, self.k)
                at = self.register.pointer(self.k, row, side_of(word))
                self.pointed = self.endpoint.post_cas(at, ident, buffer.reference)
            at = self.register.metadata(self.k, row)
            self.changed = self.endpoint.post_cas_if(
                self.pointed, ident, at, self.mine[self.k], word
            )

    def written(self, word: int, buffer: Buffer) -> int:
        """The outcome of a `write` that was posted, as of `write`."""
        if not self.posted:
            return DONE
        if self.endpoint.result(self.pointed) != self.register.ident:
            return REFUSED
        buffer.published = True
        found = self.endpoint.result(self.changed)
        if found == self.mine[self.k]:
            self.mine[self.k] = word
            return DONE
        self.mine[self.k] = found
        return DONE if rank_of(found) >= rank_of(word) else AGAIN

    def verify(self, word: int) -> bool:
        """Set the VERIFIED bit of the tuple in M, if it is there; whether it is.

        False also when the node is lost: a majority has the tuple, and does without the bit.
        """
        try:
            found = self.endpoint.cas(
                self.register.metadata(self.k, row_of(word)), word, word | VERIFIED
            )
        except NodeFailed:
            return False
        return found == word or found == word | VERIFIED

    def stands(self) -> bool:
        """Whether the register is not given up, as far as this replica shows."""
        try:
            return self.endpoint.load(self.register.bases[self.k]) == self.register.ident
        except NodeFailed:
            return True


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
        self.least = 0
        """The smallest one of the greatest of each."""
        self.place = 0
        """The replica that has the value in place."""
        self.missing = 0
        """The buffer of the value that was read last, if nothing in place leads to it, or UNDECIDED
        if it has none; else 0."""
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
        heap = self.register.heap
        row = heap.row(reference) if self.count > 1 else 0
        size = 8 * (self.register.width + IN_PLACE_WORDS) + length
        for _ in range(self.majority):
            address = (reference & ADDRESS_MASK) + heap.steps[row + k] & MASK
            self.endpoint.prefetch(address + area, size)
            size = 8 * self.register.width
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
        self.least = TUPLE_MAX
        lost = -1
        k = self.register.first
        looked = 0
        while looked < self.count:
            try:  # around the loop, as it takes as long as a read
                while looked < self.count:
                    replica = self.replicas[k]
                    looked += 1
                    k = k + 1 if k + 1 < self.count else 0
                    if replica.failed():
                        lost = self.register.bases[replica.k] >> NODE_SHIFT
                        continue
                    replica.read(WORDS if what == WHOLE and self.read else what)
                    self._note(replica)
                    if self.read == wanted:
                        return self._outcome()
            except NodeFailed as error:
                lost = error.node
                self.view.fail_if_lost(lost)
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
        self.least = TUPLE_MAX
        for n in range(wanted):
            replica = self.replicas[self.order[n]]
            self._note(replica)
        return self._outcome()

    def is_final(self) -> bool:
        """Whether a READ is over with what was read, but for the value."""
        return self.valid == self.read and is_final(self.top, self.least)

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
        top = self.tops[replica.k]
        self.top = max(self.top, top)
        self.least = min(self.least, top)

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
        if stamp_of(self.least) >= stamp_of(word):
            return self.read
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
        return self._value_elsewhere(word) if value is None else value

    def _value_elsewhere(self, word: int) -> Any:
        """The value of a tuple that is in place only (row.py), from another replica than the one
        that was read first; or None. A phase for each that is asked."""
        value = None
        for replica in self.replicas:
            if value is None and replica.k != self.place and not replica.failed():
                value = replica.fetch_in_place(stamp_of(word))
        if value is not None:
            self.missing = UNDECIDED
        return value

    def post_value(self, word: int) -> bool:
        """Post the read of the value of a tuple that was read; False: what is in place does not
        lead to a buffer that has it. `value_arrived` has it after `wait`."""
        self.missing = 0
        replica = self.replicas[self.place]
        return replica.post_buffer(stamp_of(word))

    def value_arrived(self, word: int) -> Any:
        """As `value_of`, after the `wait` for what `post_value` has posted."""
        replica = self.replicas[self.place]
        return self.buffers.arrived(stamp_of(word), replica.front[self.register.width + 1])

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
