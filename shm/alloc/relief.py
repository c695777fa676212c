"""The sources of memory for a client when none is ready: `Relief`.

In this order: the memory of dead clients, its own empty blocks, and blocks that belong to no
client (from the second attempt on also backups that are astray); then freed memory, once the
operations that may be reading it have ended; and, after some attempts, unused blocks of living
clients (reclaim.py).

A full pool refuses again and again, and each search reads all block words and used bits several
times. So a refusal is noted with an image of these, from before its last attempt. While no client
has died and the image is the same, no memory came back since, and the same request is refused at
once. Not if freed memory was waiting for operations that stand still, nor if a file system was
full: these end without a trace in the image.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Final

from limpet.shm.alloc.block_pages import NOWHERE
from limpet.shm.alloc.reclaim import Shortage, end_limbo
from limpet.shm.alloc.slabs import Slab, Slabs, find_freed
from limpet.shm.alloc.spans import Span, Spans
from limpet.shm.endpoint.words import LARGE, recast, replicas_of
from limpet.shm.errors import NodeFailed

if TYPE_CHECKING:
    from limpet.shm.alloc.claims import Claims

PATIENCE: Final = 3
"""Attempts at memory of our own and of no client, before we look at that of living clients."""

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
        self.image: list[bytes] = []
        self.refusals: dict[tuple[object, ...], int] = {}
        """Requests that were refused when memory was as in `image`; which of their sizes it was."""

    def known_refusal(self, request: tuple[object, ...]) -> int | None:
        """Which of the sizes of a request is refused, as nothing has changed; None: search."""
        known = self.refusals.get(request)
        if known is None or self.membership.sweep() or self.table.image() != self.image:
            return None
        return known

    def note_refusal(
        self, request: tuple[object, ...], which: int, before: list[bytes] | None
    ) -> None:
        """A search that began when memory was as in `before` was in vain."""
        if before is None or self.table.pages.unbacked or self._oldest_pending() is not None:
            return
        if before != self.image:
            self.image = before
            self.refusals.clear()
        self.refusals[request] = which

    def reclaim(self, attempt: int, shortage: Shortage, needed: Needed) -> bool:
        """Get memory from any source; False when no more can be had."""
        found = self.make_room(attempt, shortage.node, needed)
        if not found or attempt > PATIENCE:
            found = self.client.pinned(shortage.look) or found
        if not found and not shortage.waited:
            shortage.waited = True
            found = self._await_period(self.grace.close_period(), shortage.node)
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
        return self._await_period(waiting, node)

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
        for node in range(self.membership.parameters.nodes):
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
        epochs += self.table.stamps(self.grace.horizon(), self.membership.parameters.nodes)
        return min(epochs) if epochs else None

    def _await_period(self, epoch: int, node: int) -> bool:
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

    def why_full(self, node: int, size: int, refused: int) -> str:
        """The message of StoreFull, when there is no memory for an object of this size. `refused`:
        the node whose file system had no room for pages, or NOWHERE."""
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
            why = (
                "delete an entry of about this size for each that is to be put, or so many of "
                f"other sizes that a run of {run} bytes in whole blocks is empty, or create the "
                "pool with larger nodes"
            )
        text = (
            f"{self.membership.pool}: node {node} has no room for an object of {size} bytes; {why}"
        )
        held = [
            self.membership.process(laggard.slot, laggard.word)
            for laggard in self.grace.pinned()
            if not self.membership.ours(laggard.slot)
        ]
        if held:
            text += (
                f" (memory may be held back by processes inside an operation: {', '.join(held)})"
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
