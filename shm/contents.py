"""The questions of the memory layer to the stores in a pool.

The memory layer knows blocks, objects and client journals, and no store. It cannot judge some links
by their address alone, and only stores know their links. So a pool with stores has a `Contents`
that answers (`PoolCore.contents`, which the heap and the audit ask, too; stores/contents.py). The
one here is that of a pool without stores.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from limpet.shm.arrays import Words


class Contents:
    """A pool without stores."""

    # ---- links ----------------------------------------------------------------------------------

    def linked(self, reference: int, link_address: int) -> bool:
        """Whether the object is linked by `link_address`, which is no address but a store's own
        name of a link (words.py: REPLICATED), once that is decided. True if no store knows it."""
        return True

    def concerned(self, word: int, link_address: int, reference: int) -> bool:
        """Whether the protocol that holds the link at `link_address`, by its word (words.py:
        HELD), frees an object itself that the link names, or may name."""
        return False

    def listed(self, reference: int, link_address: int) -> list[int]:
        """References that a pair of a client journal, with a store's own name of a link, stands for
        besides its own."""
        return []

    def references(self) -> Words:
        """All object references that stores link to. Called within `exclusively`."""
        return np.empty(0, dtype=np.uint64)

    def homes(self) -> set[bytes] | None:
        """The homes (directory.py) of all stores, also of those that are made or dropped now; None:
        what has a region is not known."""
        return None

    def emptying(self) -> bool:
        """Whether objects may be found nowhere since a client is freeing them."""
        return False

    def mend(self) -> dict[int, int]:
        """Let each store of a durable pool make itself whole after a power cut; by reference, the
        bytes of the objects that they link to which take blocks of their own. Called within
        `exclusively`, with no other client there."""
        return {}

    # ---- lost nodes -----------------------------------------------------------------------------

    def reconcile(self, failed: list[int]) -> None:
        """Put the links in order that the client journals name, before these nodes are excluded;
        for a leader."""

    def refill(self, node: int) -> dict[str, int]:
        """Make tables and objects of replicated stores on a node with new memory. Called by the
        leader."""
        return dict.fromkeys(("objects", "blocks", "regions", "bytes"), 0)

    # ---- recovery -------------------------------------------------------------------------------

    def recovering(self) -> AbstractContextManager[None]:
        """Around the recovery of a dead client, which asks `linked` of one object after another."""
        return contextlib.nullcontext()
