"""Errors of the operating system as LimpetErrors about a segment."""

from __future__ import annotations

import contextlib
import errno
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from limpet.shm.descriptors import NONE_LEFT
from limpet.shm.endpoint.states import BRING_BACK
from limpet.shm.errors import (
    ClientError,
    LimpetError,
    ParameterError,
    PoolError,
    PoolExists,
    PoolForeign,
    PoolIncomplete,
    PoolNotFound,
    PoolPermission,
)

_ERRORS: Final[dict[int, tuple[type[LimpetError], str]]] = {
    errno.ENOENT: (PoolNotFound, "is not there"),
    errno.ENOTDIR: (PoolNotFound, "is not there: its path leads through a file"),
    errno.EEXIST: (PoolExists, "is there already; open the pool, or destroy it first"),
    errno.EACCES: (PoolPermission, "may not be {deed} by this user"),
    errno.EPERM: (PoolPermission, "may not be {deed} by this user"),
    errno.EROFS: (PoolPermission, "is on a read-only file system"),
    errno.ELOOP: (PoolForeign, "is a symbolic link, and limpet does not follow those"),
    errno.ENOSPC: (ParameterError, "does not fit: there is no room left"),
    errno.EDQUOT: (ParameterError, "does not fit into this user's quota"),
    errno.ENOMEM: (ParameterError, "does not fit: there is not enough memory"),
    errno.EFBIG: (ParameterError, "does not fit: it is larger than a file may be"),
    errno.EMFILE: (ClientError, f"cannot be opened: {NONE_LEFT}"),
    errno.ENFILE: (ClientError, "cannot be opened: this host has no descriptor left"),
    errno.ENAMETOOLONG: (ParameterError, "has a name that is too long"),
}


def _absent(where: str, error: OSError) -> LimpetError:
    """ENXIO: no device behind the name, or a name of something that cannot be mapped."""
    path = error.filename
    if isinstance(path, str) and stat.S_ISCHR(Path(path).lstat().st_mode):
        return PoolIncomplete(
            f"{where} is away: its device is there by name and does not answer ({error}); "
            f"{BRING_BACK}"
        )
    return PoolForeign(f"{where} is not a plain file ({error})")


@contextlib.contextmanager
def explained(where: str, deed: str = "opened") -> Iterator[None]:
    """Turn an OSError into the LimpetError for the segment `where`. `deed`: why it is used."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise _absent(where, error) from error
        kind, text = _ERRORS.get(error.errno or 0, (PoolError, "cannot be used"))
        raise kind(f"{where} {text.format(deed=deed)} ({error})") from error
