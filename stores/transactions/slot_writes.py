"""The changes of a slot of a hash store: `Change`; and, by its transaction, `SlotWrite`.

A part of a log (parts.py) has an entry for each slot. The client whose transaction it is keeps its
entries as it has staged them (rtx/race.py); every other client reads them from the part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.stores.core.status import NO_MEMORY

if TYPE_CHECKING:
    from limpet.stores.transactions.hash_keys import HashKeys
    from limpet.stores.transactions.reads import KeyRead


class Change:
    """A slot's address, its word before, and its word after."""

    def __init__(self, slot: int, old: int, new: int) -> None:
        self.slot = slot
        self.old = old
        self.new = new


class SlotWrite(Change):
    """The change of a slot by this client's transaction; value None: the key is deleted. A commit
    uses it again for its next transaction."""

    def __init__(self) -> None:
        self.read: KeyRead | None = None

    def stage(
        self,
        keys: HashKeys,
        slot: int,
        key: bytes,
        value: bytes | None,
        old: int,
        read: KeyRead | None,
        inserts: bool,
        hashed: int,
    ) -> None:
        """Stage the change of a slot with the word `old`. `read`: how the transaction has read the
        key, if it has; `inserts`: the key was missing; `hashed`: the key's hash."""
        self.keys = keys
        self.read = read
        self.slot = slot
        self.key = key
        self.value = value
        self.old = old
        self.new = 0
        self.reference = 0
        """To the object of the new pair."""
        self.ticket = 0
        self.applied = False
        self.inserts = inserts
        self.hash = hashed
        self.size = 0 if value is None else keys.objects.size_of(key, value)
        """Bytes of the new pair; 0: it is deleted."""

    def forget(self) -> None:
        """Keep nothing of a transaction that is over."""
        self.key = b""
        self.value = self.read = None

    def vacate(self) -> None:
        """Set `new` to the word that the slot gets when its pair is deleted."""
        self.new = self.keys.writer.vacated(self.old)

    def take(self, reference: int) -> None:
        """Put the new pair into this object, which the client journal names, or is to name; set
        `new` to the word of the slot that links to it."""
        self.reference = reference
        self.new = (self.hash & 0xFF) << 56 | reference

    def write_pair(self) -> None:
        """Write the new pair to its object."""
        self.keys.objects.write_hashed(self.reference, self.key, self.value, self.hash)

    def write_alone(self) -> int:
        """Write it by one CAS, as an operation of that key does: DONE, AGAIN or NO_MEMORY."""
        keys = self.keys
        keys.place.word = self.old
        if self.value is None:
            return keys.writer.remove(keys.place, self.slot)
        # A pair is on the memory node of its slot.
        reference = keys.allocator.allocate(self.slot >> NODE_SHIFT & 0xFF, self.size, 1)
        if not reference:
            return NO_MEMORY
        self.take(reference)
        self.write_pair()
        return keys.writer.replace(keys.place, self.slot, self.new)

    def is_alone(self) -> bool:
        """Whether no slot but this one, which we hold, has the key."""
        keys = self.keys
        return keys.writer.is_alone(keys.place, keys.holds, self.key, self.slot)


def slot_of(change: Change) -> int:
    """The address of the slot, by which changes are sorted."""
    return change.slot
