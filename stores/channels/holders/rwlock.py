# cython: binding=False
# The interpreter calls methods that are no function objects more quickly.
"""The reader-writer lock: any number of threads of any processes read, or one thread writes.

A face of the table of holders (holders.py), whose first line is that of readers, and whose second
that of writers. `prefer` says which go first where both wait: with "writers" a newcomer that reads
waits for waiting writers, unless its thread reads already; with "readers" a newcomer that writes
waits for waiting readers.

Which thread holds it is known in its process only. A forked child holds nothing.

A kill leaves behind: what holders.py says. If the process died that wrote, `inherited` tells that
to those that read until another thread has got it to write, and to that one: the data may be half
changed. The death of a process that read leaves no trace.
"""

from __future__ import annotations

from threading import TIMEOUT_MAX
from typing import Any, Final, Literal

from limpet.shm.endpoint import forks
from limpet.shm.errors import ParameterError
from limpet.shm.times import Seconds, seconds_of
from limpet.stores.channels.holders.holders import Holders
from limpet.stores.channels.holders.layout import EXCLUSIVE, LIMIT_MAX, SHARED, TAKEN, WRITER
from limpet.stores.channels.waiting import deadline_after

PREFER: Final = ("readers", "writers")


class Side:
    """A reader-writer lock for one use of it, with the interface of threading.Lock."""

    def __init__(self, lock: RwLock, line: int, timeout: float) -> None:
        self.lock = lock
        self.line = line
        self.timeout = timeout

    def acquire(self, blocking: bool = True, timeout: Seconds = -1) -> bool:
        """Take it; False if it was not to be had at once, or for `timeout` seconds. Raises
        RuntimeError if this thread would wait for itself."""
        if timeout != -1:
            if not blocking:
                raise ValueError("can't specify a timeout for a non-blocking call")
            seconds = seconds_of("timeout", timeout)
            if seconds < 0:
                raise ValueError("timeout value must be a non-negative number")
            if seconds > TIMEOUT_MAX:
                raise OverflowError("timeout value is too large")
            return self.lock.take(self.line, deadline_after(seconds))
        return self.lock.take(self.line, None if blocking else 0.0)

    def release(self) -> None:
        """Give it back. Raises RuntimeError if this thread does not have it."""
        self.lock.drop(self.line)

    def locked(self) -> bool:
        """Whether a thread of any process has it for this use."""
        return self.lock.is_taken(self.line)

    @property
    def inherited(self) -> bool:
        """For a thread that has it: whether the last process that wrote has died amid that."""
        return self.lock.inherited

    def __enter__(self) -> Side:
        if not self.acquire(timeout=self.timeout):
            raise TimeoutError(f"{self.lock.title()} was not to be had for {self.timeout} s")
        return self

    def __exit__(self, *error: object) -> Literal[False]:
        before = self.lock.uses(self.line)
        done = False
        try:
            self.release()
            done = True
        finally:
            if not done and before and self.lock.uses(self.line) == before:
                self.release()  # a signal handler has cut it off
        return False

    def __repr__(self) -> str:
        return f"<{'write' if self.line == EXCLUSIVE else 'read'} of {self.lock.title()}>"


class RwLock(Holders):
    """A lock for many readers or one writer: `pool.rwlock`."""

    def __init__(
        self, manager: Any, name: str, parent: Any = None, *, prefer: str = "writers"
    ) -> None:
        """`prefer`: "writers" or "readers", which go first."""
        if prefer not in PREFER:
            raise ParameterError(f"prefer is one of {', '.join(PREFER)}, not {prefer!r}")
        super().__init__(
            manager,
            name,
            parent,
            kind="rwlock",
            limit=LIMIT_MAX,
            first=PREFER.index(prefer),
            prefer=prefer,
        )
        self.forks = forks.count
        self.readers: dict[int, int] = {}
        """How often each thread of this process reads, and the one that writes; 0: none."""
        self.writer = 0

    def read(self, timeout: Seconds = -1) -> Side:
        """To read: `with lock.read():`. TimeoutError, if that takes more than `timeout` seconds."""
        return Side(self, SHARED, seconds_of("timeout", timeout))

    def write(self, timeout: Seconds = -1) -> Side:
        """To write, alone; as `read`."""
        return Side(self, EXCLUSIVE, seconds_of("timeout", timeout))

    def joined(self) -> None:
        self.readers = {}
        self.writer = 0
        super().joined()

    def _forget(self) -> None:
        """In a forked child: its parent's threads are not here."""
        if self.forks != forks.count:
            self.forks = forks.count
            self.readers = {}
            self.writer = 0

    def take(self, line: int, deadline: float | None) -> bool:
        """Take it for a use; as `Side.acquire`."""
        self._forget()
        thread = self.whose()
        again = thread in self.readers
        if deadline is None:
            self.check_wait(line)
        taken = noted = False
        try:
            taken = self.obtain(line, again, deadline)
            if taken:
                self._note(line, thread)
            noted = True
        finally:
            if taken and not noted:
                self._undo(line, False, True)
        return taken

    def check_wait(self, line: int) -> None:
        """Raises RuntimeError if this thread, or task, would wait for itself."""
        thread = self.whose()
        if self.writer == thread or (line == EXCLUSIVE and thread in self.readers):
            raise RuntimeError(f"this thread has {self.title()} already, and would wait for itself")

    def take_in_line(self, line: int) -> int:
        """`look_in_line`, for a use."""
        self._forget()
        thread = self.whose()
        found = self.look_in_line(line, thread in self.readers)
        if found > 0:
            self._note(line, thread)
        return found

    def _note(self, line: int, thread: int) -> None:
        """A thread of this process has it."""
        if line == EXCLUSIVE:
            self.writer = thread
        else:
            self.readers[thread] = self.readers.get(thread, 0) + 1

    def drop(self, line: int) -> None:
        """Give it back; as `Side.release`."""
        self._forget()
        thread = self.whose()
        if (self.writer != thread) if line == EXCLUSIVE else (thread not in self.readers):
            raise RuntimeError(f"this thread does not have {self.title()}")
        self.enter()
        try:
            self.row()
            if line == EXCLUSIVE:
                self.writer = 0
            elif self.readers[thread] > 1:
                self.readers[thread] -= 1
            else:
                del self.readers[thread]
            # A client that was declared dead has it no more.
            has = self.give_surely(line, 1)
        finally:
            self.leave()
        if not has:
            raise RuntimeError(f"this process does not have {self.title()} any more")

    def uses(self, line: int) -> int:
        """How often this thread, or task, has it for a use."""
        thread = self.whose()
        if line == EXCLUSIVE:
            return 1 if self.writer == thread else 0
        return int(self.readers.get(thread, 0))

    def is_taken(self, line: int) -> bool:
        """Whether a thread of any process has it for this use."""
        self.enter()
        try:
            self.row()
            self.read_table()
            return bool(self.state & (WRITER if line == EXCLUSIVE else TAKEN))
        finally:
            self.leave()
