"""Claiming blocks for a client and giving them back (blocks.py has the steps): `Claims`."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from limpet.shm.endpoint.words import LARGE, LARGE_CLASS, SLAB, block_word
from limpet.shm.errors import NodeFailed

if TYPE_CHECKING:
    from limpet.shm.alloc.blocks import BlockTable
    from limpet.shm.alloc.slabs import Runs
    from limpet.shm.clients.epoch import Grace
    from limpet.shm.clients.membership import Membership


class Claims:
    """The claims of one client. `bounded`: only blocks in the hardware-coherent range."""

    def __init__(
        self, client: Any, table: BlockTable, grace: Grace, membership: Membership, bounded: bool
    ) -> None:
        self.client = client
        self.endpoint = client.heap.endpoint
        self.heap = client.heap
        self.table = table
        self.grace = grace
        self.membership = membership
        self.bounded = bounded

    def free_count(self, node: int, replicas: int) -> int:
        """How many blocks of the node are free; with replicas, those whose backups are, too."""
        if replicas == 1:
            return self.table.free_count(node)
        self.table.pages.begin_claim()  # count blocks without pages, too
        look = self.table.groups.usable
        return int(self.client.pinned(lambda: look(node, replicas, self.grace.horizon()).sum()))

    def has_free(self, node: int, replicas: int, count: int) -> bool:
        """Whether at least so many blocks of a node are free, as `free_count` has it."""
        if replicas == 1:
            return bool(self.table.has_free(node, count, 1, 0))
        self.table.pages.begin_claim()  # as in `free_count`
        look = self.table.has_free
        return bool(self.client.pinned(lambda: look(node, count, replicas, self.grace.horizon())))

    def slab(
        self, node: int, size_class: int, replicas: int, sparing: int, adopt: bool
    ) -> tuple[int, bool, int] | None:
        """A block for objects of a class, whether it was adopted and has objects in use, and how
        many of its first bytes have pages; None: there is none. `sparing`: leave so many free
        blocks of the node. `adopt`: also a block without an owner."""
        wanted = (node, size_class, self.client.ident, self.grace.horizon(), replicas)
        bounded = self.bounded
        fresh = not sparing or self.has_free(node, replicas, sparing + 1)
        if replicas == 1:
            return self.table.claim_slab(*wanted, coherent=bounded, fresh=fresh, adopt=adopt)
        found: tuple[int, bool, int] | None = self.client.pinned(
            lambda: self.table.claim_slab(*wanted, coherent=bounded, fresh=fresh, adopt=adopt)
        )
        return found

    def pages(
        self, node: int, counts: list[int], replicas: int, sparing: int, runs: Runs, adopt: bool
    ) -> list[tuple[int, bool]]:
        """Blocks that are cut into pages, for the longest of runs of so many pages that is not
        ready, as `BlockTable.claim_pages` has it: with pages of `runs` that are left by those that
        fit there.
        `sparing`: leave so many free blocks of the node. `adopt`: also blocks without an owner."""
        most = self.table.count
        if sparing:
            most = max(self.free_count(node, replicas) - sparing, 0)
        own, longest = runs.ready_beside(counts)
        claim = functools.partial(
            self.table.claim_pages,
            node, longest, self.client.ident, self.grace.horizon(), replicas,
            coherent=self.bounded, own=own, most=most, adopt=adopt,
        )  # fmt: skip
        if replicas == 1:
            return claim()  # also for the client that fills a new node, which is pinned
        found: list[tuple[int, bool]] = self.client.pinned(claim)
        return found

    def span(self, node: int, blocks: int, replicas: int, sparing: int) -> int | None:
        """The first of so many adjacent blocks, which are one object; None: there are none."""
        horizon = self.grace.horizon()
        if replicas == 1:
            return self._span(node, blocks, replicas, horizon, sparing)
        found: int | None = self.client.pinned(
            lambda: self._span(node, blocks, replicas, horizon, sparing)
        )
        return found

    def _span(
        self, node: int, blocks: int, replicas: int, horizon: int, sparing: int
    ) -> int | None:
        ident = self.client.ident
        if sparing and self.free_count(node, replicas) < blocks + sparing:
            return None
        first = self.table.claim_run(
            node, blocks, ident, horizon, coherent=self.bounded, replicas=replicas
        )
        if first is not None:
            self.table.make_span(node, first, blocks, ident, replicas)
        return first

    def slab_word(self, size_class: int, replicas: int) -> int:
        """The word of a block of this client's that is cut into objects of this class."""
        return block_word(SLAB, self.client.ident, size_class, replicas)

    def span_word(self, replicas: int) -> int:
        """The word of the first block of a span of this client's."""
        return block_word(LARGE, self.client.ident, LARGE_CLASS, replicas)

    def owns(self, node: int, block: int, mine: int) -> bool:
        """Whether the block has this word still; False, too, if its node is lost."""
        try:
            return int(self.endpoint.load(self.heap.table_word(node, block))) == mine
        except NodeFailed:
            return False

    def release(self, node: int, first: int, word: int) -> int:
        """Give back a slab or a span of ours in which nothing is in use; how many blocks."""
        ident = self.client.ident
        released = self.client.pinned(lambda: self.table.release(node, first, word, 0, ident))
        return int(released)

    def sight_laggard(self, epoch: int) -> None:
        """Note the client that keeps the memory of this epoch from being used again; other memory
        is used instead. When there is no other memory, and the client has stood still for a lease
        by then, no client waits for it any more. 0: no memory is kept."""
        laggards = self.grace.laggards(epoch) if epoch else []
        if laggards:
            oldest = min(laggards, key=lambda laggard: laggard.epoch)
            self.membership.stands_still("memory", oldest)
