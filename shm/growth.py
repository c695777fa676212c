"""Adding memory nodes to a pool in use: a ring of new nodes, where clients allocate from then on.

The client that calls `pool.add_node` does it, as the leader of a change of the view (view.py), as
it is done for a node that is replaced (replacement.py). Nodes that are added together are a ring
(replica_layout.py), so no object moves, and no address of a replica changes. Ring words: states.py.

Steps, for each ring
    1. new memory: segments of the next node numbers, formatted; no other client knows of them
    2. the ring's word: 0 -> its nodes, closed. From now on the pool has these nodes
    3. DROPS += 1; view += 1; then wait until every client that was pinned before is unpinned,
       parked or dead. A client maps the new nodes when its pin finds that DROPS has changed
       (`Client.pin`), or when it comes out of a park (`View.remap`)
    4. the word: closed -> OPEN. From now on clients allocate there. Then view += 1, as the leader
       resigns

Why no client meets an address on a node that it has not mapped: an object there was allocated after
step 4. An operation that was pinned before step 3 is over by then, or will map the nodes before it
goes on; one that is pinned later has mapped them. Gets without a pin (race/glance.py) may meet such
an address: the verb fails, and the get begins again with a pin. A process that does nothing maps
nothing, and keeps nobody waiting: it maps the nodes at its next operation. A client that stands
still inside an operation keeps step 3 waiting. Once its lease is over it is fenced, as for a node
that is replaced, unless the pool's policy forbids that; then `add_node` waits.

Where memory comes from: an object is for the node of its key's directory, as before. When that node
has none, its client takes it from a node that was added (`Claims.others`): for subtables, leaves,
values and objects of channels. With r replicas it takes rings of r nodes or more. Regions stay
where they are: directories, index tables of a fixed size, channels. So a directory's own limit
stays, too.

A kill leaves behind
    before step 2   segments that no word names. The next `add_node` removes them; `destroy`, too
    before step 4   a closed ring: mapped, free, and used by nobody. The next `add_node` or
                    `recover` goes on with step 3
In both cases no byte of the pool is missing, and `audit` counts the nodes of a closed ring as free.
Only a leader writes ring words. A leader that was taken for dead is dead (view.py), so no word is
written late.

Objects without replicas on a node that was added are linked from other nodes. If the node is lost,
these links lead nowhere, so it is replaced only when there are none (`Replacement`).

Refused, with ParameterError: device DAX, as the devices are in the URL; durable pools; pools that
had remote clients (net://), and remote clients of a pool with added nodes: a server serves the
nodes that its pool had when it was started. A client looks at the ring words after it has set
REMOTES in DROPS, and the leader at REMOTES after step 2: at least one of them sees the other.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Final

from limpet.shm.backends import node as nodes
from limpet.shm.clients.events import NODE_ADDED
from limpet.shm.endpoint.layout import DROPS, LEADER, REMOTES, RINGS
from limpet.shm.endpoint.states import Ring, count_nodes
from limpet.shm.errors import ParameterError, PoolCorrupt
from limpet.shm.parameters import NODES_MAX, check_whole, parse_size
from limpet.shm.replicas.view import IDENT_MASK
from limpet.shm.uninterrupted import uninterrupted

if TYPE_CHECKING:
    from limpet.shm.replacement import PoolMemory

SERVED: Final = (
    "{}: remote clients (net://) use the nodes that a pool had when its server was started; a pool "
    "has either remote clients or added nodes"
)


def know_rings(memory: PoolMemory) -> bool:
    """Map the nodes of all rings, and know them; whether there were new ones.

    Raises NodeFailed when a node's memory cannot be mapped, ClientError when this process has no
    descriptor for it, PoolCorrupt when a ring word is damaged.
    """
    placement = memory.heap.placement
    before = placement.nodes
    while True:
        known = sum(ring.first < placement.nodes for ring in placement.rings)
        word = memory.endpoint.load(RINGS + 8 * (known - 1))
        if not word:
            return bool(placement.nodes != before)
        ring = Ring.of(word)
        if not count_nodes(placement.nodes, (word,)):
            raise PoolCorrupt(f"{memory.url}: a word of its added nodes is damaged: {word:#x}")
        memory.mapped.map_ring(ring, memory.view)
        # ORDER: what is there for each node before the number of nodes, by which all is used; a
        # signal handler that raises in between has it be done again.
        memory.regions.know_nodes(ring.first + ring.count)
        memory.heap.add_ring(ring)
        memory.view.nodes = ring.first + ring.count
        memory.allocator.know_nodes()
        placement.use_rings()


def require_local(memory: PoolMemory) -> None:
    """Raise ParameterError for a remote client of a pool with added nodes."""
    if memory.remote and memory.endpoint.load(RINGS):
        raise ParameterError(SERVED.format(memory.url))


def finish(memory: PoolMemory) -> bool:
    """Open the ring that a killed client has left closed; whether there was one.

    Within `exclusively`, not pinned.
    """
    know_rings(memory)
    placement, endpoint = memory.heap.placement, memory.endpoint
    number = len(placement.rings) - 1
    if placement.rings[number].is_open:
        return False
    ring = placement.look_again(number, endpoint.load(RINGS + 8 * (number - 1)))
    leader = endpoint.load(LEADER) & IDENT_MASK
    if ring.is_open or (leader and memory.membership.lives(leader)):
        return False
    if endpoint.load(DROPS) & REMOTES:
        return False
    Growth(memory, 0).run()
    return True


class Growth:
    """The addition of a ring of `count` nodes to a pool, by one of its clients; 0: of none, only
    what another client has begun is finished."""

    def __init__(self, memory: PoolMemory, count: int) -> None:
        self.memory = memory
        self.count = count
        self.view = memory.view
        self.endpoint = memory.endpoint
        self.location = nodes.parse_url(memory.url)

    @staticmethod
    def rings_for(memory: PoolMemory, size: int | str | None, count: int) -> int:
        """How many rings of `count` nodes have `size` bytes a node of them; None: one. Raises
        ParameterError if they cannot be added."""
        url, node_size = memory.url, memory.parameters.node_size
        location = nodes.parse_url(url)
        if location.endpoint_class is not None or memory.endpoint.load(DROPS) & REMOTES:
            raise ParameterError(SERVED.format(url))
        if not location.takes_nodes:
            raise ParameterError(
                f"{url}: its nodes are the devices that its URL names; no node can be added. Save "
                "it (`limpet snapshot`), and restore it on more devices"
            )
        if memory.parameters.durable:
            raise ParameterError(
                f"{url} is durable: its nodes are those that it was made with; save what is there, "
                "and make a larger pool"
            )
        check_whole("count", count, 1, NODES_MAX)
        rings = 1
        if size is not None:
            rings = -(-parse_size(size) // node_size)
            if rings < 1:
                raise ParameterError(f"size must be at least 1 byte, not {size!r}")
        left = NODES_MAX - memory.heap.placement.nodes
        if rings * count > left:
            raise ParameterError(
                f"{url}: {rings * count} nodes of {node_size} bytes are too many: a pool has at "
                f"most {NODES_MAX}, and there is room for {left} more"
            )
        return rings

    def run(self) -> list[int]:
        """Add the ring; its nodes. Within `exclusively`, not pinned."""
        began_ns = time.monotonic_ns()
        added: list[int] = self.view.led_once(lambda: self._attempt(began_ns))
        return added

    def _attempt(self, began_ns: int) -> list[int] | None:
        """Add it, as the leader; None: begin again, as a node was lost."""
        know_rings(self.memory)
        if self.view.unsettled():
            return None
        placement = self.memory.heap.placement
        number = len(placement.rings)
        for there in range(1, number):
            self._open(there)
        if not self.count:
            return []
        ring = Ring(placement.nodes, self.count, False)
        self._make(number, ring)
        know_rings(self.memory)
        self._open(number)
        for node in ring.nodes:
            self.memory.membership.note(NODE_ADDED, node, 0, time.monotonic_ns() - began_ns)
        return list(ring.nodes)

    def _make(self, number: int, ring: Ring) -> None:
        """Steps 1 and 2: make the ring's segments, and publish it."""
        mapped, made = self.memory.mapped, list[nodes.MemoryNode]()
        at = RINGS + 8 * (number - 1)

        def make(node: int) -> None:
            made.append(mapped.make(node, 0))
            self._format(made[-1])

        try:
            for node in ring.nodes:
                # CRASH(nodes-made): segments that no ring word names; the next addition removes
                # them.
                uninterrupted(functools.partial(make, node))
                self.memory.membership.progress()
            # LINEARIZES: the pool has these nodes.
            self.endpoint.cas(at, 0, ring.word)
        finally:
            there = self.endpoint.load(at) == ring.word
            for segment in made:
                if there:
                    segment.close()  # it is mapped like any other client's
                else:
                    mapped.discard(segment)

    def _format(self, segment: nodes.MemoryNode) -> None:
        """Zero the tables, unless the memory is zero, and write the superblock."""
        if not segment.zeroed:
            blocks = self.memory.layout.blocks
            segment.map[:blocks] = bytes(blocks)
        self.memory.mapped.finish(segment)

    def _open(self, number: int) -> None:
        """Steps 3 and 4, of a ring that is known, if it is closed. For the leader."""
        at = RINGS + 8 * (number - 1)
        placement = self.memory.heap.placement
        ring = placement.look_again(number, self.endpoint.load(at))
        if ring.is_open:
            return
        # CRASH(ring-closed): the next addition or recovery goes on from here.
        if self.endpoint.faa(DROPS, 1) & REMOTES:
            raise ParameterError(SERVED.format(self.memory.url))
        self.view.quiesce()
        # LINEARIZES: clients allocate there.
        self.endpoint.cas(at, ring.word, ring.opened().word)
        placement.look_again(number, self.endpoint.load(at))
        # CRASH(ring-open): the ring is in use; only the view has a dead leader.
