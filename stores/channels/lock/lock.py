# cython: binding=False
# The interpreter calls methods that are no function objects more quickly.
"""`pool.lock`: threading.Lock among processes and their threads, over a ticket lock (LOCO 5.4).

The process holds the ticket lock (ticket_lock.py); one of its threads holds this lock. At most one
of the waiting threads, the *delegate*, queues in shared memory; the others wait in `line` for a
thread of their process. A thread that releases while others are in line hands over to the first of
them, without a verb, at most HANDOVERS_MAX times in a row, as other processes wait, too. Then it
releases the ticket lock, and the first in line becomes the delegate.

`held_by`, `delegated` and `line` are changed within operations only, which exclude the threads of a
process from each other. They belong to the client `ident`: a forked child has another id, and
begins with none of them. So it does not hold the locks of its parent.

A kill leaves behind: the words of the ticket lock (ticket_lock.py); the rest goes with the process.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from threading import TIMEOUT_MAX, get_ident
from threading import Lock as LocalLock
from typing import Any, Final

from limpet.shm.times import Seconds, seconds_of
from limpet.stores.channels.channel import Channel
from limpet.stores.channels.layout import YIELD
from limpet.stores.channels.lock.ticket_lock import TicketLock, ticket_lock_size

HANDOVERS_MAX: Final = 100
PLACES: Final = 64
LOOK_S: Final = 0.2
"""Seconds between looks of a thread in line: for removal of the channel, and for signals."""

NOTHING = 0
DELEGATE = 1
HOLDER = 2
GONE = 3


class Gate:
    """A thread in line: it waits for `opened` to be released. Or a task, with its own `opened`, and
    `waits`, which says whether its event loop is still there."""

    def __init__(
        self, thread: int, opened: Any = None, waits: Callable[[], bool] | None = None
    ) -> None:
        self.thread = thread
        self.waits = waits
        self.opened = opened or LocalLock()
        if opened is None:
            self.opened.acquire()
        self.role = NOTHING
        """The reason for its opening: HOLDER, the lock was handed over; or DELEGATE. GONE: it was
        taken out of the line, as its event loop is closed."""

    def has_lock(self) -> bool:
        """Whether the lock was handed over."""
        return self.role == HOLDER


class Lock(Channel):
    """A lock with the interface of threading.Lock, or, `recursive`, of threading.RLock.

    `places`: as many processes wait in order; a power of two. `overtaking`: see ticket_lock.py.
    `inherited`, for the holder: whether the last holder died holding it.
    """

    def __init__(
        self,
        manager: Any,
        name: str,
        parent: Any = None,
        *,
        recursive: bool = False,
        places: int = PLACES,
        overtaking: bool = True,
        node: int | None = None,
    ) -> None:
        super().__init__(
            manager,
            name,
            parent,
            size=ticket_lock_size(places),
            kind="lock",
            node=node,
            recursive=recursive,
            places=places,
            overtaking=overtaking,
        )
        self.recursive = recursive
        self.whose: Callable[[], int] = get_ident
        """The number of the thread, or task, that would hold it, if it is recursive."""
        self.ticket = TicketLock(self, self.address, places, overtaking)
        self.line: deque[Gate] = deque()
        self.lined = False
        """A thread may be in line."""
        self.ident = 0
        self.held_by = 0
        """0: no thread of this process holds the lock; else `get_ident` of the one that took it."""
        self.count = 0
        self.delegated = False
        self.handovers = 0

    @property
    def inherited(self) -> bool:
        """For the holder: whether the last holder died holding it."""
        return bool(self.ticket.inherited)

    # ---- the interface of threading -----------------------------------------------------------

    def acquire(self, blocking: bool = True, timeout: Seconds = -1) -> bool:
        """Take the lock; False if it was not free at once, or for `timeout` seconds.

        Raises ChannelRemoved, NodeFailed, and exceptions of signal handlers: it is not held then.
        """
        seconds = -1.0
        if timeout != -1:
            if not blocking:
                raise ValueError("can't specify a timeout for a non-blocking call")
            seconds = seconds_of("timeout", timeout)
            if seconds < 0:
                raise ValueError("timeout value must be a non-negative number")
            if seconds > TIMEOUT_MAX:
                raise OverflowError("timeout value is too large")
        thread = self.whose() if self.recursive else 1
        taken = known = left = False
        self.enter()
        try:
            if self.ident != self.client.ident:
                self._forget()
            if not self.held_by:
                if self.ticket.grab() or ((not blocking or seconds == 0) and self.ticket.seize()):
                    self.held_by = thread
                    self.count = 1
                    taken = True
            elif self.recursive and self.held_by == thread:
                self.count += 1
                taken = True
            known = True
        finally:
            try:
                if not known and not self.held_by and self.ticket.is_ours():
                    self.ticket.drop()  # a signal handler has raised just after it was taken
                self.leave()
                left = True
            finally:
                if taken and not left:
                    self.release()
        if taken:
            return True
        return blocking and seconds != 0 and self._wait(thread, seconds)

    def release(self) -> None:
        """Release the lock; any thread of the process may do that, unless it is recursive.

        Also if it was taken by a handle that the process has dropped.
        Raises RuntimeError if this process, or the thread, does not hold it.
        """
        self.enter()
        self._release()

    def _release(self) -> None:
        """As `release`, in an operation, which ends."""
        try:
            if not self.held_by or self.ident != self.client.ident:
                self._adopt()
            if not self.held_by or (self.recursive and self.held_by != self.whose()):
                raise RuntimeError("release unlocked lock")
            self.count -= 1
            if not self.count:
                gate = self._first() if self.handovers < HANDOVERS_MAX else None
                if gate is None:
                    self._let_go()
                else:
                    self.handovers += 1
                    self.held_by = gate.thread
                    self.count = 1
                    self.ticket.inherited = False
                    gate.role = HOLDER
                    gate.opened.release()
        finally:
            self.leave()

    def locked(self) -> bool:
        """Whether a process holds the lock, or has died holding it."""
        return bool(self.ticket.locked())

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, kind: Any = None, error: Any = None, trace: Any = None) -> None:
        entered = False
        try:
            self.enter()
            entered = True
        finally:
            if not entered and self._is_owned():
                # Perhaps a signal handler has raised; the lock must not stay held.
                self.enter()
                self._release()
        self._release()

    def _is_owned(self) -> bool:
        """For threading.Condition, as the next three methods: whether this thread has the lock."""
        thread = self.whose() if self.recursive else 1
        return self.held_by == thread and self.ident == self.client.ident

    def _recursion_count(self) -> int:
        return self.count if self._is_owned() else 0

    def _release_save(self) -> int:
        count = self.count
        if self._is_owned():
            self.count = 1
        self.release()
        return count

    def _acquire_restore(self, count: int) -> None:
        self.acquire()
        self.count = count

    # ---- the threads of this process ----------------------------------------------------------

    def _forget(self) -> None:
        """Begin anew: this state belongs to another client."""
        self.ident = self.client.ident
        self.held_by = 0
        self.count = 0
        self.delegated = False
        self.handovers = 0
        self.line = deque()
        self.lined = False

    def _adopt(self) -> None:
        """Take over the lock, if this process holds it by a handle that it has dropped."""
        if self.ident != self.client.ident:
            self._forget()
        # A delegate may hold it already, and be about to note that.
        if not self.delegated and self.ticket.is_ours():
            self.held_by = self.whose() if self.recursive else 1
            self.count = 1

    def _let_go(self) -> None:
        """Release the ticket lock; the first in line may queue for it."""
        dropped = False
        self.held_by = 0
        self.handovers = 0
        try:
            self.ticket.drop()
            dropped = True
        finally:
            if not dropped and self.ticket.is_ours():
                self.ticket.drop()  # a signal handler has cut it off
            if self.lined and not self.delegated:
                self._resign()

    def _resign(self) -> None:
        """Make the first in line, if there is one, the only delegate."""
        self.delegated = False
        gate = self._first()
        if gate is not None:
            self.delegated = True
            gate.role = DELEGATE
            gate.opened.release()

    def _first(self) -> Gate | None:
        """Take the first gate out of the line. A thread may leave the line at any time."""
        if not self.lined:
            return None
        # ORDER: before the look: a thread sets it after it has lined up, so it is not missed.
        self.lined = False
        while True:
            try:
                gate = self.line.popleft()
            except IndexError:
                return None
            if gate.waits is None or gate.waits():
                break
            gate.role = GONE
        self.lined = True
        return gate

    def _wait(self, thread: int, timeout: float) -> bool:
        now = self.membership.now
        end = now() + timeout if timeout != -1 else math.inf
        role = self._line_up(thread, end)
        if role != DELEGATE:
            return role == HOLDER
        taken = False
        try:
            taken = self.ticket.acquire(max(end - now(), 0.0) if end != math.inf else -1.0)
        finally:
            self._end_delegation(thread, taken)
        return taken

    def _end_delegation(self, thread: int, taken: bool) -> None:
        """The delegate has the ticket lock, or has given up."""
        # In this order, so that no other thread becomes the delegate meanwhile.
        if taken:
            self.count = 1
            self.held_by = thread
            self.delegated = False
        else:
            self._resign()

    def _line_up(self, thread: int, end: float) -> int:
        """Wait in line until our turn, or until `end`: HOLDER, DELEGATE or NOTHING."""
        gate = Gate(thread)
        if self._join_line(gate):
            return DELEGATE
        try:
            if not self._stand(gate, end) and self._step_out(gate):
                return NOTHING
        except BaseException:
            self._abandon(gate)
            raise
        return gate.role

    def _join_line(self, gate: Gate) -> bool:
        """Line up; True: we are the delegate at once, and not in line."""
        self.enter()
        try:
            if not self.held_by and not self.delegated:
                self.delegated = True
                return True
            self.line.append(gate)
            self.lined = True
        finally:
            self.leave()
        return False

    def _abandon(self, gate: Gate) -> None:
        """Leave the line, and give up what the gate was opened for."""
        if not self._step_out(gate):
            if gate.role == HOLDER:
                self.release()
            elif gate.role == DELEGATE:
                self._resign()

    def _stand(self, gate: Gate, end: float) -> bool:
        """Wait at the gate; whether it was opened before `end`."""
        now = self.membership.now
        while True:
            left = max(end - now(), 0.0)
            if gate.opened.acquire(timeout=min(left, LOOK_S)):
                return True
            if left <= LOOK_S:
                return False
            # A signal that another thread got does not interrupt a sleeping thread.
            self.endpoint.pause(YIELD)
            self.enter()  # the channel may have been removed, the pool closed
            self.leave()

    def _step_out(self, gate: Gate) -> bool:
        """Leave the line; False if the gate has been opened."""
        try:
            self.line.remove(gate)
        except ValueError:
            # ORDER: before we read the reason: the thread that took it out of the line will open
            # it.
            while gate.role == NOTHING:
                gate.opened.acquire(timeout=LOOK_S)
            return False
        return True
