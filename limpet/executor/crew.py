"""The crew of `limpet.Executor`: the pool, the workers and the collector, which outlive it.

The *collector*, a thread, sets the futures' results, starts workers in the place of those that
ended, and gives jobs to the queue, twice as many as there are workers: the others wait in this
process, and can be cancelled. Futures are set when the crew's lock is given back: their callbacks
may submit. A signal handler may raise in `submit`: what it cuts off there is done again, or dropped
whole. The collector ends when the executor was shut down, or is garbage, or the main thread has
ended, and all futures are done; then it ends the workers, and removes the pool.

Of a named executor, it closes its handle of the pool instead. How many workers all programs have,
no program knows; but it sees how many jobs are held, one by each worker that is busy. So a program
may have twice as many jobs in the queue, and, while few are held, as many as its own workers need:
where all of its jobs are held, it puts more. Any collector takes dead letters, of calls of all
programs, and tells the program that submitted the call.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import queue
import secrets
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future
from functools import partial
from multiprocessing.context import BaseContext
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final

from limpet.executor.replies import BYTES, Replies
from limpet.executor.worker import (
    DIED,
    ERROR,
    HEADER,
    NUMBER,
    REFUSED,
    RESULT,
    STARTED,
    STOP,
    TICK_S,
    Place,
    jobs_of,
    main_token,
    work,
)
from limpet.shm.destroying import destroy
from limpet.shm.errors import ClientError, LimpetError, StoreFull, StoreMismatch, WorkerDied
from limpet.stores.channels.jobs.job_queue import JobQueue
from limpet.stores.pool import Pool

RETRIES: Final = 3
AHEAD: Final = 2
"""Jobs in the queue for each worker."""
FEW: Final = 4
AHEAD_MAX: Final = 256
"""A program has at least, and at most, so many jobs in the queue of a named executor."""
PLACES: Final = 1024
"""Of that queue."""
ITEM_SIZE: Final = 192
"""Bytes of a call, with its header, that lies in the queue; longer ones are objects."""
STARTS: Final = 10
"""Times the number of workers: so many that end before they have started break the executor."""
TAKEN: Final = 64
"""Results that the collector takes at a time."""


class _RemoteTraceback(Exception):
    """The traceback of a job's exception, in its worker; the cause of the exception here."""

    def __str__(self) -> str:
        return str(self.args[0])


class _Call:
    """A call that is not done: its future, and what a worker needs."""

    def __init__(self, future: Future[Any], data: bytes) -> None:
        self.future = future
        self.data = data
        self.begun = False


class Crew:
    """The pool, the workers and the collector of an executor, which they outlive."""

    def __init__(
        self,
        workers: int,
        context: BaseContext,
        retries: int | None,
        memory: Any,
        work: Any,
        url: str,
        name: str,
    ):
        """`url`: of the pool of an executor that has a `name`; one without makes its own pool."""
        self.workers = workers
        self.context: Any = context
        self.arguments = work
        self.name = name
        self.pid = os.getpid()
        self.lock = threading.RLock()
        self.numbers = itertools.count(1)
        self.waiting: deque[int] = deque()
        self.calls: dict[int, _Call] = {}
        """By number: those that wait here, and those in the queue."""
        self.queued = 0
        self.processes: list[Any] = []
        self.unstarted = 0
        """Workers that ended since the last one has started."""
        self.submitted = self.died = 0
        self.outcomes: deque[Callable[[], object]] = deque()
        """Told to futures once the lock is given back: their callbacks may submit."""
        self.broken: BaseException | None = None
        self.stopping = False
        places = AHEAD * workers + workers
        if name:
            self.pool = Pool.open(url)
        else:
            own = f"shm://executor-{os.getpid()}-{secrets.token_hex(4)}"
            self.pool = Pool.create(
                own, nodes=1, node_size=memory, clients=4 * workers + 4, ephemeral=True
            )
        self.url = self.pool.url
        self.ident = self.pool.membership.ident
        self.main = main_token()
        self.replies = Replies(self.pool, self.ident)
        self.stop_pipe: tuple[Any, ...] = self.context.Pipe(duplex=False) if name else ()
        made = False
        try:
            self.jobs = self._open_jobs(retries, PLACES if name else places)
            self.retries = self.jobs.parameters["max_deliveries"] - 1
            self.results = self.replies.make(2 * (AHEAD_MAX if name else places))
            if name:
                self.replies.sweep()
            made = True
        finally:
            if not made:
                self.remove()
        self.collector = threading.Thread(target=self._collect, name="limpet-executor")
        self.collector.start()
        if name:
            with self.lock:
                self._man()

    def _open_jobs(self, retries: int | None, places: int) -> JobQueue:
        """The queue of calls. StoreMismatch: other programs use it with other `retries`."""
        name = jobs_of(self.name)
        given = {"max_deliveries": None if retries is None else retries + 1}
        usual = {
            "maxsize": places, "item_size": ITEM_SIZE, "codec": BYTES,
            "max_deliveries": RETRIES + 1, "visibility_timeout": 0.0,
        }  # fmt: skip
        try:
            jobs: JobQueue = self.pool.channels.attach(JobQueue, name, given, usual)
        except StoreMismatch as error:
            there = self.pool.channels.parameters_of(JobQueue, name).get("max_deliveries")
            if retries is None or there in (None, retries + 1):
                raise
            raise StoreMismatch(
                f"{self.url}: the executor {self.name!r} has retries={there - 1}, not {retries}; "
                "all its programs give the same, or none"
            ) from error
        return jobs

    def remove(self) -> None:
        """Remove the pool; or leave that of others, without what is left of dead programs."""
        if self.name:
            with contextlib.suppress(LimpetError):
                self.replies.remove(self.ident)
                self.replies.sweep()
            for end in self.stop_pipe:
                end.close()
        self.pool.close()
        if not self.name:
            with contextlib.suppress(LimpetError):
                destroy(self.url)

    def submit(self, call: tuple[Any, ...]) -> Future[Any]:
        """A call's future. With the lock."""
        if self.broken is not None:
            raise BrokenExecutor(f"the executor is broken: {self.broken}") from self.broken
        future: Future[Any] = Future()
        number = next(self.numbers)
        try:
            header = HEADER.pack(number, self.ident, self.main)
            data = header + bytes(ForkingPickler.dumps(call))
        except Exception as error:
            future.set_exception(error)
            return future
        # ORDER: `_feed` passes over a number without a call; a call without one would never end.
        self.waiting.append(number)
        self.calls[number] = _Call(future, data)
        self.submitted += 1
        self._feed()
        self._man()
        return future

    def counts(self) -> dict[str, int]:
        """As `Executor.counts`."""
        with self.lock:
            done = self.submitted - len(self.calls)
            return {
                "calls": self.submitted, "done": done, "queued": self.queued,
                "workers": len(self.processes), "died": self.died,
            }  # fmt: skip

    def cancel(self) -> None:
        """Cancel the calls that wait here. With the lock."""
        for number in self.waiting:
            call = self.calls.get(number)
            if call is not None and not call.begun:
                del self.calls[number]
                self.outcomes.append(partial(self._cancel, call.future))
        self.waiting = deque(number for number in self.waiting if number in self.calls)

    @staticmethod
    def _cancel(future: Future[Any]) -> None:
        future.cancel()
        future.set_running_or_notify_cancel()

    def tell(self) -> None:
        """Tell the futures their outcomes. Without the lock."""
        while True:
            try:
                outcome = self.outcomes.popleft()
            except IndexError:
                return
            outcome()

    def _ahead(self) -> int:
        """How many jobs this program may have in the queue."""
        if not self.name:
            return AHEAD * self.workers
        held = self.jobs.counts()["held"]
        return min(AHEAD_MAX, max(FEW, AHEAD * max(self.workers, held)))

    def _feed(self) -> None:
        """Put calls into the queue. With the lock."""
        ahead = self._ahead() if self.waiting else 0
        while self.waiting and self.queued < ahead:
            # ORDER: taken away when it is in the queue: one that is there twice has one result.
            number = self.waiting[0]
            call = self.calls.get(number)
            if call is None:
                pass
            elif not call.begun and not call.future.set_running_or_notify_cancel():
                del self.calls[number]
            else:
                call.begun = True
                try:
                    self.jobs.put(call.data, False)
                except queue.Full:
                    return  # workers died after the results of jobs that are still there
                except LimpetError as error:
                    if isinstance(error, StoreFull) and self.queued:
                        return  # the calls before it give their memory back
                    del self.calls[number]
                    self.outcomes.append(partial(call.future.set_exception, error))
                else:
                    self.waiting.popleft()
                    self.queued += 1
                    call.data = b""
                    continue
            self.waiting.popleft()

    def _man(self) -> None:
        """Start workers, as many as there is work for; all, where other programs may have some.
        With the lock."""
        wanted = self.workers if self.name else min(self.workers, len(self.calls))
        while len(self.processes) < wanted:
            stop = self.stop_pipe[0] if self.name else None
            place = Place(self.url, self.name, self.ident, self.main, stop)
            process = self.context.Process(target=work, args=(place, *self.arguments))
            try:
                process.start()
            except (
                OSError
            ) as error:  # there is no memory for one now, say: the collector comes back
                self.unstarted += not self.processes
                if self.unstarted >= STARTS * self.workers:
                    self._break(error)
                return
            self.processes.append(process)

    def _collect(self) -> None:
        """The collector."""
        try:
            while True:
                found: list[bytes] = []
                with contextlib.suppress(queue.Empty):
                    found = self.results.get_many(TAKEN, timeout=TICK_S)
                with self.lock:
                    if self.pool.membership.ident != self.ident:
                        raise ClientError("this program was declared dead, and its results dropped")
                    for data in found:
                        self._note(data)
                        self.results.task_done()
                    self._reap()
                    self._feed()
                    stopping = self.stopping or not threading.main_thread().is_alive()
                    if stopping and not self.calls:
                        self.stopping = True
                        break
                    if self.broken is None:
                        self._man()
                self.tell()
        except BaseException as error:
            with self.lock:
                self._break(error)
        finally:
            self.tell()
            self._dismiss()

    def _note(self, data: bytes) -> None:
        """A worker has sent this."""
        (number,) = NUMBER.unpack_from(data)
        kind, payload = data[NUMBER.size : NUMBER.size + 1], data[NUMBER.size + 1 :]
        if kind == STARTED:
            self.unstarted = 0
        elif kind == REFUSED:
            self._break(self._loaded(payload))
        else:
            self._end(number, kind, payload)

    @staticmethod
    def _loaded(payload: bytes) -> BaseException:
        """The exception that a worker has sent."""
        error: BaseException
        error, text = pickle.loads(payload)
        error.__cause__ = _RemoteTraceback(text)
        return error

    def _end(self, number: int, kind: bytes, payload: bytes) -> None:
        """A call has a result, or an error; unless it had one before."""
        call = self.calls.pop(number, None)
        if call is None:
            return
        self.queued -= 1
        tell: Callable[[Any], None] = call.future.set_result
        found: Any
        try:
            if kind == DIED:
                found = WorkerDied(
                    f"each of the {int(payload)} workers that had this call died in it; "
                    f"retries={self.retries}"
                )
            else:
                found = self._loaded(payload) if kind == ERROR else pickle.loads(payload)
            if kind != RESULT:
                tell = call.future.set_exception
        except BaseException as error:  # its class cannot be imported here, say
            found, tell = error, call.future.set_exception
        self.outcomes.append(partial(tell, found))

    def _reap(self) -> None:
        """Look for workers that have ended, and for jobs that were delivered too often."""
        ended = [process for process in self.processes if process.exitcode is not None]
        for process in ended:
            process.join()
            self.processes.remove(process)
            self.unstarted += process.exitcode != 0
            self.died += process.exitcode != 0
        if ended:
            self.jobs.give_back()
        if ended or (self.name and self.jobs.counts()["dead"]):
            self._bury()
        if ended and self.unstarted >= STARTS * self.workers:
            self._break(
                RuntimeError(
                    f"{self.unstarted} workers ended before they had started, the last one with "
                    f"exit code {ended[-1].exitcode}; a program that starts workers by spawn or "
                    "forkserver does so under `if __name__ == '__main__':`"
                )
            )

    def _bury(self) -> None:
        """Tell programs which of their calls were delivered too often. With the lock."""
        letters: list[Any] = []
        with contextlib.suppress(queue.Empty):
            letters = self.jobs.deliver(TAKEN, True, 0.0)
        for letter in letters:
            number, ident, _ = HEADER.unpack_from(letter.value)
            text = str(letter.deliveries).encode()
            if ident == self.ident:
                self._end(number, DIED, text)
                letter.ack()
                continue
            # Without room for it, the letter is given back.
            with contextlib.suppress(queue.Full), letter:
                self.replies.put(ident, NUMBER.pack(number) + DIED + text)

    def _break(self, error: BaseException) -> None:
        """Fail all calls: no worker can be had."""
        self.broken = self.broken or error
        for call in self.calls.values():
            if call.begun or call.future.set_running_or_notify_cancel():
                broken = BrokenExecutor(f"the executor is broken: {error}")
                broken.__cause__ = error
                self.outcomes.append(partial(call.future.set_exception, broken))
        self.calls.clear()
        self.waiting.clear()
        self.queued = 0

    def _dismiss(self) -> None:
        """End the workers, and remove the pool."""
        try:
            if self.name:
                # ORDER: before the wait for workers, which may run long calls of other programs:
                # no other worker waits meanwhile for room for results that no program reads.
                with contextlib.suppress(LimpetError):
                    self.replies.remove(self.ident)
                self.stop_pipe[1].send_bytes(b"end")
            else:
                with contextlib.suppress(queue.Full):
                    self.jobs.put_many([STOP] * len(self.processes), False)
            for process in self.processes:
                while process.exitcode is None:
                    process.join(TICK_S)
                    if self.broken is not None and process.exitcode is None:
                        process.terminate()
        finally:
            self.remove()

    def stop(self) -> None:
        """Have the collector end when all calls are done."""
        self.stopping = True
