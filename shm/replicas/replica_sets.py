"""Replica sets: a block, the primary, and its r - 1 backups on other nodes (replica_layout.py).

Only the word of the primary names the client that owns the replica set; it changes as that of any
block. Words, in the order in which they are written (P: primary, B: backups):

    claimed     P FREE -> PENDING(client)   B FREE -> BACKUP(mark)   P PENDING -> SLAB
    given back  P SLAB -> PENDING(client)   B BACKUP(mark) -> FREE   P PENDING -> FREE

A span is a run of replica sets within one region, claimed from its first block to its last; then
the primaries become TAILs from the second on, and the first becomes LARGE. It is given back last
block first.

Invariants
    - a BACKUP's primary is not FREE and has the same number of replicas; hence no other client
      claims it
    - only the client whose id is in a PENDING primary, or its recoverer, moves the backups
    - no two BACKUP words are the same, other than those of one claim: the mark is an epoch that was
      closed for it alone. So a stopped client that wakes up finds its CASes refused.

A backup whose node is marked as failed is left out, from the claim on: a degraded pool goes on. If
only this process has lost the node, the claim fails, since others would not leave the backup out.
The backup is made when the node is replaced (replacement.py); so its place, which no client can
claim meanwhile, must not be promised to two replica sets. After its own primary is PENDING, a
client looks whether a replica set with another number of replicas needs the same place; so of two
clients that claim at the same time at least one sees the other.

A kill leaves behind: a PENDING primary of the dead client, and any of its backups. Recovery gives
all of them back, in the order above.

When the primary's node is marked as failed, the replica set can neither be claimed nor given back
by its primary. Objects in use in it live on. A client that looks for memory then takes these steps
for each backup on its own:

    BACKUP(mark) -> STRAY(E)   once the mark of failure was seen and period E was closed (epoch.py)
    STRAY(E) -> FREE           once E lies behind and none of its used bits is set

An operation that is pinned later than E finds the primary lost when it sets its used bit (heap.py),
so by then bits are only cleared. Each step is one CAS from a word that never was there before.

A client that was declared dead while it was stopped may write a BACKUP word after its primary was
given back. The same search gives back such a word, whose primary does not belong to it; and the
backup of a tail whose primary is lost and that does not follow the backup of its span's first
block.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from limpet.shm.clients.epoch import Grace
from limpet.shm.endpoint.layout import NODE_STATES
from limpet.shm.endpoint.states import IN_SERVICE, state_of
from limpet.shm.endpoint.words import (
    BACKUP,
    FREE,
    LARGE,
    LARGE_CLASS,
    LIMBO,
    PENDING,
    SLAB,
    STRAY,
    TAIL,
    TAIL_CLASS,
    TAKEN,
    block_word,
    class_of,
    free_word,
    recast,
    replicas_of,
    stamp,
)
from limpet.shm.errors import NodeFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet.shm.arrays import Flags, Words
    from limpet.shm.pages import Table

    Moves = list[tuple[int, int, int, int]]
    """Steps of a claim: node, block, word before, word after."""

PRIMARY_KINDS: Final = (SLAB, PENDING, LARGE, TAIL, TAKEN, LIMBO)
BACKUP_KINDS: Final = (BACKUP, STRAY)
SET_KINDS: Final = (*PRIMARY_KINDS, *BACKUP_KINDS)
_PRIMARIES: Final = np.uint64(sum(1 << kind for kind in PRIMARY_KINDS))
"""PRIMARY_KINDS as bits."""


class ReplicaSets:
    """The backups in the block tables of a pool."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.endpoint = table.endpoint
        self.placement = table.heap.placement
        self.grace = Grace(table.endpoint)
        self._places: dict[int, Flags] = {}
        """By the number of replicas."""

    def failed(self, node: int) -> bool:
        """Whether the node is marked as failed, for every client, until it is replaced."""
        return state_of(self.endpoint.load(NODE_STATES + 8 * node)) != IN_SERVICE

    def possible(self, node: int, block: int, word: int) -> bool:
        """Whether a block with this word can be the primary of its replica set, or needs none."""
        replicas = replicas_of(word)
        return replicas == 1 or (
            self.placement.has_sets(node, replicas) and self.placement.part(block, replicas) == 0
        )

    def backups(self, node: int, block: int, replicas: int) -> Iterator[tuple[int, int]]:
        """Node and block of each backup of a primary."""
        for k in range(1, replicas):
            yield self.placement.backup(node, block, replicas, k)

    def backups_in_service(self, node: int, block: int, word: int) -> int:
        """How many backups of the block with this word are not on a lost node."""
        if not self.possible(node, block, word):
            return 0
        return sum(
            not self.failed(there) for there, _ in self.backups(node, block, replicas_of(word))
        )

    def primary_of(self, node: int, block: int, word: int) -> tuple[int, int] | None:
        """Node and block of the primary of a BACKUP or STRAY; None when the word is damaged."""
        replicas = replicas_of(word)
        if replicas < 2 or not self.placement.has_sets(node, replicas):
            return None
        primary = self.placement.primary(node, block, replicas)
        return primary[:2] if primary is not None and primary[2] else None

    def primary_word(self, primary: tuple[int, int], word: int) -> int:
        """The word of a BACKUP's primary; 0 when the primary does not belong to it. NodeFailed."""
        there = self.endpoint.load(self.table.heap.table_word(*primary))
        belongs = there >> 60 in PRIMARY_KINDS and replicas_of(there) == replicas_of(word)
        return there if belongs else 0

    # ---- claiming -------------------------------------------------------------------------------

    def place(self, node: int, block: int, k: int) -> tuple[int, int]:
        """Node and block of replica `k` of the primary in this place."""
        return self.placement.beside(node, k), block + k * self.placement.region_blocks

    def usable(
        self,
        node: int,
        replicas: int,
        horizon: int,
        whole: bool = False,
        first: int = 0,
        end: int = 0,
        words: Words | None = None,
    ) -> Flags:
        """Which blocks of the node are primaries that may be claimed with their backups, as
        `Table.claimable` has it; a look, no promise. From `first` to `end`, if that is given, which
        have these `words`."""
        table = self.table
        end = end or table.count
        found = table.claimable(
            table.look(node, first, end) if words is None else words, horizon, whole
        )
        found &= self._primaries(replicas, table.count)[first:end]
        for k in range(1, replicas):
            there, begin = self.place(node, first, k)
            stop = min(begin + end - first, table.count)
            if begin < stop:
                free = self._claimable_of(there, begin, stop, horizon, whole)
                if free is not None:
                    found[: stop - begin] &= free
        return found

    def _primaries(self, replicas: int, count: int) -> Flags:
        """Which of the `count` blocks of a node are places of primaries of so many replicas."""
        if replicas not in self._places:
            places: Flags = np.zeros(count, dtype=np.bool_)
            for start in self.placement.starts(replicas):
                places[start : start + self.placement.region_blocks] = True
            self._places[replicas] = places
        return self._places[replicas]

    def _claimable_of(
        self, node: int, first: int, end: int, horizon: int, whole: bool
    ) -> Flags | None:
        """Which of these blocks of another node may be claimed; None: it is lost, and left out."""
        if self.failed(node):
            return None
        try:
            return self.table.claimable(self.table.look(node, first, end), horizon, whole)
        except NodeFailed:
            if not self.failed(node):
                raise
            return None

    def claim_slab(
        self,
        node: int,
        size_class: int,
        replicas: int,
        client: int,
        horizon: int,
        usable: list[int],
    ) -> tuple[int, list[int]] | None:
        """Claim a free replica set for objects of `size_class`: its primary, among the blocks that
        were seen `usable`, and the words that its blocks had."""
        if not usable:
            return None
        mark = stamp(self.grace.close_period())
        pending = block_word(PENDING, client, size_class, replicas)
        backup = block_word(BACKUP, mark, size_class, replicas)
        for block in usable:
            done: Moves = []
            if self._claim(node, block, pending, backup, horizon, done):
                # CRASH(set-claimed): PENDING with all of its backups; recovery gives them back.
                self.table.move(node, block, pending, recast(pending, SLAB, client))
                return int(block), [before for _, _, before, _ in done]
        return None

    def claim_run(
        self, node: int, blocks: int, replicas: int, client: int, horizon: int, limit: int
    ) -> int | None:
        """Claim a run of free replica sets for a span, all PENDING(client) now; its first block.
        All are below `limit`."""
        pending = block_word(PENDING, client, LARGE_CLASS, replicas)
        while (first := self._find_run(node, blocks, replicas, horizon, limit)) is not None:
            mark = stamp(self.grace.close_period())
            done: Moves = []
            for block in range(first, first + blocks):
                size_class = LARGE_CLASS if block == first else TAIL_CLASS
                backup = block_word(BACKUP, mark, size_class, replicas)
                if not self._claim(node, block, pending, backup, horizon, done):
                    break
            else:
                return first
        return None

    def _find_run(
        self, node: int, blocks: int, replicas: int, horizon: int, limit: int
    ) -> int | None:
        usable = self.usable(node, replicas, horizon, True)
        length = self.placement.region_blocks
        for start in reversed(self.placement.starts(replicas)):
            for first in range(start, min(start + length, limit) - blocks + 1):
                if usable[first : first + blocks].all():
                    return first
        return None

    def _claim(
        self, node: int, block: int, pending: int, backup: int, horizon: int, done: Moves
    ) -> bool:
        """Claim one replica set after those in `done`; False, and nothing claimed, if it is not
        free.

        Raises NodeFailed, with nothing claimed, for a node that is not marked as failed.
        """
        try:
            well = self._step(node, block, pending, horizon, done)
            for there, at in self.backups(node, block, replicas_of(pending)):
                # CRASH(set-in-part): PENDING with some of its backups; recovery frees them.
                try:
                    well = well and self._step(there, at, backup, horizon, done)
                except NodeFailed:
                    if not self.failed(there):
                        raise
                    well = not self._promised(there, at, replicas_of(pending))
        except NodeFailed:
            self._undo(done)
            raise
        if not well:
            self._undo(done)
        return well

    def members(self, node: int, block: int, replicas: int) -> list[tuple[int, int]]:
        """Node and block of all members of the set of `replicas` with this place; [] if none."""
        if replicas < 2 or not self.placement.has_sets(node, replicas):
            return []
        primary = self.placement.primary(node, block, replicas)
        if primary is None:
            return []
        return [primary[:2], *self.backups(primary[0], primary[1], replicas)]

    def _promised(self, node: int, block: int, replicas: int) -> bool:
        """Whether a place on a lost node would belong to a set with other than `replicas`."""
        return any(
            self._is_claimed(there, at, other)
            for other in range(2, self.placement.replicas_max + 1)
            if other != replicas
            for there, at in self.members(node, block, other)
            if there != node
        )

    def _is_claimed(self, node: int, block: int, replicas: int) -> bool:
        """Whether the place has a member of a set of `replicas`; not if its node is lost."""
        try:
            word = self.endpoint.load(self.table.heap.table_word(node, block))
        except NodeFailed:
            if not self.failed(node):
                raise
            return False
        return word >> 60 in SET_KINDS and replicas_of(word) == replicas

    def _step(self, node: int, block: int, desired: int, horizon: int, done: Moves) -> bool:
        word = self.endpoint.load(self.table.heap.table_word(node, block))
        free = word >> 60 == FREE and self.table.has_passed(word, horizon)
        # ORDER: pages first; then every block with an owner has them, also after a kill.
        if not (free and self.table.pages.back(node, block, word, class_of(desired))):
            return False
        if not self.table.move(node, block, word, desired):
            return False
        done.append((node, block, word, desired))
        return True

    def _undo(self, done: Moves) -> None:
        # ORDER: the backups before their primary, which keeps others from claiming them.
        for node, block, before, after in reversed(done):
            try:
                self.table.move(node, block, after, self.table.pages.noted(before, class_of(after)))
            except NodeFailed:
                continue  # it is gone with its node
        done.clear()

    # ---- giving back ----------------------------------------------------------------------------

    def release(self, node: int, first: int, word: int, epoch: int, client: int) -> int:
        """Give back a replica set, or a span of them, seen as `word`, with no object in use.

        On behalf of `client`, which is this one, or is dead and then we are pinned. Returns how
        many blocks were given back, backups not counted.
        """
        pending = recast(word, PENDING, client)
        if word != pending:
            # Refused: another recoverer of the same client may have done it, and be dead by now.
            self.table.move(node, first, word, pending)
        # CRASH(set-in-part): PENDING with some of its backups; recovery frees them.
        words = self.table.words(node)
        # ORDER: the tails were read before the first block is seen unchanged, so they are its own.
        if self.endpoint.load(self.table.heap.table_word(node, first)) != pending:
            return 0
        tails = self.table.tails(words, first) if class_of(word) == LARGE_CLASS else 0
        free = free_word(epoch, self.table.pages.is_whole(class_of(word)))
        released = 0
        for block in range(first + tails, first - 1, -1):
            self._release_backups(node, block, free, first, pending)
            released += self.table.move(node, block, int(words[block]), free)
        return released

    def _release_backups(self, node: int, block: int, free: int, first: int, pending: int) -> None:
        for there, at in self.backups(node, block, replicas_of(pending)):
            try:
                word = self.endpoint.load(self.table.heap.table_word(there, at))
            except NodeFailed:
                continue  # it is gone with its node
            # ORDER: the backup was read before the primary is seen unchanged: it belongs to it.
            if self.endpoint.load(self.table.heap.table_word(node, first)) != pending:
                return
            if word >> 60 == BACKUP and replicas_of(word) == replicas_of(pending):
                with contextlib.suppress(NodeFailed):
                    self.table.move(there, at, word, free)

    # ---- without a primary ----------------------------------------------------------------------

    def sweep(self, node: int) -> int:
        """Give back the backups on `node` that have no primary, as far as may be; how many.

        We are pinned, and no node is being filled.
        """
        words = self.table.words(node)
        # ORDER: the words of the primaries after those of the backups (`_is_astray`).
        found = self._doubtful(node, words)
        if not found:
            return 0
        horizon = self.grace.horizon()
        released = 0
        for block in found:
            word = int(words[block])
            primary = self.primary_of(node, block, word)
            if primary is None:
                continue  # damaged; an audit shows it
            if class_of(word) == TAIL_CLASS:
                if self._is_astray(primary, word) or (
                    self.failed(primary[0]) and not self._has_first(node, block, word)
                ):
                    free = free_word(self.grace.close_period())
                    released += self.table.move(node, block, word, free)
                continue  # else it goes with that of the first block
            if class_of(word) >= self.table.heap.class_count:
                continue  # damaged, too
            if word >> 60 == STRAY:
                if self.table.has_passed(word, horizon):
                    released += self._release_stray(node, block, words)
            elif self.failed(primary[0]):
                # ORDER: the primary was seen lost before the period is closed.
                stray = recast(word, STRAY, stamp(self.grace.close_period()))
                # CRASH(stray): any client that looks for memory goes on with it.
                self.table.move(node, block, word, stray)
            elif self._is_astray(primary, word):
                released += self._release_run(node, block, words)
        return released

    def _doubtful(self, node: int, words: Words) -> list[int]:
        """Of the blocks of `node`, with these words, the backups but for those whose primaries, in
        service, are seen to belong to them."""
        blocks = np.array(_backups(words), dtype=np.int64)
        if not len(blocks):
            return []
        kinds, replicas = words[blocks] >> np.uint64(60), _replicas(words[blocks])
        k = (blocks - self.placement.first >> self.placement.region_shift) % replicas
        first = self.placement.firsts[node]
        nodes = first + (node - first - k) % self.placement.counts[node]
        primaries = blocks - k * self.placement.region_blocks
        sound = np.zeros(len(blocks), dtype=np.bool_)
        placed = (kinds == BACKUP) & (k > 0) & (primaries >= 0)
        for other in np.unique(nodes).tolist():
            here = placed & (nodes == other)
            if not here.any() or self.failed(other):
                continue
            with contextlib.suppress(NodeFailed):
                there = self.table.words(other)[primaries[here]]
                belong = _PRIMARIES >> (there >> np.uint64(60)) & np.uint64(1)
                sound[here] = (belong != 0) & (_replicas(there) == replicas[here])
        found: list[int] = blocks[~sound].tolist()
        return found

    def _release_stray(self, node: int, first: int, words: Words) -> int:
        unused = self.table.unused(node, first, class_of(int(words[first])))
        return self._release_run(node, first, words) if unused else 0

    def _release_run(self, node: int, first: int, words: Words) -> int:
        # ORDER: the period is closed after the last object was seen free.
        whole = self.table.pages.is_whole(class_of(int(words[first])))
        free = free_word(self.grace.close_period(), whole)
        released = 0
        for block in range(first + self.tails(words, first), first - 1, -1):
            released += self.table.move(node, block, int(words[block]), free)
        return released

    def tails(self, words: Words, first: int) -> int:
        """How many backups of tails of one span follow `first`, the backup of its first block."""
        block = first + 1
        while (
            block < len(words)
            and words[block] == words[first + 1]
            and int(words[block]) >> 60 == BACKUP
            and class_of(int(words[block])) == TAIL_CLASS
        ):
            block += 1
        return block - first - 1

    def _has_first(self, node: int, block: int, word: int) -> bool:
        """Whether the backup of a span's first block is before this one, that of a tail of it.

        The first block's backup is claimed before those of the tails and given back after them. So
        if it is missing while this word is still there, it stays missing.
        """
        before = word
        while before == word and block > 0:
            block -= 1
            before = self.endpoint.load(self.table.heap.table_word(node, block))
        is_first = before >> 60 in BACKUP_KINDS and class_of(before) == LARGE_CLASS
        return is_first and replicas_of(before) == replicas_of(word)

    def _is_astray(self, primary: tuple[int, int], word: int) -> bool:
        """Whether the primary, in service, does not belong to the backup with this word.

        Then it never will: the word was there before the look at the primary, and if it is there
        after it, it was there all the time.
        """
        try:
            return not self.primary_word(primary, word)
        except NodeFailed:
            return False


def _replicas(words: Words) -> Any:
    """`replicas_of` of each of these words."""
    return (words >> np.uint64(48) & np.uint64(0xF)).astype(np.int64) + 1


def _backups(words: Words) -> list[int]:
    """The blocks with these words that are backups."""
    kinds = words >> np.uint64(60)
    found: list[int] = np.flatnonzero((kinds == BACKUP) | (kinds == STRAY)).tolist()
    return found
