"""The shared region: memory of each participant that all may read and write (LOCO section 5.1).

A kill leaves behind: any of the words of a write.
"""

from __future__ import annotations

from typing import Any

from limpet.shm.errors import ParameterError
from limpet.stores.channels.channel import Channel
from limpet.stores.channels.layout import WORD


class SharedRegion(Channel):
    """The same amount of memory for each participant, which all may read and write.

    Nothing orders their accesses: add locks, or rules on which participant writes where.
    """

    def __init__(
        self, manager: Any, name: str, parent: Any = None, *, size: int, participants: int
    ) -> None:
        """`size`: bytes of each participant's; that of row r lies on memory node r % nodes."""
        super().__init__(
            manager,
            name,
            parent,
            kind="shared_region",
            size=WORD,
            of=size,
            participants=participants,
        )
        self.size = size
        self.parts: dict[int, int] = {}
        self.take_part(participants)

    def part(self, row: int) -> int:
        """Address of the memory of a participant."""
        if row not in self.parts:
            if not 0 <= row < self.rows:
                raise ParameterError(f"{self.name!r} has rows 0 to {self.rows - 1}, no row {row}")
            node = row % self.pool.parameters.nodes
            self.parts[row] = self.region(f"part{row}", self.size, node)
        return self.parts[row]

    def read(self, row: int, offset: int, size: int) -> bytes:
        """Bytes of a participant's memory; each aligned word is whole, no more."""
        at = self._at(row, offset, size)
        self.enter()
        try:
            return self.endpoint.fetch(at, size)
        finally:
            self.leave()

    def write(self, row: int, offset: int, data: bytes) -> Any:
        """Write to a participant's memory; an AckKey."""
        at = self._at(row, offset, memoryview(data).nbytes)
        self.enter()
        try:
            self.endpoint.write(at, data)
            return self.manager.issue()
        finally:
            self.leave()

    def _at(self, row: int, offset: int, size: int) -> int:
        if offset < 0 or size < 0 or offset + size > self.size:
            raise ParameterError(
                f"{self.name!r}: bytes {offset} to {offset + size} are not within its {self.size}"
            )
        return self.part(row) + offset
