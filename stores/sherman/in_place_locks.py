"""The locks of nodes that are changed in place (baselines/dtx/locks.py). Where the words are:

    table      one word for each `node_size` bytes of a memory node's blocks, in the tree's region,
               and one for the root; so that a node can be locked that was not read, though what is
               remembered of its address may be out of date (Sherman's lock table)
    in nodes   the first word of the node (DrTM+H). Only who has read the node in the same
               operation locks it: its memory is not used for anything else before that is over

What gives a lock back travels with the write of the node.
"""

from __future__ import annotations

from typing import Any

from limpet.shm.endpoint.layout import NODE_SHIFT, OFFSET_MASK
from limpet.stores.baselines.dtx.locks import ObjectLocks


class NodeLocks(ObjectLocks):
    """The locks of a store's trees, for one client."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.roots = store.trees.roots
        self.blocks = store.heap.blocks
        self.node_size = store.parameters.node_size
        self.in_nodes = store.parameters.optimistic
        self.idempotent = store.parameters.idempotent

    def word(self, at: int) -> int:
        if self.in_nodes:
            return at
        root = int(self.roots[at >> NODE_SHIFT & 0xFF])
        first = root + self.node_size
        if at == root:
            return first
        return first + 8 + ((at & OFFSET_MASK) - self.blocks) // self.node_size * 8

    def release(self, at: int) -> None:
        if self.idempotent:
            self.endpoint.cas(self.word(at), self.client.ident, 0)
        else:
            super().release(at)
