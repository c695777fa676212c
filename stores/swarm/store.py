"""The `swarm` store, SWARM-KV (SWARM section 5): an index of keys, each with a register.

A slot of the index (stores/fusee/) links to a register (registers.py). A handle remembers the
places of registers (cache.py). Round trips without conflict:

    get, update      the place is remembered                                             1
    get              it is not: read both buckets; read the register                     2
    update           read both buckets; read the register; WRITE                         3
    insert           write the register, read both buckets; SNAPSHOT's CAS of the backups, mark, and
                     CAS of the primary                                                  4
    delete           read both buckets; the register; tombstone; the slot: 3             6

Deviations from the paper. A register is written, with the first value, before the index has it, so
there is no half-inserted key, and of two INSERTs of a key one finds the other in the index (trap
S8). A DELETE decides by the slot: of several authors of tombstones, the one whose number the slot
has in the end has deleted the key. Any client that meets a tombstone vacates the slot on behalf of
an author. A register is never reused for another key (trap S6).

A lost node. Operations on registers go on with a majority and wait for no client, except while a
node is filled again. Then the new replica is made of all that are left, so it may count in any
majority. Operations on the index do as those of `fusee` (shm/replicas/view.py).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from limpet.shm.errors import NodeFailed, StoreCorrupt
from limpet.stores.core.base import Attempt, as_bytes
from limpet.stores.core.status import AGAIN, DELETE, DONE, MISSING, NO_MEMORY, UNPROVEN
from limpet.stores.fusee.growth import ReplicatedSplitter
from limpet.stores.fusee.index import ReplicatedIndex
from limpet.stores.fusee.links import BUFFER, BUFFER_ENTRIES, is_entry
from limpet.stores.fusee.restoring import Restoring
from limpet.stores.fusee.slots import ReplicatedSlots
from limpet.stores.fusee.snapshot import ReplicatedSlot
from limpet.stores.fusee.tables import (
    ReplicatedTables,
    are_complete,
    make_directories,
    unmake_directories,
)
from limpet.stores.race.hash_store import HashStore
from limpet.stores.race.index import Place
from limpet.stores.swarm.batch_reads import BatchReads, BatchRows
from limpet.stores.swarm.batch_writes import BatchWrites
from limpet.stores.swarm.check import RegisterCheck, points_of
from limpet.stores.swarm.finder import Finder
from limpet.stores.swarm.key_register import KeyRegister, NewRegister
from limpet.stores.swarm.layout import ATTEMPTS_MAX, DELETED, GONE
from limpet.stores.swarm.parameters import SwarmParameters
from limpet.stores.swarm.refilling import Refilling
from limpet.stores.swarm.registers import Registers
from limpet.stores.swarm.row import Turns
from limpet.stores.swarm.unmapping import Unmapping
from limpet.stores.swarm.write_steps import WriteSteps

LOSSES_MAX: Final = 16
"""How often the node of a new object may be lost: more often than there are replicas."""


class Repeats(Attempt):
    """Notes of one operation: how often it has begun anew. It pauses, and detects damaged memory.

    An operation begins anew when its register is given up, when its row has to be put in order
    first, or when it lost a round of the index. The first two do not come again and again with the
    same register: a register that is given up is linked by no slot, and each step that puts a row
    in order is done once. So an operation that keeps meeting one register, by its ident, which no
    other register has, has met damaged memory. Rounds that are lost to other clients have no such
    limit: each of them is another client's success, and shows a register of its own.
    """

    def __init__(self, store: Any, key: bytes) -> None:
        super().__init__()
        self.store = store
        self.key = key
        self.count = 0
        """Attempts without a result."""
        self.met = 0
        """The ident of the register that the last one met."""
        self.ident = 0
        self.same = 0
        self.wanted = (0, 0, 0, 0)
        """The objects for which memory was missing, as `replenish` takes them."""
        self.looks = 0
        """How often memory was asked for."""

    def again(self, attempt: int) -> None:
        """Count one more, which met the register `met`, and pause.

        Raises StoreCorrupt after ATTEMPTS_MAX with the same register.
        """
        store = self.store
        store.retries += 1
        self.same = self.same + 1 if self.met == self.ident else 0
        self.ident = self.met
        if self.same > ATTEMPTS_MAX:
            raise StoreCorrupt(
                f"{store.pool.url}, store {store.name!r}: the key {self.key!r}: its register at "
                f"{store.register.place.reference:#x} can neither be read nor written, and no "
                "client changes that: memory was damaged. Save what is left; make the store again"
            )
        store.endpoint.pause(attempt)


class Swarm(HashStore):
    """A key-value store on 2f + 1 memory nodes, of which f may be lost. `SwarmParameters`."""

    Parameters = SwarmParameters
    majorities = True
    replicated = True
    resolves = True
    entries_max = BUFFER_ENTRIES

    def __init__(self, pool: Any, kind: str, name: str, parameters: SwarmParameters) -> None:
        HashStore.__init__(self, pool, kind, name, parameters)
        self.tables = ReplicatedTables(pool, name, parameters, self.entry_number)
        owner = f"{pool.url}, store {name!r}"
        turns = Turns(pool.client, self.tables.number_of_store)
        self.register = KeyRegister(pool, self.tables.number_of_store, owner, parameters, turns)
        place = self.register.place
        self.logged = Registers(pool.heap, parameters.replicas, place, parameters.in_place)
        index = ReplicatedIndex(pool, name, parameters, self.logged, self.tables)
        self.writer = ReplicatedSlots(index, self.tables, self.logged)
        freezing = ReplicatedSlot(self.tables, self.logged)
        splitter = ReplicatedSplitter(pool, index, parameters, self.tables, freezing)
        self.unmapping = Unmapping(self.tables, splitter, self.logged, self.register.recycling)
        self.register_check = RegisterCheck(pool, index, self.tables, self.logged, self.register)
        self.restoring = Restoring(self.tables, index, self.register_check, self.logged)
        self.refilling = Refilling(
            pool, name, self.restoring, self.register, self.register_check.linked_registers
        )
        self.finder = Finder(index, self.tables, self.logged, self.register, parameters)
        self.cache = self.finder.cache
        made = NewRegister(pool.allocator, self.tables, self.logged, self.register)
        self.steps = WriteSteps(self.finder, made, self.writer, self.unmapping, self.tables)
        self.hold_parts(index, self.writer, splitter, self.register_check)
        self.prefetches = True
        rows = BatchRows(pool, self.tables.number_of_store, owner, self.finder, parameters)
        self.reads = BatchReads(rows)
        self.batches_gets = parameters.guess
        if parameters.guess:
            self.deletes_batches = False
            self.puts = BatchWrites(
                self.search, self.writer, self.allocator, self.client, self.replicas, rows,
                self.tables.view,
            )  # fmt: skip

    @property
    def losses_survived(self) -> int:  # type: ignore[override]  # that of others is a constant
        return int(self.parameters.replicas) // 2

    make = staticmethod(make_directories)
    complete = staticmethod(are_complete)
    unmake = staticmethod(unmake_directories)

    def replaced(self, node: int) -> None:
        HashStore.replaced(self, node)
        self.finder.cache.forget()  # what is free by now has no pages there

    def forget(self) -> None:
        HashStore.forget(self)
        self.finder.forget()

    # ---- operations -----------------------------------------------------------------------------

    def _prefetched(self, key: bytes) -> int:
        return self.finder.prefetch(key)

    def get_batch(self, keys: list[bytes], found: list[bytes | None]) -> list[int]:
        """1 round trip for 32 keys whose places are remembered (batch_reads.py)."""
        self.finder.attend()
        return self.reads.get(keys, found)

    def _note(self, outcome: int, way: Any, key: bytes, size: int) -> Any:
        repeats = way or Repeats(self, key)
        repeats.met = self.register.place.ident
        if outcome == NO_MEMORY:
            repeats.wanted = self._wanted()
        return repeats

    def _go_on(
        self, outcome: int, way: Any, key: bytes, value: bytes, size: int, mode: int, attempt: int
    ) -> Any:
        way.count += 1
        if outcome == NO_MEMORY:
            way.looks = self.have_memory(key, mode, way.wanted, way.count, way.looks)
        elif outcome == AGAIN:
            way.again(attempt)
        else:
            self.grow(key)
        return way

    def _prefetch_keys(self, keys: list[bytes]) -> None:
        for key in keys:
            self.cache.prefetch(key)
        for key in keys:
            self.finder.prefetch(key)

    def get_once(self, key: bytes, attempt: int, at: int) -> Any:
        """1 round trip if the place is remembered, else 2."""
        register = self.register
        self.finder.attend()
        if self.finder.recall(register, key, at):
            outcome = register.protocol.read()
            self.finder.note_read(register, outcome, at)
            if outcome == DONE:
                return register.protocol.result
            self.cache.drop(key)
        try:
            self.index.choose(self.place, key)
            self.index.read_buckets(self.place)
            if not self.finder.seek(self.place, key):
                return None
        except NodeFailed as error:
            self._again_after(error)
            return UNPROVEN
        at = self.finder.remember_register(key)
        outcome = register.protocol.read()
        self.finder.note_read(register, outcome, at)
        if outcome == DONE:
            return register.protocol.result
        if outcome == DELETED:
            self.cache.drop(key)
            return None
        return UNPROVEN

    def _write(self, key: Any, value: Any, mode: int) -> int:
        if type(key) is not bytes:
            key = as_bytes("key", key)
        if type(value) is not bytes:
            value = as_bytes("value", value)
        return self._change(key, value, self.objects.size_of(key, value), mode, None)

    def _change_once(
        self, key: bytes, value: bytes, size: int, mode: int, attempt: int, at: int, way: Any
    ) -> int:
        self.finder.attend()
        if mode == DELETE:
            return self.delete_once(self.place, key)
        # A number that grows also when it was memory that the last attempt lacked.
        return self.steps.write(
            self.place, key, value, at, mode, attempt if way is None else way.count
        )

    # ---- memory ---------------------------------------------------------------------------------

    def _wanted(self) -> tuple[int, int, int, int]:
        """The objects for which memory was missing, as `replenish` takes them."""
        wanted = self.register.row.wanted
        return wanted.node, wanted.size, self.replicas, wanted.also

    def find_memory(self, update: bool, *wanted: Any) -> Any:
        """Have memory ready; if a node is lost, the next attempt asks another. Raises StoreFull.

        `wanted`: as `_wanted` has it; the number of the attempt; and how often the operation has
        asked for memory. Returns that count, with this time.
        """
        needed, attempt, looks = wanted
        try:
            return self.allocator.replenish(*needed, looks, update)
        except NodeFailed as error:
            if not self.tables.outlived(self.within, error.node) and attempt > LOSSES_MAX:
                raise
            return looks

    # ---- places ---------------------------------------------------------------------------------

    def _again_after(self, error: NodeFailed) -> int:
        """A node of the index was lost: AGAIN, unless more are lost than the store survives."""
        if not self.tables.outlive(error.node):
            raise error
        return AGAIN

    # ---- deleting -------------------------------------------------------------------------------

    def delete_once(self, place: Place, key: bytes) -> int:
        """6 round trips: both buckets; the register; the tombstone; 3 for the slot."""
        try:
            self.index.choose(place, key)
            self.index.read_buckets(place)
            slot = self.finder.seek(place, key)
        except NodeFailed as error:
            return self._again_after(error)
        if not slot:
            return MISSING
        register = self.register
        ticket = self.tables.ticket()
        outcome = register.tombstone.write(ticket)
        self.cache.drop(key)
        if outcome == GONE:
            return AGAIN
        if outcome == DELETED:
            # The key was deleted before we began, perhaps: we act for that one's author.
            ticket = register.quorum.ticket()
            if ticket:
                self.unmapping.unmap(place, slot, ticket)
            return MISSING if ticket else AGAIN
        # The first read has not said that the key is deleted; so we may delete it, or another
        # client that puts a tombstone from now on.
        attempt = 0
        while outcome == AGAIN:
            self.retries += 1
            quorum = register.quorum
            quorum.wait_again(attempt, quorum.top, "no tombstone can be put over")
            attempt += 1
            outcome = register.tombstone.write(ticket)
        return DONE if self.unmapping.unmap(place, slot, ticket) else MISSING

    # ---- objects that client journals name ------------------------------------------------------

    def resolved(self, reference: int, link_address: int) -> bool:
        """As of every replicated store; a register that is not linked is given up."""
        if link_address & BUFFER:
            return bool(self.register.recycling.names(reference, link_address))
        linked = bool(self.writer.resolved(reference, link_address))
        if not linked and not is_entry(link_address):
            self.register.recycling.dispose(reference)
        return linked

    def reconcile(self, pairs: list[tuple[int, int]], failed: list[int]) -> None:
        """Put the replicas of all slots in order that these pairs of client journals name; for a
        leader."""
        self.refilling.reconcile(pairs, failed)

    def refill(self, node: int, pairs: list[tuple[int, int]]) -> dict[str, int]:
        """As of every replicated store; then each register gets its replica on the new node."""
        return dict(self.refilling.refill(node, pairs, self.references, self.losses_survived))

    def left_by(self, ident: int) -> set[str]:
        """The crash points of slots and registers that a dead client's journal shows."""
        found: set[str] = self.register_check.left_by(ident)
        return found | points_of(self, ident)

    # ---- the whole table ------------------------------------------------------------------------

    def references(self) -> Any:
        """References to all registers and to the buffers that they name.

        The buffers of a register that is being given up count as named by its client journal.
        """
        registers = [*self.slots_taken(), *self.register_check.registers_in_journals()]
        buffers: set[int] = set()
        for count, reference in enumerate(registers):
            self.show_progress(count)
            if self.register.recycling.visit(reference):
                buffers |= self.register.recycling.buffers_named()
        everything = self.register_check.references()
        return np.concatenate([everything, np.array(sorted(buffers), dtype=np.uint64)])

    def slots_taken(self) -> list[int]:
        """References to all registers; of those whose nodes are lost, some."""
        found: list[int] = self.register_check.linked_registers()
        return found

    def __len__(self) -> int:
        """The number of keys; reads all of them."""
        return sum(1 for _ in self.keys())

    def keys(self) -> Any:
        """Every key, a group at a time; as weakly consistent as `iter` says."""
        return self.register_check.keys(self._attending)

    def _attending(self, step: Any, *arguments: Any) -> Any:
        """`within`, after it has taken up replaced nodes."""
        self.client.enter()
        try:
            self.require_there()
            self.finder.attend()
            return step(*arguments)
        finally:
            self.client.leave()

    def index_size(self) -> int:
        """Bytes of all subtables, of one replica."""
        return int(self.register_check.outliving(self.within, lambda: HashStore.index_size(self)))
