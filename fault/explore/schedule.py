"""Schedules of simulated clients: their contents, their text form, and the choosers that draw them.

A schedule lists where a run departs from the default. The default: a client goes on until it has
finished or spins, then comes the next one in the order of their numbers; no client dies or stalls,
and every verb is done at once. A departure is bound to a point: client, operation, step, that is,
"when client 1, in its operation 0, is about to do its step 12". So the points of one client do not
change when another departure is left out, and this makes shrinking work.

As text, departures are separated by commas: `1.0.12>2,2.0.3x0,0.1.7/2`
    >C   client C goes on instead
    xC   client C dies, here and now
    sC   client C stalls: it is not scheduled until it is woken, or no other client is left
    wC   client C is woken
    fN   memory node N fails: it is marked in the control segment, where every client sees it
    mN   memory node N fails without notice: its memory is gone
    pS   the power is cut: all clients end, and of each cache line some version is left that is not
         older than its last write-back; S draws them: 0 the oldest, 1 the newest, else at random
    /W   of the verb that comes now, W words are done; the rest is a step of its own
    dK   the verb that comes now, if it is posted, is done late: after K more verbs of its client,
         or in its `wait`; if it is sent in the background of its operation, after K more verbs of
         its client, or before the next on its node, or at the client's end
The end of a client is a point, too: in the operation after its last, step 1, or the one after those
that do what it has sent and that was late.

A chooser makes the departures. `Replay` takes them from a schedule. `RandomWalk` goes to a random
client with a probability that is drawn for each run. `Priorities` is PCT: Burckhardt et al., "A
randomized scheduler with probabilistic guarantees of finding bugs", ASPLOS 2010, section 3. Clients
have random priorities; of those that can run, the one with the highest runs; and at d points drawn
over the expected length, the running client falls below all others. A client that spins falls, too.
Exhaustive search with bounded preemption is in sim_exhaustive.py.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from limpet.shm.endpoint.simulated import PAUSE
from limpet.shm.errors import ParameterError

SWITCH: Final = ">"
CRASH: Final = "x"
STALL: Final = "s"
WAKE: Final = "w"
FAIL: Final = "f"
GONE: Final = "m"
CUT: Final = "/"
POWER: Final = "p"
LATE: Final = "d"
IN_WAIT: Final = 1000
"""So many verbs late that it is done in its `wait`, or as late as a verb that was sent can be."""
OLDEST, NEWEST = 0, 1
"""Power cuts that leave nothing, or everything, that was not written back."""


class Point(NamedTuple):
    """When this client, in this operation, is about to do this step (counted from 1)."""

    client: int
    op: int
    step: int


class Action(NamedTuple):
    """A departure from the default; `number` is a client, a memory node, or a number of words or
    verbs."""

    kind: str
    number: int


Actions = Sequence[Action]
Schedule = dict[Point, tuple[Action, ...]]
STRATEGIES: Final = ("mixed", "random", "pct", "exhaustive")
"""Ways to make up the schedules of an exploration (explorer.py)."""
END: Final = "end"
"""In place of a verb: the client has done its operations, and the next client is chosen."""
NOTHING: Final[tuple[Action, ...]] = ()

_DEPARTURE: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)([>xswfmpd/])(\d+)")


def schedule_text(schedule: Mapping[Point, Actions]) -> str:
    """The schedule as text, in the order in which the departures were taken."""
    return ",".join(
        f"{point.client}.{point.op}.{point.step}{action.kind}{action.number}"
        for point, actions in schedule.items()
        for action in actions
    )


def parse_schedule(text: str) -> Schedule:
    """The schedule of a text; ParameterError names a part that is no departure."""
    schedule: Schedule = {}
    for part in text.replace(" ", "").split(",") if text.strip() else ():
        match = _DEPARTURE.fullmatch(part)
        if match is None:
            raise ParameterError(
                f"{part!r} is no departure; write CLIENT.OPERATION.STEP and then >C, xC, sC, wC, "
                "fN, mN, pSEED, dVERBS or /WORDS"
            )
        point = Point(int(match[1]), int(match[2]), int(match[3]))
        schedule[point] = (*schedule.get(point, ()), Action(match[4], int(match[5])))
    return schedule


class Chooser(Protocol):
    """Decides at every point of a run. `run`: a `Run`; `client`: a `SimulatedClient`."""

    def at(self, run: Any, client: Any, verb: str, addr: int, words: int) -> Actions:
        """The departures at the point at which `client` is."""


class Replay:
    """Takes the departures of a schedule."""

    def __init__(self, schedule: Mapping[Point, Actions]) -> None:
        self.schedule = schedule

    def at(self, run: Any, client: Any, verb: str, addr: int, words: int) -> Actions:
        return self.schedule.get(Point(client.number, client.op, client.step), NOTHING)


class Longest(Replay):
    """Takes a schedule's departures, and counts the steps of the longest operation."""

    steps = 0

    def at(self, run: Any, client: Any, verb: str, addr: int, words: int) -> Actions:
        self.steps = max(self.steps, client.step)
        return super().at(run, client, verb, addr, words)


class Faults(NamedTuple):
    """How many crashes, stalls and failures of a pool's memory nodes a run has at most; and how
    many power cuts it has, none or one."""

    crashes: int = 1
    stalls: int = 1
    node_failures: int = 0
    nodes: int = 1
    power_cuts: int = 0


def draw_faults(
    rng: random.Random,
    program: Sequence[Sequence[object]],
    faults: Faults,
    op_steps: int,
    longer: Mapping[object, int] = MappingProxyType({}),
) -> Schedule:
    """Faults at random points of a program whose operations take about `op_steps` steps; operations
    in `longer` take the number given there."""
    drawn: Schedule = {}
    clients = range(len(program))

    def anywhere() -> Point:
        client = rng.choice(clients)
        calls = program[client]
        op = rng.randrange(max(1, len(calls)))
        steps = longer.get(calls[op], op_steps) if calls else op_steps
        return Point(client, op, rng.randint(1, steps))

    def add(point: Point, kind: str, number: int) -> None:
        drawn[point] = (*drawn.get(point, ()), Action(kind, number))

    def after_an_operation() -> Point:
        """Where what an operation has sent is done, if it is late."""
        client = rng.choice(clients)
        return Point(client, rng.randint(1, max(1, len(program[client]))), rng.randint(1, 4))

    for _ in range(rng.randint(0, faults.crashes)):
        point = anywhere() if rng.random() < 0.8 else after_an_operation()
        add(point, CRASH, point.client if rng.random() < 0.7 else rng.choice(clients))
    for _ in range(rng.randint(0, faults.stalls)):
        point = anywhere()
        add(point, STALL, point.client)
        if rng.random() < 0.5:
            add(anywhere(), WAKE, point.client)
    if faults.node_failures:
        least = 1 if any(call in longer for calls in program for call in calls) else 0
        for node in rng.sample(range(faults.nodes), rng.randint(least, faults.node_failures)):
            add(anywhere(), rng.choice((FAIL, GONE)), node)
    if faults.power_cuts:
        add(anywhere(), POWER, rng.choice((OLDEST, NEWEST, rng.randrange(2, 1 << 30))))
    return drawn


class _Random:
    """Base of the random choosers: faults at points drawn beforehand, cuts and late verbs."""

    def __init__(self, rng: random.Random, faults: Schedule) -> None:
        self.rng = rng
        self.faults = faults
        self.cuts = rng.choice((0.0, 0.1, 0.5))
        self.lateness = -1.0
        """The share of posted and sent verbs that are late; drawn at the first of them."""

    def disturb(self, client: Any, words: int) -> list[Action]:
        actions: list[Action] = []
        if self.faults:
            actions += self.faults.get((client.number, client.op, client.step), NOTHING)  # type: ignore[call-overload]
        if words > 1 and self.rng.random() < self.cuts:
            few = self.rng.random() < 0.5
            actions.append(Action(CUT, self.rng.randrange(1, min(words, 5) if few else words)))
        if client.endpoint.phase.posting:
            if self.lateness < 0:
                self.lateness = self.rng.choice((0.0, 0.1, 0.5))
            if self.rng.random() < self.lateness:
                actions.append(Action(LATE, self.rng.choice((1, 2, 4, IN_WAIT))))
        return actions


class RandomWalk(_Random):
    """Goes to a client drawn at random from those that can run, every now and then."""

    def __init__(self, rng: random.Random, faults: Schedule) -> None:
        super().__init__(rng, faults)
        self.restlessness = rng.choice((0.03, 0.1, 0.3, 1.0))

    def at(self, run: Any, client: Any, verb: str, addr: int, words: int) -> Actions:
        rng = self.rng
        actions = self.disturb(client, words)
        if rng.random() < self.restlessness:
            target = rng.choice(run.runnable() or [client])
            if target is not client:
                actions.append(Action(SWITCH, target.number))
        return actions


class Priorities(_Random):
    """PCT with `depth` points of change over an expected `length` in steps."""

    def __init__(
        self, rng: random.Random, faults: Schedule, clients: int, depth: int, length: int
    ) -> None:
        super().__init__(rng, faults)
        self.priorities = rng.sample(range(depth + 1, depth + 1 + clients), clients)
        self.changes = sorted(rng.randint(1, max(1, length)) for _ in range(depth))
        self.lowest = 0
        self.able: object = None
        self.highest: Any = None
        """Of those in `able`."""

    def _fall(self, client: Any) -> None:
        self.lowest -= 1
        self.priorities[client.number] = self.lowest
        self.able = None

    def at(self, run: Any, client: Any, verb: str, addr: int, words: int) -> Actions:
        actions = self.disturb(client, words)
        if verb == PAUSE:
            self._fall(client)
        while self.changes and run.steps >= self.changes[0]:
            self.changes.pop(0)
            self._fall(client)
        able = run.runnable()
        if able is not self.able:
            self.able, self.highest = able, max(able, key=self._priority, default=None)
        if self.highest not in (client, None):
            actions.append(Action(SWITCH, self.highest.number))
        return actions

    def _priority(self, client: Any) -> int:
        return int(self.priorities[client.number])
