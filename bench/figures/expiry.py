"""Locks that others take for a dead client's while their owner lives (rTX 6.4, figure 18).

In virtual time (fault/explore/sim_time.py), on the shipped code of `rtx-sherman`. Each transaction
writes so many objects, drawn evenly: leaves of a tree, of one key each that is written. One object
is written without a log (`update`), several in a transaction with one. Clients' clocks differ, by a
normal distribution (`skew_us`: its standard deviation); and verbs on memory nodes are late now and
then, as a write is that "flies" (section 4.1), or of a client that loses its core: a share `late`
of them, by `late_us` on average, exponentially distributed. Clients know nothing of each other's
processes here, as among hosts: a client that meets a lock goes by its lease only.

The count is `repairs` in the `stats()` of the stores, each lock or transaction once. As all owners
live, each repair is a false expiry. It does no harm: the owner tries again.

Then, the other side of a long lease: one client dies when it has taken its first lock, and all
transactions write the same objects. `blocked` is the time until another client has released that
lock: for so long a dead client of another host is in the way. (A client of the same host is known
to be dead within 10 ms.) Clocks are alike there; their difference would be added.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from limpet.fault.check.recorder import Operation
from limpet.fault.explore.sim_latency import PRESETS
from limpet.fault.explore.sim_time import TimedClient, Workload, World, key_of, peopled
from limpet.shm.endpoint.layout import CONTROL_NODE, NODE_SHIFT
from limpet.shm.endpoint.simulated import CAS, PAUSE, WAIT, SimulatedEndpoint, Step
from limpet.stores.transactions.layout import EACH_US, LOCKED

KIND: Final = "rtx-sherman"
VALUE_SIZE: Final = 24
ENTRIES: Final = 4
"""Of a leaf, at most."""
LEAF: Final = {"node_size": 256, "key_size": 12, "value_size": VALUE_SIZE}
ATTEMPTS: Final = 1 << 20
SURVIVORS: Final = 4
OPS_OF_SURVIVORS: Final = 20


@dataclasses.dataclass(frozen=True)
class Setting:
    """Parameters: `transactions` of each client, of `locks` objects out of `objects`.

    `drift_us`, `each_us`: parameters of the store; the rest is as the module says. `dies`: the
    first client does, in its first transaction, and then the others begin.
    """

    drift_us: int
    each_us: int = EACH_US
    locks: int = 1
    objects: int = 100
    clients: int = 72
    transactions: int = 20
    skew_us: float = 1500.0
    late: float = 0.01
    late_us: float = 1000.0
    profile: str = "rdma"
    seed: int = 0
    dies: bool = False


@dataclasses.dataclass(frozen=True)
class Expiry:
    """The result. Times in ns, of whole transactions; `retries`: failed attempts.

    `expired`: locks that were seen to at the end of their lease, of the living and the dead.
    """

    setting: Setting
    transactions: int
    expired: int
    retries: int
    p50_ns: float
    p99_ns: float
    max_ns: float
    blocked_ns: float | None

    @property
    def rate(self) -> float:
        """Expiries for each transaction."""
        return self.expired / self.transactions


class _Steps(deque[Step]):
    """Takes the steps of a client, and calls `locked` when it has taken a lock."""

    def __init__(self, locked: Callable[[], None]) -> None:
        super().__init__(maxlen=0)
        self.locked = locked

    def append(self, step: Step) -> None:
        _, verb, at, done, value = step
        if verb is CAS and done and value & LOCKED and at >> NODE_SHIFT != CONTROL_NODE:
            self.locked()


class _Drifting(World):
    """Clients whose clocks differ and whose verbs are late, and one that may die."""

    def __init__(self, setting: Setting) -> None:
        workload = Workload(
            KIND, setting.clients, setting.transactions, ENTRIES * setting.objects,
            key_size=LEAF["key_size"], value_size=VALUE_SIZE, warm_up=0, theta=0, write_share=1,
            seed=setting.seed,
            parameters={**LEAF, "drift_us": setting.drift_us, "each_us": setting.each_us},
        )  # fmt: skip
        super().__init__(workload, PRESETS[setting.profile])
        self.setting = setting
        self.keys: list[bytes] = []
        self.dice: list[random.Random] = []
        self.died_ns: float | None = None
        self.blocked_ns: float | None = None

    def prepare(self) -> None:
        """Set the clocks, and find a key for each object: the first one of each leaf."""
        setting = self.setting
        for client in self.clients:
            dice = random.Random(f"{setting.seed}, {client.number}")
            client.skew_us = round(dice.gauss(0, setting.skew_us))
            self.dice.append(dice)
        store = self.clients[0].store
        names = sorted(key_of(self.workload, number) for number in range(self.workload.keys))
        found: list[bytes] = []
        index = 0
        while index < len(names):
            found.append(names[index])
            _, fence = store.scans.read_leaf(0, names[index])
            index = len(names) if fence is None else bisect_left(names, fence)
        self.keys = random.Random(setting.seed).sample(found, setting.objects)

    def turn(self, endpoint: SimulatedEndpoint, verb: str, addr: int, words: int) -> int:
        client = self.clients[endpoint.number]
        while self.setting.dies and client.number and self.died_ns is None:
            client.now += self.model.pause_ns
            self._reach(client, client.now)
        if self.died_ns is not None:
            if client.number == 0:
                self._hub.switch()
            if self.blocked_ns is None and client.store.repair.repairs:
                self.blocked_ns = client.now - self.died_ns
        dice = self.dice[client.number]
        away = verb is not WAIT and verb is not PAUSE and addr >> NODE_SHIFT != CONTROL_NODE
        if away and dice.random() < self.setting.late:
            client.now += dice.expovariate(1e-3 / self.setting.late_us)
        return super().turn(endpoint, verb, addr, words)

    def _call(
        self, client: TimedClient, count: int, drawn: tuple[int, Operation], through: Any = None
    ) -> tuple[str, Callable[[], object]]:
        setting = self.setting
        keys = self.dice[client.number].sample(self.keys, setting.locks)
        if setting.dies and client.number == 0 and count == 0:
            client.endpoint.trace = _Steps(self._die)
        value = b"%d.%d" % (client.number, count)
        if setting.locks == 1:
            return "write", functools.partial(client.store.update, keys[0], value)

        def write(tx: Any) -> None:
            for key in keys:
                tx.put(client.store, key, value)

        return "write", functools.partial(client.pool.transaction, write, ATTEMPTS)

    def _die(self) -> None:
        self.died_ns = self.clients[0].now


def run_setting(setting: Setting) -> Expiry:
    """Run one setting. Equal settings give equal results, on any machine."""
    world = _Drifting(setting)
    with peopled(world):
        world.prepare()
        world.run()
        for client in world.clients:
            client.skew_us = 0
        world.clients[-1].store.check()
        stores = [client.store for client in world.clients]
        times = sorted(sample[0] for sample in world.samples["write"])
        return Expiry(
            setting=setting,
            transactions=len(times),
            expired=sum(store.stats()["repairs"] for store in stores),
            retries=sum(store.retries for store in stores),
            p50_ns=times[len(times) // 2],
            p99_ns=times[len(times) * 99 // 100],
            max_ns=times[-1],
            blocked_ns=world.blocked_ns,
        )


def died(setting: Setting) -> Setting:
    """The same with few clients on the same objects, one of which dies."""
    return dataclasses.replace(
        setting, objects=setting.locks, clients=SURVIVORS + 1, transactions=OPS_OF_SURVIVORS,
        skew_us=0.0, late=0.0, dies=True,
    )  # fmt: skip
