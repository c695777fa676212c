"""The `rtx-race` store: a subtable is split by one transaction (rTX section 5).

An entry of the directory (directory.py) is the TXObj of its subtable (stores/rtx/lllock.py). What
searches, inserts, updates and deletes is RACE's own, and takes no lock: concurrency control is
delegated to it (Opt2). Whoever finds no room, or a frozen slot, splits the subtable by a
transaction with a log (stores/rtx/commit.py) that writes three objects,

    the entry           from the subtable to VACATED, which says that it is split
    the two halves      from 0 to new subtables

Both halves come first in the order of addresses, so they are there when the entry is split.

The paper has inserts look at the lock before they work on the subtable. That is not enough (trap
R7): one that stands still between the look and its CAS writes to a subtable that has been copied,
and its pair is lost, or seen and then lost. Here, when all is locked, the slots of the old subtable
are frozen (growth.py) before they are copied, so a CAS that comes late fails, and nobody needs to
look at the lock. A frozen slot stays so when the transaction is aborted; whoever wants to write to
it begins another one. Readers go on all the time. A slot that a transaction of a user holds
(transactional.py) is not frozen: the split is aborted, and begun anew when it is let go of.

What a kill leaves behind: the log in the hand (stores/rtx/log.py), and frozen slots. Recovery gives
the unfinished halves back; while there is no memory for others, frozen slots can only be read.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from limpet.shm.parameters import check_whole
from limpet.shm.words import ADDRESS_MASK
from limpet.stores.outcomes import AGAIN, DONE
from limpet.stores.race.parameters import SLOTS_PER_BUCKET, GrowingParameters
from limpet.stores.race.transactional import Transactional
from limpet.stores.rtx.commit import Commit
from limpet.stores.rtx.fields import DRIFT_US, EACH_US, LOCKED, POINTER, SLOT

if TYPE_CHECKING:
    from limpet.shm.layout import NodeLayout
    from limpet.shm.parameters import PoolParameters

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
    """The new subtable of a half. `Split.complete` writes it, when all is locked."""

    def __init__(self, size: int) -> None:
        self.size = size

    def write(self, address: int, state: int) -> None:
        pass


class Split(Commit):
    """The transaction that splits a subtable."""

    def __init__(self, store: RtxGrowing, old: int) -> None:
        super().__init__(store.pool, store.locks)
        self.allocator = store.allocator.coherent()
        self.begin(store.link)
        self.store = store
        self.old = old
        self.numbers: dict[int, int] = {}
        """Of the halves' entries, by their objects; the first half first."""
        self.effort = int(store.subtable_size) // 8 // SLOTS_PER_OBJECT

    def write_half(self, at: int, number: int) -> None:
        """Stage a half, whose entry has this number and is this object."""
        self.numbers[at] = number
        self.write(at, Half(int(self.store.subtable_size)))

    def complete(self) -> bool:
        held = self.store.freeze(self.old)
        if held:
            self.busy = held | SLOT
            return False
        # CRASH(frozen): recovery aborts it; who wants to write to a frozen slot begins anew.
        halves = self.store.halves_of(self.old, [*self.numbers.values()])
        for at, words in zip(self.numbers, halves, strict=True):
            self.endpoint.write(self.swings[at][1] & ADDRESS_MASK, words)
        return True
