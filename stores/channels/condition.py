"""The condition: threads of any processes wait, without its lock, for a change.

Memory: a region of its own, and the part `lock` (lock.py), a recursive lock
    0     number  of calls of notify
    64    waiting where threads sleep (waiting.py)

`wait` reads the number while it holds the lock, gives the lock back, and waits until the number is
another one; `notify`, which needs the lock, too, adds to the number and wakes all. So a waiter
misses no notify between the two. All waiting threads return, and each checks its own condition, as
`wait_for` does.

Order. Who gets the lock next is what keeps threads from starving: a few that run could take turns
with each other, so that all others find their condition false whenever they look.
    - A thread that was notified and is in the lock's queue is not overtaken by threads that come
      to the lock while it has to be woken (the lock is one without `overtaking`).
    - A thread that waited in vain, so that it waits once more, comes to the lock a moment later
      than it could, each time another one: else it comes in step with the same others, always
      after those that make its condition false (with the first rule alone some stood for 4 s).

A kill leaves behind: a change without its notify, if the process died with the lock
(CRASH(notifying)). A thread that waits looks from time to time at the holder of the lock, and
returns if that process is dead; it has the lock then, and `inherited` says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from limpet.stores.channels.channel import Channel
from limpet.stores.channels.layout import LINE, MOMENT, MOMENTS
from limpet.stores.channels.lock.lock import Lock
from limpet.stores.channels.lock.ticket_layout import HOLDER
from limpet.stores.channels.waiting import Waiting, deadline_after, still_us

Found = TypeVar("Found")


class Condition(Channel):
    """A condition with its lock, as `threading.Condition`, among processes: `pool.condition`."""

    def __init__(self, manager: Any, name: str, parent: Any = None) -> None:
        super().__init__(manager, name, parent, size=2 * LINE, kind="condition")
        remote = self.pool.parameters.multi_host
        self.waiting = Waiting(self.endpoint, self.address + LINE, remote)
        self.lock = Lock(manager, "lock", self, recursive=True, overtaking=False)
        self.vain = 0
        """Waits of the thread that has the lock, without a notify since it took it."""

    # ---- the lock -------------------------------------------------------------------------------

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock; as `Lock.acquire`."""
        taken = self.lock.acquire(blocking, timeout)
        if taken:
            self.vain = 0
        return taken

    def release(self) -> None:
        """Give the lock back; as `Lock.release`."""
        self.lock.release()

    @property
    def inherited(self) -> bool:
        """For a thread that holds the lock: whether the last holder died with it."""
        return self.lock.inherited

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.lock.release()

    # ---- waiting --------------------------------------------------------------------------------

    def wait(self, timeout: float | None = None) -> bool:
        """Give the lock back, wait to be notified, at most `timeout` seconds, and take it again.

        False: the time was over. True: check the condition again, as the notify may have been for
        another thread, or the lock's holder has died. Raises RuntimeError without the lock.
        """
        deadline = deadline_after(timeout)
        before, vain = self.begin_wait()
        count = self.lock._release_save()
        try:
            notified = self._is_notified(before, deadline)
            if vain and notified:
                self.endpoint.pause(MOMENT + self.moment(vain))
            return notified
        finally:
            self.lock._acquire_restore(count)
            self.vain = vain + 1

    def wait_for(self, predicate: Callable[[], Found], timeout: float | None = None) -> Found:
        """`wait` until `predicate()` is true, at most `timeout` seconds; its last result."""
        deadline = deadline_after(timeout)
        found = predicate()
        while not found:
            left = still_us(deadline)
            if not left:
                break
            self.wait(None if timeout is None else left / 1e6)
            found = predicate()
        return found

    def notify(self, n: int = 1) -> None:
        """Wake all threads that wait, whatever `n` is; one of them gets the lock first.

        Raises RuntimeError without the lock.
        """
        if n > 0:
            self.notify_all()
        else:
            self._number("notify")

    def notify_all(self) -> None:
        """Wake all threads that wait. Raises RuntimeError without the lock."""
        with self.operation():
            self._check_owned("notify")
            self.vain = 0
            # LINEARIZES: all threads that wait now are notified.
            # CRASH(notifying): sleepers look after a while.
            self.endpoint.faa(self.address, 1)
            self.waiting.wake()

    def begin_wait(self) -> tuple[int, int]:
        """The number of the last notify, and the waits in vain. Raises RuntimeError."""
        return self._number("wait"), self.vain

    def moment(self, vain: int) -> int:
        """How long to wait before the lock, after so many waits in vain: 0 to MOMENTS - 1."""
        return int(3 * vain + self.client.ident) % MOMENTS

    def is_over(self, before: int) -> bool:
        """Whether a wait that began at this number is over: for waits that sleep elsewhere
        (task_waits.py)."""
        with self.operation():
            return self.endpoint.load(self.address) != before or self._is_forsaken()

    def _check_owned(self, what: str) -> None:
        """In an operation: before its first one, a forked child seems to be its parent."""
        if not self.lock._is_owned():
            raise RuntimeError(f"cannot {what} on {self!r} without its lock")

    def _number(self, what: str) -> int:
        with self.operation():
            self._check_owned(what)
            return int(self.endpoint.load(self.address))

    def _is_notified(self, before: int, deadline: float | None) -> bool:
        """Wait until the number is not `before`, or the lock's holder is dead; False: timeout."""
        looks = token = 0
        sleepy = False
        while True:
            with self.operation():
                if sleepy:
                    token = self.waiting.prepare()
                if self.endpoint.load(self.address) != before:
                    return True
                if token and self._is_forsaken():
                    return True
            left = still_us(deadline)
            if not left:
                return False
            if token:
                self.waiting.sleep(token, left)
            else:
                looks += 1
                sleepy = not self.waiting.spin(looks)

    def _is_forsaken(self) -> bool:
        """Whether a dead process has the lock. In an operation."""
        holder = self.endpoint.load(self.lock.address) & HOLDER
        return holder != 0 and not self.lives(holder)
