"""Low fences in ascending order, as a client notes them; and a run of them with their leaves.

A search compares numbers, and seldom bytes. All fences but the first begin with the same `prefix`,
which may be empty. The head of a fence is the number that its next 8 bytes make, the first one the
highest; missing bytes count as 0. So fences with other heads are in the order of their heads, and
only those with the same head as the key are compared as bytes. The first fence of a tree is b"",
which has no prefix in common with the others; therefore the first fence of a list has no part in
the prefix. The heads of a run are next to each other in few lines of the processor's cache.

Private to a client. routes.py says how a change is made that a signal handler can cut off.
"""

from __future__ import annotations

from array import array
from typing import Final

from limpet.shm.endpoint.fabric import words_move
from limpet.stores.sherman.layout import RUN_MAX

HEAD_BYTES: Final = 8
HEAD_MAX: Final = 0xFFFF_FFFF_FFFF_FFFF


def head_of(key: bytes, skip: int) -> int:
    """The number that the bytes of a key make from byte `skip` on."""
    raw, size, head = key, len(key), 0
    for place in range(skip, skip + HEAD_BYTES):
        head <<= 8
        if place < size:
            head |= raw[place]
    return head


def common_bytes(first: bytes, second: bytes) -> int:
    """With how many bytes both begin."""
    one, other, size, place = first, second, min(len(first), len(second)), 0
    while place < size and one[place] == other[place]:
        place += 1
    return place


class Fences:
    """Fences in ascending order; room for any number of them."""

    def __init__(self, room: int) -> None:
        """`room`: for so many at first."""
        self.lows: list[bytes] = []
        self.prefix = b""
        self.heads = array("Q", bytes(8 * room))

    def below(self, key: bytes, with_it: bool) -> int:
        """How many are below the key; `with_it`: or are it."""
        count, skip = len(self.lows), len(self.prefix)
        if count < 2:
            return self._below(key, with_it, 0, count)
        if skip and not key.startswith(self.prefix):
            if self.prefix < key:
                return count
            return self._below(key, with_it, 0, 1)
        head = head_of(key, skip)
        first = self._heads_below(head, 1, count)
        if first < count and self.heads[first] == head:
            end = count if head == HEAD_MAX else self._heads_below(head + 1, first, count)
            first = self._below(key, with_it, first, end)
        return first if first > 1 else self._below(key, with_it, 0, 1)

    def _heads_below(self, head: int, low: int, high: int) -> int:
        """How many come before the first one, from `low` on, with this head or a larger one; `high`
        if none has."""
        while low < high:
            middle = (low + high) >> 1
            if self.heads[middle] < head:
                low = middle + 1
            else:
                high = middle
        return low

    def _below(self, key: bytes, with_it: bool, low: int, high: int) -> int:
        """As `below`; those before place `low` are known to be below the key, those from `high` on
        not to be."""
        lows = self.lows
        while low < high:
            middle = (low + high) >> 1
            each = lows[middle]
            if each <= key if with_it else each < key:
                low = middle + 1
            else:
                high = middle
        return low

    def insert(self, index: int, low: bytes) -> None:
        """Insert a fence at its place."""
        count = len(self.lows)
        if count == len(self.heads):
            self.heads = array("Q", bytes(16 * count))
            self.begin()
        words_move(self.heads, 8 * index + 8, 8 * index, 8 * (count - index))
        self.lows.insert(index, low)
        skip = len(self.prefix)
        if count < 2 or not index or not low.startswith(self.prefix):
            self.begin()
        else:
            self.heads[index] = head_of(low, skip)

    def remove(self, index: int) -> None:
        """Remove a fence. The others have the prefix in common as before."""
        words_move(self.heads, 8 * index, 8 * index + 8, 8 * (len(self.lows) - index - 1))
        del self.lows[index]

    def begin(self) -> None:
        """Find the prefix, and all heads, anew."""
        lows = self.lows
        count, skip = len(lows), 0
        if count > 1:
            skip = common_bytes(lows[1], lows[count - 1])
            self.prefix = lows[1][:skip]
        for place in range(1, count):
            self.heads[place] = head_of(lows[place], skip)


class Run(Fences):
    """At most RUN_MAX fences, and the leaves that begin at them."""

    def __init__(self) -> None:
        super().__init__(RUN_MAX)
        self.leaves = array("Q", bytes(8 * RUN_MAX))

    def insert_leaf(self, index: int, low: bytes, leaf: int) -> None:
        """Insert a leaf, for which there is room, at its place."""
        words_move(self.leaves, 8 * index + 8, 8 * index, 8 * (len(self.lows) - index))
        self.leaves[index] = leaf
        self.insert(index, low)

    def remove_leaf(self, index: int) -> None:
        """Remove a leaf."""
        words_move(self.leaves, 8 * index, 8 * index + 8, 8 * (len(self.lows) - index - 1))
        self.remove(index)

    def cut(self, index: int) -> Run:
        """A new run with the leaves from `index` on, which are no longer in this one."""
        upper = Run()
        upper.lows = self.lows[index:]
        for place in range(len(upper.lows)):
            upper.leaves[place] = self.leaves[index + place]
        upper.begin()
        del self.lows[index:]
        self.begin()
        return upper
