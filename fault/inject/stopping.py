"""A pool handle that stops its own process at a chosen step, or calls a function there.

The counterpart of the crash fuse. The steps are those of `Endpoint.fuse`: every mutating verb is
one, and so is every 8-byte word of a write. So `stop_at = k` stops where `fuse = k` kills, in place
of the k-th step, and the process goes on from there when another process sends SIGCONT.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from limpet.shm.endpoint.hooked import MUTATING, HookedEndpoint
from limpet.stores.pool import Pool


def stop() -> None:
    """Stop this process until another process wakes it."""
    os.kill(os.getpid(), signal.SIGSTOP)


def stops(pid: int) -> bool:
    """Wait until a child stops, or ends; whether it has stopped."""
    state = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    if state is None or state.si_code != os.CLD_STOPPED:
        return False
    os.waitid(os.P_PID, pid, os.WSTOPPED)
    return True


class StoppingEndpoint(HookedEndpoint, verbs=MUTATING):
    """An Endpoint that counts steps, and is interrupted at step `stop_at` (0: never)."""

    def __init__(self) -> None:
        self.stop_at = 0
        self.interrupt: Callable[[], object] = stop

    def on_verb(self, verb: str, addr: int, words: int) -> int:
        if words < self.stop_at:
            self.stop_at -= words
        elif self.stop_at > 1:  # the words before that step
            words, self.stop_at = self.stop_at - 1, 1
        elif self.stop_at == 1:
            self.stop_at = 0
            self.interrupt()
            return 1  # it may have set another step
        return words


class StoppingPool(Pool):
    """A pool whose endpoint can stop this process."""

    endpoint_class = StoppingEndpoint
    endpoint: StoppingEndpoint
