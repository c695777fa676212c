"""The places of an object's replicas: primaries and their backups (FUSEE section 4.4).

The paper keeps each region of memory on r nodes, the first of which is its primary, and finds them
by consistent hashing. Ours are as many as a node has regions of equal length, counted from its end;
blocks that do not fill a region are the first ones, where named regions begin.

The nodes of a pool are a ring in the order of their numbers. Nodes that are added later
(shm/growth.py) are rings of their own, so that no replica moves when they come. For r replicas, of
r adjacent regions of a node
the first has objects of its own, as their primary; the next has replica 1 of the node before it,
the next replica 2 of the one before that, and so on. So

    replica k of (node, block) = (node + k modulo the nodes of its ring, block + k regions)

Properties: the r replicas of an object lie on r nodes, and those of all objects with their
primaries on one node lie on the same r nodes. (So the buffers of a register lie beside its
replicas, and are lost together with them.) For one r, no block is in two replica sets. Of each
node, the same number of regions are primaries and replica 1, 2, ...; fewer than r regions of each
node have no place. All follows from the number of nodes of a ring and the geometry. A
ring of fewer than r nodes has no objects with r replicas.

The address of the primary is the address of the object; the number of replicas is in its reference
(words.py). Replica sets of different r overlap: a client claims each block of a set
(replica_sets.py).

Deviation: the nodes of a ring are fixed, so it has one point a node, and none is ever moved; the
bound on the load is exact instead of approximate. A node that is lost hands its load to the next
one. Nodes that are added take new objects only.
"""

from __future__ import annotations

from array import array
from typing import Final

from limpet.shm.endpoint.states import Ring
from limpet.shm.endpoint.words import REPLICAS_MAX
from limpet.shm.errors import ParameterError, PoolCorrupt

NODES: Final = 256
"""Entries of tables by node: nodes that are added need no larger ones."""
REGIONS_MAX: Final = 64
REGIONS_MIN: Final = 2 * REPLICAS_MAX
"""As long as a node has that many blocks; so there are at least two primaries for every r."""
REGION_SIZE: Final = 2 << 20
"""Bytes of a region if the node is large enough: a replicated object is no larger than one."""


class ReplicaLayout:
    """Replicas of the blocks of nodes with `block_count` blocks of `block_size` bytes. The first
    ring has `nodes` nodes; `add_ring` adds others."""

    def __init__(self, nodes: int, block_count: int, block_size: int) -> None:
        self.nodes = nodes
        """All nodes, also those that were added."""
        self.rings = [Ring(0, nodes, True)]
        self.firsts = array("Q", bytes(8 * NODES))
        self.counts = array("Q", [*[nodes] * nodes, *[0] * (NODES - nodes)])
        """For each node, the first one and the number of nodes of its ring."""
        least = -(-block_count // REGIONS_MAX)
        wanted = 1 << (max(REGION_SIZE // block_size, 1) - 1).bit_length()
        most = min(wanted, block_count // REGIONS_MIN)
        # a power of two, as divisions would take most of the time of a look-up
        self.region_shift = max((least - 1).bit_length(), most.bit_length() - 1, 0)
        self.region_blocks = 1 << self.region_shift
        self.regions = block_count // self.region_blocks
        self.first = block_count % self.region_blocks
        self.replicas_max = min(nodes, self.regions, REPLICAS_MAX)
        self.limits = array("Q", bytes(8 * (REPLICAS_MAX + 1)))
        """For each number of replicas, how many of a node's regions belong to replica sets."""
        for replicas in range(1, self.replicas_max + 1):
            self.limits[replicas] = self.regions // replicas * replicas

    def add_ring(self, ring: Ring) -> None:
        """Note a ring whose nodes follow those that are known, for `use_rings`. May be repeated."""
        for node in ring.nodes:
            self.firsts[node] = ring.first
            self.counts[node] = ring.count
        self.rings = [*[known for known in self.rings if known.first < ring.first], ring]

    def use_rings(self) -> None:
        """Go by the rings that were noted: compiled code trusts the numbers of their nodes."""
        last = self.rings[len(self.rings) - 1]
        self.nodes = last.first + last.count

    def look_again(self, number: int, word: int) -> Ring:
        """The ring of this number, which has this word now."""
        self.rings[number] = Ring.of(word)
        ring: Ring = self.rings[number]
        return ring

    def check(self, replicas: int) -> None:
        """Raise ParameterError when there cannot be that many replicas."""
        if not 1 <= replicas <= self.replicas_max:
            raise ParameterError(
                f"an object of this pool has 1 to {self.replicas_max} replicas, not {replicas}: "
                f"at most one on each of its {self.rings[0].count} nodes, one in each of the "
                f"{self.regions} regions of a node, and {REPLICAS_MAX}"
            )

    def part(self, block: int, replicas: int) -> int:
        """Which replica the block has in sets of `replicas`; -1: it belongs to none."""
        region = (block - self.first) >> self.region_shift
        if block < self.first or region >= self.regions // replicas * replicas:
            return -1
        return region % replicas

    def same_region(self, block: int, other: int) -> bool:
        """Whether two blocks of a node, both in regions, are in the same one."""
        return not (block - self.first ^ other - self.first) >> self.region_shift

    def node_of(self, node: int, block: int, replicas: int, steps: int) -> int:
        """The node `steps` places after this one on the ring.

        Raises PoolCorrupt for a block that belongs to no set of `replicas`.
        """
        region = (block - self.first) >> self.region_shift
        known = node < self.nodes and replicas <= self.replicas_max and steps <= self.counts[node]
        if not known or block < self.first or region >= self.limits[replicas]:
            raise PoolCorrupt(
                f"block {block} of node {node} is said to be in a set of {replicas} replicas, "
                "which cannot be; destroy the pool"
            )
        there = node + steps
        count = self.counts[node]
        return there - count if there >= self.firsts[node] + count else there

    def beside(self, node: int, steps: int) -> int:
        """The node `steps` places after this one on its ring, or before it if negative."""
        first, count = self.firsts[node], self.counts[node]
        return int(first + (node - first + steps) % count)

    def has_sets(self, node: int, replicas: int) -> bool:
        """Whether a node can have the primaries of sets of so many replicas."""
        return node < self.nodes and replicas <= min(self.replicas_max, self.counts[node])

    def backup(self, node: int, block: int, replicas: int, k: int) -> tuple[int, int]:
        """Node and block of replica `k` of what has its primary in (node, block)."""
        return self.node_of(node, block, replicas, k), block + k * self.region_blocks

    def primary(self, node: int, block: int, replicas: int) -> tuple[int, int, int] | None:
        """Node and block of the primary of which (node, block) holds replica k, and k; or None."""
        k = self.part(block, replicas)
        if k < 1:
            return None if k < 0 else (node, block, 0)
        there = self.node_of(node, block, replicas, self.counts[node] - k)
        return there, block - k * self.region_blocks, k

    def starts(self, replicas: int) -> range:
        """The first block of each region of a node that has primaries of sets of `replicas`."""
        turn = replicas * self.region_blocks
        return range(self.first, self.first + self.regions // replicas * turn, turn)
