"""The locks of nodes that are changed in place (baselines/dtx/locks.py). Where the words are:

    table      one word for each `node_size` bytes of a memory node's blocks, in the tree's region,
               and one for the root (Sherman's lock table). So a client can lock a node before it
               reads it, even if the address it remembers may be out of date
    in nodes   the first word of the node (DrTM+H). A client locks a node only if it has read it in
               the same operation: until that is over, the memory has no other use

The unlocking verb goes in the same round trip as the write of the node.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from limpet.shm.endpoint.layout import NODE_SHIFT, OFFSET_MASK
from limpet.shm.errors import NodeFailed
from limpet.stores.baselines.dtx.locks import ObjectLocks


class NodeLocks(ObjectLocks):
    """The locks of a store's trees, for one client."""

    def __init__(self, store: Any) -> None:
        ObjectLocks.__init__(self, store)
        self.roots = store.trees.roots
        self.blocks = store.heap.blocks
        self.node_size = store.parameters.node_size
        self.table_size = store.parameters.table_size - self.node_size
        self.in_nodes = store.parameters.optimistic
        self.idempotent = store.parameters.idempotent

    def word(self, at: int) -> int:
        if self.in_nodes:
            return at
        root = self.roots[at >> NODE_SHIFT & 0xFF]
        first = root + self.node_size
        if at == root:
            return first
        return first + 8 + ((at & OFFSET_MASK) - self.blocks) // self.node_size * 8

    def any_held(self, ident: int) -> bool:
        """Whether this client holds the lock of some node, as the tables say, read at once."""
        for root in self.roots:
            with contextlib.suppress(NodeFailed):
                table = self.endpoint.read(int(root) + self.node_size, self.table_size)
                if (np.frombuffer(table, np.uint64) == ident).any():
                    return True
        return False

    def release(self, at: int) -> None:
        if self.idempotent:
            self.endpoint.cas(self.word(at), self.client.ident, 0)
        else:
            ObjectLocks.release(self, at)
