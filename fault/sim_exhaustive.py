"""Every schedule of a program with a bounded number of preemptions and crashes.

Iterative context bounding: Musuvathi and Qadeer, "Iterative context bounding for systematic testing
of multithreaded programs", PLDI 2007. Schedules with fewer departures come first; each run shows
where one more could be. Giving way is no preemption where a client has not begun, spins, or has
ended. There is none before a verb that no other client can see: on the client's own hand. Verbs
stay whole, and nobody stalls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from limpet.fault.schedule import (
    CRASH,
    END,
    NOTHING,
    SWITCH,
    Action,
    Actions,
    Point,
    Replay,
    Schedule,
)
from limpet.fault.sim_program import Program
from limpet.fault.sim_run import Run
from limpet.fault.sim_stage import Player, Stage
from limpet.shm.layout import SLOT_SIZE
from limpet.shm.simulated import PAUSE
from limpet.shm.slots import HAND


class Branches(Replay):
    """Takes the departures of a schedule, and notes where else one could depart after the last."""

    def __init__(self, schedule: Schedule, preemptions: int, crashes: int) -> None:
        super().__init__(schedule)
        self.left = len(schedule)
        self.preemptions = preemptions
        self.crashes = crashes
        self.found: list[tuple[Point, Action, int, int]] = []
        """Point, action, and what is left of preemptions and crashes then."""

    def at(self, run: Run, player: Player, verb: str, addr: int, words: int) -> Actions:
        point = Point(player.number, player.op, player.step)
        actions = self.schedule.get(point, NOTHING)
        if actions:
            self.left -= 1
        elif not self.left:
            self._branch(run, player, verb, addr, point)
        return actions

    def _branch(self, run: Run, player: Player, verb: str, addr: int, point: Point) -> None:
        free = verb in (PAUSE, END) or point[1:] == (0, 1)
        slot = player.identity[1]
        hidden = slot + HAND <= addr < slot + SLOT_SIZE
        if free or (self.preemptions and not hidden):
            rest = self.preemptions - (not free)
            for other in run.runnable():
                if other is not player:
                    self.found.append((point, Action(SWITCH, other.number), rest, self.crashes))
        if self.crashes and verb != END:
            crash = Action(CRASH, player.number)
            self.found.append((point, crash, self.preemptions, self.crashes - 1))


def exhaustive(
    stage: Stage, program: Program, bound: int, crashes: int, limit: int
) -> Iterator[Run]:
    """All runs of a program with at most so many preemptions and crashes, up to `limit` runs."""
    waiting: deque[tuple[Schedule, int, int]] = deque([({}, bound, crashes)])
    for _ in range(limit):
        if not waiting:
            return
        schedule, preemptions, deaths = waiting.popleft()
        branches = Branches(schedule, preemptions, deaths)
        yield Run(stage, program, branches).go()
        for point, action, preemptions, deaths in branches.found:
            if len(waiting) < limit:
                waiting.append(({**schedule, point: (action,)}, preemptions, deaths))
