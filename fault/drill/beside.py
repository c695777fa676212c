"""The drill of bystanders: a client that only reads or waits delays no other client by a lease.

Clients stop at steps of their own, and the pool's lease is an hour. So a client that has to wait
for a lease is blocked, and the drill finds it on the slowest machine. For every subject
(subjects.py):

    reader   a reader stops at a step of a read; a writer makes its turns beside it
    waiter   a holder stops at a step of a change; a second client wants to make the same change,
             and stops at one of its pauses, when it waits; the holder goes on and ends; a third
             client makes its turns beside the waiter. If no client has to wait, the second one ends
    repair   a client dies at a step of a change, while a second one is at work elsewhere, on a core
             of its own if there is one; a third client recovers the dead one, and makes its turns.
             It pauses a few times at most: the client at work must not keep it from ending
    drop     for stores: as waiter, but the third client drops the store beside the waiter, which
             gets an error when it goes on

Each client that stopped goes on in the end, and ends well; the subject is whole, and no memory
leaks.
"""

from __future__ import annotations

import mmap
import os
import signal
import time
from collections.abc import Callable
from typing import Any, Final

from limpet.fault.drill.engine import SHARE, Fault, demand_sound, demand_unfenced
from limpet.fault.inject.stopping import StoppingEndpoint, StoppingPool, stop, stops
from limpet.fault.inject.workers import Exit, Workers
from limpet.fault.matrix.operations import demand
from limpet.fault.matrix.subjects import CHANGES, KEYS, opened
from limpet.fault.matrix.testbed import look_away, within
from limpet.shm.errors import StoreDropped
from limpet.stores.pool import Pool
from limpet.stores.registry import KINDS

ROLES: Final = ("reader", "waiter", "repair", "drop")
LEASE_US: Final = 3_600_000_000
PATIENCE_S: Final = 10.0
TURNS: Final = 40
PAUSES: Final = (1, 10, 24, 50)
"""The pauses at which a waiter stops: it spins, yields, or has slept in a queue."""
PAUSES_MAX: Final = 50
"""The most pauses of a repair."""


class WaitingEndpoint(StoppingEndpoint):
    """An endpoint that counts pauses and sleeps, and stops the process at number `pause_at`."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses = 0
        self.pause_at = 0

    def _paused(self) -> None:
        self.pauses += 1
        if self.pauses == self.pause_at:
            self.pause_at = 0
            stop()

    def pause(self, attempt: int) -> int:
        self._paused()
        return super().pause(attempt)

    def futex_wait(self, addr: int, expected: int, timeout_us: int) -> int:
        self._paused()
        return super().futex_wait(addr, expected, timeout_us)


class WaitingPool(StoppingPool):
    """A pool with such an endpoint."""

    endpoint_class = WaitingEndpoint
    endpoint: WaitingEndpoint


def roles_of(subject: str) -> tuple[str, ...]:
    """The roles for a subject: a channel is not dropped."""
    return tuple(role for role in ROLES if role != "drop" or subject in KINDS)


class Beside(Fault):
    """Runs the roles for one subject.

    `realtime`: the client at work beside repairs has the last core to itself, before all other
    processes.
    """

    word = "role"
    counts_stops = True
    pool_class = WaitingPool

    def __init__(self, subject: str, url: str, share: int = SHARE, realtime: bool = False) -> None:
        super().__init__(subject, url, share)
        self.realtime = realtime

    def settings(self, way: str) -> dict[str, Any]:
        return {"lease": LEASE_US / 1e6, **super().settings(way)}

    def strike(self, way: str) -> None:
        self.turns(TURNS)
        roles = {
            "reader": self._readers, "waiter": self._waiters,
            "repair": self._repairs, "drop": self._drops,
        }  # fmt: skip
        roles[way]()
        with within(PATIENCE_S, "the look at what is left"):
            demand_sound(self.pool, held=False)
            demand_unfenced(self.pool)

    def _client(self, work: Callable[[Any, Any], object]) -> Callable[[int, int], None]:
        """A forked client, with a handle that it inherits, which does `work(endpoint, subject)`."""

        def target(slot: int, incarnation: int) -> None:
            pool = self.pool
            look_away(pool)
            assert pool.client_id
            work(pool.endpoint, self.work)
            pool.endpoint.fuse = pool.endpoint.stop_at = pool.endpoint.pause_at = 0
            pool.close()

        return target

    @staticmethod
    def _halted(pid: int, name: str) -> bool:
        """Wait until a client has stopped, or ended; whether it has stopped."""
        with within(PATIENCE_S, name):
            return stops(pid)

    @staticmethod
    def _end(workers: Workers, pid: int, name: str) -> Exit:
        os.kill(pid, signal.SIGCONT)
        with within(PATIENCE_S, name):
            ended = workers.reap(pid)
        demand(ended.status == 0, f"{name} ended with {ended.status}: {ended.traceback}")
        return ended

    def _beside(self, name: str) -> None:
        with within(PATIENCE_S, name):
            self.turns(TURNS)

    # ---- the roles ------------------------------------------------------------------------------

    def _readers(self) -> None:
        self.each_step(self._reader)

    def _reader(self, k: int) -> bool:
        def work(endpoint: Any, subject: Any) -> None:
            endpoint.stop_at = k
            subject.read(self.turn)

        with Workers(self._client(work)) as workers:
            pid = workers.start(0)
            halted = self._halted(pid, "the reader")
            self.stopped += halted
            self._beside(f"a writer beside a reader that is stopped at step {k}")
            self._end(workers, pid, "the reader that went on")
        return halted

    def _waiters(self) -> None:
        self._beside_waiters(self._waiter)

    def _beside_waiters(self, run: Callable[[int, int], bool]) -> None:
        for k in self.steps():
            for number in PAUSES:
                self.runs += 1
                if not run(k, number):
                    return

    def _waiter(self, k: int, number: int) -> bool:
        return self._with_waiter(
            k, number, lambda: self._beside(f"a client beside a waiter stopped at pause {number}")
        )

    def _with_waiter(
        self, k: int, number: int, third: Callable[[], object], drops: bool = False
    ) -> bool:
        """Do `third` beside a waiter that is stopped. Whether the holder had a step k."""

        def hold(endpoint: Any, subject: Any) -> None:
            endpoint.stop_at = k
            subject.write(CHANGES)

        def wait(endpoint: Any, subject: Any) -> None:
            endpoint.pauses = 0
            endpoint.pause_at = number
            try:
                subject.write(CHANGES)
            except StoreDropped:
                return
            demand(not drops or endpoint.pause_at, "the waiter worked on in a dropped store")

        with Workers(self._client(hold)) as holders, Workers(self._client(wait)) as waiters:
            holder = holders.start(0)
            halted = self._halted(holder, "the holder")
            waiter = waiters.start(0)
            self.stopped += self._halted(waiter, f"a client beside one that is stopped at step {k}")
            self._end(holders, holder, "the holder that went on")
            third()
            self._end(waiters, waiter, "the waiter that went on")
        return halted

    def _drops(self) -> None:
        self._beside_waiters(self._drop)

    def _drop(self, k: int, number: int) -> bool:
        self.work = self.open()
        self.turns(KEYS)

        def drop() -> None:
            with within(PATIENCE_S, f"a drop beside a waiter stopped at pause {number}, step {k}"):
                self.pool.drop("subject")

        halted = self._with_waiter(k, number, drop, drops=True)
        demand(not self.pool.stores(), f"dropped, and there are {self.pool.stores()}")
        audit = self.pool.audit()
        demand(not audit["reachable"], f"of a dropped store, there is still {audit}")
        return halted

    def _repairs(self) -> None:
        turns = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")

        def busy(slot: int, incarnation: int) -> None:
            # With a plain endpoint, which is many times as fast.
            with Pool.open(self.url) as pool:
                look_away(pool)
                subject = opened(pool, self.subject)
                if self.realtime:
                    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
                    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
                while True:
                    subject.elsewhere(turns[0])
                    turns[0] += 1

        with Workers(busy) as workers:
            pid = workers.start(0)
            with within(PATIENCE_S, "the client that is to be at work"):
                while turns[0] < TURNS:
                    time.sleep(0.001)
            self.each_step(self._repair)
            os.kill(pid, signal.SIGKILL)
            workers.reap(pid)

    def _repair(self, k: int) -> bool:
        def die(endpoint: Any, subject: Any) -> None:
            endpoint.fuse = k
            subject.write(CHANGES)

        with Workers(self._client(die)) as workers:
            pid = workers.start(0)
            with within(PATIENCE_S, "the victim"):
                ended = workers.reap(pid)
        died = ended.status == -signal.SIGKILL
        demand(died or ended.status == 0, f"the victim failed: {ended.traceback}")
        self.stopped += died
        endpoint = self.pool.endpoint
        endpoint.pauses = 0
        with within(PATIENCE_S, f"the repair for a client that died at step {k}"):
            self.pool.recover()
        demand(
            endpoint.pauses <= PAUSES_MAX,
            f"the repair for a client that died at step {k} has paused {endpoint.pauses} times "
            "beside one that is at work",
        )
        self._beside("a client after a repair")
        return died
