"""The pages of blocks: which of them the file system has granted, and where a run of them is clear.

The file system's pages (`BlockPages`). A client asks for pages (file.py) before memory is handed
out, so it never meets a file system without room while it writes an object. A block that is not cut
into objects has all of its pages before it is claimed. A block that is cut into objects of a class
gets them in parts of PART_SIZE, with its backups, as the owner hands out its objects in order
(`Slab.pop`): a whole block, for each replica, would be a pause of milliseconds within one
operation. So, for a slab,
    - the first part, and at least the first object, have pages before the claim
    - on each replica, all pages from the beginning to the last object in use are allocated
How far the owner has come is its private knowledge, which is lost when a replica's node has new
memory (`Allocator.replaced`). A client that adopts a slab goes by the last used bit, and asks for
the pages behind it before it adopts the slab for the room there.

A free block's word says what is known (words.py): BACKED, all pages; BEGUN, the first part, and
perhaps more, as a slab was given back. Otherwise nothing is known. Pages that are there are never
taken away, so what is known stays true, and any client may note it.

A full file system
    The kernel grants pages that are there already, however full the file system is. So a client
    that was refused pages asks for those of the blocks with BEGUN:
    - for a slab, block by block. Each block that it claims has at least one object with pages
    - for whole blocks, all of them in one pass, which notes BACKED where nothing is missing. This
      takes what room is left for the pages that are missing, which is less than a block
    When there is no room for a part, it asks for the pages of the one object that it needs.
    Blocks of which nothing is known are not asked for again within the claim.

A kill between pages and claim leaves a block with pages of which nothing is known. It is used as
soon as there is room for one block.

Runs of pages (`best_run`, `around`): an object of several pages lies in adjacent blocks, whichever
client owns them. The pages of a node are numbered through: page p of block b is 64 * b + p. A gap
is a longest range of adjacent clear pages. A run in it can cost it a place: a gap of two lengths
has no room for a second run when the first is in its middle.

`Table` is the block table (blocks.py) as this module, reclaim.py and replica_sets.py see it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from limpet.shm.endpoint.layout import PAGES, RUN_MAX
from limpet.shm.endpoint.words import BACKED, BEGUN, FREE, LARGE_CLASS
from limpet.shm.errors import NodeFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from limpet.shm.arrays import Flags, Words
    from limpet.shm.endpoint.fabric import Endpoint


class Table(Protocol):
    """The block tables of all nodes: their words, and steps on one of them."""

    endpoint: Endpoint
    heap: Any
    groups: Any
    pages: Any
    count: int

    def words(self, node: int) -> Words: ...
    def look(self, node: int, first: int, end: int) -> Words: ...
    def move(self, node: int, block: int, expected: int, desired: int) -> bool: ...
    def claimable(self, words: Words, horizon: int, whole: bool = False) -> Flags: ...
    def usable(self, node: int, words: Words, horizon: int, replicas: int) -> Flags: ...
    def passed(self, words: Words, horizon: int) -> Flags: ...
    def has_passed(self, word: int, horizon: int) -> bool: ...
    def tails(self, words: Words, first: int) -> int: ...
    def unused(self, node: int, block: int, size_class: int) -> bool: ...
    def seen_unused(self, node: int, blocks: Any) -> list[int]: ...
    def clear_pages(self, node: int, block: int) -> int: ...
    def reach_room(self, node: int, block: int, word: int) -> int: ...
    def used_count(self, node: int, block: int, size_class: int) -> int: ...
    def release(self, node: int, first: int, word: int, epoch: int, client: int) -> int: ...


ALL_PAGES: Final = (1 << PAGES) - 1
LOWEST: Final = 1
HIGHEST: Final = 1 << PAGES - 1
"""The pages at the borders of a block."""
_BLOCKS_MAX: Final = RUN_MAX // PAGES + 2
"""A run lies in fewer blocks."""


def best_run(clear: Words, known: Words, pages: int, free: Flags, bare: Flags, most: int) -> range:
    """The blocks of a run of so many adjacent clear pages that is not made of `known` ones alone
    (of both, a word a block), with at most `most` free blocks.

    The client will take the last run in its blocks (`Runs`), so the run ends where a gap does, or
    at the end of a block before one that is not known, or is free, which it need not claim. Of all
    these one that costs its gap no place; then one with the fewest free blocks; of these, one with
    pages of other blocks, too; then with the fewest bare blocks, whose pages are still to be
    allocated; then the last, since blocks are claimed from the end of the node on.
    """
    count = len(clear)
    gaps, ours = _number(clear), _number(known)
    found = _starts(gaps, pages) & ~_starts(ours, pages)
    borders = int.from_bytes(LOWEST.to_bytes(8, "little") * count, "little")
    stops = ~gaps | borders & ~_number(np.where(free, np.uint64(0), known))
    starts = _numbers(found & stops >> pages, count)
    firsts, lasts = starts // PAGES, (starts + pages - 1) // PAGES
    frees = _sum(free, firsts, lasts)
    fits = frees <= most
    if not fits.any():
        return range(0)
    starts, firsts, lasts, frees = starts[fits], firsts[fits], lasts[fits], frees[fits]
    lost = _lost(gaps, count, starts, pages)
    alone = frees == lasts - firsts + 1
    costs = ((lost * _BLOCKS_MAX + frees) * 2 + alone) * _BLOCKS_MAX
    costs += _sum(free & bare, firsts, lasts)
    best = np.flatnonzero(costs == costs.min())[-1]
    return range(int(firsts[best]), int(lasts[best]) + 1)


def around(clear: Words, blocks: Collection[int]) -> set[int]:
    """The blocks in which the gaps end that go through these blocks, all of which are clear; a word
    a block."""
    found = set()
    for block in blocks:
        for step, border in ((-1, HIGHEST), (1, LOWEST)):
            at = block + step
            while 0 <= at < len(clear) and int(clear[at]) == ALL_PAGES and at not in blocks:
                at += step
            if 0 <= at < len(clear) and int(clear[at]) & border and at not in blocks:
                found.add(at)
    return found


def _lost(gaps: int, count: int, starts: Words, pages: int) -> Words:
    """How many places, 0 or 1, runs from these pages on cost their gaps."""
    ends = _numbers(gaps & ~(gaps >> 1), count)
    begins = _numbers(gaps & ~(gaps << 1), count)
    gap = np.searchsorted(ends, starts)
    above, below = ends[gap] + 1 - starts - pages, starts - begins[gap]
    found: Words = (above + below) // pages - above // pages - below // pages
    return found


def _sum(flags: Flags, firsts: Words, lasts: Words) -> Words:
    """How many flags are set in each of these ranges."""
    ahead = np.concatenate(([0], np.cumsum(flags)))
    found: Words = ahead[lasts + 1] - ahead[firsts]
    return found


def _starts(clear: int, pages: int) -> int:
    """Where runs of so many adjacent clear pages begin: a bit a page."""
    length = 1
    while length < pages and clear:
        step = min(length, pages - length)
        clear &= clear >> step
        length += step
    return clear


def _number(bits: Words) -> int:
    """A bit a page."""
    return int.from_bytes(bits.tobytes(), "little")


def _numbers(bits: int, count: int) -> Words:
    """The pages whose bits are set, in their order; of so many blocks."""
    words = np.frombuffer(bits.to_bytes(8 * count, "little"), dtype="<u8")
    blocks = np.flatnonzero(words)
    left = words[blocks]
    found = []
    while len(left):
        lowest = left & (~left + np.uint64(1))
        found.append(blocks * PAGES + np.frexp(lowest.astype(np.float64))[1] - 1)
        left = left ^ lowest
        blocks, left = blocks[left != 0], left[left != 0]
    numbers: Words = np.sort(np.concatenate(found)) if found else np.zeros(0, dtype=np.int64)
    return numbers


PART_SIZE: Final = 64 << 10
"""Bytes of a slab, on each replica, whose pages are allocated at once."""
NOWHERE: Final = -1
_BACKED: Final = np.uint64(BACKED)
_BEGUN: Final = np.uint64(BEGUN)


class BlockPages:
    """The pages of the blocks of a pool, as one client asks for them."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.heap = table.heap
        self.backing: Callable[[int, int, int], bool] = lambda node, offset, size: True
        """Allocates the pages of some bytes of a node from an offset on; False: there is no room
        for them. Set by the pool."""
        self.part_size = PART_SIZE
        self.begin_search()
        self.begin_claim()

    def begin_search(self) -> None:
        """Before an attempt at finding memory."""
        self.refused = NOWHERE
        """The last node whose file system had no room for pages in this attempt, if any."""

    def begin_claim(self) -> None:
        """Before a claim: there may be room again."""
        self.unbacked = False
        """Whether this claim was refused the pages of a block."""

    # ---- free blocks ----------------------------------------------------------------------------

    def back(self, node: int, block: int, word: int, size_class: int = LARGE_CLASS) -> bool:
        """Allocate the pages that a block with this word needs before it is claimed for this class;
        False: there is no room for them."""
        if word >> 60 != FREE or word & BACKED:
            return True
        whole = self.is_whole(size_class)
        size = self.heap.block_size if whole else self.first_part(size_class)
        some = word & BEGUN and not whole
        if some and size <= self.part_size:
            return True
        if self.unbacked and not some:
            return False
        if self.backing(node, self.heap.blocks + block * self.heap.block_size, size):
            return True
        self.refused = node
        if not self.unbacked:
            self.unbacked = True
            if whole:
                self._note_begun()
        return False

    def back_all(self, node: int, blocks: Sequence[int], words: Words) -> bool:
        """Allocate all pages of these blocks, which have these words in the table; False: there is
        no room for all of them."""
        for index, block in enumerate(blocks):
            if not self.back(node, block, int(words[block])):
                for done in blocks[:index]:
                    word = int(words[done])
                    self.table.move(node, done, word, self.noted(word, LARGE_CLASS))
                return False
        return True

    def noted(self, word: int, size_class: int) -> int:
        """The word of a block, with what is known since `back` has granted it for this class."""
        if word >> 60 != FREE or word & BACKED:
            return word
        return word & ~BEGUN | BACKED if self.is_whole(size_class) else word | BEGUN

    def _note_begun(self) -> None:
        """Note the blocks that have all of their pages, as far as some were known to be there."""
        for node in range(self.heap.placement.nodes):
            with contextlib.suppress(NodeFailed):
                words = self.table.words(node)
                begun = (words >> np.uint64(60) == FREE) & (words & _BEGUN != 0)
                for block in np.flatnonzero(begun).tolist():
                    if self.ask(node, block, 0, self.heap.block_size):
                        word = int(words[block])
                        self.table.move(node, block, word, self.noted(word, LARGE_CLASS))

    def possible(self, words: Words, whole: bool) -> Flags:
        """Which blocks, free with these words, can have pages after a refusal; `whole`: all of
        them."""
        found: Flags = words & (_BACKED if whole else _BACKED | _BEGUN) != 0
        return found

    def bare(self, words: Words) -> Flags:
        """Of which free blocks with these words nothing is known."""
        found: Flags = words & (_BACKED | _BEGUN) == 0
        return found

    def incomplete(self, words: Words) -> Flags:
        """Which free blocks with these words are not known to have all pages."""
        found: Flags = words & _BACKED == 0
        return found

    def is_whole(self, size_class: int) -> bool:
        """Whether blocks of the class have all of their pages from the claim on."""
        cut = LARGE_CLASS < size_class < self.heap.paged
        return not (cut and self.heap.block_size > self.part_size)

    def first_part(self, size_class: int) -> int:
        """Bytes of a slab of this class that have pages before the claim."""
        return int(min(max(self.part_size, self.heap.sizes[size_class]), self.heap.block_size))

    # ---- slabs ----------------------------------------------------------------------------------

    def backed_size(self, words: list[int], size_class: int) -> int:
        """How many of the first bytes of free blocks that had these words, and were claimed for a
        slab and its backups, are known to have pages. (Of those with BEGUN some do: ask again.)"""
        if any(word & BEGUN for word in words):
            return 0
        whole = all(word & BACKED for word in words)
        return int(self.heap.block_size) if whole else self.first_part(size_class)

    def back_part(self, node: int, block: int, replicas: int, begin: int, end: int) -> int:
        """Allocate the next part of a slab's pages, on all replicas: from the byte `begin` of the
        block on, and at least up to `end`. The byte up to which there are pages now; 0: there is no
        room for them."""
        size, groups = self.heap.block_size, self.table.groups
        stop = int(min(max(end, begin + self.part_size), size))
        first = self.heap.blocks + begin
        places = [(node, block), *groups.backups(node, block, replicas)]
        for there, at in places:
            # Those on a node that is replaced are asked for again (`Allocator.replaced`).
            if not groups.failed(there) and not self.backing(
                there, first + at * size, stop - begin
            ):
                self.refused = there
                return self._back_least(places, begin, end) if end < stop else 0
        return stop

    def _back_least(self, places: list[tuple[int, int]], begin: int, end: int) -> int:
        """`back_part` without room for a part: no more than up to `end`."""
        groups = self.table.groups
        granted = all(
            groups.failed(there) or self.ask(there, at, begin, end) for there, at in places
        )
        return int(end) if granted else 0

    def back_room(self, node: int, block: int, size_class: int, replicas: int, used: int) -> int:
        """Allocate the pages behind the room in a slab with these used bits. The byte up to which
        there are pages; 0: it has no room, or none with pages."""
        count, size = used.bit_length(), self.heap.sizes[size_class]
        if used.bit_count() == self.heap.object_count(size_class):
            return 0
        if self.is_whole(size_class):
            return int(self.heap.block_size)
        if used.bit_count() < count:
            return int(count * size)  # an object before the last one in use is free
        return self.back_part(node, block, replicas, count * size, (count + 1) * size)

    def ask(self, node: int, block: int, begin: int, end: int) -> bool:
        """Allocate the pages of a block from one byte to another; False: there is no room."""
        first = self.heap.blocks + block * self.heap.block_size
        if self.backing(node, first + begin, end - begin):
            return True
        self.refused = node
        return False
