"""Memory of the simulated fabric beyond a plain mapping: it may lose power, or be cached.

Memory without hardware coherence. `PrivateCache` is one client's cache for the range of a node that
is not coherent. Its lines are there from the start and never leave, so they are as stale as
possible. The model has no line that leaves the cache by itself, as a real line may at any time.

Power cuts. `PersistentMemory` knows, for each line of 64 bytes, the contents that were surely
persistent last and each version since. A power cut leaves of each line one of these versions, or
one that is cut between two of its words. The caches of clients are coherent here: each sees the
newest version.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Mapping
from typing import Final

LINE: Final = 64
MAP_FIXED: Final = 0x10
"""Of Linux; the module mmap does not have it."""


class PersistentMemory:
    """The contents that a power cut would leave of some mappings: `segments`, by their nodes."""

    def __init__(self, segments: Mapping[int, memoryview]) -> None:
        self.segments = segments
        self._last: dict[int, bytes] = {}
        self._versions: dict[tuple[int, int], list[bytes]] = {}
        """For a line, by node and offset: the versions since it was persistent, that one first."""
        self.begin()

    def begin(self) -> None:
        """Everything is persistent now, with its present contents."""
        self._last = {node: bytes(segment) for node, segment in self.segments.items()}
        self._versions = {}

    def changed(self, addr: int, size: int) -> None:
        """The lines of these bytes have new contents."""
        node = addr >> 40
        memory = self.segments[node]
        for line in _lines(addr, size):
            found = bytes(memory[line : line + LINE])
            versions = self._versions.setdefault(
                (node, line), [self._last[node][line : line + LINE]]
            )
            if found != versions[-1]:
                versions.append(found)

    def written_back(self, addr: int, size: int) -> None:
        """The lines of these bytes are persistent, with their present contents."""
        node = addr >> 40
        memory = self.segments[node]
        for line in _lines(addr, size):
            if (node, line) in self._versions:
                self._versions[node, line] = [bytes(memory[line : line + LINE])]

    @property
    def unflushed(self) -> int:
        """How many lines have a version that is not persistent."""
        return sum(len(versions) > 1 for versions in self._versions.values())

    def cut(self, choose: Callable[[int], int]) -> None:
        """Leave of each line one of its versions: `choose(n)` returns one of 0 to n - 1, 0 being
        the oldest. Everything is persistent afterwards."""
        for (node, line), versions in sorted(self._versions.items()):
            history = _by_words(versions)
            self.segments[node][line : line + LINE] = history[choose(len(history))]
        self.begin()


def _lines(addr: int, size: int) -> range:
    """The offsets of the lines of some bytes."""
    offset = addr & (1 << 40) - 1
    return range(offset & -LINE, offset + size, LINE)


def _by_words(versions: list[bytes]) -> list[bytes]:
    """The versions of a line, with those in between in which only the first changed words of a
    longer write are there."""
    found = versions[:1]
    for version in versions[1:]:
        now = bytearray(found[-1])
        for at in range(0, LINE, 8):
            if now[at : at + 8] != version[at : at + 8]:
                now[at : at + 8] = version[at : at + 8]
                found.append(bytes(now))
    return found


class PrivateCache:
    """The cache of one client for one node: `mine` is its contents, `clean` those as fetched."""

    def __init__(self, mine: memoryview, memory: memoryview, start: int) -> None:
        self.start = start
        _make_private(mine, start)
        self.mine = mine
        self.memory = memory
        self.clean = bytearray(len(mine))
        self.fill()

    def fill(self) -> None:
        self.fetch(self.start, len(self.mine) - self.start)

    def _lines(self, offset: int, size: int) -> tuple[int, int]:
        first = max(offset, self.start) & -LINE
        return first, max(first, min(offset + size + LINE - 1 & -LINE, len(self.mine)))

    def fetch(self, offset: int, size: int) -> None:
        """Take the lines of these bytes from memory."""
        first, end = self._lines(offset, size)
        self.mine[first:end] = self.clean[first:end] = self.memory[first:end]

    def write_back(self, offset: int, size: int) -> None:
        """Push those lines of these bytes to memory that were written to."""
        first, end = self._lines(offset, size)
        if bytes(self.mine[first:end]) == self.clean[first:end]:
            return
        for line in range(first, end, LINE):
            held = bytes(self.mine[line : line + LINE])
            if held != self.clean[line : line + LINE]:
                self.memory[line : line + LINE] = self.clean[line : line + LINE] = held


def _make_private(mapping: memoryview, start: int) -> None:
    """Put private, zero-filled pages in place of a shared mapping's, from byte `start` on."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
    )  # fmt: skip
    at = ctypes.addressof(ctypes.c_char.from_buffer(mapping)) + start
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED
    made = libc.mmap(at, len(mapping) - start, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if made != at:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
