"""The pool handles of a simulated cluster (sim_cluster.py), whose memory can be put back.

All of them are in one process, on the same mapped segments. A `CachedPool` has a cache of its own
in front of these.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limpet.shm.backends.backend import Location, SegmentPlace
from limpet.shm.backends.file import FilePlace
from limpet.shm.backends.node import MemoryNode, finish
from limpet.shm.backends.numa import NodeOptions
from limpet.shm.backends.posix import PosixShm
from limpet.shm.clients.liveness import Watcher
from limpet.shm.endpoint.fabric import Endpoint
from limpet.shm.endpoint.simulated import (
    SIMULATED_US,
    CachedEndpoint,
    PoweredEndpoint,
    RemoteEndpoint,
    SimulatedEndpoint,
)
from limpet.shm.endpoint.slots import START_US
from limpet.shm.endpoint.states import IN_SERVICE, node_word
from limpet.shm.errors import PoolNotFound
from limpet.shm.mapped_nodes import MappedNodes
from limpet.stores.pool import Pool

if TYPE_CHECKING:
    from typing_extensions import Self


class SimulatedPlace(FilePlace):
    """A segment in memory that a power cut leaves as the simulator says."""

    def map(self, fd: int, size: int, durable: bool) -> memoryview:
        return super().map(fd, size, False)

    def persist(self, mapping: memoryview, size: int) -> None:
        """Do nothing: a run begins with everything persistent."""


class SimulatedPmem(PosixShm):
    """POSIX shared memory that is taken for persistent memory, in this process only."""

    scheme = "simulated"
    example = "simulated://NAME"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.name}"

    @classmethod
    def everywhere(cls) -> list[Location]:
        return []

    def place(self, index: int, generation: int = 0) -> SegmentPlace:
        return SimulatedPlace(self.path(index, generation))

    def create(
        self, index: int, size: int, options: NodeOptions, generation: int = 0
    ) -> tuple[SegmentPlace, int]:
        place, fd = super().create(index, size, options, generation)
        return SimulatedPlace(place.path), fd

    def warning(self) -> str | None:
        return None


class SurvivorEndpoint(Endpoint):
    """The setup client's view of the memory. In a run, `paused` is called in place of a pause."""

    def __init__(self) -> None:
        self.paused: Callable[[], None] | None = None
        self.ticks = 0
        self.now_us: Callable[[], int] | None = None

    def microseconds(self) -> int:
        """A clock that advances with each look, behind the clocks of all simulated clients; or
        theirs, if that is `now_us`."""
        self.ticks += 1
        return START_US + self.ticks if self.now_us is None else SIMULATED_US + self.now_us()

    def pause(self, attempt: int) -> int:
        if self.paused is None:
            return super().pause(attempt)
        self.paused()
        return 0

    def flush(self, addr: int, size: int) -> int:
        """Do nothing: what this client does outlasts a run anyway."""
        return 0

    def futex_wait(self, addr: int, expected: int, timeout_us: int) -> int:
        if self.paused is not None:
            self.paused()
            timeout_us = 0
        return super().futex_wait(addr, expected, timeout_us)


class NodesMemory:
    """The nodes' memory in a run. Outside the simulator, named segments have this role."""

    def __init__(self) -> None:
        self.gone: set[int] = set()
        """Nodes whose memory is gone, whether clients know it or not."""
        self.given: dict[tuple[int, int], MemoryNode] = {}
        """New memory, by node and generation."""
        self.made: list[MemoryNode] = []
        """All mappings of new memory."""

    def make(self, node: int, generation: int, size: int) -> MemoryNode:
        """New memory for a node, zero-filled."""
        name = f"node {node}, generation {generation}"
        fd = os.memfd_create(f"limpet {name}")
        os.ftruncate(fd, size)
        made, given = (
            MemoryNode(name, node, size, FilePlace(Path(f"/proc/self/fd/{fd}")), each, generation)
            for each in (fd, os.dup(fd))
        )
        self.made += made, given
        self.given[node, generation] = given
        self.gone.discard(node)
        return made

    def open(self, node: int, generation: int) -> MemoryNode:
        """Memory that `make` has made, as other clients have it. Raises PoolNotFound."""
        found = self.given.get((node, generation))
        if found is None:
            raise PoolNotFound(f"node {node} has no such memory (simulated)")
        return found

    def forget(self) -> None:
        """Return to the start of a run. No client uses the new memory any more."""
        self.gone.clear()
        for segment in self.made:
            segment.close()
        self.made.clear()
        self.given.clear()


class RestorableNodes(MappedNodes):
    """A handle's memory nodes, which can be put back; new memory is from `nodes_memory`."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.first = list(self.segments)
        self.nodes_memory = NodesMemory()
        """Set by the cluster, which has one for all handles."""

    def make(self, node: int, generation: int) -> MemoryNode:
        return self.nodes_memory.make(node, generation, self.parameters.node_size)

    def open(self, node: int, generation: int) -> MemoryNode:
        return self.nodes_memory.open(node, generation)

    def finish(self, segment: MemoryNode) -> None:
        finish(segment, self.parameters, self.uuid)

    def discard(self, segment: MemoryNode) -> None:
        """Do nothing: the memory goes with the run."""

    def unmap(self, node: int) -> None:
        """Forget our mapping of a node; other handles, and the next run, still have it."""
        self.endpoint.release(node)
        self.segments[:] = [segment for segment in self.segments if segment.index != node]

    def put_back(self) -> bool:
        """Use the memory again that the nodes had at first; whether we used other."""
        if self.segments == self.first:
            return False
        for segment in [each for each in self.segments if each not in self.first]:
            self.unmap(segment.index)
        for segment in self.first:
            if segment not in self.segments:
                self.attach(segment, node_word(segment.generation, IN_SERVICE))
        self.segments[:] = self.first
        return True


class Unlocked(Watcher):
    """Judges by process: simulated clients share one file, so its locks cannot tell them apart."""

    locks_tell = False


class RestorablePool(Pool):
    """A pool handle whose memory can be copied and put back."""

    endpoint_class: type[Endpoint] = SurvivorEndpoint
    mapped_class = RestorableNodes
    endpoint: Any
    mapped: RestorableNodes

    def _wire(self, latency_ns: int) -> None:
        super()._wire(latency_ns)
        self.membership.watcher = Unlocked()
        vanished = self.blocks.vanished
        self.blocks.vanished = lambda node: (
            node in self.mapped.nodes_memory.gone or vanished(node)  # as if it were truncated
        )

    def image(self) -> list[bytes]:
        """All of the memory."""
        return [bytes(segment.map) for segment in self.mapped.segments]

    def retire(self) -> None:
        """Give up our client slot; other handles may go on using our mappings."""
        self.membership.depart()
        self.client.assume(0, 0, 0)

    def let_go(self) -> None:
        """Let go of the pool, whose memory other handles may go on using.

        Also in the midst of an operation, in which `close` raises ReentrantUse.
        """
        self._finalizer.detach()
        self.client.assume(0, 0, 0)
        self.endpoint.detach()
        self.membership.close()

    def restore(self, image: list[bytes]) -> None:
        """Put all of the memory back as it was."""
        for segment, contents in zip(self.mapped.segments, image, strict=True):
            segment.map[:] = contents

    def put_back(self) -> bool:
        """Use the memory again that the nodes had at first; whether we used other."""
        self._viewed = -1
        self._manager = None  # it remembers channels of memory that is put back
        placement, nodes = self.heap.placement, self.parameters.nodes
        del placement.rings[1:], self.regions.directories[nodes:]
        placement.use_rings()
        self.regions.nodes = self.view.nodes = nodes
        return self.mapped.put_back()


class SimulatedPool(RestorablePool):
    """The pool handle of a simulated client."""

    endpoint_class = SimulatedEndpoint
    endpoint: SimulatedEndpoint

    @classmethod
    def beside(cls, setup_client: RestorablePool) -> Self:
        """Another client, on the setup client's mappings."""
        return cls(
            setup_client.url,
            list(setup_client.mapped.segments),
            setup_client.parameters,
            setup_client.uuid,
        )

    def rewind(self) -> None:
        """Called at the start of a run, when memory is as it was."""
        self.endpoint.ticks = 0


class RemotePool(SimulatedPool):
    """The pool handle of a simulated client that is remote."""

    remote = True
    endpoint_class: type[SimulatedEndpoint] = RemoteEndpoint


class PoweredPool(SimulatedPool):
    """The pool handle of a simulated client of a durable pool."""

    endpoint_class: type[SimulatedEndpoint] = PoweredEndpoint
    endpoint: PoweredEndpoint


class CachedPool(SimulatedPool):
    """The pool handle of a simulated client with a cache of its own."""

    endpoint_class: type[SimulatedEndpoint] = CachedEndpoint
    endpoint: CachedEndpoint

    @classmethod
    def beside(cls, setup_client: RestorablePool) -> Self:
        made = cls.open(setup_client.url)
        shared_nodes = setup_client.mapped.segments[:-1]
        for mine, shared in zip(made.mapped.segments[:-1], shared_nodes, strict=True):
            start = setup_client.parameters.coherent_bytes
            made.endpoint.cover(mine.index, mine.map, shared.map, start)
        return made

    def rewind(self) -> None:
        super().rewind()
        self.endpoint.fill()
