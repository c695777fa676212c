"""Grace periods: the time until memory that a reader could still have may be used again.

Epoch-based reclamation (Fraser, "Practical lock freedom", 2004, section 5.2.3) with one
free-running 64-bit epoch instead of three, so that the epoch advances without waiting for any
client.

Words (control segment)
    epoch              only ever goes up; by fetch-and-add
    pin of each slot   0, or in bits 21-63 the bits 0-42 of the epoch that the client read before it
                       pinned, in bits 0-20 a counter of its pins, always odd, so that no pin is 0
    era of each slot   the other bits of that epoch. Its client writes it before the pin, when it
                       has changed, which is once in 2^43 closings

Rule. Memory that was unlinked before the epoch was read as E may be reused once no client is pinned
at an epoch <= E. There are two cases:
    - a client that could have seen the link had pinned, with a full barrier, before it read the
      link. So its pin has an epoch that was read before the unlinking, hence <= E
    - a client that pins after our scan of the pins reads the link after the unlinking, and cannot
      see the object
The second case needs memory that was unlinked before the scan. So the result of the scan is never
above the epoch before it.

Era and pin are two words. A client that looks at another client's words reads the era first. So it
may see an old era with a new pin, and take that for an older epoch: then it waits, and looks again.

Ends. The epoch lasts for 2^62 closings, 14,000 years of ten million a second. A pin's counter wraps
after 2^20 operations. A client that judges whether another one stands still compares its pins
within one wait only, and also its progress word (fencing.py). Block words have only the low bits
of an epoch: words.py.

Dead clients: their pins count until they are recovered, so the objects in their client journals are
not reused meanwhile. Recovery needs no client's consent. Stopped clients: their pins count. When
another client runs out of memory because of a stopped one, it fences that client, by the pool's
policy (membership.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from limpet.shm.endpoint.field_ends import A_SECOND_MAX, LASTS, Field
from limpet.shm.endpoint.layout import CLIENT_SLOTS, EPOCH, SLOT_SIZE, SLOTS_USED
from limpet.shm.endpoint.slots import DYING, ERA, ERA_SHIFT, LIVE, PIN, PIN_SHIFT
from limpet.shm.endpoint.words import stamp

NEVER: Final = (1 << 64) - 1
EPOCH_MAX: Final = 1 << 62
"""Closings of periods for which an epoch has room; no pool is in use for so long."""
FIELDS: Final = (
    Field("epoch", EPOCH_MAX, A_SECOND_MAX, LASTS, "beyond it memory was damaged: PoolCorrupt"),
)


class Pinned(NamedTuple):
    """A client inside an operation: slot number, state word, pin word, epoch of the pin."""

    slot: int
    word: int
    pin: int
    epoch: int


class Grace:
    """The epoch and the pins of one pool."""

    def __init__(self, endpoint: Any) -> None:
        self.endpoint = endpoint

    def now(self) -> int:
        """The epoch."""
        return int(self.endpoint.load(EPOCH))

    def close_period(self) -> int:
        """The epoch E of memory unlinked so far; a client that pins now pins a later one."""
        epoch = self.endpoint.faa(EPOCH, 1)
        # The stamp 0 means long ago (words.py), so no period has it.
        if not stamp(epoch):
            epoch = self.endpoint.faa(EPOCH, 1)
        return int(epoch)

    def pinned(self) -> list[Pinned]:
        """Every client whose pin counts."""
        return pins(self.endpoint)

    def horizon(self) -> int:
        """An epoch such that memory unlinked in an earlier one may be reused, now and later.

        The oldest epoch that is pinned, or, if none is, the epoch before we looked.
        """
        horizon = self.now()
        # Twice, since a scan is no snapshot: a recoverer takes over the pin of the dead client that
        # it recovers, perhaps after we read its own slot and before we read the dead client's.
        for _ in range(2):
            for client in self.pinned():
                horizon = min(horizon, client.epoch)
        return horizon

    def laggards(self, epoch: int) -> list[Pinned]:
        """The clients that keep the period of `epoch` open."""
        return [client for client in self.pinned() if client.epoch <= epoch]


def _words_of(used: range) -> Iterator[int]:
    """Addresses of state, era and pin of these slots, one by one: of a damaged number of slots the
    first that cannot be raises AddressError."""
    for slot in used:
        at = CLIENT_SLOTS + slot * SLOT_SIZE
        yield at
        # ORDER: the era before the pin: that of an earlier pin is never a later one.
        yield at + ERA
        yield at + PIN


def pins(endpoint: Any) -> list[Pinned]:
    """Every client whose pin counts."""
    found = []
    used = endpoint.load(SLOTS_USED)
    read = endpoint.load_all(_words_of(range(used))) if endpoint.gathers else None
    for slot in range(used):
        at = CLIENT_SLOTS + slot * SLOT_SIZE
        word = endpoint.load(at) if read is None else read[3 * slot]
        if word >> 60 != LIVE and word >> 60 != DYING:
            continue
        # ORDER: the era before the pin: that of an earlier pin is never a later one.
        era = endpoint.load(at + ERA) if read is None else read[3 * slot + 1]
        pin = endpoint.load(at + PIN) if read is None else read[3 * slot + 2]
        if pin:
            found.append(Pinned(slot, word, pin, era << ERA_SHIFT | pin >> PIN_SHIFT))
    return found
