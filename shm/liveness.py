"""Is that process alive? Identity of hosts and processes, certain death, and killing a suspect.

A process is named by pid and start time (pids are reused), on a host that is named by boot id and
PID namespace: a process in another container counts as one on another host.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import select
import signal
from pathlib import Path
from typing import NamedTuple

from limpet.shm.fabric import hash64


class Host(NamedTuple):
    """Hashes of the boot id and of the PID namespace."""

    boot: int
    namespace: int


@functools.cache
def this_host() -> Host:
    boot = Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    return Host(hash64(boot), hash64(str(Path("/proc/self/ns/pid").readlink()).encode()))


def start_time(pid: int) -> int | None:
    """When a process of this host started, in clock ticks since boot; None: we may not see it.

    Read from /proc rather than through psutil, whose float seconds depend on the wall clock.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    return int(fields[19])


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        # By now the number may be that of a thread, or none that a process can have.
        if error.errno in (errno.ESRCH, errno.ENOENT, errno.EINVAL):
            return None
        raise


def open_process(pid: int, started: int) -> int | None:
    """A pidfd for the process that started then; None when it is gone. The caller closes it."""
    descriptor = _pidfd(pid)
    if descriptor is None:
        return None
    # The pidfd was open before we looked, so the pid cannot have changed hands in between. A
    # process whose start time is hidden from us is taken for the one that we look for.
    if start_time(pid) in (started, None) and not has_ended(descriptor):
        return descriptor
    os.close(descriptor)
    return None


def exists(pid: int) -> bool:
    """Whether some process of this host has that pid and has not ended."""
    descriptor = _pidfd(pid)
    if descriptor is None:
        return False
    try:
        return not has_ended(descriptor)
    finally:
        os.close(descriptor)


def has_ended(descriptor: int, timeout_ms: int = 0) -> bool:
    """Whether the process of a pidfd is dead, after waiting for it at most so long."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(timeout_ms))


class Watcher:
    """pidfds of the processes that were asked about, so that asking again is one system call."""

    def __init__(self) -> None:
        self._descriptors: dict[tuple[int, int], int] = {}

    def alive(self, pid: int, started: int) -> bool:
        """Whether the process with that pid and start time, on this host, still runs."""
        key = (pid, started)
        descriptor = self._descriptors.get(key)
        if descriptor is None:
            descriptor = open_process(pid, started)
            if descriptor is None:
                return False
            self._descriptors[key] = descriptor
        if has_ended(descriptor):
            self.forget(pid, started)
            return False
        return True

    def kill(self, pid: int, started: int, timeout_ms: int = 10_000) -> bool:
        """SIGKILL that process and wait until it is dead; False when it outlives the timeout.

        Raises PermissionError when the process is another user's.
        """
        if not self.alive(pid, started):
            return True
        descriptor = self._descriptors[pid, started]
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        if not has_ended(descriptor, timeout_ms):
            return False
        self.forget(pid, started)
        return True

    def forget(self, pid: int, started: int) -> None:
        descriptor = self._descriptors.pop((pid, started), None)
        if descriptor is not None:
            os.close(descriptor)

    def descriptors(self) -> list[int]:
        """The open pidfds: each becomes readable when its process dies."""
        return list(self._descriptors.values())

    def close(self) -> None:
        for pid, started in list(self._descriptors):
            self.forget(pid, started)
