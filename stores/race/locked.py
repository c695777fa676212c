"""The `race-locks` store: a subtable is split under a lock, as in RACE hashing's own paper.

A baseline (rTX section 6.2, figure 15, "Optimal"): `race`, but that only the client that holds the
lock of an entry of the directory (index.py) splits its subtable. The lock word is 0 or the id of
the client that holds it. Other clients that want to write to a frozen slot, or find no room, wait
for it; readers do not. As in that paper, the client moves one pair after another, by a CAS, and
looks at the slot afterwards: two round trips a pair. `race` has one round trip for 16 pairs.

A kill leaves behind: a lock that no client takes over. A client that waits for a dead one raises
StoreStuck and does not hang; `race`, `rtx-race` and `dtx-race` go on.
"""

from __future__ import annotations

from typing import Any, Final

from limpet.shm.endpoint.layout import slot_address
from limpet.shm.endpoint.slots import INCARNATION_BITS, PIN
from limpet.shm.errors import StoreCorrupt, StoreStuck
from limpet.stores.core.object_layout import POINTER
from limpet.stores.core.records import Objects
from limpet.stores.core.status import AGAIN, ATTEMPTS_PER_CHECK
from limpet.stores.race.check import Check
from limpet.stores.race.hash_store import HashStore
from limpet.stores.race.index import Holds, Index, Place
from limpet.stores.race.parameters import GrowingParameters
from limpet.stores.race.slots import Slots
from limpet.stores.race.splitter import Splitter
from limpet.stores.race.store import attach, make_directories, unmake_directories

DOUBTS_MAX: Final = 500
"""Looks in a row; each comes after several pauses of a millisecond."""


class RaceLocks(HashStore):
    """The `race-locks` store. `GrowingParameters`."""

    Parameters: type[GrowingParameters] = GrowingParameters
    views = True

    def __init__(self, pool: Any, kind: str, name: str, parameters: Any) -> None:
        super().__init__(pool, kind, name, parameters)
        objects = Objects(pool.heap, in_place=True)
        index = Index(pool, name, parameters, objects, attach(pool, name, parameters), Holds(name))
        splitter = LockedSplitter(pool, index, parameters, kind)
        self.hold_parts(index, Slots(index, pool.client), splitter, Check(pool, index))
        self.batches_puts()

    make = staticmethod(make_directories)
    unmake = staticmethod(unmake_directories)


class LockedSplitter(Splitter):
    """Splits a subtable while it holds the lock of its entry."""

    def __init__(self, pool: Any, index: Index, parameters: Any, kind: str) -> None:
        super().__init__(pool, index, parameters)
        self.kind = kind
        self.holder = 0
        self.pin = 0
        self.doubts = 0
        """The client that was seen with a lock, its pin then, and how many looks in a row found
        another pin, or none."""

    def split(self, place: Place) -> int:
        lock = place.entry - POINTER
        holder = self.endpoint.cas(lock, 0, self.client.ident)
        if holder and holder != self.client.ident:
            place.busy = lock
            return AGAIN
        # We are in no other operation, so our own id is damage, or left by an operation that was
        # cut off.
        try:
            # CRASH(growing): no client unlocks it.
            outcome = Splitter.split(self, place)
        finally:
            self.endpoint.store(lock, 0)
        return outcome

    def fill(self, slot: int, word: int) -> None:
        Splitter.fill(self, slot, word)
        self.endpoint.wait()
        self.endpoint.post_load(slot)
        self.endpoint.wait()

    def wait(self, busy: int, table: int, attempt: int) -> None:
        self.endpoint.pause(attempt)
        if attempt % ATTEMPTS_PER_CHECK == 0:
            self._look_after(busy, self.endpoint.load(busy))

    def _look_after(self, lock: int, holder: int) -> None:
        """Raise StoreStuck if the client that holds a lock is dead, StoreCorrupt if it is in other
        operations."""
        if not holder or self.pool.membership.lives(holder):
            self._require_work(lock, holder)
            return
        # ORDER: after the look at the client, which may have unlocked and left.
        if self.endpoint.load(lock) == holder:
            raise StoreStuck(
                f"{self.index.name}: client {holder:#x} died splitting a subtable in "
                f"{self.pool.url}; a {self.kind} store recovers nothing; race, rtx-race and "
                "dtx-race stores do"
            )

    def _require_work(self, lock: int, holder: int) -> None:
        """Raise StoreCorrupt if a living client has the lock through many operations.

        A client takes and releases a lock within one operation. A client that stands still in it is
        waited for, and a client may take the same lock several times, but not as often as that.
        """
        pin = 0
        if holder:
            pin = self.endpoint.load(slot_address(holder >> INCARNATION_BITS) + PIN)
        if not pin or holder != self.holder or pin != self.pin:
            self.doubts = self.doubts + 1 if holder and holder == self.holder else 0
        self.holder = holder
        self.pin = pin
        if self.doubts > DOUBTS_MAX:
            self.doubts = 0
            raise StoreCorrupt(
                f"{self.index.name}: the lock at {lock:#x} of a subtable that is to be split names "
                f"client {holder:#x}, which is at other work; save what is left, and make the "
                "store again"
            )
