"""A hash table that goes on on nodes that were replaced: it is given new directories there.

What the former directory had is lost; who uses this says what it means that something is not there.
The new one is made, empty, by whoever needs it first, and has a number, which is in its entry 0, of
no other use, in place of the lock: how often nodes of the pool had been replaced by then. So what
has a smaller number is older than this directory. One that was made with the store has 0. Before
something is given its number, the directories of all nodes in service are made (`_renew_all`), so
that none of them is numbered later; with a node that is not in service then, it counts as older.

A handle knows a directory by its address; that of one which was lost is FORMER
(shm/endpoint/states.py) until the handle has met the new one.

A kill leaves behind: what a region leaves that is being made (shm/catalogue/regions.py).
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

from limpet.shm.endpoint.field_ends import LASTS, Field
from limpet.shm.endpoint.states import FORMER, generation_of
from limpet.shm.errors import NodeFailed, StoreFull
from limpet.stores.race.layout import DIRECTORY_ENTRY
from limpet.stores.race.old.store import Growing

NUMBER_MAX: Final = 0xFF_FFFF
"""What a mark has room for; a node cannot be replaced so often in 30 years, each in a minute."""
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


class Renewing(Growing):
    """The `race` store with directories that are made anew. Outside of operations."""

    def _belongs(self, key: bytes) -> int:
        """The number of the directory, and of its node, that a key belongs to."""
        return int(self._table_of(key))

    def _renew(self, table: int, make: bool) -> None:
        """Know the directory on a node that was replaced; `make`: have one."""
        self.pool.exclusively(lambda: self._attach(table, make))

    def _renew_all(self) -> None:
        """Have a directory on each node that is in service and has room for it."""
        for table in range(self.subtables):
            with contextlib.suppress(NodeFailed, StoreFull):
                self._renew(table, True)

    def _attach(self, table: int, make: bool) -> None:
        if self.tables[table] < FORMER:
            return
        regions = self.pool.regions
        region = regions.find(table, self.name)
        if region is None and make:
            # CRASH(renewed): the region is made by the next one, or is as it is to be.
            region = regions.obtain(
                table, self.name, self.parameters.directory_size, self._number_directory
            )
        if region is not None:
            self.tables[table] = region.address

    def _number_directory(self, region: Any) -> None:
        self.endpoint.store(region.address + DIRECTORY_ENTRY * self.entries, self._replacements())

    def _replacements(self) -> int:
        """How often nodes were replaced."""
        view = self.pool.view
        words = [view.word(node) for node in range(self.subtables)]
        return min(sum(generation_of(word) for word in words), NUMBER_MAX)

    def _number(self, table: int) -> int:
        """The number of a directory that was made on a node that was replaced; else 0."""
        self.client.enter()
        try:
            return self.endpoint.load(self.tables[table] + DIRECTORY_ENTRY * self.entries)
        finally:
            self.client.leave()

    def _is_away(self, table: int) -> bool:
        """Whether what that directory had is lost, and there is none in its place."""
        with contextlib.suppress(NodeFailed):
            self._renew(table, False)
        return self.tables[table] >= FORMER or self.pool.nodes()[table]["state"] in GONE
