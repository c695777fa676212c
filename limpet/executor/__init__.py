"""`limpet.Executor`: concurrent.futures whose workers may be killed, on a queue with acks.

A job is an element of a queue with acks (stores/channels/jobs) of a pool that the executor makes
for itself; its result comes back through a queue of results. A worker (worker.py) puts the result,
and then acknowledges the job. So the job of a worker that died is delivered to another worker, and
a job that was done twice has its first result. After `retries` further deliveries the job is a dead
letter, and its future has WorkerDied. crew.py has the parent's part.

A *named* executor is the same in a pool that is there before: programs that give the same name use
one queue of jobs, and each has a queue of results, with its client id in the name (replies.py). A
job says which program submitted it, so any worker knows where the result goes. Client ids are not
used again; so it is certain for which results no program waits any more, and they are dropped.

    executor-jobs[-NAME]      8 bytes number, 8 bytes client id of the program that submitted the
                              call, 8 bytes that stand for its `__main__`, then the pickled call;
                              empty: a worker that gets it ends (not of a named executor)
    executor-results-IDENT    8 bytes number, 1 byte kind, then the pickled result, or the exception
                              and its text, or how often the job was delivered

The state of a call, and what a kill leaves behind in it
    waiting     in its program only. The call ends with it
    ready       in the queue. A worker of any program runs it; its result is dropped if the program
                that submitted it is dead
    held        by a worker. It is ready again when the worker is dead, or its program (then the
                worker ends within LOOK_S); after `retries` of that it is a dead letter
    answered    and still held: the result is in its queue. The job is run again, and the second
                result dropped, as there is no call of that number any more
    done        the job is out of the queue. The result lies there until its program takes it, or is
                found dead
    dead letter any program takes it, tells the one that submitted the call, and acknowledges it;
                the next one does so again if it is killed in between

A kill leaves behind: of a worker, what the queues say. Of the parent and all workers at the same
time: the pool, which is ephemeral, so `limpet ls` or `limpet prune` removes it; of a named
executor, the queue of results, until another program opens or closes an executor in the pool, or
has a result for it. The queue of jobs stays, as all that is named does.

Known limits: a stopped worker holds its job until it goes on or is killed. A process that is
stopped while it has the lock of the queue of jobs is killed after a lease, as with every queue with
acks (stores/channels/jobs/table.py).
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Future
from concurrent.futures import Executor as Base
from functools import partial
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, Final

from limpet.executor.crew import Crew
from limpet.executor.worker import LOOK_S
from limpet.shm.errors import ParameterError
from limpet.shm.times import Seconds, seconds_of
from limpet.stores.channels.waiting import whole
from limpet.stores.pool import Pool

if TYPE_CHECKING:
    from rich.console import Console

    from limpet.executor.progress import ExecutorProgress

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

    `memory`: bytes for the calls and results that are on their way, by default 256 MiB; pages are
    taken when they are needed. An initializer that raises breaks the executor (BrokenExecutor). At
    an exception that is no Exception, as by Ctrl-C, the end of a `with` cancels the calls that no
    worker has.

    `pool`, `name`: programs that open an executor of this name in this pool share it. Workers of
    each run calls of all; futures are set in the program that submitted. All workers start at once;
    with `max_workers=0` a program only submits. A program that ends, also by SIGKILL, takes its
    own workers and futures with it, and calls that wait in it. Calls that its workers run are
    given back, and its own calls that are in the queue run without a result. `retries` is the same
    for all (StoreMismatch); the other parameters are each program's. Functions, and classes of
    arguments, are found by import in other programs: one that is not there, or is of a `__main__`
    that the worker's program does not have, makes the call fail with an ImportError that names it.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        mp_context: BaseContext | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        *,
        max_tasks_per_child: int | None = None,
        retries: int | None = None,
        memory: int | str | None = None,
        pool: Pool | str | None = None,
        name: str = "",
    ) -> None:
        """`retries`: 3, or, of a named executor that is there, its own. Raises, with a `name`, what
        opening the pool and a queue does."""
        if (pool is None) == bool(name):
            raise ParameterError("a named executor takes a `pool` and a `name`, others neither")
        if name and memory is not None:
            raise ParameterError("`memory` is that of the executor's own pool; this one is named")
        workers = os.cpu_count() or 1 if max_workers is None else max_workers
        if isinstance(workers, int) and workers < (0 if name else 1):
            raise ParameterError("max_workers must be greater than 0; with a `name`, not below 0")
        self._workers = whole("`max_workers`", workers, 0, 1000)
        if max_tasks_per_child is not None:
            whole("`max_tasks_per_child`", max_tasks_per_child, 1, 1 << 40)
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        if retries is not None:
            retries = whole("`retries`", retries, 0, 1000)
        if not isinstance(mp_context, BaseContext | None):
            raise TypeError("mp_context is a context, as of multiprocessing.get_context('spawn')")
        # Workers are started while threads of the program run: no fork of those.
        context = multiprocessing.get_context("forkserver") if mp_context is None else mp_context
        work = (initializer, initargs, max_tasks_per_child or 0)
        url = pool.url if isinstance(pool, Pool) else pool or ""
        self._make = partial(
            Crew, self._workers, context, retries, memory or MEMORY, work, url, name
        )
        self._crew: Crew | None = None
        self._lock = threading.Lock()
        self._closed = False
        if name:
            self._begin()

    def _begin(self) -> Crew:
        """Make the crew, which starts workers and the collector."""
        self._crew = crew = self._make()
        weakref.finalize(self, crew.stop)
        return crew

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """A future of `fn(*args, **kwargs)`, which a worker calls. Raises RuntimeError after
        `shutdown`, and BrokenExecutor."""
        # ORDER: before the lock, which a thread of the parent may have held at the fork.
        if self._crew is not None and self._crew.pid != os.getpid():
            raise RuntimeError("this executor belongs to the process that made it")
        with self._lock:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            crew = self._crew or self._begin()
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
        timeout: Seconds | None = None,
        chunksize: int = 1,
    ) -> Iterator[Any]:
        """As ProcessPoolExecutor.map: the results in order; `chunksize` calls are one job."""
        if chunksize < 1:
            raise ParameterError("chunksize must be >= 1")
        calls = zip(*iterables, strict=False)
        chunks = iter(lambda: list(itertools.islice(calls, chunksize)), [])
        seconds = None if timeout is None else seconds_of("timeout", timeout)
        parts = super().map(partial(_chunk, fn), chunks, timeout=seconds)
        return _each(parts)

    def serve(self) -> None:
        """Wait while the workers of a named executor run calls, until another thread shuts it down.
        Raises BrokenExecutor."""
        crew = self._crew
        while crew is not None and crew.broken is None and crew.collector.is_alive():
            crew.collector.join(LOOK_S)
        if crew is not None and crew.broken is not None:
            raise BrokenExecutor(f"the executor is broken: {crew.broken}") from crew.broken

    def counts(self) -> dict[str, int]:
        """How many `calls` this program has submitted; are `done`, also by an error or cancelled;
        are `queued` for workers, or run; how many `workers` it has, and how many `died`."""
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
        has. Of a named executor, this is about the calls and workers of this program; a worker ends
        after the call that it runs, whose ever that is, and the pool stays."""
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
