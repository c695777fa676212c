"""Signals to worker processes: kills and stops at given rates, by a seeded schedule.

Only `Victims` are signalled: processes that were given by pid and are held by a pidfd since, so
that a signal never hits a reused pid. No class here has a thread; the owner calls `step()` when
`due_ns` has come. The gaps between kills (and between stops) are drawn evenly from half to one and
a half times the mean gap, and the victims evenly from those that are there; both follow from the
seed (and from the processes that live).
"""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import time
from collections.abc import Callable, KeysView
from typing import Final

SECOND_NS: Final = 1_000_000_000


@dataclasses.dataclass(frozen=True)
class Sent:
    """A signal that was sent: its time (CLOCK_MONOTONIC, before the sending), pid and number."""

    time_ns: int
    pid: int
    signal: signal.Signals


class Victims:
    """The processes that may be signalled, and no others."""

    def __init__(self) -> None:
        self._pidfds: dict[int, int] = {}

    @property
    def pids(self) -> KeysView[int]:
        return self._pidfds.keys()

    def add(self, pid: int) -> None:
        """Make the process of this pid, as it is now, a victim."""
        self._pidfds[pid] = os.pidfd_open(pid)

    def discard(self, pid: int) -> None:
        """Leave this process alone from now on."""
        pidfd = self._pidfds.pop(pid, None)
        if pidfd is not None:
            os.close(pidfd)

    def send(self, pid: int, number: signal.Signals) -> Sent:
        """Signal this victim; KeyError if it is no victim, ProcessLookupError if it has ended."""
        pidfd = self._pidfds[pid]
        sent = Sent(time.monotonic_ns(), pid, number)
        signal.pidfd_send_signal(pidfd, number)
        return sent

    def close(self) -> None:
        for pid in list(self._pidfds):
            self.discard(pid)


class Pace:
    """The times of an event that happens `rate` times a second (0: never)."""

    def __init__(self, rate: float, source: random.Random) -> None:
        if rate < 0:
            raise ValueError(f"a rate cannot be negative: {rate}")
        self.due_ns: int | None = None
        self._rate = rate
        self._random = source

    def start(self, now_ns: int) -> None:
        """The first time is one gap after `now_ns`."""
        self.due_ns = now_ns + self._gap_ns() if self._rate else None

    def take(self, now_ns: int) -> bool:
        """Whether it is due; if so, the next time is set.

        At most once a call: a late owner catches up call by call.
        """
        if self.due_ns is None or now_ns < self.due_ns:
            return False
        self.due_ns += self._gap_ns()
        return True

    def _gap_ns(self) -> int:
        return int(SECOND_NS / self._rate * self._random.uniform(0.5, 1.5))


class ProcessKiller:
    """Sends SIGKILL to a random victim, `rate` times a second; `sent` has all records in order.

    `killed` is called with each record at once; the process may still be dying then.
    """

    def __init__(
        self,
        victims: Victims,
        rate: float,
        seed: int,
        killed: Callable[[Sent], None] | None = None,
    ) -> None:
        self.sent: list[Sent] = []
        self._killed = killed
        self._victims = victims
        self._random = random.Random(seed)
        self._pace = Pace(rate, self._random)

    @property
    def due_ns(self) -> int | None:
        return self._pace.due_ns

    def start(self, now_ns: int) -> None:
        """Begin the schedule."""
        self._pace.start(now_ns)

    def step(self, now_ns: int) -> Sent | None:
        """Kill one victim if a kill is due; its record, or None if none is due or none is left."""
        if not self._pace.take(now_ns) or not self._victims.pids:
            return None
        return self.kill(self._random.choice(sorted(self._victims.pids)))

    def kill(self, pid: int) -> Sent:
        """Kill this victim now, outside of the schedule; it is not a victim any more."""
        sent = self._victims.send(pid, signal.SIGKILL)
        self._victims.discard(pid)
        self.sent.append(sent)
        if self._killed is not None:
            self._killed(sent)
        return sent


class ProcessStopper:
    """Sends SIGSTOP to a random victim, `rate` times a second, and SIGCONT after a random hold.

    Holds are drawn from `hold_ns` (shortest, longest), evenly on a logarithmic scale. A victim that
    is stopped may be killed meanwhile. `sent` has all records in order.
    """

    def __init__(
        self, victims: Victims, rate: float, seed: int, hold_ns: tuple[float, float]
    ) -> None:
        self.sent: list[Sent] = []
        self.stopped: dict[int, int] = {}
        """The time at which each stopped process is to go on."""
        self._ever: set[int] = set()
        self._victims = victims
        self._random = random.Random(seed ^ 0x5709)
        self._pace = Pace(rate, self._random)
        self._hold_ns = hold_ns

    @property
    def due_ns(self) -> int | None:
        return min(
            (at for at in (self._pace.due_ns, *self.stopped.values()) if at is not None),
            default=None,
        )

    def start(self, now_ns: int) -> None:
        """Begin the schedule."""
        self._pace.start(now_ns)

    def step(self, now_ns: int) -> None:
        """Continue the processes whose hold is over; stop one more victim if a stop is due."""
        for pid in [pid for pid, until_ns in self.stopped.items() if until_ns <= now_ns]:
            self._wake(pid)
        if not self._pace.take(now_ns):
            return
        candidates = sorted(self._victims.pids - self.stopped.keys())
        if candidates:
            self.stop(self._random.choice(candidates))

    def stop(self, pid: int) -> None:
        """Stop this victim now."""
        low, high = self._hold_ns
        hold_ns = low * (high / low) ** self._random.random()
        sent = self._victims.send(pid, signal.SIGSTOP)
        self.sent.append(sent)
        self.stopped[pid] = sent.time_ns + int(hold_ns)
        self._ever.add(pid)

    def wake_all(self) -> None:
        """Continue every stopped process, and stop no more."""
        self._pace.due_ns = None
        for pid in list(self.stopped):
            self._wake(pid)

    def has_stopped(self, pid: int) -> bool:
        """Whether this victim, of those that are not discarded, was ever stopped."""
        return pid in self._ever

    def discard(self, pid: int) -> None:
        """Forget a process that has ended."""
        self.stopped.pop(pid, None)
        self._ever.discard(pid)

    def _wake(self, pid: int) -> None:
        del self.stopped[pid]
        if pid in self._victims.pids:
            self.sent.append(self._victims.send(pid, signal.SIGCONT))
