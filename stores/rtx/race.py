"""The `rtx-race` store: a subtable is split by one transaction (rTX section 5).

An entry of the directory (directory.py) is the TXObj of its subtable (stores/rtx/lllock.py).
Searches, inserts, updates and deletes are RACE's own, and take no lock: concurrency control is
delegated to RACE (Opt2). A client that finds no room, or a frozen slot, splits the subtable by a
transaction with a log (stores/rtx/commit.py) that writes three objects,

    the entry           from the subtable to a vacant word, which says that it is split
    the two halves      from 0 to new subtables

Both halves come first in the order of addresses, so they are there when the entry is split.

The paper has inserts look at the lock before they work on the subtable. That is not enough (trap
R7): one that stands still between the look and its CAS writes to a subtable that has been copied,
and its pair is lost, or seen and then lost. Here the slots of the old subtable are frozen
(race/store.py) before they are copied, so a CAS that comes late fails, and nobody needs to look at
the lock. Readers go on all the time.

A frozen slot cannot be written to before the split is done, so nothing is frozen before that is
certain (R13): it is decided first, and the transaction has all memory that it takes in its log by
then. A client that carries a decided split out, its owner or another one, does all of

    1. freeze each slot of the old subtable. One that a transaction of a user holds
       (transactional.py) is let go of first: that transaction is aborted, or carried out
    2. CAS each slot of the halves that gets a pair from UNSET to what the frozen slot at the same
       place says. The others stay UNSET, which is vacant to all who use a half, and nobody fills
       them later: by then all that have a pair are filled, and no slot becomes UNSET again
    3. swing the pointers, and release the locks, as of every transaction (stores/rtx/log.py)

Any number of clients may be at it, as in race/store.py, and none of it takes memory. Before a split
is decided, its owner looks whether a slot is held, and gives way to the transaction that holds it.

A kill leaves behind: the log in the hand (stores/rtx/log.py). Recovery gives the halves back,
if it was not decided; else it carries the split out.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from limpet.shm.endpoint.fabric import hash64
from limpet.shm.endpoint.words import ADDRESS_MASK, HELD, HELD_MASK
from limpet.shm.errors import StoreCorrupt
from limpet.shm.parameters import check_whole
from limpet.stores.race.old.directory import is_split
from limpet.stores.race.old.index import Index, is_valid
from limpet.stores.race.layout import DIRECTORY_ENTRY, FROZEN, OBJECT_MASK, UNSET
from limpet.stores.race.parameters import SLOTS_PER_BUCKET, GrowingParameters
from limpet.stores.rtx.commit import Commit
from limpet.stores.rtx.hash_slots import Transactional
from limpet.stores.rtx.layout import DRIFT_US, EACH_US, LOCKED, POINTER, SLOT
from limpet.stores.status import AGAIN, DONE

if TYPE_CHECKING:
    from limpet.shm.endpoint.layout import NodeLayout
    from limpet.shm.parameters import PoolParameters
    from limpet.stores.rtx.log import Log

SLOTS_PER_OBJECT = 8
"""A slot takes so many times less than an object of a transaction, for the lease."""


@dataclasses.dataclass(frozen=True)
class RtxGrowingParameters(GrowingParameters):
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
    ) -> RtxGrowingParameters:
        base = GrowingParameters.for_pool(
            pool, layout, capacity=capacity, groups=groups, bucket_size=bucket_size, limit=limit
        )
        return cls(**dataclasses.asdict(base), drift_us=drift_us, each_us=each_us)


class RtxGrowing(Transactional):
    """The `rtx-race` store. `RtxGrowingParameters`."""

    Parameters: type[RtxGrowingParameters] = RtxGrowingParameters

    def __init__(self, pool: Any, kind: str, name: str, parameters: Any) -> None:
        super().__init__(pool, kind, name, parameters)
        self.objects_needed = 3
        """Two halves, and the log, which takes memory of the same size."""

    def _wait(self, attempt: int) -> None:
        self.repair.stay(self.busy, attempt, True)

    def carry_out(self, log: Any) -> bool:
        """Carry out a log that is decided; whether it was to commit. Within an operation."""
        if log.commits():
            for entry in log.entries():
                if is_split(entry.new):
                    self._fill_halves(entry, {other.at: other.new for other in log.entries()})
        return bool(log.finish())

    def _fill_halves(self, parent: Any, halves: dict[int, int]) -> None:
        """Freeze the subtable that a decided split takes from the entry of `parent`, and have its
        pairs in the halves; `halves`: their pointers, by the objects of their entries."""
        table = -1
        for candidate, directory in enumerate(self.tables):
            if 0 <= parent.at - directory < self.parameters.directory_size:
                table = candidate
        number = self.entries - (parent.at - self.tables[table]) // DIRECTORY_ENTRY
        entries = [self._entry(table, 2 * number + half) - POINTER for half in (0, 1)]
        if table < 0 or not all(entry in halves for entry in entries):
            raise StoreCorrupt(f"{self.name}: the log of a split of {parent.at:#x} is damaged")
        first, second = halves[entries[0]] & ADDRESS_MASK, halves[entries[1]] & ADDRESS_MASK
        # CRASH(split-decided): recovery, or whoever meets a lock when the lease is over, goes on.
        attempt = 0
        while held := self.freeze(parent.old):
            if not self.repair.clear_slot(held):
                attempt += 1
                self.endpoint.pause(attempt)
                self.pool.membership.progress()
        shift = self.depth_max - number.bit_length()
        # ORDER: after all is frozen; so one read shows it, and everybody the same.
        words = np.frombuffer(
            self.endpoint.read(parent.old & ADDRESS_MASK, self.subtable_size), dtype="<u8"
        ).tolist()
        for index, word in enumerate(words):
            if index & 7 and is_valid(word):
                self.objects.load(word & OBJECT_MASK)
                half = self._prefix(hash64(self.objects.key())) >> shift & 1
                slot = (second if half else first) + 8 * index
                self.endpoint.cas(slot, UNSET, word & ~FROZEN)

    def _check_here(self, number: int, base: int, group: int, seen: dict[bytes, int]) -> None:
        Index._check_here(self, number, base, group, seen)

    def first_held(self, pointer: int) -> int:
        """The first slot of a subtable that a transaction holds, or 0."""
        base = pointer & ADDRESS_MASK
        held = self._slots_of(base) & np.uint64(HELD_MASK) == HELD
        held[:, :, 0] = False  # headers of buckets
        found = np.flatnonzero(held)
        return base + 8 * int(found[0]) if len(found) else 0

    def _split(self) -> int:
        commit = Split(self, self.pointer)
        for number in (self.number, 2 * self.number, 2 * self.number + 1):
            at = self._entry(self.table, number) - POINTER
            version = self.endpoint.load(at)
            if version & LOCKED:
                self.busy = at
                return AGAIN
            commit.expect(at, version)
            if number == self.number:
                commit.write(at, None)
            else:
                commit.write_half(at, number)
        # ORDER: after the versions: it was not split in any of them.
        if self.endpoint.load(self.entry) != self.pointer:
            return DONE
        outcome = commit.run()
        self.busy = commit.busy or self.entry - POINTER
        return int(outcome)


class Half:
    """The new subtable of a half, of this number in its directory."""

    def __init__(self, store: RtxGrowing, number: int) -> None:
        self.store = store
        self.number = number
        self.size = int(store.subtable_size)

    def write(self, address: int, state: int) -> None:
        """Write it there with nothing in it, to be filled when the split is decided."""
        self.store.endpoint.write(address, self.store._filled(self.number, UNSET))


class Split(Commit):
    """The transaction that splits a subtable."""

    def __init__(self, store: RtxGrowing, old: int) -> None:
        super().__init__(store.pool, store.locks)
        self.allocator = store.allocator.coherent()
        self.begin(store.link)
        self.store = store
        self.old = old
        self.effort = int(store.subtable_size) // 8 // SLOTS_PER_OBJECT

    def write_half(self, at: int, number: int) -> None:
        """Stage a half, whose entry has this number and is this object."""
        self.write(at, Half(self.store, number))

    def complete(self) -> bool:
        held = self.store.first_held(self.old)
        if held:
            self.busy = held | SLOT
        return not held

    def carry_out(self, log: Log) -> None:
        self.store.carry_out(log)
