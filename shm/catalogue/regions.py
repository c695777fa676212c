"""Named regions: memory that holds one store's index, found through the node's directory.

A region that takes more than half a block is a run of whole blocks. A smaller one lies in an
object, which the entry of the directory links to (`link`, directory.py); so a pool has room for
many small stores.

Payload of a region's directory entry: four words: first block, number of blocks, bytes, mark. The
mark (36 random bits and the entry's number) is also in the region's block words, so that a block
can be told from one of an earlier region of the same name. A region in an object has 0 blocks.

Behind the region, in the next whole word, is its *witness*: bits 0-47 the mark, 48-56 the node and
one. A region without it, or whose blocks are not the region's in the block table, is lost: the node
has another's contents, or none, behind a superblock that is right. It is not found, and not made
anew either.

A region is READY only after it is filled with zeros and made by its store; from then on it stays,
until its store is dropped. The object of a region is filled with zeros before it is linked; it is
freed as every object is (client.py): in the client journal, then unlinked by a CAS, then free.
"""

from __future__ import annotations

import contextlib
import secrets
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from limpet.shm.alloc.reclaim import Shortage, blocks_in_words
from limpet.shm.catalogue.directory import CLAIMED, DROPPING, PLANNED, READY, VOID, Directory
from limpet.shm.endpoint.layout import REGION_ENTRY_SIZE, address
from limpet.shm.endpoint.states import FORMER, generation_of
from limpet.shm.endpoint.words import (
    ADDRESS_MASK,
    LARGE_CLASS,
    OWNER_MASK,
    REGION,
    block_word,
    free_word,
)
from limpet.shm.errors import NodeFailed, PoolCorrupt, StoreFull, StoreMismatch
from limpet.shm.pages import NOWHERE
from limpet.shm.replicas.replica_sets import BACKUP_KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from limpet.shm.alloc.allocator import Allocator
    from limpet.shm.alloc.blocks import BlockTable, Words
    from limpet.shm.catalogue.directory import Entry
    from limpet.shm.clients.epoch import Grace
    from limpet.shm.clients.membership import Membership

_PAYLOAD: Final = struct.Struct("<4Q")
PART: Final = "\0"
"""In a region's name between that of its store, which has no such character, and the rest."""
INTERNAL: Final = "."
"""Names of limpet's own stores begin with this; they may use the reserve."""
_ZEROS: Final = bytes(1 << 16)
ATTEMPTS_MAX: Final = 16
"""Attempts in which memory is found that is no run of blocks long enough."""
WITNESS: Final = 8
"""Bytes of the witness."""
_LINE: Final = 64
"""Regions begin at a cache line; objects do so at a multiple of 16 bytes."""


class Region(NamedTuple):
    """Where a region lies: address of its first byte, its size in bytes."""

    address: int
    size: int


class Regions:
    """The region directories of a pool's nodes."""

    def __init__(
        self,
        blocks: BlockTable,
        grace: Grace,
        membership: Membership,
        nodes: int,
        allocator: Allocator,
    ) -> None:
        self.blocks = blocks
        self.grace = grace
        self.membership = membership
        self.allocator = allocator
        self.client = membership.client
        self.told: set[tuple[int, str]] = set()
        """The regions whose loss this process has logged: node and name."""
        layout = blocks.heap.layout
        self.block_size = layout.block_size
        self.first_block = layout.blocks
        self.directories: list[Directory] = []
        self.know_nodes(nodes)

    def know_nodes(self, nodes: int) -> None:
        """The pool has so many nodes now."""
        layout = self.blocks.heap.layout
        self.directories += [
            Directory(
                self.blocks.endpoint,
                address(node, layout.region_directory),
                layout.region_entries,
                REGION_ENTRY_SIZE,
                f"{self.membership.pool}: region directory of node {node}",
            )
            for node in range(len(self.directories), nodes)
        ]
        # ORDER: the number last, as a signal handler may raise in between.
        self.nodes = nodes

    def obtain(
        self,
        node: int,
        name: str,
        size: int,
        make: Callable[[Region], None] | None = None,
        *,
        whole: bool = False,
        pinned: bool = False,
    ) -> Region:
        """The region of that name on `node`, `size` bytes; made, zero-filled, if it was not there.

        `whole`: of whole blocks, also if it is small, so that no object is allocated. `pinned`:
        the caller is pinned, and stays so, as the leader must; then no memory is reclaimed for an
        object. If neither is said, the caller is not pinned. Raises StoreFull when the node has no
        memory for it, StoreMismatch when the region exists with another size.
        """
        client = self.membership.ident
        count = -(-_taken(size) // self.block_size)
        if not whole and size <= self.block_size // 2:
            count = 0
        spared = 0 if name.startswith(INTERNAL) else self.blocks.reserve

        def plan(index: int) -> bytes:
            self._unlink(node, index, pinned)
            first = self._claim(node, count, spared) if count else 0
            if first is None:
                mend = "delete entries, drop a store or remove a channel, or make larger nodes"
                if self.blocks.pages.refused != NOWHERE:
                    mend = "its file system is full, make room there"
                held = blocks_in_words(self.blocks, node, client, self.grace.horizon(), spared)
                raise StoreFull(
                    f"{self.membership.pool}: node {node} has no {count} adjacent free blocks for "
                    f"{name!r}, which takes {size} bytes: {held}; {mend}"
                )
            return _PAYLOAD.pack(first, count, size, secrets.randbits(36) << 12 | index)

        def build(index: int, payload: bytes) -> None:
            first, blocks, size, mark = self._extent(node, payload)
            if blocks:
                self.blocks.make_region(node, first, blocks, client, mark)
                self._fill(address(node, self.first_block + first * self.block_size), size)
            else:
                self._link_object(node, index, size, name.startswith(INTERNAL), pinned)
            region = self._region(node, payload, self._link(node, index))
            self.blocks.endpoint.store(_witness_at(region), _witness(node, mark))
            if make is not None:
                make(region)

        undone: list[int] = []

        def undo(index: int, payload: bytes) -> None:
            self._unlink(node, index, pinned)
            undone.append(self._extent(node, payload)[3])

        region = None
        while region is None:
            try:
                entry, _ = self.directories[node].obtain(
                    name.encode(),
                    self.membership,
                    plan,
                    build,
                    undo,
                    lambda entry: self._drop(node, entry),
                )
            except BaseException:
                # ORDER: the entry is void before its blocks are free, or the next creator would
                # carry out a plan on blocks of another region.
                for mark in undone:
                    self._release(node, mark)
                raise
            region = self._ready(node, entry)
            if region is not None and not self._is_whole(node, entry, region):
                if self.directories[node].is_unchanged(entry.number, entry.word):
                    raise self.lost(node, name, size)
                region = None
        if region.size != size:
            raise StoreMismatch(
                f"{self.membership.pool}: region {name!r} of node {node} has {region.size} bytes, "
                f"not {size}"
            )
        return region

    def _claim(self, node: int, count: int, spared: int) -> int | None:
        """The first of `count` adjacent blocks, `spared` others left free; None: there are none,
        also after unused blocks were given back and taken from other clients."""
        client = self.membership.ident
        shortage = Shortage(self.blocks, self.grace, client, node, LARGE_CLASS)
        attempt = 0
        while True:
            self.blocks.pages.begin_search()
            if not spared or self.blocks.free_count(node) >= count + spared:
                horizon = self.grace.horizon()
                first = self.blocks.claim_run(node, count, client, horizon, coherent=True)
                if first is not None:
                    return first
            attempt += 1
            if attempt > ATTEMPTS_MAX or not self.allocator.reclaim(attempt, shortage):
                return None

    def _fill(self, start: int, size: int) -> None:
        """Fill memory with zeros, and show progress."""
        for done in range(0, size, len(_ZEROS)):
            self.blocks.endpoint.write(start + done, _ZEROS[: min(len(_ZEROS), size - done)])
            self.membership.progress()

    def _link_object(self, node: int, index: int, size: int, internal: bool, pinned: bool) -> None:
        """Link the entry to an object for a region of `size` bytes, filled with zeros."""
        link = self.directories[node].link(index)
        allocator = self.allocator.coherent()
        room = size + _LINE
        while not self.blocks.endpoint.load(link):
            if not pinned:
                self.client.pin()
            try:
                place = self.client.held
                reference = allocator.allocate(node, room)
                if reference:
                    self._fill(reference & ADDRESS_MASK, room)
                    self.client.retarget(place, link)
                    # ORDER: in a durable pool the zeros persist before the link to them.
                    self.blocks.endpoint.persist()
                    # After a kill here, settling the client journal finds the object linked, and
                    # keeps it.
                    if self.blocks.endpoint.cas(link, 0, reference) == 0:
                        self.client.drop(place)
                    return
            finally:
                if not pinned:
                    self.client.unpin()
            if not pinned:
                allocator.replenish_within(node, [room], update=internal)
                continue
            self.blocks.pages.begin_search()
            if not allocator.make_all_ready(node, [room], 1, True):
                refused = self.blocks.pages.refused
                raise StoreFull(allocator.relief.why_full([node], room, refused, 0, 1))

    def _unlink(self, node: int, index: int, pinned: bool = False) -> None:
        """Free the object that the entry links to, if there is one. Its region is used no more."""
        link = self.directories[node].link(index)
        if not self.blocks.endpoint.load(link):
            return
        if not pinned:
            self.client.pin()
        try:
            # ORDER: pinned before the link is read, so what it names is not used anew meanwhile.
            reference = self.blocks.endpoint.load(link)
            place = self.client.log(reference, link)
            if reference and self.blocks.endpoint.cas(link, reference, 0) == reference:
                # After a kill here, settling the client journal finds the object unlinked, and
                # frees it.
                self.client.release(place)
            else:
                self.client.drop(place)
        finally:
            if not pinned:
                self.client.unpin()

    def find(self, node: int, name: str) -> Region | None:
        """The region of that name on `node`; None: it is not there, or lost. Makes nothing."""
        while (entry := self.directories[node].find(name.encode())) is not None:
            region = self._ready(node, entry)
            if region is not None and self._is_whole(node, entry, region):
                return region
            # ORDER: the region, then the entry again: a client may have dropped it meanwhile.
            if self.directories[node].is_unchanged(entry.number, entry.word):
                return None
        return None

    def _is_whole(self, node: int, entry: Entry, region: Region) -> bool:
        """Whether the region has its witness, and its memory is in use; false, too, if it was
        dropped since its entry was read."""
        first, count, _, mark = self._extent(node, entry.payload)
        load = self.blocks.endpoint.load
        if load(_witness_at(region)) != _witness(node, mark):
            return False
        if not count:
            reference = self._link(node, entry.number)
            return self.blocks.heap.plausible(reference) and self.blocks.heap.used_at(reference, 0)
        at, word = self.blocks.heap.table_word(node, first), block_word(REGION, mark)
        return self.blocks.endpoint.read(at, 8 * count) == word.to_bytes(8, "little") * count

    def lost(self, node: int, name: str, size: int) -> PoolCorrupt:
        """The error for a region that was made with its store, and is not on its node."""
        return PoolCorrupt(
            f"{self.membership.pool}: memory node {node} has no region {name!r} of {size} bytes, "
            "which was made with its store: what the node has in memory is not what it had. If "
            "that is elsewhere, bring it back. If it is lost, `limpet fail-node "
            f"{self.membership.pool} {node}` marks the node as failed; then stores with replicas "
            "go on, and `limpet replace-node` gives it new memory"
        )

    def attach(self, node: int, name: str, size: int) -> int:
        """Address of a region of that size which was made with its store. Makes nothing.

        If its node is lost, an address on that node; if the node was replaced since, one that is
        FORMER (states.py). PoolCorrupt: it is not there, so the store was dropped meanwhile, or the
        node has lost it.
        """
        try:
            replaced = generation_of(self.blocks.endpoint.expected(node)) > 0
            found = self.find(node, name)
        except NodeFailed:
            return address(node, 0)
        if found is None and replaced:
            return FORMER | address(node, 0)
        if found is None or found.size != size:
            raise self.lost(node, name, size)
        return found.address

    def discard(self, node: int, name: str) -> None:
        """Give back the region of that name, which no store uses."""
        for entry in self.directories[node].named(name.encode()):
            nobody = not entry.client or not self.membership.lives(entry.client)
            if entry.state == READY or (entry.state in (PLANNED, DROPPING) and nobody):
                self._drop(node, entry)

    def _drop(self, node: int, entry: Entry) -> None:
        """Give back the region of an entry that is READY, or that a dead client was making or
        dropping."""
        directory = self.directories[node]
        try:
            dropping = directory.take(entry, DROPPING, self.membership.ident)
            if dropping is not None:
                self._unlink(node, entry.number)
                self._release(node, self._extent(node, entry.payload)[3])
                # After a kill until here, `sweep` or the next creator of the name ends it.
                directory.give_up(dropping)
        finally:
            directory.let_go(entry.number, self.membership.ident)

    def _release(self, node: int, mark: int) -> None:
        """Give back the blocks with the mark of a region whose entry is void, or being dropped."""
        # CRASH(discarded-region): its blocks carry a mark of no entry; `sweep` frees them.
        if mark not in {mark for _, _, mark in self.extents(node)}:
            self.blocks.release_region(node, mark, self.grace.close_period())

    def extents(self, node: int) -> list[tuple[int, int, int]]:
        """First block, number of blocks and mark of every region of blocks that is made, or being
        made."""
        return self._extents(node, self.directories[node])

    def _extents(self, node: int, entries: Iterable[Entry]) -> list[tuple[int, int, int]]:
        """`extents`, of these entries."""
        found = []
        for entry in entries:
            if entry.state in (PLANNED, READY):
                first, count, _, mark = self._extent(node, entry.payload)
                if count:
                    found.append((first, count, mark))
        return found

    def references(self) -> Words:
        """References to the objects that regions lie in, with those that are being given back."""
        found: list[int] = []
        for directory in self.directories:
            with contextlib.suppress(NodeFailed):  # they went with the node
                found += [entry.link for entry in directory]
        return np.array([reference for reference in found if reference], dtype=np.uint64)

    def blocks_of(self, node: int, entry: Entry) -> int:
        """How many whole blocks the region of an entry has."""
        mark = self._extent(node, entry.payload)[3]
        return int(np.count_nonzero(self.blocks.words(node) == np.uint64(block_word(REGION, mark))))

    def unowned(self, homes: Callable[[], set[bytes] | None]) -> list[tuple[int, Entry, int]]:
        """The regions that are there and belong to no store: node, entry, and a reference to the
        object that the region lies in, or 0.

        `homes()`: those of all stores; None: they are not known. The regions of a store have its
        home as their name, or as the part before PART.
        """
        seen = []
        for node, directory in enumerate(self.directories):
            with contextlib.suppress(NodeFailed):
                seen += [(node, entry) for entry in directory if entry.state in (PLANNED, READY)]
        # ORDER: regions, stores, regions again: a store's entry is there before its first region is
        # planned, and until its last one is gone.
        there = homes()
        if there is None:
            return []
        found = []
        for node, entry in seen:
            home = entry.name.partition(PART.encode())[0]
            if home in there or home.startswith(INTERNAL.encode()):
                continue
            with contextlib.suppress(NodeFailed):
                reference = self._link(node, entry.number)
                if self.directories[node].is_unchanged(entry.number, entry.word):
                    found.append((node, entry, reference))
        return found

    def region_of(self, node: int, block: int) -> int | None:
        """The mark of the region that has the block; None when none has."""
        for first, count, mark in self.extents(node):
            if first <= block < first + count:
                return mark
        return None

    def sweep(self) -> tuple[int, list[int]]:
        """Free blocks of regions that are in no directory any more; how many, and the nodes that
        have backups of blocks of others.

        Also complete the half-done changes of dead clients in directories. Plans are left: the next
        creator of the name carries them out.
        """
        released, backing = 0, []
        for node in range(self.nodes):
            try:
                # ORDER: blocks first, then entries: a region gets its blocks after its entry.
                words = self.blocks.words(node)
                entries = list(self.directories[node])
                marks = {mark for _, _, mark in self._extents(node, entries)}
                self._tidy(node, entries)
            except NodeFailed:
                continue
            kinds = words >> np.uint64(60)
            if np.isin(kinds, BACKUP_KINDS).any():
                backing.append(node)
            stale = {
                int(word)
                for word in words[kinds == REGION].tolist()
                if int(word) & OWNER_MASK not in marks
            }
            for word in stale:
                stamp = self.grace.close_period()
                for block in np.flatnonzero(words == word).tolist():
                    released += self.blocks.move(node, block, word, free_word(stamp))
        return released, backing

    def _tidy(self, node: int, entries: list[Entry]) -> None:
        """Complete what dead clients have half done to these entries."""
        for entry in entries:
            if entry.state == CLAIMED and not self.membership.lives(entry.client):
                self.directories[node].give_up(entry)
            elif entry.state == DROPPING and not self.membership.lives(entry.client):
                self._drop(node, entry)
            elif entry.state == VOID and entry.link:
                self._clear(node, entry)

    def _clear(self, node: int, entry: Entry) -> None:
        """Free the object that a VOID entry still links to."""
        directory = self.directories[node]
        claimed = None
        try:
            # ORDER: claimed before its link is read again, so no creator has it meanwhile.
            claimed = directory.claim_void(entry, self.membership.ident)
            if claimed is not None:
                self._unlink(node, entry.number)
        finally:
            if claimed is not None:
                directory.give_up(claimed)

    def _link(self, node: int, index: int) -> int:
        """The reference to the object that a region lies in, or 0."""
        return self.blocks.endpoint.load(self.directories[node].link(index))

    def _ready(self, node: int, entry: Entry) -> Region | None:
        """The region of an entry that was READY; None: it is given back by now."""
        reference = self._link(node, entry.number)
        # ORDER: the link, then the entry again: a later region of the entry has another link.
        if not self.directories[node].is_unchanged(entry.number, entry.word):
            return None
        return self._region(node, entry.payload, reference)

    def _region(self, node: int, payload: bytes, reference: int) -> Region:
        first, count, size, _ = self._extent(node, payload)
        if count:
            return Region(address(node, self.first_block + first * self.block_size), size)
        if not self.blocks.heap.plausible(reference) or not reference & ADDRESS_MASK:
            raise PoolCorrupt(
                f"{self.membership.pool}: a region of node {node} has no memory; destroy the pool"
            )
        return Region(-(-(reference & ADDRESS_MASK) // _LINE) * _LINE, size)

    def _extent(self, node: int, payload: bytes) -> tuple[int, int, int, int]:
        try:
            first, count, size, mark = _PAYLOAD.unpack(payload)
        except struct.error:
            first = count = size = mark = -1
        in_blocks = (
            count > 0
            and 0 <= first <= self.blocks.count - count
            and (count - 1) * self.block_size < _taken(size) <= count * self.block_size
        )
        in_object = count == 0 and 0 < size <= self.block_size // 2
        if not in_blocks and not in_object:
            raise PoolCorrupt(
                f"{self.membership.pool}: a region of node {node} has impossible bounds; destroy "
                "the pool"
            )
        return first, count, size, mark


def _witness_at(region: Region) -> int:
    return region.address + _taken(region.size) - WITNESS


def _witness(node: int, mark: int) -> int:
    return node + 1 << 48 | mark


def _taken(size: int) -> int:
    """Bytes of a region of this size with its witness."""
    return -(-size // WITNESS) * WITNESS + WITNESS
