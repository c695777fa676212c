"""Looks at the whole of a store whose trees are changed in place (check.py)."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np

from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.slots import INCARNATION_BITS
from limpet.shm.endpoint.words import REFERENCE_MASK
from limpet.shm.errors import NodeFailed, StoreCorrupt
from limpet.stores.sherman.check import TreeCheck
from limpet.stores.sherman.layout import GONE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet.stores.sherman.page import Page


class InPlaceCheck(TreeCheck):
    """Looks by a store's handle, one operation at a time."""

    looks_max = 20
    looks = 0

    def references(self) -> Any:
        """References to all nodes and extents on memory nodes in service, as uint64."""
        found: list[int] = []
        for tree, root in enumerate(self.store.trees.roots):
            with contextlib.suppress(NodeFailed):
                for count, (at, node) in enumerate(self._nodes(tree)):
                    self.store.show_progress(count)
                    if at != root:
                        found.append(self.store.trees.reference(at))
                    found += [
                        node.link(index) & REFERENCE_MASK
                        for index in range(node.count)
                        if node.has_extent(index)
                    ]
        return np.array(found, dtype=np.uint64)

    def _nodes(self, tree: int) -> Iterator[tuple[int, Any]]:
        """Address and copy of each node; a node that stays torn is given without entries."""
        rest = [int(self.store.trees.roots[tree])]
        seen = set(rest)
        while rest:
            at = rest.pop()
            node = self.store.trees.blank().page
            if not self._read(at, node):
                image = self.store.image_of(at)
                if image:
                    node.read_image(image, at)
                if not node.is_whole():
                    node.reset(0, b"", None, 0)
            if node.level == GONE:
                continue
            yield at, node
            links = [node.link(i) for i in range(node.count)] if node.level else []
            links += [node.sibling()] if node.sibling() else []
            rest += [link for link in links if link not in seen]
            seen.update(links)

    def _read(self, at: int, node: Any) -> bool:
        """Read a node, again if it is torn; whether it is whole."""
        scope = self.endpoint.background(True)
        try:
            for attempt in range(self.looks_max):
                node.read(at)
                if node.is_whole():
                    return True
                self.endpoint.pause(attempt)
            return False
        finally:
            self.endpoint.background(scope)

    def _check_tree(self, tree: int) -> None:
        try:
            super()._check_tree(tree)
        except StoreCorrupt:
            lives, holder = self.store.pool.membership.lives, self.store.node_locks.holder
            if not any(lives(holder(at)) for at, _ in self._nodes(tree) if holder(at)):
                raise
            # A client has stopped in the middle of changing it.

    def _waits_for(self, tree: int) -> bool:
        return False

    def _versions(self, tree: int) -> bytes:
        # While a node of the tree is locked, no two looks are alike: the tree is being changed.
        self.looks += 1
        found = []
        for at, node in self._nodes(tree):
            found += [at, node.version, self.looks if self.store.node_locks.holder(at) else 0]
        return np.array(found, dtype=np.uint64).tobytes()

    def _wrong_below(
        self, tree: int, at: int, low: bytes, high: bytes | None, level: int | None, seen: set[int]
    ) -> str:
        """The fault found in the nodes between these fences, or below them, or "".

        There is more than one such node while the node above does not link to a new one yet.
        """
        node = self.store.trees.blank().page
        while self._read(at, node) and node.high() not in (None, high):
            middle = node.high()
            if (high is not None and middle >= high) or not node.sibling() or middle <= low:
                break
            wrong = super()._wrong_below(tree, at, low, middle, level, seen)
            if wrong:
                return wrong
            at, low = node.sibling(), middle
        return super()._wrong_below(tree, at, low, high, level, seen)

    def _wrong_link(self, tree: int, at: int, seen: set[int]) -> str:
        if at >> NODE_SHIFT != self.store.trees.roots[tree] >> NODE_SHIFT:
            return f"a node links to {at:#x}, on another memory node"
        return f"two nodes link to the node at {at:#x}" if at in seen else ""

    def _wrong_memory(self, at: int, page: Page, is_root: bool) -> str:
        if not is_root:
            reference = self.store.trees.reference(at)
            if not self.store.heap.plausible(reference) or not self.store.heap.used(reference):
                return "is no object in use"
        return "" if self._read(at, page) else "is torn"

    def _wrong_locks(self, tree: int, seen: set[int]) -> str:
        for at in seen:
            holder = self.store.node_locks.holder(at)
            if holder and not self._is_client(holder >> INCARNATION_BITS):
                return f"the node at {at:#x} is locked by no client: {holder:#x}"
        return ""

    def left_by(self, ident: int) -> set[str]:
        """The named crash points that a dead client shows."""
        return {"node-locked"} if self.store.node_locks.any_held(ident) else set()
