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

A scan notes which leaf follows which, so that the next scan can prefetch the leaves ahead.

No step takes longer the more leaves are known. They are in parts of at most PART_MAX neighbours: to
note one more moves those of its part. A part has the leaves whose fences are at or above its bound
and below the next one's; the first bound is the empty key. A full part becomes two, an empty one
goes. The room for hints grows to four times as much, begins empty again, and its pages come as they
are touched (shm/private_memory.py).

Where this is not compiled, a signal handler can raise between any two steps. After each step there
are at most as many low fences as leaves in a part; an entry whose fence is another leaf's is
forgotten, too. If there are not as many bounds as parts, all is forgotten.

Hint
    bits 0-31   1 + number of the leaf's object in its region; 0: no hint
    bits 32-41  offset of the entry in the node, in cache lines (to prefetch it)
    bits 42-47  place of the entry, modulo 64
    bits 48-63  of the hash
"""

from __future__ import annotations

from typing import Final

from limpet.shm.endpoint.fabric import keys_below
from limpet.shm.private_memory import zeroed_words
from limpet.stores.rtx.layout import OBJECT_SHIFT
from limpet.stores.sherman.layout import (
    LINE_MASK,
    LINE_SHIFT,
    NUMBER_MASK,
    PART_MAX,
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


class Part:
    """Neighbours: for each leaf its low fence, in ascending order, and its object."""

    def __init__(self, lows: list[bytes], leaves: list[int]) -> None:
        self.lows = lows
        self.leaves = leaves


class Routes:
    """The leaves of one tree that this client knows; at most `room` of them."""

    def __init__(self, root: int, room: int) -> None:
        self.root = root
        self.room = room
        self.hints = zeroed_words(HINTS_MIN)
        self.forget()

    def find(self, key: bytes) -> int:
        """The last known leaf that begins at or below the key; otherwise the root."""
        part = self._part_of(key)
        if part is None:
            return self.root
        return part.leaves[keys_below(part.lows, key, True) - 1]

    def find_below(self, end: bytes | None) -> int:
        """The last known leaf that begins below `end`, or the last one; otherwise the root."""
        part = self._part_below(end)
        if part is None:
            return self.root
        index = len(part.lows) if end is None else keys_below(part.lows, end, False)
        return part.leaves[index - 1]

    def _number(self, key: bytes, with_it: bool) -> int:
        """The number of the last part whose bound is below the key; `with_it`: or is it."""
        if len(self.bounds) != len(self.parts):
            self.forget()  # a change of them was cut off
        found = keys_below(self.bounds, key, with_it)
        return found - 1 if found else 0

    def _part_of(self, key: bytes) -> Part | None:
        """The part with the leaf that `find` gives; None: it gives the root."""
        number = self._number(key, True)
        while number >= 0:
            part: Part = self.parts[number]
            # no fence is below its part's bound
            if part.lows and part.lows[0] <= key:
                return part
            number -= 1
        return None

    def _part_below(self, end: bytes | None) -> Part | None:
        """The part with the leaf that `find_below` gives; None: it gives the root."""
        number = len(self.parts) - 1 if end is None else self._number(end, False)
        while number >= 0:
            part: Part = self.parts[number]
            if part.lows and (end is None or part.lows[0] < end):
                return part
            number -= 1
        return None

    # ---- noting leaves --------------------------------------------------------------------------

    def learn(self, low: bytes, leaf: int) -> None:
        """Note a leaf. When there is no room, forget the others."""
        number = self._number(low, True)
        part: Part = self.parts[number]
        index = keys_below(part.lows, low, True)
        if index and part.lows[index - 1] == low:
            part.leaves[index - 1] = leaf
        else:
            if self.count >= self.room:
                self.forget()
                number = index = 0
                part = self.parts[0]
            # ORDER: the leaf before its fence, by which it is found.
            part.leaves.insert(index, leaf)
            part.lows.insert(index, low)
            self.count += 1
            if len(part.lows) > PART_MAX:
                self._split(number)
            self._make_room()

    def learn_all(self, lows: list[bytes], leaves: list[int], high: bytes | None) -> None:
        """Note all leaves from `lows[0]` on to `high`, of the same moment, or to the last one."""
        if self.count + len(lows) > self.room:
            self.forget()
        begin = number = self._number(lows[0], True)
        start = 0
        more = True
        while more:
            part: Part = self.parts[number]
            number += 1
            more = number < len(self.parts)
            until = keys_below(lows, self.bounds[number], False) if more else len(lows)
            first = keys_below(part.lows, lows[0], False)
            end = len(part.lows) if high is None else keys_below(part.lows, high, False)
            self._put(part, first, max(first, end), lows[start:until], leaves[start:until])
            start = until
            more = more and (high is None or self.bounds[number] < high)
        while number > begin:
            number -= 1
            part = self.parts[number]
            if len(part.lows) > PART_MAX:
                self._split(number)
            elif not part.lows:
                self._remove(part)
        self._make_room()

    def _put(self, part: Part, first: int, end: int, lows: list[bytes], leaves: list[int]) -> None:
        """Note these leaves of a part in place of those from `first` on to `end`."""
        # ORDER: never more fences than leaves.
        if len(lows) < end - first:
            part.lows[first:end] = lows
            part.leaves[first:end] = leaves
        else:
            part.leaves[first:end] = leaves
            part.lows[first:end] = lows
        self.count += len(lows) - (end - first)

    def _split(self, number: int) -> None:
        """Make two parts of this one."""
        part: Part = self.parts[number]
        half = len(part.lows) // 2
        left = Part(part.lows[:half], part.leaves[:half])
        right = Part(part.lows[half:], part.leaves[half:])
        bounds = [*self.bounds[: number + 1], right.lows[0], *self.bounds[number + 1 :]]
        self._change(bounds, [*self.parts[:number], left, right, *self.parts[number + 1 :]])

    def _remove(self, part: Part) -> None:
        """Take an empty part out, unless it is the only one."""
        if len(self.parts) > 1:
            number = self.parts.index(part)
            bounds = [*self.bounds[:number], *self.bounds[number + 1 :]]
            bounds[0] = b""
            self._change(bounds, [*self.parts[:number], *self.parts[number + 1 :]])

    def _change(self, bounds: list[bytes], parts: list[Part]) -> None:
        """Set other bounds and parts, of which there are more or fewer than now."""
        # ORDER: in between there are not as many bounds as parts, by which `_number` knows it.
        self.parts = parts
        self.bounds = bounds

    def _make_room(self) -> None:
        """Make room for enough hints."""
        size = len(self.hints)
        while size < self.count * HINTS_PER_LEAF:
            size *= 4
        if size > len(self.hints):
            # ORDER: the hints last, whose number says whether there is room.
            self.siblings = zeroed_words(size // HINTS_PER_SIBLING)
            self.hints = zeroed_words(size)

    # ---- siblings and hints ---------------------------------------------------------------------

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

    # ---- forgetting -----------------------------------------------------------------------------

    def low_at(self, key: bytes) -> bytes | None:
        """The noted low fence of the leaf that `find` gives; None: it gives the root."""
        part = self._part_of(key)
        return None if part is None else part.lows[keys_below(part.lows, key, True) - 1]

    def drop(self, key: bytes) -> None:
        """Forget the leaf that `find` gives."""
        part = self._part_of(key)
        if part is not None:
            self._drop(part, keys_below(part.lows, key, True) - 1)

    def drop_below(self, end: bytes | None) -> None:
        """Forget the leaf that `find_below` gives."""
        part = self._part_below(end)
        if part is not None:
            index = len(part.lows) if end is None else keys_below(part.lows, end, False)
            self._drop(part, index - 1)

    def _drop(self, part: Part, index: int) -> None:
        # ORDER: the fence before its leaf.
        del part.lows[index]
        del part.leaves[index]
        self.count -= 1
        if not part.lows:
            self._remove(part)

    def forget(self) -> None:
        """Forget all."""
        self._change([b""], [Part([], [])])
        self.count = 0
        self.hints = zeroed_words(HINTS_MIN)
        self.siblings = zeroed_words(HINTS_MIN)
