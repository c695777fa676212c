"""A worker of `limpet.Executor`: a process that does jobs until it gets an empty one.

It puts the result of a job, and then acknowledges the job. It looks whether its parent lives; when
that does not, it removes the pool, and ends.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final

from limpet.shm.destroying import destroy
from limpet.shm.errors import LimpetError, StoreFull
from limpet.stores.pool import Pool

JOBS: Final = "jobs"
RESULTS: Final = "results"
NUMBER_SIZE: Final = 8
STOP: Final = b""
RESULT: Final = b"r"
ERROR: Final = b"e"
STARTED: Final = b"s"
REFUSED: Final = b"i"
"""The initializer raised."""
TICK_S: Final = 0.02
"""A worker looks so often for memory for a result, and the collector at its workers."""
EMPTY_TICKS: Final = 50
"""A result that finds no memory so often while no other waits to be read is refused."""
LOOK_S: Final = 0.2
"""A worker looks so often whether its parent lives."""


def pickled_error(error: BaseException) -> bytes:
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


class Worker:
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
                self.results.put(bytes(NUMBER_SIZE) + REFUSED + pickled_error(error))
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
            return ERROR, pickled_error(error)

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
                    kind, data = ERROR, pickled_error(error)
            except LimpetError as error:  # it is too large, say
                kind, data = ERROR, pickled_error(error)
            time.sleep(TICK_S)


def work(
    url: str, parent: int, initializer: Callable[..., object] | None, initargs: Any, most: int
) -> None:
    try:
        worker = Worker(url, parent)
    except LimpetError:
        program = multiprocessing.parent_process()
        if program is None or program.is_alive():
            raise
        return  # another worker removes the pool, as the program is dead
    try:
        worker.work(initializer, initargs, most)
    finally:
        worker.leave()
