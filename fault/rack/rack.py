"""The rack: two machines that are switched on, and the memory that they share.

Clients of both work on one pool, and note what they do in the record. `Rack` starts clients, kills
them, waits while they work, and has everything judged in the end; scenarios.py says what happens.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any, Final

from limpet.fault.rack import verdicts
from limpet.fault.rack.image import Needs, RackError, agent_command, initial
from limpet.fault.rack.machine import Machine, Memory, arguments
from limpet.fault.rack.record import SIZE, Record, made
from limpet.fault.rack.verdicts import Outcome
from limpet.fault.rack.work import Work
from limpet.fault.rack.works import KINDS, work_of

NODES: Final = 3
NODE_SIZE: Final = 64 << 20
CLIENTS: Final = 3
"""Of machine "b" when it is lost: two that work, and one that watches."""
COUNT: Final = 300_000
LATENESS_S: Final = 5.0
LEASE_OF_LATENESS: Final = 10
"""The shortest lease, in times that a thread is late: a client renews four times in a lease."""
POLL_S: Final = 0.01
ENDING_S: Final = 20.0
"""How long clients that have lost their place, or their memory, may take to find that out."""
BACK_S: Final = 30.0
"""How long clients of a machine that came back may take for their second operation."""
JOINING_S: Final = 180.0
"""How long a client may take to open the pool and begin."""
Tell = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class RackParameters:
    """Parameters of a run: kinds of work, and durations in seconds.

    `lease_ms`: the shortest lease of a pool; it is longer where machines are late (`Rack.measure`).
    """

    kinds: tuple[str, ...] = KINDS
    lease_ms: int = 2000
    keys: int = 200
    work_s: float = 4.0
    kills: int = 2
    freezes: int = 2
    processors: int = 1


class Rack:
    """Two machines, and the memory that they share."""

    def __init__(
        self, parameters: RackParameters, machines: tuple[Machine, Machine], record: Record,
        nodes: tuple[Path, ...], tell: Tell,
    ) -> None:  # fmt: skip
        """`nodes`: the files of the pool's memory."""
        self.parameters = parameters
        self.a, self.b = machines
        self.record = record
        self.nodes = nodes
        self.tell = tell
        self.url = "dax://" + ",".join(f"/dev/dax{number}.0" for number in range(NODES))
        self.lease_ms = parameters.lease_ms
        """The lease of the pools."""
        self.doing: Work = work_of(parameters.kinds[0], parameters.keys)
        """The store or channel that the clients work on now."""
        self.deaths: dict[int, int] = {}
        """Tickets at which clients were about to die, by their incarnations."""
        self._incarnations: dict[int, int] = {}
        """Of the clients of each slot of the record, the last one."""
        self._others: set[int] = set()

    def boot(self, machine: Machine) -> None:
        """Switch a machine on, and wait until its agent is there."""
        began = time.monotonic()
        machine.start()
        self._await(machine, began)

    def boot_both(self) -> None:
        """Switch both on, whose NVDIMMs are formatted already."""
        began = time.monotonic()
        for machine in (self.a, self.b):
            machine.start()
        for machine in (self.a, self.b):
            self._await(machine, began)

    def _await(self, machine: Machine, began: float) -> None:
        found = machine.await_ready()
        devices = ", ".join(
            f"{name} ({size} bytes, aligned to {align})"
            for name, (size, align) in found["devices"].items()
        )
        self.tell(
            f"machine {machine.name}: Linux {found['kernel']}, {found['build']} build, ready after "
            f"{time.monotonic() - began:.0f} s (by its own clock {found['uptime_s']:.0f} s); "
            f"{devices}"
        )

    @property
    def lease_s(self) -> float:
        return self.lease_ms / 1000

    def measure(self) -> None:
        """Make leases long enough for these machines: many times as long as a thread is late."""
        for machine in (self.a, self.b):
            machine.tell("lateness", seconds=LATENESS_S, others=CLIENTS)
        worst_ms = max(machine.reply("lateness")["worst_ms"] for machine in (self.a, self.b))
        self.lease_ms = max(self.parameters.lease_ms, math.ceil(LEASE_OF_LATENESS * worst_ms))
        self.tell(f"a thread was late by {worst_ms:.0f} ms at worst, beside {CLIENTS} busy ones: "
                  f"leases of {self.lease_ms} ms")  # fmt: skip

    def prove_atomic(self) -> None:
        """Raise RackError unless additions of both machines to one word all count."""
        before = self.record.counted
        for machine in (self.a, self.b):
            machine.tell("count", times=COUNT)
        for machine in (self.a, self.b):
            machine.reply("count")
        added = self.record.counted - before
        if added != 2 * COUNT:
            raise RackError(
                f"of {2 * COUNT} atomic additions of two machines to one word only {added} count: "
                "their memory is not one memory, and nothing that is run on it proves anything"
            )
        self.tell(f"{added} atomic additions of both machines to one word at a time, none is lost")

    def wait(
        self, seconds: float, slots: tuple[int, ...], until: Callable[[], bool] = lambda: False
    ) -> float:
        """Let time pass; the longest time in which no client of `slots` began an operation."""
        end = time.monotonic() + seconds
        count, moved, longest = -1, time.monotonic(), 0.0
        while (now := time.monotonic()) < end and not until():
            found = sum(self.record.count(slot) for slot in slots)
            if found != count:
                count, moved = found, now
            longest = max(longest, now - moved)
            time.sleep(POLL_S)
        return longest

    def begin(
        self, kind: str, durable: bool = False, one_host: bool = False, alone: bool = False
    ) -> None:
        """A new pool, and clients at work on both machines: slots 0 to 3. `alone`: on "a" only,
        slots 0 and 1; so it is in a pool of one host."""
        self.doing = work_of(kind, self.parameters.keys)
        self.deaths.clear()
        self._incarnations.clear()
        self.record.clear()
        for machine in (self.a, self.b):
            machine.events.clear()
        self.a.ask("create", url=self.url, kind=kind, lease_ms=self.lease_ms,
                   keys=self.parameters.keys, durable=durable, one_host=one_host)  # fmt: skip
        self.join(self.a, (0, 1), 1)
        if not alone and not one_host:
            self.join(self.b, (2, 3), 3)
        self.at_work((0, 1))

    def join(self, machine: Machine, slots: tuple[int, ...], incarnation: int) -> None:
        """Clients of a machine at work, and one that watches."""
        machine.ask("use", url=self.url, kind=self.doing.kind, keys=self.parameters.keys)
        machine.ask("watch")
        machine.ask("work", slots=list(slots), incarnation=incarnation)
        self._incarnations.update(zip(slots, itertools.count(incarnation)))
        self.at_work(slots)

    def kill(self, machine: Machine, slot: int, incarnation: int) -> None:
        """Kill the client of a slot, and have another one begin there."""
        self.dying((slot,))
        machine.ask("kill", slot=slot)
        before = self.record.count(slot)
        machine.ask("again", slot=slot, incarnation=incarnation)
        self._incarnations[slot] = incarnation
        self.at_work((slot,), before)

    def dying(self, slots: Iterable[int]) -> None:
        """Note that the clients of these slots may be dead from now on."""
        for slot in slots:
            self.deaths[self._incarnations[slot]] = self.record.ticket()

    def at_work(self, slots: tuple[int, ...], before: int = 0) -> None:
        """Wait until each of these clients has begun an operation, after so many of its slot."""
        end = time.monotonic() + JOINING_S
        while not all(self.record.count(slot) > before for slot in slots):
            if time.monotonic() > end:
                ended = [*self.a.take("ended"), *self.b.take("ended")]
                raise RackError(
                    f"the clients of slots {slots} did not begin to work; ended have {ended}; "
                    f"machine a:\n{self.a.said()}\nmachine b:\n{self.b.said()}"
                )
            time.sleep(POLL_S)

    def judge_back(self, outcome: Outcome, slots: tuple[int, ...]) -> None:
        """Whether the clients of machines that came back work."""

        def all_work() -> bool:
            return all(self.record.count(slot) > 1 for slot in slots)

        self.wait(BACK_S, slots, all_work)
        done = [self.record.count(slot) for slot in slots]
        outcome.figures["operations of those that came back"] = str(sum(done))
        if not all_work():
            outcome.complain(verdicts.BACK, f"its clients made {done} operations")

    def pool_state(self) -> bytes:
        """A digest of all that is in the pool's memory now."""
        found = hashlib.sha256()
        for path in self.nodes:
            found.update(path.read_bytes())
        return found.digest()

    def others(self) -> set[int]:
        """The ids of the living clients that machine "a" sees on other machines."""
        for told in self.a.take("others"):
            self._others = set(told["clients"])
        return self._others

    def ends(self, machine: Machine, count: int) -> list[dict[str, Any]]:
        """How so many children of a machine ended; fewer when they do not end."""
        ended: list[dict[str, Any]] = []

        def all_ended() -> bool:
            ended.extend(machine.take("ended"))
            return len(ended) >= count

        self.wait(ENDING_S, (0, 1), all_ended)
        return ended

    def finish(self, outcome: Outcome) -> None:
        """End all clients of both machines."""
        for machine in (self.a, self.b):
            late = machine.ask("finish")["late"]
            if late:
                outcome.complain(verdicts.ENDED, f"{late} on machine {machine.name} were blocked")
            verdicts.judge_ends(outcome, machine.take("ended"))

    def end(self, outcome: Outcome) -> None:
        """End all clients, and judge everything."""
        self.finish(outcome)
        found = self.a.ask("verify")
        verdicts.judge_look(outcome, found)
        verdicts.judge_work(outcome, self.doing, self.record, self.deaths, found["found"])


@contextlib.contextmanager
def rack_of(needs: Needs, parameters: RackParameters, tell: Tell) -> Generator[Rack, None, None]:
    """A rack of two machines that are switched on; however it ends, they are gone."""
    shared = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="limpet-rack-", dir=shared if shared.is_dir() else None))
    try:
        (folder / "initial").write_bytes(initial(needs, agent_command()))
        nodes = tuple(folder / f"nvdimm{number}" for number in range(NODES))
        for path in nodes:
            path.touch(mode=0o600)
            os.truncate(path, NODE_SIZE)
        memory = Memory(nodes, NODE_SIZE, folder / "record", SIZE)
        machines = tuple(
            Machine(
                name,
                arguments(needs, name, folder, folder / "initial", memory, parameters.processors),
                folder,
            )
            for name in "ab"
        )
        with made(folder / "record") as record, contextlib.ExitStack() as stack:
            rack = Rack(parameters, (machines[0], machines[1]), record, nodes, tell)
            for machine in machines:  # "a" first: it formats the NVDIMMs
                stack.callback(machine.stop)
                rack.boot(machine)
            rack.prove_atomic()
            rack.measure()
            yield rack
    finally:
        shutil.rmtree(folder, ignore_errors=True)
