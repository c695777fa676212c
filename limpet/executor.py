"""`limpet.Executor`: concurrent.futures whose workers may be killed, on a queue with acks.

A job is an element of the queue `jobs` (stores/channels/jobs) of a pool that the executor makes for
itself; its result comes back through the queue `results`. A worker puts the result, and then
acknowledges the job. So the job of a worker that died is delivered to another worker, and a job
that was done twice has its first result. After `retries` further deliveries the job is a dead
letter, and its future has WorkerDied.

    jobs       8 bytes number, then the pickled call; empty: a worker that gets it ends
    results    8 bytes number, 1 byte kind, then the pickled result, or the exception and its text

A thread, the *collector*, sets the futures' results, starts workers in the place of those that
ended, and gives jobs to the queue, twice as many as there are workers: the others wait in this
process, and can be cancelled. Futures are set when the crew's lock is given back: their callbacks
may submit. A signal handler may raise in `submit`: what it cuts off there is done again, or dropped
whole. It ends when the executor was shut down, or is garbage, or the main
thread has ended, and all futures are done; then it ends the workers, and removes the pool.

Each worker looks whether its parent lives. When it does not, the worker removes the pool, and ends.

A kill leaves behind: of a worker, what the queues say. Of the parent and all workers at the same
time: the pool, which `limpet ls` shows.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import pickle
import queue
import secrets
import signal
import sys
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Future
from concurrent.futures import Executor as Base
from functools import partial
from multiprocessing.context import BaseContext
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final

from limpet.shm.destroying import destroy
from limpet.shm.errors import LimpetError, ParameterError, StoreFull, WorkerDied
from limpet.stores.channels.waiting import whole
from limpet.stores.pool import Pool

RETRIES: Final = 3
MEMORY: Final = "256MiB"
JOBS: Final = "jobs"
RESULTS: Final = "results"
BYTES: Final = "bytes"
NUMBER_SIZE: Final = 8
STOP: Final = b""
RESULT: Final = b"r"
ERROR: Final = b"e"
STARTED: Final = b"s"
REFUSED: Final = b"i"
"""The initializer raised."""
TICK_S: Final = 0.02
"""The collector looks so often at its workers, and a worker for memory for a result."""
EMPTY_TICKS: Final = 50
"""A result that finds no memory so often while no other waits to be read is refused."""
LOOK_S: Final = 0.2
"""A worker looks so often whether its parent lives."""
AHEAD: Final = 2
"""Jobs in the queue for each worker."""
STARTS: Final = 10
"""Times the number of workers: so many that end before they have started break the executor."""
TAKEN: Final = 64
"""Results that the collector takes at a time."""


class _RemoteTraceback(Exception):
    """The traceback of a job's exception, in its worker; the cause of the exception here."""

    def __str__(self) -> str:
        return str(self.args[0])


# ---- a worker -----------------------------------------------------------------------------------


def _error(error: BaseException) -> bytes:
    """An exception with its traceback as text, pickled."""
    text = '\n"""\n' + "".join(traceback.format_exception(error)) + '"""'
    try:
        data = pickle.dumps((error, text))
        pickle.loads(data)
    except Exception:
        # An exception that cannot be sent, or not be read again, is told by its text.
        told = RuntimeError(f"{type(error).__name__}: {error}")
        data = pickle.dumps((told, text))
    return data


class _Worker:
    """One worker process."""

    def __init__(self, url: str, parent: int) -> None:
        self.url = url
        self.parent = parent
        self.pid = os.getpid()
        self.running = False
        signal.signal(signal.SIGINT, self._interrupt)
        self.pool = Pool.open(url)
        self.jobs = self.pool.queue(JOBS, acks=True)
        self.results = self.pool.queue(RESULTS)
        self.ended = threading.Event()
        self.watcher = threading.Thread(target=self._watch, daemon=True, name="limpet-parent")
        self.watcher.start()

    def _interrupt(self, number: int, frame: object) -> None:
        """Ctrl-C ends the job that runs, and not the worker."""
        if self.running:
            raise KeyboardInterrupt

    def _watch(self) -> None:
        """End this process when its parent is dead."""
        while not self.ended.wait(LOOK_S):
            if not self.pool.membership.lives(self.parent):
                with contextlib.suppress(LimpetError):
                    destroy(self.url)
                os._exit(1)

    def leave(self) -> None:
        """Leave the pool."""
        self.ended.set()
        self.watcher.join()
        self.pool.close()

    def work(self, initializer: Callable[..., object] | None, initargs: Any, most: int) -> None:
        """Do jobs until there is an empty one, or, if `most` is not 0, so many."""
        if initializer is not None:
            try:
                initializer(*initargs)
            except BaseException as error:
                self.results.put(bytes(NUMBER_SIZE) + REFUSED + _error(error))
                return
        self.results.put(bytes(NUMBER_SIZE) + STARTED)
        done = 0
        while not most or done < most:
            with self.jobs.get() as delivery:
                call = delivery.value
                if call == STOP:
                    return
                self._send(call[:NUMBER_SIZE], *self._run(call[NUMBER_SIZE:]))
            done += 1

    def _run(self, call: bytes) -> tuple[bytes, bytes]:
        """The kind and the pickled result of a call."""
        try:
            self.running = True
            try:
                function, args, kwargs = pickle.loads(call)
                found = function(*args, **kwargs)
            finally:
                self.running = False
                if os.getpid() != self.pid:  # the call forked, and this is its child
                    if sys.exc_info()[1] is not None:
                        traceback.print_exc()
                    os._exit(1)
            return RESULT, bytes(ForkingPickler.dumps(found))
        except BaseException as error:
            return ERROR, _error(error)

    def _send(self, number: bytes, kind: bytes, data: bytes) -> None:
        ticks = 0
        while True:
            try:
                self.results.put(number + kind + data)
                return
            except StoreFull as error:
                # Results that the collector reads give their memory back.
                ticks = 0 if self.results.qsize() else ticks + 1
                if ticks == EMPTY_TICKS:
                    kind, data = ERROR, _error(error)
            except LimpetError as error:  # it is too large, say
                kind, data = ERROR, _error(error)
            time.sleep(TICK_S)


def _work(
    url: str, parent: int, initializer: Callable[..., object] | None, initargs: Any, most: int
) -> None:
    try:
        worker = _Worker(url, parent)
    except LimpetError:
        program = multiprocessing.parent_process()
        if program is None or program.is_alive():
            raise
        return  # another worker removes the pool, as the program is dead
    try:
        worker.work(initializer, initargs, most)
    finally:
        worker.leave()


# ---- the parent ---------------------------------------------------------------------------------


class _Call:
    """A call that is not done: its future, and what a worker needs."""

    def __init__(self, future: Future[Any], data: bytes) -> None:
        self.future = future
        self.data = data
        self.begun = False


class _Crew:
    """The pool, the workers and the collector of an executor, which they outlive."""

    def __init__(self, workers: int, context: BaseContext, retries: int, memory: Any, work: Any):
        self.workers = workers
        self.context: Any = context
        self.retries = retries
        self.arguments = work
        self.url = f"shm://executor-{os.getpid()}-{secrets.token_hex(4)}"
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
        self.outcomes: deque[Callable[[], object]] = deque()
        """Told to futures once the lock is given back: their callbacks may submit."""
        self.broken: BaseException | None = None
        self.stopping = False
        places = AHEAD * workers + workers
        self.pool = Pool.create(self.url, nodes=1, node_size=memory, clients=4 * workers + 4)
        made = False
        try:
            self.jobs = self.pool.queue(
                JOBS, places, codec=BYTES, acks=True, max_deliveries=retries + 1
            )
            self.results = self.pool.queue(RESULTS, 2 * places, codec=BYTES)
            made = True
        finally:
            if not made:
                self.remove()
        self.collector = threading.Thread(target=self._collect, name="limpet-executor")
        self.collector.start()

    def remove(self) -> None:
        """Remove the pool."""
        self.pool.close()
        with contextlib.suppress(LimpetError):
            destroy(self.url)

    def submit(self, call: tuple[Any, ...]) -> Future[Any]:
        """A call's future. With the lock."""
        if self.broken is not None:
            raise BrokenExecutor(f"the executor is broken: {self.broken}") from self.broken
        future: Future[Any] = Future()
        number = next(self.numbers)
        try:
            data = number.to_bytes(NUMBER_SIZE, "little") + bytes(ForkingPickler.dumps(call))
        except Exception as error:
            future.set_exception(error)
            return future
        # ORDER: `_feed` passes over a number without a call; a call without one would never end.
        self.waiting.append(number)
        self.calls[number] = _Call(future, data)
        self._feed()
        self._man()
        return future

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

    def _feed(self) -> None:
        """Put calls into the queue. With the lock."""
        while self.waiting and self.queued < AHEAD * self.workers:
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
        """Start workers, as many as there is work for. With the lock."""
        while len(self.processes) < min(self.workers, len(self.calls)):
            process = self.context.Process(
                target=_work, args=(self.url, self.pool.membership.ident, *self.arguments)
            )
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
        number = int.from_bytes(data[:NUMBER_SIZE], "little")
        kind, payload = data[NUMBER_SIZE : NUMBER_SIZE + 1], data[NUMBER_SIZE + 1 :]
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
        try:
            found = self._loaded(payload) if kind == ERROR else pickle.loads(payload)
        except BaseException as error:  # its class cannot be imported here, say
            kind, found = ERROR, error
        tell = call.future.set_exception if kind == ERROR else call.future.set_result
        self.outcomes.append(partial(tell, found))

    def _reap(self) -> None:
        """Look for workers that have ended, and for jobs that were delivered too often."""
        ended = [process for process in self.processes if process.exitcode is not None]
        for process in ended:
            process.join()
            self.processes.remove(process)
            self.unstarted += process.exitcode != 0
        if not ended:
            return
        self.jobs.give_back()
        with contextlib.suppress(queue.Empty):
            while True:
                letter = self.jobs.dead_letters.get_nowait()
                number = int.from_bytes(letter.value[:NUMBER_SIZE], "little")
                letter.ack()
                if (call := self.calls.pop(number, None)) is not None:
                    self.queued -= 1
                    error = WorkerDied(
                        f"each of the {letter.deliveries} workers that had this call died in it; "
                        f"retries={self.retries}"
                    )
                    self.outcomes.append(partial(call.future.set_exception, error))
        if self.unstarted >= STARTS * self.workers:
            self._break(
                RuntimeError(
                    f"{self.unstarted} workers ended before they had started, the last one with "
                    f"exit code {ended[-1].exitcode}; a program that starts workers by spawn or "
                    "forkserver does so under `if __name__ == '__main__':`"
                )
            )

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


def _chunk(function: Callable[..., Any], calls: list[tuple[Any, ...]]) -> list[Any]:
    return [function(*call) for call in calls]


class Executor(Base):
    """`concurrent.futures.ProcessPoolExecutor` whose workers may be killed at any time.

    The call of a worker that dies is run again by another one, so it may run more than once; after
    `retries` more workers have died in it, its future has WorkerDied. New workers start in the
    place of those that end. An exception of a call is its future's, and no reason to run it again.

    Workers are started at any time, beside the program's threads. So the default is `forkserver`:
    functions are found by import, and the program starts under `if __name__ == "__main__":`. With a
    context of `fork`, a worker may find a lock that another thread held locked for ever.

    `memory`: bytes for the calls and results that are on their way; pages are taken when they are
    needed. An initializer that raises breaks the executor (BrokenExecutor). At an exception that is
    no Exception, as by Ctrl-C, the end of a `with` cancels the calls that no worker has.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        mp_context: BaseContext | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        *,
        max_tasks_per_child: int | None = None,
        retries: int = RETRIES,
        memory: int | str = MEMORY,
    ) -> None:
        workers = os.cpu_count() or 1 if max_workers is None else max_workers
        self._workers = whole("`max_workers`", workers, 1, 1000)
        if max_tasks_per_child is not None:
            whole("`max_tasks_per_child`", max_tasks_per_child, 1, 1 << 40)
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        retries = whole("`retries`", retries, 0, 1000)
        if not isinstance(mp_context, BaseContext | None):
            raise TypeError("mp_context is a context, as of multiprocessing.get_context('spawn')")
        # Workers are started while threads of the program run: no fork of those.
        context = multiprocessing.get_context("forkserver") if mp_context is None else mp_context
        work = (initializer, initargs, max_tasks_per_child or 0)
        self._make = partial(_Crew, self._workers, context, retries, memory, work)
        self._crew: _Crew | None = None
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """A future of `fn(*args, **kwargs)`, which a worker calls. Raises RuntimeError after
        `shutdown`, and BrokenExecutor."""
        # ORDER: before the lock, which a thread of the parent may have held at the fork.
        if self._crew is not None and self._crew.pid != os.getpid():
            raise RuntimeError("this executor belongs to the process that made it")
        with self._lock:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            if self._crew is None:
                self._crew = self._make()
                weakref.finalize(self, self._crew.stop)
            crew = self._crew
        with crew.lock:
            if crew.stopping:
                raise RuntimeError("cannot schedule new futures after interpreter shutdown")
            future = crew.submit((fn, args, kwargs))
        crew.tell()
        return future

    def map(
        self,
        fn: Callable[..., Any],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[Any]:
        """As ProcessPoolExecutor.map: the results in order; `chunksize` calls are one job."""
        if chunksize < 1:
            raise ParameterError("chunksize must be >= 1")
        calls = zip(*iterables, strict=False)
        chunks = iter(lambda: list(itertools.islice(calls, chunksize)), [])
        parts = super().map(partial(_chunk, fn), chunks, timeout=timeout)
        return itertools.chain.from_iterable(parts)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls. `wait`: until all are done, the workers have ended, and the pool is
        removed; else that is done meanwhile. `cancel_futures`: cancel the calls that no worker
        has."""
        crew = self._crew
        if crew is not None and crew.pid != os.getpid():
            return
        with self._lock:
            self._closed = True
            crew = self._crew
        if crew is None:
            return
        with crew.lock:
            if cancel_futures:
                crew.cancel()
            crew.stop()
        crew.tell()
        if wait:
            crew.collector.join()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.shutdown(cancel_futures=error is not None and not isinstance(error, Exception))
