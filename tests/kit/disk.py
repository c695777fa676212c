"""A file system with little room, and a look at which pages of a pool were touched: `Disk`.

It stands between the clients and the kernel: a request for pages is granted if they are there
already, or if there is room for those that are missing, as a tmpfs does it. A page that a client
touches without having asked for it is seen, since a tmpfs then has data where no client has asked.
What was asked for is in memory that forked children share.
"""

from __future__ import annotations

import errno
import mmap
import os
from typing import Any

PAGE = 4096
GENERATIONS = 4


class Disk:
    """For a pool, before anything but its tables is used; `watch` every further handle."""

    def __init__(self, pool: Any) -> None:
        heap = pool.heap
        self.blocks = heap.blocks
        self.pages = -(-(heap.blocks + heap.block_count * heap.block_size) // PAGE)
        self.nodes = heap.placement.nodes
        self._asked = mmap.mmap(-1, self.nodes * GENERATIONS * self.pages)
        self._room = mmap.mmap(-1, 8)
        self.room = 1 << 40
        self.watch(pool)

    @property
    def room(self) -> int:
        """How many more pages there is room for."""
        return int.from_bytes(self._room[:8], "little")

    @room.setter
    def room(self, pages: int) -> None:
        self._room[:8] = pages.to_bytes(8, "little")

    def watch(self, pool: Any) -> Any:
        """Have a handle of the pool ask here; the handle."""
        backing, segments = pool.blocks.pages.backing, pool.mapped.segments

        def ask(node: int, offset: int, size: int) -> bool:
            found = [segment for segment in segments if segment.index == node]
            if not found:
                return True
            at = self._place(found[0])
            first, end = at + offset // PAGE, at - (-(offset + size) // PAGE)
            missing = self._asked[first:end].count(0)
            if missing > self.room:
                return False
            self.room -= missing
            self._asked[first:end] = b"\1" * (end - first)
            return bool(backing(node, offset, size))

        pool.blocks.pages.backing = ask
        return pool

    def _place(self, segment: Any) -> int:
        return int((segment.index * GENERATIONS + segment.generation) * self.pages)

    def asked(self, pool: Any) -> int:
        """How many pages of blocks were asked for, of the memory that this handle has mapped."""
        return sum(
            self._asked[at : at + self.pages].count(1)
            for segment in pool.mapped.segments[:-1]
            for at in [self._place(segment)]
        )

    def touched(self, pool: Any) -> list[tuple[int, int]]:
        """Node and offset of the pages of blocks with contents for which no client has asked."""
        found = []
        for segment in pool.mapped.segments:
            if segment.index < self.nodes:
                at = self._place(segment)
                found += [
                    (segment.index, page * PAGE)
                    for page in data_pages(segment.fd, self.pages)
                    if page * PAGE >= self.blocks and not self._asked[at + page]
                ]
        return found


def data_pages(fd: int, count: int) -> set[int]:
    """Which of the first pages of a file have contents."""
    found: set[int] = set()
    at = 0
    while at < count * PAGE:
        try:
            begin = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                break  # nothing behind it
            raise
        at = os.lseek(fd, begin, os.SEEK_HOLE)
        found.update(range(begin // PAGE, min(-(-at // PAGE), count)))
    return found
