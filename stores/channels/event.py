"""An event: threading.Event for the threads of many processes.

Words, in bytes from its start
    0     bit 0: whether it is set; bits 1-63: how often it has been set
    64    where threads sleep (waiting.py)
A waiter goes on when it is set, or has been set since: `set` and at once `clear` release all.
A look is 1 round trip; so is a change that finds it as it is to be. Any other change is 2, as it is
a CAS of the word that was read.

A kill leaves nothing to repair; a sleeper looks again after a while.
"""

from __future__ import annotations

from typing import Any, Final

from limpet.shm.times import Seconds
from limpet.stores.channels.channel import Channel
from limpet.stores.channels.layout import LINE
from limpet.stores.channels.waiting import Wait, Waiting, deadline_after

SET: Final = 1
NEVER: Final = -1
"""For a waiter that has not looked yet."""
MASK: Final = 0xFFFF_FFFF_FFFF_FFFF


class Event(Channel):
    """A flag that processes and threads wait for."""

    def __init__(self, manager: Any, name: str, parent: Any = None) -> None:
        super().__init__(manager, name, parent, size=2 * LINE, kind="event")
        remote = self.pool.parameters.multi_host
        self.waiting = Waiting(self.endpoint, self.address + LINE, remote)

    def _look(self) -> int:
        """The word. In an operation; 1 round trip."""
        ticket = self.endpoint.post_load(self.address)
        self.endpoint.wait()
        return int(self.endpoint.result(ticket))

    def _change(self, state: int, following: int) -> bool:
        """Change the word; whether it was `state`. In an operation; 1 round trip."""
        ticket = self.endpoint.post_cas(self.address, state, following & MASK)
        self.endpoint.wait()
        return bool(self.endpoint.result(ticket) == state)

    def is_set(self) -> bool:
        """Whether it is set."""
        with self.operation():
            return bool(self._look() & SET)

    def set(self) -> None:
        """Set it, and release all waiting threads."""
        with self.operation():
            state = self._look()
            # LINEARIZES: it is set.
            # CRASH(set): it is set; sleepers look after a while.
            while not state & SET and not self._change(state, state + 2 | SET):
                state = self._look()
            self.waiting.wake()

    def clear(self) -> None:
        """Clear it: a thread that waits from now on waits until it is set again."""
        with self.operation():
            state = self._look()
            # LINEARIZES: it is not set.
            while state & SET and not self._change(state, state & ~SET):
                state = self._look()

    def wait(self, timeout: Seconds | None = None) -> bool:
        """Wait until it is set, at most `timeout` seconds; whether it was."""
        wait, first = Wait(self.waiting, deadline_after(timeout)), NEVER
        while True:
            with self.operation():
                wait.note()
                first = self._count(first)
            if first < 0:
                return True
            if not wait.pause():
                return False

    def count_since(self, first: int) -> int:
        """`_count`, as an operation: for waits that sleep elsewhere (task_waits.py)."""
        with self.operation():
            return self._count(first)

    def _count(self, first: int) -> int:
        """How often it has been set; below 0: it is set, or was since it was `first` times. In an
        operation. `first`: as this method has returned, or NEVER."""
        state = self._look()
        return -1 if state & SET or (first >= 0 and state >> 1 != first) else state >> 1
