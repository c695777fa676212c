"""A simulated cluster: a small pool with simulated clients, restored before every run.

All clients live in this process. Each has a pool handle of its own on the same mapped segments, a
client slot of its own with a simulated pid, and runs its part of a program in a greenlet. The
setup client, an ordinary client, prepares the pool and inspects it after a run. The pool's segments
are unlinked as soon as they are mapped, so nothing is left behind however the process ends.

A run starts from an image: all of the memory, and each client's private knowledge of its blocks,
are put back as they were after the preparation. Each client then has about two keys in a block of
few objects, and one free object: its second write already recycles memory. (With several memory
nodes, keys fall on them by chance, and memory is less scarce.) In a `scarce` cluster there is no
other free block, and the first client owns an empty one.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from limpet.fault.explore.sim_pools import (
    CachedPool,
    NodesMemory,
    PoweredPool,
    RemotePool,
    RestorablePool,
    SimulatedPmem,
    SimulatedPool,
)
from limpet.fault.explore.sim_program import ABSENT, PRESENT, VALUE_SIZE, Call
from limpet.fault.matrix.fault_profile import profile_of
from limpet.shm.alloc.slabs import Slab
from limpet.shm.backends.location import register
from limpet.shm.catalogue.regions import INTERNAL, WITNESS
from limpet.shm.clients.epoch import NEVER
from limpet.shm.clients.simulated_processes import SimulatedProcesses
from limpet.shm.destroying import destroy
from limpet.shm.endpoint.layout import slot_address
from limpet.shm.endpoint.simulated import PID_FIRST
from limpet.shm.endpoint.simulated_memory import PersistentMemory
from limpet.shm.endpoint.slots import LIVE, client_id, state_word
from limpet.shm.endpoint.words import FREE
from limpet.shm.errors import StoreFull

BLOCK_SIZE: Final = 16 << 10
NODE_SIZE_MAX: Final = 32 << 20
"""The largest node size: nodes grow until there is room for the clients' first objects."""
OBJECTS: Final = 4
REPLICAS: Final = ("replicas", "index_replicas")
"""Parameters of stores that say how often something is there."""
LEASE_US: Final = 1_000
RUN_S: Final = 16.0
"""From the start of a run to that of the next: exact in binary, so that all runs are alike."""
INITIAL: Final = b"initial"
HOARDED: Final = 5
"""Values of `VALUE_SIZE` that take more than the block with the values that are there."""
PAUSES_MAX: Final = 10_000
"""In a run, the survivor pauses no more often than this: for some 600 leases."""

_numbers = itertools.count()
register(SimulatedPmem)


class Endless(BaseException):
    """The survivor waits for ever. Not an `Exception`, so no handler of errors catches it."""


class SimulatedClient:
    """A simulated client, and its place in the run."""

    def __init__(self, number: int, pool: SimulatedPool) -> None:
        self.number = number
        self.pool = pool
        self.endpoint: Any = pool.endpoint
        self.endpoint.number = number
        self.pid = PID_FIRST + number
        self.store: Any = None
        self.identity = (0, 0, 0)
        self.slabs: list[tuple[int, int, int, int]] = []
        self.rewind()

    @property
    def ended(self) -> bool:
        """Whether it has done its operations, or is dead."""
        return self.finished or self.dead

    def rewind(self) -> None:
        """Go back to the start of a run."""
        self.greenlet: Any = None
        self.op = 0
        self.step = 0
        self.finished = False
        self.dead = False
        self.stalled = False
        self.read_late = False
        """Whether it has read anything since it was declared dead."""

    def know_blocks(self) -> None:
        """Note the blocks that are ours at the start, and that all their unused objects are free.

        No client is inside an operation.
        """
        allocator = self.pool.allocator
        allocator.forget()
        for node, block, size_class, replicas in self.slabs:
            slab = Slab(self.pool.heap, node, block, size_class, replicas, False)
            slab.note_pending()
            slab.ripen(NEVER)
            slabs = allocator.slabs
            slabs.of(slabs.kind(node, size_class, replicas)).append(slab)


SMALL_NODES: Final = {"node_size": 320, "key_size": 16}
"""Parameters of a tree whose leaves have few entries."""


class SimulatedCluster:
    """A prepared pool with `clients` simulated clients of a store of this kind.

    `nodes`: memory nodes; by default as many as suit the kind. `parameters` of the store, besides
    those that suit the kind. `value_size`: bytes of each value. `coherent` False: half of the
    memory is not hardware-coherent, and every client has a cache. `scarce`: no block is free.
    `durable`: the pool is, and may lose power (sim_power.py). `remote`: the clients are.
    `apart`: in a tree the keys of programs are in leaves of their own.
    `pool_class`: the handles of the simulated clients. A context manager.
    """

    run_class: Any = None
    """The class of its runs, if that is not `Run`."""

    def __init__(
        self,
        kind: str,
        clients: int,
        *,
        nodes: int = 0,
        parameters: Mapping[str, Any] | None = None,
        fence: str = "kill",
        value_size: int = VALUE_SIZE,
        coherent: bool = True,
        scarce: bool = False,
        apart: bool = False,
        durable: bool = False,
        remote: bool = False,
        pool_class: type[SimulatedPool] | None = None,
    ) -> None:
        profile = profile_of(kind)
        self.kind = kind
        self.nodes = nodes or profile.explorer_nodes
        self.apart = apart
        self.parameters = {
            **profile.explorer_parameters,
            **(profile.remote if remote else {}),
            **(SMALL_NODES if apart and kind == "rtx-sherman" else {}),
            **(parameters or {}),
        }
        self.scarce = scarce
        self.value_size = value_size
        self.durable = durable
        if pool_class is None:
            pool_class = PoweredPool if durable else SimulatedPool if coherent else CachedPool
            pool_class = RemotePool if remote else pool_class
        self.pool_class = pool_class
        self.power: PersistentMemory | None = None
        """The memory that a power cut leaves; only of a durable pool."""
        self.fence = fence
        self._began = self.clock = RUN_S
        self.crash: Callable[[SimulatedClient], None] | None = None
        """Set by a run: what ends a client that another one fences."""
        self.processes = SimulatedProcesses(self._end_process)
        log = logging.getLogger("limpet")
        self._restore_log = (log.setLevel, log.level)
        log.setLevel(logging.ERROR)  # every kill is on purpose here
        self.pools: list[RestorablePool] = []
        self.image: list[bytes] = []
        self.nodes_memory = NodesMemory()
        self.op_steps = 0
        """Steps of an operation; the explorer sets it after a measuring run."""
        self.memory_steps: dict[Call, int] = {}
        """Steps of calls that replace or add nodes, likewise."""
        size = self._node_size(profile.explorer_node_size, clients)
        try:
            while not self._is_made(size, clients, coherent, pool_class):
                size *= 2
        except BaseException:
            self.close()
            raise

    def _is_made(
        self, size: int, clients: int, coherent: bool, pool_class: type[SimulatedPool]
    ) -> bool:
        """Make the pool, with nodes of this size, and prepare it; False: they are too small."""
        scheme = "simulated" if self.durable else "shm"
        url = f"{scheme}://limpet-cluster-{os.getpid()}-{next(_numbers)}"
        setup_client = RestorablePool.create(
            url, nodes=self.nodes, node_size=size, block_size=BLOCK_SIZE,
            clients=clients + 2, lease=LEASE_US / 1e6, fence=self.fence, coherent=coherent,
            coherent_bytes=0 if coherent else size // 2, durable=self.durable,
        )  # fmt: skip
        self.pools.append(setup_client)
        try:
            self.clients = [SimulatedClient(i, self._join(pool_class)) for i in range(clients)]
        finally:
            destroy(url)
        try:
            self._prepare()
        except StoreFull:
            if size >= NODE_SIZE_MAX:
                raise
            for pool in reversed(self.pools):
                pool.close()
            self.pools.clear()
            self.nodes_memory = NodesMemory()
            return False
        return True

    def _node_size(self, least: int, clients: int) -> int:
        """Bytes of a node: with replicas, room for the primaries of every client."""
        given = [self.parameters.get(name, 1) for name in REPLICAS]
        replicas = max(number for number in [1, *given] if isinstance(number, int))
        blocks = replicas * (clients + 3) if replicas > 1 else 0
        size = least
        while size < (blocks + 2) * BLOCK_SIZE:
            size *= 2
        return size

    def value_of(self, label: bytes) -> bytes:
        """The value that a label stands for."""
        return label.ljust(self.value_size, b".")

    def label_of(self, value: bytes) -> bytes:
        """The label of a value; the value itself when no client can have written it."""
        label = value.rstrip(b".")
        return label if value == self.value_of(label) else value

    @property
    def ring(self) -> int:
        """How many nodes are added together: as many as the store needs, and at least two, since a
        client may be killed when it has made one of them."""
        return max(2, self.copies)

    @property
    def copies(self) -> int:
        """The most replicas that the store has of anything."""
        made = getattr(self.store, "parameters", None)
        return max(int(getattr(made, name, 1)) for name in REPLICAS)

    @property
    def setup_client(self) -> RestorablePool:
        return self.pools[0]

    def _join(self, pool_class: type[SimulatedPool]) -> SimulatedPool:
        pool = pool_class.beside(self.setup_client)
        self.pools.append(pool)
        return pool

    def _prepare(self) -> None:
        for pool in self.pools:
            pool.membership.watcher = self.processes
            pool.membership.now = lambda: self.clock
            pool.numbers.hold_ms = 0  # a schedule is shorter than that
            pool.mapped.nodes_memory = self.nodes_memory
        self._open_stores()
        for client in self.clients:
            names = [b"filler %d.%d" % (client.number, n) for n in range(OBJECTS - 1)]
            if client.number < len(PRESENT):
                names[0] = PRESENT[client.number]
            for name in names:
                client.store.put(name, self.value_of(INITIAL))
            client.pool.client.idle()  # another client may wait for a pin that lasts
        for key in PRESENT[len(self.clients) :]:
            self.store.put(key, self.value_of(INITIAL))
        if self.apart and self.store.ordered:
            for key in PRESENT + ABSENT:
                for number in range(6):
                    self.store.put(b"%s beside%d" % (key, number), bytes(16))
        if self.scarce:
            self._use_up()
        for client in self.clients:
            client.pool.client.idle()
            client.endpoint.phase.do_sent()
            self._disguise(client)
            client.slabs = [
                (slab.node, slab.block, slab.size_class, slab.replicas)
                for slab in client.pool.allocator.slabs.all()
            ]
        own = self.setup_client.client
        self._setup_identity = (own.ident, own.slot, own.word)
        self.image = self.setup_client.image()
        if self.durable:
            segments = self.setup_client.mapped.segments
            views = {segment.index: memoryview(segment.map) for segment in segments}
            self.power = PersistentMemory(views)
            for client in self.clients:
                client.endpoint.memory = self.power

    def _open_stores(self) -> None:
        self.store = self.setup_client.store(self.kind, name="store", **self.parameters)
        for client in self.clients:
            client.store = client.pool.store(self.kind, name="store")

    def _use_up(self) -> None:
        """Give the first client an empty block, and take all free blocks for regions."""
        hoarder = self.clients[0].store
        names = [b"hoard %d" % number for number in range(HOARDED)]
        for name in names:
            hoarder.put(name, self.value_of(INITIAL))
        for name in names:
            hoarder.delete(name)
        setup_client = self.setup_client

        def fill() -> None:
            for node in range(self.nodes):
                kinds = setup_client.blocks.words(node) >> np.uint64(60)
                free = np.flatnonzero(kinds == FREE)
                for run in np.split(free, np.flatnonzero(np.diff(free) > 1) + 1):
                    if len(run):
                        size = len(run) * BLOCK_SIZE - WITNESS
                        setup_client.regions.obtain(node, f"{INTERNAL}filler {run[0]}", size)

        setup_client.exclusively(fill)

    def _disguise(self, client: SimulatedClient) -> None:
        """Write another process to the client's slot."""
        place = client.pool.client
        incarnation = place.word & (1 << 36) - 1
        word = state_word(LIVE, client.pid, incarnation)
        self.setup_client.endpoint.store(place.slot, word)
        slot = place.ident >> 36
        assert place.slot == slot_address(slot)
        client.identity = (client_id(slot, word), place.slot, word)

    def _end_process(self, pid: int) -> None:
        assert self.crash is not None
        self.crash(self.clients[pid - PID_FIRST])

    def reset(self) -> None:
        """Put memory and clients back to the start of a run."""
        self._began += RUN_S
        self.clock = self._began
        other = [pool.put_back() for pool in self.pools]
        if any(other):
            self._rewind()
            self._open_stores()  # handles remember that a node has other memory
            for pool in self.pools:
                pool.put_back()
        self._rewind()
        if self.power is not None:
            self.power.begin()
        for client in self.clients:
            client.pool.rewind()
            client.know_blocks()
            client.store.forget()
        self.store.forget()

    def _rewind(self) -> None:
        """Put back all but the handles' memories. The nodes have their first memory again."""
        self.setup_client.restore(self.image)
        self.nodes_memory.forget()
        self.processes.gone.clear()
        self.setup_client.client.assume(*self._setup_identity)
        self.setup_client.allocator.forget()
        self.setup_client.endpoint.ticks = 0
        for pool in self.pools:
            pool.membership.forget()
            pool.clock.forget()
            pool.numbers.forget()
        for client in self.clients:
            client.rewind()
            client.pool.client.assume(*client.identity)
            client.endpoint.end()

    def close(self) -> None:
        """Forget the pool."""
        set_level, level = self._restore_log
        set_level(level)
        if self.image:
            self.reset()
        for pool in reversed(self.pools):
            pool.close()

    def __enter__(self) -> SimulatedCluster:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
