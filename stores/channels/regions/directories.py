"""The directories of the catalogue's hash table: made anew on nodes that were replaced.

The entries of the former directory are lost; the catalogue says what it means that a key is not
found (catalogue.py). The new directory is made, empty, by the first client that needs it, and has a
number: how often nodes of the pool had been replaced by then. The number lies in entry 0, which has
no other use, in place of the lock. So whatever has a smaller number is older than this directory. A
directory that was made with the table has number 0. Before a region is given its number, the
directories of all nodes in service are made (`renew_all`), so none of them has a greater number;
with a node that is not in service then, the region counts as older.

A handle knows a directory by its address; that of a lost one is FORMER (shm/endpoint/states.py)
until the handle has found the new one.

A kill leaves behind: the same as a region that is being made (shm/catalogue/regions.py).
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

from limpet.shm.endpoint.field_ends import LASTS, Field
from limpet.shm.endpoint.states import FORMER, generation_of
from limpet.shm.errors import NodeFailed, StoreFull
from limpet.stores.race.layout import DIRECTORY_ENTRY
from limpet.stores.race.store import Race

NUMBER_MAX: Final = 0xFF_FFFF
"""A mark has room for this; no node is replaced so often in 30 years, once a minute."""
FIELDS: Final = (
    Field(
        "mark of a channel: replacements of nodes",
        NUMBER_MAX,
        0.017,
        LASTS,
        "it stays; then parts that were lost count as missing",
    ),
)
GONE: Final = ("failed", "being replaced")
"""States of a node whose memory is lost to all."""


class Directories:
    """The directories of `race`, one on each memory node. Not to be called in an operation."""

    def __init__(self, pool: Any, race: Race) -> None:
        self.pool = pool
        self.race = race
        self.count: int = race.index.subtables

    def renew(self, node: int, make: bool) -> None:
        """Find the directory on a node that was replaced; `make`: make it if there is none."""
        self.pool.exclusively(lambda: self._attach(node, make))

    def renew_all(self) -> None:
        """Have a directory on each node that is in service and has room for it."""
        for node in range(self.count):
            with contextlib.suppress(NodeFailed, StoreFull):
                self.renew(node, True)

    def _attach(self, node: int, make: bool) -> None:
        if self.race.index.tables[node] < FORMER:
            return
        regions = self.pool.regions
        region = regions.find(node, self.race.name)
        # A node that was not replaced has lost the directory: its entries may be elsewhere.
        if region is None and make and generation_of(self.pool.view.word(node)):
            # CRASH(renewed): the region is made by the next client, or is complete.
            size = self.race.parameters.directory_size
            region = regions.obtain(node, self.race.name, size, self._write_number)
        if region is not None:
            self.race.index.tables[node] = region.address

    def _number_at(self, address: int) -> int:
        """Address of the number of the directory at this address: it is in entry 0, the last."""
        return address + self.race.parameters.directory_size - DIRECTORY_ENTRY

    def _write_number(self, region: Any) -> None:
        self.pool.endpoint.store(self._number_at(region.address), self.replacements())

    def replacements(self) -> int:
        """How often nodes were replaced."""
        view = self.pool.view
        words = [view.word(node) for node in range(self.count)]
        return min(sum(generation_of(word) for word in words), NUMBER_MAX)

    def number(self, node: int) -> int:
        """The number of a directory that was made on a node that was replaced; else 0."""
        self.pool.client.enter()
        try:
            return self.pool.endpoint.load(self._number_at(self.race.index.tables[node]))
        finally:
            self.pool.client.leave()

    def is_away(self, node: int) -> bool:
        """Whether the entries of that directory are lost, and there is no new directory."""
        with contextlib.suppress(NodeFailed):
            self.renew(node, False)
        return self.race.index.tables[node] >= FORMER or self.pool.nodes()[node]["state"] in GONE
