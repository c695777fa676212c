"""Registers as client journals name them: whether a buffer is linked, and the end of a register.

A buffer is linked when its register is in use, has its ident, and names it (row.py).

A register is given up with its key: a tombstone is at a majority by then, and no slot of the index
names it. A client clears its ident on every replica, then frees the buffers that its pointers name,
then the register. Another client may be linking a buffer at that moment: either the first client
sees the pointer, or the second one sees the ident cleared and frees the buffer itself. A kill
leaves the register in the client journal.
"""

from __future__ import annotations

import contextlib
from typing import Any

from limpet.shm.endpoint.words import ADDRESS_MASK, REFERENCE_MASK, replica_bits
from limpet.shm.errors import NodeFailed
from limpet.stores.fusee.marks import ENTRY_SIZE
from limpet.stores.swarm.quorum import Quorum
from limpet.stores.swarm.register import area_of


class Recycling:
    """Whole registers of a store. `visit` selects one, and the others work on the one selected."""

    def __init__(self, pool: Any, quorum: Quorum) -> None:
        self.endpoint = pool.endpoint
        self.heap = pool.heap
        self.quorum = quorum
        self.register = self.quorum.register

    def visit(self, reference: int) -> bool:
        """Select a register of which only the reference is known; False if there can be none."""
        count = self.register.replicas
        if not self.heap.plausible(reference) or self.heap.replicas(reference) != count:
            return False
        for k in range(count):
            address = self.heap.replica(reference, k) + ENTRY_SIZE
            if self.endpoint.failed(address):
                continue
            try:
                sizes = self.endpoint.load(address)
            except NodeFailed:
                continue
            self.register.select(reference, area_of(sizes & 0xFFFF))
            return True
        return False

    def visit_home(self, link_address: int) -> bool:
        """`visit` the register that a buffer's link_address names."""
        bits = replica_bits(self.register.replicas)
        return self.visit(link_address >> 56 << 48 | link_address & ADDRESS_MASK | bits)

    def names(self, reference: int, link_address: int) -> bool:
        """Whether a buffer is linked whose pair in a client journal has this link_address. Called
        pinned."""
        try:
            return (
                self.visit_home(link_address)
                and self.heap.used(self.register.reference)
                and self._is_linked(reference)
            )
        except NodeFailed:
            return False

    def _is_linked(self, reference: int) -> bool:
        """Whether the register, which may be damaged, names a buffer."""
        self.quorum.read_all()
        for replica in self.quorum.replicas:
            if replica.word(0):
                for row in range(self.register.writers):
                    for side in range(2):
                        if replica.named(row, side) == reference:
                            return True
        return False

    def dispose(self, reference: int) -> None:
        """Give up the buffers of a register that no slot names, but not itself. Called pinned."""
        if self.visit(reference):
            self.quorum.read_all()
            # ORDER: the ident before the pointers: a writer that links a buffer reads it
            # afterwards.
            for replica in self.quorum.replicas:
                ident = replica.word(0)
                if ident:
                    with contextlib.suppress(NodeFailed):
                        self.endpoint.cas(self.register.address(replica.k), ident, 0)
            # CRASH(register-given-up): the client journal names it; its recovery goes on.
            for buffer in self.buffers_named():
                self.heap.free(buffer)

    def buffers_named(self) -> set[int]:
        """References to all buffers that the register names, on any node in service."""
        found = set()
        self.quorum.read_all()
        for replica in self.quorum.replicas:
            for row in range(self.register.writers):
                for side in range(2):
                    reference = replica.named(row, side) & REFERENCE_MASK
                    if reference and self.heap.plausible(reference):
                        found.add(reference)
        return found
