"""The locks of nodes that are changed in place: words that name who holds them.

A lock word is 0, or the id of the client that holds it (never used again for another one). It is
taken by a CAS from 0, and given back by a plain write of 0, which travels with the write of the
node. Where the words are:

    table      one word for each `node_size` bytes of a memory node's blocks, in the tree's region,
               and one for the root; so that a node can be locked that was not read, though what is
               remembered of its address may be out of date (Sherman's lock table)
    in nodes   the first word of the node (DrTM+H). Only who has read the node in the same
               operation locks it: its memory is not used for anything else before that is over
"""

from __future__ import annotations

from typing import Any

from limpet.shm.layout import NODE_SHIFT, OFFSET_MASK


class NodeLocks:
    """The locks of a store's trees, for one client. `first`: of the table, from the root on."""

    def __init__(self, store: Any) -> None:
        self.endpoint = store.endpoint
        self.client = store.client
        self.roots = store.roots
        self.blocks = store.heap.blocks
        self.node_size = store.parameters.node_size
        self.in_nodes = store.parameters.optimistic
        self.idempotent = store.parameters.idempotent

    def word(self, at: int) -> int:
        """Address of the lock of the node there."""
        if self.in_nodes:
            return at
        root = int(self.roots[at >> NODE_SHIFT & 0xFF])
        first = root + self.node_size
        if at == root:
            return first
        return first + 8 + ((at & OFFSET_MASK) - self.blocks) // self.node_size * 8

    def holder(self, at: int) -> int:
        """Who holds the lock of the node there; 0: nobody."""
        return int(self.endpoint.load(self.word(at)))

    def acquire(self, at: int) -> bool:
        """Lock the node there; False: somebody else has."""
        return not self.endpoint.cas(self.word(at), 0, self.client.ident)

    def release(self, at: int) -> None:
        """Unlock the node there, which this client has locked."""
        if self.idempotent:
            self.endpoint.cas(self.word(at), self.client.ident, 0)
        else:
            self.endpoint.store(self.word(at), 0)
