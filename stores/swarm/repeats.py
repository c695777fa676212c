"""How often one operation of a `swarm` store has begun anew; it pauses, and detects damaged memory.

An operation begins anew when its register is given up, when its row has to be put in order first,
or when it lost a round of the index. The first two do not come again and again with the same
register: a register that is given up is linked by no slot, and each step that puts a row in order
is done once. So an operation that keeps meeting one register, by its ident, which no other register
has, has met damaged memory. Rounds that are lost to other clients have no such limit: each of them
is another client's success, and shows a register of its own.
"""

from __future__ import annotations

from typing import Any

from limpet.shm.errors import StoreCorrupt
from limpet.stores.core.base import Attempt
from limpet.stores.swarm.layout import ATTEMPTS_MAX


class Repeats(Attempt):
    """Those of one operation on a key."""

    def __init__(self, store: Any, key: bytes) -> None:
        super().__init__()
        self.store = store
        self.key = key
        self.count = 0
        """Attempts without a result."""
        self.met = 0
        """The ident of the register that the last one met."""
        self.ident = 0
        self.same = 0
        self.wanted = (0, 0, 0, 0)
        """The objects for which memory was missing, as `replenish` takes them."""
        self.looks = 0
        """How often memory was asked for."""

    def again(self, attempt: int) -> None:
        """Count one more, which met the register `met`, and pause.

        Raises StoreCorrupt after ATTEMPTS_MAX with the same register.
        """
        store = self.store
        store.retries += 1
        self.same = self.same + 1 if self.met == self.ident else 0
        self.ident = self.met
        if self.same > ATTEMPTS_MAX:
            raise StoreCorrupt(
                f"{store.pool.url}, store {store.name!r}: the key {self.key!r}: its register at "
                f"{store.register.place.reference:#x} can neither be read nor written, and no "
                "client changes that: memory was damaged. Save what is left; make the store again"
            )
        store.endpoint.pause(attempt)
