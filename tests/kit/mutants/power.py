"""Known-bad variants of a durable `race` store, each of which leaves one write-back out.

They are parts in the sense of kit/mutants/race.py, and say how a power cut shows them.
"""

from __future__ import annotations

from typing import Any, Final

from kit.mutants.race import Mutant, race_with
from limpet.shm.clients.client import Client
from limpet.shm.endpoint.words import REFERENCE_MASK
from limpet.stores.race.check import Check
from limpet.stores.race.index import Holds, Index
from limpet.stores.race.layout import FROZEN
from limpet.stores.race.slots import Slots
from limpet.stores.race.splitter import Splitter
from limpet.stores.race.store import Race, attach
from limpet.stores.status import AGAIN, DONE, FULL


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


class LinksLater(Client):  # type: ignore[misc]
    """An operation returns before its links are persistent."""

    def persist_links(self) -> int:
        return 0


class BlindIndex(Index):  # type: ignore[misc]
    """A client does not note the slots that it goes by."""

    def depend(self, place: Any, slot: int) -> int:
        return 0


class ReadersDoNotFlush(Race):  # type: ignore[misc]
    def __init__(self, pool: Any, kind: str, name: str, parameters: Any) -> None:
        super().__init__(pool, kind, name, parameters)
        tables = attach(pool, name, parameters)
        index = BlindIndex(pool, name, parameters, self.objects, tables, Holds(name))
        splits = Splitter(pool, index, parameters)
        self.hold_parts(index, Slots(index, pool.client), splits, Check(pool, index))


POWER_MUTANTS: Final = (
    Mutant(
        "update-before-contents", ("check", "history"), race_with(UpdatesBeforeContents),
        program="ub gb",
    ),
    Mutant("links-not-flushed", ("history",), replaced="Client", by=LinksLater, program="ua ga"),
    Mutant("readers-do-not-flush", ("history",), ReadersDoNotFlush, program="ua|ga ga"),
)  # fmt: skip
