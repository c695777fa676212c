"""Looking at a segment without being able to write to it: where it is, and whether it is sound.

Every open begins here, with a read-only descriptor. What is refused has not been touched, and a
file that is being truncated meanwhile gives a short read, not SIGBUS. Only device DAX, which cannot
be read(2), is looked at through a read-only mapping.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import mmap
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from limpet.shm.backends import dax
from limpet.shm.backends.location import Location
from limpet.shm.backends.numa import NodeOptions
from limpet.shm.backends.superblock import ABSENT, CREATING, MAGIC, SIZE_OFFSET, Superblock, unpack
from limpet.shm.descriptors import NONE_LEFT
from limpet.shm.endpoint.layout import CONTROL_NODE, NODE_STATES, OFFSET_MASK, SUPERBLOCK_SIZE
from limpet.shm.errors import (
    ClientError,
    LimpetError,
    ParameterError,
    PoolCorrupt,
    PoolError,
    PoolExists,
    PoolForeign,
    PoolNotFound,
    PoolPermission,
    PoolTruncated,
)

READ_ONLY: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC

_ERRORS: Final[dict[int, tuple[type[LimpetError], str]]] = {
    errno.ENOENT: (PoolNotFound, "is not there"),
    errno.ENOTDIR: (PoolNotFound, "is not there: its path leads through a file"),
    errno.EEXIST: (PoolExists, "is there already; open the pool, or destroy it first"),
    errno.EACCES: (PoolPermission, "may not be opened by this user"),
    errno.EPERM: (PoolPermission, "may not be opened by this user"),
    errno.EROFS: (PoolPermission, "is on a read-only file system"),
    errno.ELOOP: (PoolForeign, "is a symbolic link, and limpet does not follow those"),
    errno.ENXIO: (PoolForeign, "is not a plain file"),
    errno.ENOSPC: (ParameterError, "does not fit: there is no room left"),
    errno.EDQUOT: (ParameterError, "does not fit into this user's quota"),
    errno.ENOMEM: (ParameterError, "does not fit: there is not enough memory"),
    errno.EFBIG: (ParameterError, "does not fit: it is larger than a file may be"),
    errno.EMFILE: (ClientError, f"cannot be opened: {NONE_LEFT}"),
    errno.ENFILE: (ClientError, "cannot be opened: this host has no descriptor left"),
    errno.ENAMETOOLONG: (ParameterError, "has a name that is too long"),
}


@contextlib.contextmanager
def explained(where: str) -> Iterator[None]:
    """Turn an OSError into the LimpetError that says what it means for the segment `where`."""
    try:
        yield
    except OSError as error:
        kind, text = _ERRORS.get(error.errno or 0, (PoolError, "cannot be used"))
        raise kind(f"{where} {text} ({error})") from error


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a segment begins: `offset` bytes into the file, or device, at `path`."""

    path: Path
    offset: int = 0
    device: dax.Device | None = None

    def size(self, fd: int) -> int:
        """Bytes behind the segment now: of the file, or up to the end of the device."""
        if self.device is None:
            return os.fstat(fd).st_size
        return max(0, dax.size_now(self.path, fd) - self.offset)

    def first_bytes(self, fd: int) -> bytes:
        """The first 4096 bytes, fewer if the file is shorter."""
        if self.device is None:
            return os.pread(fd, SUPERBLOCK_SIZE, 0)
        dax.check_identity(self.device, fd)
        with mmap.mmap(
            fd, self.device.align, mmap.MAP_SHARED, mmap.PROT_READ, offset=self.offset
        ) as mapping:
            # ORDER: word 0 first; if it is MAGIC then what follows it is complete.
            word = mapping[: len(MAGIC)]
            return word + mapping[len(MAGIC) : SUPERBLOCK_SIZE]


def place(location: Location, index: int, generation: int = 0) -> Place:
    """Where the segment is. For node 0 on dax, the control segment must have been claimed."""
    path = location.path(index, generation)
    if location.scheme != "dax":
        return Place(path)
    device = dax.device(path)
    if index != 0:
        return Place(path, 0, device)
    return Place(path, _control_size(device, location.segment(CONTROL_NODE)), device)


def node_words(location: Location, count: int) -> list[int]:
    """The state words of the nodes, as the control segment has them; see states.py."""
    at = place(location, CONTROL_NODE)
    offset, size = NODE_STATES & OFFSET_MASK, 8 * count
    fd = os.open(at.path, READ_ONLY)
    try:
        if at.device is None:
            data = os.pread(fd, size, offset)
        else:
            whole = at.device.round_up(offset + size)
            with mmap.mmap(fd, whole, mmap.MAP_SHARED, mmap.PROT_READ, offset=at.offset) as mapped:
                data = mapped[offset : offset + size]
    finally:
        os.close(fd)
    return [word for (word,) in struct.iter_unpack("<Q", data[: len(data) & ~7])]


def read_first_bytes(at: Place) -> bytes:
    fd = os.open(at.path, READ_ONLY)
    try:
        return at.first_bytes(fd)
    finally:
        os.close(fd)


def _refuse_no_pool(at: Place, data: bytes, where: str) -> None:
    """Zero in word 0 is a new segment in a file; on a device it is all that `destroy` leaves."""
    if at.device is not None and data.startswith(ABSENT):
        raise PoolNotFound(f"{where}: there is no pool on {at.path}")


def _control_size(device: dax.Device, where: str) -> int:
    at = Place(device.path, 0, device)
    data = read_first_bytes(at)
    _refuse_no_pool(at, data, where)
    if not data.startswith((MAGIC, CREATING)):
        unpack(data, where)
    (size,) = struct.unpack_from("<Q", data, SIZE_OFFSET)
    if size == 0 or size % device.align or size >= device.size:
        raise PoolCorrupt(f"{where} says that it has {size} bytes, which {device.path} cannot hold")
    return int(size)


def check(
    at: Place,
    fd: int,
    location: Location,
    index: int,
    *,
    uuid: bytes | None,
    size: int | None,
    options: NodeOptions,
) -> Superblock:
    """The superblock of an open segment, after every check that `open_` promises."""
    where = location.segment(index)
    check_folder(location, options.any_owner)
    status = os.fstat(fd)
    if at.device is None:
        if not stat.S_ISREG(status.st_mode):
            raise PoolForeign(f"{where}: {at.path} is not a plain file")
        check_owner(where, status.st_uid, options.any_owner)
    data = at.first_bytes(fd)
    _refuse_no_pool(at, data, where)
    found = unpack(data, where)
    if at.device is not None:
        check_owner(where, found.uid, options.any_owner)
    if found.index != index:
        says = "the control segment" if found.index == CONTROL_NODE else f"node {found.index}"
        raise PoolForeign(f"{where}: {at.path} says that it is {says} of a pool, not this segment")
    if uuid is not None and found.uuid != uuid:
        raise PoolForeign(
            f"{where} belongs to another pool: its uuid is {found.uuid.hex()}, not {uuid.hex()}"
        )
    actual = at.size(fd)
    if actual < found.size:
        raise PoolTruncated(
            f"{where} was truncated: {actual} bytes are left of {found.size}; destroy the pool"
        )
    if at.device is None and actual > found.size:
        raise PoolCorrupt(f"{where} has {actual} bytes, and says that it has {found.size}")
    if at.device is not None and found.size % at.device.align:
        raise PoolCorrupt(f"{where}: {found.size} bytes are no multiple of {at.device.align}")
    if size is not None and found.size != size:
        raise PoolCorrupt(f"{where} has {found.size} bytes, its pool expects {size}")
    return found


def check_folder(location: Location, any_owner: bool) -> None:
    """PoolPermission if the folder of a file pool, or a link to it, is another user's.

    That user could put other files there. Root could anyway.
    """
    if location.scheme == "file" and not any_owner:
        for status in (location.folder.lstat(), location.folder.stat()):
            if status.st_uid not in (os.geteuid(), 0):
                check_owner(f"{location}: the folder", status.st_uid, any_owner)


def check_owner(where: str, uid: int, any_owner: bool) -> None:
    if uid != os.geteuid() and not any_owner:
        raise PoolPermission(
            f"{where} is owned by uid {uid}, and this process runs as {os.geteuid()}; "
            "pass any_owner=True if that is meant"
        )


def probe(
    location: Location,
    index: int,
    *,
    uuid: bytes | None = None,
    size: int | None = None,
    options: NodeOptions | None = None,
    generation: int = 0,
) -> Superblock:
    """The superblock of a sound segment, read-only; raises what `open_` raises."""
    with explained(location.segment(index)):
        at = place(location, index, generation)
        fd = os.open(at.path, READ_ONLY)
        try:
            options = options or NodeOptions()
            return check(at, fd, location, index, uuid=uuid, size=size, options=options)
        finally:
            os.close(fd)
