"""The `rtx-race` store: RACE hashing whose subtables are split by transactions (rTX section 5).

An entry of the directory (race/index.py) is the TXObj of its subtable
(stores/transactions/tx_object.py). Searches, inserts, updates and deletes are RACE's own, and take
no lock: concurrency control is delegated to RACE (Opt2). A client that finds no room, or a frozen
slot, splits the subtable by a transaction with a log (`TransactionSplitter`), so a split that was
killed is carried out or undone by any other client. Keys take part in transactions of users
(hash_keys.py).

A get has no pin if memory is hardware-coherent. It is proven as in `race` (race/glance.py), since
transactions change nothing on which that proof rests:

    - The lock of an entry is a word that a get never reads. The pointer beside it leaves a subtable
      once, when a decided split swings it, and never comes back: a split that is aborted has not
      touched it. Slots are frozen, and the halves filled, before it is swung, so until then what
      the slots of the subtable say is so, frozen or not.
    - A transaction that writes a key takes its slot's word W away: the slot is HELD, and a get that
      meets that begins again with a pin, and goes by the log. A transaction that is aborted brings
      W back. So a slot that has W before the copy and after it may have been held in between. But
      the object of W is not freed while the slot is held, only after a commit, and then W comes
      back with another object, which has another stamp. So equal stamps mean what they mean in
      `race`: the object was complete and in use all the while.
    - A get takes effect at its last look at the slot, which has W and is not held. If a transaction
      that holds the slot is decided, it is decided before that slot changes; so a slot with its old
      word, not held, is of a moment before it was held, or after it was aborted. A get that follows
      one which has seen a transaction's value finds the other slots of that transaction held or
      changed.
    - Versions that change in place are those of TXObjs (tx_object.py): of trees, of users' objects,
      and of the entries here. A pair has none: it is written anew.
    - A missing key: deletes give a slot a word that never comes again, and a transaction gives a
      key that is there no other slot. So it leaves a slot only by a delete or a split, as in
      `race`.

The reads of a transaction are such gets, too (hash_keys.py); they are looked at again when it
commits, under its pin.

Changes of keys (`SlotWriteSet`): those that a transaction stages in slots. Within one operation, by
`Commit` (stores/transactions/commit.py). A key that is there keeps its slot. If the transaction has
read it, and what that rests on still stands, it is not looked up again. A key that is new gets a
vacant one, which no other key of the transaction gets. If there is none, the subtable is split by a
transaction of its own before this one is tried again: growth is no conflict. All keys are staged
before that, so that all subtables are split that are crowded: else a transaction would be tried
again as often as it takes splits.

Splits (`TransactionSplitter`). One transaction (stores/transactions/commit.py) splits a subtable.
It writes three objects,

    the entry           from the subtable to a vacant word, which says that it is split
    the two halves      from 0 to new subtables

Both halves come first in the order of addresses, so they are there when the entry is split.

The paper has inserts look at the lock before they work on the subtable. That is not enough (trap
R7): one that stands still between the look and its CAS writes to a subtable that has been copied,
and its pair is lost, or seen and then lost. Here the slots of the old subtable are frozen
(race/splitter.py) before they are copied, so a CAS that comes late fails, and no client needs to
look at the lock. Readers go on all the time.

A frozen slot cannot be written to before the split is done, so nothing is frozen before that is
certain (R13): it is decided first, and the transaction has all memory that it takes in its log by
then. A client that carries a decided split out, its owner or another one, does all of

    1. freeze each slot of the old subtable. One that a transaction of a user holds
       (hash_keys.py) is let go of first: that transaction is aborted, or carried out
    2. CAS each slot of the halves that gets a pair from UNSET to what the frozen slot at the same
       place says. The others stay UNSET, which is vacant to all who use a half
    3. swing the pointers, and release the locks, as of every transaction
       (stores/transactions/log.py)

Any number of clients may be at it, as in race/splitter.py, and none of it takes memory. Before a
split is decided, its owner looks whether a slot is held, and gives way to the transaction that
holds it.

A kill leaves behind: the log in the client journal (stores/transactions/log.py). Recovery gives the
halves back, if it was not decided; else it carries the split out.
"""

from __future__ import annotations

import dataclasses
from array import array
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from limpet.shm.endpoint.slots import START_US
from limpet.shm.endpoint.words import ADDRESS_MASK, HELD, HELD_MASK, REPLICATED
from limpet.shm.errors import StoreCorrupt
from limpet.shm.parameters import check_whole
from limpet.stores.core.object_layout import POINTER
from limpet.stores.core.records import StampedObjects
from limpet.stores.core.status import AGAIN, DONE, FULL
from limpet.stores.race.check import Check
from limpet.stores.race.glance import Glance
from limpet.stores.race.hash_store import HashStore
from limpet.stores.race.index import Index, Place, is_split
from limpet.stores.race.layout import DIRECTORY_ENTRY, UNSET
from limpet.stores.race.parameters import GrowingParameters
from limpet.stores.race.splitter import Splitter, progress_of
from limpet.stores.race.store import attach, make_directories, unmake_directories
from limpet.stores.transactions.commit import Commit
from limpet.stores.transactions.hash_keys import HashKeys, TransactionHolds, TransactionSlots
from limpet.stores.transactions.layout import (
    DRIFT_US,
    EACH_US,
    LOCKED,
    SLOT,
    SLOT_MASK,
    SLOT_SHIFT,
    TIME_MASK,
)
from limpet.stores.transactions.lllock import LLLocks
from limpet.stores.transactions.reads import Staging
from limpet.stores.transactions.repair import Repair
from limpet.stores.transactions.staged import NewData
from limpet.stores.transactions.try_commit import carry_out

if TYPE_CHECKING:
    from typing_extensions import Self

    from limpet.shm.endpoint.layout import NodeLayout
    from limpet.shm.parameters import PoolParameters
    from limpet.stores.transactions.log import Log
    from limpet.stores.transactions.reads import KeyRead


class SlotWriteSet(Staging):
    """The changes of one transaction to one store."""

    def __init__(self, keys: HashKeys, commit: Commit) -> None:
        self.keys = keys
        self.commit = commit

    def stage(self, key: bytes, value: bytes | None) -> int:
        """Stage one key's value, None to delete it: DONE, AGAIN or FULL."""
        keys, commit, reads = self.keys, self.commit, self.commit.reads
        read = None
        if reads is not None:
            read = reads.key_read(keys.link, key)
            if read is not None and commit.is_of_read_epoch() and keys.is_writable(read):
                self._write(read.slot, read.word, key, value, read, False, read.hash)
                return DONE
        # A key that is deleted needs no vacant slot, and what its look-up rests on stays as read.
        slot, word = keys.place_for(key, commit.taken() if value is not None else ())
        if keys.busy_at():
            return AGAIN
        found = keys.value_here()
        if read is not None and read.value != found:
            return AGAIN
        if value is None and found is None:
            # It was put by the transaction itself, which writes nothing for it; so nothing but its
            # read set can show that the key was absent when it committed.
            return DONE if reads is None or keys.note(reads, key, None) else AGAIN
        if not slot:
            commit.crowded.append((keys, key, keys.cramped))
            return FULL
        self._write(slot, word, key, value, read, found is None, keys.place.hash)
        return DONE

    def _write(
        self,
        slot: int,
        word: int,
        key: bytes,
        value: bytes | None,
        read: KeyRead | None,
        inserts: bool,
        hashed: int,
    ) -> None:
        """Stage the change of a slot that has this word."""
        write = self.commit.write_slot(slot, inserts, read is not None)
        write.stage(self.keys, slot, key, value, word, read, inserts, hashed)


SLOTS_PER_OBJECT: Final = 8
"""A slot takes so many times less than an object of a transaction, for the lease."""


class TransactionSplitter(Splitter):
    """Splits each subtable by a transaction."""

    def __init__(self, pool: Any, index: Index, parameters: Any, store: Any) -> None:
        super().__init__(pool, index, parameters)
        self.locks = store.locks
        self.repair = store.repair
        self.link = store.link
        self.objects_needed = 3
        """Two halves, and the log, which takes memory of the same size."""

    def wait(self, busy: int, table: int, attempt: int) -> None:
        self.repair.await_holder(busy, attempt, True)

    def split(self, place: Place) -> int:
        commit = Split(self, place.pointer)
        numbers = (place.number, 2 * place.number, 2 * place.number + 1)
        entries = [self.index.entry(place.table, number) - POINTER for number in numbers]
        read = array("Q", bytes(16 * len(entries)))
        for row, at in enumerate(entries):
            # ORDER: the pointer after the version.
            self.endpoint.post_read(at, read, 2, 2 * row)
        self.endpoint.wait()
        for row, at in enumerate(entries):
            version, pointer = read[2 * row], read[2 * row + 1]
            if version & LOCKED:
                place.busy = at
                return AGAIN
            commit.expect(at, version, pointer)
            commit.write(at, Half(self, numbers[row]) if row else None)
        if not self.is_current(place, read[1]):
            return DONE
        outcome = commit.run()
        place.busy = commit.busy or place.entry - POINTER
        return int(outcome)

    def is_current(self, place: Place, pointer: int) -> bool:
        """Whether a key's subtable, whose entry has this pointer, has not been split since it was
        chosen."""
        return pointer == place.pointer

    def fill_halves(self, parent: Any, halves: dict[int, int]) -> None:
        """Freeze the subtable that a decided split takes from the entry of `parent`, and have its
        pairs in the halves; `halves`: their pointers, by the objects of their entries."""
        index = self.index
        number, first, second = 0, 0, 0
        for table, directory in enumerate(index.tables):
            if 0 <= parent.at - directory < index.directory_size:
                number = index.entries - (parent.at - directory) // DIRECTORY_ENTRY
                first = index.entry(table, 2 * number) - POINTER
                second = index.entry(table, 2 * number + 1) - POINTER
        if first not in halves or second not in halves:
            raise StoreCorrupt(f"{index.name}: the log of a split of {parent.at:#x} is damaged")
        first, second = halves[first] & ADDRESS_MASK, halves[second] & ADDRESS_MASK
        # CRASH(split-decided): recovery, or a client that meets a lock after the lease, goes on.
        attempt = 0
        while held := self.freeze(parent.old):
            if not self.repair.clear_slot(held):
                attempt += 1
                self.endpoint.pause(attempt)
                self.pool.membership.progress()
        self.fill_pairs(int(number).bit_length() - 1, first, second)

    def first_held(self, pointer: int) -> int:
        """The first slot of a subtable that a transaction holds, or 0."""
        base = pointer & ADDRESS_MASK
        held = self.index.slots_of(base) & np.uint64(HELD_MASK) == HELD
        held[:, :, 0] = False  # headers of buckets
        found = np.flatnonzero(held)
        return base + 8 * int(found[0]) if len(found) else 0


class Half(NewData):
    """The new subtable of a half, of this number in its directory."""

    def __init__(self, splitter: TransactionSplitter, number: int) -> None:
        self.splitter = splitter
        self.number = number
        NewData.__init__(self, int(splitter.index.subtable_size))

    def write(self, at: int, state: int) -> None:
        """Write it there with nothing in it, to be filled when the split is decided."""
        filled = self.splitter.filled(self.number, UNSET)
        self.splitter.endpoint.post_write(at, filled, len(filled))


class Split(Commit):
    """The transaction that splits a subtable."""

    def __init__(self, splitter: TransactionSplitter, old: int) -> None:
        super().__init__(splitter.pool, splitter.locks)
        self.allocator = splitter.allocator
        self.begin(splitter.link)
        self.splitter = splitter
        self.old = old
        self.effort = int(splitter.index.subtable_size) // 8 // SLOTS_PER_OBJECT

    def complete(self) -> bool:
        held = self.splitter.first_held(self.old)
        if held:
            self.busy = held | SLOT
        return not held

    def carry_out(self, log: Log) -> None:
        self.splitter.repair.store.carry_out(log)


@dataclasses.dataclass(frozen=True)
class RtxRaceParameters(GrowingParameters):
    """Those of `race`; `drift_us`, `each_us`: how long a lease is, in us, and how much longer for
    each object, or key, that the transaction writes; 8 slots of a subtable that it splits count as
    one."""

    drift_us: int
    each_us: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("drift_us", self.drift_us, 0, 1 << 32)
        check_whole("each_us", self.each_us, 0, 1 << 32)

    @classmethod
    def for_pool(
        cls,
        pool: PoolParameters,
        layout: NodeLayout,
        *,
        drift_us: int = DRIFT_US,
        each_us: int = EACH_US,
        **others: Any,
    ) -> Self:
        """The parameters for a pool; `others` are those of every table that grows."""
        base = GrowingParameters.for_pool(pool, layout, **others)
        return cls(**dataclasses.asdict(base), drift_us=drift_us, each_us=each_us)


class RtxRace(HashStore):
    """The `rtx-race` store. `RtxRaceParameters`."""

    Parameters: type[RtxRaceParameters] = RtxRaceParameters
    resolves = True
    transactional = True
    swaps = True
    views = True
    watchable = True

    def __init__(self, pool: Any, kind: str, name: str, parameters: Any) -> None:
        super().__init__(pool, kind, name, parameters)
        self.link = self.entry_number << 48 | REPLICATED
        self.locks = LLLocks(pool, parameters.drift_us, parameters.each_us)
        self.repair = Repair(self, self.locks)
        objects = StampedObjects(pool.heap, pool.client)
        objects.posts = True
        self.holds = TransactionHolds(name, objects)
        index = Index(pool, name, parameters, objects, attach(pool, name, parameters), self.holds)
        self.writer = TransactionSlots(index, pool.client, self.locks)
        splitter = TransactionSplitter(pool, index, parameters, self)
        self.hold_parts(index, self.writer, splitter, Check(pool, index))
        self.glance_by(Glance(index))
        self.batches_puts()
        self.tx_keys = HashKeys(self, index, self.writer, self.holds)

    make = staticmethod(make_directories)
    unmake = staticmethod(unmake_directories)

    def forget(self) -> None:
        HashStore.forget(self)
        self.locks.forget()

    def back_off(self, busy: int, table: int, attempt: int) -> None:
        if busy:
            self.repair.await_holder(busy, attempt, True)

    def busy_slot(self, slot: int) -> int:
        return slot | SLOT

    def stats(self) -> dict[str, Any]:
        """As of every store; `repairs`: transactions that this handle has found at the end of their
        lease, and seen to."""
        return {**super().stats(), "repairs": self.repair.repairs}

    def growth(self) -> dict[str, Any]:
        """As of every table; a split says since when its transaction has had the lock."""
        return progress_of(self, _holder)

    # ---- recovery -------------------------------------------------------------------------------

    def resolved(self, reference: int, link_address: int) -> bool:
        """Decide a pair of a client journal: of a dead client, or our own (base.py)."""
        return bool(self.repair.resolved(reference, link_address))

    def listed(self, reference: int, link_address: int) -> list[int]:
        return list(self.repair.listed(reference, link_address))

    def carry_out(self, log: Any) -> bool:
        """Carry out a log that is decided; whether it was to commit. Within an operation."""
        splitter: Any = self.splitter  # a TransactionSplitter
        if log.commits():
            for entry in log.entries():
                if is_split(entry.new):
                    halves = {other.at: other.new for other in log.entries()}
                    splitter.fill_halves(entry, halves)
        return bool(carry_out(log))

    def copy_for(self, at: int, old: int, state: int) -> int:
        """StoreCorrupt: the lock of an entry of a directory always has a log."""
        raise StoreCorrupt(
            f"{self.name}: the lock at {at:#x} is {state:#x}, of a client that has no log: memory "
            "was damaged; destroy the pool"
        )

    # ---- for transactions -----------------------------------------------------------------------

    def staging(self, commit: Any) -> SlotWriteSet:
        """The part of a commit's transaction that changes this store."""
        return SlotWriteSet(self.tx_keys, commit)


def _holder(lock: int) -> tuple[int, int] | None:
    """Whose slot the lock of an entry names, and since when, in ns since 1970 (lllock.py)."""
    if not lock & LOCKED:
        return None
    return lock >> SLOT_SHIFT & SLOT_MASK, 1000 * (START_US + (lock & TIME_MASK))
