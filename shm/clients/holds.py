"""Objects that a client keeps between its operations: `Holds`.

A client that lets a program look at a value in place, or fill one, is in no operation meanwhile: it
may take an hour, and a pin would keep all memory from all clients. So it names the one object in a
record of its slot (slots.py), and its word in HOLDS tells the others that there is one.

Words
    holds     bit s: the client of slot s has records, perhaps; bit 63: one of slots 63 and above
    record    0, or an object reference with VIEWED or OWES, or both
              VIEWED   its client looks at the object, which was linked
              OWES     its client frees the object when it lets it go: it is not linked any more, or
                       not yet

Rule. A client that frees an object looks at HOLDS, and where there are records, at these
(`Heap.free`). If one names the object, it sets OWES there, by CAS, and leaves the object in use.
    - A viewer writes its record, with a full barrier, before it looks at the link a second time.
      The link is changed before the record is looked for. So the record is found, or the viewer
      finds the link changed, and lets the object go unseen.
    - Letting go is a CAS of the record to 0. If OWES is set by then, the object goes into the
      client journal first, with the record for its link: a record is a link as any other, and the
      object that it no longer names is freed, which hands it on to the next viewer if there is one.
    - No client begins to view an object that is not linked; so the viewers of an object become
      fewer, and its last one frees it.

An object that is being filled has OWES from the beginning. In its last operation the object moves
from the record to the client journal, and is linked from there as any new one.

A kill leaves behind: records. Recovery lets them go as their client would have.
"""

from __future__ import annotations

from typing import Any, Final

from limpet.shm.endpoint.fabric import bit, lowest_bit
from limpet.shm.endpoint.layout import HOLDS
from limpet.shm.endpoint.slots import INCARNATION_BITS, RECORDS, RECORDS_COUNT
from limpet.shm.endpoint.words import OWES, REFERENCE_MASK
from limpet.shm.errors import ClientError

ALIASED: Final = 63
"""The bit of HOLDS that the slots from this one on share."""
ALL_RECORDS: Final = (1 << RECORDS_COUNT) - 1


def let_go(client: Any, record: int) -> bool:
    """Let go what a record names, ours or a dead client's; whether it was freed. Pinned."""
    endpoint = client.endpoint
    freed = False
    while word := endpoint.load(record):
        index = client.log(word & REFERENCE_MASK, record) if word & OWES else -1
        # A kill here leaves it in our client journal, to be freed if the record has gone.
        lost = endpoint.cas(record, word, 0) != word
        if index >= 0:
            freed = client.heap.settle(word & REFERENCE_MASK, record) or freed
            client.drop(index)
        if not lost:
            break
    return freed


class Holds:
    """The records of one client. All methods but `forget` are called in operations, pinned."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.endpoint = client.endpoint
        self.forget()

    def forget(self) -> None:
        """Begin anew, with another slot or none."""
        self.taken = 0
        """Bit k: record k is taken."""
        self.count = 0
        self.marked = False

    def take(self, word: int) -> int:
        """Write `word` into a free record; the record's address. ClientError: there is none."""
        if self.count == RECORDS_COUNT:
            raise ClientError(
                f"{RECORDS_COUNT} values are viewed or reserved by this handle already, which is "
                "the most; end one of their blocks, or open the pool once more"
            )
        if not self.marked:
            # ORDER: before the record: a client that frees looks at records only if this is set.
            self.endpoint.fetch_or(HOLDS, bit(self._slot()))
            self.marked = True
        index = lowest_bit(~self.taken & ALL_RECORDS)
        record: int = self.client.slot + RECORDS + 8 * index
        self.taken |= bit(index)
        self.count += 1
        # ORDER: a full barrier before the link is looked at again.
        self.endpoint.swap(record, word)
        return record

    def give_back(self, record: int) -> None:
        """Let go what the record names."""
        let_go(self.client, record)
        self.release(record)

    def release(self, record: int) -> None:
        """The record is 0, and may be taken again."""
        index = (record - self.client.slot - RECORDS) >> 3
        if self.taken & bit(index):
            self.taken &= ~bit(index)
            self.count -= 1
        if not self.count and self.marked and self._slot() != ALIASED:
            self.endpoint.mcas(HOLDS, 0, 0, 0, bit(self._slot()))
            self.marked = False

    def _slot(self) -> int:
        """The number of our bit in HOLDS."""
        slot: int = self.client.ident >> INCARNATION_BITS
        return min(slot, ALIASED)
