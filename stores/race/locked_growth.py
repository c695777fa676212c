"""The `race-locks` store: a subtable is split under a lock, as in RACE hashing's own paper.

A baseline (rTX section 6.2, figure 15, "Optimal"): `race`, but that only who holds the lock of
an entry of the directory (directory.py) splits its subtable. The lock word is 0 or the id of the
client that holds it. Others who want to write to a slot that is frozen, or find no room, wait for
it; readers do not.

What a kill leaves behind: a lock that nobody takes over. Who waits for a dead client raises
StoreStuck and does not hang; `race`, `rtx-race` and `dtx-race` go on.
"""

from __future__ import annotations

from typing import Any

from limpet.shm.errors import StoreStuck
from limpet.stores.outcomes import AGAIN
from limpet.stores.race.growth import Growing
from limpet.stores.rtx.fields import POINTER
from limpet.stores.rtx.repair import PATIENCE


class LockedGrowing(Growing):
    """The `race-locks` store. `GrowingParameters`."""

    def __init__(self, pool: Any, kind: str, name: str, parameters: Any) -> None:
        super().__init__(pool, kind, name, parameters)
        self.busy = 0
        """The lock that was in the way."""

    def _split(self) -> int:
        lock = self.entry - POINTER
        if self.endpoint.cas(lock, 0, self.client.ident):
            self.busy = lock
            return AGAIN
        # CRASH(growing): nobody unlocks it.
        outcome = Growing._split(self)
        self.endpoint.store(lock, 0)
        return outcome

    def _wait(self, attempt: int) -> None:
        self.endpoint.pause(attempt)
        if attempt % PATIENCE == 0:
            self._look_after(self.endpoint.load(self.busy))

    def _look_after(self, holder: int) -> None:
        """Raise StoreStuck if who holds the lock is dead."""
        if not holder or self.pool.membership.lives(holder):
            return
        # ORDER: after the look at the client, which may have unlocked it and left.
        if self.endpoint.load(self.busy) == holder:
            raise StoreStuck(
                f"{self.name}: client {holder:#x} died splitting a subtable in {self.pool.url}; a "
                f"{self.kind} store recovers nothing; race, rtx-race and dtx-race stores do"
            )
