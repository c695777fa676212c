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

A remote client has a copy of HOLDS. So before the first record that a client writes it waits until
all remote clients have read HOLDS since (lasting.py). A remote client has nothing in place itself.

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

Owners. A record is taken for an owner, an object of this process that is noted before the record is
written. If a signal handler cuts an owner's call off, its record is found by the owner, and given
back at any later time.

A kill leaves behind: records. Recovery lets them go as their client would have.
"""

from __future__ import annotations

from typing import Any, Final

from limpet.shm.endpoint.fabric import bit
from limpet.shm.endpoint.layout import DROPS, HOLDS, REMOTES
from limpet.shm.endpoint.slots import INCARNATION_BITS, RECORDS, RECORDS_COUNT
from limpet.shm.endpoint.words import OWES, REFERENCE_MASK
from limpet.shm.errors import ClientError

ALIASED: Final = 63
"""The bit of HOLDS that the slots from this one on share."""


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
        self.owners: list[Any] = [None] * RECORDS_COUNT
        """By record: the owner for which it is taken, or None."""
        self.marked = False

    def take(self, word: int, owner: Any) -> int:
        """Write `word` into a free record for this owner; the record's address. Gives back before
        what an earlier attempt of the owner took. ClientError: no record is free."""
        self.give_back(owner)
        index = self._index_of(None)
        if index < 0:
            raise ClientError(
                f"{RECORDS_COUNT} values are viewed or reserved by this handle already, which is "
                "the most; end one of their blocks, or open the pool once more"
            )
        if not self.marked:
            # ORDER: before the record: a client that frees looks at records only if this is set.
            self.endpoint.fetch_or(HOLDS, bit(self._slot()))
            # ORDER: after HOLDS: a remote client sets this bit before it reads HOLDS.
            if self.endpoint.load(DROPS) & REMOTES:
                self.client.await_copies()
            self.marked = True
        record: int = self.client.slot + RECORDS + 8 * index
        # ORDER: before the record: a signal handler may raise at the verb.
        self.owners[index] = owner
        # ORDER: a full barrier before the link is looked at again.
        self.endpoint.swap(record, word)
        return record

    def record_of(self, owner: Any) -> int:
        """The address of the owner's record; 0: it has none."""
        index = self._index_of(owner)
        record: int = self.client.slot + RECORDS + 8 * index if index >= 0 else 0
        return record

    def give_back(self, owner: Any) -> None:
        """Let go what the owner's record names, if it has one."""
        index = self._index_of(owner)
        if index >= 0:
            let_go(self.client, self.client.slot + RECORDS + 8 * index)
            self._release(index)

    def release(self, owner: Any) -> None:
        """The owner's record is 0, and may be taken again."""
        self._release(self._index_of(owner))

    def _release(self, index: int) -> None:
        self.owners[index] = None
        if self.marked and not self._any() and self._slot() != ALIASED:
            # ORDER: our note first: a bit that is set without records is harmless.
            self.marked = False
            self.endpoint.mcas(HOLDS, 0, 0, 0, bit(self._slot()))

    def _index_of(self, owner: Any) -> int:
        """The number of the owner's record, or of a free one if the owner is None; -1: none."""
        for index in range(RECORDS_COUNT):
            if self.owners[index] is owner:
                return index
        return -1

    def _any(self) -> bool:
        """Whether a record is taken."""
        index = 0
        while index < RECORDS_COUNT and self.owners[index] is None:
            index += 1
        return index < RECORDS_COUNT

    @property
    def count(self) -> int:
        """How many records are taken."""
        return RECORDS_COUNT - self.owners.count(None)

    def _slot(self) -> int:
        """The number of our bit in HOLDS."""
        slot: int = self.client.ident >> INCARNATION_BITS
        return min(slot, ALIASED)
