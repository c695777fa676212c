"""The `swarm` store, SWARM-KV (SWARM section 5): an index of keys, each with a register.

A slot of the index (stores/fusee/) links to a register (register.py). A handle remembers the
places of registers (cache.py). Round trips without conflict:

    get, update      the place is remembered                                             1
    get              it is not: read both buckets; read the register                     2
    update           read both buckets; read the register; WRITE                         3
    insert           write the register, read both buckets; SNAPSHOT's CAS of the backups, mark, and
                     CAS of the primary                                                  4
    delete           the place is remembered: both buckets and the register; tombstone; the slot: 3
                                                                                         5
    delete           it is not: read both buckets; the register; tombstone; the slot: 3  6

Deviations from the paper. A register is written, with the first value, before the index has it, so
there is no half-inserted key, and of two INSERTs of a key one finds the other in the index (trap
S8). A DELETE decides by the slot: of several authors of tombstones, the one whose number the slot
has in the end has deleted the key. Any client that meets a tombstone vacates the slot on behalf of
an author. A register is never reused for another key (trap S6).

A lost node. Operations on registers go on with a majority and wait for no client, except while a
node is filled again. Then the new replica is made of all that are left, so it may count in any
majority. Operations on the index do as those of `fusee` (shm/replicas/view.py).

One attempt at a put, an insert or an update of a key: `WriteSteps`.

    the place of the key's register is remembered     WRITE to it
    it is not                                         look in the index; WRITE to the register there
    there is none, and it is no update                make a register (key_register.py), and link it
                                                      by SNAPSHOT (fusee/slots.py)

An INSERT makes its register first, so that it is written when the index is read.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

import numpy as np

from limpet.shm.endpoint.layout import EXACTLY
from limpet.shm.errors import NodeFailed, StoreCorrupt, StoreFull
from limpet.stores.core.base import Attempt, as_bytes
from limpet.stores.core.status import (
    AGAIN,
    DELETE,
    DONE,
    EXISTS,
    INSERT,
    MISSING,
    NO_MEMORY,
    READ,
    UNPROVEN,
    UPDATE,
)
from limpet.stores.fusee.growth import ReplicatedSplitter
from limpet.stores.fusee.index import ReplicatedIndex
from limpet.stores.fusee.links import BUFFER, BUFFER_ENTRIES, FAILED, IDLE, is_entry
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
from limpet.stores.race.layout import OBJECT_MASK
from limpet.stores.swarm.batches import BatchReads, BatchRows, BatchWrites
from limpet.stores.swarm.check import Refilling, RegisterCheck, points_of
from limpet.stores.swarm.fast_reads import FastReads
from limpet.stores.swarm.finder import Finder
from limpet.stores.swarm.key_register import KeyRegister, NewRegister, Unmapping
from limpet.stores.swarm.layout import (
    ATTEMPTS_MAX,
    DELETED,
    GONE,
    IN_PLACE_MAX,
    NO_NUMBER,
    UNDECIDED,
    UNVERIFIED,
)
from limpet.stores.swarm.parameters import SwarmParameters
from limpet.stores.swarm.register import Registers, first_of
from limpet.stores.swarm.row import Turns


class WriteSteps:
    """The steps of writes. All run within an operation."""

    def __init__(
        self, finder: Finder, made: NewRegister, writer: ReplicatedSlots, unmapping: Unmapping,
        tables: ReplicatedTables,
    ) -> None:  # fmt: skip
        self.finder = finder
        self.made = made
        self.writer = writer
        self.unmapping = unmapping
        self.tables = tables
        self.index = finder.index
        self.register = finder.register
        self.cache = finder.cache
        self.endpoint = finder.endpoint
        self.client = writer.client

    def write(
        self, place: Place, key: bytes, value: bytes, at: int, mode: int, attempt: int,
        asked: bool,
    ) -> int:  # fmt: skip
        """DONE, EXISTS, MISSING, AGAIN, FULL, NO_NUMBER, or NO_MEMORY, of `register.row.wanted`.
        `at`: as `Finder.prefetch` has it; `asked`: as `NewRegister.make` has it."""
        if not self.register.row.is_writer():
            return NO_NUMBER
        if self.finder.recall(self.register, key, at):
            outcome = self._write_to(value, mode, at)
            if outcome in (DONE, EXISTS, NO_MEMORY, AGAIN):
                return outcome
            self.cache.drop(key)
            if self.client.held:
                return AGAIN  # the steps below take places 0 and 1 of the client journal
        self.writer.round.doing = IDLE
        self.made.reference = 0
        try:
            self.index.choose(place, key)
            node = self.index.node_of(place.table)
            if mode == INSERT and not self.made.make(node, key, value, asked):
                return NO_MEMORY
            self.index.read_buckets(place)
            slot = self.finder.seek(place, key)
        except NodeFailed as error:
            if not self.tables.outlive(error.node):
                raise
            return AGAIN
        if slot:
            return self._write_found(place, key, value, mode, slot)
        if mode == UPDATE:
            return MISSING
        try:
            return self._insert_new(place, key, value, attempt, asked)
        except NodeFailed as error:
            outcome = self.writer.recall(error.node)
            if outcome == FAILED:
                raise
            return outcome

    def _write_to(self, value: bytes, mode: int, at: int) -> int:
        """WRITE to the current register, whose entry of the cache is `at`. DONE, EXISTS, NO_MEMORY,
        AGAIN, DELETED or GONE."""
        row = self.register.row
        if at >= 0:
            self.cache.words[at + 4] = 0  # until it is known how the WRITE has ended
        if mode == INSERT:
            outcome = self.register.max_register.presence()
            row.known = False
        else:
            outcome = self.register.protocol.write(value)
        self.finder.note_write(self.register, at)
        return EXISTS if mode == INSERT and outcome == DONE else outcome

    def slot_of_register(self, place: Place) -> int:
        """Of the slots that were read, the one that links to the current register, or 0."""
        reference = self.register.place.reference & OBJECT_MASK
        fingerprint = place.hash & 0xFF
        for index in range(32):
            word = self.index.words[index]
            if index & 7 and word >> 56 == fingerprint and word & OBJECT_MASK == reference:
                place.word = word
                return self.index.address(place, index)
        return 0

    def _write_found(self, place: Place, key: bytes, value: bytes, mode: int, slot: int) -> int:
        """WRITE to the register of the slot that was found; its key may have been deleted."""
        outcome = self._write_to(value, mode, self.finder.remember_register(key))
        if outcome in (DONE, EXISTS, AGAIN):
            return outcome
        self.cache.drop(key)
        if outcome == NO_MEMORY:
            return NO_MEMORY  # the next attempt takes it here, where a key that is gone is unmapped
        if outcome == DELETED:
            ticket = self.register.quorum.ticket()
            if ticket:
                self.unmapping.unmap(place, slot, ticket)
        return AGAIN

    def _insert_new(self, place: Place, key: bytes, value: bytes, attempt: int, asked: bool) -> int:
        made = self.made
        if not made.reference:
            if not made.make(self.index.node_of(place.table), key, value, asked):
                return NO_MEMORY
            self.endpoint.wait()
        desired = (place.hash & 0xFF) << 56 | made.reference
        if made.buffered:
            # ORDER: all is written before the client journal says where it may be linked.
            self.client.retarget(1, self.register.place.link_address())
        outcome = self.writer.insert(place, key, desired, attempt)
        if outcome == DONE:
            if made.buffered:
                self.client.drop(1)
            at = self.finder.remember_register(key)
            self.register.row.is_new(made.word)
            self.finder.note_write(self.register, at)
        elif made.buffered:
            # The register keeps its slot as link address: a tentative word may name it there.
            self.client.retarget(1, 0)
        return outcome


IDLE_MAX: Final = 8
"""Buffers that a handle has yet to return, until it waits for the clients that keep it from it."""
FOUND_MAX: Final = 64
"""Rows whose buffers one search has returned."""
SETTLES: Final = 5
"""How often an update looks for memory, since other clients return buffers, until it is refused."""
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
        self.wanted = (0, 0, 0, 0, 0)
        """The objects for which memory was missing, as `_wanted` has them."""
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
        turns = Turns(pool, self.tables.number_of_store)
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
        self.searched: list[tuple[int, bool]] = []
        """Of each writer number, its word and whether its holder was gone, when all registers were
        searched for idle buffers."""
        self.sought = 0
        """The number of the register at which the next search begins."""
        self.finder = Finder(index, self.tables, self.logged, self.register, parameters)
        self.cache = self.finder.cache
        self.fast = FastReads(pool.client, self.finder, 1, IN_PLACE_MAX)
        self.unpinned = parameters.in_place and pool.is_in_place
        self.glances = self.unpinned
        made = NewRegister(pool.allocator, self.tables, self.logged, self.register)
        self.steps = WriteSteps(self.finder, made, self.writer, self.unmapping, self.tables)
        self.hold_parts(index, self.writer, splitter, self.register_check)
        self.prefetches = True
        rows = BatchRows(pool, self.tables.number_of_store, owner, self.finder, parameters)
        self.reads = BatchReads(rows)
        self.deletes_batches = False
        self.puts = BatchWrites(
            self.search, self.writer, self.allocator, self.client, self.replicas, self.reads,
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
        self.glances = self.unpinned
        self.finder.forget()

    # ---- operations -----------------------------------------------------------------------------

    def _prefetched(self, key: bytes) -> int:
        return self.finder.prefetch(key)

    def get_batch(self, keys: list[bytes], found: list[bytes | None]) -> list[int]:
        """1 round trip for 32 keys whose places are remembered (batches.py)."""
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
            if mode == READ and self.pool.numbers.number < 0:
                self.pool.numbers.take(self.parameters.writers, waits=False)
        elif outcome == NO_NUMBER:
            self.pool.numbers.take(self.parameters.writers)
        else:
            self.grow(key)
        return way

    def _prefetch_keys(self, keys: list[bytes]) -> None:
        for key in keys:
            self.cache.prefetch(key)
        for key in keys:
            self.finder.prefetch(key)

    def get_once(self, key: bytes, attempt: int, at: int) -> Any:
        """1 round trip if the place is remembered, else 2. A client without a writer number that
        meets a change which is not over takes one, if one is free, and ends the change."""
        register = self.register
        self.finder.attend()
        if self.finder.recall(register, key, at):
            outcome = register.protocol.read()
            self.finder.note_read(register, outcome, at)
            if register.max_register.is_open and not attempt:
                return UNPROVEN
            if outcome == DONE:
                # The next value is probably as long as this one.
                self.glances = self.unpinned and register.place.length != 0
                return register.protocol.result
            self.cache.drop(key)
        self.glances = False  # the next key is probably not in the cache, either
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
        if register.max_register.is_open and not attempt:
            return UNPROVEN
        if outcome == DONE:
            return register.protocol.result
        if outcome == DELETED:
            self.cache.drop(key)
            return None
        return UNPROVEN

    def glance_at(self, key: bytes) -> Any:
        return self.fast.read(key, self.drops)

    def _write(self, key: Any, value: Any, mode: int) -> int:
        if type(key) is not bytes:
            key = as_bytes("key", key)
        if type(value) is not bytes:
            value = as_bytes("value", value)
        size = self.objects.size_of(key, value)
        if self.register.row.numbers.number < 0:
            self.pool.numbers.take(self.parameters.writers)
        outcome = self._change(key, value, size, mode, None)
        self._settle_due()
        return outcome

    def _settle_due(self) -> None:
        """After a write: return what it has lent, if it has."""
        idle = self.register.row.turns.idle
        if idle:
            self._settle_idle()
            if len(idle) > IDLE_MAX:
                # The write is done, and on a lost node there is no memory to wait for.
                with contextlib.suppress(NodeFailed):
                    self.allocator.await_period(idle[0][3], self.register.place.node)
                self._settle_idle()

    def _settle_idle(self) -> bool:
        """Go on with the return of idle buffers (row.py), as far as no client keeps us from it;
        whether there were any."""
        idle = self.register.row.turns.idle
        count = len(idle)
        for _ in range(2 * count):
            self.client.enter()
            try:
                if not idle:
                    break  # another thread has them
                reference, ident, writer, epoch, before = idle.popleft()
                if epoch < self.allocator.grace.horizon():
                    self.require_there()
                    self.finder.attend()
                    before = self._settle(reference, ident, writer, before)
                    if not before:
                        continue
                    epoch = self.allocator.grace.close_period()
                idle.append((reference, ident, writer, epoch, before))
            finally:
                self.client.leave()
        return count > 0

    def _settle(self, reference: int, ident: int, writer: int, before: int) -> int:
        """`Row.settle` of this row of a register, if it is still there, and the row is ours or that
        of a client that is gone."""
        register = self.register
        if not register.recycling.visit(reference):
            return 0
        register.place.ident = ident
        register.place.first = first_of(reference, self.replicas)
        register.row.forget()
        numbers, held = self.pool.numbers, 0
        try:
            if writer != register.row.writer:
                # ORDER: no client takes the number, and with it the row, before we are done.
                held = numbers.keep(writer)
            if held or writer == register.row.writer:
                after = register.row.settle(writer, before)
            else:
                after = 0
            if after == UNVERIFIED:
                register.protocol.read()
                after = UNDECIDED
            return int(after)
        except NodeFailed as error:
            self._again_after(error)
            return before or UNDECIDED
        finally:
            if held:
                numbers.let_go(writer, held)

    def _find_idle(self) -> bool:
        """Have buffers returned that clients have left, which are gone: those of some rows
        (FOUND_MAX), and at the next call of others. Whether there are any.

        A search may read all registers. After one that has read all, there is no other until a
        number has another holder, or its holder is gone. Until then our own row is searched, too,
        as others had it before us.
        """
        row, recycling = self.register.row, self.register.recycling
        numbers = self.pool.numbers
        holders = []
        rows = 0
        for writer, word in enumerate(numbers.words(self.parameters.writers)):
            is_left = numbers.is_left(word)
            if is_left or (word and word == numbers.word and (word, False) not in self.searched):
                rows |= 1 << writer  # once we have searched our own row, what is in it is ours
            holders.append((word, is_left))
        if row.client.remotely_fenced or holders == self.searched:
            return False
        idle = row.turns.idle
        registers = self.slots_taken()
        first = min(self.sought, len(registers))
        for count, reference in enumerate(registers[first:] + registers[:first]):
            self.show_progress(count)
            if recycling.visit(reference):
                named = recycling.rows_named() & rows
                for writer in range(named.bit_length()):
                    if named >> writer & 1:
                        idle.append((reference, recycling.ident(), writer, -1, 0))
            if len(idle) >= FOUND_MAX:
                self.sought = (first + count + 1) % len(registers)
                return True
        self.searched = holders
        return bool(idle)

    def _change_once(
        self, key: bytes, value: bytes, size: int, mode: int, attempt: int, at: int, way: Any
    ) -> int:
        self.finder.attend()
        if mode == DELETE:
            return self._delete(self.place, key, at)
        if way is None:
            return self.steps.write(self.place, key, value, at, mode, attempt, False)
        # A number that grows also when it was memory that the last attempt lacked.
        return self.steps.write(self.place, key, value, at, mode, way.count, way.looks > 0)

    # ---- memory ---------------------------------------------------------------------------------

    def _wanted(self) -> tuple[int, int, int, int, int]:
        """The objects for which memory was missing, as `replenish` takes them, and the size of a
        loan in place of these, or 0."""
        wanted = self.register.row.wanted
        node = wanted.node | EXACTLY if wanted.exactly else wanted.node
        return node, wanted.size, self.replicas, wanted.also, wanted.lent

    def find_memory(self, update: bool, *wanted: Any) -> Any:
        """Have memory ready; if a node is lost, the next attempt asks another. Raises StoreFull.

        `wanted`: as `_wanted` has it; the number of the attempt; and how often the operation has
        asked for memory. Returns that count, with this time.
        """
        needed, attempt, looks = wanted
        node, size, replicas, also, lent = needed
        sizes = [size, also] if also else [size]
        row = self.register.row
        row.turns.doubt(node & EXACTLY - 1)
        kept = 0 if update else row.reserve()
        try:
            for settles in range(1, SETTLES + 1):
                best = [lent] if lent and settles < SETTLES else sizes
                if lent and self._has_freed(node & EXACTLY - 1, size):
                    return looks + 1
                try:
                    return self.allocator.replenish_all(node, best, replicas, kept, looks, update)
                except StoreFull:
                    if not update or settles == SETTLES:
                        raise
                # Our buffers may be due now, and other clients return theirs.
                if not self._settle_idle() and self.within(self._find_idle):
                    self._settle_idle()
                self.endpoint.pause(2 * settles)
                looks = 0
        except NodeFailed as error:
            if not self.tables.outlived(self.within, error.node) and attempt > LOSSES_MAX:
                raise
            return looks

    def _has_freed(self, node: int, size: int) -> bool:
        """Have an object of this size ready without a free block: one that was freed."""
        self.client.begin()
        scope = self.endpoint.background(True)
        try:
            none = self.allocator.table.count
            return bool(self.allocator.make_all_ready(node, [size], self.replicas, True, none))
        finally:
            self.endpoint.background(scope)
            self.client.end()

    # ---- places ---------------------------------------------------------------------------------

    def _again_after(self, error: NodeFailed) -> int:
        """A node of the index was lost: AGAIN, unless more are lost than the store survives."""
        if not self.tables.outlive(error.node):
            raise error
        return AGAIN

    # ---- deleting -------------------------------------------------------------------------------

    def _delete(self, place: Place, key: bytes, at: int) -> int:
        """5 round trips if the place is remembered: both buckets and the register; the tombstone; 3
        for the slot. Else 6."""
        register, tombstone = self.register, self.register.tombstone
        if not register.row.is_writer():
            return NO_NUMBER
        slot = outcome = 0
        known = self.finder.recall(register, key, at)
        if known:
            outcome = tombstone.begin()
        try:
            self.index.choose(place, key)
            self.index.read_buckets(place)
            if known:
                slot = self.steps.slot_of_register(place)
            if not slot:
                known = False
                slot = self.finder.seek(place, key)
        except NodeFailed as error:
            return self._again_after(error)
        if not slot:
            return MISSING
        if not known:
            outcome = tombstone.begin()
            self.endpoint.wait()
        self.cache.drop(key)
        ticket = self.tables.ticket()
        outcome = tombstone.write(ticket, outcome)
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
            outcome = tombstone.begin()
            self.endpoint.wait()
            outcome = tombstone.write(ticket, outcome)
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
                buffers.update(self.register.recycling.buffers_named())
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
