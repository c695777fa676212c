"""Grace periods: when may memory that a reader could still hold be used again?

Epoch-based reclamation (Fraser, "Practical lock freedom", 2004, section 5.2.3) with one
free-running
64-bit epoch instead of three, so that nobody has to be waited for to advance it.

Words (control segment)
    epoch              only ever goes up; by fetch-and-add
    pin of each slot   0, or epoch << 20 | counter: the epoch that the client read before it pinned

Rule. What was unlinked before the epoch was read as E may be reused once no client is pinned at an
epoch <= E. Why: a client that could have seen the link pinned, with a full barrier, before it read
the link, so its pin holds an epoch that was read before the unlinking, hence <= E; a client that
pins after our scan of the pins reads the link after the unlinking and cannot see the object. That
holds for what was unlinked before the scan, so its result is never above the epoch before it.

Dead clients: their pins count until they are recovered (so that everything they had in hand stands
still meanwhile), and recovery needs nobody's consent. Stopped clients: their pins count; when
others run out of memory because of it they are fenced, by the pool's policy (membership.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from limpet.shm.layout import CLIENT_SLOTS, EPOCH, SLOT_SIZE, SLOTS_USED
from limpet.shm.slots import DYING, LIVE, PIN, PIN_SHIFT

if TYPE_CHECKING:
    from limpet.shm.fabric import Endpoint

NEVER: Final = (1 << 64) - 1
EPOCH_MAX: Final = 1 << 63 - PIN_SHIFT
"""No pool lives to see it. Half of what a pin has room for, so that no pool in use runs over."""


class Pinned(NamedTuple):
    """A client inside an operation: slot number, state word, pin word, epoch of the pin."""

    slot: int
    word: int
    pin: int
    epoch: int


class Grace:
    """The epoch and the pins of one pool."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint

    def now(self) -> int:
        """The epoch."""
        return self.endpoint.load(EPOCH)

    def close_period(self) -> int:
        """The epoch E of what is unlinked so far; clients that pin from now on pin a later one."""
        return self.endpoint.faa(EPOCH, 1)

    def pinned(self) -> list[Pinned]:
        """Every client whose pin counts."""
        endpoint = self.endpoint
        found = []
        for slot in range(endpoint.load(SLOTS_USED)):
            at = CLIENT_SLOTS + slot * SLOT_SIZE
            word = endpoint.load(at)
            if word >> 60 in (LIVE, DYING):
                pin = endpoint.load(at + PIN)
                if pin:
                    found.append(Pinned(slot, word, pin, pin >> PIN_SHIFT))
        return found

    def horizon(self) -> int:
        """An epoch such that what was unlinked in an earlier one may be reused, now and later.

        The oldest epoch that is pinned, or, if none is, the epoch before we looked.
        """
        horizon = self.now()
        # Twice, since a look is no snapshot: a recoverer takes over the pin of the dead client that
        # it recovers, perhaps after its own slot was read and before the dead client's was.
        for _ in range(2):
            for client in self.pinned():
                horizon = min(horizon, client.epoch)
        return horizon

    def laggards(self, epoch: int) -> list[Pinned]:
        """The clients that keep the period of `epoch` open."""
        return [client for client in self.pinned() if client.epoch <= epoch]
