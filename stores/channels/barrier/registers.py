"""The registers of a barrier's participants: an SST with one word a row (barrier.py)."""

from __future__ import annotations

from limpet.stores.channels.sst import SST


class Registers(SST):
    """The registers of a barrier."""

    def vacates(self, row: int, last: bool) -> bool:
        there: bool = self.parent.vacates_register(row, last)
        return there
