"""The second level of memory management: one client's objects (FUSEE section 4.4).

A client cuts each block that it owns into objects of one size class, or into 64 pages, of which
larger objects of all sizes are made, and only this client allocates from the block (slabs.py). An
object of more than eight blocks has blocks of its own (claims.py). The client's notes on
its blocks are private and lost with it. The used bits (heap.py) are in shared memory, and recovery
needs only these.

`allocate` is the fast path, inside an operation: it takes a ready object, writes it to the client
journal, then marks it used. It returns 0 when none is ready. Then the operation ends, the client
calls `replenish` outside of any pin (it may wait for other clients, and recover or fence them), and
the operation starts again.

Another client that needs memory may take a block from its owner (reclaim.py). `allocate` notices
that by one word, the pressure. So the notes on a block are valid only until that word changes; if a
block is taken and then claimed again, the notes on it begin anew.

Objects with replicas come from blocks of their own, the primaries of replica sets
(replica_sets.py); `node` is then the node of the primary. The client forgets a block whose node is
lost when memory is short, or when the pressure changes; until then an attempt to use the block
raises NodeFailed.

Where nodes were added (shm/growth.py), what belongs on a node that has no memory left may lie on
one of them instead (`Claims.others`). So a caller may get an object on another node than it named,
unless it says EXACTLY. Memory of several sizes that is asked for at once is on one node. The blocks
of a node are used for all objects there.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from limpet.shm.alloc.claims import Claims, Relief, Spans
from limpet.shm.alloc.reclaim import Shortage
from limpet.shm.alloc.slabs import Slab, Slabs, find_freed
from limpet.shm.endpoint.layout import EXACTLY, NODE_SHIFT, PRESSURE
from limpet.shm.endpoint.words import LARGE_CLASS
from limpet.shm.errors import NodeFailed, StoreFull
from limpet.shm.pages import NOWHERE

if TYPE_CHECKING:
    from limpet.shm.alloc.blocks import BlockTable
    from limpet.shm.clients.epoch import Grace
    from limpet.shm.clients.membership import Membership

SLACK_SHARE: Final = 8
"""A class is replenished to at least 1/8 of its objects ready, if there is memory."""
ATTEMPTS_MAX: Final = 64
"""How often a client may get memory that it cannot use, or lose memory before it uses it, until the
node counts as full."""
SHORT_SHARE: Final = 4
"""Blocks of a node are few when less than this share of them is free."""
COARSE_LEAST: Final = 128
"""Bytes of the smallest size class that a client asks for then."""


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
        self.claims = Claims(client, table, grace, membership, bounded)
        self.is_coherent = bounded or table.coherent_blocks == table.count
        self.inner: Allocator | None = None
        """The one for memory that is hardware-coherent. Stores hold it, so it is never another."""
        self.forget()

    def forget(self) -> None:
        """Start anew, without blocks: after a fork, and when the client has left."""
        self.table.forget()
        self.slabs = Slabs(self.heap)
        self.spans = Spans(self.claims)
        self.relief = Relief(self.claims, self.slabs, self.spans)
        self.pressure = 0
        self.coarse = False
        """Whether blocks are few and mostly empty: stores should ask for `coarsened` sizes."""
        self.refused = False
        """Whether the last request for a new entry found no memory."""
        if self.inner is not None:
            self.inner.forget()

    def coherent(self) -> Allocator:
        """The allocator of objects that are changed by atomics, without replicas.

        It has blocks of its own if not all memory is hardware-coherent.
        """
        if self.is_coherent:
            return self
        if self.inner is None:
            self.inner = Allocator(self.client, self.table, self.grace, self.membership, True)
        return self.inner

    # ---- inside an operation --------------------------------------------------------------------

    def allocate(self, node: int, size: int, replicas: int = 1) -> int:
        """A reference to an object of at least `size` bytes on `node`, in the client journal; 0:
        replenish.

        Raises NodeFailed when the node is lost, ParameterError for an impossible number of
        replicas. Its replicas 1 and up may be on lost nodes.
        """
        # ORDER: under the pin: the client that raises the pressure waits for each pinned client
        # that has seen it unchanged.
        if self.heap.endpoint.load(PRESSURE) != self.pressure:
            self._forget_taken()
        size_class = self.heap.size_class(size)
        if size_class == LARGE_CLASS:
            return self._take_span(node, size, replicas)
        slabs = self.slabs
        if size_class >= self.heap.paged:
            reference = slabs.runs_of(node, replicas).pop(size_class)
            if not reference:
                reference = self._pop_elsewhere(node, size_class, replicas, 0)
            if reference:
                self.client.log(reference, 0)
                self.heap.take(reference)
            return reference
        kind = node << 8 | size_class
        if replicas != 1 or node >= slabs.nodes:
            kind = slabs.kind(node, size_class, replicas)
        slab = slabs.current[kind]
        if slab is not None and slab.node != node:
            slab = self._still_usable(slab, node, kind)
        reference = 0 if slab is None else slab.pop()
        while not reference:
            slab = slabs.next_ready(kind)
            if slab is None:
                break
            reference = slab.pop()
        if slab is not None:
            slab.prefetch()
        else:
            reference = self._pop_elsewhere(node, size_class, replicas, kind)
            if not reference:
                return 0
        self.client.log(reference, 0)
        self.heap.take(reference)
        return reference

    def _still_usable(self, slab: Slab, node: int, kind: int) -> Slab | None:
        """The current slab of a kind of this node, which may be on another one, if it may be used;
        else the kind has none now."""
        endpoint, there = self.heap.endpoint, slab.node
        if there != node & EXACTLY - 1 and (
            node & EXACTLY or endpoint.failed(there << NODE_SHIFT) or endpoint.lost(there)
        ):
            self.slabs.current[kind] = None
            return None
        return slab

    def _pop_elsewhere(self, node: int, size_class: int, replicas: int, kind: int) -> int:
        """A ready object on another node that takes what this one has no memory for; 0: none.
        `kind`: of slabs of this node; the next object is taken from the same slab."""
        slabs = self.slabs
        if node & EXACTLY or self.heap.placement.nodes == slabs.nodes:
            return 0
        for other in self.claims.others(node, replicas):
            if size_class >= self.heap.paged:
                reference = slabs.runs_of(other, replicas).pop(size_class)
            else:
                there = slabs.kind(other, size_class, replicas)
                reference = self._pop(there, other)
                if reference:
                    slabs.current[kind] = slabs.current[there]
            if reference:
                return reference
        return 0

    def _pop(self, kind: int, node: int) -> int:
        """A ready object of this kind, of slabs on this node; 0: there is none."""
        slab = self.slabs.current[kind]
        if slab is not None and slab.node != node:
            slab = None
        reference = 0 if slab is None else slab.pop()
        while not reference:
            slab = self.slabs.next_ready(kind)
            if slab is None:
                return 0
            reference = slab.pop()
        return reference

    def _take_span(self, node: int, size: int, replicas: int) -> int:
        """As `allocate`, of an object in blocks of its own."""
        for each in self.claims.nodes_for(node, replicas):
            reference = self.spans.take(each, self._blocks_for(size), replicas)
            if reference:
                return reference
        return 0

    def know_nodes(self) -> None:
        """The pool has more nodes now."""
        self.slabs.know_nodes()
        if self.inner is not None:
            self.inner.know_nodes()

    def reserve_of(self, replicas: int) -> int:
        """How many free blocks of a node new entries leave for updates: fewer if each has
        backups."""
        return -(-self.table.reserve // replicas)

    def await_period(self, epoch: int, node: int) -> None:
        """Outside of operations: wait until no client is pinned at `epoch`, unless one stands still
        and may stay, or memory on `node` has become free."""
        self.client.begin()
        scope = self.heap.endpoint.background(True)
        try:
            if not self.client.ident:
                self.client.disown()
            self.relief.await_period(epoch, node)
        finally:
            self.heap.endpoint.background(scope)
            self.client.end()

    def has_ready(self, node: int, size: int, count: int) -> bool:
        """Whether so many objects of `size` bytes, without replicas, are ready on `node`, as far as
        is known; of objects in runs of pages or in blocks of their own nothing is known."""
        slabs, size_class = self.slabs, self.heap.size_class(size)
        for each in self.claims.nodes_for(node, 1):
            for slab in reversed(slabs.of(slabs.kind(each, size_class, 1))):
                count -= slab.ready_count - slab.kept
                if count <= 0:
                    return True
        return False

    def begin_batch(self) -> None:
        """Before the first `next_object` of an operation."""
        # ORDER: as in `allocate`; once is enough, as the client stays pinned.
        if self.heap.endpoint.load(PRESSURE) != self.pressure:
            self._forget_taken()

    def next_object(self, node: int, size: int, replicas: int) -> int:
        """A reference to an object of at least `size` bytes, at most SMALL_SIZE, on `node`; 0:
        replenish.

        The caller puts it into the client journal, and then takes it (`Heap.take_all`). If nothing
        is to name it when the operation has ended, it need not be taken, nor freed: the owner finds
        it free at its next look for memory, and other clients wait for the operation (reclaim.py).
        """
        size_class = self.heap.size_class(size)
        slabs = self.slabs
        if size_class >= self.heap.paged:
            reference = slabs.runs_of(node, replicas).pop(size_class)
            return reference if reference else self._pop_elsewhere(node, size_class, replicas, 0)
        kind = node << 8 | size_class
        if replicas != 1 or node >= slabs.nodes:
            kind = slabs.kind(node, size_class, replicas)
        slab = slabs.current[kind]
        if slab is not None and slab.node != node:
            slab = self._still_usable(slab, node, kind)
        reference = 0 if slab is None else slab.pop()
        while not reference:
            slab = slabs.next_ready(kind)
            if slab is None:
                return self._pop_elsewhere(node, size_class, replicas, kind)
            reference = slab.pop()
        return reference

    def coarsened(self, size: int) -> int:
        """Bytes to ask for in place of `size`, so that objects of many sizes share few blocks."""
        wide = COARSE_LEAST
        while wide < size:
            wide *= 2
        return wide if wide <= self.heap.layout.block_size // 8 else size

    def replaced(self, node: int) -> None:
        """From now on, `node` has new memory: what belongs there was filled in as far as it was in
        use, so pages behind that are asked for again."""
        for slab in self.slabs.all():
            if slab.replicas > 1:
                slab.forget_pages()
        if self.inner is not None:
            self.inner.replaced(node)

    def formatted(self) -> None:
        """A client that fills a node has written its block table anew: forget the blocks that we
        had there, before anything is allocated."""
        self._forget_taken()
        if self.inner is not None:
            self.inner._forget_taken()

    def _forget_taken(self) -> None:
        """Forget the blocks that other clients have taken from us."""
        scope = self.heap.endpoint.background(True)
        try:
            pressure = self.heap.endpoint.load(PRESSURE)
            # ORDER: the words after the pressure: they are valid until it changes.
            for slab in self.slabs.all():
                word = self.claims.slab_word(slab.size_class, slab.replicas)
                if not self.claims.owns(slab.node, slab.block, word):
                    self.slabs.drop(slab)
            self.spans.forget_taken()
            self.pressure = pressure
        finally:
            self.heap.endpoint.background(scope)

    def _blocks_for(self, size: int) -> int:
        return -(-size // self.heap.layout.block_size)

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
        """Make objects of all these sizes ready on `node`, at once; leave `sparing` of its free
        blocks, for operations that give memory back.

        `update`: the objects replace others, or are for a channel. All other requests leave a
        reserve for these: `BlockTable.reserve` free blocks of a node (fewer if each has backups),
        and, when some of those have gone, an object of each kind in the blocks of a client.

        Returns how often an operation has asked for memory by now; before, it was `looks` times.
        Another client may take ready memory before the operation uses it, so it has to ask again.

        Raises StoreFull when there is no memory for them, even after recovering dead clients and
        waiting for slow ones; NodeFailed when the node is lost, or a node for its replicas is lost
        but not marked as failed; ParameterError for an impossible number of replicas.
        """
        self.client.begin()
        scope = self.heap.endpoint.background(True)
        try:
            if not self.client.ident:
                self.client.disown()
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
        self.membership.sweep_sometimes()
        reserve = self.reserve_of(replicas)
        growing = not update and reserve > 0
        if growing:
            sparing = max(sparing, reserve)
        self.refused = growing
        nodes = self.claims.nodes_for(node, replicas)
        request = (
            nodes[0], len(nodes), replicas, sparing, growing,
            *((self.heap.size_class(size), self._blocks_for(size)) for size in sizes),
        )  # fmt: skip
        known = self.relief.known_refusal(request)
        if known:
            raise StoreFull(known)
        attempt = hopeless = 0
        before: list[bytes] | None = None
        wanted = self._by_kind(sizes)
        needed = {}
        if len(sizes) > 1:
            needed = {
                self.slabs.kind(each, self._block_class(group[0]), replicas): self._bits(group)
                for group in wanted
                for each in nodes
            }
        shortages: dict[int, list[Shortage]] = {}
        while missing := self._find_missing(nodes, wanted, replicas, attempt > 0, sparing, growing):
            attempt += 1
            first, refused = missing[0]
            if first not in shortages:
                shortages[first] = [
                    Shortage(
                        self.table, self.grace, self.client.ident, each,
                        self.heap.size_class(first), replicas, sparing,
                    )
                    for each in nodes
                ]  # fmt: skip
            if hopeless:
                # ORDER: before the search whose result is noted with it.
                before = self.table.image()
            found = self.reclaim(attempt, shortages[first][0], needed)
            for shortage in shortages[first][1:]:
                found = self.relief.take(attempt, shortage, found)
            hopeless = 0 if found else hopeless + 1
            if update and hopeless > 1 and before is not None and before != self.table.image():
                hopeless = 1  # other clients give back what updates have lent
            # Twice, since a block may have been on its way from one client to another.
            if looks + attempt > ATTEMPTS_MAX or hopeless > 1:
                if not set(self.claims.nodes_for(node, replicas)) <= set(nodes):
                    # Nodes were added meanwhile. There is an end: each time there are more.
                    return self.replenish_within(
                        node, sizes, replicas, sparing, looks + attempt, update
                    )
                why = self.relief.why_full(nodes, first, refused, sparing, replicas)
                if hopeless > 1 and refused == NOWHERE:
                    self.relief.note_refusal(request, why, before)
                raise StoreFull(why)
        self.refused = False
        return looks + attempt + 1

    def _find_missing(
        self,
        nodes: list[int],
        wanted: list[list[int]],
        replicas: int,
        thrifty: bool,
        sparing: int,
        growing: bool,
    ) -> list[tuple[int, int]]:
        """Make objects of these sizes ready, as `make_all_ready` does, on the first of these nodes
        that has memory for all. If there is none, of the first node, for each kind without memory:
        the largest size, and the node whose file system had no room for its pages, or NOWHERE."""
        if len(nodes) > 1:
            # Updates take what a node keeps for them only when no node has anything else.
            least = max(sparing, self.reserve_of(replicas))
            for node in nodes:
                with contextlib.suppress(NodeFailed):  # the last search says
                    if not self._missing_on(node, wanted, replicas, thrifty, least, growing):
                        return []
            for node in nodes[1:] if least > sparing else ():
                with contextlib.suppress(NodeFailed):
                    if not self._missing_on(node, wanted, replicas, thrifty, sparing, growing):
                        return []
        return self._missing_on(nodes[0], wanted, replicas, thrifty, sparing, growing)

    def _missing_on(
        self,
        node: int,
        wanted: list[list[int]],
        replicas: int,
        thrifty: bool,
        sparing: int,
        growing: bool,
    ) -> list[tuple[int, int]]:
        missing = []
        for group in wanted:
            self.table.pages.begin_search()
            if not self.make_all_ready(node, group, replicas, thrifty, sparing, growing):
                missing.append((max(group), self.table.pages.refused))
        return missing

    def _by_kind(self, sizes: list[int]) -> list[list[int]]:
        """The sizes of each kind of memory that they take."""
        found: dict[tuple[int, int], list[int]] = {}
        for size in sizes:
            size_class = self._block_class(size)
            blocks = self._blocks_for(size) if size_class == LARGE_CLASS else 0
            found.setdefault((size_class, blocks), []).append(size)
        return list(found.values())

    def _block_class(self, size: int) -> int:
        """The class of the blocks that objects of a size lie in."""
        return int(self.heap.block_class(self.heap.size_class(size)))

    def _bits(self, group: list[int]) -> int:
        """How many used bits objects of these sizes, of one kind, have; of whole paged blocks."""
        size_class = self._block_class(group[0])
        if size_class != self.heap.page_class:
            return len(group)
        blocks = sum(self._blocks_for(size) for size in group)
        return blocks * int(self.heap.object_count(size_class))

    def make_all_ready(
        self,
        node: int,
        group: list[int],
        replicas: int,
        thrifty: bool,
        sparing: int = 0,
        growing: bool = False,
    ) -> bool:
        """Make objects of these sizes, of one kind, ready; as `make_ready`."""
        if self._block_class(group[0]) != self.heap.page_class:
            count = len(group)
            return self.make_ready(node, group[0], replicas, thrifty, count, sparing, growing)
        counts = [self.heap.runs[self.heap.size_class(size)] for size in group]
        runs = self.slabs.runs_of(node, replicas)
        slabs = runs.slabs
        self._find_freed(slabs)
        runs.clear_aside()
        if growing and self._is_reserve_gone(node, replicas):
            runs.set_aside(max(counts))
        ready = sum(slab.ready_count for slab in slabs)
        total = sum(slab.count for slab in slabs)
        fits = runs.fit(counts)
        if fits and (thrifty or ready * SLACK_SHARE >= total):
            return True
        self._look_for_shortage(node, replicas)
        # More blocks without an owner are of no use while those that we have are pending.
        adopt = fits or not runs.fit(counts, pending=True)
        while claims := self.claims.pages(node, counts, replicas, sparing, runs, adopt):
            self._sight_laggard(slabs)
            for block, adopted in claims:
                slab = Slab(self.heap, node, block, self.heap.page_class, replicas, not adopted)
                self.slabs.add(slab)
                if adopted:
                    self._find_freed([slab])
            if runs.fit(counts):
                return True
            adopt = adopt and not runs.fit(counts, pending=True)
        return fits

    def _sight_laggard(self, slabs: list[Slab]) -> None:
        epochs = [slab.pending_epoch for slab in slabs if slab.pending_count]
        self.claims.sight_laggard(min(epochs, default=0))

    def make_ready(
        self,
        node: int,
        size: int,
        replicas: int,
        thrifty: bool,
        count: int = 1,
        sparing: int = 0,
        growing: bool = False,
    ) -> bool:
        """Make `count` objects of this size, which is no run of pages, ready; False: there is no
        memory for all of them.

        `thrifty`: no more than that. `sparing`: leave so many free blocks of the node. `growing`:
        they are for new entries, so leave some memory for updates.
        """
        size_class = self.heap.size_class(size)
        if size_class == LARGE_CLASS:
            return self.spans.make_ready(node, self._blocks_for(size), replicas, count, sparing)
        slabs = self.slabs.of(self.slabs.kind(node, size_class, replicas))
        self._find_freed(slabs)
        self._reach(slabs, count + growing)
        self._keep(node, slabs, replicas, growing)
        ready = sum(slab.ready_count - slab.kept for slab in slabs)
        total = sum(slab.count for slab in slabs)
        if ready >= count and (thrifty or ready * SLACK_SHARE >= total):
            return True
        self._look_for_shortage(node, replicas)
        pending = sum(slab.pending_count for slab in slabs)
        while claim := self.claims.slab(
            # As in `make_all_ready`.
            node, size_class, replicas, sparing, ready >= count or ready + pending < count
        ):  # fmt: skip
            self._sight_laggard(slabs)
            block, adopted, backed = claim
            slab = Slab(
                self.heap, node, block, size_class, replicas, not adopted, self.table.pages, backed
            )
            self.slabs.add(slab)
            if adopted:
                self._find_freed([slab])
            slab.reach(max(count - ready, 0))
            ready += slab.ready_count - slab.kept
            pending += slab.pending_count
            if ready >= count:
                break
        return sum(slab.ready_count - slab.kept for slab in slabs) >= count

    def _find_freed(self, slabs: list[Slab]) -> None:
        find_freed(slabs, self.grace)

    def _reach(self, slabs: list[Slab], count: int) -> None:
        """Have pages behind so many ready objects, as far as there is room for pages."""
        for slab in slabs:
            usable = slab.reach(count)
            count = count - usable if usable < count else 0

    def _keep(self, node: int, slabs: list[Slab], replicas: int, growing: bool) -> None:
        """Reserve one of the objects for updates, if this is for a new entry and some of the blocks
        reserved for updates have gone."""
        for slab in slabs:
            slab.kept = slab.barred
        if growing and self._is_reserve_gone(node, replicas):
            for slab in slabs:
                if slab.ready_count > slab.barred:
                    slab.kept += 1
                    return

    def _is_reserve_gone(self, node: int, replicas: int) -> bool:
        return not self.claims.has_free(node, replicas, self.reserve_of(replicas))

    def _look_for_shortage(self, node: int, replicas: int) -> None:
        """Whether few blocks are free while most of our own memory is not in use.

        A client has blocks of its own for each size class. If many clients or sizes make these too
        many for a node, the client uses only every fourth class.
        """
        mine = self.slabs.all()
        ready = sum(slab.ready_count / slab.count for slab in mine)
        enough = -(-self.table.count // SHORT_SHARE)
        self.coarse = ready * 2 > len(mine) and self.relief.is_scarce(node, replicas, enough)

    def reclaim(
        self, attempt: int, shortage: Shortage, needed: dict[int, int] | None = None
    ) -> bool:
        """Get memory from any source (claims.py); False when no more can be had."""
        return self.relief.reclaim(attempt, shortage, needed or {})
