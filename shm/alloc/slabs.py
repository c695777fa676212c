"""Blocks that a client cuts into objects of one size class: `Slab`, and all it has, `Slabs`.

A block that is cut into pages is a slab, too, of the class of pages; `Runs` takes its pages.

Private to the client, for each block: `ready`, a bitmap of objects that are free and that no client
can still be reading; and `pending`, those that were seen free when period `pending_epoch` was
closed. An object whose used bit any client has cleared becomes pending, and then ready when the
grace period (clients/epoch.py) is over. These bitmaps are lost with the client; the used bits
(heap.py) are in shared memory, and recovery needs only these.

The pages of a block are allocated in parts, as its objects are taken (pages.py): `backed` is
the number of its first objects that have pages. When the file system has none for the next part,
the ready objects behind it count as `kept` until the client looks for memory again.

In Python that is not compiled, a signal handler that raises can cut these notes at any line. So the
steps stand in an order in which a cut costs an object, or a block, until the client leaves, and no
object is handed out twice: an object that leaves `ready` is taken from the count first, one that
comes is added to the count last, and no object is in `ready` and in `pending`.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final

from limpet.shm.clients.epoch import NEVER
from limpet.shm.endpoint.fabric import bit, lowest_bit
from limpet.shm.endpoint.layout import EXACTLY, PAGES
from limpet.shm.endpoint.words import ADDRESS_MASK, replica_bits

if TYPE_CHECKING:
    from limpet.shm.clients.epoch import Grace

EXPECTED_SIZE: Final = 1024
"""Bytes of each replica of the next object that are prefetched before it is written."""
MASK: Final = 0xFFFF_FFFF_FFFF_FFFF


class Slab:
    """A block of this client's, cut into objects of one class."""

    def __init__(
        self,
        heap: Any,
        node: int,
        block: int,
        size_class: int,
        replicas: int,
        fresh: bool,
        pages: Any = None,
        backed_size: int = 0,
    ) -> None:
        """`fresh`: no client has used it. `backed_size`: how many of its bytes have pages; all, if
        there is no `pages`, the table's."""
        self.heap = heap
        self.pages = pages
        self.node = node
        self.block = block
        self.size_class = size_class
        self.replicas = replicas
        self.bits = replica_bits(replicas)
        first = heap.reference(node, block, size_class, 0) | self.bits
        self.first = first
        """The reference to its first object."""
        self.size = heap.sizes[size_class]
        self.row = heap.row(first) if replicas > 1 else 0
        self.count = heap.object_count(size_class)
        self.backed = 0
        self._note_backed(heap.block_size if pages is None else backed_size)
        self.words = (self.count + 63) // 64
        self.ready = array("Q", bytes(8 * self.words))
        self.pending = array("Q", bytes(8 * self.words))
        self.pending_epoch = 0
        self.pending_count = 0
        self.ready_count = 0
        self.cursor = 0
        self.kept = 0
        """How many ready objects `pop` does not give: those for updates only, and `barred`."""
        self.barred = 0
        """How many ready objects have no pages, when there was no room for these."""
        self.aside = 0
        """Pages that are for updates only, or promised: `Runs` does not give them."""
        if fresh:
            for index in range(self.words):
                self.ready[index] = self.valid(index)
            self.ready_count = self.count

    def valid(self, index: int) -> int:
        """The bits of word `index` that stand for objects."""
        rest = self.count - 64 * index
        return 0xFFFF_FFFF_FFFF_FFFF if rest >= 64 else bit(rest) - 1

    def pop(self) -> int:
        """Take a ready object, which has pages; its reference, or 0 when there is none."""
        while self.ready_count > self.kept:
            word = self.ready[self.cursor]
            if word:
                index = 64 * self.cursor + lowest_bit(word)
                if index >= self.backed and not self._back_more(index):
                    self._bar()
                    continue
                self.ready_count -= 1
                self.ready[self.cursor] = word & (word - 1)
                return self.first + index * self.size
            self.cursor += 1
            if self.cursor == self.words:
                self.cursor = 0
        return 0

    def reach(self, count: int) -> int:
        """Allocate pages for `count` ready objects, as far as there is room, and keep no object for
        want of pages if there is; how many ready objects have pages, at least up to `count`."""
        self.kept -= min(self.kept, self.barred)
        self.barred = 0
        usable = self._usable(count)
        while usable < count and usable < self.ready_count:
            if not self._back_more(self._first_bare()):
                self._bar()
                break
            usable = self._usable(count)
        return usable

    def _back_more(self, index: int) -> bool:
        """Allocate pages up to this object at least; False: there is no room."""
        begin, end = self.backed * self.size, (index + 1) * self.size
        self._note_backed(self.pages.back_part(self.node, self.block, self.replicas, begin, end))
        return self.backed > index

    def forget_pages(self) -> None:
        """Ask for all pages again, on all replicas: a node of them may have new memory."""
        if self.pages is not None:
            self.backed = 0

    def _note_backed(self, size: int) -> None:
        if size >= self.heap.block_size or self.size_class >= self.heap.paged:
            self.backed = self.count
        elif size:
            self.backed = size // self.size

    def _bar(self) -> None:
        """Keep the ready objects without pages; look for others from the first one on."""
        self.kept -= min(self.kept, self.barred)
        self.barred = self.ready_count - self._usable(self.count)
        self.kept += self.barred
        self.cursor = 0

    def _usable(self, most: int) -> int:
        """How many ready objects have pages; only as far as needed if there are `most` or more."""
        if self.backed == self.count:
            return self.ready_count
        found = 0
        for index in range(self.words):
            if found >= most or self.backed <= 64 * index:
                break
            word = self.ready[index]
            if self.backed < 64 * index + 64:
                word &= bit(self.backed - 64 * index) - 1
            while word:
                word &= word - 1
                found += 1
        return found

    def _first_bare(self) -> int:
        """The first ready object without pages; there is one."""
        index = self.backed >> 6
        word = self.ready[index] >> (self.backed & 63) << (self.backed & 63)
        while not word:
            index += 1
            word = self.ready[index]
        return 64 * index + lowest_bit(word)

    def take_pages(self, mask: int, count: int) -> None:
        """Take `count` ready pages, these."""
        # ORDER: the count first; a block of which all objects count as ready is given back.
        self.ready_count -= count
        self.ready[0] &= ~mask

    def left(self, also: int) -> int:
        """The ready pages that are not set aside; `also`: as in `Runs._find`."""
        return (self.ready[0] | self.pending[0] & also) & ~self.aside & MASK

    def prefetch(self) -> None:
        """Prefetch the memory of the object that `pop` may give next."""
        word = self.ready[self.cursor]
        if word:
            following = self.first + (64 * self.cursor + lowest_bit(word)) * self.size
            size = min(self.size, EXPECTED_SIZE)
            for k in range(self.replicas):
                there = (following & ADDRESS_MASK) + self.heap.steps[self.row + k] & MASK
                self.heap.endpoint.prefetch(there, size, True)

    def note_pending(self) -> int:
        """Note the objects whose used bit is clear as pending; how many are newly so."""
        if self.pending_count:
            return 0
        endpoint = self.heap.endpoint
        bitmap = self.heap.bitmap(self.node, self.block)
        self.pending_epoch = NEVER
        for index in range(self.words):
            found = ~endpoint.load(bitmap + 8 * index) & ~self.ready[index] & self.valid(index)
            self.pending[index] = found
            while found:
                found &= found - 1
                self.pending_count += 1
        return self.pending_count

    def ripen(self, horizon: int) -> None:
        """Make pending objects ready, if no client is pinned at their period or before."""
        if self.pending_count and self.pending_epoch < horizon:
            count = self.pending_count
            # ORDER: the count last, and each object is not pending before it is ready.
            self.pending_count = 0
            for index in range(self.words):
                found = self.pending[index]
                self.pending[index] = 0
                self.ready[index] |= found
            self.ready_count += count


class Slabs:
    """The slabs of a client, by kind: a number for node, size class and number of replicas."""

    def __init__(self, heap: Any) -> None:
        self.placement = heap.placement
        self.nodes = self.placement.rings[0].count
        """Nodes that the pool was made with: the kinds of those that were added come behind."""
        self.kinds: dict[int, list[Slab]] = {}
        self.current: list[Slab | None] = []
        """For each kind, the slab from which an object was taken last; it may be on another node
        (`Allocator._pop_elsewhere`)."""
        self.know_nodes()
        self.heap = heap
        self.runs: dict[int, Runs] = {}
        """Of the paged blocks, by kind."""

    def kind(self, node: int, size_class: int, replicas: int) -> int:
        """The kind of objects with this many replicas. ParameterError: there cannot be so many."""
        self.placement.check(replicas)
        node &= EXACTLY - 1
        if node < self.nodes:
            return ((replicas - 1) * self.nodes + node) << 8 | size_class
        return (self.placement.replicas_max * node + replicas - 1) << 8 | size_class

    def know_nodes(self) -> None:
        """Have a place for each kind of the nodes of all rings."""
        last = self.placement.rings[len(self.placement.rings) - 1]
        kinds = self.placement.replicas_max * (last.first + last.count) * 256
        self.current.extend([None] * (kinds - len(self.current)))

    def of(self, kind: int) -> list[Slab]:
        """The slabs of a kind."""
        return self.kinds.setdefault(kind, [])

    def runs_of(self, node: int, replicas: int) -> Runs:
        """The paged blocks of a node, for objects with this many replicas."""
        kind = self.kind(node, self.heap.page_class, replicas)
        found = self.runs.get(kind)
        if found is None:
            found = self.runs[kind] = Runs(self.heap, self.of(kind))
        return found

    def add(self, slab: Slab) -> None:
        """Note a block as the client's, in place of earlier notes on it; paged blocks in order."""
        slabs = self.of(self.kind(slab.node, slab.size_class, slab.replicas))
        for old in [each for each in slabs if each.block == slab.block]:
            self.drop(old)  # the block was taken from us meanwhile, and came back
        after = len(slabs)
        if slab.size_class == self.heap.page_class:
            after = sum(each.block < slab.block for each in slabs)
            self.runs_of(slab.node, slab.replicas).shift(after, 1)
        slabs.insert(after, slab)

    def all(self) -> list[Slab]:
        """Every slab of the client."""
        return [slab for slabs in self.kinds.values() for slab in slabs]

    def next_ready(self, kind: int) -> Slab | None:
        """A slab of this kind with a ready object, made the current one; None: there is none."""
        for slab in self.kinds.get(kind, ()):
            if slab.ready_count > slab.kept:
                self.current[kind] = slab
                return slab
        return None

    def drop(self, slab: Slab) -> None:
        """Forget a slab, which is not the client's any more."""
        kind = self.kind(slab.node, slab.size_class, slab.replicas)
        index = self.kinds[kind].index(slab)
        # ORDER: first; no look at the words of our blocks finds the slab any more afterwards.
        if self.current[kind] is slab:
            self.current[kind] = None
        if self.placement.nodes != self.nodes:
            # It may be the current one of kinds of other nodes, too.
            self.current[:] = [None if each is slab else each for each in self.current]
        del self.kinds[kind][index]
        if slab.size_class == self.heap.page_class:
            self.runs_of(slab.node, slab.replicas).shift(index, -1)


class Runs:
    """The paged blocks of a client of one kind: runs of ready pages in them (FUSEE has one object
    size a block).

    A large object is a run of 8 to 512 pages of 1/64 block (`run_lengths` in endpoint/layout.py),
    in one block or in adjacent ones; the block in which it begins is that of its reference. So
    objects of all these sizes share blocks, and those of one size leave no rest at the end of each
    block. Every page has its own used bit, in the word of its block, so each block may have another
    owner, be taken, adopted, or free when none of its own bits is set, like any block.

    Bits of one word change together; those of an object in several blocks word by word. The object
    is in the client journal meanwhile, as it is while some of its replicas have the bit and others
    have not: a kill leaves pages in use of an object that nothing links, and recovery clears all of
    them. Pages that are clear already are not used again before: the dead client is pinned until
    then.

    A run is taken from the top of ready pages, since blocks are claimed from the end of the node
    on: the next block that is claimed is, if it is free, the one below pages that are left.
    """

    def __init__(self, heap: Any, slabs: list[Slab]) -> None:
        self.heap = heap
        self.slabs = slabs
        """In the order of their blocks."""
        self.cursor = 0
        """Index of the slab with the first page of the last run that was found."""

    def pop(self, size_class: int) -> int:
        """Take a ready run of pages; the reference to the object, or 0 when there is none."""
        count = self.heap.runs[size_class]
        page = self._find(count, 0)
        if page < 0:
            return 0
        slab = self.slabs[self.cursor]
        reference = self.heap.reference(slab.node, slab.block, size_class, page)
        self._take(self.cursor, page, count)
        return reference | slab.bits

    def _take(self, index: int, page: int, left: int) -> None:
        while left:
            slab = self.slabs[index]
            count = min(PAGES - page, left)
            slab.take_pages(MASK >> PAGES - count << page, count)
            left -= count
            page = 0
            index += 1

    def _find(self, count: int, also: int) -> int:
        """The first page of a run of ready ones, in the slab that `cursor` says; -1: none. `also`:
        all bits, for pending pages, too; or 0."""
        last = len(self.slabs) - 1
        if self.cursor < last:
            page = self._find_below(self._gap_end(self.cursor, also), count, also)
            if page >= 0:
                return page
        return self._find_below(last, count, also)

    def _gap_end(self, index: int, also: int) -> int:
        """Index of the slab where the ready pages end that reach the end of this one: a run from
        their middle would leave too little of them on both sides."""
        end = len(self.slabs) - 1
        slab = self.slabs[index]
        while index < end:
            above = self.slabs[index + 1]
            if above.block != slab.block + 1:
                break
            if not slab.left(also) >> PAGES - 1 or not above.left(also) & 1:
                break
            slab = above
            index += 1
        return index

    def _find_below(self, index: int, count: int, also: int) -> int:
        """`_find` in the slab with this index and those before it."""
        length = above = 0
        while index >= 0:
            slab = self.slabs[index]
            if slab.block + 1 != above:
                length = 0
            above = slab.block
            word = slab.left(also)
            if word == MASK and length + PAGES < count:
                length += PAGES
            elif not word:
                length = 0
            else:
                page = PAGES
                while page > 0:
                    page -= 1
                    length = length + 1 if word >> page & 1 else 0
                    if length == count:
                        self.cursor = index
                        return page
            index -= 1
        return -1

    def shift(self, index: int, step: int) -> None:
        """Stay at the same slab when one comes to, or goes from, this index."""
        if index < self.cursor or (index == self.cursor and step > 0):
            self.cursor += step

    # ---- between operations ---------------------------------------------------------------------

    def clear_aside(self) -> None:
        """Give all ready pages to any request."""
        for slab in self.slabs:
            slab.aside = 0

    def set_aside(self, count: int, also: int = 0) -> bool:
        """Set a run of ready pages aside; False: there is none. `also`: as in `_find`."""
        page = self._find(count, also)
        found = page >= 0
        index, left = self.cursor, count if found else 0
        while left:
            part = min(PAGES - page, left)
            self.slabs[index].aside |= MASK >> PAGES - part << page
            left -= part
            page = 0
            index += 1
        return found

    def fit(self, counts: list[int], pending: bool = False) -> bool:
        """Whether runs of these lengths are ready, all at once; or will be with what is pending."""
        cursor, before = self.cursor, [slab.aside for slab in self.slabs]
        try:
            return not self._refused(counts, MASK if pending else 0, 1)
        finally:
            self._restore(cursor, before)

    def ready_beside(self, counts: list[int]) -> tuple[dict[int, int], int]:
        """The ready pages of each block, but for those of runs of these lengths, as far as they are
        ready; and the longest of these runs that is not ready, or of all, if all are."""
        cursor, before = self.cursor, [slab.aside for slab in self.slabs]
        refused = self._refused(counts, 0, len(counts))
        found = self.ready_pages()
        self._restore(cursor, before)
        return found, max(refused or counts)

    def _refused(self, counts: list[int], also: int, most: int) -> list[int]:
        """Set runs of these lengths aside, and return those that are not ready, at most so many."""
        refused: list[int] = []
        shortest = max(counts, default=0) + 1
        for count in counts:
            # Where there is no run of a length, there is none of a greater one.
            if count < shortest and self.set_aside(count, also):
                continue
            shortest = min(shortest, count)
            refused.append(count)
            if len(refused) == most:
                break
        return refused

    def _restore(self, cursor: int, asides: list[int]) -> None:
        self.cursor = cursor
        for slab, aside in zip(self.slabs, asides, strict=True):
            slab.aside = aside

    def ready_pages(self) -> dict[int, int]:
        """The ready pages of each block."""
        found = {}
        for slab in self.slabs:
            found[slab.block] = slab.left(0)
        return found


def find_freed(slabs: list[Slab], grace: Grace) -> None:
    """Find objects that clients freed, and make ready those that no client can still read."""
    horizon = grace.horizon() if any(slab.pending_count for slab in slabs) else 0
    for slab in slabs:
        slab.ripen(horizon)
        slab.note_pending()
    new = [slab for slab in slabs if slab.pending_count and slab.pending_epoch == NEVER]
    if new:
        epoch = grace.close_period()
        for slab in new:
            slab.pending_epoch = epoch
        horizon = grace.horizon()
        for slab in new:
            slab.ripen(horizon)
