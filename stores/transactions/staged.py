"""The changes of an operation to a tree or a hash store: they are staged, then committed.

Held by the commits of all stores that stage their changes: by transactions (transactions/commit.py)
and by changes in place (sherman/in_place_commit.py). A private structure of one client and one
operation.

Few objects are compared one by one, and more are found by a dict, as most operations change a few.
The notes on each are in a `StagedNode`, which the next operation uses again.
"""

from __future__ import annotations

from typing import Any, Final

FEW: Final = 8
"""So many objects are compared one by one."""
KEPT: Final = 64
"""So many are kept for the next operation."""
SPARES_MAX: Final = 64


class NewData:
    """The `size` bytes that are to be written to an object."""

    def __init__(self, size: int) -> None:
        self.size = size

    def write(self, at: int, state: int) -> None:
        """Write it there; `state`: the lock state under which it is linked."""
        raise NotImplementedError


class Borrowed:
    """Private memory that an operation has borrowed."""

    def __init__(self) -> None:
        self.spares: list[Any] | None = None
        """Those that are not in use, to which `give_back` adds this one."""

    def give_back(self) -> None:
        """It is not used any more, and may be lent again."""
        if self.spares is not None and len(self.spares) < SPARES_MAX:
            self.spares.append(self)


class StagedNode:
    """An object that an operation has read, or writes."""

    def stage(self, at: int) -> None:
        """Use this for the object there, of which nothing is known yet."""
        self.at = at
        self.version = 0
        """The version in which it was read, if it is `expected`."""
        self.pointer = 0
        """The pointer that it had in that version, if it has one (transactions/tx_object.py)."""
        self.expected = False
        self.written = False
        """Whether it gets new data: `page`."""
        self.page: Any = None
        """Its new data, a `NewData`; None: it is to be vacated."""
        self.size = 0
        self.store: Any = None
        self.key = b""
        """For which key of which store it is written."""

    def forget(self) -> None:
        """Keep nothing of an operation that is over."""
        self.page = self.store = None
        self.key = b""


class Staged:
    """Changes that are staged. `begin` starts anew."""

    def __init__(self, pool: Any) -> None:
        self.client = pool.client
        self.endpoint = pool.endpoint
        self.allocator = pool.allocator
        self.heap = pool.heap
        self.membership = pool.membership
        self.reads: Any = None
        """The read set of the operations before this one (transactions/reads.py), or None."""
        self.nodes: list[StagedNode] = []
        """Objects that were read or are written; those after the first `nodes_count` are of earlier
        operations, to be used again."""
        self.nodes_count = 0
        self.places: dict[int, StagedNode] | None = None
        """The objects by address, if they are more than a few."""
        self.changed = 0
        """How many of them are written."""
        self.extents: list[tuple[Any, int, bytes, bytes]] = []
        """New extents: the staging that writes each, the leaf, the key and the value."""
        self.dropped: dict[int, int] = {}
        """Extents that are not linked any more, with their stores as link addresses."""
        self.lent: list[Borrowed] = []
        """Leaves that nodes were copied to."""
        self.begin(0)

    def begin(self, link: int) -> None:
        """Forget what is staged. `link`: how the client journal names the store."""
        self.link = link
        self.busy = 0
        """The object that was in the way, or slot, with SLOT."""
        for index in range(self.nodes_count):
            node = self.nodes[index]
            node.forget()
        self.nodes_count = self.changed = 0
        # ORDER: the count before the list: a signal handler that raises leaves none beyond it.
        if len(self.nodes) > KEPT:
            del self.nodes[KEPT:]
        self.places = None
        if self.extents:
            self.extents = []
        if self.dropped:
            self.dropped.clear()
        self.give_back()

    def give_back(self) -> None:
        """Nothing looks at what was staged: its leaves may be used for other nodes."""
        if self.lent:
            # ORDER: a signal handler that raises has no leaf be given back twice.
            lent, self.lent = self.lent, []
            for leaf in lent:
                leaf.give_back()

    def abandon(self) -> None:
        """An error ends the operation: give back the locks that no log names."""

    def node_at(self, at: int) -> StagedNode | None:
        """All that is known of an object; None: it was neither read nor written."""
        if self.places is not None:
            return self.places.get(at)
        for index in range(self.nodes_count):
            node = self.nodes[index]
            if node.at == at:
                return node
        return None

    def _node_of(self, at: int) -> StagedNode:
        """The notes on an object; made if there are none."""
        found = self.node_at(at)
        if found is not None:
            return found
        if self.nodes_count == len(self.nodes):
            self.nodes.append(StagedNode())
        node = self.nodes[self.nodes_count]
        node.stage(at)
        self.nodes_count += 1
        if self.places is not None:
            self.places[at] = node
        elif self.nodes_count > FEW:
            self.places = {}
            for index in range(self.nodes_count):
                other = self.nodes[index]
                self.places[other.at] = other
        return node

    def is_written(self, at: int) -> bool:
        """Whether the new data of an object is staged, or that it is to be vacated."""
        node = self.node_at(at)
        return node is not None and node.written

    def page_at(self, at: int) -> Any:
        """The new data of an object that is staged; None: there is none."""
        node = self.node_at(at)
        return None if node is None else node.page

    def version_of(self, at: int) -> int:
        """The version in which an object was read; 0: it was not."""
        node = self.node_at(at)
        return 0 if node is None else node.version

    def all_written(self) -> list[StagedNode]:
        """The objects that are written, in the order in which they were met."""
        found: list[StagedNode] = []
        for index in range(self.nodes_count):
            node = self.nodes[index]
            if node.written:
                found.append(node)
        return found

    def expect(self, at: int, version: int, pointer: int = 0) -> None:
        """An object has been read in this version, and its pointer after that; if it is written, it
        is locked from that version."""
        node = self._node_of(at)
        if not node.expected:
            node.expected = True
            node.version = version
            node.pointer = pointer

    def write(self, at: int, page: NewData | None) -> None:
        """Stage the new data of an object; None: vacate it."""
        self.write_for(at, page, None, b"")

    def write_for(self, at: int, page: NewData | None, store: Any, key: bytes) -> None:
        """As `write`, and note the key and the store for which the object is written."""
        node = self._node_of(at)
        if not node.written:
            node.written = True
            self.changed += 1
        node.page = page
        node.size = 0 if page is None else page.size
        if store is not None:
            node.store = store
            node.key = key

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
