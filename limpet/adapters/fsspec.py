"""A filesystem of fsspec: files in shared memory that all processes see.

    fs = fsspec.filesystem("limpet", location="shm://site/files", node_size="1GiB")
    fs.pipe("/in/a.csv", data)
    pandas.read_csv("limpet:///in/a.csv", storage_options={"location": "shm://site/files"})

An installed limpet is found by the name "limpet"; importing this module registers it, too.

A file is a value of a `race` store, by its path: the time when it was made and when it was changed,
and a random number that no other version has, 8 bytes each, then its bytes. It has at most as many
bytes as a memory node. It is replaced as a whole when it is closed, so a reader sees the old file
or the new one: up to 4 MiB are read when a file is opened, and `cat_file` reads its range in one
step. Of a longer file, the rest is read when it is asked for, and OSError (ESTALE) is raised if the
file has been replaced since it was opened. A directory that was made is an empty value, by its path
and "/"; others are there as long as they have files.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import io
import os
import struct
import time
from typing import Any, Final

from fsspec import AbstractFileSystem, register_implementation
from fsspec.spec import AbstractBufferedFile

from limpet.adapters.paths import Paths, open_paths
from limpet.adapters.pools import POOL_OPTIONS, Shared

HEAD: Final = struct.Struct("dd8s")
"""In front of the bytes of a file: when it was made, when it was changed, and its own number."""
NUMBER: Final = 8
FIRST: Final = 4 << 20
"""So many bytes of a file are read when it is opened."""
OWN_OPTIONS: Final[tuple[str, ...]] = ("capacity", *POOL_OPTIONS)


class LimpetFileSystem(AbstractFileSystem):
    """`location`: of the files (pools.py). Other arguments are fsspec's, `capacity`, the number of
    files that surely fit, and options of a new pool."""

    protocol = "limpet"
    root_marker = "/"
    cachable = True

    def __init__(self, location: str, **arguments: Any) -> None:
        options = {key: arguments.pop(key) for key in OWN_OPTIONS if key in arguments}
        super().__init__(location=location, **arguments)
        self.shared = Shared(open_paths, location, "files", options, ("capacity",))

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        bare = super()._strip_protocol(path).strip("/")
        return f"/{bare}" if bare else ""

    @property
    def paths(self) -> Paths:
        return self.shared()

    # ---- looking ----------------------------------------------------------------------------

    def info(self, path: str, **arguments: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        if path and (found := self._file(path)) is not None:
            return found
        if self._is_directory(path):
            return _directory(path)
        raise FileNotFoundError(errno.ENOENT, "there is no such file", path)

    def _file(self, path: str) -> dict[str, Any] | None:
        while True:
            head = self.paths.read(path, 0, HEAD.size)
            size = self.paths.size(path)
            if head is None or size is None:
                return None
            if self.paths.read(path, 0, HEAD.size) == head:  # else they are of two versions
                break
        made, changed, _ = HEAD.unpack(head)
        return {
            "name": path,
            "size": size - HEAD.size,
            "type": "file",
            "created": made,
            "mtime": changed,
        }

    def _is_directory(self, path: str) -> bool:
        if not path or f"{path}/" in self.paths:
            return True
        return any(True for _ in self.paths.all(f"{path}/"))

    def isfile(self, path: str) -> bool:
        path = self._strip_protocol(path)
        return bool(path) and path in self.paths

    def ls(self, path: str, detail: bool = True, **arguments: Any) -> Any:
        path = self._strip_protocol(path)
        there = self._file(path) if path else None
        if there is not None:
            return [there] if detail else [path]
        found = {}
        empty = True
        for name in self.paths.all(f"{path}/"):
            empty = False
            first, below, _ = name[len(path) + 1 :].partition("/")
            child = f"{path}/{first}"
            if below and first:
                found[child] = _directory(child)
            elif first and (file := self._file(child)) is not None:
                found[child] = file
        if empty and path:
            raise FileNotFoundError(errno.ENOENT, "there is no such directory", path)
        names = sorted(found)
        return [found[name] for name in names] if detail else names

    def created(self, path: str) -> datetime.datetime:
        return self._time(path, "created")

    def modified(self, path: str) -> datetime.datetime:
        return self._time(path, "mtime")

    def _time(self, path: str, which: str) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self.info(path)[which], tz=datetime.timezone.utc)

    # ---- directories ------------------------------------------------------------------------

    def mkdir(self, path: str, create_parents: bool = True, **arguments: Any) -> None:
        path = self._strip_protocol(path)
        if not path or self.exists(path):
            raise FileExistsError(errno.EEXIST, "it is there already", path)
        parent = self._parent(path).rstrip("/")
        if parent and self.isfile(parent):
            raise NotADirectoryError(errno.ENOTDIR, "it is a file", parent)
        if create_parents and parent:
            with contextlib.suppress(FileExistsError):
                self.mkdir(parent)
        self.paths.add(f"{path}/", b"")

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        try:
            self.mkdir(path)
        except FileExistsError:
            if not exist_ok or self.isfile(path):
                raise

    def rmdir(self, path: str) -> None:
        path = self._strip_protocol(path)
        if not path:
            return
        if not self._is_directory(path):
            raise FileNotFoundError(errno.ENOENT, "there is no such directory", path)
        if any(name != f"{path}/" for name in self.paths.all(f"{path}/")):
            raise OSError(errno.ENOTEMPTY, "it is not empty", path)
        self.paths.remove(f"{path}/")

    # ---- files ------------------------------------------------------------------------------

    def write(self, path: str, data: bytes, create: bool = False) -> None:
        """Make or replace a file; with `create`, FileExistsError: it is there.

        Raises ValueTooLarge, StoreFull; then nothing has changed.
        """
        if f"{path}/" in self.paths:
            raise IsADirectoryError(errno.EISDIR, "it is a directory", path)
        now = time.time()
        number = os.urandom(NUMBER)
        if create:
            if not self.paths.add(path, HEAD.pack(now, now, number) + data):
                raise FileExistsError(errno.EEXIST, "it is there already", path)
            return
        head = self.paths.read(path, 0, HEAD.size)
        made = now if head is None else HEAD.unpack(head)[0]
        self.paths.write(path, HEAD.pack(made, now, number) + data)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **arguments: Any) -> None:
        self.write(self._strip_protocol(path), bytes(value), mode == "create")

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **arguments: Any
    ) -> bytes:
        path = self._strip_protocol(path)
        first, last = start or 0, end
        # From the end of a file: so many bytes more that the head is among them if it is short.
        first += HEAD.size if first >= 0 else -HEAD.size
        if last is not None and last >= 0:
            last += HEAD.size
        data = self.paths.read(path, first, last)
        if data is None:
            raise FileNotFoundError(errno.ENOENT, "there is no such file", path)
        return data if first >= 0 else data[HEAD.size :]

    def cp_file(self, path1: str, path2: str, **arguments: Any) -> None:
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.isfile(source):
            self.write(target, self.cat_file(source))
        elif self._is_directory(source):
            self.makedirs(target, exist_ok=True)
        else:
            raise FileNotFoundError(errno.ENOENT, "there is no such file", source)

    def rm_file(self, path: str) -> None:
        path = self._strip_protocol(path)
        if not self.paths.remove(path):
            raise FileNotFoundError(errno.ENOENT, "there is no such file", path)

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        found = self.expand_path(path, recursive=recursive, maxdepth=maxdepth)
        if missing := [one for one in found if not self.exists(one)]:
            raise FileNotFoundError(errno.ENOENT, "there is no such file", missing[0])
        for one in reversed(found):
            if self.isfile(one):
                self.rm_file(one)
            else:
                with contextlib.suppress(FileNotFoundError):  # it was there by its files only
                    self.rmdir(one)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: Any = None,
        autocommit: bool = True,
        cache_options: Any = None,
        **arguments: Any,
    ) -> Any:
        if mode == "rb":
            return _Reader(
                self, path, mode, block_size=block_size, cache_options=cache_options, **arguments
            )
        if mode not in ("wb", "ab", "xb"):
            raise ValueError(f"a file of limpet is opened with rb, wb, ab or xb, not {mode}")
        if mode == "xb" and self.exists(path):
            raise FileExistsError(errno.EEXIST, "it is there already", path)
        begun = self.cat_file(path) if mode == "ab" and self.isfile(path) else b""
        file = _Writer(self, path, mode == "xb", autocommit)
        file.write(begun)
        return file


class _Reader(AbstractBufferedFile):
    """An open file: its beginning as of then; the rest by ranges, with fsspec's read-ahead."""

    def __init__(self, files: LimpetFileSystem, path: str, mode: str, **arguments: Any) -> None:
        self.head = b""
        while True:
            found = files.paths.read(path, 0, HEAD.size + FIRST)
            size = files.paths.size(path)
            if found is None or size is None:
                raise FileNotFoundError(errno.ENOENT, "there is no such file", path)
            self.head, self.first = found[: HEAD.size], found[HEAD.size :]
            if len(self.first) < FIRST:
                size = len(found)
                break
            if files.paths.read(path, 0, HEAD.size) == self.head:
                break
        super().__init__(files, path, mode, size=size - HEAD.size, **arguments)

    def _fetch_range(self, start: int, end: int) -> bytes:
        if end <= len(self.first):
            return self.first[start:end]
        data = self.fs.paths.read(self.path, HEAD.size + start, HEAD.size + end)
        # ORDER: after the data. No other version has the number in the head.
        if self.fs.paths.read(self.path, 0, HEAD.size) != self.head:
            raise OSError(
                errno.ESTALE,
                "it was replaced or removed while it was read; open it again",
                self.path,
            )
        return bytes(data)


class _Writer(io.BytesIO):
    """A new file, which is there when this is closed; or by `commit`, in a transaction."""

    def __init__(self, files: LimpetFileSystem, path: str, creates: bool, autocommit: bool) -> None:
        super().__init__()
        self.files = files
        self.path = path
        self.creates = creates
        self.autocommit = autocommit
        self.whole: bytes | None = None

    def close(self) -> None:
        if not self.closed:
            self.whole = self.getvalue()
            super().close()
            if self.autocommit:
                self.commit()

    def commit(self) -> None:
        """Make the file."""
        if self.whole is not None:
            self.files.write(self.path, self.whole, self.creates)

    def discard(self) -> None:
        """Do not make it."""
        self.whole = None


def _directory(path: str) -> dict[str, Any]:
    return {"name": path, "size": 0, "type": "directory"}


register_implementation("limpet", LimpetFileSystem, clobber=True)
