"""The deque: collections.deque among processes, as far as that makes sense.

Memory: a region of its own, the part `lock` (lock.py), and the region `.places` on the same node
    0     ends     bits 0-31 how many elements there are; bits 32-63 the place of the first
    8     changes  that were begun
    .places: for each of `size` + 1 places in a circle
    0     bytes   of its element
    8     data    of an element of up to `item_size` bytes; a larger one is an object, which the
                  place's link names. The links are behind the places (regions/links.py)

A change has the lock, counts itself, and happens by one store of `ends`: a new element is written
before that into a place that holds none, of which there is always one, and the object of an element
that was taken is freed after it. Iteration and indexing give what was there at one moment, without
the lock: what was read is sound if `changes` and `ends` are the same afterwards. After LOOKS looks
in vain they take the lock.

Order. Of one deque, all changes happen one after the other. What several calls do (`extend`) may
come between those of other processes.

A kill leaves behind: a place without element that has a link; the next user of the place
frees the object. A dead process's lock is free at once (lock.py), and nothing has to be repaired.

A process that is stopped with the lock is ended after a lease, as others wait for it.

Not of collections.deque: `insert`, `remove`, `rotate`, `reverse` and `d[i] = x`, which would change
several places, or one that others may see, in steps that a kill can cut.
"""

from __future__ import annotations

import queue
from collections.abc import Iterable, Iterator
from typing import Any, Final

from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.shm.errors import ChannelRemoved, StoreCorrupt, ValueTooLarge
from limpet.stores.channels.channel import Channel
from limpet.stores.channels.layout import LINE, MASK
from limpet.stores.channels.lock.lock import Lock
from limpet.stores.channels.regions.links import unlink
from limpet.stores.channels.regions.region import DESCRIPTION_MAX, Links
from limpet.stores.channels.waiting import whole
from limpet.stores.core.codecs import Codec

SIZE: Final = 1024
SIZE_MAX: Final = 1 << 24
ITEM_SIZE: Final = 120
DATA: Final = 8
CHANGES: Final = 8
COUNT: Final = 0xFFFF_FFFF
FIRST: Final = 32
LOOKS: Final = 8
LOOK_S: Final = 0.05
"""A client that waits for the lock so long asks whether its holder stands still."""


class Deque(Channel):
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
        in its place, a larger one in an object of the pool."""
        size = whole("a deque's size", size, 1, SIZE_MAX)
        item_size = whole("a deque's `item_size`", item_size, 1, SIZE_MAX)
        coding = Codec.named(codec)
        stride = (DATA + item_size + 7) // 8 * 8
        places = size + 1
        self.largest = manager.pool.heap.value_max(1)
        if places * (stride + 8) > self.largest - DESCRIPTION_MAX:
            raise ValueTooLarge(
                f"{size} elements of {item_size} bytes do not fit into a memory node; make the "
                "deque shorter, or the pool with larger nodes"
            )
        super().__init__(
            manager,
            name,
            parent,
            size=LINE,
            of=size,
            kind="deque",
            bounded=bounded,
            item_size=item_size,
            codec=codec,
        )
        self.encode = coding.encode
        self.decode = coding.decode
        self.size = size
        self.bounded = bounded
        self.stride = stride
        self.count = places
        self.item_size = stride - DATA
        self.allocator = self.pool.allocator
        self.node = self.address >> NODE_SHIFT
        links = Links(places * stride, 8, places)
        self.places = self.region("places", places * (stride + 8), self.node, links)
        self.lock = Lock(manager, "lock", self)

    @property
    def maxlen(self) -> int | None:
        """How many elements it keeps; None: one that finds no room is refused."""
        return self.size if self.bounded else None

    # ---- the lock -------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Begin an operation that has the lock."""
        entered = False
        while not self.lock.acquire(True, LOOK_S):
            holder = self.lock.ticket.holder()
            self.enter()
            try:
                step = self.endpoint.load(self.address + CHANGES)
            finally:
                self.leave()
            self.membership.gone(holder, f"the lock of {self!r}", step)
        try:
            self.enter()
            entered = True
        finally:
            if not entered:
                self.lock.release()

    def _finish(self) -> None:
        """End it."""
        try:
            self.leave()
        finally:
            self.lock.release()

    def _ends(self) -> tuple[int, int]:
        """The place of the first element, and how many there are."""
        word = self.endpoint.load(self.address)
        first, count = word >> FIRST, word & COUNT
        if first >= self.count or count > self.size:
            raise StoreCorrupt(
                f"{self.name!r} of {self.pool.url} has ends that cannot be: memory was damaged; "
                "remove it, and make it anew"
            )
        return first, count

    def _count_up(self) -> None:
        """ORDER: before anything of a change."""
        at = self.address + CHANGES
        self.endpoint.store(at, self.endpoint.load(at) + 1 & MASK)

    def _link(self, place: int) -> int:
        """Address of a place's link."""
        return self.places + self.count * self.stride + 8 * place

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
        data = self.encode(item)
        if len(data) > self.largest:
            raise ValueTooLarge(
                f"the element takes {len(data)} bytes; an object has room for {self.largest} here"
            )
        done = False
        while not done:
            self._begin()
            try:
                done = self._put(data, left)
            finally:
                self._finish()
            if not done:
                self.allocator.replenish(self.node, len(data), 1, 0, 0, True)

    def _put(self, data: bytes, left: bool) -> bool:
        """Add an encoded element; False: no object is ready for it."""
        first, count = self._ends()
        size = len(data)
        full = count == self.size
        if full and not self.bounded:
            raise queue.Full
        place = (first + (self.size if left else count)) % self.count
        self._count_up()
        # Of a change that was cut off.
        unlink(self.client, self._link(place))
        at = self.places + place * self.stride
        reference = index = 0
        if size > self.item_size:
            reference = self.allocator.allocate(self.node, size, 1)
            if not reference:
                return False
            index = self.client.held - 1
            self.endpoint.write(reference & ADDRESS_MASK, data)
            # ORDER: the journal names the link before it is set.
            self.client.retarget(index, self._link(place))
            # CRASH(linked): a place without element has a link; its next user frees the object.
            self.endpoint.store(self._link(place), reference)
        else:
            self.endpoint.write(at + DATA, data)
        self.endpoint.store(at, size)
        if left:
            first = place
        elif full:
            first = (first + 1) % self.count
        # ORDER: last, after all of the element.
        # LINEARIZES: it is there; one that was dropped for it is not.
        self.endpoint.store(self.address, first << FIRST | count + (not full))
        if reference:
            if self.endpoint.load(self.marked.address) == self.marked.number:
                self.client.drop(index)
            else:
                # The object is still in the journal, so `leave` frees it.
                self.endpoint.cas(self._link(place), reference, 0)
        if full:
            # The one place without element, before the first one, was that of the dropped one.
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
            place = first if left else (first + count - 1) % self.count
            data = self._data(place)
            if data is None:
                # The process that removes it has freed it.
                raise ChannelRemoved(f"{self.name!r} of {self.pool.url} was removed")
            if left:
                first = (first + 1) % self.count
            self._count_up()
            # LINEARIZES: it is ours.
            # CRASH(popped): a place without element has a link; its next user frees the object.
            self.endpoint.store(self.address, first << FIRST | count - 1)
            unlink(self.client, self._link(place))
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

    def _data(self, place: int) -> Any:
        """The encoded element of a place; None: its object is gone. Raises StoreCorrupt."""
        at = self.places + place * self.stride
        size = self.endpoint.load(at)
        if size > self.largest:
            raise StoreCorrupt(f"{self.name!r} of {self.pool.url}: a size was damaged")
        if size <= self.item_size:
            return self.endpoint.read(at + DATA, size)
        reference = self.endpoint.load(self._link(place))
        return self.endpoint.read(reference & ADDRESS_MASK, size) if reference else None

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
        changes = self.endpoint.load(self.address + CHANGES)
        first, count = self._ends()
        length: Any = count
        numbers: Any = range(length)
        if index is not None:
            numbers = [index % length] if -length <= index < length else []
        found = []
        for number in numbers:
            data = self._data((first + number) % self.count)
            if data is None:
                return None
            found.append(data)
        # ORDER: after the elements: their places were not used again, nor their objects freed.
        now = self._ends()
        same = self.endpoint.load(self.address + CHANGES) == changes
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
        found = self._look(whole("an index", index, -SIZE_MAX, SIZE_MAX))
        if not found:
            raise IndexError("deque index out of range")
        return self.decode(found[0])

    def __iter__(self) -> Iterator[Any]:
        """The elements of one moment, from left to right."""
        return map(self.decode, self._look(None))
