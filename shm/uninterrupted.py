"""Work that no signal handler can cut in two: opening, creating, closing, destroying a pool.

Python runs signal handlers in the main thread, between two bytecodes. A handler that raises (as
that of Ctrl-C does) can therefore end any statement there, also between taking a descriptor or a
client slot and noting it: then no `try` of ours can give it back. In other threads no handler ever
runs. So the main thread has another thread do such work, and waits for it.

Only the wait can be interrupted. Then the work still goes to its end, its result is undone, and the
exception goes on: it is as if nothing had begun. A second exception during this wait goes on at
once; the work and its undoing then end by themselves.

The windows that are left: until `start_new_thread` is called nothing has begun; from then on the
`except` clause is in force, since CPython looks for signals only after a call has returned, when a
function is entered, and at a jump back. For the same reason nothing can happen between the last
call in `uninterrupted` and the return of its result.
"""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")

ending = False
"""Whether the interpreter has begun to end (leaving.py), and may start no thread any more."""


class _Job(Generic[T]):
    """One piece of work, done in a thread of its own."""

    def __init__(self, work: Callable[[], T], undo: Callable[[T], object]) -> None:
        self.work = work
        self.undo = undo
        self.result: Any = None
        self.error: BaseException | None = None
        self.ended = False
        self.done = _thread.allocate_lock()
        self.undone = _thread.allocate_lock()
        self.done.acquire()
        self.undone.acquire()

    def run(self) -> None:
        try:
            self.result = self.work()
        except BaseException as error:
            self.error = error
        finally:
            self.ended = True
            self.done.release()

    def run_back(self) -> None:
        """Wait until the work is done, and undo it if it has succeeded."""
        try:
            if not self.ended:
                self.done.acquire()
            if self.error is None:
                self.undo(self.result)
        finally:
            self.undone.release()


def _nothing(result: object) -> None:
    """Undoes what needs no undoing."""


def uninterrupted(work: Callable[[], T], undo: Callable[[T], object] = _nothing) -> T:
    """Do `work`, whole or not at all as far as signal handlers go; return its result, or raise.

    When a handler has raised before the caller could get the result, `undo` is called with it.
    """
    if _thread.get_ident() != threading.main_thread().ident or sys.is_finalizing():
        return work()  # an interpreter that ends runs no handler, and no other thread
    job = _Job(work, undo)
    try:
        _thread.start_new_thread(job.run, ())
        job.done.acquire()
        if job.error is None:
            return job.result  # type: ignore[no-any-return]
    except BaseException as error:
        trace = error.__traceback__
        if isinstance(error, RuntimeError) and trace is not None and trace.tb_next is None:
            # Not from a handler: no thread can be started. A limit is met, or the interpreter ends.
            return work()
        _thread.start_new_thread(job.run_back, ())
        job.undone.acquire()
        raise
    try:
        raise job.error
    finally:
        del job  # the error's traceback leads to this frame
