"""The cache of inner nodes: which leaf a key is in (Sherman's index cache; rTX section 5).

The paper's clients cache the inner nodes. A client uses only the lowest level of them, so this
cache has just that: the low fence and the object of each leaf that was met, or is below an inner
node that was met. It can be out of date in two ways:
    split   a split node keeps its lower half, so at most the cache lacks a leaf in between, to
            which the siblings lead
    merge   the leaf was merged into another one, and its object may be in use elsewhere. Then it is
            vacant, or has another low fence, and the client forgets it

The leaves are in runs (fences.py), so noting one moves few words however many are known. Run i has
the leaves that begin between the fences i and i + 1 of `tops`, fence 0 being below all keys. There
is at least one run, and only the first one may be empty.

Beside it are prefetch hints: for a hash, the last place of its key, told from other keys by 16
bits. If the key is still there, the client need not search; otherwise the leaf's fences show
whether it is the right leaf. They are in private pages that the system backs when they are used, so
to have room for more takes no time.

Where this is not compiled, a signal handler can raise between any two steps. A change is made
between two stores to `changing`; a client that finds it set forgets all leaves.

A scan notes which leaf follows which, so that the next scan can prefetch the leaves ahead.

Of each leaf whose nodes are data of TXObjs, the client remembers the pointer that it saw last, and
how many entries the node had. The pointer is a guess: the node there may be read beside its object,
and counts if the object still has that pointer (tx_trees.py).

Hint
    bits 0-31   1 + number of the leaf's object in its region; 0: no hint
    bits 32-41  offset of the entry in the node, in cache lines (to prefetch it)
    bits 42-47  place of the entry, modulo 64
    bits 48-63  of the hash
"""

from __future__ import annotations

from typing import Any, Final

from limpet.shm.private_memory import zeroed_words
from limpet.stores.sherman.fences import Fences, Run
from limpet.stores.sherman.layout import (
    LINE_MASK,
    LINE_SHIFT,
    NUMBER_MASK,
    PLACE_MASK,
    PLACE_SHIFT,
    RUN_MAX,
    SIGN,
    TAG_SHIFT,
)
from limpet.stores.transactions.layout import OBJECT_SHIFT

HINTS_MIN: Final = 64
HINTS_MAX: Final = 1 << 22
HINTS_PER_LEAF: Final = 16
HINTS_PER_SIBLING: Final = 8
"""Hints for each noted sibling: there is room for as many siblings as leaves, or twice as many."""
SEEN_WORDS: Final = 2
"""Words for what was seen of a leaf; there is room for as many leaves as for siblings."""
NUMBERS: Final = (1 << 60) - 1


class Routes:
    """The leaves of one tree that this client knows; at most `room` of them."""

    def __init__(self, root: int, room: int) -> None:
        self.root = root
        self.room = room
        self.count = 0
        self.changing = False
        self.ascends = False
        """Whether the key looked for last is in the last leaf: then the next one may be, too."""
        self.tops = Fences(RUN_MAX)
        self.runs: list[Run] = []
        self.forget()

    def is_empty(self) -> bool:
        """Whether no leaf is known."""
        return self.count == 0

    def find(self, key: bytes) -> int:
        """The last known leaf that begins at or below the key; otherwise the root."""
        if self.ascends and not self.changing:
            run: Run = self.runs[len(self.runs) - 1]
            end = len(run.lows)
            if end and run.lows[end - 1] <= key:
                return run.leaves[end - 1]
        spot = self._before(key, True)
        self.ascends = spot == self._last()
        return self._leaf_at(spot)

    def find_below(self, end: bytes | None) -> int:
        """The last known leaf that begins below `end`, or the last one; otherwise the root."""
        return self._leaf_at(self._last() if end is None else self._before(end, False))

    def note_leaf(self, low: bytes, leaf: int) -> None:
        """Note a leaf. When there is no room, forget the others."""
        if self.changing or self.count >= self.room:
            self.forget()
        number = len(self.runs) - 1
        run: Run = self.runs[number]
        index = len(run.lows)
        # Keys that ascend need no search.
        if not index or run.lows[index - 1] >= low:
            number = self._run_of(low, True)
            run = self.runs[number]
            index = run.below(low, True)
        if index and run.lows[index - 1] == low:
            run.leaves[index - 1] = leaf
        else:
            self._insert(number, index, low, leaf)

    def _insert(self, number: int, index: int, low: bytes, leaf: int) -> None:
        """Note a leaf that is new at its place in a run."""
        run: Run = self.runs[number]
        self.changing = True
        run.insert_leaf(index, low, leaf)
        self.count += 1
        if len(run.lows) == RUN_MAX:
            # Keys that ascend fill one run after another.
            is_end = index == RUN_MAX - 1 and number == len(self.runs) - 1
            upper = run.cut(index if is_end else RUN_MAX // 2)
            self.runs.insert(number + 1, upper)
            self.tops.insert(number + 1, upper.lows[0])
        self.changing = False
        self._make_room()

    def note_range(self, low: bytes, leaf: int, high: bytes | None) -> None:
        """Note a leaf that has all from `low` on to `high`, or to the end; forget others there."""
        self._clear(low, high, True)
        self.note_leaf(low, leaf)

    def note_leaves(self, lows: list[bytes], leaves: list[int], high: bytes | None) -> None:
        """Note all leaves from `lows[0]` on to `high`, of the same moment, or to the last one."""
        if self.count + len(lows) > self.room:
            self.forget()
        self._clear(lows[0], high, False)
        for index in range(len(lows)):
            self.note_leaf(lows[index], leaves[index])

    def _clear(self, low: bytes, high: bytes | None, but_first: bool) -> None:
        """Forget the leaves that begin below `high`, from `low` on, or after it."""
        while True:
            spot = self._last() if high is None else self._before(high, False)
            if not spot:
                break
            last = self._low_of(spot)
            if last < low or (but_first and last == low):
                break
            self._remove(spot)

    def low_at(self, key: bytes) -> bytes | None:
        """The noted low fence of the leaf that `find` gives; None: it gives the root."""
        spot = self._before(key, True)
        return self._low_of(spot) if spot else None

    def drop(self, key: bytes) -> None:
        """Forget the leaf that `find` gives."""
        spot = self._before(key, True)
        if spot:
            self._remove(spot)

    def drop_below(self, end: bytes | None) -> None:
        """Forget the leaf that `find_below` gives."""
        spot = self._last() if end is None else self._before(end, False)
        if spot:
            self._remove(spot)

    def forget(self) -> None:
        """Forget all."""
        self.changing = True
        self.count = 0
        self.tops = Fences(RUN_MAX)
        self.tops.insert(0, b"")
        self.runs = [Run()]
        # ORDER: `seen` has room for all places that go by the number of siblings.
        self.siblings = zeroed_words(HINTS_MIN // HINTS_PER_SIBLING)
        self.seen = zeroed_words(SEEN_WORDS * (HINTS_MIN // HINTS_PER_SIBLING))
        self.hints = zeroed_words(HINTS_MIN)
        self.changing = False

    def _run_of(self, key: bytes, with_it: bool) -> int:
        """The number of the run whose leaves begin below the key, or some of them; `with_it`: or
        at it."""
        if len(self.runs) == 1:
            return 0
        return max(self.tops.below(key, with_it), 1) - 1

    # ---- spots: RUN_MAX * number of a run + 1 + index of a leaf in it; 0: none ------------------

    def _before(self, key: bytes, with_it: bool) -> int:
        """The spot of the last leaf that begins below the key; `with_it`: or at it."""
        if self.changing:
            self.forget()
        number = self._run_of(key, with_it)
        run: Run = self.runs[number]
        index = run.below(key, with_it)
        if not index and number:
            number -= 1
            run = self.runs[number]
            index = len(run.lows)
        return number * RUN_MAX + index if index else 0

    def _last(self) -> int:
        """The spot of the last leaf."""
        if self.changing:
            self.forget()
        number = len(self.runs) - 1
        run: Run = self.runs[number]
        return number * RUN_MAX + len(run.lows) if run.lows else 0

    def _leaf_at(self, spot: int) -> int:
        """The leaf at a spot; the root if it is 0."""
        if not spot:
            return self.root
        run: Run = self.runs[(spot - 1) // RUN_MAX]
        return run.leaves[(spot - 1) % RUN_MAX]

    def _low_of(self, spot: int) -> bytes:
        """The low fence of the leaf at a spot."""
        run: Run = self.runs[(spot - 1) // RUN_MAX]
        return run.lows[(spot - 1) % RUN_MAX]

    def _remove(self, spot: int) -> None:
        """Forget the leaf at a spot."""
        number = (spot - 1) // RUN_MAX
        run: Run = self.runs[number]
        self.changing = True
        run.remove_leaf((spot - 1) % RUN_MAX)
        self.count -= 1
        if number and not run.lows:
            del self.runs[number]
            self.tops.remove(number)
        self.changing = False

    # ---- hints ----------------------------------------------------------------------------------

    def _make_room(self) -> None:
        """Make room for enough hints."""
        size = len(self.hints)
        while size < self.count * HINTS_PER_LEAF and size < HINTS_MAX:
            size *= 4
        if size > len(self.hints):
            # ORDER: the hints last, whose number says whether there is room.
            # and `seen` first, whose places go by the number of siblings.
            self.seen = zeroed_words(SEEN_WORDS * (size // HINTS_PER_SIBLING))
            self.siblings = zeroed_words(size // HINTS_PER_SIBLING)
            self.hints = zeroed_words(size)

    def follow(self, leaf: int, sibling: int) -> None:
        """Note which leaf follows that one."""
        self.siblings[leaf >> OBJECT_SHIFT & len(self.siblings) - 1] = sibling

    def sibling_of(self, leaf: int) -> int:
        """The leaf that may follow that one, or may follow another one; 0: nothing is known."""
        return self.siblings[leaf >> OBJECT_SHIFT & len(self.siblings) - 1]

    def note_seen(self, leaf: int, pointer: int, count: int) -> None:
        """Note the pointer that a leaf's object has, and the number of entries in the node."""
        place = (leaf >> OBJECT_SHIFT & len(self.siblings) - 1) * SEEN_WORDS
        self.seen[place] = pointer
        self.seen[place + 1] = count

    def pointer_seen(self, leaf: int) -> int:
        """The pointer that a leaf's object had, or another one's; 0: nothing is known."""
        return self.seen[(leaf >> OBJECT_SHIFT & len(self.siblings) - 1) * SEEN_WORDS]

    def count_seen(self, leaf: int) -> int:
        """How many entries a leaf had, or another one; 0: nothing is known."""
        return self.seen[(leaf >> OBJECT_SHIFT & len(self.siblings) - 1) * SEEN_WORDS + 1]

    def leaves_after(self, key: bytes, high: bytes | None, leaves: Any, count: int) -> int:
        """Put the leaves after the one that `find` gives, below `high`, into `leaves`, from place 1
        on, up to place `count`; how many places of it are in use then."""
        spot = self._before(key, True)
        number, index = spot // RUN_MAX, spot % RUN_MAX
        used = 1
        while used < count and number < len(self.runs):
            run: Run = self.runs[number]
            if index == len(run.lows):
                number += 1
                index = 0
            elif high is not None and run.lows[index] >= high:
                break
            else:
                leaves[used] = run.leaves[index]
                used += 1
                index += 1
        return used

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
