"""Every schedule of a program with a bounded number of preemptions, crashes and node failures.

Iterative context bounding: Musuvathi and Qadeer, "Iterative context bounding for systematic testing
of multithreaded programs", PLDI 2007. Schedules with fewer departures come first; each run shows
where one more departure could be. A switch from a client that has not begun, spins, or has ended is
no preemption. There is no preemption before a verb that no other client can see, one on the
client's own journal. Verbs stay whole, and no client stalls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import NamedTuple

from limpet.fault.explore.schedule import (
    CRASH,
    END,
    FAIL,
    GONE,
    NOTHING,
    SWITCH,
    Action,
    Actions,
    Point,
    Replay,
    Schedule,
)
from limpet.fault.explore.sim_cluster import SimulatedClient, SimulatedCluster
from limpet.fault.explore.sim_program import Program
from limpet.fault.explore.sim_run import Run, run_of
from limpet.shm.endpoint.layout import SLOT_SIZE
from limpet.shm.endpoint.simulated import PAUSE
from limpet.shm.endpoint.slots import CLIENT_JOURNAL


class Budget(NamedTuple):
    """How many departures of each kind a schedule may still have."""

    preemptions: int
    crashes: int = 0
    node_failures: int = 0


class Branches(Replay):
    """Takes the departures of a schedule, and notes each possible departure after the last."""

    def __init__(self, schedule: Schedule, budget: Budget) -> None:
        super().__init__(schedule)
        self.left = len(schedule)
        self.budget = budget
        self.found: list[tuple[Point, Action, Budget]] = []
        """Point, action, and the budget that is left then."""

    def at(self, run: Run, client: SimulatedClient, verb: str, addr: int, words: int) -> Actions:
        point = Point(client.number, client.op, client.step)
        actions = self.schedule.get(point, NOTHING)
        if actions:
            self.left -= 1
        elif not self.left:
            self._branch(run, client, verb, addr, point)
        return actions

    def _branch(
        self, run: Run, client: SimulatedClient, verb: str, addr: int, point: Point
    ) -> None:
        free = verb in (PAUSE, END) or point[1:] == (0, 1)
        slot = client.identity[1]
        hidden = slot + CLIENT_JOURNAL <= addr < slot + SLOT_SIZE
        preemptions, crashes, failures = self.budget
        if free or (preemptions and not hidden):
            rest = self.budget._replace(preemptions=preemptions - (not free))
            for other in run.runnable():
                if other is not client:
                    self.found.append((point, Action(SWITCH, other.number), rest))
        if crashes and verb != END:
            rest = self.budget._replace(crashes=crashes - 1)
            self.found.append((point, Action(CRASH, client.number), rest))
        if failures and not hidden:
            rest = self.budget._replace(node_failures=failures - 1)
            for node in set(range(run.cluster.nodes)) - run.failed:
                self.found += [(point, Action(kind, node), rest) for kind in (FAIL, GONE)]


def exhaustive(
    cluster: SimulatedCluster, program: Program, budget: Budget, limit: int
) -> Generator[Run, None, bool]:
    """All runs of a program with at most the budget's departures, up to `limit` runs.

    Returns whether these were all.
    """
    waiting: deque[tuple[Schedule, Budget]] = deque([({}, budget)])
    for _ in range(limit):
        if not waiting:
            break
        schedule, left = waiting.popleft()
        branches = Branches(schedule, left)
        yield run_of(cluster, program, branches).go()
        for point, action, rest in branches.found:
            if len(waiting) < limit:
                waiting.append(({**schedule, point: (action,)}, rest))
    return not waiting
