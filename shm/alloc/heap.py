"""Blocks and objects in memory: the words that describe them, and the bit that says "in use".

Two-level memory management after FUSEE section 4.4. The first level hands out coarse blocks by
CAS on a word of the node's block table; the second cuts a block into objects of one size class,
which only the block's owner allocates and any client frees. Deviations: the bitmaps lie together
before the blocks (so that they can be in a hardware-coherent range), and a bit is 1 while its
object is in use. So a zero-filled node is a free node, and the bits alone tell a survivor which
objects of a dead client's blocks are free.

Used bit: 1 from allocation until a client has unlinked the object and freed it. It is posted with
the write of the object, in the same phase, so it is set before the object is linked. Clearing the
bit frees the object; it is sent in the background of the operation (verbs.pyx), since only the
owner waits for it. Several clients may repeat it, if each was pinned (epoch.py) before the object
was unlinked: the owner does not use the object again before all of them have unpinned.

A larger object is a run of pages of one block, or of adjacent ones (slabs.py); a block that is cut
into pages has a used bit for each page. All used bits of a run are set, and cleared, one word after
the other; a step that changes some of one word changes all that the run has there.

An object with replicas (replica_layout.py) has a used bit beside each replica. The owner reads the
bit of the primary; the bits of the backups remain if the primary's node is lost. A client sets them
after the primary's bit, and a client that clears that bit clears them, too; it skips a replica on a
lost node. Objects of a replica set whose primary's node is lost stay in use, but no client
allocates there: setting the primary's bit raises NodeFailed. A store that links a replica in the
phase of its used bit has linked it on one node, perhaps, when its client dies, and has not set the
bit on another one: recovery does that (`is_whole`).

The words are in words.py.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Any, Final

import numpy as np

from limpet.shm.contents import Contents
from limpet.shm.endpoint.fabric import bit
from limpet.shm.endpoint.layout import (
    HOLDS,
    NODE_SHIFT,
    OFFSET_MASK,
    PAGES,
    SLOTS_USED,
    NodeLayout,
    object_sizes,
    page_offset,
    run_lengths,
    slab_sizes,
    slot_address,
)
from limpet.shm.endpoint.slots import RECORDS, RECORDS_COUNT
from limpet.shm.endpoint.states import LOSS_CUTS, PAGES_LOST
from limpet.shm.endpoint.words import (
    ADDRESS_MASK,
    HELD,
    HELD_MASK,
    LARGE_CLASS,
    LINK_MASK,
    OWES,
    REPLICAS_BITS,
    REPLICAS_MAX,
    REPLICAS_SHIFT,
    REPLICATED,
    TENTATIVE,
)
from limpet.shm.errors import NodeFailed, PoolCorrupt
from limpet.shm.replicas.replica_layout import ReplicaLayout

MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
WORD_BITS: Final = (1 << 48) - 1
NODE_BITS: Final = WORD_BITS & ~OFFSET_MASK
MULTIPLES: Final = 0xFFFF_FFFF_FFFF_FFF0
GATHERED: Final = 32
LOOKS: Final = 8
"""Words of used bits among which an object's is looked for, so that it is changed with others."""
SMALL_SIZE: Final = 4096
"""Sizes up to this one find their size class in a table."""


class Heap:
    """Arithmetic on blocks and objects of one pool, and the used bits."""

    def __init__(self, endpoint: Any, layout: NodeLayout, nodes: int) -> None:
        self.endpoint = endpoint
        self.layout = layout
        self.placement = ReplicaLayout(nodes, layout.block_count, layout.block_size)
        sizes = object_sizes(layout.block_size)
        self.class_count = len(sizes)
        # 256 entries, so that a damaged reference finds a size, even if an impossible one
        self.sizes = array("Q", [*sizes, *[1] * (256 - len(sizes))])
        self.page_class = len(sizes) - 1
        """The class of a block that is cut into pages, and of a reference to one page."""
        self.paged = len(slab_sizes(layout.block_size))
        """The first class of which an object is a run of pages."""
        runs = [*[0] * self.paged, *run_lengths(layout.block_size)]
        self.runs = array("Q", [*runs, *[1] * (256 - len(runs))])
        """Pages of an object, by its class."""
        top = self.page_class
        small = [bisect_left(sizes, size, 1, top) for size in range(0, SMALL_SIZE + 1, 16)]
        self.small = memoryview(bytearray(found % top for found in small))
        """Size classes of small objects, by their number of 16 bytes, rounded up."""
        self.blocks = layout.blocks
        self.block_size = layout.block_size
        self.block_count = layout.block_count
        self.bitmaps = layout.bitmaps
        self.bitmap_size = layout.bitmap_size
        self.table = layout.block_table
        self.first = self.blocks + self.placement.first * self.block_size
        self.ends = array("Q", bytes(8 * (REPLICAS_MAX + 1)))
        """Where objects with replicas begin on a node; then, for each number of replicas - 1, where
        their primaries end."""
        for replicas in range(1, self.placement.replicas_max + 1):
            regions = self.placement.limits[replicas] * self.placement.region_blocks
            self.ends[replicas - 1] = self.first + regions * self.block_size
        rows = len(self.placement.firsts)
        self.steps = array("Q", bytes(8 * REPLICAS_MAX * rows))
        self.bit_steps = array("Q", bytes(8 * REPLICAS_MAX * rows))
        """For objects with their primaries on a node: the distance from the primary to each
        replica, and from the primary's used bit to the bit of each replica."""
        self._fill_steps(self.placement.rings[0])
        self.gathered = array("Q", bytes(8 * GATHERED))
        self.gathered_words = array("Q", bytes(8 * GATHERED))
        self.gathered_masks = array("Q", bytes(8 * GATHERED))
        """Words of used bits that are changed together: an object of the block, address, bits."""
        self.contents: Contents = Contents()
        """Judges links whose address does not name a word (words.py)."""

    def _fill_steps(self, ring: Any) -> None:
        for node in ring.nodes:
            for k in range(REPLICAS_MAX):
                there = ring.first + (node - ring.first + k) % ring.count
                steps, blocks = (there - node) << NODE_SHIFT, k * self.placement.region_blocks
                row = REPLICAS_MAX * node
                self.steps[row + k] = steps + blocks * self.block_size & MASK
                self.bit_steps[row + k] = steps + blocks * self.bitmap_size & MASK

    def add_ring(self, ring: Any) -> None:
        """Note a ring that was added to the pool; its nodes are mapped."""
        self._fill_steps(ring)
        self.placement.add_ring(ring)

    def value_max(self, replicas: int) -> int:
        """Bytes of the largest object: a node's blocks; with replicas, those of one region."""
        blocks = self.placement.region_blocks if replicas > 1 else self.block_count
        return blocks * self.block_size

    def size_class(self, size: int) -> int:
        """The smallest class whose objects hold `size` bytes; LARGE_CLASS when only a span does."""
        if size <= SMALL_SIZE:
            return self.small[size + 15 >> 4]
        low, high = 1, self.page_class
        while low < high:
            middle = (low + high) // 2
            if self.sizes[middle] < size:
                low = middle + 1
            else:
                high = middle
        return low if low < self.page_class else LARGE_CLASS

    def block_class(self, size_class: int) -> int:
        """The class in the word of a block that has objects of this class."""
        return self.page_class if size_class >= self.paged else size_class

    def object_count(self, size_class: int) -> int:
        """Objects, or pages, in a block of `size_class`. Raises PoolCorrupt if there is no such
        class."""
        if size_class >= self.class_count:
            raise PoolCorrupt(
                f"a block is said to hold objects of size class {size_class}, of "
                f"{self.class_count} classes; destroy the pool"
            )
        if size_class >= self.paged:
            return PAGES
        return 1 if size_class == LARGE_CLASS else self.block_size // self.sizes[size_class]

    def table_word(self, node: int, block: int) -> int:
        """Address of a block's word in the block table."""
        return node << NODE_SHIFT | self.table + block * 8

    def bitmap(self, node: int, block: int) -> int:
        """Address of the first word of a block's used bitmap."""
        return node << NODE_SHIFT | self.bitmaps + block * self.bitmap_size

    def reference(self, node: int, block: int, size_class: int, index: int) -> int:
        """Reference to object `index` of a block, or from that page on, without replicas (words.py:
        `replica_bits`)."""
        within = index * self.sizes[size_class]
        if size_class >= self.paged:
            within = index * self.block_size // PAGES & MULTIPLES
        offset = self.blocks + block * self.block_size + within
        return size_class << 48 | node << NODE_SHIFT | offset

    def block_of(self, reference: int) -> int:
        """Index, on its node, of the block that holds the object, or its beginning."""
        return ((reference & OFFSET_MASK) - self.blocks) // self.block_size

    def last_block_of(self, reference: int) -> int:
        """Index of the block that has the end of the object; of a span, its first block."""
        pages = self.runs[reference >> 48 & 0xFF]
        past = self.index_of(reference) + (pages if pages else 1)
        return self.block_of(reference) + ((past - 1) // PAGES if pages else 0)

    def index_of(self, reference: int) -> int:
        """Index of the object, or of its first page, in its block."""
        size_class = reference >> 48 & 0xFF
        if size_class == LARGE_CLASS:
            return 0
        within = ((reference & OFFSET_MASK) - self.blocks) % self.block_size
        if size_class >= self.paged:
            return (within + 15) * PAGES // self.block_size
        return within // self.sizes[size_class]

    def in_pages(self, references: Any) -> Any:
        """The array of references, with those of runs replaced by one for each of their pages;
        sorted."""
        classes = references >> np.uint64(48) & np.uint64(0xFF)
        runs = references[(classes >= self.paged) & (classes < self.class_count)]
        if not len(runs):
            return references
        counts = np.frombuffer(self.runs, dtype=np.uint64)[runs >> np.uint64(48) & np.uint64(0xFF)]
        begins = np.repeat(np.cumsum(counts) - counts, counts.astype(np.int64))
        offsets = runs & np.uint64(OFFSET_MASK & ~REPLICAS_BITS)
        first = (
            (offsets - np.uint64(self.blocks - 15)) * np.uint64(PAGES) // np.uint64(self.block_size)
        )
        pages = np.repeat(first, counts.astype(np.int64))
        pages += np.arange(len(pages), dtype=np.uint64) - begins
        within = page_offset(self.block_size, pages)
        rest = runs & np.uint64(NODE_BITS | REPLICAS_BITS) | np.uint64(self.page_class << 48)
        each = np.repeat(rest, counts.astype(np.int64)) + np.uint64(self.blocks) + within
        others = references[(classes < self.paged) | (classes >= self.class_count)]
        return np.unique(np.concatenate((others, each)))

    def replicas(self, reference: int) -> int:
        """How many replicas the object has."""
        return ((reference & REPLICAS_BITS) >> REPLICAS_SHIFT) + 1

    def replica(self, reference: int, k: int) -> int:
        """Address of replica `k` of the object, which has more than `k`; 0 is the primary.

        Raises PoolCorrupt for an impossible reference.
        """
        if k == 0:
            return reference & ADDRESS_MASK
        return (reference & ADDRESS_MASK) + self.steps[self.row(reference) + k] & MASK

    def row(self, reference: int) -> int:
        """Where in `steps` and `bit_steps` the entries of the object's replicas begin.

        Raises PoolCorrupt for an impossible reference.
        """
        node = reference >> NODE_SHIFT & 0xFF
        end = self.ends[(reference & REPLICAS_BITS) >> REPLICAS_SHIFT]
        if not self.first <= reference & OFFSET_MASK < end or node >= self.placement.nodes:
            self.placement.node_of(node, self.block_of(reference), self.replicas(reference), 0)
        return REPLICAS_MAX * node

    def _used_bits(self, reference: int) -> int:
        """Address of the word that has the used bit of the primary, or of its first page; in bits
        48-53, which of its bits that is."""
        offset = (reference & OFFSET_MASK) - self.blocks
        block = offset // self.block_size
        size_class = reference >> 48 & 0xFF
        index = 0
        if size_class >= self.paged:
            index = (offset - block * self.block_size + 15) * PAGES // self.block_size
        elif size_class != LARGE_CLASS:
            index = (offset - block * self.block_size) // self.sizes[size_class]
        word = self.bitmaps + block * self.bitmap_size + 8 * (index >> 6)
        return (index & 63) << 48 | (reference & NODE_BITS) + word

    def plausible(self, reference: int) -> bool:
        """Whether the reference names an object that could exist: a check on damaged memory."""
        size_class = reference >> 48 & 0xFF
        offset = reference & OFFSET_MASK & ~REPLICAS_BITS
        if size_class >= self.class_count or offset < self.blocks:
            return False
        block = (offset - self.blocks) // self.block_size
        if block >= self.block_count:
            return False
        replicas = self.replicas(reference)
        if replicas > 1 and (
            replicas > self.placement.replicas_max
            or not self.placement.has_sets(reference >> NODE_SHIFT & 0xFF, replicas)
            or self.placement.part(block, replicas) != 0
        ):
            return False
        within = (offset - self.blocks) % self.block_size
        if size_class == LARGE_CLASS:
            return within == 0
        size = self.sizes[size_class]
        if size_class < self.paged:
            return within % size == 0 and within + size <= self.block_size
        last = self.last_block_of(reference)
        page = self.index_of(reference)
        return (
            within == page * self.block_size // PAGES & MULTIPLES
            and last < self.block_count
            and (replicas == 1 or self.placement.same_region(block, last))
        )

    def used_at(self, reference: int, k: int) -> bool:
        """Whether the used bit of replica `k` is set; that of its first page."""
        found = self._used_bits(reference)
        at = found & WORD_BITS
        if k:
            at = at + self.bit_steps[self.row(reference) + k] & MASK
        return bool(self.endpoint.load(at) >> (found >> 48) & 1)

    def used(self, reference: int) -> bool:
        """Whether the object's used bit is set, by the first replica in service.

        Raises NodeFailed when none is.
        """
        last = self.replicas(reference) - 1
        for k in range(last):
            try:
                return self.used_at(reference, k)
            except NodeFailed:
                continue
        return self.used_at(reference, last)

    def take(self, reference: int) -> None:
        """Set the object's used bit on every replica in service. Only its block's owner may.

        Raises NodeFailed when the primary is not in service; nothing is changed then.
        """
        found = self._used_bits(reference)
        primary = found & WORD_BITS
        mask = bit(found >> 48)
        if reference >> 48 & 0xFF >= self.paged:
            self._change_run(reference, found, True)
        else:
            # ORDER: the primary first; when it is lost, no client allocates here any more.
            self.endpoint.post_set(primary, mask)
            if reference & REPLICAS_BITS:
                # CRASH(used-in-part): in use on some replicas, and in the client journal;
                # recovery frees these.
                self._take_backups(reference, primary, mask)

    def take_all(self, references: Any, count: int) -> None:
        """`take` for `count` objects, all of which are in the client journal; those with their bits
        in one word together."""
        start = 0
        while start < count:
            words = self._gather(references, start, count, True)
            for index in range(words):
                self._take_word(
                    self.gathered[index], self.gathered_words[index], self.gathered_masks[index]
                )
            start += GATHERED

    def _gather(self, references: Any, start: int, count: int, take: bool) -> int:
        """Gather the used bits of the objects from `start` on, at most GATHERED, by words, in
        `gathered` and beside it; how many words. Those of runs of pages are changed at once."""
        words = 0
        stop = min(count, start + GATHERED)
        for index in range(start, stop):
            reference = references[index]
            if not reference:
                continue
            found = self._used_bits(reference)
            if reference >> 48 & 0xFF >= self.paged:
                self._change_run(reference, found, take)
                continue
            at = found & WORD_BITS
            row = words - 1
            end = words - LOOKS
            while row >= 0 and row > end and self.gathered_words[row] != at:
                row -= 1
            if row >= 0 and self.gathered_words[row] == at:
                self.gathered_masks[row] |= bit(found >> 48)
                continue
            self.gathered[words] = reference
            self.gathered_words[words] = at
            self.gathered_masks[words] = bit(found >> 48)
            words += 1
        return words

    def _take_word(self, reference: int, primary: int, mask: int) -> None:
        """Set these used bits, of objects in the block of this one."""
        # ORDER: as in `take`
        self.endpoint.post_set(primary, mask)
        if reference & REPLICAS_BITS:
            self._take_backups(reference, primary, mask)

    def _change_run(self, reference: int, found: int, take: bool) -> None:
        """Set or clear the used bits of all pages of an object; `found`: where the first bit is."""
        at = found & WORD_BITS
        first = found >> 48
        left = self.runs[reference >> 48 & 0xFF]
        while left:
            count = min(PAGES - first, left)
            mask = MASK >> PAGES - count << first
            # CRASH(used-in-part): some of its pages are in use, and the object is in the client
            # journal; recovery frees these.
            if take:
                self._take_word(reference, at, mask)
            else:
                self._clear_word(reference, at, mask)
            left -= count
            first = 0
            at += self.bitmap_size

    def _take_backups(self, reference: int, primary: int, mask: int) -> None:
        row = self.row(reference)
        for k in range(1, self.replicas(reference)):
            at = primary + self.bit_steps[row + k] & MASK
            try:
                if not self.endpoint.failed(at):
                    self.endpoint.post_set(at, mask)
            except NodeFailed:
                continue

    def is_whole(self, reference: int, mend: bool) -> bool:
        """Whether an object has all its used bits, on the replicas in service. `mend`: set those
        that are missing; only of an object that our client journal names."""
        found = self._used_bits(reference)
        at = found & WORD_BITS
        first = found >> 48
        left = 1
        if reference >> 48 & 0xFF >= self.paged:
            left = self.runs[reference >> 48 & 0xFF]
        row = self.row(reference)
        whole = True
        while left:
            count = min(PAGES - first, left)
            mask = MASK >> PAGES - count << first
            for k in range(self.replicas(reference)):
                word = at + (self.bit_steps[row + k] if k else 0) & MASK
                try:
                    if not self.endpoint.failed(word) and mask & ~self.endpoint.load(word):
                        whole = False
                        if mend:
                            self.endpoint.fetch_or(word, mask)
                except NodeFailed:
                    continue
            left -= count
            first = 0
            at += self.bitmap_size
        return whole

    def free(self, reference: int) -> None:
        """Clear the used bit on every replica. The caller was pinned before it was unlinked.

        Replicas on a lost node are skipped. An object that a client holds stays in use, until that
        client lets it go (shm/clients/holds.py).
        """
        # ORDER: after the object was unlinked: the client that holds it looks at its link again.
        if not self.endpoint.load(HOLDS) or not self._held(reference):
            self._clear(reference)

    def _clear(self, reference: int) -> None:
        found = self._used_bits(reference)
        primary = found & WORD_BITS
        mask = bit(found >> 48)
        self._demand_uncut()
        if reference >> 48 & 0xFF >= self.paged:
            self._change_run(reference, found, False)
        # CRASH(used-in-part): free on some replicas, in the client journal; recovery frees the
        # others.
        elif reference & REPLICAS_BITS:
            self._clear_word(reference, primary, mask)
        else:
            self._clear_at(primary, mask)

    def free_all(self, references: Any, count: int) -> None:
        """`free` for `count` objects; those with their bits in one word together. Objects that
        clients hold are 0 afterwards."""
        # ORDER: as in `free`
        if self.endpoint.load(HOLDS):
            for index in range(count):
                if self._held(references[index]):
                    references[index] = 0
        self._demand_uncut()
        start = 0
        while start < count:
            words = self._gather(references, start, count, False)
            for index in range(words):
                self._clear_word(
                    self.gathered[index], self.gathered_words[index], self.gathered_masks[index]
                )
            start += GATHERED

    def _demand_uncut(self) -> None:
        """Raise NodeFailed if this operation's changes were cut off by pages that are lost to us:
        others may see links of before it. All that it would free stays in the client journal."""
        if self.endpoint.met_loss == LOSS_CUTS:
            node = self.endpoint.our_loss()
            if node >= 0:
                raise NodeFailed(node, PAGES_LOST)

    def _clear_word(self, reference: int, primary: int, mask: int) -> None:
        """Clear these used bits, of objects in the block of this one."""
        self._clear_at(primary, mask)
        if reference & REPLICAS_BITS:
            row = self.row(reference)
            for k in range(1, self.replicas(reference)):
                self._clear_at(primary + self.bit_steps[row + k] & MASK, mask)

    def _clear_at(self, at: int, mask: int) -> bool:
        """Clear this used bit; False: it is on a lost node. NodeFailed: it may be lost for us
        alone, as of this operation."""
        try:
            if self.endpoint.failed(at):
                return False
            self.endpoint.send_clear(at, mask)
        except NodeFailed:
            self._demand_uncut()
            return False
        return True

    def _held(self, reference: int) -> bool:
        """Whether a client holds the object; that client frees it from now on."""
        bits = self.endpoint.load(HOLDS)
        for slot in range(self.endpoint.load(SLOTS_USED)):
            if not bits >> (slot if slot < 63 else 63) & 1:
                continue
            first = slot_address(slot) + RECORDS
            for record in range(first, first + 8 * RECORDS_COUNT, 8):
                word = self.endpoint.load(record)
                while word and not (word ^ reference) & LINK_MASK:
                    seen = word
                    if not word & OWES:
                        seen = self.endpoint.cas(record, word, word | OWES)
                    if seen == word:
                        return True
                    word = seen
        return False

    def settle(self, reference: int, link_address: int) -> bool:
        """Free the object unless the word at `link_address` names it; True when it was freed.

        `link_address` 0 is no link at all. A tentative link is taken back first. This step ends
        every operation, and recovers the last one of a dead client: a linked object stays, and an
        object that is not linked, or no longer, is freed. Any number of clients may do this. If the
        link has a name of its store's own, that store decides: `contents`. If the link is HELD, its
        holder frees the objects that are not linked.
        """
        if link_address & REPLICATED:
            if self.contents.linked(reference, link_address):
                return False
            link_address = 0
        while link_address:
            try:
                word = self.endpoint.load(link_address)
            except NodeFailed:
                break  # the link went with its node
            if (word ^ reference) & LINK_MASK:
                if word & HELD_MASK == HELD and self.contents.concerned(
                    word, link_address, reference
                ):
                    return False
                break
            if not word & TENTATIVE:
                return False
            # CRASH(tentative-link): readers ignore it; the client that recovers this journal takes
            # it back.
            try:
                if self.endpoint.cas(link_address, word, 0) == word:
                    break
            except NodeFailed:
                break
        self.free(reference)
        return True
