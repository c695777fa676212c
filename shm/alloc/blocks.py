"""The first level of memory management: blocks and their owners. (Words: words.py.)

Every step is one CAS that carries a client id, which is never reused, or moves a word that no
other client may move; so a stopped client that wakes up finds its CAS refused.

A span (LARGE) or a region is made in steps, and each intermediate state names the client at work:
    FREE -> PENDING(client), block by block
    PENDING -> TAIL(first) for all but the first
    PENDING -> LARGE(client) for the first
A kill in between leaves PENDING blocks of a dead client, and TAILs behind one; `recover` gives them
back. A span is given back last block first, so a LARGE with fewer TAILs is a span being given back.

The pages of a block are allocated before memory in it is handed out: pages.py.

The owner gives a block back, or a client in need takes it from the owner: reclaim.py. A block with
backups is claimed and given back with them: replica_sets.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from limpet.shm.alloc.heap import Heap
from limpet.shm.alloc.reclaim import expel, of_kinds
from limpet.shm.endpoint.layout import EPOCH, PAGES
from limpet.shm.endpoint.words import (
    BEGUN,
    FREE,
    LARGE,
    LARGE_CLASS,
    LIMBO,
    OWNER_MASK,
    PENDING,
    REGION,
    SLAB,
    STRAY,
    TAKEN,
    age,
    block_word,
    class_of,
    free_word,
    is_tail_of,
    recast,
    replicas_of,
    stamp,
    tail_word,
)
from limpet.shm.errors import NodeFailed
from limpet.shm.pages import ALL_PAGES, BlockPages, best_run
from limpet.shm.replicas.replica_sets import ReplicaSets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from limpet.shm.arrays import Flags, Words
    from limpet.shm.clients.epoch import Grace
    from limpet.shm.endpoint.fabric import Endpoint

_KIND_AND_OWNER = np.uint64(0xF << 60 | OWNER_MASK)
RESERVE_SHARE = 20
"""One of this many blocks is left for updates and channels."""
WINDOW = 64
"""Block words that a claim reads at first; then twice as many each time, until it has found one."""
LOOK = 256
"""Block words that `has_free` reads at a time: where few are free it reads all of them."""
BITMAPS_MAX = 1 << 16
"""Bytes of used bits that are read at a time."""
IMAGE_MAX = 4 << 20
"""Bytes that `BlockTable.image` reads at most: those of 2 GiB of memory."""


class BlockTable:
    """The block tables of all nodes of a pool."""

    def __init__(self, endpoint: Endpoint, heap: Heap, coherent_blocks: int) -> None:
        self.endpoint = endpoint
        self.heap = heap
        self.count = heap.layout.block_count
        self.coherent_blocks = coherent_blocks
        """Blocks of each node that lie wholly in its hardware-coherent range."""
        self.reserve = self.count // RESERVE_SHARE
        """How many blocks of a node new entries leave free: for updates and channels."""
        self.vanished: Callable[[int], bool] = lambda node: True
        """Whether the memory of a lost node is gone for all processes, not only for this one; set
        by the pool."""
        self.groups = ReplicaSets(self)
        self.pages = BlockPages(self)
        self.forget()

    def forget(self) -> None:
        """Forget what was seen in the tables."""
        self.pages.begin_claim()
        self.pages.begin_search()
        self._seen_free: dict[tuple[int, int], list[int]] = {}
        """Blocks that `has_free` saw free, by node and number of replicas."""

    def words(self, node: int) -> Words:
        """A copy of the node's block table."""
        return self.look(node, 0, self.count)

    def look(self, node: int, first: int, end: int) -> Words:
        """A copy of the words of these blocks."""
        return np.frombuffer(
            self.endpoint.read(self.heap.table_word(node, first), (end - first) * 8), dtype="<u8"
        )

    def _windows(self, replicas: int, limit: int, size: int) -> Iterator[tuple[int, int]]:
        """The blocks below `limit` where objects with so many replicas may have their primaries,
        from the last one on, in windows of `size` blocks and then more: first block and end."""
        ranges = [(0, limit)]
        if replicas > 1:
            placement = self.heap.placement
            length = placement.region_blocks
            ranges = [(s, min(s + length, limit)) for s in reversed(placement.starts(replicas))]
        for start, stop in ranges:
            end = stop
            while end > start:
                first = max(start, end - size)
                yield first, end
                end = first
                size *= 2

    def image(self) -> list[bytes] | None:
        """The block words and used bits of all nodes, which change whenever memory is taken or
        given back; None: a node is lost, or they are too many to be compared."""
        nodes, heap = self.heap.placement.nodes, self.heap
        bits = self.count * heap.bitmap_size
        if nodes * (8 * self.count + bits) > IMAGE_MAX:
            return None
        read = self.endpoint.read
        try:
            return [
                read(address, size)
                for node in range(nodes)
                for address, size in (
                    (heap.bitmap(node, 0), bits),
                    (heap.table_word(node, 0), 8 * self.count),
                )
            ]
        except NodeFailed:
            return None

    def free_count(self, node: int) -> int:
        """How many blocks of the node have no owner."""
        return int((self.words(node) >> 60 == FREE).sum())

    def has_free(self, node: int, count: int, replicas: int, horizon: int) -> bool:
        """Whether at least so many blocks of the node have no owner, and with replicas no backups;
        looks first at those that had none at the last look."""
        if not count:
            return True
        known = self._seen_free.get((node, replicas), [])
        if len(known) >= count and self._all_free(node, known[:count], replicas):
            return True
        free: list[int] = []
        # The first ones (slabs are claimed from the last one on), and one for the next question.
        windows = list(self._windows(replicas, self.count, self.count))
        for start, stop in reversed(windows):
            first, size = start, max(LOOK, count + count // 4)
            while first < stop and len(free) <= count:
                end = min(first + size, stop)
                if replicas == 1:
                    found = self.look(node, first, end) >> np.uint64(60) == FREE
                else:
                    found = self.groups.usable(node, replicas, horizon, False, first, end)
                free += (np.flatnonzero(found) + first).tolist()
                first = end
        self._seen_free[node, replicas] = free[: count + 1]
        return len(free) >= count

    def _all_free(self, node: int, blocks: list[int], replicas: int) -> bool:
        """Whether these blocks, in order, are free, and their backups; a read for each replica."""
        first, last = blocks[0], blocks[-1]
        for k in range(replicas):
            there, at = self.groups.place(node, first, k)
            # A replica set is claimed without its backups on failed nodes.
            if k and self.groups.failed(there):
                continue
            try:
                words = self.look(there, at, at + last - first + 1)
            except NodeFailed:
                return False  # a full look leaves lost backups out
            # `any` would import a module, which a program that ends may not.
            if np.count_nonzero(words[np.array(blocks) - first] >> np.uint64(60) != FREE):
                return False
        return True

    def bitmap(self, node: int, block: int, size_class: int) -> Words:
        """A copy of the words of a block's used bitmap that its class uses."""
        count = -(-self.heap.object_count(size_class) // 64)
        return np.frombuffer(
            self.endpoint.read(self.heap.bitmap(node, block), count * 8), dtype="<u8"
        )

    def move(self, node: int, block: int, expected: int, desired: int) -> bool:
        """CAS a block's word."""
        return self.endpoint.cas(self.heap.table_word(node, block), expected, desired) == expected

    def claimable(self, words: Words, horizon: int, whole: bool = False) -> Flags:
        """Which words are of free blocks whose epoch has passed, and that can have pages; `whole`:
        all of them."""
        unclaimed: Flags = words >> np.uint64(60) == FREE
        if self.pages.unbacked:
            unclaimed &= self.pages.possible(words, whole)
        return unclaimed & self.passed(words, horizon)

    def passed(self, words: Words, horizon: int) -> Flags:
        """Which of the words, read before, have a stamp of an epoch before `horizon`."""
        # ORDER: the epoch after the words: none of their stamps is of a later one.
        now = self.endpoint.load(EPOCH)
        ages = np.uint64(stamp(now)) - words & np.uint64(OWNER_MASK)
        found: Flags = (words & np.uint64(OWNER_MASK) == 0) | (ages > max(0, now - horizon))
        return found

    def has_passed(self, word: int, horizon: int) -> bool:
        """`passed` for one word."""
        now = self.endpoint.load(EPOCH)
        return not stamp(word) or age(word, now) > max(0, now - horizon)

    # ---- claiming ---------------------------------------------------------------------------

    def claim_slab(
        self,
        node: int,
        size_class: int,
        client: int,
        horizon: int,
        replicas: int = 1,
        *,
        coherent: bool = False,
        fresh: bool = True,
        adopt: bool = True,
    ) -> tuple[int, bool, int] | None:
        """A block for objects of `size_class`, whether it was adopted, and how many of its first
        bytes have pages; None: there is none.

        `fresh`: a free block. `adopt`: one without an owner that has objects in use.

        A block is adopted if there is room in it, with pages. With `replicas` it is the primary of
        a replica set. `coherent`: in the hardware-coherent range, as are all backups.

        It takes blocks from the end of the node, so that its front stays free for regions, and
        reads no more words than it needs for that: of each window the blocks without an owner, then
        those that have pages, then the others.
        """
        self.pages.begin_claim()
        desired = block_word(SLAB, client, size_class, replicas)
        limit = self._limit(coherent, replicas)
        for first, end in self._windows(replicas, limit, WINDOW if fresh else limit):
            words = self.look(node, first, end)
            orphans = np.flatnonzero(words == recast(desired, SLAB, 0)).tolist()
            for at in orphans if adopt else ():
                # ORDER: pages first: a block without room for the client stays for others.
                backed = self.reach_room(node, first + at, int(words[at]))
                if backed and self.move(node, first + at, int(words[at]), desired):
                    return first + at, True, backed
            if fresh and replicas > 1:
                usable = self.groups.usable(node, replicas, horizon, False, first, end, words)
                found = self.groups.claim_slab(
                    node, size_class, replicas, client, horizon,
                    (np.flatnonzero(usable)[::-1] + first).tolist(),
                )  # fmt: skip
                if found is not None:
                    return found[0], False, self.pages.backed_size(found[1], size_class)
            elif fresh:
                block = self._claim_fresh(node, first, words, desired, horizon)
                if block is not None:
                    word = int(words[block - first])
                    return block, False, self.pages.backed_size([word], size_class)
        return None

    def _claim_fresh(
        self, node: int, first: int, words: Words, desired: int, horizon: int
    ) -> int | None:
        """Claim a free block among those from `first` on, which have these words."""
        free = np.flatnonzero(self.claimable(words, horizon))[::-1]
        bare = self.pages.bare(words[free])
        for at in np.concatenate((free[~bare], free[bare])).tolist():
            word = int(words[at])
            # ORDER: pages first: then every block with an owner has some, also after a kill.
            if self.pages.back(node, first + at, word, class_of(desired)):
                if self.move(node, first + at, word, desired):
                    return int(first + at)
            elif not word & BEGUN:
                break  # nor are there pages for the others of which nothing is known
        return None

    def reach_room(self, node: int, block: int, word: int) -> int:
        """Allocate the pages behind the room in a slab with this word. The byte up to which there
        are pages; 0: it has no room, or none with pages."""
        size_class = class_of(word)
        used = self.used_bits(node, block, size_class)
        return self.pages.back_room(node, block, size_class, replicas_of(word), used)

    def claim_pages(
        self,
        node: int,
        pages: int,
        client: int,
        horizon: int,
        replicas: int,
        *,
        coherent: bool,
        own: dict[int, int],
        most: int,
        adopt: bool = True,
    ) -> list[tuple[int, bool]]:
        """Blocks that are cut into pages, for a run of `pages`, and whether each was adopted; []:
        there are none.

        The run may have pages of blocks without an owner (`adopt`), of free blocks, at most `most`,
        and of ours (`own`: ready pages, by block), as `best_run` has it. When other clients claim
        some of the blocks meanwhile, the others are the client's all the same, and the run is not
        complete.
        """
        self.pages.begin_claim()
        desired = block_word(SLAB, client, self.heap.page_class, replicas)
        limit = self._limit(coherent, replicas)
        mine = np.zeros(limit, dtype=np.uint64)
        for block, ready in own.items():
            mine[block] = ready
        refused: list[int] = []
        while True:
            words = self.words(node)[:limit]
            clear = mine.copy()
            if adopt:
                for block in np.flatnonzero(words == recast(desired, SLAB, 0)).tolist():
                    clear[block] = self.clear_pages(node, block)
            free = self.usable(node, words, horizon, replicas)
            if most:
                clear[free] = ALL_PAGES
            clear[refused] = 0
            run = best_run(clear, mine, pages, free, self.pages.incomplete(words), most)
            # A block of `own` may have been taken from us by now, and be free.
            wanted = [block for block in run if free[block] or block not in own]
            unbacked = self.pages.unbacked
            # ORDER: pages first, as in `claim_slab`. (Those of a replica set: `ReplicaSets`.)
            if replicas == 1 and not self.pages.back_all(node, wanted, words):
                continue  # among those that have pages already
            claimed = [
                (block, not free[block])
                for block in wanted
                if self._claim_paged(node, block, int(words[block]), desired, horizon)
            ]
            if claimed or not wanted:
                return claimed
            if self.pages.unbacked == unbacked:
                refused += wanted  # other clients have them

    def usable(self, node: int, words: Words, horizon: int, replicas: int) -> Flags:
        """Which of the node's first blocks, with these words, are free to be cut into pages, for
        objects with so many replicas."""
        if replicas > 1:
            return self.groups.usable(node, replicas, horizon, True)[: len(words)]
        return self.claimable(words, horizon, True)

    def _claim_paged(self, node: int, block: int, word: int, desired: int, horizon: int) -> bool:
        replicas = replicas_of(desired)
        if replicas > 1 and word >> 60 == FREE:
            size_class, client = class_of(desired), desired & OWNER_MASK
            found = self.groups.claim_slab(node, size_class, replicas, client, horizon, [block])
            return found is not None
        return self.move(node, block, word, desired)

    def clear_pages(self, node: int, block: int) -> int:
        """The pages of a block that are not in use, as one number."""
        return ~self.used_bits(node, block, self.heap.page_class) & ALL_PAGES

    def _limit(self, coherent: bool, replicas: int) -> int:
        """How many of a node's first blocks may be claimed; backups lie behind their primaries."""
        if not coherent:
            return self.count
        backups = (replicas - 1) * self.heap.placement.region_blocks
        return max(0, self.coherent_blocks - backups)

    def objects_max(self, size: int, replicas: int) -> int:
        """How many objects of `size` bytes can have their primaries on one node, if it has nothing
        else and all replicas are hardware-coherent."""
        limit = self._limit(True, replicas)
        runs = [limit]
        if replicas > 1:
            placement = self.heap.placement
            starts = placement.starts(replicas)
            runs = [min(placement.region_blocks, max(0, limit - start)) for start in starts]
        size_class = self.heap.size_class(size)
        if size_class == LARGE_CLASS:
            blocks = -(-size // self.heap.layout.block_size)
            return sum(run // blocks for run in runs)
        if size_class >= self.heap.paged:
            return sum(run * PAGES // self.heap.runs[size_class] for run in runs)
        return sum(runs) * self.heap.object_count(size_class)

    def claim_run(
        self,
        node: int,
        blocks: int,
        client: int,
        horizon: int,
        *,
        coherent: bool = False,
        replicas: int = 1,
    ) -> int | None:
        """`blocks` adjacent blocks, all PENDING(client) now; the first, or None: no such run.

        With `replicas` they are primaries in one region, whose backups are claimed, too.
        """
        self.pages.begin_claim()
        if replicas > 1:
            limit = self._limit(coherent, replicas)
            return self.groups.claim_run(node, blocks, replicas, client, horizon, limit)
        limit = self._limit(coherent, 1)
        end = min(limit, max(WINDOW, 2 * blocks))
        while True:
            words = self.look(node, 0, end)
            usable = np.concatenate(
                ([0], self.claimable(words, horizon, True).astype(np.int8), [0])
            )
            edges = np.diff(usable)
            starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
            fits = np.flatnonzero(ends - starts >= blocks)
            if not len(fits):
                if end == limit:
                    return None
                end = min(limit, 2 * end)
                continue
            first = int(starts[fits[0]])
            pending = block_word(PENDING, client)
            if not self.pages.back_all(node, range(first, first + blocks), words):
                continue  # among those that have pages already
            for block in range(first, first + blocks):
                if not self.move(node, block, int(words[block]), pending):
                    for back in range(first, block):
                        self.move(
                            node, back, pending, self.pages.noted(int(words[back]), LARGE_CLASS)
                        )
                    break
            else:
                # CRASH(pending-run): blocks of a dead client; recovery gives them back.
                return first

    def make_span(self, node: int, first: int, blocks: int, client: int, replicas: int = 1) -> None:
        """Turn a run of PENDING blocks into a span for one object."""
        pending = block_word(PENDING, client, LARGE_CLASS, replicas)
        for block in range(first + 1, first + blocks):
            self.move(node, block, pending, tail_word(first, client, replicas))
        # CRASH(tails-first): TAILs behind a PENDING block of a dead client.
        self.move(node, first, pending, recast(pending, LARGE, client))

    def make_region(self, node: int, first: int, blocks: int, client: int, mark: int) -> None:
        """Turn PENDING blocks into a region; recovery has turned those of a dead creator."""
        for block in range(first, first + blocks):
            self.move(node, block, block_word(PENDING, client), block_word(REGION, mark))

    def release_region(self, node: int, mark: int, epoch: int) -> int:
        """Give back every block of the region with this mark; how many."""
        word = block_word(REGION, mark)
        return sum(
            self.move(node, block, word, free_word(epoch))
            for block in np.flatnonzero(self.words(node) == word).tolist()
        )

    # ---- giving back --------------------------------------------------------------------------

    def tails(self, words: Words, first: int) -> int:
        """How many TAIL blocks of one span follow `first`."""
        block = first + 1
        while (
            block < self.count
            and int(words[block]) == int(words[first + 1])
            and is_tail_of(int(words[block]), first)
        ):
            block += 1
        return block - first - 1

    def release(self, node: int, first: int, word: int, epoch: int, client: int) -> int:
        """Give back a slab or a span, seen as `word`, in which nothing is in use; how many blocks.

        On behalf of `client`, which is this one or is dead.
        """
        if replicas_of(word) > 1:
            return self.groups.release(node, first, word, epoch, client)
        if class_of(word) == LARGE_CLASS:
            return self.release_span(node, first, word, epoch)
        whole = self.pages.is_whole(class_of(word))
        return int(self.move(node, first, word, free_word(epoch, whole)))

    def release_span(self, node: int, first: int, word: int, epoch: int) -> int:
        """Give back a span, or the rest of it, last block first; blocks given back."""
        words = self.words(node)
        # ORDER: the tails are read before the first block is seen unchanged, so they are its own.
        if self.endpoint.load(self.heap.table_word(node, first)) != word:
            return 0
        released = 0
        for block in range(first + self.tails(words, first), first, -1):
            released += self.move(node, block, int(words[block]), free_word(epoch))
            # CRASH(span-shortened): a span with fewer tails, its object unused; recovery goes on.
        return released + self.move(node, first, word, free_word(epoch))

    def unused(self, node: int, block: int, size_class: int) -> bool:
        """Whether no object of the block is in use."""
        return not self.used_bits(node, block, size_class)

    def seen_unused(self, node: int, blocks: Any) -> list[int]:
        """Of these blocks, in order, those that may have no object in use: one with a bit set has.
        One read for all that lie close together."""
        found: list[int] = []
        size = self.heap.bitmap_size
        first = 0
        while first < len(blocks):
            start = int(blocks[first])
            stop = start + max(1, BITMAPS_MAX // size)
            last = int(np.searchsorted(blocks, stop))
            part = blocks[first:last]
            count = int(part[-1]) - start + 1
            read = self.endpoint.read(self.heap.bitmap(node, start), count * size)
            bits = np.frombuffer(read, dtype="<u8").reshape(count, -1)[part - start]
            # A class need not have all bits of the last words, but those behind them are clear.
            found += part[np.bitwise_or.reduce(bits, axis=1) == 0].tolist()
            first = last
        return found

    def used_count(self, node: int, block: int, size_class: int) -> int:
        """How many objects of the block are in use."""
        return self.used_bits(node, block, size_class).bit_count()

    def used_bits(self, node: int, block: int, size_class: int) -> int:
        """The used bits of a block, as one number."""
        count = -(-self.heap.object_count(size_class) // 64)
        return int.from_bytes(
            self.endpoint.read(self.heap.bitmap(node, block), count * 8), "little"
        )

    def stamps(self, horizon: int, nodes: int) -> list[int]:
        """The epochs in block words of all nodes that have not passed yet."""
        found: list[int] = []
        for node in range(nodes):
            try:
                words = self.words(node)
            except NodeFailed:
                continue
            stamped = of_kinds(words, FREE, LIMBO, STRAY)
            waiting = words[stamped & ~self.passed(words, horizon)]
            now = self.endpoint.load(EPOCH)
            found += [now - age(word, now) for word in waiting.tolist()]
        return found

    # ---- recovery -----------------------------------------------------------------------------

    def recover(
        self, node: int, client: int, grace: Grace, region_of: Callable[[int, int], int | None]
    ) -> int:
        """Take a dead (or leaving) client's blocks on `node` from it; how many were given back.

        A block without a used object is free again, after a grace period that begins when it is
        seen to be unused; any other has no owner then, and a client will adopt it. `region_of(node,
        block)` is the mark of the region whose directory entry has the block. The step may be
        repeated, also by several clients at once. Raises NodeFailed.
        """
        released = 0
        words = self.words(node)
        for index in np.flatnonzero((words & np.uint64(OWNER_MASK)) == client).tolist():
            released += self._recover(node, index, int(words[index]), client, grace, region_of)
        expel(self, node, client, grace)
        return released

    def _recover(
        self,
        node: int,
        block: int,
        word: int,
        client: int,
        grace: Grace,
        region_of: Callable[[int, int], int | None],
    ) -> int:
        kind, size_class = word >> 60, class_of(word)
        if size_class >= self.heap.class_count or not self.groups.possible(node, block, word):
            return 0  # damaged; an audit shows it
        if kind == PENDING:
            mark = None if replicas_of(word) > 1 else region_of(node, block)
            if mark is None:
                return self.release(node, block, word, grace.close_period(), client)
            self.move(node, block, word, block_word(REGION, mark))
        elif (kind == SLAB and size_class != LARGE_CLASS) or (
            kind == LARGE and size_class == LARGE_CLASS
        ):
            if self.unused(node, block, size_class):
                # ORDER: the period is closed after the last object was seen free.
                return self.release(node, block, word, grace.close_period(), client)
            self.move(node, block, word, recast(word, kind, 0))
        return 0

    def free_abandoned_slabs(self, node: int, client: int, grace: Grace) -> int:
        """Give back the blocks without an owner and without an object in use; how many."""
        words = self.words(node)
        released = 0
        orphans = np.flatnonzero(words & _KIND_AND_OWNER == block_word(SLAB, 0))
        for index in self.seen_unused(node, orphans):
            word = int(words[index])
            size_class = class_of(word)
            mine = recast(word, TAKEN, client)
            if (
                0 < size_class < self.heap.class_count
                and self.groups.possible(node, index, word)
                and self.unused(node, index, size_class)
                and self.move(node, index, word, mine)
            ):
                # The block is ours: no client can claim it and give it back between the look and
                # the step.
                if self.unused(node, index, size_class):
                    released += self.release(node, index, mine, grace.close_period(), client)
                else:
                    self.move(node, index, mine, word)
        return released

    def abandoned_spans(self, node: int) -> Iterator[tuple[int, int]]:
        """Spans that belong to no client and whose object is no longer in use; their words."""
        words = self.words(node)
        for index in np.flatnonzero(words & _KIND_AND_OWNER == block_word(LARGE, 0)).tolist():
            word = int(words[index])
            sound = class_of(word) == LARGE_CLASS and self.groups.possible(node, index, word)
            if sound and self.unused(node, index, LARGE_CLASS):
                yield index, word
