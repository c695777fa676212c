"""The `rtx-race` store: a subtable is split by one transaction (rTX section 5).

An entry of the directory (race/index.py) is the TXObj of its subtable (stores/rtx/lllock.py).
Searches, inserts, updates and deletes are RACE's own, and take no lock: concurrency control is
delegated to RACE (Opt2). A client that finds no room, or a frozen slot, splits the subtable by a
transaction with a log (stores/rtx/commit.py) that writes three objects,

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
       (hash_slots.py) is let go of first: that transaction is aborted, or carried out
    2. CAS each slot of the halves that gets a pair from UNSET to what the frozen slot at the same
       place says. The others stay UNSET, which is vacant to all who use a half, and no client fills
       them later: by then all that have a pair are filled, and no slot becomes UNSET again
    3. swing the pointers, and release the locks, as of every transaction (stores/rtx/log.py)

Any number of clients may be at it, as in race/splitter.py, and none of it takes memory. Before a
split is decided, its owner looks whether a slot is held, and gives way to the transaction that
holds it.

A kill leaves behind: the log in the client journal (stores/rtx/log.py). Recovery gives the halves
back, if it was not decided; else it carries the split out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from limpet.shm.endpoint.fabric import hash64
from limpet.shm.endpoint.words import ADDRESS_MASK, HELD, HELD_MASK, REPLICATED
from limpet.shm.errors import StoreCorrupt
from limpet.shm.parameters import check_whole
from limpet.stores.race.check import Check
from limpet.stores.race.hash_store import HashStore
from limpet.stores.race.index import Index, Place, is_split, is_valid
from limpet.stores.race.layout import DIRECTORY_ENTRY, FROZEN, UNSET
from limpet.stores.race.parameters import SLOTS_PER_BUCKET, GrowingParameters
from limpet.stores.race.splitter import Splitter
from limpet.stores.race.store import attach, make_directories, unmake_directories
from limpet.stores.records import Objects
from limpet.stores.rtx.commit import Commit
from limpet.stores.rtx.hash_slots import TransactionHolds, TransactionSlots
from limpet.stores.rtx.hash_writes import WriteSet
from limpet.stores.rtx.layout import DRIFT_US, EACH_US, LOCKED, POINTER, SLOT
from limpet.stores.rtx.lllock import LLLocks
from limpet.stores.rtx.reads import KeyRead
from limpet.stores.rtx.repair import Repair
from limpet.stores.status import AGAIN, DONE

if TYPE_CHECKING:
    from limpet.shm.endpoint.layout import NodeLayout
    from limpet.shm.parameters import PoolParameters
    from limpet.stores.rtx.log import Log

SLOTS_PER_OBJECT = 8
"""A slot takes so many times less than an object of a transaction, for the lease."""


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
        capacity: int | None = None,
        groups: int | None = None,
        bucket_size: int = SLOTS_PER_BUCKET,
        limit: int = 0,
        drift_us: int = DRIFT_US,
        each_us: int = EACH_US,
    ) -> RtxRaceParameters:
        base = GrowingParameters.for_pool(
            pool, layout, capacity=capacity, groups=groups, bucket_size=bucket_size, limit=limit
        )
        return cls(**dataclasses.asdict(base), drift_us=drift_us, each_us=each_us)


class RtxRace(HashStore):
    """The `rtx-race` store. `RtxRaceParameters`."""

    Parameters: type[RtxRaceParameters] = RtxRaceParameters
    resolves = True
    transactional = True

    def __init__(self, pool: Any, kind: str, name: str, parameters: Any) -> None:
        super().__init__(pool, kind, name, parameters)
        self.link = self.entry_number << 48 | REPLICATED
        self.locks = LLLocks(pool, parameters.drift_us, parameters.each_us)
        self.repair = Repair(self, self.locks)
        objects = Objects(pool.heap, in_place=True)
        self.holds = TransactionHolds(name, objects)
        index = Index(pool, name, parameters, objects, attach(pool, name, parameters), self.holds)
        self.writer = TransactionSlots(index, pool.client, self.locks)
        splitter = TransactionSplitter(pool, index, parameters, self)
        self.hold_parts(index, self.writer, splitter, Check(pool, index, unset_stays=True))
        self.slot = 0
        """Of the key that was looked up last, and its value."""
        self.value: bytes | None = None
        self.cramped = 0
        """Pointer to the subtable in which `place_for` found no place."""

    @staticmethod
    def make(pool: Any, name: str, parameters: Any) -> None:
        make_directories(pool, name, parameters)

    @staticmethod
    def unmake(pool: Any, name: str, parameters: Any) -> None:
        unmake_directories(pool, name, parameters)

    def forget(self) -> None:
        self.index.forget()
        self.locks.forget()

    def give_way(self, busy: int, table: int, attempt: int) -> None:
        if busy:
            self.repair.stay(busy, attempt, True)

    def stats(self) -> dict[str, Any]:
        """As of every store; `repairs`: transactions that this handle has found at the end of their
        lease, and seen to."""
        return {**super().stats(), "repairs": self.repair.repairs}

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
        return bool(log.finish())

    def copy_for(self, at: int, old: int, state: int) -> int:
        """StoreCorrupt: the lock of an entry of a directory always has a log."""
        raise StoreCorrupt(
            f"{self.name}: the lock at {at:#x} is {state:#x}, of a client that has no log: memory "
            "was damaged; destroy the pool"
        )

    # ---- for transactions -----------------------------------------------------------------------

    def look_up(self, key: bytes) -> bytes | None:
        """The value of a key, or None, which counts if nothing is `busy`. Within an operation."""
        self.slot = self.index.look_up(self.place, key)
        self.value = self.objects.value() if self.slot else None
        return self.value

    @property
    def busy(self) -> int:
        """What was in the way of the last look-up, as `Repair.look` takes it; 0: nothing was."""
        return int(self.place.busy)

    def busy_at(self) -> int:
        """The same."""
        return int(self.place.busy)

    def witness(self) -> tuple[Any, ...]:
        """What the last look-up rests on: the pointer of the directory's entry, and the slot with
        the key, or all slots in which it could be."""
        place = self.place
        if self.slot:
            return place.entry, place.pointer, self.slot, place.word
        if not place.base:
            return place.entry, place.pointer
        words = bytes(self.index.words[:32])
        return place.entry, place.pointer, place.first, place.second, words

    def stands(self, witness: tuple[Any, ...]) -> bool:
        """Whether what a look-up rests on is as it was (stores/rtx/reads.py)."""
        if len(witness) == 4 and self.endpoint.load(witness[2]) != witness[3]:
            return False
        if len(witness) == 5:
            self.place.first = witness[2]
            self.place.second = witness[3]
            self.place.base = witness[2]
            self.index.read_row(self.place, 0)
            if bytes(self.index.words[:32]) != witness[4]:
                return False
        # ORDER: after the words: of a subtable that is split they stand still, whatever is written.
        return self.endpoint.load(witness[0]) == witness[1]

    def at_key(self, key: bytes, work: Callable[[], Any]) -> Any:
        """What `work` returns, called in an operation that has looked the key up."""
        attempt = 0
        while True:
            self.client.enter()
            try:
                self.require_there()
                self.look_up(key)
                busy = self.place.busy
                if not busy:
                    return work()
            finally:
                self.client.leave()
            attempt += 1
            self.retries += 1
            self.give_way(busy, 0, attempt)

    def value_here(self) -> bytes | None:
        """The value of the key that was looked up last; None: it has none."""
        return self.value

    def note(self, reads: Any, key: bytes, value: bytes | None) -> bool:
        """Note the last look-up in a transaction's read set."""
        return bool(reads.note_key(key, KeyRead(value, self.witness(), self)))

    def refuse(self, key: bytes, value: bytes) -> None:
        """Raise KeyTooLarge or ValueTooLarge if the pair is."""
        self.objects.size_of(key, value)

    def staging(self, commit: Any) -> WriteSet:
        """What the transaction of a commit changes here."""
        return WriteSet(self, commit)

    def place_for(self, key: bytes, taken: Any) -> tuple[int, int]:
        """The slot in which a key is, or can be put, but none of those `taken`; and its word.

        0, 0: there is none, or something is `busy`. Within an operation.
        """
        place = self.place
        self.look_up(key)
        if self.slot and place.word & HELD_MASK == HELD:
            place.busy = self.slot | SLOT
        if place.busy:
            return 0, 0
        if self.slot and not place.word & FROZEN:
            return self.slot, place.word
        self.writer.hide(place, taken)
        index = -1 if self.slot else self.index.room(place)
        if index < 0:
            self.cramped = place.pointer
            return 0, 0
        return self.index.address(place, index), self.index.words[index]

    def make_room(self, key: bytes, subtable: int) -> None:
        """Split the subtable in which there was no place for a key, if the key still belongs there;
        `subtable`: its pointer. Raises StoreFull."""
        self.splitter.cramped = subtable
        try:
            self.grow(key)
        finally:
            self.splitter.cramped = 0

    def pair_for(self, key: bytes, value: bytes | None, old: int) -> int:
        """The word of a slot with a new pair, in the client journal; of one whose pair is deleted,
        which had the word `old`, if `value` is None. 0: there is no memory ready."""
        if value is None:
            return self.writer.vacated(old)
        node = self.index.node_of(self.index.table_of(key))
        reference = self.allocator.allocate(node, self.objects.size_of(key, value), 1)
        if not reference:
            return 0
        self.objects.write(reference, key, value)
        return (hash64(key) & 0xFF) << 56 | reference

    def is_alone(self, key: bytes, slot: int) -> bool:
        """Whether no slot but this one, which we hold, has the key."""
        return self.writer.is_alone(self.place, self.holds, key, slot)

    def tidy(self, key: bytes) -> None:
        """After a transaction has deleted a key: subtables are not merged."""


class TransactionSplitter(Splitter):
    """Splits each subtable by a transaction."""

    def __init__(self, pool: Any, index: Index, parameters: Any, store: RtxRace) -> None:
        super().__init__(pool, index, parameters)
        self.locks = store.locks
        self.repair = store.repair
        self.link = store.link
        self.objects_needed = 3
        """Two halves, and the log, which takes memory of the same size."""

    def wait(self, busy: int, table: int, attempt: int) -> None:
        self.repair.stay(busy, attempt, True)

    def split(self, place: Place) -> int:
        commit = Split(self, place.pointer)
        for number in (place.number, 2 * place.number, 2 * place.number + 1):
            at = self.index.entry(place.table, number) - POINTER
            version = self.endpoint.load(at)
            if version & LOCKED:
                place.busy = at
                return AGAIN
            commit.expect(at, version)
            if number == place.number:
                commit.write(at, None)
            else:
                commit.write(at, Half(self, number))
        # ORDER: after the versions: it was not split in any of them.
        if not self.is_current(place):
            return DONE
        outcome = commit.run()
        place.busy = commit.busy or place.entry - POINTER
        return int(outcome)

    def is_current(self, place: Place) -> bool:
        """Whether a key's subtable has not been split since it was chosen."""
        return self.endpoint.load(place.entry) == place.pointer

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
        # CRASH(split-decided): recovery, or whoever meets a lock when the lease is over, goes on.
        attempt = 0
        while held := self.freeze(parent.old):
            if not self.repair.clear_slot(held):
                attempt += 1
                self.endpoint.pause(attempt)
                self.pool.membership.progress()
        depth = int(number).bit_length() - 1
        # ORDER: after all is frozen; so one read shows it, and every client the same.
        words = np.frombuffer(
            self.endpoint.read(parent.old & ADDRESS_MASK, index.subtable_size), dtype="<u8"
        ).tolist()
        for at, word in enumerate(words):
            if at & 7 and is_valid(word):
                slot = (second if self.half_of(word, depth) else first) + 8 * at
                self.fill(slot, word & ~FROZEN)

    def first_held(self, pointer: int) -> int:
        """The first slot of a subtable that a transaction holds, or 0."""
        base = pointer & ADDRESS_MASK
        held = self.index.slots_of(base) & np.uint64(HELD_MASK) == HELD
        held[:, :, 0] = False  # headers of buckets
        found = np.flatnonzero(held)
        return base + 8 * int(found[0]) if len(found) else 0


class Half:
    """The new subtable of a half, of this number in its directory."""

    def __init__(self, splitter: TransactionSplitter, number: int) -> None:
        self.splitter = splitter
        self.number = number
        self.size = int(splitter.index.subtable_size)

    def write(self, address: int, state: int) -> None:
        """Write it there with nothing in it, to be filled when the split is decided."""
        self.splitter.endpoint.write(address, self.splitter.filled(self.number, UNSET))


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
