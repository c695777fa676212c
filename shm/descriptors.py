"""The descriptors of a handle: `Descriptor`; and the error of a process that has none left.

A handle needs descriptors when it is opened (probe.py), becomes a client in a forked child
(liveness.py), maps a node that was replaced, or, of a `clover` store, connects. A process that
has no descriptor left gets a `ClientError` that says so, and no OSError. The step that needed one
is undone, and can be done again when there are descriptors.

Descriptors are numbers that others can close, and use for other files: libraries that make daemons
close all of them (`os.closerange`). So a `Descriptor` remembers its file, and the process which
object had a number last. Before each use it looks whether the number still stands for its file. If
not, it opens the file once more, by its path, if that is still the same file. It never closes the
number of another file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from limpet.shm.errors import ClientError

NONE_LEFT: Final = (
    "this process has no descriptor left; close some, or raise its limit (`ulimit -n`)"
)
REOPEN: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW

_latest: weakref.WeakValueDictionary[int, Descriptor] = weakref.WeakValueDictionary()
"""The object that had each number last. An older one with the number has lost it."""


class Descriptor:
    """A descriptor that is ours to close, with the file that it is for."""

    def __init__(self, fd: int, path: Path) -> None:
        self.path = path
        self.file = _file_of(fd)
        self._use(fd)

    def _use(self, fd: int) -> None:
        self.fd = fd
        """The number that it had last; -1: it is closed."""
        _latest[fd] = self

    def is_open(self) -> bool:
        """Whether the number is still that of our file: it was not closed behind us."""
        if self.fd < 0 or _latest.get(self.fd) is not self:
            return False
        try:
            return _file_of(self.fd) == self.file
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            return False

    def number(self) -> int:
        """The number, of the file once more if it was closed behind us.

        Raises ClientError if the file cannot be opened again.
        """
        if not self.is_open():
            with descriptors_needed(str(self.path)):
                self._use(self._again())
        return self.fd

    def _again(self) -> int:
        why = "another file has its name by now"
        try:
            fd = os.open(self.path, REOPEN)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            why = str(error)
        else:
            if _file_of(fd) == self.file:
                return fd
            os.close(fd)
        raise ClientError(
            f"{self.path}: the descriptors of this handle were closed behind it (os.closerange, as "
            f"libraries do that make daemons?), and the file cannot be opened again: {why}; close "
            "the pool and open it again, after such a call"
        )

    def close(self) -> None:
        """Close it, unless it was closed behind us. May be called twice."""
        if self.is_open():
            os.close(self.fd)
        self.fd = -1


def _file_of(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


@contextlib.contextmanager
def descriptors_needed(url: str) -> Iterator[None]:
    """Raise ClientError where the body fails since there is no descriptor."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        raise ClientError(f"{url}: {NONE_LEFT} ({error})") from error
