"""Where every byte of a pool's memory nodes is: reachable, free, reserved, held, leaked, failed.

    reachable  objects in use that some store links to
    free       free blocks; objects not in use in blocks that somebody has, or that may be adopted
    reserved   superblocks, directories, tables, bitmaps, named regions, rounding in blocks
    held       objects in use and not linked that a living client has in hand; blocks being claimed
    leaked     what nobody will ever find again, and what a dead client has until it is recovered
    failed     nodes that are lost

Clients may be at work meanwhile. One look is not a snapshot: an object that moves from hand to link
between two reads looks leaked. So what looks leaked is looked at again, after every operation that
ran then has ended, and only what still does after several looks is reported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from limpet.shm.errors import NodeFailed
from limpet.shm.membership import slot_address
from limpet.shm.slots import HAND, HAND_SIZE, client_id
from limpet.shm.words import (
    FREE,
    LARGE,
    LARGE_CLASS,
    OWNER_MASK,
    PENDING,
    REFERENCE_MASK,
    REGION,
    SLAB,
    TAIL,
    TAIL_FIRST_MASK,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet.shm.blocks import BlockTable, Words
    from limpet.shm.epoch import Grace
    from limpet.shm.membership import Membership
    from limpet.shm.regions import Regions

LOOKS_MAX: Final = 6
KEYS: Final = ("total", "reachable", "free", "reserved", "held", "leaked", "failed")


class Audit:
    """One audit of a pool. `references` gives all references that stores link to, as uint64."""

    def __init__(
        self,
        blocks: BlockTable,
        regions: Regions,
        grace: Grace,
        membership: Membership,
        references: Callable[[], Words],
    ) -> None:
        self.blocks = blocks
        self.heap = blocks.heap
        self.regions = regions
        self.grace = grace
        self.membership = membership
        self.references = references
        self.block_size = blocks.heap.layout.block_size

    def run(self) -> dict[str, int]:
        """Bytes by category (`KEYS`); all but `total` add up to `total`."""
        found, suspects = self._look()
        for _ in range(LOOKS_MAX):
            if not suspects:
                break
            self._let_operations_end()
            found, again = self._look()
            suspects &= again
        # What looked leaked once but not always was on its way between a hand and a link.
        honest = sum(size for _, size in suspects)
        found["held"] += found["leaked"] - honest
        found["leaked"] = honest
        return found

    def _let_operations_end(self) -> None:
        epoch = self.grace.close_period()
        attempt = 0
        while self.grace.laggards(epoch) and not self.membership.overdue(("audit", epoch)):
            attempt += 1
            self.blocks.endpoint.pause(attempt)

    def _look(self) -> tuple[dict[str, int], set[tuple[int, int]]]:
        found = dict.fromkeys(KEYS, 0)
        suspects: set[tuple[int, int]] = set()
        # ORDER: used bits and blocks first, then hands, then links: an object in use that moves on
        # meanwhile, from hand to link, is met at the latest where it arrives.
        nodes = [self._read_node(node) for node in range(self.regions.nodes)]
        live, held = self._hands()
        reachable = np.unique(self.references())
        for node, contents in enumerate(nodes):
            found["total"] += self.heap.layout.node_size
            if contents is None:
                found["failed"] += self.heap.layout.node_size
            else:
                self._account(node, contents, live, held, reachable, found, suspects)
        return found, suspects

    def _read_node(self, node: int) -> tuple[Words, dict[int, Words], set[int]] | None:
        try:
            words = self.blocks.words(node)
            used = {}
            for block in np.flatnonzero(np.isin(words >> np.uint64(60), (SLAB, LARGE))).tolist():
                size_class = int(words[block]) >> 52 & 0xFF
                if (int(words[block]) >> 60 == SLAB) != (0 < size_class < self.heap.class_count):
                    continue  # damaged: will count as leaked
                bits = self.blocks.bitmap(node, block, size_class)
                used[block] = np.flatnonzero(
                    np.unpackbits(bits.view(np.uint8), bitorder="little")
                ).astype(np.uint64)
            return words, used, {mark for _, _, mark in self.regions.extents(node)}
        except NodeFailed:
            return None

    def _hands(self) -> tuple[set[int], Words]:
        """Ids of the living clients, and the references in their hands."""
        live: set[int] = set()
        held: list[int] = []
        for slot, word in self.membership.occupied():
            if not self.membership.dead(slot, word):
                live.add(client_id(slot, word))
                hand = self.blocks.endpoint.read(slot_address(slot) + HAND, HAND_SIZE * 16)
                held += np.frombuffer(hand, dtype="<u8")[::2].tolist()
        return live, np.array([r & REFERENCE_MASK for r in held if r], dtype=np.uint64)

    def _account(
        self,
        node: int,
        contents: tuple[Words, dict[int, Words], set[int]],
        live: set[int],
        held: Words,
        reachable: Words,
        found: dict[str, int],
        suspects: set[tuple[int, int]],
    ) -> None:
        words, used, marks = contents
        layout = self.heap.layout
        found["reserved"] += layout.node_size - layout.block_count * layout.block_size

        def suspect(at: int, size: int) -> None:
            found["leaked"] += size
            suspects.add((at, size))

        block = 0
        while block < self.blocks.count:
            word = int(words[block])
            kind, owner = word >> 60, word & OWNER_MASK
            length = 1
            if kind == FREE:
                found["free"] += self.block_size
            elif kind == REGION and owner in marks:
                found["reserved"] += self.block_size
            elif kind == PENDING and owner in live:
                found["held"] += self.block_size
            elif block in used and (owner == 0 or owner in live):
                length = 1 if kind == SLAB else 1 + self.blocks.tails(words, block)
                size_class = LARGE_CLASS if kind == LARGE else word >> 52 & 0xFF
                self._account_objects(
                    node, block, length, size_class, used[block], held, reachable, found, suspect
                )
            elif kind == TAIL and self._is_being_made(words, word & TAIL_FIRST_MASK, live):
                found["held"] += self.block_size
            else:
                suspect(self.heap.table_word(node, block), self.block_size)
            block += length

    @staticmethod
    def _is_being_made(words: Words, first: int, live: set[int]) -> bool:
        """Whether block `first` is pending, and its span so being made by a living client."""
        word = int(words[first]) if first < len(words) else 0
        return word >> 60 == PENDING and word & OWNER_MASK in live

    def _account_objects(
        self,
        node: int,
        block: int,
        length: int,
        size_class: int,
        used: Words,
        held: Words,
        reachable: Words,
        found: dict[str, int],
        suspect: Callable[[int, int], None],
    ) -> None:
        count = self.heap.object_count(size_class)
        size = (
            length * self.block_size if size_class == LARGE_CLASS else self.heap.sizes[size_class]
        )
        first = self.heap.reference(node, block, size_class, 0)
        references = np.uint64(first) + used * np.uint64(size)
        linked = _among(references, reachable)
        in_hand = ~linked & np.isin(references, held)
        found["reachable"] += int(linked.sum()) * size
        found["held"] += int(in_hand.sum()) * size
        found["free"] += (count - len(used)) * size
        found["reserved"] += length * self.block_size - count * size
        for reference in references[~linked & ~in_hand].tolist():
            suspect(reference, size)


def _among(found: Words, known: Words) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which of `found` are in `known`, which is sorted."""
    if not len(known):
        return np.zeros(len(found), dtype=np.bool_)
    places = np.minimum(np.searchsorted(known, found), len(known) - 1)
    among: np.ndarray[Any, np.dtype[np.bool_]] = known[places] == found
    return among
