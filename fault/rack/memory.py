"""The scenarios of the pool's memory, and of its users. Clients of both machines are at work.

`withdrawn`: one of the pool's three devices is withdrawn while clients of both machines have it
mapped, first from "b", then from "a", too; later it is there again, and the node is replaced.

`control-withdrawn`: the same with the first device, which has the control segment. No store serves
then. Each client and each process that opens the pool is told which device to bring back, and not
to destroy the pool. When the device is there again, so is everything.

`poison`: a client of "b" has the kernel poison a page of a device that it has mapped
(MADV_HWPOISON). Linux 6.1 tells it by SIGBUS of the 2 MiB around the page, and takes them out of
the mappings of the others, which find the memory whole: the poison is simulated. The node is lost.
Then a page in a machine's own memory (tmpfs) is poisoned; there every access to it raises SIGBUS.

`destroyed-under`: a pool of one host is destroyed while clients are at work. That is refused. With
force its clients are ended first. A new pool on the same memory has only what its clients wrote.

`skew`: a client of another release works beside the others. One of another protocol is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from limpet.fault.rack import verdicts
from limpet.fault.rack.machine import Machine
from limpet.fault.rack.rack import Rack
from limpet.fault.rack.verdicts import Outcome

NODE: Final = 1
"""The node that is lost."""
LOST_CHECKS: Final = (
    verdicts.ENDED, verdicts.LOST, verdicts.REPLACED, verdicts.BACK, verdicts.LOOKED,
    verdicts.AUDIT,
)  # fmt: skip
AWAY: Final = ("NodeFailed", "has failed", "bring it back")
"""Words in the error of a client that meets the loss of the control segment, or, on the same
device, of node 0."""
OPERATIONS: Final = 100
"""Of a client that has met a poisoned page, or is of another release: enough to change something on
each node."""
OLDER: Final = "0.0.9"
"""The release of a client beside those of this one."""


def withdrawn(rack: Rack, kind: str) -> Outcome:
    """One of the pool's devices is withdrawn while it is mapped; later it is there again.

    First it is gone for machine "b" only, as when a link of one host fails; then for both.
    """
    rack.begin(kind)
    outcome = verdicts.outcome_of(
        "a device of a replicated store is withdrawn", rack.doing, LOST_CHECKS
    )
    device = f"dax{NODE}.0"
    for machine in (rack.b, rack.a):
        _lose(rack, outcome, machine, lambda at: at.ask("withdraw", device=device))
    _replaced(rack, outcome, device)
    return outcome


def poison(rack: Rack, kind: str) -> Outcome:
    """A page of one of the pool's devices is poisoned while clients of both have it mapped."""
    rack.begin(kind)
    outcome = verdicts.outcome_of(
        "a page of a replicated store is poisoned", rack.doing, (*LOST_CHECKS, verdicts.PAGE)
    )
    _lose(rack, outcome, rack.b, lambda at: at.ask(
        "poison", node=NODE, slot=8, incarnation=20, operations=OPERATIONS
    ))  # fmt: skip
    _replaced(rack, outcome)
    found = rack.a.ask("poison_values")
    outcome.figures["a page of its own memory"] = (
        f"{found['first']} of keys, {found['on_node']} of them on its node, which is "
        f"{found['state']}; a handle of later {found['later']}; audit {found['audit']}"
    )
    first, audit = found["first"], found["audit"]
    if (
        found["later"] != first
        or first["wrong"]
        or not 0 < first["lost"] < found["on_node"]
        or audit["leaked"]
        or not audit["failed"]
    ):
        outcome.complain(verdicts.PAGE, "it did not: see the figures")
    return outcome


def _lose(rack: Rack, outcome: Outcome, machine: Machine, lose: Callable[[Machine], Any]) -> None:
    """A machine loses the node; all clients go on."""
    slots = (0, 1, 2, 3)
    rack.wait(rack.parameters.work_s / 2, slots)
    before = [rack.record.count(slot) for slot in slots]
    lose(machine)
    gap_s = rack.wait(rack.parameters.work_s, slots)
    when = f"after it was gone for {machine.name}"
    outcome.figures[f"longest wait of clients, {when}"] = f"{gap_s:.2f} s"
    still = [slot for slot in slots if rack.record.count(slot) <= before[slot] + 1]
    if still:
        outcome.complain(verdicts.LOST, f"the clients of slots {still} stood still, {when}")


def _replaced(rack: Rack, outcome: Outcome, device: str = "") -> None:
    """The node is replaced; `device` is given back before. On device DAX a node is replaced when no
    other process has the pool open, so the clients end then."""
    states = rack.a.ask("nodes")["states"]
    outcome.figures["nodes meanwhile"] = ", ".join(states)
    if states[NODE] not in ("failed", "excluded"):
        outcome.complain(verdicts.LOST, f"the node is {states[NODE]}")
    rack.finish(outcome)
    if device:
        for machine in (rack.a, rack.b):
            machine.ask("give_back", device=device)
    states = rack.a.ask("replace", node=NODE)["states"]
    if set(states) != {"in service"}:
        outcome.complain(verdicts.REPLACED, f"the nodes are {', '.join(states)}")
    _work_again(rack, outcome)


def _work_again(rack: Rack, outcome: Outcome) -> None:
    """New clients of both machines work, and everything is judged."""
    rack.join(rack.a, (4, 5), 10)
    rack.join(rack.b, (6, 7), 12)
    rack.wait(rack.parameters.work_s / 2, (4, 5, 6, 7))
    rack.judge_back(outcome, (4, 5, 6, 7))
    rack.end(outcome)


def control_withdrawn(rack: Rack, kind: str) -> Outcome:
    """The first device, with the control segment, is withdrawn; later it is there again."""
    rack.begin(kind)
    outcome = verdicts.outcome_of("the device of the control segment is withdrawn", rack.doing, (
        verdicts.TOLD, verdicts.BACK, verdicts.LOOKED, verdicts.AUDIT,
    ))  # fmt: skip
    rack.wait(rack.parameters.work_s, (0, 1))
    rack.dying((0, 1, 2, 3))
    for machine, slots in ((rack.b, (2, 3)), (rack.a, (0, 1))):
        machine.ask("withdraw", device="dax0.0")
        ended = rack.ends(machine, len(slots) + 1)
        verdicts.judge_errors(outcome, verdicts.TOLD, (*slots, None), ended, AWAY, never="destroy")
        machine.ask("finish")
        machine.take("ended")
        error = machine.ask("attempt", call="open")["error"]
        outcome.figures[f"opening it on {machine.name}"] = error
        verdicts.judge_words(
            outcome, verdicts.TOLD, "opening it", error, ("dax0.0",), never="destroy"
        )
    for machine in (rack.a, rack.b):
        machine.ask("give_back", device="dax0.0")
    _work_again(rack, outcome)
    return outcome


def destroyed_under(rack: Rack, kind: str) -> Outcome:
    """A pool of one host is destroyed under its clients, and another is made on its devices."""
    rack.begin(kind, one_host=True)
    outcome = verdicts.outcome_of("a pool is destroyed under its clients", rack.doing, (
        verdicts.REFUSED, verdicts.DESTROYED, verdicts.ENDED, verdicts.BACK, verdicts.LOOKED,
        verdicts.AUDIT,
    ))  # fmt: skip
    rack.wait(rack.parameters.work_s, (0, 1))
    error = rack.a.ask("attempt", call="destroy")["error"]
    outcome.figures["destroying it"] = error
    verdicts.judge_words(
        outcome, verdicts.REFUSED, "destroying", error, ("is in use", "end process")
    )
    before = [rack.record.count(slot) for slot in (0, 1)]
    rack.wait(rack.parameters.work_s, (0, 1))
    for slot in (0, 1):
        if rack.record.count(slot) <= before[slot] + 1:
            outcome.complain(verdicts.REFUSED, f"the client of slot {slot} stands still")
    error = rack.a.ask("attempt", call="destroy", force=True)["error"]
    if error:
        outcome.complain(verdicts.DESTROYED, f"destroying with force ended with {error}")
    error = rack.a.ask("attempt", call="open")["error"]
    verdicts.judge_words(outcome, verdicts.DESTROYED, "opening", error, ("PoolNotFound",))
    rack.finish(outcome)
    rack.begin(kind)  # with a new record: whatever an old client wrote would be wrong
    rack.wait(rack.parameters.work_s, (0, 1, 2, 3))
    rack.judge_back(outcome, (0, 1, 2, 3))
    rack.end(outcome)
    return outcome


def skew(rack: Rack, kind: str) -> Outcome:
    """Clients of other releases come to the pool, of this protocol and of the next one."""
    rack.begin(kind, alone=True)  # a program takes long to start on a machine that is busy
    rack.b.ask("use", url=rack.url, kind=kind, keys=rack.parameters.keys)
    outcome = verdicts.outcome_of("clients are of other releases", rack.doing, (
        verdicts.SHARED, verdicts.VERSION, verdicts.ENDED, verdicts.LOOKED, verdicts.AUDIT,
    ))  # fmt: skip
    found = rack.b.ask("other_release", release=OLDER, newer=0, slot=4, incarnation=10,
                       operations=OPERATIONS)  # fmt: skip
    outcome.figures["releases in the pool, as the other one sees them"] = found["said"]
    if found["error"] or not rack.record.count(4) or OLDER not in found["said"]:
        outcome.complain(verdicts.SHARED, f"it ended with {found}")
    found = rack.b.ask("other_release", release=OLDER, newer=1, slot=5, incarnation=11,
                       operations=OPERATIONS)  # fmt: skip
    outcome.figures["a client of the next protocol"] = found["error"]
    verdicts.judge_words(
        outcome, verdicts.VERSION, "it", found["error"],
        ("PoolVersion", "open it with a release of that protocol, or dump its stores there"),
    )  # fmt: skip
    if rack.record.count(5):
        outcome.complain(verdicts.VERSION, "it made operations")
    rack.end(outcome)
    return outcome
