"""A lock that every client holds while it lives, so that the kernel shows which clients are dead.

Client slot `n` has byte `n` of the control segment's file. Its client holds a write lock on that
byte (`fcntl`, F_OFD_SETLK: a lock of an open file description) from before the slot is JOINING
until after it is FREE. The kernel drops the lock when the last descriptor of that description is
closed. So a lock that is not held asks a question, which /proc answers (`uses`):

    the process ended, in any way    dead: files are closed after its address space is gone, so
                                     no thread of it can store any more
    it replaced itself by `exec`     dead: the descriptor is close-on-exec, and closed after the
                                     old address space is gone; so the process has not mapped the
                                     segment
    its descriptors were closed      alive: the process lives and has the segment mapped
    behind it (`os.closerange`)
    its mappings cannot be read      taken for alive while a process of its pid and start time
    (another user's process)         lives

A client that leaves is FREE or DYING before it unlocks. A client whose lock was dropped behind it
takes it again when it next looks at the others: nobody has taken it for dead, as it lives. It opens
the file by its path, if that is the same file still. If it cannot, it goes on without.

A lock that is held is proof of life, but for a description that another program inherited, because
somebody made the descriptor inheritable: see `inherited`.

A test of the lock is one system call. It needs no descriptor of the other process, and no value
that differs between namespaces: not its pid (another PID namespace does not know it), not its start
time (another time namespace sees it shifted), not /proc. So a client of another container of this
host is known to be alive, however long it is frozen, and known to be dead at once. For such a
client the question has no answer, and a lock that is not held is taken for a death. In a pool with
`multi_host` a client that lives then finds out at its next step, and makes none (`Endpoint.guard`).

A forked child shares its parent's descriptions, so it closes them before anything else
(`os.register_at_fork`), and opens its own when it joins. A child that C code forks, without
Python's hooks, makes its parent look alive until it ends or runs another program.

A process that changed its user may not open the file any more, so a child that it forks has no lock
of its own: LOCKED is 0 in its slot.

Both sides must look at the same file. On device DAX each container may have a device node of its
own. So a slot names the file of its client's lock (`slots.LOCKED`: a hash of device and inode, 0
where the kernel has no such locks). A lock on another file proves nothing: then pid and start time
decide (liveness.py), and for another PID namespace a lease.

Bytes from 2^62 on are for locks of stores' own (stores/baselines/clover/place.py).
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import struct
import weakref
from typing import Final

from limpet.shm.clients.liveness import has_lock, has_mapped, mapped_file
from limpet.shm.descriptors import Descriptor
from limpet.shm.endpoint.fabric import hash64
from limpet.shm.errors import ClientError

log = logging.getLogger("limpet")

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

    def __init__(self, control: Descriptor, address: int) -> None:
        """`control`, `address`: descriptor of the control segment, and its address in this
        process."""
        self.control = control
        self.address = address
        self.file = 0
        """The hash of the file that has the locks; 0: locks cannot be used here."""
        self._own: Descriptor | None = None
        self._slot = -1
        """The slot of which we took the lock."""
        self._mapped: tuple[bytes, bytes] | None = None
        self.open()

    @property
    def own_file(self) -> int:
        """The file on which we can hold a lock, as in `slots.LOCKED`; 0: we cannot."""
        return self.file if self._own is not None else 0

    def open(self) -> None:
        """Open a description of our own; in a forked child, once more."""
        self.close()
        try:
            self._describe()
        except PermissionError as error:
            log.warning(
                "%s: this process cannot have a life lock (%s), as its user may not open the "
                "file: its pid tells whether it lives", self.control.path, error,
            )  # fmt: skip
        except OSError as error:
            raise ClientError(
                f"this process cannot have a life lock in the pool: {error}"
            ) from error
        try:
            self._ask(fcntl.F_OFD_GETLK, fcntl.F_WRLCK, 0)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):
                raise
        else:
            self.file = hash64(struct.pack("<QQ", *self.control.file)) or 1

    def _describe(self) -> None:
        # Not the description that is mapped: a forked child could not close that one.
        self._own = own = Descriptor(describe(self.control.number()), self.control.path)
        weakref.finalize(self, own.close).atexit = False  # the kernel does it, without threads
        _open.add(self)

    def take(self, slot: int) -> bool:
        """Lock the slot's byte; False while another client has it. True where locks do nothing."""
        if not self.own_file:
            return True
        try:
            self._ask(fcntl.F_OFD_SETLK, fcntl.F_WRLCK, slot)
        except OSError as error:
            if error.errno in IN_THE_WAY:
                return False
            raise ClientError(f"client slot {slot} cannot be locked: {error}") from error
        self._slot = slot
        return True

    def drop(self, slot: int) -> None:
        """Unlock the slot's byte, which we may have."""
        if slot == self._slot:
            self._slot = -1
        if self.own_file and self._own is not None and self._own.is_open():
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
        if self._mapped is None:
            self._mapped = mapped_file(self.address)
        return None if self._mapped is None else has_mapped(pid, self._mapped)

    def inherited(self, pid: int, slot: int) -> bool:
        """Whether that process of this PID namespace holds the slot's lock without having the
        segment mapped: it is a program that inherited the lock of a client, which is gone."""
        return (
            self.mapped_by(pid) is False
            and self._mapped is not None
            and has_lock(pid, self._mapped, slot)
        )

    def close(self) -> None:
        """Drop every lock. Other clients recover the memory that was not given back before."""
        self.file = 0
        self._slot = -1
        own, self._own = self._own, None
        if own is not None:
            own.close()

    def _ask(self, command: int, kind: int, slot: int) -> int:
        """Kind of the conflicting lock (F_GETLK)."""
        own = self._own
        if own is not None and not own.is_open():
            own = self._renewed()
        fd = self.control.number() if own is None else own.fd
        return request(fd, command, kind, slot, 1)[0]

    def _renewed(self) -> Descriptor | None:
        """Take our lock again: the descriptor was closed behind us. None: it cannot be done."""
        slot, self._own = self._slot, None
        try:
            self._describe()
            if slot >= 0:
                self.take(slot)
        except (OSError, ClientError) as error:
            log.warning(
                "the descriptors of this process were closed behind it, and it cannot lock its "
                "client slot again (%s): its pid tells whether it lives", error,
            )  # fmt: skip
        return self._own


def _forked() -> None:
    for locks in list(_open):
        locks.close()
    _open.clear()


os.register_at_fork(after_in_child=_forked)
