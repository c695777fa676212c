"""How a client gets blocks and gives them back: `Claims`, `Spans`, and `Relief` when none is free.

`Claims` are the steps of blocks.py, done for one client.

A span (`Span`) is a run of adjacent blocks with one object. It is `ready` until the object is
taken; when its used bit is clear again, the period is closed (clients/epoch.py), and once that is
over the span is ready for another object of as many blocks, or the blocks are given back.

`Relief` is asked for memory when none is ready. It tries these sources, in this order: the memory
of dead clients, its own empty blocks, and blocks that belong to no client (from the second attempt
on also backups that are astray); then freed memory, once the operations that may be reading it have
ended; and, after some attempts, unused blocks of living clients (reclaim.py).

A full pool refuses again and again, and each search reads all block words and used bits several
times. So a refusal is noted with an image of these, from before its last attempt. While no client
has died and the image is the same, no memory came back since, and the same request is refused at
once. A refusal is not noted if freed memory was waiting for operations that stand still, or if a
file system was full: both end without a trace in the image.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any, Final

from limpet.shm.alloc.reclaim import Shortage, blocks_in_words, end_limbo, kept_in_words
from limpet.shm.alloc.slabs import Slab, Slabs, find_freed
from limpet.shm.endpoint.layout import EXACTLY, NODE_SHIFT, RINGS
from limpet.shm.endpoint.words import (
    LARGE,
    LARGE_CLASS,
    SLAB,
    block_word,
    recast,
    replica_bits,
    replicas_of,
)
from limpet.shm.errors import NodeFailed
from limpet.shm.pages import NOWHERE

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

    def others(self, node: int, replicas: int) -> list[int]:
        """The nodes in service that take what belongs on this one when it has no memory for that:
        those that were added (shm/growth.py), in rings that are open and have room for so many
        replicas. Objects of such a node may also lie on those that the pool was made with.

        Another node comes first for each node, so that all are used alike.
        """
        placement, endpoint = self.heap.placement, self.endpoint
        found: list[int] = []
        for number, ring in enumerate(placement.rings):
            if not ring.is_open:
                ring = placement.look_again(number, endpoint.load(RINGS + 8 * (number - 1)))
            serves = ring.first < placement.nodes and (number or node >= ring.count)
            if ring.is_open and ring.count >= replicas and serves:
                found += ring.nodes
        if not found:
            return found
        start = node % len(found)
        return [
            other
            for other in (*found[start:], *found[:start])
            if other != node
            and not endpoint.failed(other << NODE_SHIFT)
            and not endpoint.lost(other)
        ]

    def nodes_for(self, node: int, replicas: int) -> list[int]:
        """The node, then its `others`, unless it is to be EXACTLY this one."""
        if node & EXACTLY or self.heap.placement.nodes == self.heap.placement.rings[0].count:
            return [node & EXACTLY - 1]
        return [node, *self.others(node, replicas)]

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
        fresh = not sparing or (
            sparing < self.table.count and self.has_free(node, replicas, sparing + 1)
        )
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
            free = self.free_count(node, replicas) if sparing < most else 0
            most = max(free - sparing, 0)
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


class Span:
    """A run of whole blocks of this client's, for one object."""

    def __init__(self, node: int, first: int, blocks: int, replicas: int) -> None:
        self.node = node
        self.first = first
        self.blocks = blocks
        self.replicas = replicas
        self.ready = True
        self.pending_epoch = -1
        self._reference = 0

    def reference(self, heap: Any) -> int:
        """Reference to the object."""
        if not self._reference:
            bare: int = heap.reference(self.node, self.first, LARGE_CLASS, 0)
            self._reference = bare | replica_bits(self.replicas)
        return self._reference

    @property
    def shape(self) -> tuple[int, int, int]:
        """Its node, its number of blocks, and of replicas."""
        return self.node, self.blocks, self.replicas

    def serves(self, node: int, blocks: int, replicas: int) -> bool:
        """Whether its object is free, and has these parameters."""
        return self.ready and self.shape == (node, blocks, replicas)


class Spans:
    """The spans of a client."""

    def __init__(self, claims: Claims) -> None:
        self.claims = claims
        self.client = claims.client
        self.heap = claims.heap
        self.grace = claims.grace
        self.owned: list[Span] = []

    def take(self, node: int, blocks: int, replicas: int) -> int:
        """A reference to the object of a span, in the client journal; 0: none is ready. Within an
        operation."""
        for span in self.owned:
            if span.serves(node, blocks, replicas):
                reference = span.reference(self.heap)
                # ORDER: first; a span that is ready is given back, or taken again.
                span.ready = False
                self.client.log(reference, 0)
                self.heap.take(reference)
                return reference
        return 0

    def make_ready(self, node: int, blocks: int, replicas: int, count: int, sparing: int) -> bool:
        """Make `count` such objects ready; False: there is no memory for all of them. `sparing`:
        leave so many free blocks of the node."""
        ready = sum(span.serves(node, blocks, replicas) for span in self.owned)
        for span in self._freed():
            if ready < count and span.shape == (node, blocks, replicas):
                # ORDER: the period is over: no client reads the object that was there.
                span.pending_epoch = -1
                span.ready = True
                ready += 1
        if ready >= count:
            return True
        self.release_freed()
        while ready < count:
            first = self.claims.span(node, blocks, replicas, sparing)
            if first is None:
                return False
            self.own(Span(node, first, blocks, replicas))
            self.claims.sight_laggard(min(self.pending(), default=0))
            ready += 1
        return True

    def own(self, new: Span) -> None:
        """Note a span as this client's, in place of its earlier notes on these blocks."""
        known = [s for s in self.owned if (s.node, s.first) != (new.node, new.first)]
        self.owned = [*known, new]

    def forget_taken(self) -> None:
        """Forget the spans that other clients have taken."""
        claims = self.claims
        self.owned = [
            span
            for span in self.owned
            if claims.owns(span.node, span.first, claims.span_word(span.replicas))
        ]

    def pending(self) -> list[int]:
        """The epochs for which spans with a freed object wait."""
        return [span.pending_epoch for span in self.owned if span.pending_epoch >= 0]

    def release_freed(self) -> bool:
        """Give back the blocks of spans whose object was freed, ours and dead clients'."""
        return self._release(self._freed())

    def _freed(self) -> list[Span]:
        """The spans whose object was freed, and is read by no client any more."""
        for span in self.owned:
            if not span.ready and span.pending_epoch < 0:
                try:
                    if not self.heap.used(span.reference(self.heap)):
                        span.pending_epoch = self.grace.close_period()
                except NodeFailed:
                    pass
        horizon = self.grace.horizon()
        return [span for span in self.owned if 0 <= span.pending_epoch < horizon]

    def release_ready(self) -> bool:
        """Give back the blocks of spans without an object."""
        return self._release([span for span in self.owned if span.ready])

    def _release(self, spans: list[Span]) -> bool:
        for span in spans:
            # ORDER: forget the span before it is free, as for a slab (`Relief`).
            self.owned.remove(span)
            with contextlib.suppress(NodeFailed):  # then the blocks are gone with it
                self.claims.release(span.node, span.first, self.claims.span_word(span.replicas))
        return bool(spans)


PATIENCE: Final = 3
"""Attempts at memory of our own and of no client, before we look at that of living clients."""

LOOKS: Final = 16
"""When few blocks are free, a client looks again after so many requests."""
Needed = dict[int, int]
"""Objects that the caller needs, by kind of slab: blocks for them are not given back."""


class Relief:
    """Gets memory for one client, which has these slabs and spans."""

    def __init__(self, claims: Claims, slabs: Slabs, spans: Spans) -> None:
        self.claims = claims
        self.client = claims.client
        self.table = claims.table
        self.grace = claims.grace
        self.membership = claims.membership
        self.slabs = slabs
        self.spans = spans
        self.scarce: dict[int, int] = {}
        """Nodes of which few blocks were free at the last look, which has read all words: for how
        many requests they are not looked at again."""
        self.image: list[bytes] = []
        self.refusals: dict[tuple[object, ...], str] = {}
        """Requests that were refused when memory was as in `image`, and what was said."""

    def is_scarce(self, node: int, replicas: int, enough: int) -> bool:
        """Whether fewer than `enough` blocks of a node are free, or were at one of the last LOOKS
        requests."""
        left = self.scarce.pop(node, 0)
        if left:
            self.scarce[node] = left - 1
            return True
        if self.claims.has_free(node, replicas, enough):
            return False
        self.scarce[node] = LOOKS
        return True

    def known_refusal(self, request: tuple[object, ...]) -> str:
        """The message that refuses a request, as nothing has changed since; "": search."""
        known = self.refusals.get(request, "")
        if not known or self.membership.sweep() or self.table.image() != self.image:
            return ""
        return known

    def note_refusal(
        self, request: tuple[object, ...], why: str, before: list[bytes] | None
    ) -> None:
        """A search that began when memory was as in `before` was in vain, as `why` says."""
        if before is None or self.table.pages.unbacked or self._oldest_pending() is not None:
            return
        if before != self.image:
            self.image = before
            self.refusals.clear()
        self.refusals[request] = why

    def reclaim(self, attempt: int, shortage: Shortage, needed: Needed) -> bool:
        """Get memory from any source; False when no more can be had."""
        found = self.make_room(attempt, shortage.node, needed)
        if not found or attempt > PATIENCE:
            found = self.client.pinned(shortage.take_unchanged) or found
        if not found and not shortage.waited:
            shortage.waited = True
            found = self.await_period(self.grace.close_period(), shortage.node)
        return found

    def take(self, attempt: int, shortage: Shortage, found: bool) -> bool:
        """As the last part of `reclaim`, of another node than the one that was asked for; `found`:
        there is memory elsewhere."""
        if found and attempt <= PATIENCE:
            return True
        with contextlib.suppress(NodeFailed):
            return bool(self.client.pinned(shortage.take_unchanged)) or found
        return found

    def make_room(self, attempt: int, node: int, needed: Needed) -> bool:
        """Get memory that we do not use, or that no client has; False when there is none."""
        found = bool(self.membership.sweep()) | self.release_empty(needed)
        # Blocks that are astray are few and take long to find: of lost nodes, and of clients that
        # were declared dead.
        found |= self.adopt_abandoned(astray=attempt > 1)
        if found:
            return True
        if attempt == 1:
            return True  # pending objects may be ready by now
        waiting = self._oldest_pending()
        if waiting is None:
            return False
        return self.await_period(waiting, node)

    def release_empty(self, needed: Needed) -> bool:
        """Give back every block of which all objects are ready, and spans without an object."""
        released = self.spans.release_freed()
        for kind, slabs in self.slabs.kinds.items():
            try:
                find_freed(slabs, self.grace)
            except NodeFailed:
                for slab in list(slabs):
                    self.slabs.drop(slab)  # the slab is gone with its node
                continue  # there may be room on other nodes
            for slab in _not_needed(slabs, needed.get(kind, 0), self.claims.heap.page_class):
                # ORDER: we forget the block before it is free: an exception in between costs a
                # block until we leave; in the other order we would use a block that is not ours.
                self.slabs.drop(slab)
                released = self._release_slab(slab) or released
        return self.spans.release_ready() or released

    def _release_slab(self, slab: Slab) -> bool:
        word = self.claims.slab_word(slab.size_class, slab.replicas)
        try:
            return self.claims.release(slab.node, slab.block, word) > 0
        except NodeFailed:
            return False

    def adopt_abandoned(self, astray: bool = True) -> bool:
        """Give back blocks without an owner and without an object in use; spans in due time.

        `astray`: also backups whose primaries do not belong to them.
        """
        adopted = False
        for node in range(self.claims.heap.placement.nodes):
            with contextlib.suppress(NodeFailed):
                adopt = functools.partial(self._adopt_abandoned_on, node, astray)
                found: bool = self.client.pinned(adopt)
                adopted = found or adopted
        return adopted

    def _adopt_abandoned_on(self, node: int, astray: bool) -> bool:
        ident = self.client.ident
        freed = end_limbo(self.table, node, ident, self.grace)
        if astray:
            freed += self.table.groups.sweep(node)
        freed += self.table.free_abandoned_slabs(node, ident, self.grace)
        for first, word in list(self.table.abandoned_spans(node)):
            if self.table.move(node, first, word, recast(word, LARGE, ident)):
                span = Span(node, first, 0, replicas_of(word))
                span.ready = False
                self.spans.own(span)
                freed += 1
        return freed > 0

    def _oldest_pending(self) -> int | None:
        """The epoch that ends the oldest period for which memory waits; None: no memory waits."""
        epochs = [slab.pending_epoch for slab in self.slabs.all() if slab.pending_count]
        epochs += self.spans.pending()
        epochs += self.table.stamps(self.grace.horizon(), self.claims.heap.placement.nodes)
        return min(epochs) if epochs else None

    def await_period(self, epoch: int, node: int) -> bool:
        """Wait until no client is pinned at `epoch`, or until there are free blocks on `node` that
        are ready to be used; False when a client stands still and may stay."""
        ready = self._claimable_count(node)
        attempt = 0
        while laggards := self.grace.laggards(epoch):
            left = [laggard for laggard in laggards if not self.membership.hurry(laggard)]
            if any(self.membership.stands_still("memory", laggard) for laggard in left):
                return False
            if not left:
                continue
            attempt += 1
            self.claims.endpoint.pause(attempt)
            if self._claimable_count(node) > ready:
                break
        return True

    def _claimable_count(self, node: int) -> int:
        return int(self.table.claimable(self.table.words(node), self.grace.horizon()).sum())

    def why_full(
        self, nodes: list[int], size: int, refused: int, sparing: int, replicas: int
    ) -> str:
        """The message of StoreFull, when none of the nodes has memory for an object of this size,
        with so many replicas: the one where it belongs, and its `others`. `refused`: the node whose
        file system had no room for pages, or NOWHERE. `sparing`: so many free blocks are to be left
        for others."""
        node, others = nodes[0], sorted(nodes[1:])
        if refused == node:
            why = "its file system is full; make room there, or delete entries"
        elif refused != NOWHERE:
            why = (
                f"the file system of node {refused}, which is to have a replica, is full; make "
                "room there, or delete entries"
            )
        else:
            block = self.claims.heap.block_size
            run = -(-size // block) * block  # whole blocks
            ident, horizon = self.client.ident, self.grace.horizon()
            spared = sparing if replicas == 1 else 0
            held = blocks_in_words(self.table, node, ident, horizon, spared)
            if replicas > 1:
                usable = self.claims.free_count(node, replicas)
                held += (
                    f"; free also where the other replicas would be: {usable}"
                    f"{kept_in_words(usable, sparing)}"
                )
            way = "pool.add_node(), `limpet add-node`"
            if replicas > 1:
                way = f"pool.add_node(count={replicas}), `limpet add-node --count {replicas}`"
            why = (
                f"{held}. Delete an entry of about this size for each "
                f"that is to be put, or so many of other sizes that a run of {run} bytes in whole "
                f"blocks is empty, or add nodes to the pool: {way}"
            )
        text = f"{self.membership.pool}: node {node} has no room for an object of {size} bytes"
        if others:
            text += f", nor have nodes {', '.join(map(str, others))}, which take what it has not"
        elif replicas > 1 and len(self.claims.heap.placement.rings) > 1:
            text += f", and no added node takes one of {replicas} replicas"
        text += f"; {why}"
        inside = [
            self.membership.process(laggard.slot, laggard.word)
            for laggard in self.grace.pinned()
            if not self.membership.ours(laggard.slot)
        ]
        if inside:
            text += (
                f" (memory may be held back by processes inside an operation: {', '.join(inside)})"
            )
        return text


def _not_needed(slabs: list[Slab], least: int, page_class: int) -> list[Slab]:
    """Empty slabs of a kind, but for those that the caller needs for `least` objects, or pages: the
    last in memory."""
    empty = [slab for slab in slabs if slab.ready_count == slab.count]
    if least and empty:
        if empty[0].size_class != page_class:  # pages that are left need not be a run
            least -= sum(slab.ready_count for slab in slabs if slab.ready_count < slab.count)
        empty.sort(key=lambda slab: slab.block)
        while least > 0 and empty:
            kept = empty.pop()
            least -= kept.count - kept.barred
    return empty
