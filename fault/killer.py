"""A killer of worker processes: at a given rate, by a seeded schedule, and nothing but its own.

The killer knows the processes that it was given, by pid and start time, and signals no other: a pid
that was reused is refused by psutil. It has no thread; its owner calls `step()` when `due_ns` has
come. The gaps between kills are drawn evenly from half to one and a half times the mean gap, and
the victims evenly from those that are there; both follow from the seed (and from who is there).
"""

from __future__ import annotations

import dataclasses
import random
import signal
import time
from collections.abc import Callable, Iterable
from typing import Final

import psutil

SECOND_NS: Final = 1_000_000_000


@dataclasses.dataclass(frozen=True)
class Kill:
    """A signal that was sent: when (CLOCK_MONOTONIC, before the sending), to whom, which."""

    time_ns: int
    pid: int
    signal: signal.Signals


class ProcessKiller:
    """Sends SIGKILL to a random one of its victims, `rate` times a second (0: never).

    `killed` is called after each kill with its record, to start a replacement; the victim may still
    be dying then. `kills` has all records in order.
    """

    def __init__(
        self, rate: float, seed: int, killed: Callable[[Kill], None] | None = None
    ) -> None:
        if rate < 0:
            raise ValueError(f"a kill rate cannot be negative: {rate}")
        self.kills: list[Kill] = []
        self.due_ns: int | None = None
        self._rate = rate
        self._random = random.Random(seed)
        self._killed = killed
        self._victims: dict[int, psutil.Process] = {}

    @property
    def victims(self) -> Iterable[int]:
        """The pids that may be signalled."""
        return self._victims.keys()

    def add(self, pid: int) -> None:
        """Make the process of this pid, as it is now, a victim."""
        self._victims[pid] = psutil.Process(pid)

    def discard(self, pid: int) -> None:
        """Leave this process alone from now on."""
        self._victims.pop(pid, None)

    def start(self, now_ns: int) -> None:
        """Begin the schedule: the first kill is due one gap after `now_ns`."""
        self.due_ns = now_ns + self._gap_ns() if self._rate else None

    def step(self, now_ns: int) -> Kill | None:
        """Kill one victim if that is due; returns its record, or None if it is not or none is left.

        At most one kill a call: an owner that comes late catches up call by call.
        """
        if self.due_ns is None or now_ns < self.due_ns:
            return None
        self.due_ns += self._gap_ns()
        if not self._victims:
            return None
        return self.kill(self._random.choice(sorted(self._victims)))

    def kill(self, pid: int) -> Kill:
        """Kill this victim now, whatever the schedule says; KeyError if it is none."""
        process = self._victims.pop(pid)
        kill = Kill(time.monotonic_ns(), pid, signal.SIGKILL)
        process.send_signal(signal.SIGKILL)
        self.kills.append(kill)
        if self._killed is not None:
            self._killed(kill)
        return kill

    def _gap_ns(self) -> int:
        return int(SECOND_NS / self._rate * self._random.uniform(0.5, 1.5))
