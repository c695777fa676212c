"""The second level of memory management: one client's objects (FUSEE section 4.4).

A client cuts each block that it owns into objects of one size class and is the only one to allocate
from it. What it knows of its blocks is private and lost with it; the used bits (heap.py) are not,
and they are all that recovery needs.

Private, for each block (`Slab`): `ready`, a bitmap of objects that are free and that no client can
still be reading, and `pending`, those that were seen free when period `pending_epoch` was closed.
Objects move from "used bit cleared by anyone" to pending to ready, when the grace period
(epoch.py) is over.

`allocate` is the fast path, inside an operation: it takes a ready object, in the client journal
first, then marked used. It returns 0 when there is none; then the operation ends, `replenish` is
called outside of any pin (it may wait for others, and recover or fence them), and the operation
starts again.

Others who need memory may take a block from its owner (reclaim.py). `allocate` notices that by one
word, the pressure; so what is known here of a block counts only until that word changes, and a
block that was taken and is then claimed again begins anew.

Objects with replicas come from blocks of their own, the heads of groups (replica_sets.py); `node`
is then the node of the head. What is known here of a block whose node is lost is forgotten when
memory is short, or when others press; until then an attempt to use it raises NodeFailed.
"""

from __future__ import annotations

import contextlib
import functools
from array import array
from typing import TYPE_CHECKING, Any, Final

from limpet.shm.alloc.reclaim import Shortage, end_limbo
from limpet.shm.clients.epoch import NEVER
from limpet.shm.endpoint.fabric import bit, lowest_bit
from limpet.shm.endpoint.layout import PRESSURE
from limpet.shm.endpoint.words import (
    ADDRESS_MASK,
    LARGE,
    LARGE_CLASS,
    SLAB,
    block_word,
    recast,
    replica_bits,
    replicas_of,
)
from limpet.shm.errors import NodeFailed, StoreFull

if TYPE_CHECKING:
    from limpet.shm.alloc.blocks import BlockTable
    from limpet.shm.clients.epoch import Grace
    from limpet.shm.clients.membership import Membership

SLACK_SHARE: Final = 8
"""A class is replenished to at least 1/8 of its objects ready, if there is memory."""
ATTEMPTS_MAX: Final = 64
"""How often memory may turn up that is of no use to us, or taken from us before it is used, before
we call the node full."""
PATIENCE: Final = 3
"""Attempts at memory of our own and of no client before we look at that of living clients."""
EXPECTED_SIZE: Final = 1024
"""So many bytes of each replica of the next object are fetched before it is written."""
SHORT_SHARE: Final = 4
"""Blocks of a node are few when less than this share of them is free."""
COARSE_LEAST: Final = 128
"""Bytes of the smallest size class that is asked for then."""
MASK: Final = 0xFFFF_FFFF_FFFF_FFFF


class Slab:
    """A block of this client's, cut into objects of one class."""

    def __init__(
        self, heap: Any, node: int, block: int, size_class: int, replicas: int, fresh: bool
    ) -> None:
        self.heap = heap
        self.node = node
        self.block = block
        self.size_class = size_class
        self.replicas = replicas
        self.bits = replica_bits(replicas)
        first = heap.reference(node, block, size_class, 0) | self.bits
        self.row = heap.row(first) if replicas > 1 else 0
        self.count = heap.object_count(size_class)
        self.words = (self.count + 63) // 64
        self.ready = array("Q", bytes(8 * self.words))
        self.pending = array("Q", bytes(8 * self.words))
        self.pending_epoch = 0
        self.pending_count = 0
        self.ready_count = 0
        self.cursor = 0
        self.kept = 0
        """How many ready objects are for updates only: `pop` does not give them."""
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
        while self.ready_count > self.kept:
            word = self.ready[self.cursor]
            if word:
                bit = lowest_bit(word)
                self.ready[self.cursor] = word & (word - 1)
                self.ready_count -= 1
                index = 64 * self.cursor + bit
                return (
                    self.heap.reference(self.node, self.block, self.size_class, index) | self.bits
                )
            self.cursor += 1
            if self.cursor == self.words:
                self.cursor = 0
        return 0

    def expect(self) -> None:
        """Have the memory of the object at hand that `pop` may give next."""
        word = self.ready[self.cursor]
        if word:
            index = 64 * self.cursor + lowest_bit(word)
            following = self.heap.reference(self.node, self.block, self.size_class, index)
            size = min(self.heap.sizes[self.size_class], EXPECTED_SIZE)
            for k in range(self.replicas):
                there = (following & ADDRESS_MASK) + self.heap.steps[self.row + k] & MASK
                self.heap.endpoint.prefetch(there, size, True)

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
        """What is pending is ready, if no client is pinned at its period or before."""
        if self.pending_count and self.pending_epoch < horizon:
            for index in range(self.words):
                self.ready[index] |= self.pending[index]
                self.pending[index] = 0
            self.ready_count += self.pending_count
            self.pending_count = 0


class Span:
    """A run of whole blocks of this client's, for one object."""

    def __init__(self, node: int, first: int, blocks: int, replicas: int) -> None:
        self.node = node
        self.first = first
        self.blocks = blocks
        self.replicas = replicas
        self.ready = True
        self.pending_epoch = -1

    def reference(self, heap: Any) -> int:
        """Reference to the object."""
        bare: int = heap.reference(self.node, self.first, LARGE_CLASS, 0)
        return bare | replica_bits(self.replicas)


class Allocator:
    """One client's blocks. `table`, `grace`, `membership`: the pool's. `bounded`: it claims only
    blocks in the hardware-coherent range."""

    def __init__(
        self,
        client: Any,
        table: BlockTable,
        grace: Grace,
        membership: Membership,
        bounded: bool = False,
    ) -> None:
        self.client = client
        self.heap = client.heap
        self.table = table
        self.grace = grace
        self.membership = membership
        self.bounded = bounded
        self.forget()

    def forget(self) -> None:
        """Start anew, owning nothing: after a fork, and when the client has left."""
        self.slabs: dict[int, list[Slab]] = {}
        placement = self.heap.placement
        self.nodes = placement.nodes
        self.current: list[Slab | None] = [None] * (placement.replicas_max * self.nodes * 256)
        self.spans: list[Span] = []
        self.pressure = 0
        self.sparing = 0
        self.growing = False
        """Whether memory is wanted for what is new, so that some has to be left for updates."""
        self.coarse = False
        """Whether blocks are few and mostly empty: stores should ask for `coarsened` sizes."""
        self.refused = False
        """Whether there was none for what is new when it was wanted last."""
        self.spared: dict[int, int] = {}
        """Of what kinds `replenish` needs how many objects: blocks for them are not given back."""
        self.inner: Allocator | None = None

    def coherent(self) -> Allocator:
        """What allocates objects that are changed by atomics, without replicas.

        With blocks of its own, if not all memory is hardware-coherent.
        """
        if self.bounded or self.table.coherent_blocks == self.table.count:
            return self
        if self.inner is None:
            self.inner = Allocator(self.client, self.table, self.grace, self.membership, True)
        return self.inner

    # ---- inside an operation --------------------------------------------------------------------

    def allocate(self, node: int, size: int, replicas: int = 1) -> int:
        """A reference to an object of at least `size` bytes on `node`, in the client journal; 0:
        replenish.

        Raises NodeFailed when the node is lost, ParameterError for a number of replicas that cannot
        be. Its replicas 1 and up may be on lost nodes.
        """
        # ORDER: under the pin; who sees the pressure unchanged is waited for by who raised it.
        if self.heap.endpoint.load(PRESSURE) != self.pressure:
            self._forget_taken()
        size_class = self.heap.size_class(size)
        if size_class == LARGE_CLASS:
            return self._allocate_span(node, size, replicas)
        key = node << 8 | size_class
        if replicas != 1:
            key = self.key(node, size_class, replicas)
        slab = self.current[key]
        if slab is None or slab.ready_count <= slab.kept:
            slab = self._next_slab(key)
            if slab is None:
                return 0
        reference = slab.pop()
        slab.expect()
        self.client.log(reference, 0)
        self.heap.take(reference)
        return reference

    def coarsened(self, size: int) -> int:
        """Bytes to ask for in place of `size`, so that objects of many sizes share few blocks."""
        wide = COARSE_LEAST
        while wide < size:
            wide *= 2
        return wide if wide <= self.heap.layout.block_size // 8 else size

    def key(self, node: int, size_class: int, replicas: int) -> int:
        """Where the slabs of this node, class and number of replicas are found."""
        self.heap.placement.check(replicas)
        return ((replicas - 1) * self.nodes + node) << 8 | size_class

    def _next_slab(self, key: int) -> Slab | None:
        for slab in self.slabs.get(key, ()):
            if slab.ready_count > slab.kept:
                self.current[key] = slab
                return slab
        return None

    def _forget_taken(self) -> None:
        """Forget the blocks that others have taken from us."""
        scope = self.heap.endpoint.background(True)
        try:
            pressure = self.heap.endpoint.load(PRESSURE)
            # ORDER: the words after the pressure, which stands for them until it changes.
            for slabs in self.slabs.values():
                for slab in list(slabs):
                    if not self._owns(slab.node, slab.block, self._slab_word(slab)):
                        self._drop(slab)
            self.spans = [s for s in self.spans if self._owns(s.node, s.first, self._span_word(s))]
            self.pressure = pressure
        finally:
            self.heap.endpoint.background(scope)

    def _owns(self, node: int, block: int, mine: int) -> bool:
        try:
            return int(self.heap.endpoint.load(self.heap.table_word(node, block))) == mine
        except NodeFailed:
            return False

    def _slab_word(self, slab: Slab) -> int:
        return block_word(SLAB, self.client.ident, slab.size_class, slab.replicas)

    def _span_word(self, span: Span) -> int:
        return block_word(LARGE, self.client.ident, LARGE_CLASS, span.replicas)

    def _drop(self, slab: Slab) -> None:
        key = self.key(slab.node, slab.size_class, slab.replicas)
        self.slabs[key].remove(slab)
        if self.current[key] is slab:
            self.current[key] = None

    def _blocks_for(self, size: int) -> int:
        return -(-size // self.heap.layout.block_size)

    def _allocate_span(self, node: int, size: int, replicas: int) -> int:
        wanted = (node, self._blocks_for(size), replicas)
        for span in self.spans:
            if span.ready and (span.node, span.blocks, span.replicas) == wanted:
                reference = span.reference(self.heap)
                self.client.log(reference, 0)
                self.heap.take(reference)
                span.ready = False
                return reference
        return 0

    # ---- between operations ---------------------------------------------------------------------

    def replenish(
        self,
        node: int,
        size: int,
        replicas: int = 1,
        also: int = 0,
        looks: int = 0,
        update: bool = False,
    ) -> int:
        """Make an object of `size` bytes ready on `node`, and one of `also` bytes if not 0.

        Returns and raises as `replenish_all` does.
        """
        sizes = [size, also] if also else [size]
        return self.replenish_all(node, sizes, replicas, 0, looks, update)

    def replenish_all(
        self,
        node: int,
        sizes: list[int],
        replicas: int = 1,
        sparing: int = 0,
        looks: int = 0,
        update: bool = False,
    ) -> int:
        """Make objects of all these sizes ready on `node`, at once; `sparing` that many of its free
        blocks, which are for what gives memory back.

        `update`: they take the place of others, or are for a channel. All other memory leaves a
        reserve for these: `BlockTable.reserve` free blocks of a node (fewer if each has backups),
        and, when some of those have gone, an object of each kind in the blocks of a client.

        How often an operation has looked for memory by now, if it had `looks` times before: what
        was ready may have been taken from us before it was used, so that it has to look again.

        Raises StoreFull when there is no memory for them, even after recovering the dead and
        waiting for the slow; NodeFailed when the node is lost, or a node for its replicas is and is
        not marked as failed; ParameterError for a number of replicas that cannot be.
        """
        self.client.begin()
        scope = self.heap.endpoint.background(True)
        try:
            return self.replenish_within(node, sizes, replicas, sparing, looks, update)
        finally:
            self.heap.endpoint.background(scope)
            self.client.end()

    def replenish_within(
        self,
        node: int,
        sizes: list[int],
        replicas: int = 1,
        sparing: int = 0,
        looks: int = 0,
        update: bool = False,
    ) -> int:
        """`replenish_all`, for a caller that keeps the other threads out already; not pinned."""
        self.heap.placement.check(replicas)
        try:
            self.membership.sweep_sometimes()
            ident = self.client.ident
            reserve = self.table.reserve // replicas
            self.growing = not update and reserve > 0
            self.sparing = max(sparing, reserve) if self.growing else sparing
            self.refused = self.growing
            attempt = hopeless = 0
            wanted = self._counted(sizes)
            if len(sizes) > 1:
                self.spared = {
                    self.key(node, self.heap.size_class(each), replicas): count
                    for each, count in wanted
                }
            shortages = {
                each: Shortage(
                    self.table, self.grace, ident, node, self.heap.size_class(each), replicas
                )
                for each, _ in wanted
            }
            while missing := [
                each
                for each, count in wanted
                if not self._try(node, each, replicas, attempt > 0, count)
            ]:
                attempt += 1
                hopeless = 0 if self.reclaim(attempt, shortages[missing[0]]) else hopeless + 1
                # Twice, since a block may have been on its way from one client to another.
                if looks + attempt > ATTEMPTS_MAX or hopeless > 1:
                    raise StoreFull(self._why_full(node, missing[0]))
            self.refused = False
            return looks + attempt + 1
        finally:
            self.spared = {}
            self.sparing = 0
            self.growing = False

    def _counted(self, sizes: list[int]) -> list[tuple[int, int]]:
        """Of these sizes, one for each kind of memory that they take, and how many take it."""
        found: dict[tuple[int, int], list[int]] = {}
        for size in sizes:
            size_class = self.heap.size_class(size)
            blocks = self._blocks_for(size) if size_class == LARGE_CLASS else 0
            found.setdefault((size_class, blocks), []).append(size)
        return [(same[0], len(same)) for same in found.values()]

    def _try(self, node: int, size: int, replicas: int, thrifty: bool, count: int = 1) -> bool:
        size_class = self.heap.size_class(size)
        if size_class == LARGE_CLASS:
            return self._try_span(node, self._blocks_for(size), replicas, count)
        slabs = self.slabs.setdefault(self.key(node, size_class, replicas), [])
        self._reclaim(slabs)
        self._keep(node, slabs, replicas)
        ready = sum(slab.ready_count - slab.kept for slab in slabs)
        total = sum(slab.count for slab in slabs)
        if ready >= count and (thrifty or ready * SLACK_SHARE >= total):
            return True
        self._look_for_shortage(node, replicas)
        while claim := self._claim_slab(node, size_class, replicas):
            self._sight_laggard(min((s.pending_epoch for s in slabs if s.pending_count), default=0))
            block, adopted = claim
            for old in [slab for slab in slabs if slab.block == block]:
                self._drop(old)  # it was taken from us meanwhile, and came back
            slab = Slab(self.heap, node, block, size_class, replicas, not adopted)
            slabs.append(slab)
            if adopted:
                self._reclaim([slab])
            ready += slab.ready_count
            if ready >= count:
                break
        return sum(slab.ready_count - slab.kept for slab in slabs) >= count

    def _keep(self, node: int, slabs: list[Slab], replicas: int) -> None:
        """Keep one of the objects for updates, if this is for something new, and some of the blocks
        that are for them have gone."""
        for slab in slabs:
            slab.kept = 0
        if self.growing and self._free_count(node, replicas) < self.table.reserve // replicas:
            for slab in slabs:
                if slab.ready_count:
                    slab.kept = 1
                    return

    def _look_for_shortage(self, node: int, replicas: int) -> None:
        """Whether few blocks are free while most of our own memory is not in use.

        A client has blocks of its own for each size class. Where these are too many for a node, as
        clients or sizes are many, it makes do with every fourth class.
        """
        mine = [slab for slabs in self.slabs.values() for slab in slabs]
        ready = sum(slab.ready_count / slab.count for slab in mine)
        short = self._free_count(node, replicas) * SHORT_SHARE < self.table.count
        self.coarse = short and ready * 2 > len(mine)

    def _free_count(self, node: int, replicas: int) -> int:
        """How many blocks of the node are free; with replicas, those whose backups are, too."""
        if replicas == 1:
            return self.table.free_count(node)
        self.table.unbacked = False  # also those without pages: there may be room again
        look = self.table.groups.usable
        return int(self.client.pinned(lambda: look(node, replicas, self.grace.horizon()).sum()))

    def _sight_laggard(self, epoch: int) -> None:
        """Other memory is used in place of what this epoch keeps from being used again: note who
        keeps it most. When there is no other memory, one that has stood still for a lease by then
        is waited for no more. 0: nothing is kept."""
        laggards = self.grace.laggards(epoch) if epoch else []
        if laggards:
            oldest = min(laggards, key=lambda laggard: laggard.epoch)
            self.membership.stands_still("memory", oldest)

    def _claim_slab(self, node: int, size_class: int, replicas: int) -> tuple[int, bool] | None:
        wanted = (node, size_class, self.client.ident, self.grace.horizon(), replicas)
        bounded = self.bounded
        fresh = not self.sparing or self._free_count(node, replicas) > self.sparing
        if replicas == 1:
            return self.table.claim_slab(*wanted, coherent=bounded, fresh=fresh)
        found: tuple[int, bool] | None = self.client.pinned(
            lambda: self.table.claim_slab(*wanted, coherent=bounded, fresh=fresh)
        )
        return found

    def _reclaim(self, slabs: list[Slab]) -> None:
        """Find what others freed, and make ready what no client can be reading any more."""
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

    def _try_span(self, node: int, blocks: int, replicas: int, count: int) -> bool:
        self._reclaim_spans()
        wanted = (node, blocks, replicas)
        ready = sum(s.ready and (s.node, s.blocks, s.replicas) == wanted for s in self.spans)
        if ready >= count:
            return True
        if ready + 1 < count and not self._try_span(node, blocks, replicas, count - 1):
            return False
        horizon = self.grace.horizon()
        if replicas == 1:
            return self._claim_span(node, blocks, replicas, horizon)
        return bool(self.client.pinned(lambda: self._claim_span(node, blocks, replicas, horizon)))

    def _claim_span(self, node: int, blocks: int, replicas: int, horizon: int) -> bool:
        ident = self.client.ident
        if self.sparing and self._free_count(node, replicas) < blocks + self.sparing:
            return False
        first = self.table.claim_run(
            node, blocks, ident, horizon, coherent=self.bounded, replicas=replicas
        )
        if first is None:
            return False
        self.table.make_span(node, first, blocks, ident, replicas)
        self._own_span(Span(node, first, blocks, replicas))
        self._sight_laggard(
            min((s.pending_epoch for s in self.spans if s.pending_epoch >= 0), default=0)
        )
        return True

    def _own_span(self, new: Span) -> None:
        known = [s for s in self.spans if (s.node, s.first) != (new.node, new.first)]
        self.spans = [*known, new]

    def _reclaim_spans(self) -> bool:
        """Give back the blocks of spans whose object was freed, ours and dead clients'."""
        for span in self.spans:
            if not span.ready and span.pending_epoch < 0:
                try:
                    if not self.heap.used(span.reference(self.heap)):
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
        with contextlib.suppress(NodeFailed):  # then the blocks are gone with it
            self._release(span.node, span.first, self._span_word(span))

    def _release(self, node: int, first: int, word: int) -> int:
        """Give back a slab or a span of ours in which nothing is in use; how many blocks."""
        ident = self.client.ident
        released = self.client.pinned(lambda: self.table.release(node, first, word, 0, ident))
        return int(released)

    def reclaim(self, attempt: int, shortage: Shortage) -> bool:
        """Get memory from wherever it can be had; False when there is no hope of any more."""
        found = self._make_room(attempt, shortage.node)
        if not found or attempt > PATIENCE:
            found = self.client.pinned(shortage.look) or found
        if not found and not shortage.waited:
            shortage.waited = True
            found = self._await_period(self.grace.close_period(), shortage.node)
        return found

    def _make_room(self, attempt: int, node: int) -> bool:
        """Get memory that is of no use to us or belongs to no client; False when there is none."""
        found = bool(self.membership.sweep()) | self._release_empty() | self._adopt_abandoned()
        if found:
            return True
        if attempt == 1:
            return True  # what is pending may have ripened by now
        waiting = self._oldest_pending()
        if waiting is None:
            return False
        return self._await_period(waiting, node)

    def _release_empty(self) -> bool:
        """Give back every block of which all objects are ready, and spans without an object."""
        released = self._reclaim_spans()
        for key, slabs in self.slabs.items():
            try:
                self._reclaim(slabs)
            except NodeFailed:
                for slab in list(slabs):
                    self._drop(slab)  # it is gone with its node
                continue  # there may be room on other nodes
            for slab in self._not_needed(key, slabs):
                # ORDER: we forget it before it is free: an exception in between costs a block
                # until we leave; the other way round we would go on using what is not ours.
                self._drop(slab)
                released = self._release_slab(slab) or released
        for span in [span for span in self.spans if span.ready]:
            self.spans.remove(span)
            self._release_span(span)
            released = True
        return released

    def _not_needed(self, key: int, slabs: list[Slab]) -> list[Slab]:
        """Empty slabs, without those that have to be kept for `replenish`: the last in memory."""
        empty = [slab for slab in slabs if slab.ready_count == slab.count]
        least = self.spared.get(key, 0)
        if least:
            least -= sum(slab.ready_count for slab in slabs if slab.ready_count < slab.count)
            empty.sort(key=lambda slab: slab.block)
            while least > 0 and empty:
                least -= empty.pop().count
        return empty

    def _release_slab(self, slab: Slab) -> bool:
        try:
            word = self._slab_word(slab)
            return self._release(slab.node, slab.block, word) > 0
        except NodeFailed:
            return False

    def _adopt_abandoned(self) -> bool:
        """Give back blocks that belong to no client and hold nothing in use; spans in due time."""
        adopted = False
        for node in range(self.membership.parameters.nodes):
            with contextlib.suppress(NodeFailed):
                found: bool = self.client.pinned(functools.partial(self._adopt_abandoned_on, node))
                adopted = found or adopted
        return adopted

    def _adopt_abandoned_on(self, node: int) -> bool:
        ident = self.client.ident
        freed = end_limbo(self.table, node, ident, self.grace)
        freed += self.table.groups.sweep(node)
        freed += self.table.free_abandoned_slabs(node, ident, self.grace)
        for first, word in list(self.table.abandoned_spans(node)):
            if self.table.move(node, first, word, recast(word, LARGE, ident)):
                span = Span(node, first, 0, replicas_of(word))
                span.ready = False
                self._own_span(span)
                freed += 1
        return freed > 0

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
            self.heap.endpoint.pause(attempt)
            if self._claimable_count(node) > ready:
                break
        return True

    def _claimable_count(self, node: int) -> int:
        return int(self.table.claimable(self.table.words(node), self.grace.horizon()).sum())

    def _why_full(self, node: int, size: int) -> str:
        if self.table.unbacked:
            why = "its file system is full; make room there, or delete entries"
        else:
            why = "delete entries, or create the pool with larger nodes"
        text = (
            f"{self.membership.pool}: node {node} has no room for an object of {size} bytes; {why}"
        )
        held = [
            str(self.membership.pid(laggard.word))
            for laggard in self.grace.pinned()
            if not self.membership.ours(laggard.slot)
        ]
        if held:
            text += (
                f" (memory may be held back by processes inside an operation: {', '.join(held)})"
            )
        return text
