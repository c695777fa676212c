"""The drill of ends: a process stops being a client at each step of an operation, in every way.

A client, forked from a warm parent, makes a change of a subject (subjects.py), and at its k-th step

    exec            becomes another program, which must live on: no client kills it
    fork and exec   forks first; the child has all descriptors of the client, and waits
    _exit           ends without closing anything
    abort           is ended by SIGABRT
    SystemExit      a handler raises SystemExit, and the client ends
    daemon thread   a daemon thread makes the change and stands still from then on, while the main
                    thread ends as the interpreter does, and closes what it closes at its end
    fork            forks a child that ends at once; goes on
    fork, unwind    forks a child that raises SystemExit there; goes on when that has ended
    fork, go on     forks a child that goes on with the change as well, at the same time
    collect         forgets another handle of the pool, in a cycle, with memory and a lock of its
                    own, which the garbage collector collects during the change; goes on
    closerange      closes all its descriptors, as a library does that makes a daemon; the others
                    look for the dead; it goes on
    dup2            likewise, and has other files at their numbers, which limpet may not close or
                    change

for k = 1, 2, 3 ... until the change has no such step. Each time the parent then recovers the dead
client and makes its turns. It demands that these do not wait, that no client is left but its own,
that no memory is leaked, that a program which a client became still runs, and that a client which
goes on ends well. The lease is short, so a client that blocks another is killed if it may be.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import mmap
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from limpet.fault.drill.engine import SHARE, Fault, demand_sound
from limpet.fault.inject.children import end_with_parent
from limpet.fault.inject.workers import Workers
from limpet.fault.matrix.operations import demand
from limpet.fault.matrix.subjects import CHANGES
from limpet.fault.matrix.testbed import look_away, within
from limpet.shm.errors import LimpetError
from limpet.stores.pool import Pool

LEASE_US: Final = 20_000
PATIENCE_S: Final = 30.0
TURNS: Final = 8
PROGRAM: Final = ["sleep", "1000"]
DESCRIPTORS_MAX: Final = 4096
"""Above all descriptors of a client."""
CLOSED_ANOTHERS: Final = 78
"""Exit status of a client that has closed a descriptor of another file."""
MET: Final = 77
"""Exit status of a client that has come to its step and then ended, or gone on."""


def _become_another_program(end: Ends) -> None:
    os.execvp(PROGRAM[0], PROGRAM)


def _fork_and_become_another_program(end: Ends) -> None:
    parent = os.getpid()
    there, tell = os.pipe()
    if os.fork() == 0:
        end_with_parent(parent)
        os.write(tell, b"x")
        signal.pause()
    # The child has its parent's life lock until it has come to Python's hooks of fork.
    os.read(there, 1)
    _become_another_program(end)


def _exit(end: Ends) -> None:
    os._exit(MET)


def _abort(end: Ends) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.disable()
    os.abort()


def _raise(end: Ends) -> None:
    end.met = True
    raise SystemExit


def _stand_still(end: Ends) -> None:
    end.met = True
    end.inside.set()
    threading.Event().wait()


def _fork(end: Ends) -> None:
    end.met = True
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def _fork_and_unwind(end: Ends) -> None:
    end.met = True
    end.fork()
    if end.child:
        end.reap()
    else:
        raise SystemExit


def _fork_and_go_on(end: Ends) -> None:
    end.met = True
    end.fork()


def _collect(end: Ends) -> None:
    end.met = True
    end.other.clear()
    gc.collect()


def _close_range(end: Ends) -> None:
    end.met = True
    os.closerange(3, DESCRIPTORS_MAX)
    end.have_others_look()


def _have_other_files(end: Ends) -> None:
    end.met = True
    null = os.open(os.devnull, os.O_RDWR)
    for fd in sorted(int(path.name) for path in Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):  # that of the listing
            if fd > 2 and fd != null and str(Path(f"/proc/self/fd/{fd}").readlink()) != os.devnull:
                os.dup2(null, fd)
                end.taken.append(fd)
    end.have_others_look()


WAYS: Final[Mapping[str, Callable[[Any], None]]] = {
    "exec": _become_another_program,
    "fork and exec": _fork_and_become_another_program,
    "_exit": _exit,
    "abort": _abort,
    "SystemExit": _raise,
    "daemon thread": _stand_still,
    "fork": _fork,
    "fork, unwind": _fork_and_unwind,
    "fork, go on": _fork_and_go_on,
    "collect": _collect,
    "closerange": _close_range,
    "dup2": _have_other_files,
}
GO_ON: Final = frozenset({"fork", "fork, unwind", "fork, go on", "collect", "closerange", "dup2"})
EXEC: Final = frozenset({"exec", "fork and exec"})


class Ends(Fault):
    """Runs the ways for one subject."""

    def __init__(self, subject: str, url: str, share: int = SHARE) -> None:
        super().__init__(subject, url, share)
        self.met = False
        self.inside = threading.Event()
        self.forked = False
        """Whether this is a child of the client."""
        self.other: dict[str, Any] = {}
        """Another handle of the client, in a reference cycle."""
        self.taken: list[int] = []
        """Descriptors of the client that are other files' by now."""
        self.looks = mmap.mmap(-1, mmap.PAGESIZE)
        """Byte 0: 1 when the others are to look for the dead, 2 when they have done so."""
        self.child = 0
        """Of the client; 0 in that child itself, and where there is none."""

    def settings(self, way: str) -> dict[str, Any]:
        return {"lease": LEASE_US / 1e6, **super().settings(way)}

    def strike(self, way: str) -> None:
        self.turns(TURNS)
        self.each_step(lambda k: self._end_at(way, k))

    # ---- the client -----------------------------------------------------------------------------

    def have_others_look(self) -> None:
        """Wait until the parent has looked for dead clients."""
        self.looks[0] = 1
        while self.looks[0] == 1:
            time.sleep(0.0005)

    def _client(self, way: str, k: int) -> Callable[[int, int], None]:
        def change() -> None:
            self.pool.endpoint.interrupt = lambda: WAYS[way](self)
            self.pool.endpoint.stop_at = k
            self.work.write(CHANGES)
            self.pool.endpoint.stop_at = 0
            self.inside.set()

        def target(slot: int, incarnation: int) -> None:
            look_away(self.pool)
            assert self.pool.client_id
            if way == "collect":
                self._have_another()
            if way == "daemon thread":
                threading.Thread(target=change, daemon=True).start()
                self.inside.wait()
            else:
                try:
                    change()
                except SystemExit:
                    pass
                except (LimpetError, RuntimeError):  # that says what is the parent's
                    if not self.forked:
                        raise
            if self.child:
                self.reap()
            if way not in GO_ON:
                # The steps of the interpreter at its end, except that modules are not freed.
                atexit._run_exitfuncs()
            else:
                self.pool.close()
            null = Path(os.devnull).stat()
            if not all(os.path.samestat(os.fstat(fd), null) for fd in self.taken):
                os._exit(CLOSED_ANOTHERS)
            os._exit(MET if self.met else 0)

        return target

    def fork(self) -> None:
        """Fork a child of the client."""
        parent = os.getpid()
        self.child = os.fork()
        if not self.child:
            self.forked = True
            end_with_parent(parent)

    def reap(self) -> None:
        """Wait for the child of the client, which must end well."""
        status = os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1])
        demand(status == MET, f"a child of the client has ended with {status}")
        self.child = 0

    def _have_another(self) -> None:
        self.other["pool"] = Pool.open(self.url)
        self.other["store"] = self.other["pool"].store("race", name="another", capacity=8)
        self.other["store"].put(b"key", b"value")
        self.other["lock"] = self.other["pool"].lock("another")
        self.other["lock"].acquire()
        self.other["itself"] = cycle = dict(self.other)
        cycle["itself"] = cycle

    # ---- the parent -----------------------------------------------------------------------------

    def _end_at(self, way: str, k: int) -> bool:
        """Let a client end at step k; False: the change has no such step."""
        with Workers(self._client(way, k)) as workers:
            pid = workers.start(0)
            with within(PATIENCE_S, "the client"):
                met = self._await(workers, pid)
            with within(PATIENCE_S, "a client beside one that has ended"):
                self._await_recovery()
                self.turns(TURNS)
                self._look(way)
            if met and way in EXEC:
                demand(_program(pid), "the program that a client became was killed")
        return met

    def _await(self, workers: Workers, pid: int) -> bool:
        """Wait until the client has ended, or is another program; whether it came to its step."""
        while not os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if _program(pid):
                return True
            if self.looks[0] == 1:
                found = self.pool.recover()["clients"]
                demand(not found, "a client that lives was recovered")
                self.looks[0] = 2
            time.sleep(0.0005)
        self.looks[0] = 0
        ended = workers.reap(pid)
        demand(ended.status != CLOSED_ANOTHERS, "it closed a descriptor of another file")
        demand(ended.status in (0, MET, -signal.SIGABRT), f"it failed: {ended.traceback}")
        return ended.status != 0

    def _await_recovery(self) -> None:
        """Wait for the kernel: it drops a life lock a moment after the process is seen to end."""
        while len(self.pool.clients()) > 1:
            self.pool.recover()
            time.sleep(0.0005)

    def _look(self, way: str) -> None:
        if way == "collect":
            demand(self.pool.lock("another").acquire(timeout=PATIENCE_S), "a lock is stuck")
            self.pool.lock("another").release()
        demand_sound(self.pool)


def _program(pid: int) -> bool:
    """Whether that process is the other program by now."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0] == PROGRAM[0].encode()
    except OSError:
        return False
