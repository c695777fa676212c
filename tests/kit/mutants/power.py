"""Known-bad variants of a durable `race` store, each of which leaves one write-back out.

They are parts in the sense of kit/mutants/race.py, and say how a power cut shows them.
"""

from __future__ import annotations

from typing import Any, Final

from kit.mutants.race import Mutant, race_with
from limpet.shm.clients.client import Client
from limpet.shm.endpoint.words import REFERENCE_MASK
from limpet.stores.core.status import AGAIN, DONE, FULL
from limpet.stores.race.check import Check
from limpet.stores.race.index import Holds, Index
from limpet.stores.race.layout import FROZEN
from limpet.stores.race.slots import Slots
from limpet.stores.race.splitter import Splitter
from limpet.stores.race.store import Race, attach


class UpdatesBeforeContents(Slots):  # type: ignore[misc]
    """An update links an object that may not be persistent."""

    def replace(self, place: Any, slot: int, desired: int) -> int:
        word = place.word
        if word & FROZEN:
            return FULL
        self.client.retarget(0, slot)
        self.client.log(word & REFERENCE_MASK, slot)
        lost = self.endpoint.cas(slot, word, desired) != word
        self.endpoint.wait()
        return AGAIN if lost else DONE


class InsertsBeforeContents(Slots):  # type: ignore[misc]
    """An insert links an object that may not be persistent."""

    def insert(self, place: Any, key: bytes, desired: int, attempt: int) -> int:
        self.endpoint.persist = lambda: 0
        try:
            return int(super().insert(place, key, desired, attempt))
        finally:
            del self.endpoint.persist


class HalvesLater(Splitter):  # type: ignore[misc]
    """A subtable is split for good before its halves are persistent."""

    def persist_halves(self, place: Any, first: int, second: int) -> int:
        return 0


class LinksLater(Client):  # type: ignore[misc]
    """An operation returns before its links are persistent."""

    def persist_links(self) -> int:
        return 0


class BlindIndex(Index):  # type: ignore[misc]
    """A client does not note the slots that it goes by."""

    def depend(self, place: Any, slot: int) -> int:
        return 0


class BlindInInserts(Index):  # type: ignore[misc]
    """As `BlindIndex`, while an insert has put its word into a slot."""

    blind = False

    def depend(self, place: Any, slot: int) -> int:
        return 0 if self.blind else int(super().depend(place, slot) or 0)


class InsertsBesideDelete(Slots):  # type: ignore[misc]
    """An insert goes by a slot from which another client's delete is not persistent."""

    def insert(self, place: Any, key: bytes, desired: int, attempt: int) -> int:
        self.index.blind = True
        try:
            return int(super().insert(place, key, desired, attempt))
        finally:
            self.index.blind = False


def _race_with_index(index_class: type[Index], slots: type[Slots] = Slots) -> type[Race]:
    class Made(Race):  # type: ignore[misc]
        def __init__(self, pool: Any, kind: str, name: str, parameters: Any) -> None:
            super().__init__(pool, kind, name, parameters)
            tables = attach(pool, name, parameters)
            index = index_class(pool, name, parameters, self.objects, tables, Holds(name))
            splits = Splitter(pool, index, parameters)
            self.hold_parts(index, slots(index, pool.client), splits, Check(pool, index))

    return Made


POWER_MUTANTS: Final = (
    Mutant(
        "update-before-contents", ("check", "history"), race_with(UpdatesBeforeContents),
        program="ub gb",
    ),
    Mutant("links-not-flushed", ("history",), replaced="Client", by=LinksLater, program="ua ga"),
    Mutant(
        "readers-do-not-flush", ("history",), _race_with_index(BlindIndex), program="ua|ga ga"
    ),
)  # fmt: skip
INSERT_BEFORE_CONTENTS: Final = Mutant(
    "insert-before-contents", ("check", "history"), race_with(InsertsBeforeContents),
    program="da ic gc",
)  # fmt: skip
INSERT_BESIDE_DELETE: Final = Mutant(
    "insert-beside-delete", ("check",), _race_with_index(BlindInInserts, InsertsBesideDelete),
    program="id db|ib gb",
)  # fmt: skip
"""The insert of d takes b's emptier bucket, so that after its delete b goes to another line."""
HALVES_LATER: Final = Mutant(
    "halves-not-flushed", ("check", "history"), race_with(splitter=HalvesLater),
    program="ic gc ga gb",
)  # fmt: skip
"""In a crowded store (kit/growth.py) the insert of c splits a subtable."""
