"""The scenarios of the rack: machines "a" and "b" work on one pool, and "b" is lost.

`killed`: clients work on both machines and some of them are killed inside; then the whole machine
"b" is switched off. "a" goes on and recovers the clients of "b"; "b" boots again, and its clients
join.

`frozen`: "b" stands still in the midst of its clients' writes, for longer than two leases, and goes
on when "a" has given its clients up and has worked on. By turns the clocks of "b" stand still, too.

In the end "a" reads every key, recovers the dead, and reads every key again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final

from limpet.fault.rack import verdicts
from limpet.fault.rack.image import Needs, RackError, agent_command, initial
from limpet.fault.rack.machine import Machine, Memory, arguments
from limpet.fault.rack.record import SIZE, SLOTS, Record, made
from limpet.fault.rack.verdicts import Outcome

KINDS: Final = ("race", "fusee", "swarm", "rcuckoo", "rtx-sherman", "loco")
NODES: Final = 3
NODE_SIZE: Final = 64 << 20
CLIENTS: Final = 3
"""Of machine "b" when it is lost: two that work, and one that watches."""
COUNT: Final = 300_000
FINAL_SLOT: Final = SLOTS - 1
POLL_S: Final = 0.01
JOINING_S: Final = 180.0
"""How long a client may take to open the pool and begin."""
ENDING_S: Final = 20.0
"""How long the clients of a machine that goes on may take to find out that they are none."""
SLACK_S: Final = 1.5
"""Seconds by which a machine that emulates each instruction may be late."""
Tell = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class RackParameters:
    """Parameters of a run: kinds of stores, and durations in seconds."""

    kinds: tuple[str, ...] = KINDS
    lease_ms: int = 2000
    keys: int = 200
    work_s: float = 4.0
    kills: int = 2
    freezes: int = 2
    processors: int = 1

    @property
    def lease_s(self) -> float:
        return self.lease_ms / 1000


class Rack:
    """Two machines, and the memory that they share."""

    def __init__(
        self, parameters: RackParameters, machines: tuple[Machine, Machine], record: Record,
        tell: Tell,
    ) -> None:  # fmt: skip
        self.parameters = parameters
        self.a, self.b = machines
        self.record = record
        self.tell = tell
        self.url = "dax://" + ",".join(f"/dev/dax{number}.0" for number in range(NODES))
        self.keys = [b"key-%06d" % number for number in range(parameters.keys)]
        self._others: set[int] = set()

    def boot(self, machine: Machine) -> None:
        """Switch a machine on, and wait until its agent is there."""
        began = time.monotonic()
        machine.start()
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

    def begin(self, kind: str) -> None:
        """A new pool and store, and clients at work on both machines: slots 0 to 3."""
        self.record.clear()
        for machine in (self.a, self.b):
            machine.events.clear()
        self.a.ask("create", url=self.url, kind=kind, lease_ms=self.parameters.lease_ms,
                   keys=self.parameters.keys)  # fmt: skip
        self.a.ask("watch")
        self.a.ask("work", slots=[0, 1], incarnation=1)
        self.join(kind, (2, 3), 3)
        self.at_work((0, 1))

    def join(self, kind: str, slots: tuple[int, ...], incarnation: int) -> None:
        """Clients of machine "b" at work, and one that watches."""
        self.b.ask("use", url=self.url, kind=kind, keys=self.parameters.keys)
        self.b.ask("watch")
        self.b.ask("work", slots=list(slots), incarnation=incarnation)
        self.at_work(slots)

    def at_work(self, slots: tuple[int, ...], before: int = 0) -> None:
        """Wait until each of these clients has begun an operation, after so many of its slot."""
        end = time.monotonic() + JOINING_S
        while not all(self.record.count(slot) > before for slot in slots):
            if time.monotonic() > end:
                raise RackError(f"the clients of slots {slots} did not begin to work")
            time.sleep(POLL_S)

    def others(self) -> set[int]:
        """The ids of the living clients that machine "a" sees on other machines."""
        for told in self.a.take("others"):
            self._others = set(told["clients"])
        return self._others

    def end(self, outcome: Outcome) -> None:
        """Have all clients end, and judge everything."""
        for machine in (self.a, self.b):
            late = machine.ask("finish")["late"]
            if late:
                outcome.complain(verdicts.ENDED, f"{late} on machine {machine.name} were blocked")
            verdicts.judge_ends(outcome, machine.take("ended"))
        found = self.a.ask("verify", slot=FINAL_SLOT)
        verdicts.judge_look(outcome, found)
        verdicts.judge_history(outcome, self.record.notes(), self.keys)


# ---- the scenarios -----------------------------------------------------------------------------


def killed(rack: Rack, kind: str) -> Outcome:
    """Machine "b" is switched off, and boots again."""
    parameters = rack.parameters
    outcome = Outcome("a machine is switched off", kind, {
        check: [] for check in (
            verdicts.ENDED, verdicts.MOVED, verdicts.RECOVERED, verdicts.BACK, verdicts.WHOLE,
            verdicts.HISTORY, verdicts.LOOKED, verdicts.AUDIT,
        )
    })  # fmt: skip
    rack.begin(kind)
    incarnation = 10
    for number in range(parameters.kills):
        rack.wait(parameters.work_s / (parameters.kills + 1), (0, 1))
        for machine, slot in ((rack.a, number % 2), (rack.b, 2 + number % 2)):
            machine.ask("kill", slot=slot)
            before = rack.record.count(slot)
            machine.ask("again", slot=slot, incarnation=incarnation)
            rack.at_work((slot,), before)
            incarnation += 1
    rack.wait(parameters.work_s / (parameters.kills + 1), (0, 1))
    lost = rack.others()
    rack.b.kill()
    _given_up(rack, outcome, lost, (0, 1), "after the other was switched off")
    rack.boot(rack.b)
    rack.join(kind, (4, 5), incarnation)
    rack.wait(parameters.work_s / 2, (4, 5))
    done = [rack.record.count(slot) for slot in (4, 5)]
    outcome.figures["operations of the machine that came back"] = str(sum(done))
    if not all(count > 1 for count in done):
        outcome.complain(verdicts.BACK, f"its clients made {done} operations")
    rack.end(outcome)
    return outcome


def frozen(rack: Rack, kind: str) -> Outcome:
    """Machine "b" stands still for longer than two leases, and goes on."""
    parameters = rack.parameters
    outcome = Outcome("a machine stands still and goes on", kind, {
        check: [] for check in (
            verdicts.ENDED, verdicts.MOVED, verdicts.RECOVERED, verdicts.WHY, verdicts.BACK,
            verdicts.WHOLE, verdicts.HISTORY, verdicts.LOOKED, verdicts.AUDIT,
        )
    })  # fmt: skip
    rack.begin(kind)
    slots = (2, 3)
    for number in range(parameters.freezes):
        rack.wait(parameters.work_s / 2, (0, 1))
        lost = rack.others()
        clocks_stop = bool(number % 2)
        (rack.b.pause if clocks_stop else rack.b.freeze)()
        _given_up(rack, outcome, lost, (0, 1), f"while the other stood still ({number + 1})")
        rack.wait(1.0, (0, 1))
        (rack.b.unpause if clocks_stop else rack.b.thaw)()
        ended = _ends(rack, len(slots) + 1)
        verdicts.judge_frozen(outcome, (*slots, None), ended)
        rack.b.ask("finish")
        rack.b.take("ended")
        slots = (slots[0] + 2, slots[1] + 2)
        rack.join(kind, slots, 10 * (number + 1))
    rack.wait(parameters.work_s / 2, slots)
    done = [rack.record.count(slot) for slot in slots]
    if not all(count > 1 for count in done):
        outcome.complain(verdicts.BACK, f"its clients made {done} operations")
    rack.end(outcome)
    return outcome


def _ends(rack: Rack, count: int) -> list[dict[str, Any]]:
    """How so many children of machine "b" ended, when it goes on; fewer when they do not end."""
    ended: list[dict[str, Any]] = []

    def all_ended() -> bool:
        ended.extend(rack.b.take("ended"))
        return len(ended) >= count

    rack.wait(ENDING_S, (0, 1), all_ended)
    return ended


def _given_up(
    rack: Rack, outcome: Outcome, lost: set[int], slots: tuple[int, ...], when: str
) -> None:
    """Wait until machine "a" has recovered the clients that are lost, and see that it goes on."""
    began = time.monotonic()
    gap_s = rack.wait(4 * rack.parameters.lease_s + 10, slots, lambda: not lost & rack.others())
    left = lost & rack.others()
    outcome.figures[f"clients recovered, {when}"] = (
        f"{len(lost - left)} of {len(lost)} in {time.monotonic() - began:.2f} s"
    )
    verdicts.judge_recovered(outcome, lost, left, CLIENTS)
    verdicts.judge_gap(outcome, when, gap_s, rack.parameters.lease_s, SLACK_S)


SCENARIOS: Final = {"killed": killed, "frozen": frozen}


# ---- the rack ----------------------------------------------------------------------------------


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
            rack = Rack(parameters, (machines[0], machines[1]), record, tell)
            for machine in machines:  # "a" first: it formats the NVDIMMs
                stack.callback(machine.stop)
                rack.boot(machine)
            rack.prove_atomic()
            yield rack
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(
    needs: Needs, parameters: RackParameters, scenarios: tuple[str, ...], tell: Tell
) -> list[Outcome]:
    """Run each scenario with each kind of store; `tell` is handed lines of text for the log."""
    outcomes = []
    with rack_of(needs, parameters, tell) as rack:
        for kind in parameters.kinds:
            for name in scenarios:
                began = time.monotonic()
                outcome = SCENARIOS[name](rack, kind)
                outcome.figures["took"] = f"{time.monotonic() - began:.0f} s"
                outcomes.append(outcome)
                for line in verdicts.text_of(outcome):
                    tell(line)
    return outcomes
