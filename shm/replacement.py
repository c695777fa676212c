"""Replacing a memory node: new memory for one that is lost, filled from the nodes that are left.

FUSEE gives this to its master (section 5.2); here the client that calls `pool.replace_node` does
it, as the leader of a change of the view (view.py). Steps, with the node's state word (states.py):

    1. new memory: a new segment, of the next generation; no other client knows of it
    2. EXCLUDED -> RESTORING, of that generation; wait until all others that could change replica
       sets, or objects or slots with replicas, are parked. Begin again if one of them is dead
    3. fill the new memory: block words, used bits and contents of every replica set that has a
       place on the node (`Filling`), then the tables of the replicated stores (`Contents.refill`)
    4. unless other nodes are lost: free objects with replicas that no store links to and no client
       journal names. Their link was on the lost node only, written by a client that died
    5. raise the pressure: owners look again at the words of their blocks (allocator.py)
    6. RESTORING -> IN_SERVICE; view += 1. Here it happens: others map the new memory and use it

Another node that is lost meanwhile is FAILED until the view has changed, and before that no client
can judge its loss: the replacement begins anew, also if a store has raised an error (trap F12).

A kill leaves behind: RESTORING, and a leader that is dead; the next leader sets the node back to
EXCLUDED. No client has read the memory that was filled. Only three things change elsewhere, and
each does no harm: slots whose replicas differed have the value of the primary; backups whose
primary was on the lost node have a new mark, so that a sweep which began while it was lost finds
its CASes refused; and some replicas of unlinked objects are free already, and the next leader frees
the others.

A replica set exists if its primary is left, or, if that is lost, all backups that are left (if some
are missing, the set was being claimed or given back, and has no object). A primary comes back
without an owner, to be adopted. Bits and contents are copied from the first replica that is left,
which is the one that readers use. An object that is in a client's journal is copied, used or not:
it may be free by now, and its client has yet to read there how the round ended. Replica sets that
were claimed while the node was lost find their place free, since no place was promised to two sets
(replica_sets.py).

The new memory gets the pages that are needed, as in shm/pages.py: of a slab, those up to
the last object that is copied, and at least the first part; and the whole of other blocks. Clients
forget, when they map it, how far their slabs have pages (`Allocator.replaced`), and where objects
were that may be free by now (caches of stores). Of the replica that is left only what has pages is
read, since reading a page that is missing would allocate it, or end in SIGBUS: pages are there up
to the last object in use, and up to one in a client journal if the kernel grants them. (If not, it
was no object's name.) A file system that has no room for all of this is StoreFull; then the node
stays EXCLUDED, and the new memory is given up.

A node that was added to the pool (growth.py) is replaced only when no link leads to an object
without replicas there: such links are on other nodes, and nothing tells a client that what they led
to is gone.

A process that has the old memory mapped is refused by every verb, as the node's word is another
(verbs.pyx).
On device DAX the new memory is on the old device, and a process that stands still inside a verb
could write to it afterwards; so there no other client may have the pool open.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np

from limpet.shm.backends import node as nodes
from limpet.shm.clients.events import NODE_RESTORED
from limpet.shm.endpoint.layout import (
    NODE_SHIFT,
    NODE_STATES,
    OFFSET_MASK,
    PRESSURE,
    SUPERBLOCK_SIZE,
)
from limpet.shm.endpoint.states import (
    EXCLUDED,
    IN_SERVICE,
    RESTORING,
    generation_of,
    node_word,
    state_of,
)
from limpet.shm.endpoint.words import (
    BACKUP,
    LARGE,
    LARGE_CLASS,
    REPLICAS_BITS,
    SLAB,
    TAIL,
    TAIL_CLASS,
    block_word,
    class_of,
    replicas_of,
    stamp,
    tail_word,
)
from limpet.shm.errors import NodeFailed, ParameterError, StoreFull
from limpet.shm.replicas.replica_sets import BACKUP_KINDS, PRIMARY_KINDS
from limpet.shm.uninterrupted import uninterrupted

if TYPE_CHECKING:
    from limpet.shm.alloc.allocator import Allocator
    from limpet.shm.alloc.blocks import BlockTable
    from limpet.shm.arrays import Words
    from limpet.shm.catalogue.regions import Regions
    from limpet.shm.clients.epoch import Grace
    from limpet.shm.clients.membership import Membership
    from limpet.shm.contents import Contents
    from limpet.shm.endpoint.fabric import Endpoint
    from limpet.shm.endpoint.layout import NodeLayout
    from limpet.shm.mapped_nodes import MappedNodes
    from limpet.shm.parameters import PoolParameters
    from limpet.shm.replicas.view import View


class PoolMemory(Protocol):
    """The pool whose node is replaced (shm/pool.py), as it is seen here."""

    url: str
    uuid: bytes
    parameters: PoolParameters
    layout: NodeLayout
    endpoint: Endpoint
    client: Any
    membership: Membership
    grace: Grace
    view: View
    heap: Any
    blocks: BlockTable
    allocator: Allocator
    regions: Regions
    contents: Contents
    mapped: MappedNodes
    remote: bool

    def strays(self) -> list[int]: ...


CHUNK: Final = 1 << 20
"""Bytes that are copied between two updates of the progress word."""


def copy(membership: Membership, source: int, target: int, size: int) -> None:
    """Copy `size` bytes from one address to another, and show progress meanwhile."""
    endpoint: Endpoint = membership.endpoint
    for done in range(0, size, CHUNK):
        part = min(CHUNK, size - done)
        endpoint.write(target + done, endpoint.read(source + done, part))
        membership.progress()


class Replacement:
    """The replacement of one memory node of a pool, by one of its clients."""

    def __init__(self, memory: PoolMemory, node: int) -> None:
        self.memory = memory
        self.node = node
        self.view = memory.view
        self.endpoint = memory.endpoint
        self.membership = memory.membership
        self.location = nodes.parse_url(memory.url)

    def run(self) -> dict[str, Any]:
        """Replace the node; results and errors as of `PoolCore.replace_node`."""
        began_ns = time.monotonic_ns()
        self.view.fail_if_lost(self.node)
        done: dict[str, Any] = self.view.led_once(lambda: self._attempt(began_ns))
        return done

    def _attempt(self, began_ns: int) -> dict[str, Any] | None:
        """Replace it, as the leader; None: begin again, as another node or client was lost."""
        word = self.view.word(self.node)
        if self.view.unsettled():
            return None
        self._require_lost(word)
        self._require_unlinked()
        self._require_alone()
        self.memory.mapped.unmap(self.node)
        segment = uninterrupted(
            lambda: self.memory.mapped.make(self.node, generation_of(word) + 1),
            self.memory.mapped.discard,
        )
        try:
            return self._replace(segment, word, began_ns)
        except NodeFailed as error:
            if error.node != self.node:
                self.view.fail_if_lost(error.node)
            elif not self.view.failed():
                raise
            return None
        finally:
            self._give_up_unless_done(segment)

    def _give_up_unless_done(self, segment: nodes.MemoryNode) -> None:
        # CRASH(node-restoring): the next leader sets the node back to EXCLUDED.
        self.view.move(self.node, RESTORING, EXCLUDED)
        if self.view.word(self.node) != node_word(segment.generation, IN_SERVICE):
            self.memory.mapped.discard(segment)
            self.memory.mapped.unmap(self.node)

    # ---- conditions ---------------------------------------------------------------------------

    def _require_lost(self, word: int) -> None:
        if state_of(word) != EXCLUDED:
            raise ParameterError(
                f"{self.memory.url}: node {self.node} is in service; only one that is lost, or was "
                "marked so (pool.fail_node), is replaced"
            )

    def _require_unlinked(self) -> None:
        """Refuse a node that was added, while there are links to what only it had: on new memory
        they would lead to other data."""
        if self.node < self.memory.parameters.nodes:
            return  # the links are on the same node
        found = self.memory.contents.references()
        there = found >> np.uint64(NODE_SHIFT) & np.uint64(0xFF) == self.node
        if (there & (found & np.uint64(REPLICAS_BITS) == 0)).any():
            raise ParameterError(
                f"{self.memory.url}: node {self.node} was added to the pool, and had data without "
                "replicas to which others still link; drop the stores and remove the channels that "
                "raise NodeFailed, and replace it then"
            )

    def _require_alone(self) -> None:
        """Refuse while other processes have the memory mapped, if it is to be used again."""
        if not self.location.reuses_memory:
            return
        others = [
            self.membership.process(slot, word)
            for slot, word in self.membership.occupied()
            if not self.membership.ours(slot)
        ]
        if others:
            raise ParameterError(
                f"{self.memory.url}: a device is used again only when no other process has the "
                f"pool open; close it in {', '.join(others)} first"
            )

    # ---- the new memory -----------------------------------------------------------------------

    def _replace(
        self, segment: nodes.MemoryNode, word: int, began_ns: int
    ) -> dict[str, Any] | None:
        memory, endpoint, node = self.memory, self.endpoint, self.node
        restoring = node_word(segment.generation, RESTORING)
        in_service = node_word(segment.generation, IN_SERVICE)
        at = NODE_STATES + 8 * node
        if endpoint.cas(at, word, restoring) != word:
            return None
        memory.mapped.use(segment, restoring)
        self.view.quiesce()
        if any(
            self.membership.dead(slot, state)
            for slot, state, _, _ in memory.grace.pinned()
            if not self.membership.ours(slot)
        ):
            return None  # its client journal is settled before the view changes
        self._format(segment)
        # ORDER: before the stores allocate there: blocks that we had in the old memory are free.
        memory.allocator.formatted()
        filled = Filling(memory, node).run()
        stores = memory.contents.refill(node)
        strays = memory.strays() if self._others_serve() else []
        # ORDER: after the look, in which links that only a lost node had are not found.
        if self.view.failed() or (strays and not self._others_serve()):
            return None
        for stray in strays:
            memory.heap.free(stray)
        # ORDER: the pressure before the node is in service: old owners must forget their blocks.
        endpoint.faa(PRESSURE, 1)
        # CRASH(node-filled): complete, and used by no client.
        if endpoint.lost(node) or endpoint.cas(at, restoring, in_service) != restoring:
            raise NodeFailed(node, "its new memory was lost while it was being filled")
        endpoint.expect(node, in_service)
        memory.allocator.replaced(node)
        took_ns = time.monotonic_ns() - began_ns
        self.membership.note(NODE_RESTORED, node, 0, took_ns)
        done = {name: filled[name] + stores[name] for name in filled}
        return {"node": node, "generation": segment.generation, **done, "took_ns": took_ns}

    def _others_serve(self) -> bool:
        """Whether all other nodes are in service."""
        return all(
            state == IN_SERVICE and not self.endpoint.lost(node)
            for node, state in enumerate(self.view.states())
            if node != self.node
        )

    def _format(self, segment: nodes.MemoryNode) -> None:
        """Zero the tables, unless the memory is zero, and write the superblock."""
        if not segment.zeroed:
            base = self.memory.heap.table_word(self.node, 0) - self.memory.layout.block_table
            for start in range(SUPERBLOCK_SIZE, self.memory.layout.blocks, CHUNK):
                size = min(CHUNK, self.memory.layout.blocks - start)
                self.endpoint.write(base + start, bytes(size))
                self.membership.progress()
        uninterrupted(lambda: self.memory.mapped.finish(segment))


class ReplicaSet(NamedTuple):
    """A replica set with a place on the lost node.

    Number of replicas; which of them the place is; size class, or TAIL_CLASS; node and block of the
    primary; those of the first replica that is left; the backups that are left, with their words.
    """

    replicas: int
    part: int
    size_class: int
    primary: tuple[int, int]
    source: tuple[int, int]
    backups: list[tuple[int, int, int]]


class Filling:
    """Makes the members of replica sets anew that have a place on a node. For a leader."""

    def __init__(self, memory: PoolMemory, node: int) -> None:
        self.memory = memory
        self.node = node
        self.table = memory.blocks
        self.heap = memory.heap
        self.groups = memory.blocks.groups
        self.endpoint = memory.endpoint
        self.mark = stamp(memory.grace.close_period())
        self.client = memory.membership.ident
        self.words: dict[int, Words] = {
            other: self.table.words(other)
            for other, state in enumerate(memory.view.states())
            if state == IN_SERVICE
        }
        self.in_journals: dict[tuple[int, int], int] = {}
        """By node and block of the primaries of all objects in client journals, and of the objects
        that have the links: how far from the beginning of a block the last of them begins."""
        for pair in memory.view.journals():
            for reference in pair:
                self._note_in_journal(reference)
        self.found = dict.fromkeys(("objects", "blocks", "regions", "bytes"), 0)
        self.first = -1
        """Block of the primary of the span that the last primary began, or followed; else -1."""
        self.spans_used = False
        """Whether the object of the last span is in use."""

    def run(self) -> dict[str, int]:
        """Make all of them; the numbers of objects, blocks and bytes that were copied."""
        for block in range(self.table.count):
            replica_set = self._set_at(block)
            if replica_set is None or not self._make(block, replica_set):
                self.first = -1
            self.memory.membership.progress()
        return self.found

    def _note_in_journal(self, reference: int) -> None:
        within = ((reference & OFFSET_MASK) - self.heap.blocks) % self.heap.block_size
        first, last = self.heap.block_of(reference), self.heap.last_block_of(reference)
        for block in range(first, last + 1):
            place = reference >> NODE_SHIFT & 0xFF, block
            self.in_journals[place] = max(self.in_journals.get(place, 0), within)

    # ---- what belongs there ---------------------------------------------------------------------

    def _set_at(self, block: int) -> ReplicaSet | None:
        """The replica set that has a place at that block of the node."""
        found = [
            replica_set
            for replicas in range(2, self.heap.placement.replicas_max + 1)
            if (replica_set := self._set_of(block, replicas)) is not None
        ]
        if len(found) > 1:
            raise StoreFull(
                f"{self.memory.url}: two replica sets need block {block} of node {self.node}; "
                "delete entries, and replace the node again"
            )
        return found[0] if found else None

    def _set_of(self, block: int, replicas: int) -> ReplicaSet | None:
        members = self.groups.members(self.node, block, replicas)
        if not members:
            return None
        left = {
            k: int(self.words[there][at])
            for k, (there, at) in enumerate(members)
            if there in self.words
        }
        if 0 in left:
            primary = left[0]
            if primary >> 60 not in PRIMARY_KINDS or replicas_of(primary) != replicas:
                return None
            size_class = TAIL_CLASS if primary >> 60 == TAIL else class_of(primary)
        else:
            shapes = {
                (word >> 60 in BACKUP_KINDS, replicas_of(word), class_of(word))
                for word in left.values()
            }
            if len(shapes) != 1:
                return None  # it is lost, or in part
            is_backup, there, size_class = shapes.pop()
            if not is_backup or there != replicas:
                return None
        if size_class >= self.heap.class_count and size_class != TAIL_CLASS:
            return None  # damaged; an audit shows it
        part = members.index((self.node, block))
        backups = [(*members[k], word) for k, word in left.items() if k]
        return ReplicaSet(replicas, part, size_class, members[0], members[min(left)], backups)

    # ---- making it ------------------------------------------------------------------------------

    def _make(self, block: int, replica_set: ReplicaSet) -> bool:
        """Make the set's member here; whether it belongs to a span with its primary here."""
        if replica_set.part == 0:
            word = self._primary_word(block, replica_set)
            if not word or not self._mark_anew(replica_set):
                return False  # its backups are swept
        else:
            word = block_word(BACKUP, self.mark, replica_set.size_class, replica_set.replicas)
        self._copy(block, replica_set)
        self.endpoint.store(self.heap.table_word(self.node, block), word)
        self.found["blocks"] += 1
        return self.first >= 0

    def _primary_word(self, block: int, replica_set: ReplicaSet) -> int:
        """The word of a primary without an owner; 0: of a tail whose span has no beginning."""
        if replica_set.size_class == TAIL_CLASS:
            return (
                tail_word(self.first, self.client, replica_set.replicas) if self.first >= 0 else 0
            )
        is_span = replica_set.size_class == LARGE_CLASS
        self.first = block if is_span else -1
        return block_word(
            LARGE if is_span else SLAB, 0, replica_set.size_class, replica_set.replicas
        )

    def _mark_anew(self, replica_set: ReplicaSet) -> bool:
        """Give the backups that are left a mark that no sweep has seen; False: one is gone."""
        backup = block_word(BACKUP, self.mark, replica_set.size_class, replica_set.replicas)
        return all(
            self.table.move(node, at, word, backup) for node, at, word in replica_set.backups
        )

    def _copy(self, block: int, replica_set: ReplicaSet) -> None:
        """Copy used bits, and contents if there can be any, from the first replica that is left."""
        node, at = replica_set.source
        if replica_set.size_class != TAIL_CLASS:
            bits = self.table.bitmap(node, at, replica_set.size_class)
            self.endpoint.write(self.heap.bitmap(self.node, block), bits.tobytes())
            used = int(np.unpackbits(bits.view(np.uint8)).sum())
            self.found["objects"] += used
            self.spans_used = bool(used)
        size = self._size_of(replica_set)
        self._back(block, replica_set.size_class, size)
        if size:
            source = self.heap.reference(node, at, LARGE_CLASS, 0)
            target = self.heap.reference(self.node, block, LARGE_CLASS, 0)
            copy(self.memory.membership, source, target, size)
            self.found["bytes"] += size

    def _size_of(self, replica_set: ReplicaSet) -> int:
        """How many of the first bytes of the block are copied; the source has pages for them."""
        pages, size_class = self.table.pages, replica_set.size_class
        in_journal = self.in_journals.get(replica_set.primary)
        if pages.is_whole(size_class):
            copied = self.spans_used or in_journal is not None
            return int(self.heap.block_size) if copied else 0
        size = self.heap.sizes[size_class]
        used = self.table.used_bits(*replica_set.source, size_class).bit_length() * size
        if in_journal is not None:
            end = min(in_journal // size + 1, self.heap.object_count(size_class)) * size
            if end > used and pages.ask(*replica_set.source, used, end):
                return int(end)
        return int(used)

    def _back(self, block: int, size_class: int, size: int) -> None:
        """Allocate the pages of a block, of which so many bytes are copied."""
        pages = self.table.pages
        whole = pages.is_whole(size_class)
        least = self.heap.block_size if whole else pages.first_part(size_class)
        if not pages.ask(self.node, block, 0, max(size, least)):
            raise StoreFull(
                f"{self.memory.url}: the file system of node {self.node} has no room for what "
                "belongs there; make room, and replace the node again"
            )
