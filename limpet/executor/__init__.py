"""`limpet.Executor`: concurrent.futures whose workers may be killed, on a queue with acks.

A job is an element of the queue `jobs` (stores/channels/jobs) of a pool that the executor makes for
itself; its result comes back through the queue `results`. A worker (worker.py) puts the result, and
then acknowledges the job. So the job of a worker that died is delivered to another worker, and a
job that was done twice has its first result. After `retries` further deliveries the job is a dead
letter, and its future has WorkerDied. crew.py has what happens in the parent.

    jobs       8 bytes number, then the pickled call; empty: a worker that gets it ends
    results    8 bytes number, 1 byte kind, then the pickled result, or the exception and its text

A kill leaves behind: of a worker, what the queues say. Of the parent and all workers at the same
time: the pool, which `limpet ls` shows.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor as Base
from concurrent.futures import Future
from functools import partial
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, Final

from limpet.executor.crew import Crew
from limpet.shm.errors import ParameterError
from limpet.stores.channels.waiting import whole

if TYPE_CHECKING:
    from rich.console import Console

    from limpet.executor.progress import ExecutorProgress

RETRIES: Final = 3
MEMORY: Final = "256MiB"


def _each(parts: Iterator[list[Any]]) -> Iterator[Any]:
    """The results in lists, one after the other, without a reference to those before."""
    for part in parts:
        part.reverse()
        while part:
            yield part.pop()


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
        if isinstance(workers, int) and workers < 1:
            raise ParameterError("max_workers must be greater than 0")
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
        self._make = partial(Crew, self._workers, context, retries, memory, work)
        self._crew: Crew | None = None
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
        return _each(parts)

    def counts(self) -> dict[str, int]:
        """How many `calls` were submitted; are `done`, also by an error or cancelled; are `queued`
        for workers, or run; how many `workers` there are, and how many `died`."""
        crew = self._crew
        if crew is None:
            return dict.fromkeys(("calls", "done", "queued", "workers", "died"), 0)
        return crew.counts()

    def progress(self, console: Console | None = None) -> ExecutorProgress:
        """A context manager that shows a bar of the calls meanwhile, on the terminal or the
        `console` (of rich)."""
        from limpet.executor.progress import ExecutorProgress

        return ExecutorProgress(self.counts, console)

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
