"""The deque: collections.deque among processes, as far as that makes sense.

Its elements are in cells (cells.py), one after the other in a circle. Its own region
    0     ends     bits 0-31 how many elements there are; bits 32-63 the cell of the first
    8     changes  that were begun

A change has the lock, counts itself, and happens by one store of `ends`; the object of an element
that was taken is freed after that. Iteration and indexing give what was there at one moment,
without the lock: what was read is sound if `changes` and `ends` are the same afterwards. After
LOOKS looks in vain they take the lock.

Order. Of one deque, all changes happen one after the other. The changes of several calls
(`extend`) may come between those of other processes.

A kill leaves behind: what cells.py says.

Not of collections.deque: `insert`, `remove`, `rotate`, `reverse` and `d[i] = x`, which would change
several cells, or one that others may see, in steps that a kill can cut.
"""

from __future__ import annotations

import queue
from collections.abc import Iterable, Iterator
from typing import Any, Final

from limpet.shm.errors import ChannelRemoved, StoreCorrupt
from limpet.stores.channels.cells import ITEM_SIZE, SIZE, Cells
from limpet.stores.channels.layout import LINE
from limpet.stores.channels.regions.links import unlink
from limpet.stores.channels.waiting import whole

COUNT: Final = 0xFFFF_FFFF
FIRST: Final = 32
LOOKS: Final = 8
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

    @property
    def maxlen(self) -> int | None:
        """How many elements it keeps; None: one that finds no room is refused."""
        return self.size if self.bounded else None

    def _ends(self) -> tuple[int, int]:
        """The cell of the first element, and how many there are."""
        word = self.endpoint.load(self.address)
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
        data = self._encoded(item)
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
        # ORDER: last, after all of the element.
        # LINEARIZES: it is there; one that was dropped for it is not.
        self.endpoint.store(self.address, first << FIRST | count + (not full))
        self._written(cell, data)
        if full:
            # The one cell without element, before the first one, was that of the dropped one.
            unlink(self.client, self._link((first + self.size) % self.count))
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
            self.endpoint.store(self.address, first << FIRST | count - 1)
            unlink(self.client, self._link(cell))
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
            self.endpoint.store(self.address, first << FIRST)
            for number in range(count):
                unlink(self.client, self._link((first + number) % self.count))
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
        changes = self._step()
        first, count = self._ends()
        length: Any = count
        numbers: Any = range(length)
        if index is not None:
            numbers = [index % length] if -length <= index < length else []
        found = []
        for number in numbers:
            data = self._read((first + number) % self.count)
            if data is None:
                return None
            found.append(data)
        # ORDER: after the elements: their cells were not used again, nor their objects freed.
        now = self._ends()
        same = self._step() == changes
        return found if same and now == (first, count) else None

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
