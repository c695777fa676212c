"""The changes of a slot of a hash store: `Change`; and, by its transaction, `SlotWrite`.

A part of a log (parts.py) has an entry for each slot. The client whose transaction it is keeps its
entries as it has staged them (hash_writes.py); every other client reads them from the part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpet.shm.endpoint.fabric import hash64
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.stores.status import NO_MEMORY

if TYPE_CHECKING:
    from limpet.stores.rtx.hash_keys import HashKeys
    from limpet.stores.rtx.reads import KeyRead


class Change:
    """A slot's address, its word before, and its word after."""

    def __init__(self, slot: int, old: int, new: int) -> None:
        self.slot = slot
        self.old = old
        self.new = new


class SlotWrite(Change):
    """The change of a slot by this client's transaction; value None: the key is deleted."""

    def stage(
        self,
        keys: HashKeys,
        slot: int,
        key: bytes,
        value: bytes | None,
        old: int,
        read: KeyRead | None,
        inserts: bool,
    ) -> SlotWrite:
        """Be the change of a slot with the word `old`; `read`: how its transaction has read the
        key, if it has; `inserts`: it is of a key that was missing."""
        self.keys = keys
        self.read = read
        self.slot = slot
        self.key = key
        self.value = value
        self.old = old
        self.new = 0
        self.inserts = inserts
        return self

    def size(self) -> int:
        """Bytes of the new pair."""
        return self.keys.objects.size_of(self.key, self.value)

    def write_pair(self) -> bool:
        """Have `new` be the word of the slot with a new pair, which is in the client journal; or of
        one whose pair is deleted. False: there is no memory ready."""
        keys = self.keys
        if self.value is None:
            self.new = keys.writer.vacated(self.old)
            return True
        # A pair is on the memory node of its slot.
        reference = keys.allocator.allocate(self.slot >> NODE_SHIFT & 0xFF, self.size(), 1)
        if not reference:
            return False
        keys.objects.write(reference, self.key, self.value)
        self.new = (hash64(self.key) & 0xFF) << 56 | reference
        return True

    def write_alone(self) -> int:
        """Write it by one CAS, as an operation of that key does: DONE, AGAIN or NO_MEMORY."""
        keys = self.keys
        keys.place.word = self.old
        if self.value is None:
            return keys.writer.remove(keys.place, self.slot)
        if not self.write_pair():
            return NO_MEMORY
        return keys.writer.replace(keys.place, self.slot, self.new)

    def is_alone(self) -> bool:
        """Whether no slot but this one, which we hold, has the key."""
        keys = self.keys
        return keys.writer.is_alone(keys.place, keys.holds, self.key, self.slot)


def slot_write(
    keys: HashKeys,
    slot: int,
    key: bytes,
    value: bytes | None,
    old: int,
    read: KeyRead | None,
    inserts: bool,
) -> SlotWrite:
    """A new one. It takes less time than a constructor with arguments, when compiled."""
    made = SlotWrite.__new__(SlotWrite)
    return made.stage(keys, slot, key, value, old, read, inserts)


def slot_of(change: Change) -> int:
    """The address of the slot, by which changes are sorted."""
    return change.slot
