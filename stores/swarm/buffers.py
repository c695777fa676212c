"""Out-of-place buffers: the values of a register (SWARM section 4).

A buffer is an object with as many replicas as its register, and its primary is on the same node. So
each replica of the register has a replica of the buffer beside it:

    0 stamp (bits 8-63)    8 ident of the register    16 length    24 hash    32 value

The hash is XXH64 of the value, seeded by the three words before it: a value is valid, in place or
in a buffer, when its hash holds and its stamp is the one looked for. So a reader rejects torn
values, and values in memory that was used again (trap S6).
"""

from __future__ import annotations

import contextlib
from array import array
from typing import Any, Final

from limpet.shm.endpoint.fabric import checksum, words_bytes
from limpet.shm.endpoint.words import LARGE_CLASS
from limpet.shm.errors import NodeFailed
from limpet.stores.object_layout import IMAGE_SIZE
from limpet.stores.status import VACANT_CLASS
from limpet.stores.swarm.layout import HEADER, HEADER_WORDS, STAMP_SHIFT
from limpet.stores.swarm.register import Register
from limpet.stores.swarm.words import stamp_of

MASK: Final = 0xFFFF_FFFF_FFFF_FFFF


class Buffer:
    """A value that one attempt writes out of place: the buffer, and the value `prepare`d for it.

    For a tombstone, which has no value, its number stands in place of the buffer's reference.
    """

    def __init__(self) -> None:
        self.reference = 0
        self.published = False
        """Whether a pointer has named it since it was acquired."""
        self.doubtful = False
        """Whether some pointer may have named it or not, as a node was lost in a phase."""
        self.ahead = 0
        """Bits: the replicas beside which the value is already, but for its header (abd.py)."""
        self.value = b""
        self.header = array("Q", bytes(8 * HEADER_WORDS))

    def prepare(self, ident: int, word: int, value: bytes) -> None:
        """Make the header of the tuple `word` with this value, in the register of this ident."""
        self.value = value
        self.header[0] = stamp_of(word) << STAMP_SHIFT
        self.header[1] = ident
        self.header[2] = len(value)
        self.header[3] = checksum(value, (self.header[0] + ident + len(value)) & MASK)


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

    def read(self, reference: int, stamp: int, first: int) -> Any:
        """The value with this stamp, from a buffer's replica, `first` first; or None."""
        if not self.heap.plausible(reference):
            return None
        replicas = self.register.replicas
        for steps in range(replicas):
            address = self.register.beside(reference, (first + steps) % replicas)
            if address and not self.endpoint.failed(address):
                try:
                    value = self._read_at(reference, address, stamp)
                except NodeFailed:
                    continue
                if value is not None:
                    return value
        return None

    def _read_at(self, reference: int, address: int, stamp: int) -> Any:
        size_class = reference >> 48 & 0xFF
        size = self.heap.sizes[size_class]
        if size_class == LARGE_CLASS:
            size = self.heap.value_max(self.register.replicas)
        self.endpoint.read_words(address, self.image, min(size, IMAGE_SIZE) >> 3)
        if self.image[0] != stamp << STAMP_SHIFT or self.image[1] != self.register.ident:
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
        return value if checksum(value, seed) == self.image[3] else None

    def is_of(self, reference: int, k: int, stamp: int) -> bool:
        """Whether a buffer has the value of that stamp, as the one beside replica `k` says."""
        address = self.register.beside(reference, k)
        try:
            return address != 0 and self.endpoint.load(address) == stamp << STAMP_SHIFT
        except NodeFailed:
            return False
