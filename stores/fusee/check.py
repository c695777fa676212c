"""A whole replicated index: counting, checks, and the traces of dead clients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

from limpet.shm.endpoint.layout import NODE_SHIFT, OFFSET_MASK
from limpet.shm.endpoint.slots import INCARNATION_BITS
from limpet.shm.errors import NodeFailed, StoreCorrupt
from limpet.stores.fusee.links import OFFSET_BITS, PLACE_BITS, REPLICAS_ROW, Link, is_entry, is_slot
from limpet.stores.fusee.log import LoggedObjects
from limpet.stores.fusee.tables import ReplicatedTables, identity
from limpet.stores.race.check import Check, Within
from limpet.stores.race.index import Index, is_vacant, is_valid
from limpet.stores.race.layout import FROZEN, MASK, OBJECT_MASK
from limpet.stores.race.parameters import GROUP_SIZE


class ReplicatedCheck(Check):
    """Checks a whole replicated index."""

    def __init__(
        self, pool: Any, index: Index, tables: ReplicatedTables, logged: LoggedObjects
    ) -> None:
        Check.__init__(self, pool, index)
        self.tables = tables
        self.logged = logged
        self.replicas = tables.replicas
        self.view = tables.view

    def outliving(self, within: Within, look: Callable[[], Any]) -> Any:
        """The result of `look` in a settled view; look again when a node is lost meanwhile."""
        while True:
            within(lambda: self.tables.renew())
            try:
                return look()
            except NodeFailed as error:
                if not self.tables.outlived(within, error.node):
                    raise

    def references(self) -> Any:
        self.tables.find_replicas()
        return Check.references(self)

    def pairs(self) -> Any:
        """References to the objects that slots link to, as far as they are not lost."""
        self.tables.find_replicas()
        return self.linked_all()[0]

    def keys_at(self, table: int, number: int, group: int) -> list[bytes] | None:
        while True:
            try:
                self.tables.agree_to_read()
                found: list[bytes] | None = Check.keys_at(self, table, number, group)
                return found
            except NodeFailed as error:
                if not self.tables.outlive(error.node):
                    raise

    def check(self, within: Within) -> None:
        """As for every index; and the replicas of slots agree that no client is changing."""
        self.outliving(within, lambda: Check.check(self, within))

    def check_group(self, number: int, base: int, group: int, seen: dict[bytes, int]) -> None:
        Check.check_group(self, number, base, group, seen)
        start = base + group * GROUP_SIZE
        head = self._head_of(base)
        for k in range(1, self.tables.lives[head]):
            replica = (
                start
                - self.tables.steps[REPLICAS_ROW * head]
                + self.tables.steps[REPLICAS_ROW * head + k]
            )
            self._compare(start, replica & MASK, head)

    def _head_of(self, base: int) -> int:
        """The node of replica 0 of the subtable that has its primary there."""
        node = base >> NODE_SHIFT
        block = ((base & OFFSET_MASK) - self.heap.blocks) // self.heap.block_size
        part = self.heap.placement.part(block, self.replicas)
        return int(self.heap.placement.beside(node, -part))

    def _compare(self, start: int, replica: int, head: int) -> None:
        """Compare a group with its replica."""
        there = np.frombuffer(self.endpoint.read(replica, GROUP_SIZE), dtype="<u8")
        here = np.frombuffer(self.endpoint.read(start, GROUP_SIZE), dtype="<u8")
        for index in np.flatnonzero(here != there).tolist():
            self._explain(start + 8 * index, replica + 8 * index, head)

    def _explain(self, slot: int, replica: int, head: int) -> None:
        """Raise StoreCorrupt unless the replicas of a slot agree by now, or are being changed."""
        place = slot - self.tables.steps[REPLICAS_ROW * head] & PLACE_BITS
        here = there = 0
        for attempt in range(64):
            # ORDER: client journals before slots: a client names a slot in its journal before it
            # changes the slot.
            named = any(
                is_slot(link_address)
                and Link.of(link_address)[:2] == (self.tables.number_of_store, place)
                for _, link_address in self.view.journals()
            )
            here = self.endpoint.load(slot)
            there = self.endpoint.load(replica)
            if here == there:
                return
            if not named:
                self.endpoint.pause(attempt)
        if not named:
            raise StoreCorrupt(
                f"{self.name}: the slot at {slot:#x}: the primary has {here:#x}, a replica "
                f"{there:#x}, and no client is changing it"
            )

    def wrong_with(self, group: int, slot: int, word: int, seen: dict[bytes, int]) -> str:
        wrong: str = Check.wrong_with(self, group, slot, word, seen)
        reference = word & OBJECT_MASK
        if wrong or not is_valid(word):
            return wrong
        for k in range(self.heap.replicas(reference)):
            with contextlib.suppress(NodeFailed):
                if not self.heap.used_at(reference, k):
                    return f"replica {k} of the object is not in use"
                self.logged.load_at(reference, k)
                if not self.logged.fits(reference) or not self.logged.intact():
                    return f"the sizes or checksum of the object's replica {k} do not hold"
        return ""

    # ---- traces of dead clients -----------------------------------------------------------------

    def left_by(self, ident: int) -> set[str]:
        """The crash points of rounds that the client journal of a dead client shows."""
        found = set()
        for reference, link_address in self.view.journal(ident >> INCARNATION_BITS):
            link = Link.of(link_address)
            if link.entry != self.tables.number_of_store or not self.tables.is_named(link_address):
                continue
            if is_entry(link_address):
                found |= self._left_at_entry(link, reference)
                continue
            count = self.tables.lives[link.place >> NODE_SHIFT]
            words = [self.endpoint.load(self.tables.replica(link.place, k)) for k in range(count)]
            named = [identity(word) == reference for word in words]
            frozen = [word & FROZEN != 0 and not is_vacant(word) for word in words]
            if any(frozen):
                found |= {"slot-frozen"} if all(frozen) else {"slot-freezing"}
            if reference & FROZEN:
                found |= {"voided"} if named[0] and not frozen[0] else set()
            elif link.old:
                found |= {"won"} if named[0] and not any(named[1:]) else set()
                found |= set() if named[0] else {"replaced"}
            elif any(named[1:]) and not named[0]:
                found |= {"proposed", "inserting"} if is_vacant(words[0]) else {"proposed"}
        return found

    def _left_at_entry(self, link: Link, reference: int) -> set[str]:
        """The crash points that a pair of a client journal shows which names an entry."""
        row = REPLICAS_ROW * (link.place >> NODE_SHIFT)
        offset = link.place & OFFSET_BITS
        count = self.tables.counts[link.place >> NODE_SHIFT]
        words = [self.endpoint.load(self.tables.bases[row + k] + offset) for k in range(count)]
        if min(words) != max(words):
            return {"entry-decided"}
        if link.old:
            return {"split"} if words[0] != reference else {"freezing"}
        return {"subtable-made"} if words[0] == reference else set()
