"""Pages of a pool's memory: allocated before memory is handed out, not when it is first touched.

A tmpfs allocates the pages of a file when they are touched, and sends SIGBUS when it has none left.
So limpet allocates them beforehand, with fallocate(2), whose error can be reported: those of tables
and the control segment when they are made, those of a block by the client that claims it, before
the claim or part by part (alloc/blocks.py). The pages stay until the segment is removed.

Only `back` does this, for the backends whose segments are files. Other memory is used as it is:
device DAX has all of its memory, and a file system without fallocate may report a lack of room at
any time.

A client that is killed before the claim leaves a free block with pages, which does no harm. Several
clients may allocate the pages of a block at once. Contents never change.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from typing import Final

FALLOC_FL_KEEP_SIZE: Final = 1
CHUNK: Final = 1 << 20
"""Bytes of one request. A signal during it makes the kernel give all of them back."""

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)
_NOT_THERE: Final = (errno.EOPNOTSUPP, errno.ENOSYS, errno.ENODEV)

_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
_fallocate.restype = ctypes.c_int


def back(fd: int, offset: int, size: int) -> bool:
    """Allocate the pages of `size` bytes of a file from `offset` on; False: there is no room.

    The file does not become longer, so a truncated file stays so. Raises OSError for other faults
    of the file.
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
            raise OSError(code, f"cannot allocate pages of the file: {os.strerror(code)}")
    return True


def capacity(folder: Path) -> int | None:
    """Bytes of the file system of a folder; None: not known."""
    found = os.statvfs(folder)
    return found.f_blocks * found.f_frsize or None


def room(folder: Path) -> int | None:
    """Free bytes of the file system of a folder; None: not known."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize if found.f_blocks else None
