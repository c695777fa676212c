"""Whether what happened in the rack was right: the checks of a scenario, and the report's text.

A check is a sentence that holds; what speaks against it is listed under it. The history of all
clients of all machines is judged as one, by the tickets of record.py, and by the checkers of the
work (work.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from limpet.fault.check.recorder import Result
from limpet.fault.rack.record import Record
from limpet.fault.rack.work import Deaths, Work

ENDED: Final = "clients ended only as the rack ended them"
WHY: Final = "each client that was frozen ended with an error that says why"
MOVED: Final = "the other machine went on within two leases"
RECOVERED: Final = "the other machine recovered every client of the lost one"
LOST: Final = "the pool noted the node as lost, and clients of both machines went on"
REPLACED: Final = "the node was replaced when its device was there again"
TOLD: Final = "clients, and those that opened it, were told to bring back what is away"
REFUSED: Final = "destroying under living clients was refused, and they went on"
DESTROYED: Final = "with force its clients were ended first, and nobody could open it then"
VERSION: Final = "a release of another protocol was refused, and told what to do"
SHARED: Final = "a release of the same protocol shared the pool, and saw that there are others"
PAGE: Final = "without replicas, a poisoned page of a machine's own memory cost what was on it"
BACK: Final = "the lost machine came back, and its clients work on"
MENDED: Final = "the first process that opened the pool made it whole, and no other did"
LOOKED: Final = "everything can be read and used, and check() holds"
AUDIT: Final = "audit() after recover(): 0 bytes leaked"

WHOLE_AGAIN: Final = "it is whole again"
"""Words in the log of a process that has made a durable pool whole."""
SAYS_WHY: Final = ("ClientError", "declared dead")
"""Words in the error of a client that was declared dead."""
FIRST: Final = 5
"""So much of what speaks against a check is shown."""


@dataclasses.dataclass
class Outcome:
    """The outcome of a scenario with one kind of work. `figures`: measurements with units."""

    scenario: str
    kind: str
    checks: dict[str, list[str]]
    figures: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not any(self.checks.values())

    def complain(self, check: str, words: str) -> None:
        """Something speaks against that check."""
        self.checks[check].append(words)


def outcome_of(scenario: str, work: Work, checks: Iterable[str]) -> Outcome:
    """An outcome against which nothing speaks yet; the checks of the work are added."""
    return Outcome(scenario, work.kind, {check: [] for check in (*checks, *work.checks)})


def judge_ends(outcome: Outcome, ended: Iterable[Mapping[str, Any]]) -> None:
    """The ends of clients that were not frozen."""
    for one in ended:
        if one["error"]:
            outcome.complain(ENDED, f"the client of slot {one['slot']}: {one['error']}")


def judge_errors(
    outcome: Outcome,
    check: str,
    slots: Iterable[int | None],
    ended: Sequence[Mapping[str, Any]],
    says: Sequence[str],
    never: str = "",
) -> None:
    """The ends of clients on these slots, one on each: as `judge_words`."""
    errors = {one["slot"]: one["error"] for one in ended}
    for slot in slots:
        if slot not in errors:
            outcome.complain(check, f"the client of slot {slot} has not ended")
        else:
            judge_words(outcome, check, f"the client of slot {slot}", errors[slot], says, never)


def judge_words(
    outcome: Outcome, check: str, client: str, error: str, says: Sequence[str], never: str = ""
) -> None:
    """An error says all of this, and not `never`."""
    if not all(words in error for words in says) or (never and never in error):
        outcome.complain(check, f"{client} ended with {error or 'no error at all'}")


def judge_gap(outcome: Outcome, what: str, gap_s: float, lease_s: float, slack_s: float) -> None:
    """The longest time in which no operation of the other machine was begun."""
    outcome.figures[f"longest wait of the other machine, {what}"] = f"{gap_s:.2f} s"
    if gap_s > 2 * lease_s + slack_s:
        outcome.complain(MOVED, f"no operation was begun for {gap_s:.2f} s, {what}")


def judge_recovered(
    outcome: Outcome, lost: Collection[int], left: Collection[int], expected: int
) -> None:
    """The ids of the clients that were lost, and of those that are still there."""
    if len(lost) < expected:
        outcome.complain(RECOVERED, f"only {len(lost)} of {expected} clients were there to be lost")
    if left:
        outcome.complain(RECOVERED, f"not recovered: clients {', '.join(map(str, sorted(left)))}")


def judge_mended(outcome: Outcome, said: Sequence[str]) -> None:
    """The lines of processes that have made the pool whole."""
    if len(said) != 1:
        outcome.complain(MENDED, f"{len(said)} did: {'; '.join(said)}")
    else:
        outcome.figures["made whole"] = said[0].partition("; ")[2]


def judge_work(
    outcome: Outcome, work: Work, record: Record, deaths: Deaths, found: Mapping[str, Any]
) -> None:
    """All that the clients noted, and what the agent found in the pool in the end."""
    for check, wrong in work.judge(record, deaths, found).items():
        outcome.checks[check] += wrong
    notes = record.notes()
    unknown = int((notes["result"] == Result.UNKNOWN).sum())
    outcome.figures["operations"] = f"{len(notes)}, of which {unknown} have no known outcome"


def judge_look(outcome: Outcome, found: Mapping[str, Any]) -> None:
    """The report of the agent's `verify`."""
    outcome.checks[LOOKED] += found["wrong"]
    audit = found["audit"]
    outcome.figures["audit"] = ", ".join(f"{name} {audit[name]}" for name in audit)
    if audit["leaked"]:
        outcome.complain(AUDIT, f"{audit['leaked']} bytes are leaked")


def text_of(outcome: Outcome) -> list[str]:
    """The lines of the report."""
    lines = [f"{outcome.kind}: {outcome.scenario}"]
    lines += [f"    {name}: {value}" for name, value in outcome.figures.items()]
    for check, wrong in outcome.checks.items():
        lines.append(f"    {'FAILED' if wrong else 'held  '}  {check}")
        lines += [f"            {words}" for words in wrong[:FIRST]]
        if len(wrong) > FIRST:
            lines.append(f"            and {len(wrong) - FIRST} more")
    return lines
