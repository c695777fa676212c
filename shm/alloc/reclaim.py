"""Memory pressure: taking blocks from living clients that have no use for them.

A block belongs to one client, which alone allocates from it (allocator.py). No other client knows
whether the owner will use it: the owner may be idle, stopped, or busy elsewhere. So a client that
finds no memory does not ask. It takes blocks whose objects are all free, or, if there is none, a
block with room of the size class that it needs. It does not wait for the owner, which loses no
data: objects in use stay where they are, whichever client owns the block.

A run of pages may lie in blocks of several clients (pages.py), so the client takes all of them.
With an empty block it takes the blocks in which the gap around it ends: a run in the empty block
alone would split the gap, and what is left on both sides may be too short for a run of its length.

Steps, each a CAS of the block's word from the whole word that was read:
    SLAB(owner, class) or LARGE(owner) -> TAKEN(taker, class)  by the taker
    pressure += 1, then the period E is closed (epoch.py)      by the taker, or its recoverer
    TAKEN(taker, class) -> LIMBO(E, class)                     by the same
    LIMBO(E, class) -> FREE, SLAB(no client) or LARGE(no client) by any client, once E lies behind

The owner looks at the pressure before each allocation, under its pin. When the pressure has
changed, the owner reads the words of all its blocks and forgets those that are no longer its own;
it remembers the pressure that it read first. The word shares the epoch's cache line, which the pin
has just read.

Why only one client allocates. An operation of the last owner either is seen pinned at E or before,
or looks at the pressure after it was raised; that is the argument of epoch.py, with the pressure in
place of a link. In the second case the owner reads a block word that is no longer its own, and does
not allocate. In the first case the block is in limbo until the operation has ended, and no other
client allocates from it meanwhile. After that, clients only clear its used bits. When none is set
the block is free, after a period of its own for readers; before that a client may adopt it like a
dead client's block.

No client stamps the word of another taker: the taker's id is in it, and a dead client's id is not
used again. E is never that of another taking of the block, since every call that closes a period
gets an epoch of its own.

A taker that is killed leaves TAKEN words, which its recovery turns to LIMBO. If a taker is stopped,
the next client in need takes its blocks, and the CAS of the stopped taker fails. A block in LIMBO
has no owner.

Two clients in need must not take one block from each other before either has used it. So a taker
takes only a block that it has seen twice, an attempt apart, with the same word and still free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from limpet.shm.endpoint.layout import PRESSURE
from limpet.shm.endpoint.words import (
    BACKUP,
    FREE,
    LARGE,
    LARGE_CLASS,
    LIMBO,
    OWNER_MASK,
    PENDING,
    REGION,
    SHAPE_MASK,
    SLAB,
    STRAY,
    TAIL,
    TAIL_FIRST_MASK,
    TAKEN,
    block_word,
    class_of,
    recast,
    replicas_of,
    stamp,
)
from limpet.shm.errors import NodeFailed
from limpet.shm.pages import ALL_PAGES, NOWHERE, around, best_run

if TYPE_CHECKING:
    from limpet.shm.arrays import Flags, Words
    from limpet.shm.clients.epoch import Grace
    from limpet.shm.pages import Table

_Words: TypeAlias = "dict[tuple[int, int], int]"
"""Words of blocks, by node and number."""
_Room: TypeAlias = "dict[tuple[int, int], tuple[int, int]]"
_KIND_AND_OWNER: Final = np.uint64(0xF << 60 | OWNER_MASK)


def of_kinds(words: Words, *kinds: int) -> Flags:
    """Which blocks with these words are of one of these kinds."""
    mask = np.uint64(sum(1 << kind for kind in kinds))
    found: Flags = mask >> (words >> np.uint64(60)) & np.uint64(1) != 0
    return found


class Shortage:
    """The search of `client` for memory of a size class in blocks of other clients on `node`.

    For a replica set it also takes empty blocks of other nodes, where its backups may have to be.
    """

    def __init__(
        self,
        table: Table,
        grace: Grace,
        client: int,
        node: int,
        size_class: int,
        replicas: int = 1,
        sparing: int = 0,
    ) -> None:
        self.table = table
        self.grace = grace
        self.client = client
        self.node = node
        self.size_class = table.heap.block_class(size_class)
        self.pages = table.heap.runs[size_class]
        self.replicas = replicas
        self.sparing = sparing
        self.waited = False
        """Whether this client waited for other clients' operations: they may free enough memory."""
        self._seen: dict[tuple[int, int], int] = {}

    def take_unchanged(self) -> bool:
        """Take blocks that could be taken at the last look already; whether any can be taken."""
        empty, room = self._hoarded(self.node)
        if self.pages and room:
            empty, room = self._in_gaps(empty, room)
        nodes = [self.node]
        if self.replicas > 1:
            nodes += self._add_others(empty)
        roomiest = sorted(room, key=lambda place: room[place][0])
        wanted = empty or {place: room[place][1] for place in roomiest}
        for (node, block), word in wanted.items():
            unchanged = self._seen.get((node, block)) == word
            if unchanged and self._take(node, block, word) and not empty and not self.pages:
                break
        self._seen = wanted
        for node in nodes:
            expel(self.table, node, self.client, self.grace)
        return bool(wanted)

    def _add_others(self, empty: dict[tuple[int, int], int]) -> list[int]:
        """Add the empty blocks of the other nodes in service; return those nodes."""
        found = []
        for node in range(self.table.heap.placement.nodes):
            if node == self.node:
                continue
            try:
                empty.update(self._empty(node, *self._of_others(node)))
                found.append(node)
            except NodeFailed:
                continue
        return found

    def _take(self, node: int, block: int, word: int) -> bool:
        # CRASH(taken): the owner may not know yet; recovery sends the block to limbo.
        return self.table.move(node, block, word, recast(word, TAKEN, self.client))

    def _hoarded(self, node: int) -> tuple[_Words, _Room]:
        """Words of other clients' blocks, by place: of empty ones; and of those with room, after
        the number of objects in use."""
        blocks, words = self._of_others(node)
        empty = self._empty(node, blocks, words)
        room: _Room = {}
        wanted = block_word(SLAB, 0, self.size_class, self.replicas) & SHAPE_MASK
        for block in blocks[words[blocks] & np.uint64(SHAPE_MASK) == wanted].tolist():
            word = int(words[block])
            if (node, block) not in empty and self._is_sound(node, block, word):
                used = self.table.used_count(node, block, self.size_class)
                if self.pages or self._has_room(node, block, word, used):
                    room[node, block] = (used, word)
        return empty, room

    def _of_others(self, node: int) -> tuple[Any, Words]:
        """The blocks that other clients own, and the words of all."""
        words = self.table.words(node)
        owners = words & np.uint64(OWNER_MASK)
        theirs = of_kinds(words, SLAB, LARGE, TAKEN) & (owners != 0) & (owners != self.client)
        return np.flatnonzero(theirs), words

    def _empty(self, node: int, blocks: Any, words: Words) -> _Words:
        """Of these blocks, the words of those in which nothing is in use, by place."""
        return {
            (node, block): word
            for block in self.table.seen_unused(node, blocks)
            if self._is_sound(node, block, word := int(words[block]))
        }

    def _is_sound(self, node: int, block: int, word: int) -> bool:
        """Whether the word of a block is not damaged; an audit shows one that is."""
        table = self.table
        known = class_of(word) < table.heap.class_count
        return known and bool(table.groups.possible(node, block, word))

    def _in_gaps(self, empty: _Words, room: _Room) -> tuple[_Words, _Room]:
        """Of `_hoarded` on our node: the empty blocks, and those where the runs of clear pages end
        that go through them; if there are none, those with room in which one run lies."""
        words = self.table.words(self.node)
        clear = self._clear_pages(self.node, words)
        if empty:
            # All of a run: if only the empty blocks in it are taken, what adjoins them is lost.
            clear[[block for _, block in empty]] = ALL_PAGES
            chosen = around(clear, {block for _, block in empty})
            return empty | {at: word for at, (_, word) in room.items() if at[1] in chosen}, room
        run = self._find_run(self.node, words, clear, [block for _, block in room])
        return empty, {place: room[place] for place in room if place[1] in run}

    def _has_room(self, node: int, block: int, word: int, used: int) -> bool:
        """Whether there is room in another client's slab, with this number of objects in use: with
        pages, when we were refused pages."""
        if self.table.pages.refused != NOWHERE:
            return self.table.reach_room(node, block, word) > 0
        return used < int(self.table.heap.object_count(class_of(word)))

    def _clear_pages(self, node: int, words: Words) -> Words:
        """The clear pages of the blocks of runs, a word a block."""
        table, heap = self.table, self.table.heap
        clear = np.zeros(len(words), dtype=np.uint64)
        for block in np.flatnonzero(of_kinds(words, SLAB, TAKEN, LIMBO)).tolist():
            word = int(words[block])
            if class_of(word) == heap.page_class and replicas_of(word) == self.replicas:
                clear[block] = table.clear_pages(node, block)
        return clear

    def _find_run(self, node: int, words: Words, clear: Words, others: list[int]) -> range:
        """The blocks of a run of pages of which some are in those of other clients; the rest in
        free blocks, and in those that are ours, or on their way to us."""
        free = self.table.usable(node, words, self.grace.horizon(), self.replicas)
        most = max(int(free.sum()) - self.sparing, 0)
        known = clear.copy()
        known[others] = 0
        if most:
            clear[free] = known[free] = ALL_PAGES
        return best_run(clear, known, self.pages, free, free, most)


def kept_in_words(free: int, sparing: int) -> str:
    """In words, for a message: how many of so many free blocks are kept, if `sparing` are."""
    if not (free and sparing):
        return ""
    kept = "all" if free <= sparing else f"{sparing} of them"
    return f" ({kept} for updates, deletes and channels only)"


def blocks_in_words(table: Table, node: int, client: int, horizon: int, sparing: int) -> str:
    """In words, for a message: how many blocks of a node are free, of which `sparing` are kept, and
    who has the others. The numbers add up to those of the node. `client`: ours."""
    words = table.words(node)
    kinds, owners = words >> np.uint64(60), words & np.uint64(OWNER_MASK)
    for block in np.flatnonzero(kinds == TAIL).tolist():
        first = int(words[block]) & TAIL_FIRST_MASK
        owners[block] = owners[first] if first < block else 0
    free = table.claimable(words, horizon)
    bare = (kinds == FREE) & ~free & table.passed(words, horizon)
    owned = of_kinds(words, SLAB, LARGE, PENDING, TAKEN, TAIL)
    theirs = owned & (owners != 0) & (owners != client)
    others = len(set(owners[theirs].tolist()))  # `unique` would import a module
    counts = {
        "{} has tables and channels": kinds == REGION,
        "{} has objects of this client": owned & (owners == client),
        "{} has objects of " + (f"{others} other clients" if others > 1 else "another client"):
            theirs,
        "{} has objects of clients that are gone": owned & (owners == 0),
        "{} has replicas of objects on other nodes": kinds == BACKUP,
        "{} is free when the operations that run now have ended":
            of_kinds(words, FREE, LIMBO, STRAY) & ~free & ~bare,
        "{} has no pages": bare,
        "{} is damaged": kinds > STRAY,
    }  # fmt: skip
    ready = int(free.sum())
    blocks = f"{table.count} blocks of {table.heap.block_size} bytes"
    said = [f"{ready} of its {blocks} are free{kept_in_words(ready, sparing)}"]
    for text, which in counts.items():
        number = int(which.sum())
        if number:
            text = text if number == 1 else text.replace("} has", "} have").replace("} is", "} are")
            said.append(text.format(number))
    return ", ".join(said)


def expel(table: Table, node: int, client: int, grace: Grace) -> int:
    """Send to limbo the blocks that `client`, which is us or is dead, has taken; how many."""
    words = table.words(node)
    taken = np.flatnonzero(words & _KIND_AND_OWNER == block_word(TAKEN, client)).tolist()
    if not taken:
        return 0
    # ORDER: the blocks were taken before the pressure rises; it rises before the period ends.
    table.endpoint.faa(PRESSURE, 1)
    epoch = grace.close_period()
    return sum(
        table.move(node, block, word, recast(word, LIMBO, stamp(epoch)))
        for block in taken
        if (word := int(words[block]))
    )


def end_limbo(table: Table, node: int, client: int, grace: Grace) -> int:
    """Free the blocks whose time in limbo is over, or leave them to be adopted; how many.

    `client`: ours.
    """
    horizon = grace.horizon()
    words = table.words(node)
    over = (words >> np.uint64(60) == LIMBO) & table.passed(words, horizon)
    ended = 0
    for block in np.flatnonzero(over).tolist():
        word = int(words[block])
        size_class = class_of(word)
        if size_class >= table.heap.class_count or not table.groups.possible(node, block, word):
            continue  # damaged; an audit shows it
        if table.used_count(node, block, size_class):
            kind = LARGE if size_class == LARGE_CLASS else SLAB
            ended += table.move(node, block, word, recast(word, kind, 0))
        else:
            # ORDER: the period is closed after the last object was seen free.
            ended += table.release(node, block, word, grace.close_period(), client) > 0
    return ended
