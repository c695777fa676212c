"""`file:///DIR`: the files node.0 ... and control in a folder: tmpfs, hugetlbfs, fsdax.

DIR is taken as it is written (no %-escapes), absolute and without `..`. A node whose memory was
replaced has a new file, with the generation (states.py) behind a hyphen: node.0-1.

Files have the mode and the group of the control segment, 0600 unless its creator asked for another.
Pages are allocated when they are needed (`back`), all at once with `prefault`. So a file may be
larger than its file system; the creator gets a warning (node.py).

Pages are allocated before memory is handed out, not when it is first touched. A tmpfs allocates the
pages of a file when they are touched, and sends SIGBUS when it has none left. So limpet allocates
them beforehand, with fallocate(2), whose error can be reported: those of tables and the control
segment when they are made, those of a block by the client that claims it, before the claim or part
by part (alloc/blocks.py). The pages stay until the segment is removed.

Only `back` does this, for the backends whose segments are files. Other memory is used as it is:
device DAX has all of its memory, and a file system without fallocate may report a lack of room at
any time.

A client that is killed before the claim leaves a free block with pages, which does no harm. Several
clients may allocate the pages of a block at once. Contents never change.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import errno
import mmap
import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from limpet.shm.backends import file, numa
from limpet.shm.backends.backend import (
    READ_ONLY,
    Location,
    SegmentPlace,
    Usage,
    absolute_path,
    check_owner,
    check_size,
)
from limpet.shm.backends.explain import explained
from limpet.shm.backends.mapping import map_file
from limpet.shm.backends.name import hold, let_go
from limpet.shm.backends.superblock import CREATING, MAGIC, write_word0
from limpet.shm.endpoint.layout import CONTROL_NODE
from limpet.shm.errors import ParameterError, PoolCorrupt, PoolExists, PoolForeign, PoolNotFound
from limpet.shm.parameters import NODES_MAX

if TYPE_CHECKING:
    from limpet.shm.backends.numa import NodeOptions
    from limpet.shm.backends.superblock import Superblock


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


def room(folder: Path) -> int | None:
    """Free bytes of the file system of a folder; None: not known."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize if found.f_blocks else None


MAP_SHARED_VALIDATE: Final = 0x03
MAP_SYNC: Final = 0x80000
"""Of Linux; the module mmap does not have them."""

_SUFFIX: Final = re.compile(r"control|node\.(0|[1-9]\d{0,2})(?:-([1-9]\d{0,16}))?", re.ASCII)
_CREATE: Final = os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL


@dataclasses.dataclass(frozen=True)
class FilePlace(SegmentPlace):
    """A segment that is a file of its own."""

    path: Path
    offset: int = 0

    def map(self, fd: int, size: int, durable: bool) -> memoryview:
        if not durable:
            return super().map(fd, size, durable)
        try:
            # The kernel refuses it where stores do not go to persistent memory themselves.
            return map_file(fd, size, 0, MAP_SHARED_VALIDATE | MAP_SYNC)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            raise ParameterError(
                f"{self.path} is not on memory that survives a power cut: its file system has no "
                "DAX (MAP_SYNC); a durable pool lies in files of fsdax (mount -o dax), or on "
                "device DAX"
            ) from error

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def read(self, fd: int, size: int, offset: int = 0) -> bytes:
        return os.pread(fd, size, offset)

    def owner(self, fd: int, where: str) -> int:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise PoolForeign(f"{where}: {self.path} is not a plain file")
        return status.st_uid

    def check(self, found: Superblock, fd: int, where: str) -> None:
        actual = self.size(fd)
        if actual > found.size:
            raise PoolCorrupt(f"{where} has {actual} bytes, and says that it has {found.size}")

    def back(self, fd: int, offset: int, size: int) -> bool:
        return file.back(fd, offset, size)

    def arrange(self, mapping: memoryview, where: str, numa_node: int | None, huge: bool) -> None:
        if numa_node is None and not huge:
            return
        found = numa.file_system(self.path)
        if huge:
            numa.require_huge_pages(found, where)
            if found.kind == "tmpfs":
                numa.advise_huge_pages(mapping, where)
        if numa_node is not None:
            numa.bind(mapping, numa_node, found, where)

    def mark(self, fd: int, word: bytes) -> None:
        own = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        try:
            os.pwrite(own, word, 0)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            with mmap.mmap(own, 0) as mapping:  # hugetlbfs has no write(2)
                write_word0(mapping, word)
        finally:
            os.close(own)

    def remove(self, fd: int) -> None:
        if self.same(fd):
            self.path.unlink(missing_ok=True)


@dataclasses.dataclass(frozen=True)
class Files(Location):
    """The files of one pool, in `folder`."""

    scheme: ClassVar[str] = "file"
    example: ClassVar[str] = "file:///DIR"

    folder: Path
    name: str = ""

    @classmethod
    def parse(cls, url: str, rest: str) -> Location:
        return cls(absolute_path(url, rest))

    @property
    def url(self) -> str:
        return f"file://{self.folder}"

    def path(self, index: int, generation: int = 0) -> Path:
        return self.folder / self.file_name(index, generation)

    def file_name(self, index: int, generation: int) -> str:
        life = f"-{generation}" if generation else ""
        return "control" if index == CONTROL_NODE else f"node.{index}{life}"

    @classmethod
    def named(cls, file_name: str) -> tuple[str, int, int] | None:
        """The pool's name, the index and the generation that a file's name stands for, if any."""
        match = _SUFFIX.fullmatch(file_name)
        if match is None:
            return None
        if match[1] is None:
            return "", CONTROL_NODE, 0
        return ("", int(match[1]), int(match[2] or 0)) if int(match[1]) < NODES_MAX else None

    def place(self, index: int, generation: int = 0) -> SegmentPlace:
        return FilePlace(self.path(index, generation))

    # ---- creating -----------------------------------------------------------------------------

    def create(
        self, index: int, size: int, options: NodeOptions, generation: int = 0
    ) -> tuple[SegmentPlace, int]:
        where = self.segment(index)
        check_size(size, self.page_size(), f"{where}: its size")
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except FileNotFoundError as error:  # its parents are there: /proc, for example
            raise ParameterError(f"{self}: no folder can be made there ({error})") from error
        self.check_folder(options.any_owner)
        at = FilePlace(self.path(index, generation))
        fd = self.create_exclusive(at.path, where)
        with contextlib.ExitStack() as undo:
            undo.callback(let_go, fd)
            # CRASH(unlocked): an empty file, which the next creator or destroyer removes.
            if index == CONTROL_NODE and not (hold(fd) and at.same(fd)):
                raise PoolExists(f"{where}: another process took it over while it was made")
            undo.callback(at.remove, fd)
            os.ftruncate(fd, size)
            self._share(index, fd, options)
            undo.pop_all()
        return at, fd

    def missing_folders(self) -> list[Path]:
        folders = [self.folder, *self.folder.parents]
        return [folder for folder in folders if not folder.exists()]

    def create_exclusive(self, path: Path, where: str) -> int:
        return os.open(path, _CREATE, 0o600)

    def _share(self, index: int, fd: int, options: NodeOptions) -> None:
        """Give a new file the mode and the group that the pool has."""
        if index == CONTROL_NODE:
            mode, group = options.mode, options.group_number()
        else:
            control = self.path(CONTROL_NODE).stat()
            mode, group = stat.S_IMODE(control.st_mode), control.st_gid
        made = os.fstat(fd)
        if group not in (-1, made.st_gid):
            os.fchown(fd, -1, group)
        if stat.S_IMODE(made.st_mode) != mode:
            os.fchmod(fd, mode)

    def page_size(self) -> int:
        with explained(str(self)):
            folder = _there(self.folder)
            if not folder.is_dir():
                raise ParameterError(f"{self}: {folder} is not a folder")
            return numa.file_system(folder).page_size

    def room(self) -> tuple[Path, int] | None:
        folder = _there(self.folder)
        free = file.room(folder)
        return None if free is None else (folder, free)

    def check_folder(self, any_owner: bool) -> None:
        """PoolPermission if the folder, or a link to it, is another user's.

        That user could put other files there. Root can do that anyway.
        """
        if any_owner:
            return
        for status in (self.folder.lstat(), self.folder.stat()):
            if status.st_uid not in (os.geteuid(), 0):
                check_owner(f"{self}: the folder", status.st_uid, any_owner)

    # ---- listing and removing -----------------------------------------------------------------

    def removable(self, any_owner: bool) -> list[tuple[int, int]]:
        with explained(str(self)):
            found = self._segments()
        if not found:
            raise PoolNotFound(f"{self}: there is no such pool")
        for index, generation, _ in found:
            with explained(self.segment(index)):
                self._check_removable(index, generation, any_owner)
        return [(index, generation) for index, generation, _ in found]

    def _check_removable(self, index: int, generation: int, any_owner: bool) -> None:
        where, path = self.segment(index), self.path(index, generation)
        try:
            fd = os.open(path, READ_ONLY)
        except FileNotFoundError:
            return
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise PoolForeign(f"{where}: {path} is not a plain file; left alone")
            check_owner(where, status.st_uid, any_owner)
            word = os.pread(fd, len(MAGIC), 0)
        finally:
            os.close(fd)
        if any(word) and not MAGIC.startswith(word) and word != CREATING:
            raise PoolForeign(
                f"{where} is not a limpet segment: it begins with {word!r}; left alone"
            )

    def generations(self, index: int) -> list[int]:
        return [generation for found, generation, _ in self._segments() if found == index]

    def usage(self) -> Usage | None:
        with explained(str(self)):
            found = self._segments()
        if not found:
            return None
        count = len({index for index, _, _ in found} - {CONTROL_NODE})
        size = sum(status.st_size for _, _, status in found)
        return Usage(count, size, found[0][2].st_uid)

    def _segments(self) -> list[tuple[int, int, os.stat_result]]:
        """Index, generation and status of every file that is named like a segment of the pool."""
        found = []
        for entry, (name, index, generation) in named_files(self.folder, type(self)):
            if name == self.name and (status := _status_of(entry)) is not None:
                found.append((index, generation, status))
        return sorted(found, key=lambda item: item[:2])


def named_files(folder: Path, kind: type[Files]) -> list[tuple[Path, tuple[str, int, int]]]:
    """The files in a folder that are named like segments of a pool, with the parts of the names."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        found = [(Path(entry.path), kind.named(entry.name)) for entry in entries]
    return [(path, named) for path, named in found if named is not None]


def _there(folder: Path) -> Path:
    """The folder, or the nearest existing one above it."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def _status_of(path: Path) -> os.stat_result | None:
    """None if another process has just removed it."""
    try:
        return path.lstat()
    except FileNotFoundError:
        return None
