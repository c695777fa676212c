"""Named regions: runs of blocks that hold one store's index, found through the node's directory.

Payload of a region's directory entry: four words: first block, number of blocks, bytes, mark. The
mark (40 random bits and the entry's number) is also in the region's block words, so that a block
can be told from one of an earlier region of the same name.

A region is READY only after it is filled with zeros and made by its store; from then on it stays.
"""

from __future__ import annotations

import secrets
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from limpet.shm.directory import PLANNED, READY, Directory
from limpet.shm.errors import NodeFailed, PoolCorrupt, StoreFull, StoreMismatch
from limpet.shm.layout import REGION_ENTRIES, REGION_ENTRY_SIZE, address
from limpet.shm.states import FORMER, generation_of
from limpet.shm.words import OWNER_MASK, REGION, free_word

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet.shm.blocks import BlockTable
    from limpet.shm.epoch import Grace
    from limpet.shm.membership import Membership

_PAYLOAD: Final = struct.Struct("<4Q")
INTERNAL: Final = "."
"""What names of limpet's own stores begin with, for which there is a reserve."""
_ZEROS: Final = bytes(1 << 16)


class Region(NamedTuple):
    """Where a region lies: address of its first byte, its size in bytes."""

    address: int
    size: int


class Regions:
    """The region directories of a pool's nodes."""

    def __init__(
        self, blocks: BlockTable, grace: Grace, membership: Membership, nodes: int
    ) -> None:
        self.blocks = blocks
        self.grace = grace
        self.membership = membership
        self.nodes = nodes
        layout = blocks.heap.layout
        self.block_size = layout.block_size
        self.first_block = layout.blocks
        self.directories = [
            Directory(
                blocks.endpoint,
                address(node, layout.region_directory),
                REGION_ENTRIES,
                REGION_ENTRY_SIZE,
                f"{membership.pool}: region directory of node {node}",
            )
            for node in range(nodes)
        ]

    def obtain(
        self, node: int, name: str, size: int, make: Callable[[Region], None] | None = None
    ) -> Region:
        """The region of that name on `node`, `size` bytes; made, zero-filled, if it was not there.

        Raises StoreFull when the node has no run of free blocks that long, StoreMismatch when the
        region exists with another size.
        """
        client = self.membership.ident
        count = -(-size // self.block_size)
        spared = 0 if name.startswith(INTERNAL) else self.blocks.reserve

        def plan(index: int) -> bytes:
            first = None
            if not spared or self.blocks.free_count(node) >= count + spared:
                first = self.blocks.claim_run(
                    node, count, client, self.grace.horizon(), coherent=True
                )
            if first is None:
                mend = "create the pool with larger nodes"
                if self.blocks.unbacked:
                    mend = "its file system is full, make room there"
                raise StoreFull(
                    f"{self.membership.pool}: node {node} has no {count} adjacent free blocks of "
                    f"{self.block_size} bytes for {name!r}; {mend}"
                )
            return _PAYLOAD.pack(first, count, size, secrets.randbits(40) << 8 | index)

        def build(index: int, payload: bytes) -> None:
            first, count, size, mark = self._extent(node, payload)
            self.blocks.make_region(node, first, count, client, mark)
            region = self._region(node, first, size)
            for done in range(0, size, len(_ZEROS)):
                self.blocks.endpoint.write(
                    region.address + done, _ZEROS[: min(len(_ZEROS), size - done)]
                )
                self.membership.progress()
            if make is not None:
                make(region)

        undone: list[int] = []

        def undo(index: int, payload: bytes) -> None:
            undone.append(self._extent(node, payload)[3])

        try:
            entry, _ = self.directories[node].obtain(
                name.encode(), self.membership, plan, build, undo
            )
        except BaseException:
            # ORDER: the entry is void before its blocks are free, or the next creator would carry
            # out a plan on blocks that are somebody else's by then.
            for mark in undone:
                self._release(node, mark)
            raise
        first, _, size_there, _ = self._extent(node, entry.payload)
        if size_there != size:
            raise StoreMismatch(
                f"{self.membership.pool}: region {name!r} of node {node} has {size_there} bytes, "
                f"not {size}"
            )
        return self._region(node, first, size)

    def find(self, node: int, name: str) -> Region | None:
        """The region of that name on `node`, or None."""
        entry = self.directories[node].find(name.encode())
        if entry is None:
            return None
        first, _, size, _ = self._extent(node, entry.payload)
        return self._region(node, first, size)

    def attach(self, node: int, name: str, obtain: Callable[[], int]) -> int:
        """Address of a region that is there since its store was made; `obtain` gives it.

        If it is lost, an address on the lost node; if it is gone with what the node had before it
        was replaced, one that is FORMER (states.py).
        """
        try:
            replaced = generation_of(self.blocks.endpoint.expected(node)) > 0
            if replaced and self.find(node, name) is None:
                return FORMER | address(node, 0)
            return obtain()
        except NodeFailed:
            return address(node, 0)

    def discard(self, node: int, name: str) -> None:
        """Give back the region of that name, which no store uses."""
        entry = self.directories[node].discard(name.encode())
        if entry is not None:
            self._release(node, self._extent(node, entry.payload)[3])

    def _release(self, node: int, mark: int) -> None:
        """Give back the blocks with the mark of a region whose entry is void."""
        # CRASH(discarded-region): its blocks carry a mark of no entry; `sweep` frees them.
        if mark not in {mark for _, _, mark in self.extents(node)}:
            self.blocks.release_region(node, mark, self.grace.close_period())

    def extents(self, node: int) -> list[tuple[int, int, int]]:
        """First block, number of blocks and mark of every region that is, or is being, made."""
        found = []
        for entry in self.directories[node]:
            if entry.state in (PLANNED, READY):
                first, count, _, mark = self._extent(node, entry.payload)
                found.append((first, count, mark))
        return found

    def region_of(self, node: int, block: int) -> int | None:
        """The mark of the region that has the block; None when none has."""
        for first, count, mark in self.extents(node):
            if first <= block < first + count:
                return mark
        return None

    def sweep(self) -> int:
        """Free blocks of regions that are in no directory any more; how many."""
        released = 0
        for node in range(self.nodes):
            try:
                # ORDER: blocks first, then entries: a region gets its blocks after its entry.
                words = self.blocks.words(node)
                marks = {mark for _, _, mark in self.extents(node)}
            except NodeFailed:
                continue
            stale = {
                int(word)
                for word in words[words >> np.uint64(60) == REGION].tolist()
                if int(word) & OWNER_MASK not in marks
            }
            for word in stale:
                stamp = self.grace.close_period()
                for block in np.flatnonzero(words == word).tolist():
                    released += self.blocks.move(node, block, word, free_word(stamp))
        return released

    def _region(self, node: int, first: int, size: int) -> Region:
        return Region(address(node, self.first_block + first * self.block_size), size)

    def _extent(self, node: int, payload: bytes) -> tuple[int, int, int, int]:
        try:
            first, count, size, mark = _PAYLOAD.unpack(payload)
        except struct.error:
            first = count = size = mark = -1
        if not (
            count > 0
            and 0 <= first <= self.blocks.count - count
            and (count - 1) * self.block_size < size <= count * self.block_size
        ):
            raise PoolCorrupt(
                f"{self.membership.pool}: a region of node {node} has impossible bounds; destroy "
                "the pool"
            )
        return first, count, size, mark
