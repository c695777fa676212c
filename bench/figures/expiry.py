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
from collections.abc import Callable, Sequence
from typing import Any, Final

from rich.table import Table

from limpet.cli.common import table, time_text
from limpet.fault.check.recorder import Operation
from limpet.fault.explore.sim_latency import PRESETS
from limpet.fault.explore.sim_time import TimedClient, Workload, World, key_of, peopled
from limpet.shm.endpoint.layout import CONTROL_NODE, NODE_SHIFT
from limpet.shm.endpoint.simulated import CAS, PAUSE, WAIT, SimulatedEndpoint, Step
from limpet.shm.errors import ParameterError
from limpet.stores.rtx.layout import DRIFT_US, EACH_US, LOCKED

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
        self, client: TimedClient, count: int, drawn: tuple[int, Operation]
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


CLIENTS_OF_MANY: Final = 16
"""Clients of transactions with several locks: more of them are in each other's way all the time."""
OBJECTS_OF_MANY: Final = 2000
PAPER_DRIFT: Final = {5: "less than 1%", 8: "none above"}
PAPER_LOCKS: Final = {20: "0.1%, -", 80: "47.5%, 0.4%"}
Advance = Callable[[str], None]


@dataclasses.dataclass
class Found:
    """`drifts`: one lock, for each drift and number of objects; `locks`: for each number of locks a
    lease that is fixed and one that grows with it; `dead`: the same drifts, and growing leases,
    when the owner is dead."""

    drifts: list[Expiry] = dataclasses.field(default_factory=list)
    locks: list[Expiry] = dataclasses.field(default_factory=list)
    dead_drifts: list[Expiry] = dataclasses.field(default_factory=list)
    dead_locks: list[Expiry] = dataclasses.field(default_factory=list)


def steps(drifts: Sequence[float], locks: Sequence[int], objects: Sequence[int]) -> int:
    """How often `run` will say that it gets on."""
    return len(drifts) * (len(objects) + 1) + 3 * len(locks)


def run(
    drifts: Sequence[float],
    locks: Sequence[int],
    objects: Sequence[int],
    advance: Advance,
    *,
    clients: int,
    transactions: int,
    skew_ms: float,
    late: float,
    late_ms: float,
    seed: int,
) -> Found:
    """Run each drift, in ms, with one lock, and each number of locks with the shipped drift."""
    if max(locks, default=0) > OBJECTS_OF_MANY:
        raise ParameterError(f"transactions take at most {OBJECTS_OF_MANY} locks here")
    found = Found()
    usual = Setting(
        DRIFT_US, clients=clients, transactions=transactions, skew_us=1000 * skew_ms, late=late,
        late_us=1000 * late_ms, seed=seed,
    )  # fmt: skip
    for drift in drifts:
        one = dataclasses.replace(usual, drift_us=round(1000 * drift))
        for number in objects:
            found.drifts.append(run_setting(dataclasses.replace(one, objects=number)))
            advance(f"drift {drift:g} ms")
        found.dead_drifts.append(run_setting(died(one)))
        advance(f"drift {drift:g} ms")
    few = min(clients, CLIENTS_OF_MANY)
    for number in locks:
        one = dataclasses.replace(
            usual, locks=number, clients=few, objects=OBJECTS_OF_MANY,
            transactions=max(1, transactions // 5),
        )  # fmt: skip
        for each in (0, EACH_US):
            found.locks.append(run_setting(dataclasses.replace(one, each_us=each)))
            advance(f"{number} locks")
        found.dead_locks.append(run_setting(died(one)))
        advance(f"{number} locks")
    return found


def as_json(found: Found) -> dict[str, Any]:
    """All of it."""
    return dataclasses.asdict(found)


def _percent(one: Expiry) -> str:
    return f"{one.rate:.2%}" if one.expired else "0"


def drifts_table(found: Found) -> Table:
    """Figure 18(a)."""
    objects = list(dict.fromkeys(one.setting.objects for one in found.drifts))
    numbers = (*(f"{count:,} objects" for count in objects), "dead owner: blocked", "paper")
    setting = found.drifts[0].setting
    shown = table(
        f"false expiries for each transaction, by drift; one lock, {setting.clients} clients "
        "(figure 18a)", "drift", *numbers, right=("drift", *numbers),
    )  # fmt: skip
    for index, dead in enumerate(found.dead_drifts):
        drift = dead.setting.drift_us / 1000
        row = found.drifts[index * len(objects) : (index + 1) * len(objects)]
        shown.add_row(
            f"{drift:g} ms", *(_percent(one) for one in row), time_text(dead.blocked_ns),
            PAPER_DRIFT.get(round(drift), "-"),
        )  # fmt: skip
    shown.caption = _conditions(setting)
    return shown


def locks_table(found: Found) -> Table:
    """Figure 18(b)."""
    numbers = ("fixed lease", "growing lease", "conflicts", "dead owner: blocked",
               "paper: fixed, growing")  # fmt: skip
    setting = found.locks[0].setting
    shown = table(
        f"false expiries for each transaction, by its locks; drift {setting.drift_us / 1000:g} ms, "
        f"{setting.clients} clients, {setting.objects:,} objects (figure 18b)",
        "locks", *numbers, right=("locks", *numbers),
    )  # fmt: skip
    pairs = zip(found.locks[::2], found.locks[1::2], found.dead_locks, strict=True)
    for fixed, growing, dead in pairs:
        locks = fixed.setting.locks
        shown.add_row(
            str(locks), _percent(fixed), _percent(growing),
            f"{growing.retries / growing.transactions:.1f}", time_text(dead.blocked_ns),
            PAPER_LOCKS.get(locks, "-"),
        )  # fmt: skip
    shown.caption = (
        f"growing: by {EACH_US / 1000:g} ms for each lock. conflicts: for each transaction. "
        f"{_conditions(setting)}"
    )
    return shown


def _conditions(setting: Setting) -> str:
    return (
        f"clocks differ by {setting.skew_us / 1000:g} ms (standard deviation); {setting.late:.1%} "
        f"of verbs are late, by {setting.late_us / 1000:g} ms on average. blocked: until the lock "
        "of a client that is gone is seen to, by its lease only."
    )


def tables(found: Found) -> list[Table]:
    """A table for each part that there is."""
    return [
        *([drifts_table(found)] if found.drifts else []),
        *([locks_table(found)] if found.locks else []),
    ]
