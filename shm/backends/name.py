"""The name of a pool, held by one process while it makes or removes segments under it.

A name is not an identity: between a look at a path and an act on it, the path may come to lead to
another pool's segment. So a process that makes or removes segments locks the control segment first
(flock(2), a lock of its inode), and then looks whether the name still leads to what it has locked
(`SegmentPlace.same`). From then on the name stands for that segment: every other process needs the
lock before it changes that.

    create                  from the moment when the control segment is there until the pool is
                            complete, or gone again: the `create` of a backend calls `hold`
    destroy                 `held`, around the look at the segments and their removal
    replace_node            `held`, around the segment that it makes, or takes back

Opening a pool needs no lock. The kernel drops the lock of a process that dies. So a control segment
that is incomplete while its lock is free is what a killed creator or destroyer has left
(`is_leftover`); the next creator or destroyer removes it, and the nodes beside it
(inventory.py). A process that is stopped keeps the lock; others then raise an error when their
patience is over.

A forked child shares the descriptions of its parent, and would keep a lock of a parent that dies;
it opens its own in their place.

Limits: where the kernel has no such locks, only the comparison of inodes is left. On device DAX, a
creator of another host is not seen, so what seems to be left there is removed by `destroy` alone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from typing import Final

from limpet.shm.backends.backend import Location, SegmentPlace
from limpet.shm.backends.explain import explained
from limpet.shm.backends.superblock import ABSENT, CREATING, MAGIC, unpack
from limpet.shm.endpoint.layout import CONTROL_NODE, SUPERBLOCK_SIZE
from limpet.shm.errors import PoolIncomplete, PoolNotFound

PATIENCE_S: Final = 2.0
"""How long a process waits for the name; a pool of usual size is made within milliseconds."""
PAUSE_S: Final = 0.005
NO_LOCKS: Final = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)

_held: set[int] = set()


def hold(fd: int) -> bool:
    """Lock the inode of `fd`, an own description; False while another process has it locked."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    _held.add(fd)
    return True


def release(fd: int) -> None:
    """Unlock it, if it is locked."""
    if fd in _held:
        # Not left to `close`: a forked child may have the description for a moment yet.
        fcntl.flock(fd, fcntl.LOCK_UN)
        _held.discard(fd)


def let_go(fd: int) -> None:
    """Unlock and close it."""
    release(fd)
    os.close(fd)


def _forked() -> None:
    for fd in _held:
        mode = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
        own = os.open(f"/proc/self/fd/{fd}", mode | os.O_CLOEXEC)
        os.dup2(own, fd, inheritable=False)
        os.close(own)
    _held.clear()


os.register_at_fork(after_in_child=_forked)


@contextlib.contextmanager
def held(location: Location, timeout_s: float = PATIENCE_S) -> Iterator[int]:
    """Hold the name; a descriptor of the control segment, which cannot write.

    Raises PoolNotFound if there is none, PoolIncomplete while another process has the name.
    """
    fd = _locked(location, time.monotonic() + timeout_s)
    try:
        yield fd
    finally:
        let_go(fd)


def _locked(location: Location, deadline: float) -> int:
    at, where = location.place(CONTROL_NODE), location.segment(CONTROL_NODE)
    while True:
        with explained(where):
            fd = at.open()
            try:
                if hold(fd) and at.same(fd):
                    return fd
            except BaseException:
                let_go(fd)
                raise
        let_go(fd)
        if time.monotonic() >= deadline:
            raise PoolIncomplete(
                f"{location} is being created or removed by another process, which has not "
                f"finished{_by(at)}; try again, or end that process"
            )
        time.sleep(PAUSE_S)


def _by(at: SegmentPlace) -> str:
    """In words, which process of this PID namespace has the lock, if that can be seen."""
    try:
        inode = at.path.lstat().st_ino
        with open("/proc/locks", encoding="ascii") as locks:
            rows = [row.split() for row in locks if " FLOCK " in row]
    except OSError:
        return ""
    pids = [row[4] for row in rows if row[1] != "->" and row[5].endswith(f":{inode}")]
    return f" (pid {pids[0]})" if pids else ""


def is_leftover(location: Location, fd: int) -> bool:
    """Whether the control segment, whose lock we have, is incomplete: its process is dead."""
    word = location.place(CONTROL_NODE).read(fd, len(MAGIC))
    return word in (b"", ABSENT, CREATING)


def is_there(location: Location, fd: int, uuid: bytes) -> bool:
    """Whether the name stands for the pool `uuid`, whose control segment `fd` has open."""
    at = location.place(CONTROL_NODE)
    data = at.read(fd, SUPERBLOCK_SIZE)
    if not data.startswith(MAGIC) or not at.same(fd):
        return False
    return unpack(data, location.segment(CONTROL_NODE)).uuid == uuid


def require_ours(location: Location, fd: int, uuid: bytes) -> None:
    """Raise PoolNotFound if the name, which we hold, stands for another pool than `uuid`."""
    if not is_there(location, fd, uuid):
        raise PoolNotFound(f"{location} was destroyed meanwhile")


def take_back(location: Location, fd: int) -> bool:
    """Make the control segment incomplete, before the first of the others is removed; whether it
    was complete."""
    at = location.place(CONTROL_NODE)
    complete = at.read(fd, len(MAGIC)) == MAGIC
    if complete:
        # CRASH(half-removed): the segments that are left count as those of a killed creator.
        at.mark(fd, CREATING)
    return complete
