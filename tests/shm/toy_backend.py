"""A backend in one file, as a newcomer would write it: segments without a name, in this process.

`toy://NAME` is a dictionary of memfds. Other processes cannot open such a pool; threads, and
children that are forked, work on it.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from pathlib import Path
from typing import ClassVar

from limpet.shm.backends.backend import Location, SegmentPlace, Usage, check_owner, check_size
from limpet.shm.backends.file import FilePlace
from limpet.shm.backends.name import hold, let_go
from limpet.shm.backends.numa import NodeOptions
from limpet.shm.endpoint.layout import CONTROL_NODE
from limpet.shm.errors import ParameterError, PoolExists, PoolNotFound

_lock = threading.Lock()
_pools: dict[str, dict[tuple[int, int], int]] = {}
"""The descriptor of each segment, by its pool's name, its index and its generation."""


class MemfdPlace(FilePlace):
    """A segment that no path names, only the descriptor in `_pools`."""

    def __init__(self, name: str, index: int, generation: int) -> None:
        super().__init__(Path(f"/memfd/{name}/{index}-{generation}"))
        object.__setattr__(self, "key", (name, (index, generation)))

    def open(self) -> int:
        name, segment = self.key
        fd = _pools.get(name, {}).get(segment)
        if fd is None:
            raise FileNotFoundError(2, "no such memfd", str(self.path))
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)

    def same(self, fd: int) -> bool:
        name, segment = self.key
        there = _pools.get(name, {}).get(segment)
        return there is not None and os.path.sameopenfile(there, fd)

    def remove(self, fd: int) -> None:
        name, segment = self.key
        with _lock:
            if self.same(fd):
                os.close(_pools[name].pop(segment))
                if not _pools[name]:
                    del _pools[name]


@dataclasses.dataclass(frozen=True)
class Memfds(Location):
    scheme: ClassVar[str] = "toy"
    example: ClassVar[str] = "toy://NAME"

    name: str

    @classmethod
    def parse(cls, url: str, rest: str) -> Location:
        if not rest.isidentifier():
            raise ParameterError(f"{url!r}: a toy's name is an identifier")
        return cls(rest)

    @classmethod
    def everywhere(cls) -> list[Location]:
        return [cls(name) for name in sorted(_pools)]

    @property
    def url(self) -> str:
        return f"toy://{self.name}"

    def path(self, index: int, generation: int = 0) -> Path:
        return self.place(index, generation).path

    def place(self, index: int, generation: int = 0) -> SegmentPlace:
        return MemfdPlace(self.name, index, generation)

    def create(
        self, index: int, size: int, options: NodeOptions, generation: int = 0
    ) -> tuple[SegmentPlace, int]:
        check_size(size, self.page_size(), f"{self.segment(index)}: its size")
        fd = os.memfd_create(f"limpet-{self.name}", os.MFD_CLOEXEC)
        os.ftruncate(fd, size)
        own = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        if index == CONTROL_NODE:
            hold(own)
        with _lock:
            segments = _pools.setdefault(self.name, {})
            if (index, generation) in segments:
                os.close(fd)
                let_go(own)
                raise PoolExists(f"{self.segment(index)} is there already")
            segments[index, generation] = fd
        return self.place(index, generation), own

    def removable(self, any_owner: bool) -> list[tuple[int, int]]:
        found = sorted(_pools.get(self.name, {}).items())
        if not found:
            raise PoolNotFound(f"{self}: there is no such pool")
        for (index, _), fd in found:
            check_owner(self.segment(index), os.fstat(fd).st_uid, any_owner)
        return [segment for segment, _ in found]

    def generations(self, index: int) -> list[int]:
        return [generation for found, generation in _pools.get(self.name, {}) if found == index]

    def usage(self) -> Usage | None:
        found = _pools.get(self.name)
        if not found:
            return None
        nodes = {index for index, _ in found} - {CONTROL_NODE}
        status = [os.fstat(fd) for fd in found.values()]
        return Usage(len(nodes), sum(one.st_size for one in status), status[0].st_uid)
