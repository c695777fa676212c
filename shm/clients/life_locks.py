"""A lock that every client holds while it lives, so that the kernel shows which clients are dead.

Client slot `n` has byte `n` of the control segment's file. Its client holds a write lock on that
byte (`fcntl`, F_OFD_SETLK: a lock of an open file description) from before the slot is JOINING
until after it is FREE. The kernel drops the lock when the last descriptor of that description is
closed, so a lock that is not held is proof that the client is gone:

    the process ended, in any way    files are closed after its address space is gone, so
                                     no thread of it can store any more
    it replaced itself by `exec`     the descriptor is close-on-exec, and closed after the old
                                     address space is gone
    a handle was cut off while it    `close` unmaps first and unlocks last; if it is never
    was opened or closed             called, the garbage collector does that

A test of the lock is one system call. It needs no descriptor of the other process, and no value
that differs between namespaces: not its pid (another PID namespace does not know it), not its start
time (another time namespace sees it shifted), not /proc. So a client of another container of this
host is known to be alive, however long it is frozen, and known to be dead at once.

A forked child shares its parent's descriptions, so it closes them before anything else
(`os.register_at_fork`), and opens its own when it joins. A child that C code forks, without
Python's hooks, makes its parent look alive until it ends or runs another program.

Both sides must look at the same file. On device DAX each container may have a device node of its
own. So a slot names the file of its client's lock (`slots.LOCKED`: a hash of device and inode, 0
where the kernel has no such locks). A lock on another file proves nothing: then pid and start time
decide (liveness.py), and for another PID namespace a lease.

Bytes from 2^62 on are for locks of stores' own (stores/baselines/clover/place.py).
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import weakref
from collections.abc import Callable
from typing import Final

from limpet.shm.clients.liveness import has_mapped, mapped_file
from limpet.shm.endpoint.fabric import hash64
from limpet.shm.errors import ClientError

FLOCK: Final = struct.Struct("hh4xqqi4x")
"""`struct flock` of 64-bit Linux: type, whence, start, length, pid."""
IN_THE_WAY: Final = (errno.EAGAIN, errno.EACCES)
"""The errors if another description has the lock."""


def describe(fd: int) -> int:
    """Our own description of the same file, even if its path names another file by now: `fork`
    shares the description of `fd`."""
    return os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)


def request(fd: int, command: int, kind: int, start: int, length: int) -> tuple[int, int]:
    """Request or query a lock of these bytes; kind and length of the conflicting lock
    (F_OFD_GETLK)."""
    asked = FLOCK.pack(kind, os.SEEK_SET, start, length, 0)
    found, _, _, there, _ = FLOCK.unpack(fcntl.fcntl(fd, command, asked))
    return found, there


_open: weakref.WeakSet[LifeLocks] = weakref.WeakSet()


class LifeLocks:
    """The life locks of one pool, seen from one client."""

    def __init__(self, fd: int, address: int) -> None:
        """`fd`, `address`: descriptor of the control segment, and its address in this process."""
        self.fd = fd
        self.address = address
        self.file = 0
        """The hash of the file that has the locks; 0: locks cannot be used here."""
        self._own = -1
        self._close: Callable[[], object] = lambda: None
        self.open()

    def open(self) -> None:
        """Open a description of our own; in a forked child, once more."""
        self.close()
        # Not the description that is mapped: a forked child could not close that one.
        try:
            own = describe(self.fd)
        except OSError as error:
            raise ClientError(
                f"this process cannot have a life lock in the pool: {error}"
            ) from error
        closing = weakref.finalize(self, os.close, own)
        closing.atexit = False  # the kernel does it, when no thread is left
        self._close = closing
        self._own = own
        _open.add(self)
        found = os.fstat(own)
        try:
            self._ask(fcntl.F_OFD_GETLK, fcntl.F_WRLCK, 0)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):
                raise
        else:
            self.file = hash64(struct.pack("<QQ", found.st_dev, found.st_ino)) or 1

    def take(self, slot: int) -> bool:
        """Lock the slot's byte; False while another client has it. True where locks do nothing."""
        if not self.file:
            return True
        try:
            self._ask(fcntl.F_OFD_SETLK, fcntl.F_WRLCK, slot)
        except OSError as error:
            if error.errno in IN_THE_WAY:
                return False
            raise ClientError(f"client slot {slot} cannot be locked: {error}") from error
        return True

    def drop(self, slot: int) -> None:
        """Unlock the slot's byte, which we may have."""
        if self.file and self._own >= 0:
            self._ask(fcntl.F_OFD_SETLK, fcntl.F_UNLCK, slot)

    def held(self, slot: int) -> bool:
        """Whether another client has the slot's byte locked."""
        return self._ask(fcntl.F_OFD_GETLK, fcntl.F_WRLCK, slot) == fcntl.F_WRLCK

    def barred(self, slot: int) -> bool:
        """Whether a process has locked the slot's byte for reading, which no client does: it may
        read the file, and perhaps not write to it."""
        return self._ask(fcntl.F_OFD_GETLK, fcntl.F_WRLCK, slot) == fcntl.F_RDLCK

    def mapped_by(self, pid: int) -> bool | None:
        """Whether that process of this PID namespace has the control segment mapped.

        None: its mappings cannot be read (no /proc, or a process that hides from us).
        """
        ours = mapped_file(self.address)
        return None if ours is None else has_mapped(pid, ours)

    def close(self) -> None:
        """Drop every lock. Other clients recover the memory that was not given back before."""
        self._own = -1
        self.file = 0
        self._close()

    def _ask(self, command: int, kind: int, slot: int) -> int:
        """Kind of the conflicting lock (F_GETLK)."""
        return request(self._own, command, kind, slot, 1)[0]


def _forked() -> None:
    for locks in list(_open):
        locks.close()
    _open.clear()


os.register_at_fork(after_in_child=_forked)
