"""The cache of inner nodes: which leaf a key is in (Sherman's index cache; rTX section 5).

The paper's clients cache the inner nodes. A client uses only the lowest level of them, so this
cache has just that: the low fence and the object of each leaf that was met, or is below an inner
node that was met. It can be out of date in two ways:
    split   a split node keeps its lower half, so at most the cache lacks a leaf in between, to
            which the siblings lead
    merge   the leaf was merged into another one, and its object may be in use elsewhere. Then it is
            vacant, or has another low fence, and the client forgets it

Beside it are prefetch hints: for a hash, the last place of its key, told from other keys by 16
bits. If the key is still there, the client need not search; otherwise the leaf's fences show
whether it is the right leaf.

Where this is not compiled, a signal handler can raise between any two steps. After each step there
are at most as many low fences as leaves; an entry whose fence is another leaf's is forgotten, too.

A scan notes which leaf follows which, so that the next scan can prefetch the leaves ahead.

Hint
    bits 0-31   1 + number of the leaf's object in its region; 0: no hint
    bits 32-41  offset of the entry in the node, in cache lines (to prefetch it)
    bits 42-47  place of the entry, modulo 64
    bits 48-63  of the hash
"""

from __future__ import annotations

from array import array
from typing import Final

from limpet.shm.endpoint.fabric import keys_below
from limpet.stores.rtx.layout import OBJECT_SHIFT
from limpet.stores.sherman.layout import (
    LINE_MASK,
    LINE_SHIFT,
    NUMBER_MASK,
    PLACE_MASK,
    PLACE_SHIFT,
    SIGN,
    TAG_SHIFT,
)

HINTS_MIN: Final = 64
HINTS_PER_LEAF: Final = 16
HINTS_PER_SIBLING: Final = 8
"""Hints for each noted sibling: there is room for as many siblings as leaves, or twice as many."""
NUMBERS: Final = (1 << 60) - 1


class Routes:
    """The leaves of one tree that this client knows; at most `room` of them."""

    def __init__(self, root: int, room: int) -> None:
        self.root = root
        self.room = room
        self.lows: list[bytes] = []
        self.leaves: list[int] = []
        self.hints = array("Q", bytes(8 * HINTS_MIN))
        self.siblings = array("Q", bytes(8 * HINTS_MIN))

    def find(self, key: bytes) -> int:
        """The last known leaf that begins at or below the key; otherwise the root."""
        index = keys_below(self.lows, key, True)
        return self.leaves[index - 1] if index else self.root

    def find_below(self, end: bytes | None) -> int:
        """The last known leaf that begins below `end`, or the last one; otherwise the root."""
        index = len(self.lows) if end is None else keys_below(self.lows, end, False)
        return self.leaves[index - 1] if index else self.root

    def learn(self, low: bytes, leaf: int) -> None:
        """Note a leaf. When there is no room, forget the others."""
        index = keys_below(self.lows, low, True)
        if index and self.lows[index - 1] == low:
            self.leaves[index - 1] = leaf
        else:
            if len(self.lows) >= self.room:
                self.forget()
                index = 0
            # ORDER: the leaf before its fence, by which it is found.
            self.leaves.insert(index, leaf)
            self.lows.insert(index, low)
            self._make_room()

    def learn_all(self, lows: list[bytes], leaves: list[int], high: bytes | None) -> None:
        """Note all leaves from `lows[0]` on to `high`, of the same moment, or to the last one."""
        if len(self.lows) + len(lows) > self.room:
            self.forget()
        first = keys_below(self.lows, lows[0], False)
        end = len(self.lows) if high is None else keys_below(self.lows, high, False)
        # ORDER: never more fences than leaves.
        if len(lows) < end - first:
            self.lows[first:end] = lows
            self.leaves[first:end] = leaves
        else:
            self.leaves[first:end] = leaves
            self.lows[first:end] = lows
        self._make_room()

    def _make_room(self) -> None:
        """Make room for enough hints."""
        size = len(self.hints)
        while size < len(self.lows) * HINTS_PER_LEAF:
            size *= 4
        if size > len(self.hints):
            # ORDER: the hints last, whose number says whether there is room.
            self.siblings = array("Q", bytes(8 * (size // HINTS_PER_SIBLING)))
            self.hints = array("Q", bytes(8 * size))

    def follow(self, leaf: int, sibling: int) -> None:
        """Note which leaf follows that one."""
        self.siblings[leaf >> OBJECT_SHIFT & len(self.siblings) - 1] = sibling

    def sibling_of(self, leaf: int) -> int:
        """The leaf that may follow that one, or may follow another one; 0: nothing is known."""
        return self.siblings[leaf >> OBJECT_SHIFT & len(self.siblings) - 1]

    def hinted(self, hashed: int) -> int:
        """The hint for the key with this hash; 0: there is none."""
        word = self.hints[hashed & len(self.hints) - 1]
        return word if (word ^ hashed) >> TAG_SHIFT == 0 and word & NUMBER_MASK else 0

    def is_new(self, hashed: int) -> bool:
        """Whether the place of the hint for the key with this hash is empty."""
        return self.hints[hashed & len(self.hints) - 1] == 0

    def hint(self, hashed: int, leaf: int, place: int, offset: int) -> None:
        """Note the leaf of the key with this hash, the entry's place, and its offset there."""
        # it may lie before the root
        number = ((leaf - self.root) >> OBJECT_SHIFT) + 1 + SIGN & NUMBERS
        if number <= NUMBER_MASK:
            self.hints[hashed & len(self.hints) - 1] = (
                hashed >> TAG_SHIFT << TAG_SHIFT
                | (place & PLACE_MASK) << PLACE_SHIFT
                | (offset >> 6 & LINE_MASK) << LINE_SHIFT
                | number ^ SIGN
            )

    def unhint(self, hashed: int) -> None:
        """Forget the hint for the key with this hash."""
        self.hints[hashed & len(self.hints) - 1] = 0

    def hinted_leaf(self, hint: int) -> int:
        """The leaf that a hint is about."""
        return self.root + (((hint & NUMBER_MASK) ^ SIGN) - SIGN - 1 << OBJECT_SHIFT)

    def low_at(self, key: bytes) -> bytes | None:
        """The noted low fence of the leaf that `find` gives; None: it gives the root."""
        index = keys_below(self.lows, key, True)
        return self.lows[index - 1] if index else None

    def drop(self, key: bytes) -> None:
        """Forget the leaf that `find` gives."""
        index = keys_below(self.lows, key, True)
        if index:
            # ORDER: the fence before its leaf.
            del self.lows[index - 1]
            del self.leaves[index - 1]

    def drop_below(self, end: bytes | None) -> None:
        """Forget the leaf that `find_below` gives."""
        index = len(self.lows) if end is None else keys_below(self.lows, end, False)
        if index:
            # ORDER: the fence before its leaf.
            del self.lows[index - 1]
            del self.leaves[index - 1]

    def forget(self) -> None:
        """Forget all."""
        self.lows.clear()
        self.leaves.clear()
        self.hints = array("Q", bytes(8 * HINTS_MIN))
        self.siblings = array("Q", bytes(8 * HINTS_MIN))
