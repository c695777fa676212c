"""The changes of an operation to a tree or a hash store: they are staged, then committed.

Held by the commits of all stores that stage their changes: by transactions (rtx/commit.py) and by
changes in place (sherman/in_place_commit.py). A private structure of one client and one operation.
"""

from __future__ import annotations

from typing import Any


class Staged:
    """Changes that are staged. `begin` starts anew."""

    def __init__(self, pool: Any) -> None:
        self.client = pool.client
        self.endpoint = pool.endpoint
        self.allocator = pool.allocator
        self.heap = pool.heap
        self.membership = pool.membership
        self.reads: Any = None
        """The read set of the operations before this one (rtx/reads.py), or None."""
        self.pages: dict[int, Any] = {}
        """New data of objects, of `size` bytes, which `write(address, state)` writes; None: to be
        vacated."""
        self.versions: dict[int, int] = {}
        """Versions in which objects were read."""
        self.extents: list[tuple[Any, int, bytes, bytes]] = []
        """New extents: the staging that writes each, the leaf, the key and the value."""
        self.dropped: dict[int, int] = {}
        """Extents that are not linked any more, with their stores as link addresses."""
        self.owners: dict[int, Any] = {}
        """For which key of which store each object is written: `ReadPlace`."""
        self.lent: list[Any] = []
        """Pages that nodes were copied to."""
        self.begin(0)

    def begin(self, link: int) -> None:
        """Forget what is staged. `link`: how the client journal names the store."""
        self.link = link
        self.busy = 0
        """The object that was in the way, or slot, with SLOT."""
        if self.pages:
            self.pages.clear()
        if self.versions:
            self.versions.clear()
        if self.extents:
            self.extents = []
        if self.dropped:
            self.dropped.clear()
        if self.owners:
            self.owners.clear()
        self.give_back()

    def give_back(self) -> None:
        """What is staged is not looked at any more: its pages may be used for other nodes."""
        if self.lent:
            for page in self.lent:
                page.give_back()
            self.lent.clear()

    def abandon(self) -> None:
        """An error ends the operation: give back the locks that no log names."""

    def expect(self, at: int, version: int) -> None:
        """An object has been read in this version; if it is written, it is locked from that."""
        if at not in self.versions:
            self.versions[at] = version

    def write(self, at: int, page: Any) -> None:
        """Stage the new data of an object; None: vacate it."""
        self.pages[at] = page

    def have_ready(
        self, wanted: list[tuple[Any, int, int]], sparing: int = 0, update: bool = False
    ) -> None:
        """Have memory ready: allocator, memory node and size of each object. Raises StoreFull.

        `sparing`: so many free blocks of each memory node are left; `update`: as
        `Allocator.replenish_all` has it. Outside of operations.
        """
        sizes: dict[tuple[Any, int], list[int]] = {}
        for allocator, node, size in wanted:
            sizes.setdefault((allocator, node), []).append(size)
        for (allocator, node), some in sizes.items():
            allocator.replenish_all(node, some, 1, sparing, 0, update)
