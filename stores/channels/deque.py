"""The deque: collections.deque among processes, as far as that makes sense.

Its elements are in cells (cells.py), one after the other in a circle. Its own region
    0     ends     bits 0-31 how many elements there are; bits 32-63 the cell of the first
    8     changes  that were begun

A change has the lock, counts itself, and happens by one store of `ends`; the object of an element
that was taken is freed after that. Iteration and indexing give what was there at one moment,
without the lock: what was read is sound if `changes` and `ends` are the same afterwards. After
LOOKS looks in vain they take the lock.

Round trips: to add or to take an element 4, with that of the lock (cells.py). A look takes 2, and
one more if its cells are not side by side, for each MiB, and for each large element.

Order. Of one deque, all changes happen one after the other. The changes of several calls
(`extend`) may come between those of other processes.

A kill leaves behind: what cells.py says.

It lacks of collections.deque `insert`, `remove`, `rotate`, `reverse` and `d[i] = x`: these would
change several cells, or one that others may see, in steps that a kill can cut.
"""

from __future__ import annotations

import queue
from array import array
from collections.abc import Iterable, Iterator
from typing import Any, Final

from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.shm.errors import ChannelRemoved, StoreCorrupt
from limpet.stores.channels.cells import ITEM_SIZE, SIZE, Cells
from limpet.stores.channels.layout import LINE
from limpet.stores.channels.regions.links import unlink_from
from limpet.stores.channels.waiting import whole

COUNT: Final = 0xFFFF_FFFF
FIRST: Final = 32
LOOKS: Final = 8
PIECE: Final = 1 << 20
"""Bytes of cells that are read in one phase at most."""
INDEX_MAX: Final = 1 << 32


class Deque(Cells):
    """A deque of Python objects that many processes add to and take from, at both ends."""

    def __init__(
        self,
        manager: Any,
        name: str,
        parent: Any = None,
        *,
        size: int = SIZE,
        bounded: bool = False,
        item_size: int = ITEM_SIZE,
        codec: str = "pickle",
    ) -> None:
        """`size`: as many elements have room. `bounded`: an element that finds no room takes the
        place of that at the other end. `item_size`: an encoded element of up to so many bytes lies
        in its cell, a larger one in an object of the pool."""
        super().__init__(
            manager, name, parent, LINE, size, item_size, codec, kind="deque", bounded=bounded
        )
        self.bounded = bounded
        self.many = array("Q")
        self.links = array("Q")
        """Cells that were read at once, and their links."""

    @property
    def maxlen(self) -> int | None:
        """How many elements it keeps; None: one that finds no room is refused."""
        return self.size if self.bounded else None

    def _ends(self) -> tuple[int, int]:
        """The cell of the first element, and how many there are. 1 round trip."""
        self._read_head()
        return self._known_ends()

    def _known_ends(self) -> tuple[int, int]:
        """The same, by the words in `head`."""
        word = self.head[0]
        first, count = word >> FIRST, word & COUNT
        if first >= self.count or count > self.size:
            raise StoreCorrupt(
                f"{self.name!r} of {self.pool.url} has ends that cannot be: memory was damaged; "
                "remove it, and make it anew"
            )
        return first, count

    # ---- adding ---------------------------------------------------------------------------------

    def append(self, item: Any) -> None:
        """Add an element at the right end. Raises queue.Full (not bounded, and no room),
        ValueTooLarge, StoreFull (no memory for a large element): then it is not there."""
        self._add(item, False)

    def appendleft(self, item: Any) -> None:
        """Add an element at the left end; as `append`."""
        self._add(item, True)

    def extend(self, items: Iterable[Any]) -> None:
        """`append` each of `items`; what others do may come between."""
        for item in items:
            self._add(item, False)

    def extendleft(self, items: Iterable[Any]) -> None:
        """`appendleft` each of `items`."""
        for item in items:
            self._add(item, True)

    def _add(self, item: Any, left: bool) -> None:
        self._add_encoded(self._encoded(item), left)

    def _add_encoded(self, data: bytes, left: bool) -> None:
        done = False
        while not done:
            self._begin()
            try:
                done = self._put(data, left)
            finally:
                self._finish()
            if not done:
                self._replenish(data)

    def _put(self, data: bytes, left: bool) -> bool:
        """Add an encoded element; False: no object is ready for it."""
        first, count = self._ends()
        full = count == self.size
        if full and not self.bounded:
            raise queue.Full
        cell = (first + (self.size if left else count)) % self.count
        self._count_up()
        if not self._write(cell, data):
            return False
        if left:
            first = cell
        elif full:
            first = (first + 1) % self.count
        # ORDER: last, after all of the element, on the same node.
        # LINEARIZES: it is there; one that was dropped for it is not.
        self._post_word(first << FIRST | count + (not full))
        link = ticket = reference = 0
        if full:
            # The one cell without element, before the first one, was that of the dropped one.
            link = self._link((first + self.size) % self.count)
            ticket = self.endpoint.post_load(link)
        self.endpoint.wait()
        if full:
            reference = self.endpoint.result(ticket)
        self._written(cell, data)
        if reference:
            unlink_from(self.client, link, reference)
        return True

    # ---- taking ---------------------------------------------------------------------------------

    def pop(self) -> Any:
        """Take the element at the right end. Raises IndexError."""
        return self._take(False)

    def popleft(self) -> Any:
        """Take the element at the left end. Raises IndexError."""
        return self._take(True)

    def _take(self, left: bool) -> Any:
        self._begin()
        try:
            first, count = self._ends()
            if not count:
                raise IndexError("pop from an empty deque")
            cell = first if left else (first + count - 1) % self.count
            data = self._read(cell)
            if data is None:
                # The process that removes it has freed it.
                raise ChannelRemoved(f"{self.name!r} of {self.pool.url} was removed")
            if left:
                first = (first + 1) % self.count
            self._count_up()
            # LINEARIZES: it is ours.
            # CRASH(popped): a cell without element has a link; its next user frees the object.
            self._post_word(first << FIRST | count - 1)
            self.endpoint.wait()
            if self.reference[0]:
                unlink_from(self.client, self._link(cell), self.reference[0])
        finally:
            self._finish()
        return self.decode(data)

    def clear(self) -> None:
        """Take all elements away."""
        self._begin()
        try:
            first, count = self._ends()
            self._count_up()
            # LINEARIZES: it is empty.
            self._post_word(first << FIRST)
            links = array("Q", bytes(8 * count + 8))
            done = 0
            while done < count:
                cell = (first + done) % self.count
                here = min(count - done, self.count - cell)
                self.endpoint.post_read(self._link(cell), links, here, done)
                done += here
            self.endpoint.wait()
            for number in range(count):
                if links[number]:
                    unlink_from(
                        self.client, self._link((first + number) % self.count), links[number]
                    )
        finally:
            self._finish()

    # ---- looking --------------------------------------------------------------------------------

    def _look(self, index: Any) -> list[Any]:
        """The encoded element of this index, or, of None, all of them, at one moment."""
        for _ in range(LOOKS):
            self.enter()
            try:
                found = self._copy(index)
            finally:
                self.leave()
            if found is not None:
                return found
        self._begin()
        try:
            found = self._copy(index)
        finally:
            self._finish()
        if found is None:
            raise ChannelRemoved(f"{self.name!r} of {self.pool.url} was removed")
        return found

    def _copy(self, index: Any) -> Any:
        """As `_look`; None: a change came in between. In an operation."""
        first, count = self._ends()
        ends, changes = self.head[0], self.head[1]
        begin, length = 0, count
        if index is not None:
            begin = index % count if -count <= index < count else count
            length = min(1, count - begin)
        found: list[Any] = []
        while len(found) < length:
            here = self._post_cells((first + begin + len(found)) % self.count, length - len(found))
            # ORDER: after the elements, on the same node: their cells were not used again, nor
            # their objects freed.
            self._read_head()
            if self.head[0] != ends or self.head[1] != changes:
                return None
            for number in range(here):
                data = self._copied(number)
                if data is None:
                    return None
                found.append(data)
        return found

    def _post_cells(self, cell: int, most: int) -> int:
        """Post the read of cells from this one on, and of their links, at most so many; how many
        there are."""
        here = min(most, self.count - cell, max(1, PIECE // self.stride))
        if len(self.links) < here:
            self.many = array("Q", bytes(here * self.stride))
            self.links = array("Q", bytes(8 * here))
        self.endpoint.post_read(self.cells + cell * self.stride, self.many, here * self.stride >> 3)
        self.endpoint.post_read(self._link(cell), self.links, here)
        return here

    def _copied(self, number: int) -> Any:
        """The encoded element of one of the cells that were read; None: its object is gone. 1 round
        trip, if it has one."""
        at = number * self.stride
        size = self.many[at >> 3]
        if size <= self.item_size:
            return self._inline(self.many, at, size)
        if size > self.largest:
            raise StoreCorrupt(f"{self.name!r} of {self.pool.url}: a size was damaged")
        # The object was linked when the ends were read again, so it stays while we are pinned.
        address = self.links[number] & ADDRESS_MASK
        return self.endpoint.fetch(address, size) if address else None

    def copies(self) -> list[bytes]:
        """The elements of one moment, encoded, from left to right."""
        return self._look(None)

    def put_copies(self, elements: list[bytes]) -> None:
        """Append encoded elements. Raises queue.Full, StoreFull."""
        for data in elements:
            self._add_encoded(data, False)

    def __len__(self) -> int:
        self.enter()
        try:
            return self._ends()[1]
        finally:
            self.leave()

    def __bool__(self) -> bool:
        return len(self) > 0

    def __getitem__(self, index: int) -> Any:
        """The element of an index, from the left or, if negative, from the right end."""
        found = self._look(whole("an index", index, -INDEX_MAX, INDEX_MAX))
        if not found:
            raise IndexError("deque index out of range")
        return self.decode(found[0])

    def __iter__(self) -> Iterator[Any]:
        """The elements of one moment, from left to right."""
        return map(self.decode, self._look(None))
