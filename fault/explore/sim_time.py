"""Virtual time: hundreds of clients of a store, repeatably, on a clock that charges latencies.

The shipped code of each client runs in a greenlet over the simulated fabric (simulated.py). Every
client has a time of its own, in ns; the client whose next verb arrives first at its memory node
goes on, so verbs take effect in the order of their arrival, and the whole run follows from its
seed.

Gets have pins, as over a network, which last over operations if clients are `remote`. A get without
one (stores/race/glance.py, stores/core/inline.py) saves a barrier of the processor, and pays for it
with looks, each of which would be a message here.

sim_latency.py has the cost of a step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import heapq
import itertools
import os
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from limpet.fault.check.recorder import Operation
from limpet.fault.drill.workload import ZipfWorkload, gets_and_puts
from limpet.fault.explore.greenlets import getcurrent, greenlet
from limpet.fault.explore.sim_latency import LatencyModel
from limpet.fault.explore.sim_pools import RestorablePool, SimulatedPool
from limpet.fault.explore.sim_testbeds import Demand, testbed_of
from limpet.shm.clients.simulated_processes import SimulatedProcesses
from limpet.shm.destroying import destroy
from limpet.shm.endpoint.fabric import Endpoint
from limpet.shm.endpoint.layout import CONTROL_NODE, NODE_SHIFT
from limpet.shm.endpoint.simulated import (
    ATOMICS,
    LOAD,
    PAUSE,
    READ,
    STORE,
    WAIT,
    WRITE,
    RemoteEndpoint,
    SimulatedEndpoint,
    at_once,
)
from limpet.shm.endpoint.slots import CLIENT_JOURNAL, CLIENT_JOURNAL_PAIRS
from limpet.shm.errors import LimpetError, ParameterError, StoreFull
from limpet.stores.baselines.clover.remote import Remote
from limpet.stores.core.pipeline import Pipeline
from limpet.stores.core.status import BATCH

NODE_SIZE: Final = 32 << 20
BLOCK_SIZE: Final = 16 << 10
"""Of the pool, if the workload gives no others: 512 clients can have blocks of their own."""
PAUSE_SHIFT_MAX: Final = 7
PREFIX: Final = b"key-"
SCATTER: Final = 61_803_399
"""Odd and no multiple of 5, so that no two numbers have the same digits."""
WARM_WRITES: Final = 8
"""In the warm-up, writes of each client for each memory node: one node is left out once in 3,000
times."""
WARM_UP_NS: Final = 2000
"""In the warm-up, the time from an operation's answer to the next operation."""
WIRE: Final = ("foreground", "background")
"""The scopes whose bytes are on the wire."""
EPOCH_S: Final = float(1 << 30)
"""The leases' time at 0 ns: later than any real clock."""
_numbers = itertools.count()


@dataclasses.dataclass(frozen=True)
class Workload:
    """Parameters of a workload: `ops` operations of each client, on `keys` keys drawn from
    Zipf(`theta`).

    `write_share` of them are updates, the others gets. Sizes in bytes. The keys are there at first.
    `warm_up`: operations of each client before the run, in turn and not counted. If there are any,
    caches and blocks are warm by then: each client first gets each key, or an even `met_share` of
    them, in order, or, if `met_drawn`, those that it is going to draw; and if there are writes,
    makes so many that it has a block on each node (WARM_WRITES). `fresh`: each write inserts a new
    key; inserts for which the store has no room are counted apart, as `full`. `deletes`: each write
    deletes a key that its client has inserted before the warm-up. `latest`: Zipf draws the number
    of keys inserted after the key to get, so the last key is the hottest. `lost`: so many memory
    nodes are lost before the operations of the warm-up.
    `scan_max`: if it is not 0, a get is a scan from that key on, of 1 to `scan_max` keys, evenly
    drawn. `scattered`: keys with adjacent numbers are far apart in the order of keys. `node_size`,
    `block_size`: of the pool. `remote`: clients are (shm/clients/lasting.py). `nodes` and the
    store's `parameters` are those of the kind's testbed (sim_testbeds.py), unless they are given.
    `concurrent`: so many operations of a client are done at once, by a pipeline
    (stores/core/pipeline.py): each takes the time of all, and then come the next ones.
    """

    store: str = "race"
    clients: int = 64
    ops: int = 200
    keys: int = 1000
    key_size: int = 24
    value_size: int = 64
    warm_up: int = 20
    theta: float = 0.99
    write_share: float = 0.5
    nodes: int = 0
    seed: int = 0
    fresh: bool = False
    deletes: bool = False
    scattered: bool = False
    met_share: float = 1.0
    met_drawn: bool = False
    latest: bool = False
    lost: int = 0
    scan_max: int = 0
    node_size: int = NODE_SIZE
    block_size: int = BLOCK_SIZE
    remote: bool = False
    concurrent: int = 1
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, low, high in (
            ("clients", 1, 512), ("ops", 1, 1 << 30), ("warm_up", 0, 1 << 30),
            ("keys", 1, 1 << 20), ("nodes", 0, 8),
            ("key_size", 12, 1024), ("value_size", 8, 8192), ("theta", 0, 10),
            ("write_share", 0, 1), ("met_share", 0, 1), ("scan_max", 0, 1 << 20),
            ("seed", 0, 1 << 63), ("concurrent", 1, BATCH),
        ):  # fmt: skip
            if not low <= getattr(self, name) <= high:
                raise ParameterError(
                    f"{name} must be from {low} to {high}, not {getattr(self, name)}"
                )
        if self.concurrent > 1 and (self.fresh or self.scan_max):
            raise ParameterError("only gets and updates of keys that are there are concurrent")

    def on_testbed(self) -> Workload:
        """With what the testbed of its kind has, where it says nothing."""
        testbed = testbed_of(self.store)
        if self.write_share and self.clients > testbed.writers_max:
            most = testbed.writers_max
            raise ParameterError(
                f"{self.store} has at most {most} clients that write, not {self.clients}"
            )
        keys = self.keys + (self.clients * self.inserts_max if self.fresh or self.deletes else 0)
        suitable = testbed.parameters(Demand(self.clients, keys, self.value_size))
        return dataclasses.replace(
            self, nodes=self.nodes or testbed.nodes, parameters={**suitable, **self.parameters}
        )

    @property
    def inserts_max(self) -> int:
        """Of one client, at most."""
        return self.ops + self.warm_up + self.warm_writes

    @property
    def warm_writes(self) -> int:
        """Writes of each client before those of `warm_up`."""
        return WARM_WRITES * (self.nodes or 8) if self.warm_up and self.write_share else 0


@dataclasses.dataclass(frozen=True)
class KindResult:
    """One kind of operation: times in ns, the others means for an operation.

    `exchanges`: of a fabric (shm/endpoint/verbs.pyx); in a store that is written in phases they are
    the round trips. `shares`: for each number of round trips, the share of operations that took it.
    """

    kind: str
    count: int
    mean_ns: float
    p50_ns: float
    p90_ns: float
    p99_ns: float
    max_ns: float
    round_trips: float
    round_trips_p50: float
    round_trips_p99: float
    round_trips_max: int
    exchanges: float
    shares: dict[int, float]
    bytes_read: float
    bytes_written: float
    cas: float


@dataclasses.dataclass(frozen=True)
class TimedReport:
    """The result of a workload; `throughput` in operations a (virtual) second, of all clients.

    `wire_bytes`: bytes that an operation reads and writes, in the background, too.
    `messages`: verbs that it sends to memory nodes, in the background, too.
    `busy_throughput`: `throughput` until the first client has done all its operations, so that all
    clients are at work; `throughput` includes the time in which the last client is alone.
    `node_busy`: the share of the time in which the busiest memory node serves verbs.
    """

    workload: Workload
    model: LatencyModel
    virtual_ns: float
    verbs: int
    throughput: float
    busy_throughput: float
    wire_bytes: float
    messages: float
    node_busy: float
    kinds: tuple[KindResult, ...]


class TimedEndpoint(RemoteEndpoint):
    """An endpoint that sleeps on its world's clock."""

    def __init__(self) -> None:
        super().__init__()
        self.world: World | None = None
        """While the world's clock runs for this client."""

    def futex_wait(self, addr: int, expected: int, timeout_us: int) -> int:
        """Sleep until a client wakes us or the time is over; others go on meanwhile."""
        if self.world is None:
            return super().futex_wait(addr, expected, timeout_us)
        self.phase.do_late()
        self.world.sleep(self.number, 0)
        if Endpoint.futex_wait(self, addr, expected, 0):
            return 1
        return self.world.sleep(self.number, 1000 * timeout_us, addr)

    def futex_wake(self, addr: int, count: int) -> int:
        return 0 if self.world is None else self.world.wake(self.number, addr, count)


class TimedPool(SimulatedPool):
    """The pool handle of a client in virtual time."""

    endpoint_class: type[SimulatedEndpoint] = TimedEndpoint
    endpoint: TimedEndpoint

    @property
    def is_in_place(self) -> bool:
        """No: its clients are as those of a network."""
        return False


class RemoteTimedPool(TimedPool):
    """The pool handle of a remote client in virtual time."""

    remote = True


class TimedClient:
    """A client, its time, and the arrival of the last answer of its phase."""

    def __init__(self, number: int, pool: TimedPool, store: Any) -> None:
        self.number = number
        self.pool = pool
        self.store = store
        self.endpoint = pool.endpoint
        self.endpoint.number = number
        self.greenlet: Any = None
        self.now = 0.0
        self.answered = 0.0
        self.due = -1.0
        """When it goes on; while it runs, a time that never comes."""
        self.woken = False
        self.series: set[int] = set()
        """2 * node, or one more in the background: where its phase has sent something."""
        self.skew_us = 0
        """How far its clock is ahead of the others."""
        membership = pool.membership
        membership.forked()
        membership.watcher = SimulatedProcesses(lambda pid: None)
        membership.now = lambda: EPOCH_S + self.now * 1e-9
        self.endpoint.now_us = lambda: int(self.now) // 1000 + self.skew_us

    def sends(self, addr: int) -> bool:
        """Whether a verb on this control word is a message: of a remote client, and not on its
        client journal, which would lie on memory nodes (shm/clients/lasting.py)."""
        journal = self.pool.client.slot + CLIENT_JOURNAL
        return self.pool.remote and not journal <= addr < journal + CLIENT_JOURNAL_PAIRS.size


Drawn = Iterator[tuple[int, tuple[int, Operation]]]
"""Operations of a client with their numbers: key, and action."""
Sample = tuple[float, int, int, float, float, float]
"""Latency, round trips, exchanges, bytes read, bytes written, CASes."""


class World:
    """The clients of a workload on one clock."""

    def __init__(self, workload: Workload, model: LatencyModel) -> None:
        self.workload = workload.on_testbed()
        self.model = model
        self.clients: list[TimedClient] = []
        self.free_at: dict[int, float] = defaultdict(float)
        self.word_free_at: dict[int, float] = defaultdict(float)
        self.line_free_at: dict[int, float] = {}
        """When the atomics so far on a word, or in a line of 64 bytes, are over."""
        self.served: dict[int, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
        """The verbs that each memory node has served, and for how long, in ns."""
        self.metadata_free_at = 0.0
        self.samples: dict[str, list[Sample]] = defaultdict(list)
        self.ends: list[float] = []
        """The end time of each counted operation."""
        self.verbs = 0
        self.wire_bytes = 0
        """Bytes that counted operations have read and written, in the background, too."""
        self.begun = 0.0
        """The time at which the first client begins its counted operations."""
        self.known = list(range(workload.keys))
        """Numbers of the keys that are there, in the order of their insertion."""
        self.failed: BaseException | None = None
        self._waiting: list[tuple[float, int]] = []
        """When clients go on, and their numbers; of one that was woken, an entry too many."""
        self._asleep: dict[int, list[TimedClient]] = defaultdict(list)
        """The clients that sleep on each word, in the order in which they went to sleep."""
        self._hub = getcurrent()

    # ---- the clock ------------------------------------------------------------------------------

    def turn(self, endpoint: SimulatedEndpoint, verb: str, addr: int, words: int) -> int:
        """Called before each verb: charge it, after all that arrive earlier."""
        client = self.clients[endpoint.number]
        model = self.model
        if verb is WAIT:
            client.now = max(client.now, client.answered)
            client.series.clear()
            return words
        if verb is PAUSE:
            client.now += model.pause_ns * (1 << min(addr, PAUSE_SHIFT_MAX))
            return words
        self.verbs += 1
        node = addr >> NODE_SHIFT
        control = node == CONTROL_NODE
        if control and not client.sends(addr):
            client.now += model.local_ns
            self._reach(client, client.now)
            return words
        behind = client.endpoint.behind or endpoint.phase.sending
        series = node << 1 | behind
        if series not in client.series:
            client.series.add(series)
            client.now += model.series_ns
        arrival = client.now + model.one_way_ns
        self._reach(client, arrival)
        start = max(arrival, self.free_at[node])
        done = self.free_at[node] = start + model.verb_ns + 8 * words * model.byte_ns
        count, served_ns = self.served[node]
        self.served[node] = count + 1, served_ns + done - start
        if verb in ATOMICS:
            done = max(done, self.word_free_at[addr])
            self.word_free_at[addr] = self.line_free_at[addr >> 6] = done + model.contended_ns
        elif model.reads_wait and (verb is READ or verb is LOAD):
            end = addr + 8 * words
            for line in range(addr >> 6, end + 63 >> 6):
                if self.line_free_at.get(line, 0.0) > done:
                    inside = range(max(addr, line << 6), min(end, line + 1 << 6), 8)
                    done = max(done, *(self.word_free_at.get(word, 0.0) for word in inside))
        if control and not behind and verb not in (STORE, WRITE):
            client.now = done + model.one_way_ns
        elif not behind:
            client.answered = max(client.answered, done + model.one_way_ns)
        return words

    def _request(
        self, client: TimedClient, send: Callable[..., Any], answered: bool, *request: Any
    ) -> Any:
        """Send the metadata process a request, which it serves after those that arrive earlier."""
        client.now += self.model.series_ns
        arrival = client.now + self.model.one_way_ns
        self._reach(client, arrival)
        self.metadata_free_at = max(arrival, self.metadata_free_at) + self.model.metadata_ns
        if answered:
            client.answered = max(client.answered, self.metadata_free_at + self.model.one_way_ns)
        return send(*request)

    def _reach(self, client: TimedClient, when: float) -> None:
        """Let all clients go first whose next verb arrives before `when`."""
        if self._waiting and self._waiting[0] < (when, client.number):
            client.due = when
            heapq.heappush(self._waiting, (when, client.number))
            self._next().switch()

    def _next(self) -> Any:
        """The greenlet of the client that goes on next, or the hub's if none does."""
        while self._waiting:
            when, number = heapq.heappop(self._waiting)
            client = self.clients[number]
            if client.due == when:  # else it was woken before that
                client.due = -1.0
                return client.greenlet
        return self._hub

    def sleep(self, number: int, time_ns: float, addr: int = 0) -> int:
        """Let the others go on until a client wakes this one, which sleeps on a word, if one is
        given, or the time is over; 1: it was woken."""
        client = self.clients[number]
        client.woken = False
        if addr:
            self._asleep[addr].append(client)
        self._reach(client, client.now + time_ns)
        if addr and not client.woken:
            self._asleep[addr].remove(client)
            client.now += time_ns
        return int(client.woken)

    def wake(self, number: int, addr: int, count: int) -> int:
        """Wake the first `count` clients that sleep on this word; how many there were."""
        waker = self.clients[number]
        self._reach(waker, waker.now)
        asleep = self._asleep.get(addr, [])
        woken, asleep[:] = asleep[:count], asleep[count:]
        for client in woken:
            client.woken = True
            client.now = client.due = max(client.now, waker.now + self.model.one_way_ns)
            heapq.heappush(self._waiting, (client.due, client.number))
        return len(woken)

    # ---- the clients ----------------------------------------------------------------------------

    def run(self) -> None:
        """Let every client do its operations."""
        shares = gets_and_puts(self.workload.write_share)
        mix = ZipfWorkload(
            self.workload.keys, self.workload.theta, shares, self.workload.seed,
            shuffled=not self.workload.latest,
        )  # fmt: skip
        drawn = [enumerate(mix.draw(client.number)) for client in self.clients]
        self.warm_up(drawn, mix)
        self.wire_bytes = -self._bytes_so_far()
        for client, operations in zip(self.clients, drawn, strict=True):
            client.endpoint.turn, client.endpoint.world = self.turn, self
            remote = getattr(client.store, "remote", None)
            if isinstance(remote, Remote):
                vars(remote).update(
                    ask=functools.partial(self._request, client, remote.ask, True),
                    tell=functools.partial(self._request, client, remote.tell, False),
                )
            client.greenlet = greenlet(functools.partial(self._life, client, operations))
            # They do not begin all at once.
            rng = random.Random(self.workload.seed << 16 | client.number)
            client.now = client.answered = self.begun + rng.random() * 4 * self.model.one_way_ns
            client.due = client.now
            heapq.heappush(self._waiting, (client.now, client.number))
        for client in self.clients:
            # From here: the depth of Python's stack, which is bounded, counts on from the greenlet
            # in which a client begins.
            client.greenlet.switch()
        try:
            while self.failed is None and (first := self._next()) is not self._hub:
                first.switch()
        finally:
            for client in self.clients:
                client.endpoint.turn, client.endpoint.world = at_once, None
            for client in self.clients:
                client.greenlet.throw()  # those that are in the midst of an operation leave it
        if self.failed is not None:
            raise self.failed
        self.wire_bytes += self._bytes_so_far()

    def warm_up(self, drawn: Sequence[Drawn], mix: ZipfWorkload) -> None:
        """Let the clients do their first operations, one after another, each at a time later."""
        workload = self.workload
        if workload.deletes:
            for count in range(workload.inserts_max):
                for client in self.clients:
                    name = key_of(workload, self._own(client, count))
                    client.store.insert(name, bytes(workload.value_size))
        if not workload.warm_up:
            return
        writers = getattr(self.clients[0].store.parameters, "writers", 0)
        for client in self.clients:
            if writers and workload.write_share:
                client.pool.numbers.take(writers)  # what it reads then shows it its rows
        names = sorted(key_of(workload, number) for number in range(workload.keys))
        met = round(workload.keys * workload.met_share)
        for client in self.clients:
            meets: Iterable[bytes] = (names[index * workload.keys // met] for index in range(met))
            if workload.met_drawn:
                first = itertools.islice(mix.draw(client.number), workload.warm_up + workload.ops)
                meets = dict.fromkeys(self._name(key) for key, _ in first)
            for name in meets:
                client.store.get(name)
        for node in range(workload.lost):
            self.clients[0].pool.fail_node(node)
        dice = random.Random(workload.seed)
        for count in range(workload.inserts_max - workload.warm_writes, workload.inserts_max):
            for client in self.clients:
                key = dice.randrange(workload.keys)
                self._step(client, self._call(client, count, (key, Operation.PUT))[1])
        for _ in range(workload.warm_up):
            for client, operations in zip(self.clients, drawn, strict=True):
                self._step(client, self._call(client, *next(operations))[1])

    def _bytes_so_far(self) -> int:
        counts = (client.endpoint.counters(scope) for client in self.clients for scope in WIRE)
        return sum(count["bytes_read"] + count["bytes_written"] for count in counts)

    def _step(self, client: TimedClient, operation: Callable[[], object]) -> None:
        self.begun += 2 * self.model.one_way_ns + WARM_UP_NS
        client.now = self.begun
        operation()

    def _life(self, client: TimedClient, operations: Drawn) -> None:
        self._hub.switch()
        left = itertools.islice(operations, self.workload.ops)
        try:
            while window := list(itertools.islice(left, self.workload.concurrent)):
                self._timed(client, window)
        except LimpetError as error:
            self.failed = self.failed or error

    def _call(
        self, client: TimedClient, count: int, drawn: tuple[int, Operation], through: Any = None
    ) -> tuple[str, Callable[[], object]]:
        """An operation, of the client's store or, through a pipeline, of that."""
        key, operation = drawn
        store = through or client.store
        workload = self.workload
        if operation is Operation.PUT:
            value = b"%d.%d" % (client.number, count)
            value = value.ljust(workload.value_size, b".")[: workload.value_size]
            number = self._own(client, count)
            if workload.fresh:
                return "insert", functools.partial(self._insert, client, number, value)
            if workload.deletes:
                name = key_of(workload, number)
                return "delete", functools.partial(client.store.delete, name)
            name = key_of(workload, key)
            return "update", functools.partial(store.update, name, value)
        name = self._name(key)
        if workload.scan_max:
            # the same for every store, whatever the order of the clients
            drawer = random.Random(f"{workload.seed} {client.number} {count}")
            length = drawer.randint(1, workload.scan_max)
            return "scan", functools.partial(self._scan, client, name, length)
        return "get", functools.partial(store.get, name)

    def _name(self, drawn: int) -> bytes:
        """The key to get."""
        number = self.known[-1 - drawn] if self.workload.latest else drawn
        return key_of(self.workload, number)

    def _own(self, client: TimedClient, count: int) -> int:
        """The number of a key that only this client inserts, or deletes."""
        return self.workload.keys + client.number * self.workload.inserts_max + count

    def _insert(self, client: TimedClient, number: int, value: bytes) -> None:
        client.store.insert(key_of(self.workload, number), value)
        self.known.append(number)

    def _scan(self, client: TimedClient, low: bytes, length: int) -> None:
        for _ in client.store.scan(low, limit=length):
            pass

    def _timed(self, client: TimedClient, window: list[tuple[int, tuple[int, Operation]]]) -> None:
        """Do these operations at once. Each has the time and the round trips of all, and its share
        of what else they take."""
        before, start = client.endpoint.counters(), client.now
        try:
            kinds = self._do(client, window)
        except StoreFull:
            if not self.workload.fresh:
                raise
            kinds = ["full"]
        after = client.endpoint.counters()
        took = {name: after[name] - count for name, count in before.items()}
        for kind in kinds:
            self.ends.append(client.now)
            self.samples[kind].append(
                (
                    client.now - start, took["round_trips"], took["exchanges"],
                    took["bytes_read"] / len(kinds), took["bytes_written"] / len(kinds),
                    took["cas"] / len(kinds),
                )
            )  # fmt: skip

    def _do(
        self, client: TimedClient, window: list[tuple[int, tuple[int, Operation]]]
    ) -> list[str]:
        """Do these operations, singly if it is one; of each its kind."""
        if len(window) == 1:
            kind, operation = self._call(client, *window[0])
            operation()
            return [kind]
        kinds = []
        with Pipeline(client.store, len(window)) as pipeline:
            for drawn in window:
                kind, operation = self._call(client, *drawn, pipeline)
                kinds.append(kind)
                operation()
        return kinds


def key_of(workload: Workload, number: int) -> bytes:
    """The key of a number."""
    digits = workload.key_size - len(PREFIX)
    if workload.scattered:
        number = number * SCATTER % 10**digits
    return PREFIX + b"%0*d" % (digits, number)


def run_timed(workload: Workload, model: LatencyModel) -> TimedReport:
    """Run a workload in virtual time. Equal arguments give equal reports."""
    world = World(workload, model)
    with peopled(world):
        world.run()
        world.clients[0].store.check()
        return _report(world)


@contextlib.contextmanager
def peopled(world: World) -> Iterator[None]:
    """Make the workload's pool, its store with the keys, and its clients, for the body only."""
    workload = world.workload
    url = f"shm://limpet-time-{os.getpid()}-{next(_numbers)}"
    pools: list[RestorablePool] = []
    try:
        setup_client = RestorablePool.create(
            url, nodes=workload.nodes, node_size=workload.node_size,
            block_size=workload.block_size,
            clients=workload.clients + 2,
        )  # fmt: skip
        pools.append(setup_client)
        try:
            store = setup_client.store(workload.store, name="store", **workload.parameters)
            for number in range(workload.keys):
                store.put(key_of(workload, number), bytes(workload.value_size))
            setup_client.retire()
            for number in range(workload.clients):
                pool = (RemoteTimedPool if workload.remote else TimedPool).beside(setup_client)
                pools.append(pool)
                world.clients.append(
                    TimedClient(number, pool, pool.store(workload.store, name="store"))
                )
        finally:
            destroy(url)
        yield
    except BaseException:
        # Handles may be in the midst of an operation. The memory was theirs alone.
        for opened in pools:
            opened.let_go()
        for segment in pools[0].segments() if pools else ():
            segment.close()
        raise
    for opened in reversed(pools):
        opened.close()


def _report(world: World) -> TimedReport:
    end = max(client.now for client in world.clients) - world.begun
    first = min(client.now for client in world.clients)
    total = len(world.ends)
    busy = sum(over <= first for over in world.ends)
    kinds = tuple(_kind(name, samples) for name, samples in sorted(world.samples.items()))
    return TimedReport(
        world.workload, world.model, end, world.verbs, total / end * 1e9 if end else 0.0,
        busy / (first - world.begun) * 1e9 if first > world.begun else 0.0,
        world.wire_bytes / total if total else 0.0,
        sum(count for count, _ in world.served.values()) / total if total else 0.0,
        max((ns for _, ns in world.served.values()), default=0.0) / end if end else 0.0, kinds,
    )  # fmt: skip


def _kind(name: str, samples: list[Sample]) -> KindResult:
    table = np.array(samples)
    latency = table[:, 0]
    p50, p90, p99 = (float(p) for p in np.percentile(latency, (50, 90, 99)))
    trips, exchanges, read, written, cas = (float(mean) for mean in table[:, 1:].mean(axis=0))
    usual, late = (float(p) for p in np.percentile(table[:, 1], (50, 99)))
    numbers, counts = np.unique(table[:, 1].astype(int), return_counts=True)
    shares = dict(zip(numbers.tolist(), (counts / len(samples)).tolist(), strict=True))
    return KindResult(
        name, len(samples), float(latency.mean()), p50, p90, p99, float(latency.max()),
        trips, usual, late, max(shares), exchanges, shares, read, written, cas,
    )  # fmt: skip
