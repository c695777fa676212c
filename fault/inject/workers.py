"""Worker processes forked from a warm parent, so that a start costs a fork and no import.

A worker lives no longer than its parent: the kernel kills it when the parent ends, however it ends
(PR_SET_PDEATHSIG). `start` returns the pid only after that is set, since a worker that was stopped
earlier would stay stopped for ever if its parent were killed. A worker ignores Ctrl-C and hang-up,
which a terminal sends to all processes; its parent ends it. Its priority is lower than that of its
parent, which must run at once to kill, wake or replace a worker. If an exception ends a worker, its
traceback is in the `Exit`.

Start workers from the main thread: the kernel ties PR_SET_PDEATHSIG to the thread that forked.
"""

from __future__ import annotations

import dataclasses
import os
import select
import signal
import threading
import traceback
from collections.abc import Callable, Iterable
from typing import Final, NoReturn

from limpet.fault.inject.children import end_with_parent
from limpet.fault.inject.interrupt import SIGNALS

NICE: Final = 5


@dataclasses.dataclass(frozen=True)
class Exit:
    """The end of a worker. `status`: its exit status, or minus the signal that killed it."""

    slot: int
    incarnation: int
    pid: int
    status: int
    traceback: str


@dataclasses.dataclass
class _Worker:
    slot: int
    incarnation: int
    pid: int
    pidfd: int
    words: int


class Workers:
    """The worker processes of one run; as a context manager it ends them all on the way out.

    `target(slot, incarnation)` runs in the worker; its return ends it with status 0. Slots count
    from 0 and are reused by replacements; incarnations count from 1 over all slots.
    """

    def __init__(self, target: Callable[[int, int], None]) -> None:
        self.started = 0
        self._target = target
        self._workers: dict[int, _Worker] = {}

    @property
    def pids(self) -> dict[int, int]:
        """The pid of each slot that has a worker."""
        return {worker.slot: worker.pid for worker in self._workers.values()}

    def slot(self, pid: int) -> int:
        """The slot of the worker with this pid; KeyError if there is none."""
        return self._workers[pid].slot

    def start(self, slot: int) -> int:
        """Fork a worker for `slot`; returns its pid."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("workers are started from the main thread: they end with it")
        if slot in self.pids:
            raise ValueError(f"slot {slot} has a worker")
        self.started += 1
        words = os.memfd_create(f"limpet-worker-{slot}")
        pipe = bound, binding = os.pipe()
        parent = os.getpid()
        held = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            pid = os.fork()
            if pid == 0:
                _run(self._target, slot, self.started, parent, words, pipe, held)
            os.close(binding)
            pidfd = os.pidfd_open(pid)
            self._workers[pid] = _Worker(slot, self.started, pid, pidfd, words)
            os.read(bound, 1)  # ends when the worker has closed its end
        finally:
            os.close(bound)
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
        return pid

    def wait(self, timeout: float | None, also: Iterable[int] = ()) -> list[Exit]:
        """Wait until a worker ends, one of the descriptors `also` can be read, or time is over.

        Returns the workers that have ended and reaps them.
        """
        poll = select.poll()
        for worker in self._workers.values():
            poll.register(worker.pidfd, select.POLLIN)
        for fd in also:
            poll.register(fd, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(None if timeout is None else max(0, timeout * 1000))}
        ended = [worker.pid for worker in self._workers.values() if worker.pidfd in ready]
        return [self.reap(pid) for pid in ended]

    def reap(self, pid: int) -> Exit:
        """Wait for this worker to end; its `Exit`.

        A signal handler may raise in any call: a worker that has yet to be killed or read stays in
        the table until it is not needed any more.
        """
        worker = self._workers[pid]
        ended = os.waitid(os.P_PIDFD, worker.pidfd, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        size = os.fstat(worker.words).st_size
        words = os.pread(worker.words, size, 0).decode(errors="replace")
        del self._workers[pid]
        os.waitpid(pid, 0)
        os.close(worker.pidfd)
        os.close(worker.words)
        return Exit(worker.slot, worker.incarnation, pid, code, words)

    def end(self) -> list[Exit]:
        """Kill and reap every worker that is left."""
        for worker in self._workers.values():
            signal.pidfd_send_signal(worker.pidfd, signal.SIGKILL)
        return [self.reap(pid) for pid in list(self._workers)]

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()


def _run(
    target: Callable[[int, int], None],
    slot: int,
    incarnation: int,
    parent: int,
    words: int,
    pipe: tuple[int, int],
    held: set[int | signal.Signals],
) -> NoReturn:
    status = 1
    try:
        end_with_parent(parent)
        for end in pipe:
            os.close(end)
        os.nice(NICE)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
        target(slot, incarnation)
        status = 0
    except BaseException:
        os.write(words, traceback.format_exc().encode())
    finally:
        os._exit(status)
