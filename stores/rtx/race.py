"""The `rtx-race` store: RACE hashing whose subtables are split by transactions (rTX section 5).

An entry of the directory (race/index.py) is the TXObj of its subtable (stores/rtx/tx_object.py).
Searches, inserts, updates and deletes are RACE's own, and take no lock: concurrency control is
delegated to RACE (Opt2). A client that finds no room, or a frozen slot, splits the subtable by a
transaction with a log (race_split.py), so a split that was killed is carried out or undone by any
other client. Keys take part in transactions of users (hash_keys.py, hash_slots.py).

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

A kill leaves behind: the log in the client journal (stores/rtx/log.py). Recovery gives the halves
back, if it was not decided; else it carries the split out.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from limpet.shm.endpoint.slots import START_US
from limpet.shm.endpoint.words import REPLICATED
from limpet.shm.errors import StoreCorrupt
from limpet.shm.parameters import check_whole
from limpet.stores.race.check import Check
from limpet.stores.race.glance import Glance
from limpet.stores.race.hash_store import HashStore
from limpet.stores.race.index import Index, is_split
from limpet.stores.race.parameters import GrowingParameters
from limpet.stores.race.progress import progress_of
from limpet.stores.race.store import attach, make_directories, unmake_directories
from limpet.stores.rtx.hash_keys import HashKeys
from limpet.stores.rtx.hash_slots import TransactionHolds, TransactionSlots
from limpet.stores.rtx.hash_writes import WriteSet
from limpet.stores.rtx.layout import (
    DRIFT_US,
    EACH_US,
    LOCKED,
    SLOT,
    SLOT_MASK,
    SLOT_SHIFT,
    TIME_MASK,
)
from limpet.stores.rtx.lllock import LLLocks
from limpet.stores.rtx.race_split import TransactionSplitter
from limpet.stores.rtx.repair import Repair
from limpet.stores.rtx.try_commit import carry_out
from limpet.stores.stamped import StampedObjects

if TYPE_CHECKING:
    from typing_extensions import Self

    from limpet.shm.endpoint.layout import NodeLayout
    from limpet.shm.parameters import PoolParameters


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

    def __init__(self, pool: Any, kind: str, name: str, parameters: Any) -> None:
        super().__init__(pool, kind, name, parameters)
        self.link = self.entry_number << 48 | REPLICATED
        self.locks = LLLocks(pool, parameters.drift_us, parameters.each_us)
        self.repair = Repair(self, self.locks)
        objects = StampedObjects(pool.heap, pool.client)
        self.holds = TransactionHolds(name, objects)
        index = Index(pool, name, parameters, objects, attach(pool, name, parameters), self.holds)
        self.writer = TransactionSlots(index, pool.client, self.locks)
        splitter = TransactionSplitter(pool, index, parameters, self)
        self.hold_parts(index, self.writer, splitter, Check(pool, index))
        self.glances(Glance(index))
        self.batches_puts()
        self.tx_keys = HashKeys(self, index, self.writer, self.holds)

    @staticmethod
    def make(pool: Any, name: str, parameters: Any) -> None:
        make_directories(pool, name, parameters)

    @staticmethod
    def unmake(pool: Any, name: str, parameters: Any) -> None:
        unmake_directories(pool, name, parameters)

    def forget(self) -> None:
        HashStore.forget(self)
        self.locks.forget()

    def give_way(self, busy: int, table: int, attempt: int) -> None:
        if busy:
            self.repair.stay(busy, attempt, True)

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

    def staging(self, commit: Any) -> WriteSet:
        """The part of a commit's transaction that changes this store."""
        return WriteSet(self.tx_keys, commit)


def _holder(lock: int) -> tuple[int, int] | None:
    """Whose slot the lock of an entry names, and since when, in ns since 1970 (lllock.py)."""
    if not lock & LOCKED:
        return None
    return lock >> SLOT_SHIFT & SLOT_MASK, 1000 * (START_US + (lock & TIME_MASK))
