"""A register in memory: where its words are (SWARM section 4), for the current key.

A register is an object with replicas (shm/replicas/replica_layout.py); each replica is one of the
unreliable max registers of algorithm 8 (replica.py). Its key is in an object's header
(stores/fusee/log.py), and then, from the address *area* on, words of 8 bytes:

    0           ident     a number that no other register has; 0 once this one has been given up
    1           capacity  bytes of the value in place, a multiple of 8
    2           M         metadata array: `buffers` words, one for each group of writers
    then        P         two pointers for each writer: references to its buffers, or `ident`
    then        in place  stamp, length and hash of a value; then the value
    then        L         a timestamp lock for each writer (timestamp_lock.py)

Writers of each word. The row of a writer is its word in M (shared, with fewer words than writers)
and its two pointers (row.py); only that client writes tuples there, its own and copies of those
that it writes back, each with a buffer of its own. Others empty a pointer and set the VERIFIED bit.

A client that reads the right ident under a pin knows that the register's memory is not freed until
`unpin`: the ident is cleared on every replica before the memory is freed.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.words import ADDRESS_MASK, REPLICATED
from limpet.stores.fusee.links import BUFFER
from limpet.stores.fusee.marks import KEY_OFFSET
from limpet.stores.swarm.layout import IN_PLACE_MAX, IN_PLACE_WORDS, REPLICAS_ROW

MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
MIX: Final = 0x9E37_79B9_7F4A_7C15
"""2**64 over the golden ratio: a multiple of it spreads addresses."""


def area_of(key_size: int) -> int:
    """Bytes from a register's address to its words; its key has that many bytes."""
    return KEY_OFFSET + (key_size + 7 & ~7)


def first_of(reference: int, replicas: int) -> int:
    """The replica of a register that is read first, and has the value in place: spread over all."""
    return (((reference & ADDRESS_MASK) * MIX & MASK) >> 32) * replicas >> 32


class Register:
    """The place of one register at a time, the one `select`ed last.

    Of a store with that many replicas, writers, and words of M (`buffers`), whose entry of the
    catalogue has the number `entry`. `most`: the largest capacity of those that are selected.
    """

    def __init__(
        self, pool: Any, entry: int, replicas: int, writers: int, buffers: int,
        most: int = IN_PLACE_MAX,
    ) -> None:  # fmt: skip
        self.heap = pool.heap
        self.nodes = pool.parameters.nodes
        self.entry = entry
        self.replicas = replicas
        self.writers = writers
        self.buffers = buffers
        self.pointers = 2 + buffers
        """The index of the first pointer."""
        self.width = 2 + buffers + 2 * writers
        """Words before the value in place."""
        self.words_max = self.width + IN_PLACE_WORDS + most // 8
        self.bases = array("Q", bytes(8 * REPLICAS_ROW))
        """Where the words begin on each replica."""
        self.reference = 0
        self.area = 0
        self.node = 0
        self.ident = 0
        self.capacity = 0
        self.first = 0
        """The replica that is read first, and has the value in place."""

    def select(self, reference: int, area: int) -> None:
        """Make that register the current one; its words begin `area` bytes after its address.

        This does not set its ident, capacity and first replica.
        """
        self.reference = reference
        self.area = area
        row = self.heap.row(reference) if self.replicas > 1 else 0
        for k in range(self.replicas):
            self.bases[k] = ((reference & ADDRESS_MASK) + self.heap.steps[row + k] & MASK) + area
        self.node = reference >> NODE_SHIFT & 0xFF

    def link_address(self) -> int:
        """The link address by which a client journal names the register of a buffer."""
        size_class = self.reference >> 48 & 0xFF
        address = self.reference & ADDRESS_MASK
        return size_class << 56 | self.entry << 48 | address | BUFFER | REPLICATED

    def address(self, k: int) -> int:
        """Where the words of replica `k` begin."""
        return self.bases[k]

    def metadata(self, k: int, row: int) -> int:
        """Address of a row's word of M on replica `k`."""
        return self.bases[k] + 8 * (2 + row % self.buffers)

    def pointer(self, k: int, row: int, side: int) -> int:
        """Address of a pointer on replica `k`."""
        return self.bases[k] + 8 * (self.pointers + 2 * row + side)

    def lock(self, k: int, writer: int) -> int:
        """Address of a writer's timestamp lock on replica `k`."""
        return self.bases[k] + 8 * (self.width + IN_PLACE_WORDS + writer) + self.capacity

    def size(self, capacity: int) -> int:
        """Bytes of a register's words, for a value of that many bytes in place."""
        return 8 * (self.width + IN_PLACE_WORDS + self.writers) + capacity

    def beside(self, reference: int, k: int) -> int:
        """Address of the replica of a buffer that is beside replica `k` of the register, or 0."""
        there = reference >> NODE_SHIFT & 0xFF
        if there == self.node:
            # as far from its primary as the register's replica is from the register's primary
            return (reference & ADDRESS_MASK) + self.bases[k] - self.bases[0] & MASK
        steps = (self.node + k + self.nodes - there) % self.nodes
        return 0 if steps >= self.replicas else self.heap.replica(reference, steps)
