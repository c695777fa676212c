"""In-n-Out: max registers for large values on one node (SWARM section 4, algorithms 5-7).

A register is an object with replicas (shm/replicas/mirrors.py); each replica is one of the
unreliable max registers of algorithm 8. Its key is in an object's header (stores/fusee/log.py), and
then, from the address *area* on, words of 8 bytes:

    0           ident     a number that no other register has; 0 once this one has been given up
    1           capacity  bytes of the value in place, a multiple of 8
    2           M         metadata array: `buffers` words, one for each group of writers
    then        P         two pointers for each writer: references to its buffers, or `ident`
    then        in place  stamp, length and hash of a value; then the value
    then        L         a timestamp lock for each writer (timestamp_lock.py)

An out-of-place buffer is an object with as many replicas, with the head on the same node as that of
its register, so that each replica of the register has one of the buffer beside it:

    0 stamp (bits 8-63)    8 ident of the register    16 length    24 hash    32 value

The hash is XXH64 of the value, seeded by the three words before it: a value is valid, in place or
in a buffer, when its hash holds and its stamp is the one looked for. So torn values are rejected,
and so are those of memory that was used again (trap S6).

Writers of each word. The row of a writer is its word in M (shared, with fewer words than writers)
and its two pointers; only that client writes tuples there, its own and copies of those that it
writes back, each with a buffer of its own. Others empty a pointer (recycling.py) and set the
VERIFIED bit. To write, `put`, at one replica, FIFO and so in one round trip:
    1. the buffer
    2. CAS the row's empty pointer to the buffer
    3. CAS the word in M from what we last had there to the tuple (MAX, algorithm 7)
The tuple names row and side, so the pointer of the tuple before stands until M has changed.

One who comes back to a register that is no more does no harm: `put` expects the ident in a pointer,
and a word of M that only this register has had. If that is another, it is only tried again where an
ident was read under the same pin (max_register.py): what stands there now may be anybody's. (An
ident is in the headers of its buffers, too; a pointer's place in memory that is used again can be
there, in an object that nobody has published yet, and is overwritten.) So keys' places may be
remembered between operations, and an update need not look first.

An ident that is read under a pin, and is the right one, shows that the register stands still until
`unpin`: it is cleared, everywhere, before the memory is freed.
"""

from __future__ import annotations

import contextlib
from array import array
from typing import Any, Final

from limpet.shm.endpoint.fabric import hash64, words_bytes
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.words import ADDRESS_MASK, LARGE_CLASS, REPLICATED
from limpet.shm.errors import AddressError, NodeFailed
from limpet.stores.fusee.links import BUFFER
from limpet.stores.object_layout import IMAGE_SIZE
from limpet.stores.status import VACANT_CLASS
from limpet.stores.swarm.layout import (
    AGAIN,
    DONE,
    HEADER,
    HEADER_WORDS,
    IN_PLACE_MAX,
    IN_PLACE_WORDS,
    REFUSED,
    REPLICAS_ROW,
    STAMP_SHIFT,
)
from limpet.stores.swarm.words import rank_of, row_of, side_of, stamp_of

MASK: Final = 0xFFFF_FFFF_FFFF_FFFF


class InNOut:
    """One register at a time, `turn_to`, of a store with that many replicas, writers, buffers."""

    def __init__(self, pool: Any, entry: int, replicas: int, writers: int, buffers: int) -> None:
        self.client = pool.client
        self.endpoint = pool.endpoint
        self.heap = pool.heap
        self.allocator = pool.allocator
        self.nodes = pool.parameters.nodes
        self.entry = entry
        self.replicas = replicas
        self.writers = writers
        self.buffers = buffers
        self.pointers = 2 + buffers
        self.width = 2 + buffers + 2 * writers
        self.stride = self.width + IN_PLACE_WORDS + IN_PLACE_MAX // 8
        self.front = array("Q", bytes(8 * self.stride * replicas))
        """Of each replica that was read: its words, up to the value in place of one of them."""
        self.image = array("Q", bytes(IMAGE_SIZE))
        self.header = array("Q", bytes(8 * HEADER_WORDS))
        self.in_place = array("Q", bytes(8 * IN_PLACE_WORDS))
        self.bases = array("Q", bytes(8 * REPLICAS_ROW))
        self.order = array("Q", bytes(8 * REPLICAS_ROW))
        """The replicas that were read, the first of which has the value in place."""
        self.read = 0
        self.mine = array("Q", bytes(8 * REPLICAS_ROW))
        """What we last saw of our word of M on each replica; 0: nothing."""
        self.reference = 0
        self.ident = 0
        self.area = 0
        self.capacity = 0
        self.writer = 0
        self.side = 0
        """The pointer of our row that is empty."""
        self.buffer = 0
        self.published = False
        """Whether a pointer has named it since it was acquired."""
        self.place = 0
        """The replica with the value in place."""
        self.value = b""

    def turn_to(self, reference: int, area: int) -> None:
        """Make that register, whose words begin `area` bytes after its address, the current one."""
        self.reference = reference
        self.area = area
        node = reference >> NODE_SHIFT & 0xFF
        row = self.heap.row(reference) if self.replicas > 1 else 0
        for k in range(self.replicas):
            there = (reference & ADDRESS_MASK) + self.heap.steps[row + k] & MASK
            self.bases[k] = there + area
            self.mine[k] = 0
        self.buffer = 0
        self.node = node

    def home(self) -> int:
        """How a hand names the register, as that of a buffer."""
        size_class = self.reference >> 48 & 0xFF
        address = self.reference & ADDRESS_MASK
        return size_class << 56 | self.entry << 48 | address | BUFFER | REPLICATED

    # ---- layout ---------------------------------------------------------------------------------

    def pointer(self, k: int, row: int, side: int) -> int:
        """Address of a pointer on replica `k`."""
        return self.bases[k] + 8 * (self.pointers + 2 * row + side)

    def lock(self, k: int, writer: int) -> int:
        """Address of a writer's timestamp lock on replica `k`."""
        return self.bases[k] + 8 * (self.width + IN_PLACE_WORDS + writer) + self.capacity

    def size(self, capacity: int) -> int:
        """Bytes of a register's words, for a value of that many bytes in place."""
        return 8 * (self.width + IN_PLACE_WORDS + self.writers) + capacity

    def read_front(self, k: int, whole: bool) -> None:
        """Read a replica's words into `front`; with `whole`, also the value in place."""
        count = self.width
        if whole:
            count += IN_PLACE_WORDS + (self.capacity >> 3)
        self.endpoint.read_words(self.bases[k], self.front, count, k * self.stride)

    def read_all(self) -> None:
        """Read the front of every replica in service; of others it is all zeros."""
        for k in range(self.replicas):
            there = not self.endpoint.failed(self.bases[k])
            try:
                if there:
                    self.read_front(k, False)
            except (NodeFailed, AddressError):
                there = False
            if not there:
                for index in range(self.width):
                    self.front[k * self.stride + index] = 0

    def word(self, k: int, index: int) -> int:
        """A word of replica `k`, as read into `front`."""
        return self.front[k * self.stride + index]

    def address(self, k: int) -> int:
        """Where the words of replica `k` begin."""
        return self.bases[k]

    def named(self, k: int, row: int, side: int) -> int:
        """What a pointer has, as read into `front`; 0 for one that is empty."""
        word = self.front[k * self.stride + self.pointers + 2 * row + side]
        return 0 if word >> 48 & 0xFF == VACANT_CLASS else word

    # ---- buffers --------------------------------------------------------------------------------

    def prepare(self, word: int, value: bytes) -> None:
        """Make the header of the tuple `word` with this value, for `write_buffer`."""
        self.value = value
        self.header[0] = stamp_of(word) << STAMP_SHIFT
        self.header[1] = self.ident
        self.header[2] = len(value)
        self.header[3] = hash64(value, (self.header[0] + self.ident + len(value)) & MASK)

    def beside(self, reference: int, k: int) -> int:
        """Address of the replica of a buffer that is beside replica `k` of the register, or 0."""
        there = reference >> NODE_SHIFT & 0xFF
        if there == self.node:
            # as far from its head as that of the register
            return (reference & ADDRESS_MASK) + self.bases[k] - self.bases[0] & MASK
        steps = (self.node + k + self.nodes - there) % self.nodes
        return 0 if steps >= self.replicas else self.heap.replica(reference, steps)

    def write_buffer(self, k: int) -> None:
        """Write what is prepared to the replica of our buffer that is beside replica `k`.

        A buffer from when the register's first node was lost has none beside that node's, which may
        be back by now, also within the operation. As the tuple will count there, the value is
        written wherever the buffer has a replica.
        """
        is_tombstone = self.buffer >> 48 & 0xFF == VACANT_CLASS
        address = 0 if is_tombstone else self.beside(self.buffer, k)
        if address:
            self.endpoint.write_gather(address, self.header, HEADER_WORDS, self.value, b"")
        elif not is_tombstone:
            for other in range(self.replicas):
                with contextlib.suppress(NodeFailed):
                    self._write_older(self.beside(self.buffer, other))

    def _write_older(self, address: int) -> None:
        """Write what is prepared to a replica of our buffer, if there is something older."""
        if (
            address
            and not self.endpoint.failed(address)
            and (
                self.endpoint.load(address + 8) != self.ident
                or self.endpoint.load(address) <= self.header[0]
            )
        ):
            self.endpoint.write_gather(address, self.header, HEADER_WORDS, self.value, b"")

    def read_buffer(self, reference: int, stamp: int, first: int) -> Any:
        """The value with this stamp, from a buffer's replica, `first` first; or None."""
        if not self.heap.plausible(reference):
            return None
        for steps in range(self.replicas):
            address = self.beside(reference, (first + steps) % self.replicas)
            if address and not self.endpoint.failed(address):
                try:
                    value = self._read_buffer_at(reference, address, stamp)
                except NodeFailed:
                    continue
                if value is not None:
                    return value
        return None

    def _read_buffer_at(self, reference: int, address: int, stamp: int) -> Any:
        size_class = reference >> 48 & 0xFF
        size = self.heap.sizes[size_class]
        if size_class == LARGE_CLASS:
            size = self.heap.value_max(self.replicas)
        self.endpoint.read_words(address, self.image, min(size, IMAGE_SIZE) >> 3)
        if self.image[0] != stamp << STAMP_SHIFT or self.image[1] != self.ident:
            return None
        length = self.image[2]
        if length > size - HEADER:
            return None
        if HEADER + length <= IMAGE_SIZE:
            value = words_bytes(self.image, HEADER, length)
        else:
            self.endpoint.wait()
            value = self.endpoint.read(address + HEADER, length)
        seed = (self.image[0] + self.image[1] + length) & MASK
        return value if hash64(value, seed) == self.image[3] else None

    def begin(self, word: int, buffer: int, value: bytes) -> bytes:
        """Write the first value of a new register to its buffer; the words of the register."""
        self.buffer = buffer
        self.prepare(word, value)
        for k in range(self.replicas):
            if not self.endpoint.failed(self.beside(buffer, k)):
                with contextlib.suppress(NodeFailed):
                    self.write_buffer(k)
        empty = [self.ident] * (2 * self.writers)
        empty[2 * row_of(word) + side_of(word)] = buffer
        in_place = [0, 0, 0]
        stored = b""
        if len(value) <= self.capacity:
            in_place = [self.header[0], self.header[2], self.header[3]]
            stored = value
        words = [self.ident, self.capacity, *[word] * self.buffers, *empty, *in_place]
        return (
            array("Q", words).tobytes()
            + stored.ljust(self.capacity, b"\0")
            + bytes(8 * self.writers)
        )

    # ---- in place -------------------------------------------------------------------------------

    def write_in_place(self) -> None:
        """Write what is prepared in place, if there is room."""
        if len(self.value) <= self.capacity:
            address = self.bases[self.place] + 8 * self.width
            self.in_place[0] = self.header[0]
            self.in_place[1] = self.header[2]
            self.in_place[2] = self.header[3]
            self.endpoint.write_gather(address, self.in_place, IN_PLACE_WORDS, self.value, b"")

    def read_in_place(self, stamp: int) -> Any:
        """The value with this stamp, if it is in place as it was read; or None."""
        at = self.place * self.stride + self.width
        length = self.front[at + 1]
        if self.front[at] != stamp << STAMP_SHIFT or length > self.capacity:
            return None
        value = words_bytes(self.front, 8 * (at + IN_PLACE_WORDS), length)
        seed = (self.front[at] + self.ident + length) & MASK
        return value if hash64(value, seed) == self.front[at + 2] else None

    # ---- algorithms 5 and 7 ---------------------------------------------------------------------

    def put(self, k: int, word: int) -> int:
        """Write the prepared value, as tuple `word` of our row, to replica `k`: its max register.

        DONE: what is there is no less. AGAIN: our word of M was another, as `mine` says now;
        REFUSED: our pointer was not empty, or this is not the register any more.
        """
        if rank_of(self.mine[k]) >= rank_of(word):
            return DONE
        self.write_buffer(k)
        found = self.endpoint.cas(
            self.pointer(k, row_of(word), side_of(word)), self.ident, self.buffer
        )
        if found != self.ident and found != self.buffer:
            return REFUSED
        self.published = True
        # CRASH(pointer): the tuple before stands; whoever has the row next empties the pointer.
        return self.max(k, word)

    def max(self, k: int, word: int) -> int:
        """The last step of `put`: MAX of our word of M on replica `k`. DONE, or AGAIN."""
        expected = self.mine[k]
        if rank_of(expected) >= rank_of(word):
            return DONE
        at = self.bases[k] + 8 * (2 + self.writer % self.buffers)
        found = self.endpoint.cas(at, expected, word)
        # CRASH(put): at a minority, perhaps; readers write it back.
        self.mine[k] = word if found == expected else found
        return DONE if found == expected or rank_of(found) >= rank_of(word) else AGAIN

    def verify(self, k: int, word: int) -> bool:
        """Set the VERIFIED bit of the tuple in M on replica `k`, if it is there; whether it is."""
        at = self.bases[k] + 8 * (2 + row_of(word) % self.buffers)
        found = self.endpoint.cas(at, word, word | 1 << STAMP_SHIFT - 1)
        return found == word or found == word | 1 << STAMP_SHIFT - 1
