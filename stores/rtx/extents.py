"""Extent: memory that another participant of a transaction links, or does not link any more.

A value that is too long for its tree node is in an object of its own, which the node names. So the
extent is there, or is not, as the node is: it has no lock, and nothing is done to it but freed. An
entry of the log with object 0. A kill leaves behind: an extent in the log, which frees it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.words import REFERENCE_MASK
from limpet.stores.rtx.layout import EXTENT_PAIR
from limpet.stores.rtx.participant import Participant

if TYPE_CHECKING:
    from limpet.stores.rtx.log import Log


class Extent(Participant):
    """An extent that becomes linked, `new`, or is not linked any more, `old`."""

    def __init__(
        self,
        old: int,
        new: int,
        link_address: int = 0,
        staging: Any = None,
        leaf: int = 0,
        pair: tuple[bytes, bytes] = (b"", b""),
    ) -> None:
        """`link_address`: how a client journal names it. `staging`: of a new one, what writes it
        with this pair, for a key in that leaf."""
        self.describe(0, old, new)
        self.link_address = link_address
        self.staging = staging
        self.leaf = leaf
        self.pair = pair

    def node(self) -> int:
        return self.leaf >> NODE_SHIFT & 0xFF

    def sizes(self) -> list[int]:
        return [] if self.old else [self.staging.store.objects.size_of(*self.pair)]

    def reserve(self, log: Log, allocator: Any) -> bool:
        if self.old:
            log.note(self)
        return True  # a new one comes late

    def prepare(self, log: Log, allocator: Any) -> bool:
        if self.old:
            return True
        reference: int = self.staging.new_extent(allocator, self.leaf, *self.pair)
        if not reference:
            return False
        self.new = reference
        log.note_late(self)
        return True

    def unlinked(self, committed: bool, found: list[int]) -> None:
        reference = (self.old if committed else self.new) & REFERENCE_MASK
        if reference:
            found.append(reference)

    def named(self) -> list[tuple[int, int]]:
        return [(self.old | self.new, self.link_address | EXTENT_PAIR)]
