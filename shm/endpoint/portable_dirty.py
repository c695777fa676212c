"""Part of the portable fabric: the lines that a client of a durable pool has changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

LINE: Final = 64
DIRTY_MAX: Final = 32
"""Ranges of lines that a client notes before it writes them back."""


class DirtyLines:
    """Ranges of lines to be written back; `unfenced`: some were, and no fence has come since."""

    __slots__ = ("ranges", "unfenced")

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []
        self.unfenced = False

    def note(self, addr: int, size: int, flush: Callable[[int, int], object]) -> None:
        """Note the lines of these bytes; write all back with `flush` if there are too many."""
        first, end = addr & ~(LINE - 1), addr + size + LINE - 1 & ~(LINE - 1)
        for index in range(len(self.ranges) - 1, -1, -1):
            begins, ends = self.ranges[index]
            if first <= ends and end >= begins:
                self.ranges[index] = (min(first, begins), max(end, ends))
                return
        if len(self.ranges) == DIRTY_MAX:
            self.write_back(flush)
        self.ranges.append((first, end))

    def write_back(self, flush: Callable[[int, int], object]) -> None:
        """Write all back, without a fence."""
        while self.ranges:
            first, end = self.ranges[-1]
            flush(first, end - first)
            self.ranges.pop()
            self.unfenced = True
