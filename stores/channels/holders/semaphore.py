# cython: binding=False
# The interpreter calls methods that are no function objects more quickly.
"""The semaphore: threading.Semaphore among processes, whose permits no dead process keeps.

A face of the table of holders (holders.py): its first line, with `value` permits. A process holds
the permits that it acquired and did not release. When it dies, or closes its pool, they are free
again, but a death never makes more than `value` permits free. So those of a semaphore that was made
with 0, whose permits are signals from one process to another, stay where they are, as those of
multiprocessing do; and if processes release what others acquired, no death adds a permit.

A process may release permits that it does not hold. Then it releases those that other processes
hold, if there are any. These are as many changes as there are processes whose permits these are; a
kill between them leaves a part of the permits released.

A kill leaves behind: what holders.py says.
"""

from __future__ import annotations

from typing import Any, Literal

from limpet.shm.times import Seconds
from limpet.stores.channels.holders.holders import Holders
from limpet.stores.channels.holders.layout import (
    COUNT,
    FREE_MAX,
    LIMIT_MAX,
    SHARED,
    TAKEN,
    VALUE,
)
from limpet.stores.channels.waiting import deadline_after, whole


class Semaphore(Holders):
    """A semaphore with the interface of threading.Semaphore, or, `bounded`, BoundedSemaphore."""

    def __init__(
        self,
        manager: Any,
        name: str,
        parent: Any = None,
        *,
        value: int = 1,
        bounded: bool = False,
    ) -> None:
        """`value`: permits that are free at first. `bounded`: no more than these are ever free."""
        limit = whole("a semaphore's `value`", value, 0, LIMIT_MAX)
        super().__init__(
            manager, name, parent, kind="semaphore", limit=limit, value=limit, bounded=bounded
        )
        self.bounded = bounded

    def acquire(self, blocking: bool = True, timeout: Seconds | None = None) -> bool:
        """Take a permit; False if none was free at once, or for `timeout` seconds.

        1 round trip if no other process has changed the semaphore since our last change, else 3.
        Raises ChannelRemoved, NodeFailed, and exceptions of signal handlers: it is not taken then.
        """
        if not blocking and timeout is not None:
            raise ValueError("can't specify timeout for non-blocking acquire")
        if blocking and timeout is None:
            return self.obtain(SHARED, False, None)
        return self.obtain(SHARED, False, deadline_after(timeout) if blocking else 0.0)

    def release(self, n: int = 1) -> None:
        """Give back `n` permits. Raises ValueError if more than `value` would be free then, of a
        bounded semaphore."""
        n = int(n)
        if n < 1:
            raise ValueError("n must be one or more")
        if n > FREE_MAX:
            raise ValueError("Semaphore released too many times")
        self.enter()
        try:
            self.row()
            while n:
                n -= self._release(n)
        finally:
            self.leave()

    def _release(self, n: int) -> int:
        """Give back some of `n` permits: ours, then those of another process; how many."""
        looked = False
        while True:
            if not self.known:
                self.read_table()
                looked = True
            taken, part = self.state & TAKEN, self.mine & COUNT
            row, held = self.own_row, self.mine
            below = taken > TAKEN >> 1
            free = self.limit - taken + (TAKEN + 1 if below else 0)
            over = (self.bounded and (below or taken < n)) or free + n > FREE_MAX
            if not looked and (over or part < n):
                self.known = False
                continue
            if over:
                raise ValueError("Semaphore released too many times")
            if not part and self.limit:
                row = self._other()
                held = self.value(row)
                part = held & COUNT
            value = held & VALUE
            if part > n or not part:
                part = n
            if value & COUNT:
                value -= part
            state = self.state & ~TAKEN | self.state - part & TAKEN
            if self.commit(row, held, value, state):
                self._call()
                return part

    def _other(self) -> int:
        """The row of a process that holds permits; ours, if there is none."""
        for row in range(self.rows):
            if self.value(row) & COUNT:
                return row
        return self.own_row

    def get_value(self) -> int:
        """How many permits are free; right for a moment."""
        self.enter()
        try:
            self.row()
            self.read_table()
            taken = self.state & TAKEN
            return self.limit - taken + (TAKEN + 1 if taken > TAKEN >> 1 else 0)
        finally:
            self.leave()

    def locked(self) -> bool:
        """Whether no permit is free."""
        return self.get_value() == 0

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> Literal[False]:
        begun = has = False
        try:
            self.enter()
            try:
                self.row()
                begun = True
                has = self.give_surely(SHARED, 1)
            finally:
                self.leave()
        finally:
            if not begun:
                # A signal handler has cut it off.
                self.enter()
                try:
                    self.row()
                    self.give_surely(SHARED, 1)
                finally:
                    self.leave()
        if not has:
            # A child that was forked in the block would release its parent's.
            raise RuntimeError(f"this process holds no permit of {self.name!r}")
        return False
