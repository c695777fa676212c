"""Rounds of SNAPSHOT for all keys of a batch of puts, side by side: `BatchedSlots`.

A batch is that of race/batch.py; a round is that of one slot (snapshot.py, slots.py). Each key has
a round of its own, with its own pairs in the client journal, and none knows of the others: a batch
is not atomic. Only the phases are shared; their verbs are posted:

    1   the entries and buckets of all keys, on the primaries; then the objects with a matching
        fingerprint (race/batch.py)
    2   all new objects, on all replicas. A phase of its own, as objects and backups are on
        different nodes: no backup may have an object that is not whole
    3   the CASes of all backups; for inserts both buckets on the first backup, after the CAS there
    4   the marks: of an update in the log entry of the old object, of an insert in that of its own
    5   the CASes of all primaries
    6   all replaced objects are freed; their pairs leave the client journal

That is 6 round trips for 9 updates or 19 inserts; 5 if no object has a matching fingerprint. With
`sequential`, phase 3 is one for each backup. A batch takes no more of the client journal, since a
client that resolves a round for another one needs a place there; if it is cut off, that place stays
taken until it settles what it left, for which it resolves rounds again.

A row is CONTESTED if another client has taken part in its round: not all backups had the old value,
an insert has found a rival, or the primary was changed. It leaves the phases. When the others are
done, it goes on by itself, as a single put does that has proposed its value: an update takes part
in the round until that has ended (`ReplicatedSlot.conclude`), an insert withdraws and is put singly
(LEFT). So a batch waits for other clients only when all that they may wait for is done.

A slot without backups is not changed in a batch: that is one CAS (`ReplicatedSlots.replace`).

If a node is lost: the client parks, and finds out how each of its rounds ended, as a single put
does (`ReplicatedSlots.recall`). The rest is put singly.

A kill leaves behind: for each key what a single put leaves, at the same step. Recovery and leaders
look at each pair of the client journal alone.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from limpet.shm.errors import NodeFailed
from limpet.stores.core.base import Window
from limpet.stores.core.status import BATCH, CONTESTED, DONE, LEFT, MADE, READY
from limpet.stores.fusee.cache import IndexCache
from limpet.stores.fusee.index import ReplicatedIndex
from limpet.stores.fusee.links import (
    BIRTH,
    DEATH,
    INSERTED,
    INSERTING,
    OLD,
    REPLICAS_ROW,
    UPDATED,
    UPDATING,
)
from limpet.stores.fusee.log import LoggedObjects
from limpet.stores.fusee.slots import ReplicatedSlots
from limpet.stores.fusee.tables import ReplicatedTables
from limpet.stores.race.batch import Batch, BatchSearch
from limpet.stores.race.batch_puts import BatchPuts
from limpet.stores.race.index import Place
from limpet.stores.race.layout import OBJECT_MASK

ALL: Final = REPLICAS_ROW
SPARE_PLACES: Final = 3
"""Places of the client journal that a batch leaves free, beside the one that each batch leaves."""


class BatchedSlots(ReplicatedSlots):
    """Changes the slots of a replicated index, also those of a batch."""

    def __init__(
        self, index: ReplicatedIndex, tables: ReplicatedTables, logged: LoggedObjects,
        sequential: bool = False,
    ) -> None:  # fmt: skip
        ReplicatedSlots.__init__(self, index, tables, logged, sequential)
        self.stamps = array("Q", bytes(8 * BATCH))
        self.links = array("Q", bytes(8 * BATCH))
        """Of each row: the stamp of its object, and the name of its slot."""
        self.proposals = array("Q", bytes(8 * REPLICAS_ROW * BATCH))
        """Of each row: the values of its backups, from place 1 on; before `wait`, tickets."""
        self.words = memoryview(bytearray(256 * BATCH)).cast("Q")
        """Of each row that is inserted: its buckets on the first backup."""

    def takes_batches(self, place: Place) -> bool:
        return place.backups > 0

    def link_of(self, slot: int, head: int) -> int:
        return self.tables.link_address(slot, head)

    def old_link_of(self, link: int) -> int:
        return link | OLD

    def write_all(self, batch: Batch) -> None:
        """Phase 2: write the objects of all rows."""
        for row in range(batch.count):
            if batch.states[row] == READY:
                self.logged.birth = UPDATED if batch.updates[row] else 0
                self.logged.write_hashed(
                    batch.desired[row] & OBJECT_MASK,
                    batch.keys[row],
                    batch.values[row],
                    batch.hashes[row],
                )
                self.stamps[row] = self.logged.stamp
                self.links[row] = self.link_of(batch.slots[row], batch.heads[row])
        # ORDER: the objects before any backup has them.
        self.endpoint.wait()

    def change_all(self, search: BatchSearch, batch: Batch) -> None:
        lost: NodeFailed | None = None
        try:
            self._change(search, batch)
        except NodeFailed as error:
            lost = error
        if lost is not None and not self._recall_all(batch, lost.node):
            raise lost

    def _change(self, search: BatchSearch, batch: Batch) -> None:
        self._propose_all(search, batch)
        self._find_rivals(search, batch)
        self._mark_all(batch)
        self._decide_rounds(batch)
        self._free_replaced(batch)
        for row in range(batch.count):
            if batch.states[row] == CONTESTED:
                self._go_on(search, batch, row)

    # ---- phase 3 --------------------------------------------------------------------------------

    def _propose_all(self, search: BatchSearch, batch: Batch) -> None:
        """CAS the backups of all rows; those of which another value was seen are CONTESTED."""
        first = 1
        while first < ALL and self._proposes(batch, first):
            last = first if self.slot.sequential else ALL
            for row in range(batch.count):
                if batch.states[row] == READY:
                    self._post_proposals(search, batch, row, first, last)
            self.endpoint.wait()
            for row in range(batch.count):
                if batch.states[row] == READY:
                    self._look_at_proposals(batch, row, first, last)
            first = last + 1
        for row in range(batch.count):
            if batch.states[row] == READY and not self._all_ours(search, batch, row):
                batch.states[row] = CONTESTED

    def _proposes(self, batch: Batch, k: int) -> bool:
        """Whether a READY row has a backup `k`."""
        found = False
        for row in range(batch.count):
            if batch.states[row] == READY and self.tables.backups_of(batch.heads[row]) >= k:
                found = True
        return found

    def _post_proposals(
        self, search: BatchSearch, batch: Batch, row: int, first: int, last: int
    ) -> None:
        """Post the CASes of the backups `first` to `last` of a row; with the last one of an insert
        its buckets."""
        slot = self.slot
        slot.select(batch.slots[row], batch.heads[row])
        for k in range(first, min(last, slot.backups) + 1):
            self.proposals[REPLICAS_ROW * row + k] = self.endpoint.post_cas(
                slot.backup(k), batch.words[row], batch.desired[row]
            )
            # CRASH(proposed): some backups have the new value.
        if not batch.updates[row] and first <= slot.backups <= last:
            # ORDER: as in `insert`
            place = search.places[row]
            at = self.tables.backup(place.first, place.head, 1)
            self.endpoint.post_read(at, self.words, 16, 32 * row)
            at = self.tables.backup(place.second, place.head, 1)
            self.endpoint.post_read(at, self.words, 16, 32 * row + 16)

    def _look_at_proposals(self, batch: Batch, row: int, first: int, last: int) -> None:
        """The phase of `_post_proposals` has ended. With `sequential`, a row that has lost its
        first backup is CONTESTED at once."""
        old, new = batch.words[row], batch.desired[row]
        backups = self.tables.backups_of(batch.heads[row])
        for k in range(first, min(last, backups) + 1):
            at = REPLICAS_ROW * row + k
            was = self.endpoint.result(self.proposals[at])
            self.proposals[at] = new if was == old else was
        if self.slot.sequential and first == 1 and self.proposals[REPLICAS_ROW * row + 1] != new:
            batch.states[row] = CONTESTED

    def _all_ours(self, search: BatchSearch, batch: Batch, row: int) -> bool:
        """Whether all backups of a row were seen to have its value (rule 1), and the first backup
        of an insert still has it."""
        new = batch.desired[row]
        for k in range(1, self.tables.backups_of(batch.heads[row]) + 1):
            if self.proposals[REPLICAS_ROW * row + k] != new:
                return False
        return batch.updates[row] != 0 or self._has_first(search, batch, row)

    def _has_first(self, search: BatchSearch, batch: Batch, row: int) -> bool:
        """Whether the first backup was seen to have the value of an insert."""
        place = search.places[row]
        at = 32 * row + self.index.index_of(place, batch.slots[row])
        return self.words[at] == batch.desired[row]

    def _find_rivals(self, search: BatchSearch, batch: Batch) -> None:
        """Look for other slots with the keys that are inserted; a row that is to give way is
        CONTESTED."""
        for row in range(batch.count):
            if batch.states[row] != READY or batch.updates[row]:
                continue
            place = search.places[row]
            own = self.index.index_of(place, batch.slots[row])
            self.slot.select(batch.slots[row], batch.heads[row])
            if self._rival_in(
                place, batch.keys[row], own, 0, self.index.words, 32 * row, self.words, 32 * row
            ):
                batch.states[row] = CONTESTED

    # ---- phases 4 and 5 -------------------------------------------------------------------------

    def _mark_all(self, batch: Batch) -> None:
        """Write the marks of all rounds that are won into log entries."""
        for row in range(batch.count):
            if batch.states[row] != READY:
                continue
            if batch.updates[row]:
                self.logged.mark(batch.words[row] & OBJECT_MASK, DEATH, batch.desired[row])
            else:
                # CRASH(inserting): no client completes it; it is made void.
                self.logged.stamp = self.stamps[row]
                self.logged.mark(batch.desired[row] & OBJECT_MASK, BIRTH, INSERTED)
        # ORDER: the marks before the primaries, which are on other nodes.
        self.endpoint.wait()

    def _decide_rounds(self, batch: Batch) -> None:
        """CAS all primaries. Rows whose primary was not as expected are CONTESTED."""
        for row in range(batch.count):
            if batch.states[row] == READY:
                # LINEARIZES: update, insert
                batch.tickets[row] = self.endpoint.post_cas(
                    batch.slots[row], batch.words[row], batch.desired[row]
                )
        # CRASH(replaced): the old objects are in the client journal and no longer linked.
        self.endpoint.wait()
        for row in range(batch.count):
            if batch.states[row] == READY:
                was = self.endpoint.result(batch.tickets[row])
                won = was == batch.words[row]
                if batch.updates[row] and was == batch.desired[row]:
                    won = True  # another client has completed our round
                batch.states[row] = MADE if won else CONTESTED

    # ---- contested rows -------------------------------------------------------------------------

    def _go_on(self, search: BatchSearch, batch: Batch, row: int) -> None:
        """Bring the round of a contested row to its end."""
        slot, client, at = self.slot, self.client, batch.places[row]
        old, new = batch.words[row], batch.desired[row]
        slot.select(batch.slots[row], batch.heads[row])
        if batch.updates[row]:
            slot.recall(self.proposals, REPLICAS_ROW * row)
            won = slot.conclude(False, old, new)
            if won:
                client.drop(at)
            else:
                client.release(at)
            if not won and slot.is_frozen_at(old):
                client.drop(at + 1)
                batch.states[row] = LEFT
            else:
                client.release(at + 1)
                batch.states[row] = LEFT if self.tables.swapped and not won else MADE
        elif slot.resolve(
            new & OBJECT_MASK, slot.link_address, self._has_first(search, batch, row)
        ):
            client.drop(at)
            batch.states[row] = MADE
        else:
            client.retarget(at, 0)
            batch.states[row] = LEFT

    # ---- after the loss of a node ---------------------------------------------------------------

    def _recall_all(self, batch: Batch, node: int) -> bool:
        """Find out how the rounds of all rows ended. False: more nodes are lost than the store
        survives."""
        while self.tables.outlive(node):
            try:
                self._recall_rows(batch)
                return True
            except NodeFailed as error:
                node = error.node
        return False

    def _recall_rows(self, batch: Batch) -> None:
        for row in range(batch.count):
            if batch.states[row] == READY or batch.states[row] == CONTESTED:
                # A round that was not begun counts as well: an update whose slot has changed
                # meanwhile may have happened just before.
                doing = UPDATING if batch.updates[row] else INSERTING
                self.round.begin(doing, self.links[row], batch.words[row], batch.desired[row])
                batch.states[row] = MADE if self._outcome() == DONE else LEFT


class ReplicatedPuts(BatchPuts):
    """Puts the pairs of a batch to a replicated store, and notes in its cache where they are."""

    def __init__(
        self, search: BatchSearch, slots: BatchedSlots, allocator: Any, client: Any, replicas: int,
        cache: IndexCache,
    ) -> None:  # fmt: skip
        BatchPuts.__init__(self, search, slots, allocator, client, replicas)
        self.batch = Batch(self.batch.most - SPARE_PLACES)
        self.rounds = slots
        self.cache = cache

    def write_all(self, batch: Batch) -> None:
        self.rounds.write_all(batch)

    def change_all(self, batch: Batch, window: Window | None) -> None:
        BatchPuts.change_all(self, batch, window)
        for row in range(batch.count):
            if batch.states[row] == MADE:
                place = self.search.places[row]
                at = self.cache.find(place.hash)
                if at >= 0 and batch.updates[row]:
                    self.cache.judge(at, batch.words[row])  # trap F13
                where = self.index.index_of(place, batch.slots[row])
                self.cache.remember(place.hash, where, batch.desired[row])
