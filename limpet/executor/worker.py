"""A worker of `limpet.Executor`: a process that does jobs until its program ends it.

It puts the result of a job into the queue of the program that has submitted the call (replies.py),
and then acknowledges the job. It looks whether its own program lives; when that does not, it ends,
and the job that it runs is given back.

A worker of an unnamed executor ends when it gets an empty job; with its program, the pool ends,
too. Of a named executor, an empty job might be got by a worker of another program. So its program
writes a byte into a pipe, which no worker reads: each looks between two jobs, and every IDLE_S
while there is none, whether it is there.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import multiprocessing
import os
import pickle
import queue
import secrets
import select
import signal
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, Final, NamedTuple

from limpet.executor.replies import Replies
from limpet.shm.destroying import destroy
from limpet.shm.errors import LimpetError, StoreFull
from limpet.stores.pool import Pool

JOBS: Final = "executor-jobs"
HEADER: Final = struct.Struct("<QQ8s")
NUMBER: Final = struct.Struct("<Q")
STOP: Final = b""
RESULT: Final = b"r"
ERROR: Final = b"e"
DIED: Final = b"d"
STARTED: Final = b"s"
REFUSED: Final = b"i"
"""The initializer raised."""
TICK_S: Final = 0.02
"""A worker looks so often for memory for a result, and the collector at its workers."""
EMPTY_TICKS: Final = 50
"""A result that finds no memory so often while no other waits to be read is refused."""
OTHERS_TICKS: Final = 500
"""The same for a program that may have stopped, and so reads no results."""
IDLE_S: Final = 0.05
"""A worker of a named executor looks so often whether it has to end."""
LOOK_S: Final = 0.2
"""A worker looks so often whether its parent lives."""
MAINS: Final = ("__main__", "__mp_main__")
TOKEN_SIZE: Final = 8


class Place(NamedTuple):
    """Where a worker works."""

    url: str
    name: str
    """Of the executor, or ""."""
    parent: int
    """The client id of its program."""
    main: bytes
    """`main_token` of its program."""
    stop: Any
    """The end of the pipe from which it reads whether it has to end; None: by an empty job."""


class _GivenBack(BaseException):
    """Ctrl-C in a call of another program."""


def jobs_of(name: str) -> str:
    """The name of the queue of an executor's calls."""
    return f"{JOBS}-{name}" if name else JOBS


def main_token() -> bytes:
    """Bytes that stand for the `__main__` of this program: the same for programs of one file."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    if path is None:
        return secrets.token_bytes(TOKEN_SIZE)
    return hashlib.blake2b(os.fsencode(Path(path).resolve()), digest_size=TOKEN_SIZE).digest()


def pickled_error(error: BaseException) -> bytes:
    """An exception with its traceback as text, pickled."""
    text = '\n"""\n' + "".join(traceback.format_exception(error)) + '"""'
    try:
        data = pickle.dumps((error, text))
        pickle.loads(data)
    except BaseException:
        # An exception that cannot be sent, or not be read again, is told by its text.
        told = RuntimeError("".join(traceback.format_exception_only(error)).strip())
        data = pickle.dumps((told, text))
    return data


class _OthersCall(pickle.Unpickler):
    """Unpickles a call of another program. Raises ImportError, which names what is not here."""

    def __init__(self, data: bytes, has_main: bool) -> None:
        """`has_main`: this program's `__main__` is that of the other, too."""
        super().__init__(io.BytesIO(data))
        self.has_main = has_main

    def find_class(self, module: str, name: str) -> Any:
        if module in MAINS and not self.has_main:
            raise ImportError(
                f"{name!r} is of the module {module!r} of the program that submitted the call, and "
                f"this worker, process {os.getpid()}, is another program's: move it into a module "
                "that all programs of the executor can import"
            )
        try:
            return super().find_class(module, name)
        except Exception as error:
            raise ImportError(
                f"{name!r} of the module {module!r} cannot be imported by this worker, process "
                f"{os.getpid()} of another program than the one that submitted the call: "
                f"{type(error).__name__}: {error}"
            ) from error


class Worker:
    """One worker process."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.pid = os.getpid()
        self.running = False
        self.own = True
        """The call that runs is of our own program."""
        signal.signal(signal.SIGINT, self._interrupt)
        self.pool = Pool.open(place.url)
        self.jobs = self.pool.queue(jobs_of(place.name), acks=True)
        self.replies = Replies(self.pool, place.parent)
        self.stop = select.poll()
        if place.stop is not None:
            self.stop.register(place.stop, select.POLLIN)
        self.ended = threading.Event()
        self.watcher = threading.Thread(target=self._watch, daemon=True, name="limpet-parent")
        self.watcher.start()

    def _interrupt(self, number: int, frame: object) -> None:
        """Ctrl-C ends the job that runs, and not the worker. A call of another program, which knows
        nothing of this one's Ctrl-C, is given back."""
        if self.running:
            raise KeyboardInterrupt if self.own else _GivenBack

    def _watch(self) -> None:
        """End this process when its parent is dead."""
        while not self.ended.wait(LOOK_S):
            if not self.pool.membership.lives(self.place.parent):
                with contextlib.suppress(LimpetError):
                    if self.place.name:
                        Replies(self.pool, self.pool.membership.ident).sweep()
                    else:
                        destroy(self.place.url)
                os._exit(1)

    def leave(self) -> None:
        """Leave the pool."""
        self.ended.set()
        self.watcher.join()
        self.pool.close()

    def work(self, initializer: Callable[..., object] | None, initargs: Any, most: int) -> None:
        """Do jobs until there is an empty one, or the byte in the pipe, or, if `most` is not 0, so
        many."""
        if initializer is not None:
            try:
                initializer(*initargs)
            except BaseException as error:
                self._send(self.place.parent, 0, REFUSED, pickled_error(error))
                return
        self._send(self.place.parent, 0, STARTED, b"")
        idle_s = None if self.place.stop is None else IDLE_S
        done = 0
        while not (most and done >= most) and not self._must_end(0):
            try:
                with self.jobs.get(timeout=idle_s) as delivery:
                    call = delivery.value
                    if call == STOP:
                        return
                    number, ident, main = HEADER.unpack_from(call)
                    kind, data = self._run(call[HEADER.size :], ident, main)
                    self._send(ident, number, kind, data)
            except queue.Empty:
                continue
            except _GivenBack:
                # A program that ends at Ctrl-C says so in a moment; it shall get no other job.
                self._must_end(LOOK_S)
            done += 1

    def _must_end(self, timeout_s: float) -> bool:
        """Whether our program has written into the pipe, or does in this time."""
        if self.place.stop is None:
            return False
        return any(event & select.POLLIN for _, event in self.stop.poll(timeout_s * 1000))

    def _run(self, call: bytes, ident: int, main: bytes) -> tuple[bytes, bytes]:
        """The kind and the pickled result of a call of the program `ident`."""
        try:
            self.own = ident == self.place.parent
            self.running = True
            try:
                if self.own:
                    function, args, kwargs = pickle.loads(call)
                else:
                    function, args, kwargs = _OthersCall(call, main == self.place.main).load()
                found = function(*args, **kwargs)
            finally:
                self.running = False
                if os.getpid() != self.pid:  # the call forked, and this is its child
                    if sys.exc_info()[1] is not None:
                        traceback.print_exc()
                    os._exit(1)
            return RESULT, bytes(ForkingPickler.dumps(found))
        except _GivenBack:
            raise
        except BaseException as error:
            return ERROR, pickled_error(error)

    def _send(self, ident: int, number: int, kind: bytes, data: bytes) -> None:
        """Put a result for the program `ident`; drop it, if that has ended."""
        ticks = 0
        while True:
            try:
                self.replies.put(ident, NUMBER.pack(number) + kind + data)
                return
            except queue.Full:
                pass
            except StoreFull:
                # Results that are read give their memory back. Another program may be stopped.
                own = ident == self.place.parent
                results = self.replies.of(ident)
                ticks = 0 if own and results is not None and results.qsize() else ticks + 1
                if ticks == (EMPTY_TICKS if own else OTHERS_TICKS):
                    # Short, without a traceback: it needs no object.
                    full = StoreFull(f"no room for a result of {len(data)} bytes")
                    kind, data = ERROR, pickle.dumps((full, ""))
            except LimpetError as error:  # it is too large, say
                kind, data = ERROR, pickled_error(error)
            time.sleep(TICK_S)


def work(place: Place, initializer: Callable[..., object] | None, initargs: Any, most: int) -> None:
    try:
        worker = Worker(place)
    except LimpetError:
        program = multiprocessing.parent_process()
        if program is None or program.is_alive():
            raise
        return  # another worker removes the pool, as the program is dead
    try:
        worker.work(initializer, initargs, most)
    finally:
        worker.leave()
