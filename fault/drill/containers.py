"""The drill of containers: clients in PID and mount namespaces of their own, which are killed, or
stand still, at each step of a change, beside a client outside.

The pool has `multi_host=True`: no client can end one of another namespace. For every subject
(subjects.py) but a store with a metadata process, which clients of other hosts cannot reach:

    killed   the container is killed; the client outside goes on at once, and recovers it
    frozen   the container stands still, and stays so. The client outside works on: after two
             leases nothing that the container keeps is in its way any more, neither a lock nor
             memory. Then the container is killed
    thawed   as frozen, and then the container goes on: its change ends well, or it is told that it
             was declared dead. It was not killed, and works on with a new client

The pool's memory is scarce and the values are long, so one reader that is given up too late shows
as StoreFull. At the end the subject is whole and no memory leaks.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from typing import Any, Final

from limpet.fault.drill.engine import Fault, demand_sound, demand_unfenced
from limpet.fault.inject.containers import contain
from limpet.fault.inject.stopping import StoppingPool
from limpet.fault.inject.workers import Workers
from limpet.fault.matrix.fault_profile import profile_of
from limpet.fault.matrix.operations import Broken, demand
from limpet.fault.matrix.subjects import CHANGES, SUBJECTS, StoreSubject, opened
from limpet.fault.matrix.testbed import look_away, within
from limpet.shm.errors import ClientError, StoreFull

CONTAINED: Final = tuple(one for one in SUBJECTS if not profile_of(one).metadata_process)
ROLES: Final = ("killed", "frozen", "thawed")
LEASE_S: Final = 0.2
PATIENCE_S: Final = 20.0
PAUSE_S: Final = 0.01
TURNS: Final = 60
SHARE: Final = 3
LONGEST: Final = 3000
"""How often a value repeats its number: some KiB."""
STANDS: Final = b"s"
ENDED: Final = b"e"
GO_ON: Final = b"g"


class Containers(Fault):
    """Runs the roles for one subject."""

    word = "role"
    counts_stops = True

    def settings(self, way: str) -> dict[str, Any]:
        return {"multi_host": True, "lease": LEASE_S, **super().settings(way)}

    def strike(self, way: str) -> None:
        if isinstance(self.work, StoreSubject):
            self.work.longest = LONGEST
            self.work.tolerated = (KeyError,)
        self._turns()
        self.each_step(lambda k: self._one(way, k))
        with within(PATIENCE_S, "the look at what is left"):
            demand_sound(self.pool, held=False)
            demand_unfenced(self.pool)

    def _one(self, role: str, k: int) -> bool:
        """One container, at step k of a change; whether the change has that step."""
        (told, tell), (heard, say) = os.pipe(), os.pipe()

        def target(slot: int, incarnation: int) -> None:
            os.close(told)
            os.close(say)
            contain(lambda pid: os.write(tell, pid.to_bytes(8, "little")))
            self._contained(k, tell, heard)

        name = f"the container, {role} at step {k}"
        with contextlib.ExitStack() as undo, Workers(target) as workers:
            undo.callback(os.close, told)
            undo.callback(os.close, say)
            door = workers.start(0)
            os.close(tell)
            os.close(heard)
            with within(PATIENCE_S, name):
                inside = int.from_bytes(os.read(told, 8), "little")
                reached = os.read(told, 1)
            if not reached:
                ended = workers.reap(door)
                raise Broken(f"{name} ended with {ended.status}: {ended.traceback}")
            if reached == STANDS:
                self.stopped += 1
                self._fault(role, inside, name)
            said = b""
            if role == "thawed" or reached == ENDED:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(inside, signal.SIGCONT)
                os.write(say, GO_ON)
                with within(PATIENCE_S, f"{name}, which went on"):
                    said = os.read(told, 1)
            with within(PATIENCE_S, f"the end of {name}"):
                ended = workers.reap(door)
            expected = 0 if said else -signal.SIGKILL
            demand(ended.status == expected, f"{name} ended with {ended.status}: {ended.traceback}")
        self._turns()
        return reached == STANDS

    def _contained(self, k: int, tell: int, heard: int) -> None:
        """Process 1: a change that stands still at step k until it is told to go on."""
        pool = self.pool
        look_away(pool)
        assert pool.client_id

        one_tells, stood = threading.Lock(), False

        def stand(where: bytes = STANDS) -> None:
            # A thread of the store may reach step k just when the change has ended without it.
            nonlocal stood
            with one_tells:
                if not stood:
                    stood = True
                    os.write(tell, where)
                    os.read(heard, 1)

        pool.endpoint.interrupt = stand
        pool.endpoint.stop_at = k
        # It was declared dead while it stood still, or the client outside has the memory.
        with contextlib.suppress(ClientError, StoreFull):
            self.work.write(CHANGES)
        if pool.endpoint.stop_at:
            pool.endpoint.stop_at = 0
            stand(ENDED)
        with StoppingPool.open(self.url) as again:
            work = opened(again, self.subject)
            while True:
                with contextlib.suppress(StoreFull):
                    work.write(CHANGES)
                    break
                time.sleep(PAUSE_S)
        pool.close()
        os.write(tell, ENDED)

    def _fault(self, role: str, inside: int, name: str) -> None:
        if role == "killed":
            os.kill(inside, signal.SIGKILL)
            with within(PATIENCE_S, f"a client beside {name}"):
                self._turns()
            return
        os.kill(inside, signal.SIGSTOP)
        began = time.monotonic()
        with within(PATIENCE_S, f"a client beside {name}"):
            while time.monotonic() - began < 3 * LEASE_S:
                self._turns()
            while self._turns():
                pass
        if role == "frozen":
            os.kill(inside, signal.SIGKILL)

    def _turns(self) -> int:
        """Make the turns of a client; how many of them found memory full."""
        full = 0
        for _ in range(TURNS):
            try:
                self.turns(1)
            except StoreFull:
                full += 1
                self.turn += 1
        return full
