"""Whether a client is certainly dead: by the lock that it holds, or by its process; killing it.

A process is named by pid and start time (pids are reused), and its host by boot id and PID
namespace: a process in another container counts as one on another host. A client's life lock
decides first whether it lives (`LifeLocks`). `Watcher` decides where there are no such locks, and
finds the process to kill.

Start times come from /proc, which shifts them by the time namespace of the process that reads.
`start_time` removes that shift, so that two time namespaces agree. Where it cannot (a process that
has unshared its time namespace and not run another program yet, or a shift by parts of a tick), the
start time is unknown; so is the start time of a process that /proc hides. A process of unknown
start time is taken for the client's, so that no client is declared dead by mistake.

No descriptor stays open. While a process is being killed a pidfd is open, so that the signal cannot
reach a later process of that pid. Without `pidfd_open` (a kernel before 5.3, a seccomp filter, no
descriptor left) the signal goes to the pid right after the process was looked at. The kernel
assigns pids in a circle, so the pid would have to come round within those microseconds.

Life locks (`LifeLocks`). Every client holds a lock while it lives, so that the kernel shows which
clients are dead. Client slot `n` has byte `n` of the control segment's file. Its client holds a
write lock on that byte (`fcntl`, F_OFD_SETLK: a lock of an open file description) from before the
slot is JOINING until after it is FREE. The kernel drops the lock when the last descriptor of that
description is closed. So a lock that is not held asks a question, which /proc answers (`uses`):

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
takes the lock again when it next looks at the others: none has taken it for dead, as it lives. It
opens the file by its path, if that is the same file still. If it cannot, it goes on without.

A lock that is held is proof of life, but for a description that another program inherited, because
the descriptor was made inheritable: see `inherited`.

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
decide, and for another PID namespace a lease.

Byte 2^61 is for the server of a pool with nodes on other hosts (net/evictions.py), and those from
2^62 on for locks of stores' own (stores/baselines/clover/place.py).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import logging
import os
import select
import signal
import struct
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from limpet.shm.descriptors import Descriptor
from limpet.shm.endpoint.fabric import hash64
from limpet.shm.errors import ClientError

if TYPE_CHECKING:
    from collections.abc import Callable

ENDED: Final = (b"Z", b"X", b"x")
"""States of a process in /proc: a zombie, or one that is gone."""
POLL_S: Final = 0.001
NO_PIDFD: Final = (
    errno.ENOSYS,
    errno.EPERM,
    errno.EACCES,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENODEV,
)


class Host(NamedTuple):
    """Hashes of the boot id and of the PID namespace."""

    boot: int
    namespace: int


@functools.cache
def this_host(name: str = "") -> Host:
    """This host, which was given that name, or none (hosts.py)."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    return Host(
        hash64(boot + name.encode()), hash64(str(Path("/proc/self/ns/pid").readlink()).encode())
    )


class Process(NamedTuple):
    """A process as /proc shows it: whether it has ended, and its start time or None."""

    ended: bool
    started: int | None


def look_at(pid: int) -> Process:
    """The process of this PID namespace with that pid; `ended` when there is none."""
    try:
        # Not by `open`, which is gone when the interpreter calls its last destructors.
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            fields = os.read(fd, 4096).rpartition(b")")[2].split()
        finally:
            os.close(fd)
    except OSError:
        # There is no such process, or we may not see it, or we have no descriptor left for a look.
        return Process(not _answers(pid), None)
    if not fields:
        return Process(True, None)
    shift = _time_shift()
    return Process(fields[0] in ENDED, None if shift is None else int(fields[19]) - shift)


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since the host's boot; None: that is not known.

    Read from /proc rather than through psutil, whose float seconds depend on the wall clock.
    """
    return look_at(pid).started


def exists(pid: int) -> bool:
    """Whether some process of this PID namespace has that pid and has not ended."""
    return not look_at(pid).ended


def process_name(pid: int) -> str:
    """The name of a process of this PID namespace; "": /proc does not tell."""
    try:
        name = Path(f"/proc/{pid}/comm").read_text(errors="replace").rstrip("\n")
    except OSError:
        return ""
    return "".join(char if char.isprintable() else "?" for char in name)


def _answers(pid: int) -> bool:
    """Whether the kernel knows a process of that pid, which /proc does not show."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


@functools.cache
def _time_shift() -> int | None:
    """Clock ticks by which /proc shows us start times later than they are; None: not known."""
    try:
        lines = Path("/proc/self/timens_offsets").read_text().splitlines()
    except FileNotFoundError:
        return 0  # a kernel without time namespaces
    except OSError:
        return None
    # The file is about the namespace of our future children.
    names = [Path(f"/proc/self/ns/{name}") for name in ("time", "time_for_children")]
    with contextlib.suppress(OSError):
        if names[0].readlink() == names[1].readlink():
            for name, seconds, nanoseconds in map(str.split, lines):
                if name in ("boottime", "7"):
                    return _ticks(int(seconds), int(nanoseconds))
    return None


def time_shift_s() -> int | None:
    """Seconds by which our clock since boot is ahead of the host's; None: not known."""
    shift = _time_shift()
    return None if shift is None else shift // os.sysconf("SC_CLK_TCK")


def _ticks(seconds: int, nanoseconds: int) -> int | None:
    per_second = os.sysconf("SC_CLK_TCK")
    return seconds * per_second if nanoseconds == 0 else None


def forget_surroundings() -> None:
    """In a forked child, which may be in other namespaces: ask anew."""
    this_host.cache_clear()
    _time_shift.cache_clear()


# ---- the mappings of a process -------------------------------------------------------------------


def mapped_file(address: int) -> tuple[bytes, bytes] | None:
    """Device and inode, as /proc shows them, of the file that this process has mapped there."""
    for line in _maps("self") or ():
        first, last = (int(number, 16) for number in line[0].split(b"-"))
        if first <= address < last:
            return line[3], line[4]
    return None


def has_mapped(pid: int, file: tuple[bytes, bytes]) -> bool | None:
    """Whether that process has this file mapped; None: that cannot be read."""
    found = _maps(pid)
    return None if found is None else any((line[3], line[4]) == file for line in found)


def has_lock(pid: int, file: tuple[bytes, bytes], byte: int) -> bool:
    """Whether that process has a descriptor that holds a lock on this byte of the file."""
    where, place = b":".join(file), b"%d" % byte
    for path in Path(f"/proc/{pid}/fdinfo").glob("*"):
        with contextlib.suppress(OSError):  # closed meanwhile
            for line in path.read_bytes().splitlines():
                if line.startswith(b"lock:") and line.split()[-3:] == [where, place, place]:
                    return True
    return False


def _maps(process: object) -> list[list[bytes]] | None:
    """The words of each line of /proc/PID/maps: range, rights, offset, device, inode."""
    try:
        text = Path(f"/proc/{process}/maps").read_bytes()
    except OSError:
        return None
    return [line.split(None, 5) for line in text.splitlines()]


# ---- killing -------------------------------------------------------------------------------------


def _pidfd(pid: int) -> int | None:
    """A pidfd of that process; None where there are none. ProcessLookupError: it is gone."""
    try:
        return os.pidfd_open(pid)
    except AttributeError:
        return None
    except OSError as error:
        # By now the number may be that of a thread, or no pid at all.
        if error.errno in (errno.ESRCH, errno.ENOENT, errno.EINVAL):
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH)) from error
        if error.errno in NO_PIDFD:
            return None
        raise


def has_ended(descriptor: int, timeout_ms: int = 0) -> bool:
    """Whether the process of a pidfd is dead, after waiting for it at most so long."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(timeout_ms))


class Watcher:
    """Judges whether processes of this host run, and kills suspects."""

    locks_tell = True
    """Whether life locks decide; not in a simulation, whose clients are one process."""

    def alive(self, pid: int, started: int) -> bool:
        """Whether the process with that pid and start time (0: not known) still runs."""
        found = look_at(pid)
        return not found.ended and (not started or found.started in (started, None))

    def kill(
        self,
        pid: int,
        started: int,
        timeout_ms: int = 10_000,
        sure: Callable[[], bool] = lambda: True,
    ) -> bool:
        """SIGKILL that process and wait until it is dead; False when it outlives the timeout.

        `sure` is called once the pid cannot become another process's. When it returns False, the
        process is not killed, and the result is False. Raises PermissionError when the process is
        another user's.
        """
        try:
            descriptor = _pidfd(pid)
        except ProcessLookupError:
            return True
        try:
            # ORDER: the process is held by the pidfd before it is looked at.
            if not self.alive(pid, started):
                return True
            if not sure():
                return False
            with contextlib.suppress(ProcessLookupError):
                _send_kill(pid, descriptor)
            return self._await_end(pid, started, descriptor, timeout_ms)
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _await_end(self, pid: int, started: int, descriptor: int | None, timeout_ms: int) -> bool:
        if descriptor is not None:
            return has_ended(descriptor, timeout_ms)
        end = time.monotonic() + timeout_ms / 1e3
        while alive := self.alive(pid, started):
            if time.monotonic() >= end:
                break
            time.sleep(POLL_S)
        return not alive


def _send_kill(pid: int, descriptor: int | None) -> None:
    if descriptor is not None:
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EPERM):
                raise
        else:
            return
    os.kill(pid, signal.SIGKILL)


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


def is_locked(fd: int, clients: int) -> bool:
    """Whether the kernel shows a client that lives, by its lock, in the file of a control segment.
    False also where there are no such locks."""
    try:
        return request(fd, fcntl.F_OFD_GETLK, fcntl.F_WRLCK, 0, clients)[0] != fcntl.F_UNLCK
    except OSError:
        return False


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
        """Lock the byte of our slot; False while another client has it. True where locks do
        nothing."""
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
