"""A replicated index as a whole: counting, checks, and what the dead have left in it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

from limpet.shm.endpoint.layout import NODE_SHIFT, OFFSET_MASK
from limpet.shm.endpoint.slots import INCARNATION_BITS
from limpet.shm.errors import NodeFailed, StoreCorrupt
from limpet.stores.fusee.links import OFFSET_BITS, PLACE_BITS, Link, is_entry, is_slot
from limpet.stores.fusee.marks import REPLICAS_ROW
from limpet.stores.fusee.restoring import RestoredTables
from limpet.stores.fusee.tables import identity
from limpet.stores.race.old.index import Index, is_vacant, is_valid
from limpet.stores.race.layout import FROZEN, MASK, OBJECT_MASK
from limpet.stores.race.parameters import GROUP_SIZE
from limpet.stores.race.old.store import Growing


class SurveyedTables(RestoredTables):
    """The tables of a replicated index, and looks at all of them."""

    def __len__(self) -> int:
        return int(self._outliving(lambda: Growing.__len__(self)))

    def index_size(self) -> int:
        """Bytes of all subtables, of one replica."""
        return int(self._outliving(lambda: Growing.index_size(self)))

    def _outliving(self, look: Callable[[], Any]) -> Any:
        """What `look` returns, by a view that is settled; again when a node is lost meanwhile."""
        while True:
            self.client.enter()
            try:
                self.require_there()
                self._renew()
            finally:
                self.client.leave()
            try:
                return look()
            except NodeFailed as error:
                if not self._outlived(error.node):
                    raise

    def references(self) -> Any:
        self._look()
        return Growing.references(self)

    def pairs(self) -> Any:
        """References to what slots link to, as far as it is not lost."""
        self._look()
        return self._linked_all()[0]

    def _keys_at(self, table: int, number: int, group: int) -> list[bytes] | None:
        self.client.enter()
        try:
            self.require_there()
            while True:
                try:
                    self._agree_to_read()
                    return self._keys_there(table, number, group)
                except NodeFailed as error:
                    if not self._outlive(error.node):
                        raise
        finally:
            self.client.leave()

    def check(self) -> None:
        """As of every index; and that replicas agree on all slots that nobody is changing."""
        self._outliving(lambda: Growing.check(self))

    def _check_here(self, number: int, base: int, group: int, seen: dict[bytes, int]) -> None:
        super()._check_here(number, base, group, seen)
        start = base + group * GROUP_SIZE
        head = self._head_of(base)
        for k in range(1, self.lives[head]):
            replica = start - self.steps[REPLICAS_ROW * head] + self.steps[REPLICAS_ROW * head + k]
            self._compare(start, replica & MASK, head)

    def _head_of(self, base: int) -> int:
        """The node of the head of the subtable that has its primary there."""
        node = base >> NODE_SHIFT
        block = (base & OFFSET_MASK) - self.heap.blocks >> self.heap.block_shift
        part = self.heap.placement.part(block, self.replicas)
        return (node - part) % int(self.pool.parameters.nodes)

    def _compare(self, start: int, replica: int, head: int) -> None:
        """Compare a group with its replica."""
        there = np.frombuffer(self.endpoint.read(replica, GROUP_SIZE), dtype="<u8")
        here = np.frombuffer(self.endpoint.read(start, GROUP_SIZE), dtype="<u8")
        for index in np.flatnonzero(here != there).tolist():
            self._explain(start + 8 * index, replica + 8 * index, head)

    def _explain(self, slot: int, replica: int, head: int) -> None:
        """Raise StoreCorrupt unless the replicas of a slot agree by now, or are being changed."""
        place = slot - self.steps[REPLICAS_ROW * head] & PLACE_BITS
        here = there = 0
        for attempt in range(64):
            # ORDER: hands before slots: who begins to change the slot has named it in the hand.
            named = any(
                is_slot(home) and Link.of(home)[:2] == (self.number_of_store, place)
                for _, home in self.view.hands()
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
                f"{there:#x}, and nobody is changing it"
            )

    def _wrong_with(self, group: int, slot: int, word: int, seen: dict[bytes, int]) -> str:
        wrong: str = Index._wrong_with(self, group, slot, word, seen)
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

    # ---- what the dead have left ----------------------------------------------------------------

    def left_by(self, ident: int) -> set[str]:
        """What the hand of a dead client shows of the rounds that it took part in."""
        found = set()
        for reference, home in self.view.hand(ident >> INCARNATION_BITS):
            link = Link.of(home)
            if link.entry != self.number_of_store or not self._is_named(home):
                continue
            if is_entry(home):
                found |= self._left_at_entry(link, reference)
                continue
            count = self.lives[link.place >> NODE_SHIFT]
            words = [self.endpoint.load(self._replica(link.place, k)) for k in range(count)]
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
        """What a pair of a hand shows that names an entry of a directory."""
        row = REPLICAS_ROW * (link.place >> NODE_SHIFT)
        offset = link.place & OFFSET_BITS
        count = self.counts[link.place >> NODE_SHIFT]
        words = [self.endpoint.load(self.bases[row + k] + offset) for k in range(count)]
        if min(words) != max(words):
            return {"entry-decided"}
        if link.old:
            return {"split"} if words[0] != reference else {"freezing"}
        return {"subtable-made"} if words[0] == reference else set()
