"""The positions of a ring buffer's readers (ring_buffer.py): an SST with one word a row."""

from __future__ import annotations

from limpet.stores.channels.sst import SST


class Positions(SST):
    """How far each reader has read; a newcomer begins at `first`."""

    first = 0

    def joined(self) -> None:
        var = self[self.own_row]
        var.store(self.first)
        var.place()
