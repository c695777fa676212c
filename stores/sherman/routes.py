"""The cache of inner nodes: which leaf a key is in (Sherman's index cache; rtx.txt section 5).

The paper's clients cache the inner nodes. What one goes by is the lowest level of them only, so
that is what is kept here: the low fence of each leaf that was met, and its object. A node that is
split keeps its lower half, so what is kept is at most short of a leaf in between, which the
siblings lead to; or the leaf was merged into another one, and its object perhaps made anew
elsewhere: then it is gone, or its low fence another one, and it is forgotten.

Beside it, hints: for a hash, the leaf in which the key with it was last, if 16 bits tell it from
others. A leaf's fences say whether that is true; where it is, nothing has to be searched.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Final

HINTS_MIN: Final = 64
HINTS_PER_LEAF: Final = 16
TAG_SHIFT: Final = 48
ADDRESS_MASK: Final = 0xFFFF_FFFF_FFFF


class Routes:
    """The leaves of one tree that this client knows; at most `room` of them."""

    def __init__(self, root: int, room: int) -> None:
        self.root = root
        self.room = room
        self.lows: list[bytes] = []
        self.leaves: list[int] = []
        self.hints = array("Q", [0] * HINTS_MIN)

    def find(self, key: bytes) -> int:
        """The last leaf known that begins at or below the key; else the root."""
        index = bisect_right(self.lows, key)
        return self.leaves[index - 1] if index else self.root

    def learn(self, low: bytes, leaf: int) -> None:
        """Note a leaf. When there is no room, forget the others."""
        index = bisect_right(self.lows, low)
        if index and self.lows[index - 1] == low:
            self.leaves[index - 1] = leaf
        else:
            if len(self.lows) >= self.room:
                self.forget()
                index = 0
            self.lows.insert(index, low)
            self.leaves.insert(index, leaf)
            if len(self.lows) * HINTS_PER_LEAF > len(self.hints):
                self.hints = array("Q", [0] * (4 * len(self.hints)))

    def hinted(self, hashed: int) -> int:
        """The leaf in which the key with this hash was last; 0: it is not known."""
        word = self.hints[hashed & len(self.hints) - 1]
        return word & ADDRESS_MASK if (word ^ hashed) >> TAG_SHIFT == 0 else 0

    def hint(self, hashed: int, leaf: int) -> None:
        """Note in which leaf the key with this hash is."""
        self.hints[hashed & len(self.hints) - 1] = hashed >> TAG_SHIFT << TAG_SHIFT | leaf

    def low_at(self, key: bytes) -> bytes | None:
        """The low fence that was noted of the leaf that `find` gives; None: it gives the root."""
        index = bisect_right(self.lows, key)
        return self.lows[index - 1] if index else None

    def drop(self, key: bytes) -> None:
        """Forget the leaf that `find` gives."""
        index = bisect_right(self.lows, key)
        if index:
            del self.lows[index - 1]
            del self.leaves[index - 1]

    def forget(self) -> None:
        """Forget all."""
        self.lows.clear()
        self.leaves.clear()
        self.hints = array("Q", [0] * HINTS_MIN)
