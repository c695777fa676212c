"""The processes of a simulation, whose clients are all of one process, for membership."""

from __future__ import annotations

from collections.abc import Callable

from limpet.shm.clients.liveness import Watcher


class SimulatedProcesses(Watcher):
    """The processes of one simulation: those in `gone` are dead, all others live.

    `end` kills the one with a pid; it is called by a client that fences another.
    """

    locks_tell = False

    def __init__(self, end: Callable[[int], None]) -> None:
        self.gone: set[int] = set()
        self.end = end

    def alive(self, pid: int, started: int) -> bool:
        return pid not in self.gone

    def kill(
        self,
        pid: int,
        started: int,
        timeout_ms: int = 10_000,
        sure: Callable[[], bool] = lambda: True,
    ) -> bool:
        if not sure():
            return False
        self.end(pid)
        return True
