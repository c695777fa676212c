"""Recycling of out-of-place buffers (SWARM sections 4.5 and 5.4; the authors have not done it).

Invariant: a buffer that is in use is named by a pointer of its register on some node in service, or
in the hand of a client, or both; and a pointer names nothing that was freed.

    written   in hand, with the register as its home, before the first pointer names it
    given up  in hand, seen to be named under the pin; its pointers emptied on every replica in
              service; then freed. Any number of clients may do that at the same time

A buffer is given up when another write, which is greater, is known to be at a majority: by its
writer with its next write, or by any other writer, who finds it older than its own, on all replicas
of a majority, and VERIFIED. (Not before: its writer may be about to name it on one more replica, or
to write the value again with another timestamp.) So a key that nobody changes any more has few
buffers. A client that reads one meanwhile is pinned, and the buffer is
not used again before that ends (shm/clients/epoch.py).

A register is given up with its key: a tombstone is at a majority by then, and no slot of the index
names it. Its ident is cleared on every replica, then what its pointers name is freed, then it
itself. The client that does so either sees a buffer that another client puts into it at that
moment, or that client sees the ident cleared and frees the buffer itself.

A kill leaves everything in the hand. A buffer is linked, `is_linked`, when its register is in
use, has its ident, and names it.
"""

from __future__ import annotations

import contextlib
from typing import Final

from limpet.shm.endpoint.words import ADDRESS_MASK, REFERENCE_MASK, replica_bits
from limpet.shm.errors import AddressError, NodeFailed
from limpet.stores.fusee.links import OLD
from limpet.stores.fusee.marks import ENTRY_SIZE
from limpet.stores.swarm.in_n_out import InNOut
from limpet.stores.swarm.layout import STAMP_SHIFT
from limpet.stores.swarm.words import row_of, side_of, stamp_of

VERIFIED_BIT: Final = 1 << STAMP_SHIFT - 1


def area_of(key_size: int) -> int:
    """Where the words of a register begin, from its address, whose key has that many bytes."""
    return 2 * ENTRY_SIZE + (key_size + 7 & ~7)


class Recycling(InNOut):
    """Giving up the buffers of registers, and registers."""

    # ---- buffers --------------------------------------------------------------------------------

    def give_up(self, seen: int, row: int, reference: int) -> None:
        """Free a buffer that this row was seen to name on replica `seen`, under our pin."""
        held = self.client.hold(reference, self.home() | OLD)
        pointers = 8 * (self.pointers + 2 * row)
        k = seen
        for _ in range(self.replicas):
            try:
                for side in range(0 if self.endpoint.failed(self.bases[k]) else 2):
                    at = pointers + self.bases[k] + 8 * side
                    if self.endpoint.load(at) == reference:
                        # CRASH(emptied): whoever settles the hand sees that nothing names it.
                        self.endpoint.cas(at, reference, self.ident)
            except NodeFailed:
                pass  # the pointer went with its node
            k = k + 1 if k + 1 < self.replicas else 0
        self.client.release(held)

    def recycle(self, word: int) -> None:
        """Free what `word`, which is ours and at a majority, makes useless.

        `front` is from before it was written.
        """
        own = row_of(word)
        at = self.order[0] * self.stride + self.pointers
        for row in range(self.writers):
            for side in range(2):
                if row != own and self.front[at + 2 * row + side] == self.ident:
                    continue
                first = self.named(self.order[0], row, side)
                if first not in (0, self.buffer) and (
                    row == own or self._is_useless(word, row, side, first)
                ):
                    self.give_up(self.order[0], row, first)
                for n in range(1, self.read if row == own else 0):
                    other = self.named(self.order[n], own, side)
                    if other not in (0, self.buffer, first):
                        self.give_up(self.order[n], own, other)

    def _is_useless(self, word: int, row: int, side: int, reference: int) -> bool:
        """Whether another writer's buffer is: that of an older tuple that is VERIFIED, and that was
        read of all of a majority, so that its writer has no pointer left to set to it.
        """
        first = self.front[self.order[0] * self.stride + 2 + row % self.buffers]
        verified = 0
        for n in range(self.read):
            there = self.front[self.order[n] * self.stride + 2 + row % self.buffers]
            verified |= there & VERIFIED_BIT
            if stamp_of(there) != stamp_of(first):
                return False
            if row_of(there) != row or side_of(there) != side:
                return False
        if not verified or stamp_of(first) >= stamp_of(word):
            return False
        # The tuple's own buffer may be gone, and the pointer set for the next one already.
        return self._is_of(reference, self.order[0], stamp_of(first))

    def _is_of(self, reference: int, k: int, stamp: int) -> bool:
        """Whether a buffer has the value of that stamp, as the one beside replica `k` says."""
        address = self.beside(reference, k)
        try:
            return address != 0 and self.endpoint.load(address) == stamp << STAMP_SHIFT
        except NodeFailed:
            return False

    def is_linked(self, reference: int) -> bool:
        """Whether the current register, which may be damaged, names a buffer."""
        self.read_all()
        for k in range(self.replicas):
            if self.front[k * self.stride]:
                for row in range(self.writers):
                    for side in range(2):
                        if self.named(k, row, side) == reference:
                            return True
        return False

    # ---- registers ------------------------------------------------------------------------------

    def visit(self, reference: int) -> bool:
        """Turn to a register of which only the reference is known; False if there can be none."""
        if not self.heap.plausible(reference) or self.heap.replicas(reference) != self.replicas:
            return False
        for k in range(self.replicas):
            address = self.heap.replica(reference, k) + ENTRY_SIZE
            if self.endpoint.failed(address):
                continue
            try:
                sizes = self.endpoint.load(address)
            except NodeFailed:
                continue
            self.turn_to(reference, area_of(sizes & 0xFFFF))
            return True
        return False

    def key(self) -> bytes:
        """The key of the current register, as its object has it: for messages."""
        for k in range(self.replicas):
            at = self.bases[k] - self.area
            try:
                size = min(self.endpoint.load(at + ENTRY_SIZE) & 0xFFFF, self.area)
                return self.endpoint.read(at + 2 * ENTRY_SIZE, size)
            except (NodeFailed, AddressError):
                continue
        return b""

    def names(self, reference: int, home: int) -> bool:
        """Whether a buffer is linked whose pair in a hand has this home. Called pinned."""
        try:
            return (
                self.visit_home(home)
                and self.heap.used(self.reference)
                and self.is_linked(reference)
            )
        except NodeFailed:
            return False

    def visit_home(self, home: int) -> bool:
        """`visit` the register that is the home of a buffer."""
        return self.visit(home >> 56 << 48 | home & ADDRESS_MASK | replica_bits(self.replicas))

    def dispose(self, reference: int) -> None:
        """Give up what a register has that no slot names, but not itself. Called pinned."""
        if not self.visit(reference):
            return
        self.read_all()
        # ORDER: the ident before the pointers: who names a buffer looks at the ident afterwards.
        for k in range(self.replicas):
            ident = self.front[k * self.stride]
            if ident:
                with contextlib.suppress(NodeFailed):
                    self.endpoint.cas(self.bases[k], ident, 0)
        # CRASH(register-given-up): named in a hand; whoever settles it goes on.
        for reference in self.buffers_named():
            self.heap.free(reference)

    def buffers_named(self) -> set[int]:
        """References to all buffers that the current register names, on any node in service."""
        found = set()
        self.read_all()
        for k in range(self.replicas):
            for row in range(self.writers):
                for side in range(2):
                    reference = self.named(k, row, side) & REFERENCE_MASK
                    if reference and self.heap.plausible(reference):
                        found.add(reference)
        return found
