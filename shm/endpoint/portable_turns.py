"""Part of the portable fabric: one thread at a time is inside an operation of an endpoint."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from limpet.shm.clients.inside import is_over
from limpet.shm.errors import ReentrantUse

_INSIDE: Final = "inside"
WAIT_S: Final = 2e-5
WAIT_MAX_S: Final = 1e-3
LOOKS: Final = 16
"""Looks of a waiting thread after which other threads sleep before they enter, so it goes first;
and after which it looks whether the operation of the thread that is inside was cut off."""
AT_ONCE: Final = 4
"""Waiting threads that look within `WAIT_MAX_S`, however many wait: a hundred threads that wake up
every millisecond would leave the thread that is inside no time to run."""

Claim = tuple[int, Any]
"""A thread, and the frame of its operation."""

_forks = 0


def _on_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_on_fork)


class Turns:
    """The operation that an endpoint is in, and the threads that wait for its end."""

    __slots__ = ("_fork", "_inside", "_looking", "_waiting")

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """Have no operation, and no other threads: in a new endpoint, or an adopted child."""
        self._inside: dict[str, Claim] = {}
        self._waiting: set[int] = set()
        self._looking = threading.RLock()
        self._fork = _forks

    @property
    def forked(self) -> bool:
        """Whether this is a forked child that is not adopted yet."""
        return self._fork != _forks

    @property
    def frame(self) -> Any:
        """The frame of the running operation; None: none runs."""
        return self._inside.get(_INSIDE, (0, None))[1]

    def undisturbed(self) -> AbstractContextManager[object]:
        """Keeps memory mapped while a thread looks at a word outside of operations.

        A forked child that is not adopted yet has no other threads, and the lock as it was.
        """
        return nullcontext() if self.forked else self._looking

    def enter(self, claim: Claim, cut_off: Callable[[], object]) -> None:
        """Wait for our turn. `cut_off` ends an operation that was cut off, whose place we take."""
        if self._waiting:
            time.sleep(2 * WAIT_MAX_S)  # so long that a waiting thread looks meanwhile
        looks = stays = 0
        seen = None
        # ORDER: thread and frame in one call: after it, an exception leaves a frame to judge by.
        while (holder := self._inside.setdefault(_INSIDE, claim)) is not claim:
            ours = holder[0] == claim[0]
            stays = stays + 1 if holder is seen else 0
            seen = holder
            # The stack of another thread changes while we walk along it, which CPython does not
            # always survive: only if that thread has been inside for long.
            if (ours or stays >= LOOKS) and is_over(*holder):
                self._take_over(holder, claim, cut_off)
            elif ours:
                raise ReentrantUse("a limpet handle was used from inside one of its own operations")
            else:
                looks += 1
                self._wait(looks)

    def enter_last(self, claim: Claim) -> bool:
        """Enter without waiting; False: another thread is inside."""
        return self._inside.setdefault(_INSIDE, claim)[0] == claim[0]

    def enter_idle(self, claim: Claim) -> bool:
        """Enter, if no thread is inside; whether none was."""
        return self._inside.setdefault(_INSIDE, claim) is claim

    def leave(self) -> None:
        """End the operation."""
        self._inside.pop(_INSIDE, None)

    def _wait(self, looks: int) -> None:
        """Wait a little for the thread that is inside."""
        if looks < LOOKS:
            time.sleep(looks * WAIT_S)
            return
        self._waiting.add(threading.get_ident())
        try:
            time.sleep(WAIT_MAX_S * max(1.0, len(self._waiting) / AT_ONCE))
        finally:
            self._waiting.discard(threading.get_ident())

    def _take_over(self, holder: Claim, claim: Claim, cut_off: Callable[[], object]) -> None:
        """Take the place of an operation that was cut off, if no other thread was faster."""
        with self._looking:
            if self._inside.get(_INSIDE) is not holder:
                return
            self._inside[_INSIDE] = claim
        try:
            cut_off()
        except BaseException:
            self._inside[_INSIDE] = holder
            raise
