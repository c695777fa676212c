"""The log of a change of a tree (stores/baselines/dtx/log.py): whole nodes.

An object in it is a node. New nodes have no images: they are written before the log says DOING.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.stores.baselines.dtx.log import ValueLog

if TYPE_CHECKING:
    from limpet.stores.entry_log import Entry


class NodeLog(ValueLog):
    """A log of this store."""

    def __init__(self, store: Any, reference: int) -> None:
        ValueLog.__init__(self, store.node_locks, reference)
        self.node_size = store.parameters.node_size

    def carry_out(self, locked: list[Entry]) -> None:
        for entry in locked:
            image = self.endpoint.read(entry.new & ADDRESS_MASK, self.node_size)
            self.endpoint.write(entry.at, image)
