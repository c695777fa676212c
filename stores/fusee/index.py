"""The index of RACE hashing on r memory nodes (FUSEE section 4.2): finds keys on the primaries.

tables.py has the places of the primaries. Before an operation looks for a key it has the same view
as all others; one that only reads waits for no change of the view (trap F14).
"""

from __future__ import annotations

from typing import Any

from limpet.stores.fusee.tables import ReplicatedTables
from limpet.stores.race.index import Holds, Index, Place


class ReplicatedIndex(Index):
    """Finds keys in the primaries of replicated tables."""

    def __init__(
        self, pool: Any, name: str, parameters: Any, objects: Any, replicated: ReplicatedTables
    ) -> None:
        self.replicated = replicated
        primaries = replicated.primaries
        Index.__init__(self, pool, name, parameters, objects, list(primaries), Holds(name))
        # the same memory, so that a new view holds for both
        self.tables = primaries

    def forget(self) -> None:
        Index.forget(self)
        self.replicated.forget()

    def replaced(self, node: int) -> None:
        self.replicated.replaced(node)

    def agree(self) -> None:
        self.replicated.agree()

    def agree_to_read(self) -> None:
        self.replicated.agree_to_read()

    def locate(self, place: Place, hashed: int) -> None:
        self.replicated.agree()
        Index.locate(self, place, hashed)
        self.replicated.select(place)

    def post_locate(self, place: Place, hashed: int) -> None:
        Index.post_locate(self, place, hashed)
        self.replicated.select(place)

    def post_unpinned(self, place: Place, hashed: int) -> bool:
        """Only where the last operation with a pin left off: with its view, if that was settled,
        and by a pointer that it has seen (glance.py)."""
        replicated = self.replicated
        if not replicated.stands():
            return False
        if self.endpoint.failed(self.tables[(hashed >> 32) * self.subtables >> 32]):
            return False
        Index.post_locate(self, place, hashed)
        return place.pointer != 0

    def read_unpinned(self, place: Place) -> bool:
        # Nothing is remembered of an entry that is another one now: perhaps it is of a backup.
        place.posted = False
        self.read_phase(place)
        return True

    def go_on(self, place: Place, pointer: int) -> bool:
        if not Index.go_on(self, place, pointer):
            return False
        self.replicated.select(place)
        return True

    def base_of(self, pointer: int) -> int:
        return self.replicated.base_of(pointer)
