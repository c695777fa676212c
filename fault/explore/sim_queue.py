"""The shared queue in the simulator: many schedules of a few producers and consumers; some die.

A program's calls are `put`, of a value of its own, and `get`, neither of which waits; with the key
LARGE the value takes an object. After a run, a client gets all values that are left; then
    - the history is that of a queue (models.QueueModel)
    - each value is got once at most, and once if its put returned and no get was cut
    - the missing values are those that dead clients had (`lost`), and none that was left in the
      queue
    - no memory is leaked
"""

from __future__ import annotations

import queue
import random
from typing import Any, Final

from limpet.fault.check.channel_history import judge_queue
from limpet.fault.check.history import Record
from limpet.fault.explore.schedule import Faults, Priorities, RandomWalk, draw_faults
from limpet.fault.explore.sim_cluster import SimulatedCluster
from limpet.fault.explore.sim_program import Call, Program
from limpet.fault.explore.sim_run import Run
from limpet.shm.errors import LimpetError
from limpet.stores.channels.queue.shared_queue import SharedQueue

LARGE: Final = b"L"
ITEM_SIZE: Final = 24
LARGE_SIZE: Final = 3400
OP_STEPS: Final = 30


class QueueHandle:
    """A queue handle that the cluster uses in place of a store."""

    losses_survived = 0

    def __init__(self, shared: Any) -> None:
        self.queue = shared

    def forget(self) -> None:
        """Do nothing: the handle's only private state is its row, which is there at first."""


class QueueCluster(SimulatedCluster):
    """A cluster with a queue of the class `cls`."""

    def __init__(self, clients: int, maxsize: int, cls: Any = SharedQueue) -> None:
        self.cls = cls
        self.maxsize = maxsize
        super().__init__("race", clients)

    def _prepare(self) -> None:
        super()._prepare()
        self.reset()
        self.store = self._open(self.setup_client)
        for client in self.clients:
            client.store = self._open(client.pool)
            client.store.queue.patience = 2
        self.image = self.setup_client.image()

    def _open(self, pool: Any) -> QueueHandle:
        given = {"maxsize": self.maxsize, "item_size": ITEM_SIZE, "codec": "bytes"}
        return QueueHandle(pool.channels.open(self.cls, "queue", **given))


class QueueRun(Run):
    """One run of a program of puts and gets."""

    def perform(self, store: Any, client: int, kind: str, key: bytes, label: Any) -> None:
        index = len(self.history)
        called = Record(client, kind, b"queue", label, "unknown", None, self._tick(), None)
        self.history.append(called)
        read, result = None, "ok"
        try:
            if kind == "put":
                store.queue.put_nowait(label.ljust(LARGE_SIZE, b".") if key == LARGE else label)
            else:
                read = store.queue.get_nowait().rstrip(b".")
        except queue.Full:
            result = "full"
        except queue.Empty:
            result = "missing"
        self.history[index] = called._replace(read=read, result=result, return_ns=self._tick())

    def _take_all(self) -> None:
        """Empty the queue as a client that joins afterwards."""
        one = len(self.clients)
        while self.history[-1].result != "missing" or self.history[-1].client < one:
            self.perform(self.cluster.store, one, "get", b"", None)

    def _inspect(self) -> str:
        setup_client, store = self.cluster.setup_client, self.cluster.store
        try:
            self._take_all()
            setup_client.recover()
            self.perform(store, len(self.clients), "put", b"", b"last")
            self._take_all()
        except LimpetError as error:
            return f"check: {type(error).__name__}: {error}"
        given = {value.rstrip(b".") for value in store.queue.lost()}
        left = {record.read for record in self.history if record.client == len(self.clients)}
        if given & left:
            return f"in the queue, and lost: {given & left}"
        read = {record.read for record in self.history}
        gone = {
            record.value
            for record in self.history
            if record.op == "put" and record.result == "ok" and record.value not in read | given
        }
        if gone:
            return f"neither got nor given back: {gone}"
        audit = setup_client.audit()
        if audit["leaked"] or audit["held"]:
            return f"leaked: {audit}"
        return judge_queue(self.history)


def draw_calls(rng: random.Random, clients: int, ops: int) -> Program:
    """Puts, some of them large, and gets."""
    return tuple(
        tuple(
            Call(rng.choice(("put", "put", "get", "get", "get")), rng.choice((b"", b"", LARGE)))
            for _ in range(ops)
        )
        for _ in range(clients)
    )


def numbered_run(cluster: QueueCluster, number: int, *, crashes: int = 1, ops: int = 3) -> Run:
    """Run `number`: the same wherever and however often it is run."""
    rng = random.Random(number)
    program = draw_calls(rng, len(cluster.clients), ops)
    faults = draw_faults(rng, program, Faults(crashes, 1, 0, cluster.nodes), OP_STEPS)
    if number & 1:
        length = OP_STEPS * ops * len(program)
        chooser: Any = Priorities(rng, faults, len(program), rng.randint(1, 5), length)
    else:
        chooser = RandomWalk(rng, faults)
    return QueueRun(cluster, program, chooser).go()
