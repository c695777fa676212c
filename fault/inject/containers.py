"""Processes in PID and mount namespaces of their own, as those of a container are. Needs root.

A worker (workers.py) becomes the container's door: it makes the namespaces and forks once, and its
child is process 1 of the new namespace, with a /proc of its own. From outside, process 1 is
stopped, woken and killed by its pid out there, which the door tells. It cannot stop itself: the
kernel keeps process 1 from signals of its own namespace.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
from collections.abc import Callable
from typing import Final

from limpet.fault.inject.children import end_with_parent
from limpet.fault.inject.workers import Workers

_CLONE_NEWNS: Final = 0x00020000
_CLONE_NEWPID: Final = 0x20000000
_MS_REC_PRIVATE: Final = 0x4000 | 1 << 18
_libc: Final = ctypes.CDLL(None, use_errno=True)


@functools.cache
def why_not() -> str:
    """The reason why this process cannot make namespaces; "": it can."""

    def target(slot: int, incarnation: int) -> None:
        contain(lambda pid: None)

    with Workers(target) as workers:
        ended = workers.reap(workers.start(0))
    return ended.traceback.strip().rpartition("\n")[2] if ended.status else ""


def contain(tell: Callable[[int], object]) -> None:
    """Go on as process 1 of new PID and mount namespaces; call it in a worker.

    `tell` gets the pid of process 1 outside, before that process goes on. The worker itself waits
    for the end of process 1, and ends in the same way.
    """
    _demand(_libc.unshare(_CLONE_NEWPID | _CLONE_NEWNS), "unshare")
    _demand(_libc.mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC_PRIVATE), None), "mount /")
    told, telling = os.pipe()
    inside = os.fork()
    if inside == 0:
        os.close(telling)
        os.read(told, 1)  # ends when the parent has closed its end
        os.close(told)
        # The parent is of another namespace: its pid shows as 0 here.
        end_with_parent(0)
        _demand(_libc.mount(b"proc", b"/proc", b"proc", ctypes.c_ulong(0), None), "mount /proc")
        return
    tell(inside)
    os.close(telling)
    code = os.waitstatus_to_exitcode(os.waitpid(inside, 0)[1])
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    os._exit(code)


def _demand(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
