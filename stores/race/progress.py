"""How far a hash table has grown: its subtables, how full they are, and the splits under way.

A look takes one operation for each subtable, and reads it. Other clients may be at work: what is
told of a subtable was so at one moment, and the whole is no snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from limpet.shm.clients.membership import journal_of
from limpet.shm.endpoint.words import TENTATIVE
from limpet.stores.race.index import is_split
from limpet.stores.race.layout import FROZEN
from limpet.stores.race.parameters import SLOTS_PER_BUCKET, SLOTS_PER_GROUP
from limpet.stores.status import VACANT_CLASS

Holder = Callable[[int], "tuple[int, int] | None"]
"""Of the lock word of an entry: the slot of the client that has it, and since when, in ns since
1970; or None."""


def progress_of(store: Any, holder: Holder | None = None) -> dict[str, Any]:
    """Of a store on the index: `subtables`; `depth`, the least and the greatest number of splits
    behind one; `slots`; `pairs`; `splits`, a row for each split under way: how many halves there
    are, how many slots are frozen, and the clients at it. Raises NodeFailed."""
    made = store.parameters
    look = Look(store, holder)

    def rows_of_all() -> list[dict[str, Any]]:
        return [row for table in range(made.subtables) for row in look.rows(table)]

    rows = store.checker.outliving(store.within, rows_of_all)
    slots = made.groups * SLOTS_PER_GROUP * made.bucket_size // SLOTS_PER_BUCKET
    depths = [row["depth"] for row in rows] or [made.depth]
    return {
        "subtables": len(rows),
        "depth": [min(depths), max(depths)],
        "slots": slots * len(rows),
        "pairs": sum(row.pop("pairs") for row in rows),
        "splits": [{**row, "slots": slots} for row in rows if row.pop("splitting")],
    }


class Look:
    """A look at the subtables of one store."""

    def __init__(self, store: Any, holder: Holder | None) -> None:
        self.store = store
        self.checker = store.checker
        self.endpoint = store.endpoint
        self.membership = store.pool.membership
        self.holder = holder

    def rows(self, table: int) -> Iterator[dict[str, Any]]:
        """A row for each subtable of a directory."""
        depth = self.store.parameters.depth
        below = list(range(1 << depth, 2 << depth))
        while below:
            number = below.pop()
            row = self.store.within(self._row, table, number)
            if row is None:
                below += [2 * number, 2 * number + 1]
            elif row:
                yield row

    def _row(self, table: int, number: int) -> dict[str, Any] | None:
        """The row of an entry; empty if it has no subtable yet; None: it is split."""
        lock, pointer, found, halves = self.checker.look_at(table, number)
        if is_split(pointer):
            return None
        if found is None:
            return {}
        words = found[:, :, 1:]
        classes = words >> np.uint64(48) & np.uint64(0xFF)
        used = (words != 0) & (classes != VACANT_CLASS)
        frozen = used & (words & np.uint64(FROZEN) != 0)
        held = self.holder(lock) if self.holder else None
        return {
            "directory": table,
            "entry": number,
            "depth": number.bit_length() - 1,
            "pairs": int((used & (words & np.uint64(TENTATIVE) == 0)).sum()),
            "splitting": bool(halves or held or frozen.any()),
            "halves": len(halves),
            "frozen": int(frozen.sum()),
            **self._by(table, number, halves, held),
        }

    def _by(
        self, table: int, number: int, halves: list[int], held: tuple[int, int] | None
    ) -> dict[str, Any]:
        """`pids` of the clients that have made halves or hold the lock, and `since_ns`, if the lock
        says so: in ns since 1970."""
        pids = set()
        for slot, word in self.membership.occupied() if halves or held else ():
            if (held and held[0] == slot) or any(
                reference in halves for reference, _ in journal_of(self.endpoint, slot)
            ):
                pids.add(self.membership.pid(word))
        return {"pids": sorted(pids), "since_ns": held[1] if held else None}
