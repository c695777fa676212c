"""Part of the portable fabric: one thread at a time is inside an operation of an endpoint."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from limpet.shm.endpoint import forks
from limpet.shm.endpoint.inside import is_over
from limpet.shm.errors import ReentrantUse

_INSIDE: Final = "inside"
WAIT_S: Final = 2e-5
WAIT_MAX_S: Final = 1e-3
LOOKS: Final = 16
"""Looks of a waiting thread after which it sleeps for longer, and looks whether the operation of
the thread that is inside was cut off."""
TURNS: Final = 16
"""Turns of other threads, while a thread waits, after which they sleep before they enter, so that
it goes first. Its own looks say nothing: it runs only when Python changes threads, and meanwhile
the thread that is inside may have any number of turns."""
AT_ONCE: Final = 4
"""Waiting threads that look within `WAIT_MAX_S`, however many wait: a hundred threads that wake up
every millisecond would leave the thread that is inside no time to run."""

Claim = tuple[int, Any]
"""A thread, and the frame of its operation."""


class Turns:
    """The operation that an endpoint is in, and the threads that wait for its end."""

    __slots__ = ("_count", "_fork", "_inside", "_looking", "_waiting")

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """Reset: no operation runs, and there are no other threads. For a new endpoint, or a forked
        child."""
        self._inside: dict[str, Claim] = {}
        self._count = 0
        """Turns so far."""
        self._waiting: dict[int, int] = {}
        """The threads that wait, and the count of turns when they began to."""
        self._looking = threading.RLock()
        self._fork = forks.count

    @property
    def forked(self) -> bool:
        """Whether this is a forked child that is not adopted yet."""
        return self._fork != forks.count

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
        if self._waiting and self._is_overtaking(claim[0]):
            time.sleep(2 * WAIT_MAX_S)  # so long that a waiting thread looks meanwhile
        self._count += 1
        # ORDER: thread and frame in one call: after it, an exception leaves a frame to judge by.
        holder = self._inside.setdefault(_INSIDE, claim)
        if holder is claim:
            return
        try:
            self._await(claim, cut_off)
        finally:
            self._waiting.pop(claim[0], None)

    def _is_overtaking(self, thread: int) -> bool:
        """Whether a thread has waited for TURNS turns, which is to go before `thread`."""
        self._waiting.pop(thread, None)  # a signal handler has cut its last wait off
        return self._count - min(self._waiting.copy().values(), default=self._count) >= TURNS

    def _await(self, claim: Claim, cut_off: Callable[[], object]) -> None:
        """Wait for our turn, while another operation is inside."""
        looks = stays = 0
        began = self._count
        seen = None
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
                self._waiting[claim[0]] = began  # again: a signal handler's own wait takes it out
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
        else:
            time.sleep(WAIT_MAX_S * max(1.0, len(self._waiting) / AT_ONCE))

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
