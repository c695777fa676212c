"""The second level of memory management: one client's objects (fusee.txt section 4.4).

A client cuts each block that it owns into objects of one size class and is the only one to allocate
from it. What it knows of its blocks is private and lost with it; the used bits (heap.py) are not,
and they are all that recovery needs.

Private, for each block (`Slab`): `ready`, a bitmap of objects that are free and that nobody can
still be reading, and `pending`, those that were seen free when period `pending_epoch` was closed.
Objects move from "used bit cleared by anyone" to pending to ready, when the grace period
(epoch.py) is over.

`allocate` is the fast path, inside an operation: it takes a ready object, in hand first, then
marked used. It returns 0 when there is none; then the operation ends, `replenish` is called
outside of any pin (it may wait for others, and recover or fence them), and the operation starts
again.

Others who need memory may take a block from its owner (pressure.py). `allocate` notices that by one
word, the pressure; so what is known here of a block counts only until that word changes, and a
block that was taken and is then claimed again begins anew.
"""

from __future__ import annotations

import contextlib
from array import array
from typing import TYPE_CHECKING, Any, Final

from limpet.shm.epoch import NEVER
from limpet.shm.errors import NodeFailed, StoreFull
from limpet.shm.fabric import bit, lowest_bit
from limpet.shm.layout import PRESSURE
from limpet.shm.pressure import Hunger, end_limbo
from limpet.shm.words import FREE, LARGE, LARGE_CLASS, SLAB, block_word

if TYPE_CHECKING:
    from limpet.shm.blocks import BlockTable
    from limpet.shm.epoch import Grace
    from limpet.shm.membership import Membership

SLACK_SHARE: Final = 8
"""A class is replenished to at least 1/8 of its objects ready, if there is memory."""
ATTEMPTS_MAX: Final = 64
"""How often memory may turn up that is of no use to us before we call the node full."""
PATIENCE: Final = 3
"""Attempts at memory of our own and of nobody before we look at that of living clients."""


class Slab:
    """A block of this client's, cut into objects of one class."""

    def __init__(self, heap: Any, node: int, block: int, size_class: int, fresh: bool) -> None:
        self.heap = heap
        self.node = node
        self.block = block
        self.size_class = size_class
        self.count = heap.object_count(size_class)
        self.words = (self.count + 63) // 64
        self.ready = array("Q", bytes(8 * self.words))
        self.pending = array("Q", bytes(8 * self.words))
        self.pending_epoch = 0
        self.pending_count = 0
        self.ready_count = 0
        self.cursor = 0
        if fresh:
            for index in range(self.words):
                self.ready[index] = self.valid(index)
            self.ready_count = self.count

    def valid(self, index: int) -> int:
        """The bits of word `index` that stand for objects."""
        rest = self.count - 64 * index
        return 0xFFFF_FFFF_FFFF_FFFF if rest >= 64 else bit(rest) - 1

    def pop(self) -> int:
        """A reference to a ready object, ready no more; 0 when there is none."""
        while self.ready_count:
            word = self.ready[self.cursor]
            if word:
                bit = lowest_bit(word)
                self.ready[self.cursor] = word & (word - 1)
                self.ready_count -= 1
                return self.heap.reference(
                    self.node, self.block, self.size_class, 64 * self.cursor + bit
                )
            self.cursor += 1
            if self.cursor == self.words:
                self.cursor = 0
        return 0

    def look(self) -> int:
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
        """What is pending is ready, if nobody is pinned at its period or before."""
        if self.pending_count and self.pending_epoch < horizon:
            for index in range(self.words):
                self.ready[index] |= self.pending[index]
                self.pending[index] = 0
            self.ready_count += self.pending_count
            self.pending_count = 0


class Span:
    """A run of whole blocks of this client's, for one object."""

    def __init__(self, node: int, first: int, blocks: int) -> None:
        self.node = node
        self.first = first
        self.blocks = blocks
        self.ready = True
        self.pending_epoch = -1


class Allocator:
    """One client's blocks. `table`, `grace`, `membership`: the pool's."""

    def __init__(
        self, client: Any, table: BlockTable, grace: Grace, membership: Membership
    ) -> None:
        self.client = client
        self.heap = client.heap
        self.table = table
        self.grace = grace
        self.membership = membership
        self.forget()

    def forget(self) -> None:
        """Start anew, owning nothing: after a fork, and when the client has left."""
        self.slabs: dict[int, list[Slab]] = {}
        self.current: list[Slab | None] = [None] * (self.membership.parameters.nodes * 256)
        self.spans: list[Span] = []
        self.pressure = 0

    # ---- inside an operation --------------------------------------------------------------------

    def allocate(self, node: int, size: int) -> int:
        """A reference to an object of at least `size` bytes on `node`, in hand; 0: replenish."""
        # ORDER: under the pin; who sees the pressure unchanged is waited for by who raised it.
        if self.heap.endpoint.load(PRESSURE) != self.pressure:
            self._forget_taken()
        size_class = self.heap.size_class(size)
        if size_class == LARGE_CLASS:
            return self._allocate_span(node, size)
        slab = self.current[node << 8 | size_class]
        if slab is None or not slab.ready_count:
            slab = self._next_slab(node, size_class)
            if slab is None:
                return 0
        reference = slab.pop()
        self.client.hold(reference, 0)
        self.heap.take(reference)
        return reference

    def _next_slab(self, node: int, size_class: int) -> Slab | None:
        for slab in self.slabs.get(node << 8 | size_class, ()):
            if slab.ready_count:
                self.current[node << 8 | size_class] = slab
                return slab
        return None

    def _forget_taken(self) -> None:
        """Forget the blocks that others have taken from us."""
        lane = self.heap.endpoint.background(True)
        try:
            pressure = self.heap.endpoint.load(PRESSURE)
            # ORDER: the words after the pressure, which stands for them until it changes.
            for slabs in self.slabs.values():
                for slab in list(slabs):
                    if not self._owns(slab.node, slab.block, SLAB, slab.size_class):
                        self._drop(slab)
            self.spans = [s for s in self.spans if self._owns(s.node, s.first, LARGE, 0)]
            self.pressure = pressure
        finally:
            self.heap.endpoint.background(lane)

    def _owns(self, node: int, block: int, kind: int, size_class: int) -> bool:
        mine = block_word(kind, self.client.ident, size_class)
        try:
            return int(self.heap.endpoint.load(self.heap.table_word(node, block))) == mine
        except NodeFailed:
            return False

    def _drop(self, slab: Slab) -> None:
        key = slab.node << 8 | slab.size_class
        self.slabs[key].remove(slab)
        if self.current[key] is slab:
            self.current[key] = None

    def _blocks_for(self, size: int) -> int:
        return -(-size // self.heap.layout.block_size)

    def _allocate_span(self, node: int, size: int) -> int:
        blocks = self._blocks_for(size)
        for span in self.spans:
            if span.ready and span.node == node and span.blocks == blocks:
                reference = self.heap.reference(node, span.first, LARGE_CLASS, 0)
                self.client.hold(reference, 0)
                self.heap.take(reference)
                span.ready = False
                return reference
        return 0

    # ---- between operations ---------------------------------------------------------------------

    def replenish(self, node: int, size: int) -> None:
        """Make an object of `size` bytes ready on `node`.

        Raises StoreFull when the node has no memory for it, even after recovering the dead and
        waiting for the slow; NodeFailed when the node is lost.
        """
        self.client.begin()
        lane = self.heap.endpoint.background(True)
        try:
            self.membership.sweep_sometimes()
            hunger = Hunger(
                self.table, self.grace, self.client.ident, node, self.heap.size_class(size)
            )
            attempt = 0
            while not self._try(node, size, attempt > 0):
                attempt += 1
                if attempt > ATTEMPTS_MAX or not self._find_room(attempt, hunger):
                    raise StoreFull(self._why_full(node, size))
        finally:
            self.heap.endpoint.background(lane)
            self.client.end()

    def _try(self, node: int, size: int, thrifty: bool) -> bool:
        size_class = self.heap.size_class(size)
        if size_class == LARGE_CLASS:
            return self._try_span(node, self._blocks_for(size))
        key = node << 8 | size_class
        slabs = self.slabs.setdefault(key, [])
        self._reclaim(slabs)
        ready = sum(slab.ready_count for slab in slabs)
        total = sum(slab.count for slab in slabs)
        if ready and (thrifty or ready * SLACK_SHARE >= total):
            return True
        while claim := self.table.claim_slab(
            node, size_class, self.client.ident, self.grace.horizon()
        ):
            block, adopted = claim
            for old in [slab for slab in slabs if slab.block == block]:
                self._drop(old)  # it was taken from us meanwhile, and came back
            slab = Slab(self.heap, node, block, size_class, not adopted)
            slabs.append(slab)
            if adopted:
                self._reclaim([slab])
            if slab.ready_count:
                break
        return any(slab.ready_count for slab in slabs)

    def _reclaim(self, slabs: list[Slab]) -> None:
        """Find what others freed, and make ready what nobody can be reading any more."""
        horizon = self.grace.horizon()
        for slab in slabs:
            slab.ripen(horizon)
            slab.look()
        new = [slab for slab in slabs if slab.pending_count and slab.pending_epoch == NEVER]
        if new:
            epoch = self.grace.close_period()
            for slab in new:
                slab.pending_epoch = epoch
            horizon = self.grace.horizon()
            for slab in new:
                slab.ripen(horizon)

    def _try_span(self, node: int, blocks: int) -> bool:
        self._reclaim_spans()
        if any(s.ready and s.node == node and s.blocks == blocks for s in self.spans):
            return True
        first = self.table.claim_run(node, blocks, self.client.ident, self.grace.horizon())
        if first is None:
            return False
        self.table.make_span(node, first, blocks, self.client.ident)
        self._own_span(Span(node, first, blocks))
        return True

    def _own_span(self, new: Span) -> None:
        known = [s for s in self.spans if (s.node, s.first) != (new.node, new.first)]
        self.spans = [*known, new]

    def _reclaim_spans(self) -> bool:
        """Give back the blocks of spans whose object was freed, ours and dead clients'."""
        for span in self.spans:
            if not span.ready and span.pending_epoch < 0:
                reference = self.heap.reference(span.node, span.first, LARGE_CLASS, 0)
                try:
                    if not self.heap.used(reference):
                        span.pending_epoch = self.grace.close_period()
                except NodeFailed:
                    pass
        horizon = self.grace.horizon()
        ripe = [span for span in self.spans if 0 <= span.pending_epoch < horizon]
        for span in ripe:
            self.spans.remove(span)
            self._release_span(span)
        return bool(ripe)

    def _release_span(self, span: Span) -> None:
        word = block_word(LARGE, self.client.ident)
        with contextlib.suppress(NodeFailed):  # then the blocks are gone with it
            self.table.release_span(span.node, span.first, word, 0)

    def _find_room(self, attempt: int, hunger: Hunger) -> bool:
        """Get memory from wherever it can be had; False when there is no hope of any more."""
        found = self._make_room(attempt)
        if not found or attempt > PATIENCE:
            found = hunger.look() or found
        if not found and not hunger.waited:
            hunger.waited = True
            found = self._await_period(self.grace.close_period())
        return found

    def _make_room(self, attempt: int) -> bool:
        """Get memory that is of no use to us or belongs to nobody; False when there is none."""
        found = bool(self.membership.sweep()) | self._release_empty() | self._adopt_abandoned()
        if found:
            return True
        if attempt == 1:
            return True  # what is pending may have ripened by now
        waiting = self._oldest_pending()
        if waiting is None:
            return False
        return self._await_period(waiting)

    def _release_empty(self) -> bool:
        """Give back every block of which all objects are ready, and spans without an object."""
        released = self._reclaim_spans()
        for slabs in self.slabs.values():
            try:
                self._reclaim(slabs)
            except NodeFailed:
                continue  # the blocks are gone with it; there may be room on other nodes
            for slab in [slab for slab in slabs if slab.ready_count == slab.count]:
                # ORDER: we forget it before it is free: an exception in between costs a block
                # until we leave; the other way round we would go on using what is not ours.
                self._drop(slab)
                released = self._release_slab(slab) or released
        for span in [span for span in self.spans if span.ready]:
            self.spans.remove(span)
            self._release_span(span)
            released = True
        return released

    def _release_slab(self, slab: Slab) -> bool:
        word = block_word(SLAB, self.client.ident, slab.size_class)
        try:
            return bool(self.table.move(slab.node, slab.block, word, block_word(FREE)))
        except NodeFailed:
            return False

    def _adopt_abandoned(self) -> bool:
        """Give back blocks that belong to nobody and hold nothing in use; spans in due time."""
        adopted = False
        for node in range(self.membership.parameters.nodes):
            try:
                adopted = end_limbo(self.table, node, self.grace) > 0 or adopted
                freed = self.table.free_abandoned_slabs(node, self.client.ident, self.grace)
                adopted = adopted or freed > 0
                for first in list(self.table.abandoned_spans(node)):
                    mine = block_word(LARGE, self.client.ident)
                    if self.table.move(node, first, block_word(LARGE), mine):
                        span = Span(node, first, 0)
                        span.ready = False
                        self._own_span(span)
                        adopted = True
            except NodeFailed:
                continue
        return adopted

    def _oldest_pending(self) -> int | None:
        """The epoch that ends the oldest period that some memory waits for; None: none does."""
        epochs = [
            slab.pending_epoch
            for slabs in self.slabs.values()
            for slab in slabs
            if slab.pending_count
        ]
        epochs += [span.pending_epoch for span in self.spans if span.pending_epoch >= 0]
        epochs += self.table.stamps(self.grace.horizon(), self.membership.parameters.nodes)
        return min(epochs) if epochs else None

    def _await_period(self, epoch: int) -> bool:
        """Wait until nobody is pinned at `epoch`; False when somebody stands still and may stay."""
        deadline_passed = self.membership.overdue
        attempt = 0
        while laggards := self.grace.laggards(epoch):
            for laggard in laggards:
                if not self.membership.hurry(laggard) and deadline_passed(
                    ("given up", laggard.word, laggard.pin)
                ):
                    return False
            attempt += 1
            self.heap.endpoint.pause(attempt)
        return True

    def _why_full(self, node: int, size: int) -> str:
        text = (
            f"{self.membership.pool}: node {node} has no room for an object of {size} bytes; "
            "delete entries, or create the pool with larger nodes"
        )
        held = [
            str(self.membership.pid(laggard.word))
            for laggard in self.grace.pinned()
            if laggard.word != self.client.word
        ]
        if held:
            text += (
                f" (memory may be held back by processes inside an operation: {', '.join(held)})"
            )
        return text
