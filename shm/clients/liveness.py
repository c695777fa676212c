"""The identity of hosts and processes, whether a process is certainly dead, and killing one.

A process is named by pid and start time (pids are reused), and its host by boot id and PID
namespace: a process in another container counts as one on another host. A client's life lock
decides first whether it lives (life_locks.py). This module decides where there are no such locks,
and finds the process to kill.

Start times come from /proc, which shifts them by the time namespace of the process that reads.
`start_time` removes that shift, so that two time namespaces agree. Where it cannot (a process that
has unshared its time namespace and not run another program yet, or a shift by parts of a tick), the
start time is unknown; so is the start time of a process that /proc hides. A process of unknown
start time is taken for the client's, so that no client is declared dead by mistake.

No descriptor stays open. While a process is being killed a pidfd is open, so that the signal cannot
reach a later process of that pid. Without `pidfd_open` (a kernel before 5.3, a seccomp filter, no
descriptor left) the signal goes to the pid right after the process was looked at. The kernel
assigns pids in a circle, so the pid would have to come round within those microseconds.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from limpet.shm.endpoint.fabric import hash64

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
