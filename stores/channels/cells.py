"""Cells with an element each, which are written with a lock: what deque.py and topic.py share.

Memory: a region of the channel, its part `lock` (lock.py), and the region `.cells` on the same node
    .cells: `size` + 1 times
    0     bytes   of the element
    8     data    of an element of up to `item_size` bytes; a larger one is an object, which the
                  cell's link names. The links are behind the cells (regions/links.py)

The channel says by one word of its own which cells have an element. A client that has the lock
writes an element into a cell that has none, of which there is always one, and then changes that
word. So a reader without the lock needs only to look at the word before and after it has read.

Round trips. The region, the cells and their links are on one node, whose order is kept. A client
that has the lock is the only one to change them, so it posts its changes in the order in which they
are written here. To add an element takes the lock and three phases:

    1 the channel's two words        no fewer: 2 depends on which cell is next, and 3 on its link
    2 `changes` + 1; the cell's link
    3 the element; the channel's word

A large one takes another phase, for a look whether the channel was removed. A reader without the
lock has the channel's word read before and behind the cell, in one phase. The object of a large
element that it found in between is not used again while it is pinned.

A kill leaves behind: a cell without element that has a link; the next user of the cell frees the
object. A dead process's lock is free at once (lock.py), and nothing has to be repaired. A process
that is stopped with the lock is ended after a lease, as others wait for it.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from limpet.shm.endpoint.fabric import words_bytes
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.shm.errors import StoreCorrupt, ValueTooLarge
from limpet.stores.channels.channel import Channel
from limpet.stores.channels.layout import MASK
from limpet.stores.channels.lock.lock import Lock
from limpet.stores.channels.phases import cas_alone, load_alone
from limpet.stores.channels.regions.links import unlink
from limpet.stores.channels.regions.region import DESCRIPTION_MAX, Links
from limpet.stores.channels.waiting import whole
from limpet.stores.core.codecs import Codec
from limpet.stores.core.object_layout import IMAGE_SIZE

SIZE: Final = 1024
SIZE_MAX: Final = 1 << 24
ITEM_SIZE: Final = 120
STEP: Final = 8
"""Offset of the word of the channel's region that counts the changes that were begun."""
DATA: Final = 8
assert STEP == 8
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
        self.head = array("Q", [0, 0])
        """The first two words of the channel's region, as they were read last."""
        self.words = array("Q", bytes(min(stride, IMAGE_SIZE)))
        """The front of a cell that was read."""
        self.reference = array("Q", [0])
        """The link of that cell."""

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
            self.membership.gone(holder, f"the lock of {self.title()}", step)
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
        """How many changes were begun. 1 round trip."""
        self._read_head()
        return self.head[1]

    def _read_head(self) -> None:
        """Read the first two words of the channel's region. 1 round trip."""
        self.endpoint.post_read(self.address, self.head, 2)
        self.endpoint.wait()

    def _count_up(self) -> None:
        """Post that a change begins, counted from `head`. With the lock."""
        self.head[1] = self.head[1] + 1 & MASK
        # ORDER: before anything of the change, on the same node.
        self.endpoint.post_write(self.address + STEP, self.head, 1, 1)

    def _post_word(self, word: int) -> None:
        """Post the channel's word, which says which cells have an element."""
        self.head[0] = word
        self.endpoint.post_write(self.address, self.head, 1)

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
        """Post the write of an element into a cell that has none; False: no object is ready for it.
        1 round trip for the cell's link.

        With the lock. Then post the channel's word, `wait`, and call `_written`.
        """
        # Of a change that was cut off, or an element that the cell had.
        unlink(self.client, self._link(cell))
        size = len(data)
        at = self.cells + cell * self.stride
        self.words[0] = size
        if size > self.item_size:
            self.reference[0] = self.allocator.allocate(self.node, size, 1)
            if not self.reference[0]:
                return False
            self.endpoint.post_gather(self.reference[0] & ADDRESS_MASK, self.words, 0, data, b"")
            # ORDER: the journal names the link before it is set; the object is written before, on
            # the same node.
            self.client.retarget(self.client.held - 1, self._link(cell))
            # CRASH(linked): a cell without element has a link; its next user frees the object.
            self.endpoint.post_write(self._link(cell), self.reference, 1)
            self.endpoint.post_write(at, self.words, 1)
        else:
            self.endpoint.post_gather(at, self.words, 1, data, b"")
        return True

    def _written(self, cell: int, data: bytes) -> None:
        """The element is there: its object is no more in the client journal. 1 round trip if it has
        one."""
        if len(data) > self.item_size:
            # ORDER: after the phase that has linked it: the process that removes the channel
            # changes the mark, and then looks at the links.
            if load_alone(self.endpoint, self.marked.address) == self.marked.number:
                self.client.drop(self.client.held - 1)
            else:
                # The channel was removed: the object is still in the journal, so `leave` frees it.
                cas_alone(self.endpoint, self._link(cell), self.reference[0], 0)

    def _replenish(self, data: bytes) -> None:
        """Have an object ready for an element. Raises StoreFull. Outside of operations."""
        self.allocator.replenish(self.node, len(data), 1, 0, 0, True)

    def _read(self, cell: int) -> Any:
        """The encoded element of a cell; None: its object is gone. Raises StoreCorrupt."""
        self._post_cell(cell)
        self.endpoint.wait()
        return self._element(cell)

    def _post_cell(self, cell: int) -> None:
        """Post the read of a cell and its link."""
        self.endpoint.post_read(self.cells + cell * self.stride, self.words, len(self.words))
        self.endpoint.post_read(self._link(cell), self.reference, 1)

    def _is_whole(self) -> bool:
        """Whether all of the element of the cell that was read is in `words`."""
        return DATA + self.words[0] <= 8 * len(self.words)

    def _element(self, cell: int) -> Any:
        """The element of the cell that was read, as `_read`; 1 round trip if it is not whole."""
        size = self.words[0]
        if size > self.largest:
            raise StoreCorrupt(f"{self.name!r} of {self.pool.url}: a size was damaged")
        if size > self.item_size:
            address = self.reference[0] & ADDRESS_MASK
            return self.endpoint.fetch(address, size) if address else None
        if DATA + size <= 8 * len(self.words):
            return self._inline(self.words, 0, size)
        return self.endpoint.fetch(self.cells + cell * self.stride + DATA, size)

    def _inline(self, words: Any, at: int, size: int) -> bytes:
        """The element of this size in a cell that begins at byte `at` of these words."""
        return words_bytes(words, at + DATA, size)
