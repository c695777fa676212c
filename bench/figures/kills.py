"""The throughput of a store while its clients are killed at a rate (RCuckoo 5.4, figure 8a).

Worker processes read and update the keys as YCSB-A does. A random worker is killed by SIGKILL, at
any instruction, so many times a second, and another one takes its place at once
(fault/inject/supervisor.py). A worker that meets the traces of a dead one repairs them; the times
of repairs are those in the pool's events.

Most of the cost of a kill is that of the process: forking one and ending it takes the machine's
time, too. So each rate is run twice, and in the second run the killed clients are idle ones beside
the workers.

Or clients are cut off in the midst of an update and their processes live on, as other clients, as
the paper emulates failures (fault/inject/cut_off.py): then no process has to be made for a kill.

At the end every key is read, the store is checked, and every byte of the pool accounted for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np

import limpet
from limpet.fault.check.recorder import Operation
from limpet.fault.drill.workload import ZipfWorkload, gets_and_puts
from limpet.fault.inject.counters import GETS, PUTS, Counters
from limpet.fault.inject.cut_off import CutOffPool, Gone
from limpet.fault.inject.interrupt import Interrupt
from limpet.fault.inject.killer import SECOND_NS
from limpet.fault.inject.supervisor import EventLog, Progress, Supervisor
from limpet.shm.errors import LimpetError
from limpet.stores.pool import Pool

NODES: Final = 3
THETA: Final = 0.99
WRITE_SHARE: Final = 0.5
VALUE_SIZE: Final = 24
BLOCKED_S: Final = 10.0
LOOK_S: Final = 0.02
"""The pool's last 128 events are read so often."""
STEPS_MAX: Final = 40
"""About as many as an update has."""


@dataclasses.dataclass(frozen=True)
class Kills:
    """One rate of kills: how many there were, and how many dead clients were repaired; times in ns.

    `emulated`: clients were cut off, and their processes lived on. `idle_per_s`: operations a
    second while as many idle processes were killed. `took_...`: a repair, from where it begins.
    """

    store: str
    processes: int
    emulated: bool
    rate: float
    kills: int
    kills_per_s: float
    operations_per_s: float
    idle_per_s: float | None
    repairs: int
    took_p50: float | None
    took_p99: float | None
    took_max: float | None
    leaked: int


@dataclasses.dataclass(frozen=True)
class Setting:
    """Parameters. `idle`: `rate` kills idle clients in place of the workers; see `Kills`."""

    store: str
    processes: int
    rate: float
    seconds: float
    keys: int = 10_000
    seed: int = 1
    emulate: bool = False
    idle: bool = False
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def run(setting: Setting) -> Kills:
    """Run one rate of kills, on pools of its own; from the main thread.

    Raises LimpetError when a worker fails or is blocked, or something is wrong in the end.
    """
    idle = None
    if setting.rate and not setting.emulate:
        with _churn(dataclasses.replace(setting, idle=True)) as churn:
            idle = churn.work()
    with _churn(setting) as churn:
        per_second = churn.work()
        return churn.result(per_second, idle, churn.verify())


class _Log(EventLog):
    """Keeps how long repairs took."""

    def __init__(self, pool: Any) -> None:
        super().__init__(pool)
        self.took: list[int] = []

    def drain(self) -> list[dict[str, Any]]:
        found = super().drain()
        self.took += [event["took_ns"] for event in found if event["kind"] == "recovered"]
        return found


class _Bystanders(Supervisor):
    """Kills only the clients beyond the workers."""

    def _start(self, slot: int) -> None:
        pid = self._workers.start(slot)
        if slot >= self.clients:
            self.victims.add(pid)


class _Churn:
    """Workers on a store that are killed at a rate, or idle clients beside them."""

    def __init__(self, setting: Setting, pool: Pool, store: Any, supervisor: Supervisor) -> None:
        self.setting = setting
        self.pool = pool
        self.store = store
        self.supervisor = supervisor
        self.log = supervisor.events = _Log(pool)
        self.last: Progress

    def work(self) -> float:
        """Run for the time that is set; operations a second."""
        looks = int(self.setting.seconds / LOOK_S)
        planned = [(LOOK_S * number, self.supervisor.note_events) for number in range(1, looks)]
        self.supervisor.run(self.setting.seconds, _ignore, planned)
        self.last = self.supervisor.stop(_ignore)
        if self.supervisor.failed:
            raise LimpetError("\n".join((*self.supervisor.ends, *self.supervisor.blocked)))
        snapshot = self.last.snapshot
        done = snapshot.operations(GETS) + snapshot.operations(PUTS)
        return done / self.last.elapsed_s

    def verify(self) -> int:
        """Read every key, recover the remaining dead clients, check; returns the leaked bytes."""
        for number in range(self.setting.keys):
            check_value(number, self.store.get(key_of(number)))
        self.pool.recover()
        self.supervisor.note_events()
        self.store.check()
        return int(self.pool.audit()["leaked"])

    def result(self, per_second: float, idle: float | None, leaked: int) -> Kills:
        """The result."""
        setting, took = self.setting, self.log.took
        kills = self.last.snapshot.refused() if setting.emulate else self.last.killed
        return Kills(
            store=setting.store,
            processes=setting.processes,
            emulated=setting.emulate,
            rate=setting.rate,
            kills=kills,
            kills_per_s=kills / self.last.elapsed_s,
            operations_per_s=per_second,
            idle_per_s=idle,
            repairs=len(took),
            took_p50=float(np.percentile(took, 50)) if took else None,
            took_p99=float(np.percentile(took, 99)) if took else None,
            took_max=float(max(took)) if took else None,
            leaked=leaked,
        )


@contextlib.contextmanager
def _churn(setting: Setting) -> Iterator[_Churn]:
    """A pool with a filled store, and a supervisor; all end with the body."""
    url = f"shm://limpet-kills-{os.getpid()}"
    with contextlib.ExitStack() as stack:
        interrupt = stack.enter_context(Interrupt())
        kind = CutOffPool if setting.emulate else Pool
        pool = stack.enter_context(kind.create(url, nodes=NODES, node_size="64MiB"))
        limpet.destroy(url)
        store = pool.store(setting.store, name="s", capacity=2 * setting.keys, **setting.parameters)
        for number in range(setting.keys):
            store.put(key_of(number), value_of(number, 0))
        counters = Counters(setting.processes)
        supervisor = (_Bystanders if setting.idle else Supervisor)(
            _target(setting, pool, store, counters), pool, counters, interrupt,
            seed=setting.seed, kill_rate=0 if setting.emulate else setting.rate,
            blocked_s=BLOCKED_S, endless=setting.processes if setting.idle else 0,
        )  # fmt: skip
        yield _Churn(setting, pool, store, stack.enter_context(supervisor))


def _target(
    setting: Setting, pool: Any, store: Any, counters: Counters
) -> Callable[[int, int], None]:
    mix = ZipfWorkload(setting.keys, THETA, gets_and_puts(WRITE_SHARE), setting.seed)
    names = [key_of(number) for number in range(setting.keys)]

    def client(slot: int, incarnation: int) -> None:
        while slot >= counters.slots:
            signal.pause()
        clock = time.monotonic_ns
        counter = counters.counter(slot)
        counter.start(os.getpid(), pool.client_id)
        death = _Death(setting, pool, incarnation)
        for number, operation in mix.draw(incarnation):
            if counter.stopped:
                break
            begin = clock()
            if operation is not Operation.PUT:
                check_value(number, store.get(names[number]))
                counter.add(GETS, VALUE_SIZE, clock() - begin)
                continue
            update = functools.partial(store.update, names[number], value_of(number, incarnation))
            if death.due_ns and begin >= death.due_ns and death.comes(update):
                counter.refuse()
                continue
            update()
            counter.add(PUTS, VALUE_SIZE, clock() - begin)
        pool.close()

    return client


class _Death:
    """When a client is cut off, if that is emulated; `due_ns` is 0 if not."""

    def __init__(self, setting: Setting, pool: Any, incarnation: int) -> None:
        self.pool = pool
        self.due_ns = 0
        self._random = random.Random(setting.seed << 32 | incarnation)
        if setting.emulate and setting.rate:
            self._gap_ns = setting.processes / setting.rate * SECOND_NS
            self.due_ns = time.monotonic_ns() + int(self._gap_ns * self._random.random())

    def comes(self, update: Callable[[], object]) -> bool:
        """Begin an update, and be cut off in its midst; False if it is over before."""
        self.pool.endpoint.steps = self._random.randint(1, STEPS_MAX)
        try:
            update()
        except Gone:
            self.pool.reborn()
            self.due_ns += int(self._gap_ns * self._random.uniform(0.5, 1.5))
            return True
        finally:
            self.pool.endpoint.steps = 0
        return False


def key_of(number: int) -> bytes:
    """The key of a number."""
    return b"key-%012d" % number


def value_of(number: int, incarnation: int) -> bytes:
    """A client's value for a key: a reader can check that it is the key's, and whole."""
    return b"%08d%08d%08d" % (number, incarnation, number)


def check_value(number: int, value: bytes | None) -> None:
    """StoreCorrupt unless that is a value of the key."""
    due = b"%08d" % number
    if value is None or len(value) != VALUE_SIZE or value[:8] != due or value[-8:] != due:
        raise limpet.StoreCorrupt(f"the key {key_of(number)!r} has {value!r}")


def _ignore(progress: Progress) -> None:
    pass
