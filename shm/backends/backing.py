"""Pages behind a pool's memory: had when a block is claimed, not when it is first touched.

A tmpfs gives a file its pages when they are touched, and SIGBUS when it has none left. So pages are
asked for beforehand, with fallocate(2), where the answer is an error that can be reported: tables
and the control segment when they are made, a block by the client that claims it, before the claim.
Backed pages stay: nothing here gives them back to the file system before the segment is removed.

`back` is the one place where that is done, for the backends whose segments are files. What
cannot be backed is used as it is: device DAX has all of its memory, and a file system without
fallocate reports a lack of room when it likes.

A client that is killed between the two leaves a free block with pages, which is as good as one
without. Several clients may back a block at once. Contents never change.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from typing import Final

FALLOC_FL_KEEP_SIZE: Final = 1
CHUNK: Final = 1 << 20
"""Bytes asked for at once. A signal that comes meanwhile makes the kernel give all of them back."""

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)
_NOT_THERE: Final = (errno.EOPNOTSUPP, errno.ENOSYS, errno.ENODEV)

_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
_fallocate.restype = ctypes.c_int


def back(fd: int, offset: int, size: int) -> bool:
    """Have pages behind `size` bytes of a file from `offset` on; False: there is no room for them.

    The file does not become longer, so one that was truncated stays so. Raises OSError for what
    else is wrong with the file.
    """
    parts = range(0, size, CHUNK)
    return all(_back(fd, offset + done, min(CHUNK, size - done)) for done in parts)


def _back(fd: int, offset: int, size: int) -> bool:
    while _fallocate(fd, FALLOC_FL_KEEP_SIZE, offset, size) != 0:
        code = ctypes.get_errno()
        if code in _NO_ROOM:
            return False
        if code in _NOT_THERE:
            return True
        if code != errno.EINTR:
            raise OSError(code, f"cannot have pages behind the file: {os.strerror(code)}")
    return True


def capacity(folder: Path) -> int | None:
    """Bytes of the file system of a folder; None: it does not say."""
    found = os.statvfs(folder)
    return found.f_blocks * found.f_frsize or None


def room(folder: Path) -> int | None:
    """Bytes that the file system of a folder has free; None: it does not say."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize if found.f_blocks else None
