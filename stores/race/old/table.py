"""RACE hashing: a lock-free, one-sided hash index (Zuo et al., ATC '21; FUSEE section 4.2).

How slots are changed, in tables of index.py, one subtable on each memory node; a pair's object lies
on the node of its subtable. The `race` store has others in their place, which grow (store.py).

Search, update and delete are the paper's: read both combined buckets, read the objects whose
fingerprint matches, CAS the slot. The paper's insert writes the slot and then looks for a
duplicate, removing the later of two; a reader can have seen that one already, which is not
linearizable. Ours is decided by one CAS:

    1. CAS an empty slot to the object, tentative; read both combined buckets again (one round trip)
    2. a valid slot holds the key: withdraw. Another tentative one does: the one at the lower
       address goes first, the other withdraws, or, met again and again, is kicked out by a CAS to 0
    3. CAS the own slot to not tentative

Of two inserts of one key, each reads the slots after its own step 1, so at least one sees the
other; it goes on to step 3 only if it saw the other's slot empty again, by the other's hand or its
own, and then the other's step 3 fails. A dead or stopped client's tentative slot is kicked out in
the same way.

Round trips without conflict: search 2 (1 when no fingerprint matches), update 3, delete 3, insert
3.

A kill leaves behind: the client's hand (client.py) names the new object and the slot that it
was meant for, the old object and the slot that it was in. Before the deciding CAS the new one is
not validly linked and is freed; after it, the old one is not, and is freed.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

from limpet.shm.endpoint.words import REFERENCE_MASK, TENTATIVE
from limpet.shm.errors import NodeFailed, StoreMismatch
from limpet.stores.race.layout import FROZEN
from limpet.stores.race.old.hash_store import HashStore
from limpet.stores.race.old.index import attach, obtain_subtable, region_name
from limpet.stores.race.parameters import RaceParameters
from limpet.stores.records import Objects
from limpet.stores.status import AGAIN, DONE, FULL

PATIENCE: Final = 8
"""How often an insert gives way to another one of the same key before it kicks it out."""


class Race(HashStore):
    """Unreplicated RACE hashing of a fixed capacity. `RaceParameters`."""

    Parameters: type[RaceParameters] = RaceParameters

    def __init__(self, pool: Any, kind: str, name: str, parameters: RaceParameters) -> None:
        tables = attach(pool, name, parameters)
        super().__init__(pool, kind, name, parameters, Objects(pool.heap, in_place=True), tables)

    @staticmethod
    def make(pool: Any, name: str, parameters: RaceParameters) -> None:
        """Make one region a subtable, with the bucket headers written."""
        if parameters.subtables % pool.parameters.nodes and parameters.subtables != 1:
            raise StoreMismatch(f"{name}: {parameters.subtables} subtables do not fit the nodes")
        for subtable in range(parameters.subtables):
            obtain_subtable(pool, name, parameters, subtable)

    @staticmethod
    def unmake(pool: Any, name: str, parameters: RaceParameters) -> None:
        for subtable in range(parameters.subtables):
            with contextlib.suppress(NodeFailed):  # then its region is gone with the node
                pool.regions.discard(subtable % pool.parameters.nodes, region_name(name, subtable))

    # ---- changing ---------------------------------------------------------------------------

    def _replace(self, slot: int, word: int, desired: int) -> int:
        self.client.aim(0, slot)
        self.client.hold(word & REFERENCE_MASK, slot)
        # LINEARIZES: update
        lost = self.endpoint.cas(slot, word, desired) != word
        # CRASH(updated): the old object is in the hand and no longer linked.
        self.endpoint.wait()
        return AGAIN if lost else DONE

    def _insert(self, key: bytes, desired: int, attempt: int) -> int:
        index = self._room()
        if index < 0:
            return FULL
        slot = self._address(index)
        tentative = desired | TENTATIVE
        self.client.aim(0, slot)
        vacant = self.slots[index]
        if self.endpoint.cas(slot, vacant, tentative) != vacant:
            self.endpoint.wait()
            return AGAIN
        # CRASH(inserting): readers pass over the tentative slot; others may kick it out.
        self._read_buckets()
        if self._match(key, 0, True) or self._rival(key, slot, attempt):
            return AGAIN
        # LINEARIZES: insert
        lost = self.endpoint.cas(slot, tentative, desired) != tentative
        self.endpoint.wait()
        return AGAIN if lost else DONE

    def _rival(self, key: bytes, slot: int, attempt: int) -> bool:
        """Whether an undecided insert of the same key stands in our way; kick it out if it may."""
        fingerprint = self.hash & 0xFF
        for index in range(32):
            word = self.slots[index]
            if not (word & TENTATIVE and index & 7 and word >> 56 == fingerprint) or word & FROZEN:
                continue
            theirs = self._address(index)
            if theirs == slot:
                continue
            self.objects.load(word & REFERENCE_MASK & ~TENTATIVE)
            if not self.objects.key_is(key):
                continue
            if theirs < slot and attempt < PATIENCE:
                return True
            # CRASH(kicked): whose object it is frees it, or whoever recovers that client.
            if self.endpoint.cas(theirs, word, 0) != word:
                return True
        return False

    def _vacant(self, word: int) -> int:
        """What becomes of a slot whose pair, with this word, is deleted."""
        return 0

    def _remove(self, slot: int, word: int) -> int:
        self.client.hold(word & REFERENCE_MASK, slot)
        # LINEARIZES: delete
        lost = self.endpoint.cas(slot, word, self._vacant(word)) != word
        # CRASH(deleted): the old object is in the hand and no longer linked.
        self.endpoint.wait()
        return AGAIN if lost else DONE
