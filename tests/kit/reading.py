"""Gets that are met on the way: what happens between two steps of a reader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from limpet.shm.endpoint.hooked import READS, HookedEndpoint

PIECE: Final = 40
"""Words of a read that are one step."""


class ReadingEndpoint(HookedEndpoint, verbs=READS):
    """Calls `visit` before each step of a get."""

    def __init__(self) -> None:
        self.visit: Callable[[int], object] | None = None
        self.steps = 0
        self.looks = 0

    def on_verb(self, verb: str, addr: int, words: int) -> int:
        if self.visit is not None:
            visit, self.visit = self.visit, None
            self.steps += 1
            visit(addr)
            self.visit = visit
        return min(words, PIECE)


class DropsAreNotRead(ReadingEndpoint):
    """Known-bad: nobody looks whether the store was dropped."""

    def stands(self, *rest: int) -> bool:
        return super().stands(*rest[:6], *rest[4:6])
