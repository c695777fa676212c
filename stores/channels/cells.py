"""Cells with an element each, which are written with a lock: what deque.py and topic.py share.

Memory: a region of the channel, its part `lock` (lock.py), and the region `.cells` on the same node
    .cells: `size` + 1 times
    0     bytes   of the element
    8     data    of an element of up to `item_size` bytes; a larger one is an object, which the
                  cell's link names. The links are behind the cells (regions/links.py)

The channel says by one word of its own which cells have an element. A client that has the lock
writes an element into a cell that has none, of which there is always one, and then changes that
word. So a reader without the lock needs only to look at the word before and after it has read.

A kill leaves behind: a cell without element that has a link; the next user of the cell frees the
object. A dead process's lock is free at once (lock.py), and nothing has to be repaired. A process
that is stopped with the lock is ended after a lease, as others wait for it.
"""

from __future__ import annotations

from typing import Any, Final

from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.shm.errors import StoreCorrupt, ValueTooLarge
from limpet.stores.channels.channel import Channel
from limpet.stores.channels.layout import MASK
from limpet.stores.channels.lock.lock import Lock
from limpet.stores.channels.regions.links import unlink
from limpet.stores.channels.regions.region import DESCRIPTION_MAX, Links
from limpet.stores.channels.waiting import whole
from limpet.stores.core.codecs import Codec

SIZE: Final = 1024
SIZE_MAX: Final = 1 << 24
ITEM_SIZE: Final = 120
STEP: Final = 8
"""Offset of the word of the channel's region that counts the changes that were begun."""
DATA: Final = 8
LOOK_S: Final = 0.05
"""A client that waits for the lock so long asks whether its holder stands still."""


class Cells(Channel):
    """A channel of `size` elements at most."""

    def __init__(
        self,
        manager: Any,
        name: str,
        parent: Any,
        region_size: int,
        size: int,
        item_size: int,
        codec: str,
        *,
        kind: str,
        **parameters: Any,
    ) -> None:
        size = whole(f"the `size` of a {kind}", size, 1, SIZE_MAX)
        item_size = whole(f"the `item_size` of a {kind}", item_size, 1, SIZE_MAX)
        coding = Codec.named(codec)
        stride = (DATA + item_size + 7) // 8 * 8
        count = size + 1
        self.largest = manager.pool.heap.value_max(1)
        if count * (stride + 8) > self.largest - DESCRIPTION_MAX:
            raise ValueTooLarge(
                f"{size} elements of {item_size} bytes do not fit into a memory node; make the "
                f"{kind} shorter, or the pool with larger nodes"
            )
        super().__init__(
            manager,
            name,
            parent,
            size=region_size,
            of=size,
            kind=kind,
            item_size=item_size,
            codec=codec,
            **parameters,
        )
        self.encode = coding.encode
        self.decode = coding.decode
        self.size = size
        self.stride = stride
        self.count = count
        self.item_size = stride - DATA
        self.allocator = self.pool.allocator
        self.node = self.address >> NODE_SHIFT
        links = Links(count * stride, 8, count)
        self.cells = self.region("cells", count * (stride + 8), self.node, links)
        self.lock = Lock(manager, "lock", self)

    def _begin(self) -> None:
        """Begin an operation that has the lock."""
        entered = False
        while not self.lock.acquire(True, LOOK_S):
            holder = self.lock.ticket.holder()
            self.enter()
            try:
                step = self._step()
            finally:
                self.leave()
            self.membership.gone(holder, f"the lock of {self!r}", step)
        try:
            self.enter()
            entered = True
        finally:
            if not entered:
                self.lock.__exit__()

    def _finish(self) -> None:
        """End it. A signal handler that raises at the end leaves the lock free, too."""
        try:
            self.leave()
        finally:
            self.lock.__exit__()

    def _step(self) -> int:
        """How many changes were begun."""
        return self.endpoint.load(self.address + STEP)

    def _count_up(self) -> None:
        """Count a change that begins. With the lock."""
        # ORDER: before anything of the change.
        self.endpoint.store(self.address + STEP, self._step() + 1 & MASK)

    def _link(self, cell: int) -> int:
        """Address of a cell's link."""
        return self.cells + self.count * self.stride + 8 * cell

    def _encoded(self, item: Any) -> bytes:
        """An element as bytes. Raises ValueTooLarge."""
        data: bytes = self.encode(item)
        if len(data) > self.largest:
            raise ValueTooLarge(
                f"the element takes {len(data)} bytes; an object has room for {self.largest} here"
            )
        return data

    def _write(self, cell: int, data: bytes) -> bool:
        """Write an element into a cell that has none; False: no object is ready for it.

        With the lock. Then change the channel's word, and call `_written`.
        """
        # Of a change that was cut off, or an element that the cell had.
        unlink(self.client, self._link(cell))
        size = len(data)
        at = self.cells + cell * self.stride
        if size > self.item_size:
            reference = self.allocator.allocate(self.node, size, 1)
            if not reference:
                return False
            self.endpoint.write(reference & ADDRESS_MASK, data)
            # ORDER: the journal names the link before it is set.
            self.client.retarget(self.client.held - 1, self._link(cell))
            # CRASH(linked): a cell without element has a link; its next user frees the object.
            self.endpoint.store(self._link(cell), reference)
        else:
            self.endpoint.write(at + DATA, data)
        self.endpoint.store(at, size)
        return True

    def _written(self, cell: int, data: bytes) -> None:
        """The element is there: its object is no more in the client journal."""
        if len(data) > self.item_size:
            if self.endpoint.load(self.marked.address) == self.marked.number:
                self.client.drop(self.client.held - 1)
            else:
                # The channel was removed: the object is still in the journal, so `leave` frees it.
                link = self._link(cell)
                self.endpoint.cas(link, self.endpoint.load(link), 0)

    def _replenish(self, data: bytes) -> None:
        """Have an object ready for an element. Raises StoreFull. Outside of operations."""
        self.allocator.replenish(self.node, len(data), 1, 0, 0, True)

    def _read(self, cell: int) -> Any:
        """The encoded element of a cell; None: its object is gone. Raises StoreCorrupt."""
        at = self.cells + cell * self.stride
        size = self.endpoint.load(at)
        if size > self.largest:
            raise StoreCorrupt(f"{self.name!r} of {self.pool.url}: a size was damaged")
        if size <= self.item_size:
            return self.endpoint.read(at + DATA, size)
        reference = self.endpoint.load(self._link(cell))
        return self.endpoint.read(reference & ADDRESS_MASK, size) if reference else None
