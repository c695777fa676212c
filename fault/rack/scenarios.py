"""The scenarios of the rack: machines "a" and "b" work on one pool, and "b" is lost.

`killed`: clients work on both machines and some of them are killed inside; then the whole machine
"b" is switched off. "a" goes on and recovers the clients of "b"; "b" boots again, and its clients
join.

`frozen`: "b" stands still in the midst of its clients' writes, for longer than two leases, and goes
on when "a" has given its clients up and has worked on. By turns the clocks of "b" stand still, too.

`power-cut`: the power of both machines is cut at once. They boot, and their clients join.

`durable`: the same with a durable pool, which the first process to open it makes whole.

Those of memory.py: a device is withdrawn, a page of one is poisoned, a pool is destroyed under its
clients, a client is of another release.

In the end "a" uses everything, recovers the dead, and uses everything again.
"""

from __future__ import annotations

import time
from typing import Final

from limpet.fault.rack import verdicts
from limpet.fault.rack.cxl import cxl
from limpet.fault.rack.fsdax import fsdax
from limpet.fault.rack.image import Needs, RackError
from limpet.fault.rack.memory import (
    control_withdrawn,
    destroyed_under,
    poison,
    skew,
    withdrawn,
)
from limpet.fault.rack.rack import CLIENTS, Rack, RackParameters, Tell, rack_of
from limpet.fault.rack.verdicts import Outcome

KNOWN_S: Final = 30.0
"""How long machine "a" may take to see the clients of "b"."""
SLACK_S: Final = 1.5
"""Seconds by which a machine that emulates each instruction may be late."""


# ---- the scenarios -----------------------------------------------------------------------------


def killed(rack: Rack, kind: str) -> Outcome:
    """Machine "b" is switched off, and boots again."""
    parameters = rack.parameters
    rack.begin(kind)
    outcome = verdicts.outcome_of("a machine is switched off", rack.doing, (
        verdicts.ENDED, verdicts.MOVED, verdicts.RECOVERED, verdicts.BACK, verdicts.LOOKED,
        verdicts.AUDIT,
    ))  # fmt: skip
    incarnation = 10
    for number in range(parameters.kills):
        rack.wait(parameters.work_s / (parameters.kills + 1), (0, 1))
        for machine, slot in ((rack.a, number % 2), (rack.b, 2 + number % 2)):
            rack.kill(machine, slot, incarnation)
            incarnation += 1
    rack.wait(parameters.work_s / (parameters.kills + 1), (0, 1))
    lost = _clients_of_b(rack)
    rack.dying((2, 3))
    rack.b.kill()
    _given_up(rack, outcome, lost, (0, 1), "after the other was switched off")
    rack.boot(rack.b)
    rack.join(rack.b, (4, 5), incarnation)
    rack.wait(parameters.work_s / 2, (4, 5))
    rack.judge_back(outcome, (4, 5))
    rack.end(outcome)
    return outcome


def frozen(rack: Rack, kind: str) -> Outcome:
    """Machine "b" stands still for longer than two leases, and goes on."""
    parameters = rack.parameters
    rack.begin(kind)
    outcome = verdicts.outcome_of("a machine stands still and goes on", rack.doing, (
        verdicts.ENDED, verdicts.MOVED, verdicts.RECOVERED, verdicts.WHY, verdicts.BACK,
        verdicts.LOOKED, verdicts.AUDIT,
    ))  # fmt: skip
    slots = (2, 3)
    for number in range(parameters.freezes):
        rack.wait(parameters.work_s / 2, (0, 1))
        lost = _clients_of_b(rack)
        clocks_stop = bool(number % 2)
        rack.dying(slots)
        (rack.b.pause if clocks_stop else rack.b.freeze)()
        _given_up(rack, outcome, lost, (0, 1), f"while the other stood still ({number + 1})")
        rack.wait(1.0, (0, 1))
        (rack.b.unpause if clocks_stop else rack.b.thaw)()
        ended = rack.ends(rack.b, len(slots) + 1)
        verdicts.judge_errors(outcome, verdicts.WHY, (*slots, None), ended, verdicts.SAYS_WHY)
        rack.b.ask("finish")
        rack.b.take("ended")
        slots = (slots[0] + 2, slots[1] + 2)
        rack.join(rack.b, slots, 10 * (number + 1))
    rack.wait(parameters.work_s / 2, slots)
    rack.judge_back(outcome, slots)
    rack.end(outcome)
    return outcome


def cut(rack: Rack, kind: str) -> Outcome:
    """The power of both machines is cut at once; both boot, open the pool, and go on.

    The memory keeps its content, and every store that was made: the file outlives the machines.
    """
    rack.begin(kind)
    outcome = verdicts.outcome_of("the power of both machines is cut", rack.doing, (
        verdicts.ENDED, verdicts.BACK, verdicts.LOOKED, verdicts.AUDIT,
    ))  # fmt: skip
    _cut(rack, outcome)
    rack.end(outcome)
    return outcome


def durable(rack: Rack, kind: str) -> Outcome:
    """As `cut`, with a durable pool."""
    rack.begin(kind, durable=True)
    outcome = verdicts.outcome_of("the power of both is cut, of a durable pool", rack.doing, (
        verdicts.ENDED, verdicts.MENDED, verdicts.BACK, verdicts.LOOKED, verdicts.AUDIT,
    ))  # fmt: skip
    _cut(rack, outcome)
    said = [line for machine in (rack.a, rack.b) for line in machine.console.splitlines()
            if verdicts.WHOLE_AGAIN in line]  # fmt: skip
    verdicts.judge_mended(outcome, said)
    rack.end(outcome)
    return outcome


def _cut(rack: Rack, outcome: Outcome) -> None:
    """Cut the power of both, and have clients of both work on afterwards."""
    rack.wait(rack.parameters.work_s, (0, 1))
    rack.dying((0, 1, 2, 3))
    for machine in (rack.a, rack.b):
        machine.cut()
    for machine in (rack.a, rack.b):
        machine.kill()
    before = rack.pool_state()
    rack.boot_both()
    if rack.pool_state() != before:
        raise RackError("booting changed the memory of the pool: what follows proves nothing")
    began = time.monotonic()
    rack.join(rack.a, (4, 5), 10)
    outcome.figures["from both machines being up to operations of clients of one"] = (
        f"{time.monotonic() - began:.1f} s"
    )
    rack.join(rack.b, (6, 7), 12)
    rack.wait(rack.parameters.work_s / 2, (4, 5))
    rack.judge_back(outcome, (4, 5, 6, 7))


def _clients_of_b(rack: Rack) -> set[int]:
    """The ids of the clients of machine "b", once machine "a" has seen all of them."""
    rack.wait(KNOWN_S, (0, 1), lambda: len(rack.others()) >= CLIENTS)
    return rack.others()


def _given_up(
    rack: Rack, outcome: Outcome, lost: set[int], slots: tuple[int, ...], when: str
) -> None:
    """Wait until machine "a" has recovered the clients that are lost, and see that it goes on."""
    began = time.monotonic()
    gap_s = rack.wait(4 * rack.lease_s + 10, slots, lambda: not lost & rack.others())
    left = lost & rack.others()
    outcome.figures[f"clients recovered, {when}"] = (
        f"{len(lost - left)} of {len(lost)} in {time.monotonic() - began:.2f} s"
    )
    verdicts.judge_recovered(outcome, lost, left, CLIENTS)
    verdicts.judge_gap(outcome, when, gap_s, rack.lease_s, SLACK_S)


SCENARIOS: Final = {
    "killed": killed, "frozen": frozen, "power-cut": cut, "durable": durable,
    "withdrawn": withdrawn, "control-withdrawn": control_withdrawn, "poison": poison,
    "destroyed-under": destroyed_under, "skew": skew,
}  # fmt: skip
ALONE: Final = {"cxl": cxl, "fsdax": fsdax}
"""The scenarios of a machine by itself, each of which is run once."""
ONLY: Final = {
    "durable": ("race",), "withdrawn": ("fusee", "swarm"), "control-withdrawn": ("race", "fusee"),
    "poison": ("fusee", "swarm"), "destroyed-under": ("race",), "skew": ("race",),
}  # fmt: skip
"""The kinds that a scenario is for: stores without replicas raise NodeFailed for what was on the
node that is lost, no other kind can be in a durable pool, and the rest is of the pool, not of what
is in it."""


def run(
    needs: Needs, parameters: RackParameters, scenarios: tuple[str, ...], tell: Tell
) -> list[Outcome]:
    """Run each scenario with each kind of work; `tell` is handed lines of text for the log."""
    outcomes = []
    for name in (name for name in ALONE if name in scenarios):
        outcomes.append(ALONE[name](needs, parameters.keys, parameters.work_s, tell))
        for line in verdicts.text_of(outcomes[-1]):
            tell(line)
    scenarios = tuple(name for name in scenarios if name in SCENARIOS)
    if not scenarios:
        return outcomes
    with rack_of(needs, parameters, tell) as rack:
        for kind in parameters.kinds:
            for name in scenarios:
                if kind not in ONLY.get(name, parameters.kinds):
                    continue
                began = time.monotonic()
                outcome = SCENARIOS[name](rack, kind)
                outcome.figures["took"] = f"{time.monotonic() - began:.0f} s"
                outcomes.append(outcome)
                for line in verdicts.text_of(outcome):
                    tell(line)
    return outcomes
