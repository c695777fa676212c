"""Blocks that a client cuts into objects of one size class: `Slab`, and all it has, `Slabs`.

Private to the client, for each block: `ready`, a bitmap of objects that are free and that no client
can still be reading; and `pending`, those that were seen free when period `pending_epoch` was
closed. An object whose used bit any client has cleared becomes pending, and then ready when the
grace period (clients/epoch.py) is over. These bitmaps are lost with the client; the used bits
(heap.py) are in shared memory, and recovery needs only these.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final

from limpet.shm.clients.epoch import NEVER
from limpet.shm.endpoint.fabric import bit, lowest_bit
from limpet.shm.endpoint.words import ADDRESS_MASK, replica_bits

if TYPE_CHECKING:
    from limpet.shm.clients.epoch import Grace

EXPECTED_SIZE: Final = 1024
"""Bytes of each replica of the next object that are prefetched before it is written."""
MASK: Final = 0xFFFF_FFFF_FFFF_FFFF


class Slab:
    """A block of this client's, cut into objects of one class."""

    def __init__(
        self, heap: Any, node: int, block: int, size_class: int, replicas: int, fresh: bool
    ) -> None:
        self.heap = heap
        self.node = node
        self.block = block
        self.size_class = size_class
        self.replicas = replicas
        self.bits = replica_bits(replicas)
        first = heap.reference(node, block, size_class, 0) | self.bits
        self.first = first
        """The reference to its first object."""
        self.size = heap.sizes[size_class]
        self.row = heap.row(first) if replicas > 1 else 0
        self.count = heap.object_count(size_class)
        self.words = (self.count + 63) // 64
        self.ready = array("Q", bytes(8 * self.words))
        self.pending = array("Q", bytes(8 * self.words))
        self.pending_epoch = 0
        self.pending_count = 0
        self.ready_count = 0
        self.cursor = 0
        self.kept = 0
        """How many ready objects are for updates only: `pop` does not give them."""
        if fresh:
            for index in range(self.words):
                self.ready[index] = self.valid(index)
            self.ready_count = self.count

    def valid(self, index: int) -> int:
        """The bits of word `index` that stand for objects."""
        rest = self.count - 64 * index
        return 0xFFFF_FFFF_FFFF_FFFF if rest >= 64 else bit(rest) - 1

    def pop(self) -> int:
        """Take a ready object; its reference, or 0 when there is none."""
        while self.ready_count > self.kept:
            word = self.ready[self.cursor]
            if word:
                bit = lowest_bit(word)
                self.ready[self.cursor] = word & (word - 1)
                self.ready_count -= 1
                return self.first + (64 * self.cursor + bit) * self.size
            self.cursor += 1
            if self.cursor == self.words:
                self.cursor = 0
        return 0

    def expect(self) -> None:
        """Prefetch the memory of the object that `pop` may give next."""
        word = self.ready[self.cursor]
        if word:
            following = self.first + (64 * self.cursor + lowest_bit(word)) * self.size
            size = min(self.size, EXPECTED_SIZE)
            for k in range(self.replicas):
                there = (following & ADDRESS_MASK) + self.heap.steps[self.row + k] & MASK
                self.heap.endpoint.prefetch(there, size, True)

    def look(self) -> int:
        """Note the objects whose used bit is clear as pending; how many are newly so."""
        if self.pending_count:
            return 0
        endpoint = self.heap.endpoint
        bitmap = self.heap.bitmap(self.node, self.block)
        self.pending_epoch = NEVER
        for index in range(self.words):
            found = ~endpoint.load(bitmap + 8 * index) & ~self.ready[index] & self.valid(index)
            self.pending[index] = found
            while found:
                found &= found - 1
                self.pending_count += 1
        return self.pending_count

    def ripen(self, horizon: int) -> None:
        """Make pending objects ready, if no client is pinned at their period or before."""
        if self.pending_count and self.pending_epoch < horizon:
            for index in range(self.words):
                self.ready[index] |= self.pending[index]
                self.pending[index] = 0
            self.ready_count += self.pending_count
            self.pending_count = 0


class Slabs:
    """The slabs of a client, by kind: a number for node, size class and number of replicas."""

    def __init__(self, heap: Any) -> None:
        self.placement = heap.placement
        self.nodes = self.placement.nodes
        self.kinds: dict[int, list[Slab]] = {}
        self.current: list[Slab | None] = [None] * (self.placement.replicas_max * self.nodes * 256)
        """For each kind, the slab from which an object was taken last."""

    def kind(self, node: int, size_class: int, replicas: int) -> int:
        """The kind of objects with this many replicas. ParameterError: there cannot be so many."""
        self.placement.check(replicas)
        return ((replicas - 1) * self.nodes + node) << 8 | size_class

    def of(self, kind: int) -> list[Slab]:
        """The slabs of a kind."""
        return self.kinds.setdefault(kind, [])

    def all(self) -> list[Slab]:
        """Every slab of the client."""
        return [slab for slabs in self.kinds.values() for slab in slabs]

    def next_ready(self, kind: int) -> Slab | None:
        """A slab of this kind with a ready object, made the current one; None: there is none."""
        for slab in self.kinds.get(kind, ()):
            if slab.ready_count > slab.kept:
                self.current[kind] = slab
                return slab
        return None

    def drop(self, slab: Slab) -> None:
        """Forget a slab, which is not the client's any more."""
        kind = self.kind(slab.node, slab.size_class, slab.replicas)
        self.kinds[kind].remove(slab)
        if self.current[kind] is slab:
            self.current[kind] = None


def find_freed(slabs: list[Slab], grace: Grace) -> None:
    """Find objects that clients freed, and make ready those that no client can still read."""
    horizon = grace.horizon() if any(slab.pending_count for slab in slabs) else 0
    for slab in slabs:
        slab.ripen(horizon)
        slab.look()
    new = [slab for slab in slabs if slab.pending_count and slab.pending_epoch == NEVER]
    if new:
        epoch = grace.close_period()
        for slab in new:
            slab.pending_epoch = epoch
        horizon = grace.horizon()
        for slab in new:
            slab.ripen(horizon)
