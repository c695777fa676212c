"""Making a run that fails smaller: fewer operations and departures that fail alike."""

from __future__ import annotations

from typing import Final

from limpet.fault.explore.schedule import Action, Point, Schedule
from limpet.fault.explore.sim_cluster import SimulatedCluster
from limpet.fault.explore.sim_program import Call, Program
from limpet.fault.explore.sim_run import Run, replay

NOT_REPEATABLE: Final = "not repeatable"
"""Names a failure that its own schedule does not repeat."""
TRIALS_MAX: Final = 3000
"""Runs that shrinking takes, at most."""
STEPS_MAX: Final = 4_000_000
"""Steps of all these runs, at most: half a minute. Runs that do not end are long."""


def kind_of(failure: str) -> str:
    """The promise that was broken, without the particulars."""
    return failure.partition(":")[0]


def without_call(
    program: Program, schedule: Schedule, client: int, op: int
) -> tuple[Program, Schedule]:
    """The program without one operation, and the schedule with the same effect on the others."""
    calls = program[client]
    shorter: list[tuple[Call, ...]] = list(program)
    shorter[client] = calls[:op] + calls[op + 1 :]
    kept = {}
    for point, actions in schedule.items():
        if point.client == client and point.op > op:
            point = point._replace(op=point.op - 1)
        elif point.client == client and point.op == op:
            continue
        kept[point] = actions
    return tuple(shorter), kept


def shrink(cluster: SimulatedCluster, program: Program, schedule: Schedule, what: str) -> Run:
    """The shortest program and schedule found that fail as these do, with `what`; the run of them.

    Shrinking splits the departures into single actions and leaves them out, first many at a time,
    and operations likewise, until no more can be left out.

    A run whose replay does not fail with `what` is not shrunk. One seed must drive everything, so
    this is a defect of the explorer or of the cluster, and the replay's failure says so.
    """
    best = replay(cluster, program, schedule)
    wanted = kind_of(what)
    if kind_of(best.failure) != wanted:
        best.failure = (
            f"{NOT_REPEATABLE}: the same schedule did it no more. That is a defect of the explorer "
            "itself, whose runs depend on something besides the seed.\n"
            f"The run had failed with: {what}\n"
            f"The replay: {best.failure or 'everything held'}"
        )
        return best
    trials = steps = 0

    def better(program: Program, schedule: Schedule) -> bool:
        nonlocal best, trials, steps
        trials += 1
        run = replay(cluster, program, schedule)
        steps += run.steps
        if kind_of(run.failure) != wanted:
            return False
        best = run
        return True

    def may_go_on() -> bool:
        return trials < TRIALS_MAX and steps < STEPS_MAX

    def size() -> tuple[int, int]:
        return sum(map(len, best.program)), sum(map(len, best.schedule.values()))

    before = None
    while before != size() and may_go_on():
        before = size()
        for client in range(len(best.program)):
            for op in reversed(range(len(best.program[client]))):
                better(*without_call(best.program, best.schedule, client, op))
        chunk = max(1, before[1] // 2)
        while may_go_on():
            start = 0
            while start < size()[1] and may_go_on():
                flat = [(point, action) for point, all_ in best.schedule.items() for action in all_]
                if not better(best.program, _joined(flat[:start] + flat[start + chunk :])):
                    start += chunk
            if chunk == 1:
                break
            chunk //= 2
    return best


def _joined(flat: list[tuple[Point, Action]]) -> Schedule:
    schedule: Schedule = {}
    for point, action in flat:
        schedule[point] = (*schedule.get(point, ()), action)
    return schedule
