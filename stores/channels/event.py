"""An event: threading.Event for the threads of many processes.

Words, in bytes from its start
    0     bit 0: whether it is set; bits 1-63: how often it has been set
    64    where threads sleep (waiting.py)
A waiter goes on when it is set, or has been set since: `set` and at once `clear` release all.

A kill leaves nothing to repair; a sleeper looks again after a while.
"""

from __future__ import annotations

from typing import Any, Final

from limpet.stores.channels.channel import Channel
from limpet.stores.channels.layout import LINE
from limpet.stores.channels.waiting import Waiting, deadline_after, still_us

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

    def is_set(self) -> bool:
        """Whether it is set."""
        with self.operation():
            return bool(self.endpoint.load(self.address) & SET)

    def set(self) -> None:
        """Set it, and release all waiting threads."""
        with self.operation():
            state = self.endpoint.load(self.address)
            while not state & SET:
                # LINEARIZES: it is set.
                # CRASH(set): it is set; sleepers look after a while.
                self.endpoint.cas(self.address, state, (state + 2 | SET) & MASK)
                state = self.endpoint.load(self.address)
            self.waiting.wake()

    def clear(self) -> None:
        """Clear it: a thread that waits from now on waits until it is set again."""
        with self.operation():
            state = self.endpoint.load(self.address)
            while state & SET:
                # LINEARIZES: it is not set.
                self.endpoint.cas(self.address, state, state & ~SET & MASK)
                state = self.endpoint.load(self.address)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, at most `timeout` seconds; whether it was."""
        deadline = deadline_after(timeout)
        looks, token, first = 0, 0, NEVER
        sleepy = False
        while True:
            with self.operation():
                if sleepy:
                    token = self.waiting.prepare()
                first = self._count(first)
            if first < 0:
                return True
            left = still_us(deadline)
            if not left:
                return False
            if token:
                self.waiting.sleep(token, left)
            else:
                looks += 1
                sleepy = not self.waiting.spin(looks)

    def count_since(self, first: int) -> int:
        """`_count`, as an operation: for waits that sleep elsewhere (task_waits.py)."""
        with self.operation():
            return self._count(first)

    def _count(self, first: int) -> int:
        """How often it has been set; below 0: it is set, or was since it was `first` times. In an
        operation. `first`: as this method has returned, or NEVER."""
        state = self.endpoint.load(self.address)
        return -1 if state & SET or (first >= 0 and state >> 1 != first) else state >> 1
