"""The `swarm` store, SWARM-KV (SWARM section 5): an index of keys, each with a register.

A slot of the index (stores/fusee/) links to a register (registers.py). Where a key's register is, a
handle remembers (cache.py). Round trips without conflict:

    get, update      the place is remembered                                             1
    get              it is not: read both buckets; read the register                     2
    update           read both buckets; read the register; WRITE                         3
    insert           write the register, read both buckets; SNAPSHOT's CAS of the backups, mark, and
                     CAS of the primary                                                  4
    delete           read both buckets; the register; again, tombstone; the slot: 3      7

Deviations from the paper. A register is written, with the first value, before the index has it, so
there is no half-inserted key, and of two INSERTs of a key one finds the other in the index (trap
S8). A DELETE decides by the slot: of several that have put a tombstone, that whose number the slot
has in the end has deleted the key; any client that meets a tombstone brings that about on behalf of
the author of one. No other client's register is ever made to serve another key (trap S6).

A lost node. Operations on registers go on with a majority, and wait for no client, but while a node
is filled again; then a replica there is made of all that are left, so that it is one of any
majority. Operations on the index do as those of `fusee` (shm/replicas/view.py).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from limpet.shm.endpoint.layout import NODE_SHIFT, VIEW
from limpet.shm.endpoint.states import IN_SERVICE
from limpet.shm.errors import NodeFailed
from limpet.stores.base import Store, as_bytes
from limpet.stores.fusee.growth import ReplicatedSplitter
from limpet.stores.fusee.index import ReplicatedIndex
from limpet.stores.fusee.links import BUFFER, BUFFER_ENTRIES, Link, is_entry, is_slot
from limpet.stores.fusee.marks import FAILED, IDLE
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
from limpet.stores.race.index import Place, is_valid
from limpet.stores.race.layout import FROZEN, OBJECT_MASK
from limpet.stores.status import (
    AGAIN,
    DONE,
    EXISTS,
    FULL,
    INSERT,
    MISSING,
    NO_MEMORY,
    UPDATE,
)
from limpet.stores.swarm.cache import LocationCache
from limpet.stores.swarm.check import RegisterCheck, points_of
from limpet.stores.swarm.key_register import KeyRegister
from limpet.stores.swarm.layout import (
    CAPACITY_MASK,
    DELETED,
    GONE,
    HEADER,
    IN_PLACE_LEAST,
    IN_PLACE_WORDS,
    VERIFIED,
)
from limpet.stores.swarm.level import level
from limpet.stores.swarm.parameters import SwarmParameters
from limpet.stores.swarm.register import area_of, first_of
from limpet.stores.swarm.registers import Registers
from limpet.stores.swarm.repeats import Repeats
from limpet.stores.swarm.unmapping import Unmapping
from limpet.stores.swarm.words import tuple_word

ATTEMPTS_MAX: Final = 16
"""How often the node of a new object may be lost; there are not so many replicas."""


class Made:
    """A register that an insert has written: its reference, or 0, and the tuple that it has."""

    def __init__(self) -> None:
        self.reference = 0
        self.word = 0


class Swarm(HashStore):
    """A key-value store on 2f + 1 memory nodes, of which f may be lost. `SwarmParameters`."""

    Parameters = SwarmParameters
    majorities = True
    replicated = True
    resolves = True
    entries_max = BUFFER_ENTRIES

    def __init__(self, pool: Any, kind: str, name: str, parameters: SwarmParameters) -> None:
        HashStore.__init__(self, pool, kind, name, parameters)
        words = 2 + parameters.buffers + 3 * parameters.writers + IN_PLACE_WORDS
        self.logged = Registers(pool.heap, parameters.replicas, 8 * words, parameters.in_place)
        self.tables = ReplicatedTables(pool, name, parameters)
        owner = f"{pool.url}, store {name!r}"
        self.register = KeyRegister(pool, self.tables.number_of_store, owner, parameters)
        index = ReplicatedIndex(pool, name, parameters, self.logged, self.tables)
        self.writer = ReplicatedSlots(index, self.tables, self.logged)
        freezing = ReplicatedSlot(self.tables, self.logged)
        splitter = ReplicatedSplitter(pool, index, parameters, self.tables, freezing)
        self.unmapping = Unmapping(self.tables, splitter, self.logged, self.register.recycling)
        self.register_check = RegisterCheck(pool, index, self.tables, self.logged, self.register)
        self.restoring = Restoring(self.tables, index, self.register_check, self.logged)
        self.cache = LocationCache(parameters.cache_size, parameters.replicas)
        self.guesses = parameters.guess
        self.shared = parameters.buffers < parameters.writers
        self.seen_view = -1
        self.made = Made()
        self.hold_parts(index, self.writer, splitter, self.register_check)

    @property
    def losses_survived(self) -> int:  # type: ignore[override]  # that of others is a constant
        return int(self.parameters.replicas) // 2

    @staticmethod
    def make(pool: Any, name: str, parameters: Any) -> None:
        """Make the regions of the replicas of all directories; zeros are an empty table."""
        make_directories(pool, name, parameters)

    @staticmethod
    def complete(pool: Any, name: str, parameters: Any) -> bool:
        """Whether each node in service has its replicas. NodeFailed: a subtable has none at all."""
        return are_complete(pool, name, parameters)

    @staticmethod
    def unmake(pool: Any, name: str, parameters: Any) -> None:
        unmake_directories(pool, name, parameters)

    def forget(self) -> None:
        HashStore.forget(self)
        self.cache.forget()
        self.seen_view = -1

    # ---- operations -----------------------------------------------------------------------------

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of `key`, or `default`. 1 round trip if the place is remembered, else 2."""
        if type(key) is not bytes:
            key = as_bytes("key", key)
        self.operations += 1
        repeats = None
        while True:
            at = self._prefetch(key)
            self.client.enter()
            try:
                self.require_there()
                outcome = self._get_once(key, at)
                if outcome == DONE:
                    return self.register.protocol.result
                ident = self.register.place.ident
            finally:
                self.client.leave()
            if outcome == MISSING:
                return default
            repeats = repeats or Repeats(self, key)
            repeats.again(ident)

    def get_many(self, keys: Any) -> list[bytes | None]:
        """The values of `keys`, in their order; None for each that is missing."""
        return Store.get_many(self, keys)

    def _get_once(self, key: bytes, at: int) -> int:
        self._attend()
        if self._remembered(key, at):
            outcome = self.register.protocol.read()
            self._note_read(outcome, at)
            if outcome == DONE:
                return DONE
            self.cache.drop(key)
        try:
            self.index.choose(self.place, key)
            self.index.read_buckets(self.place)
            if not self._seek(self.place, key):
                return MISSING
        except NodeFailed as error:
            return self._again_after(error)
        at = self._learn_place(key)
        outcome = self.register.protocol.read()
        self._note_read(outcome, at)
        if outcome == DELETED:
            self.cache.drop(key)
            return MISSING
        return AGAIN if outcome == GONE else outcome

    def _note_read(self, outcome: int, at: int) -> None:
        """Remember, in an entry of the cache, what a READ has shown of our row, so that the next
        WRITE need not look."""
        row = self.register.row
        if at >= 0 and row.wrote:
            self.cache.words[at + 4] = 0  # there is a copy in our row
        elif (
            self.guesses  # else a WRITE looks in any case
            and at >= 0
            and outcome == DONE
            and (self.shared or not row.known)
            and row.is_writer()
        ):
            row.known = row.learn()
            row.note(self.cache.words, at)

    def _write(self, key: Any, value: Any, mode: int) -> int:
        if type(key) is not bytes:
            key = as_bytes("key", key)
        if type(value) is not bytes:
            value = as_bytes("value", value)
        self.objects.size_of(key, value)
        self.operations += 1
        attempt = 0
        ident = 0
        repeats = None
        looks = 0
        wanted = (0, 0, 0, 0)
        while True:
            at = self._prefetch(key)
            self.client.enter()
            try:
                self.require_there()
                outcome = self._write_at(key, value, at, mode, attempt)
                if outcome == NO_MEMORY:
                    wanted = self._wanted()
                elif outcome == AGAIN:
                    ident = self.register.place.ident
            finally:
                self.client.leave()
            attempt += 1
            if outcome == NO_MEMORY:
                looks = self.have_memory(key, mode, wanted, attempt, looks)
            elif outcome == AGAIN:
                repeats = repeats or Repeats(self, key)
                repeats.again(ident)
            elif outcome == FULL:
                self.grow(key)
            else:
                return outcome

    def delete(self, key: Any) -> None:
        """Delete; KeyError if the key is not there. 7 round trips."""
        key = as_bytes("key", key)
        self.operations += 1
        repeats = Repeats(self, key)
        while True:
            self.client.enter()
            try:
                self.require_there()
                outcome = self._delete_once(key)
                ident = self.register.place.ident
            finally:
                self.client.leave()
            if outcome == DONE:
                return
            if outcome == MISSING:
                raise KeyError(key)
            repeats.again(ident)

    # ---- memory ---------------------------------------------------------------------------------

    def _wanted(self) -> tuple[int, int, int, int]:
        """What there was no memory for, as `replenish` takes it."""
        wanted = self.register.row.wanted
        return wanted.node, wanted.size, self.replicas, wanted.also

    def find_memory(self, update: bool, *wanted: Any) -> Any:
        """Have memory ready; if a node is lost, the next attempt asks another. Raises StoreFull.

        `wanted`: as `_wanted` has it; which attempt it is; and how often the operation has looked
        for memory. Returns how often it has by now.
        """
        needed, attempt, looks = wanted
        try:
            return self.allocator.replenish(*needed, looks, update)
        except NodeFailed as error:
            if not self.tables.outlived(self.within, error.node) and attempt > ATTEMPTS_MAX:
                raise
            return looks

    # ---- places ---------------------------------------------------------------------------------

    def _attend(self) -> None:
        """Use what replaced nodes have, and wait while one is filled; not for a new view."""
        while self.endpoint.load(VIEW) != self.seen_view:
            view = self.tables.view
            viewed = view.number()
            view.wait_stable()
            self.seen_view = viewed

    def _again_after(self, error: NodeFailed) -> int:
        """A node of the index was lost: AGAIN, unless more is than the store survives."""
        if not self.tables.outlive(error.node):
            raise error
        return AGAIN

    def _prefetch(self, key: bytes) -> int:
        """Where the cache may have the key's place; its register is on its way from memory then.

        Called before the operation begins, as nothing gets past the pin: other threads may be
        inside, so it changes nothing, and `_remembered` looks again.
        """
        at = self.cache.look(key)
        if at >= 0:
            reference = self.cache.words[at + 1]
            shape = self.cache.words[at + 3]
            area = shape >> 32 & 0xFF_FFFF
            capacity = shape & CAPACITY_MASK
            self.register.quorum.prefetch(
                reference, area, capacity, first_of(reference, self.replicas)
            )
        return at

    def _remembered(self, key: bytes, at: int) -> bool:
        """Select the key's register, if we know where it is: `_prefetch` has said where."""
        if at < 0 or not self.cache.holds(at, key):
            return False
        reference = self.cache.words[at + 1]
        ident = self.cache.words[at + 2]
        shape = self.cache.words[at + 3]
        area = shape >> 32 & 0xFF_FFFF
        self.register.select(
            reference, area, ident, shape & CAPACITY_MASK, first_of(reference, self.replicas)
        )
        self.register.row.recall(self.cache.words, at)
        return True

    def _seek(self, place: Place, key: bytes) -> int:
        """Of the slots that were read, the one with this key, or 0; its register is selected.

        Its register has not been looked at; the next phase does.
        """
        fingerprint = place.hash & 0xFF
        for index in range(32):
            word = self.index.words[index]
            if index & 7 and word >> 56 == fingerprint and is_valid(word):
                reference = word & OBJECT_MASK
                # The register is on its way from memory while the keys are compared.
                area = area_of(len(key))
                first = first_of(reference, self.replicas)
                self.register.quorum.prefetch(reference, area, IN_PLACE_LEAST, first)
                self.logged.load(reference)
                if self.logged.key_is(key):
                    place.word = word
                    self._select(key, reference)
                    return self.index.address(place, index)
                self.endpoint.wait()
        return 0

    def _learn_place(self, key: bytes) -> int:
        """Remember that the current register is that of the key; its entry of the cache, or
        NOWHERE."""
        register = self.register.place
        at = self.cache.add(key)
        if at >= 0:
            self.cache.words[at + 1] = register.reference
            self.cache.words[at + 2] = register.ident
            self.cache.words[at + 3] = register.area << 32 | register.capacity
        return at

    def _select(self, key: bytes, reference: int) -> None:
        """Select the register of a key, whose object has just been read."""
        ident, capacity = self.logged.word_after_key(0), self.logged.word_after_key(1)
        self.register.select(
            reference, area_of(len(key)), ident, capacity, first_of(reference, self.replicas)
        )
        self.register.row.forget()

    # ---- writing --------------------------------------------------------------------------------

    def _write_at(self, key: bytes, value: bytes, at: int, mode: int, attempt: int) -> int:
        self._attend()
        if self._remembered(key, at):
            outcome = self._write_to(value, mode, at)
            if outcome in (DONE, EXISTS, NO_MEMORY, AGAIN):
                return outcome
            self.cache.drop(key)
            if self.client.held:
                return AGAIN  # what follows takes places 0 and 1 of the client journal
        place = self.place
        self.writer.round.doing = IDLE
        self.made.reference = 0
        try:
            self.index.choose(place, key)
            if mode == INSERT and not self._make_register(place, key, value):
                return NO_MEMORY
            self.index.read_buckets(place)
            slot = self._seek(place, key)
        except NodeFailed as error:
            return self._again_after(error)
        if slot:
            return self._write_found(place, key, value, mode, slot)
        if mode == UPDATE:
            return MISSING
        try:
            return self._insert_new(place, key, value, attempt)
        except NodeFailed as error:
            outcome = self.writer.recall(error.node)
            if outcome == FAILED:
                raise
            return outcome

    def _write_to(self, value: bytes, mode: int, at: int) -> int:
        """WRITE to the current register, whose entry of the cache is `at`. DONE, EXISTS, NO_MEMORY,
        AGAIN, DELETED or GONE."""
        row = self.register.row
        if mode == INSERT:
            outcome = self.register.max_register.presence()
            row.known = False
        else:
            outcome = self.register.protocol.write(value)
        if at >= 0:
            row.note(self.cache.words, at)
        return EXISTS if mode == INSERT and outcome == DONE else outcome

    def _write_found(self, place: Place, key: bytes, value: bytes, mode: int, slot: int) -> int:
        """WRITE to the register of the slot that was found; its key may have been deleted."""
        outcome = self._write_to(value, mode, self._learn_place(key))
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

    def _insert_new(self, place: Place, key: bytes, value: bytes, attempt: int) -> int:
        made = self.made
        if not made.reference:
            if not self._make_register(place, key, value):
                return NO_MEMORY
            self.endpoint.wait()
        desired = (place.hash & 0xFF) << 56 | made.reference
        # ORDER: all is written before the client journal says where it may be linked.
        self.client.retarget(1, self.register.place.link_address())
        outcome = self.writer.insert(place, key, desired, attempt)
        if outcome == DONE:
            self.client.drop(1)
            at = self._learn_place(key)
            self.register.row.is_new(made.word)
            if at >= 0:
                self.register.row.note(self.cache.words, at)
        else:
            # The register stays aimed at its slot, if that may have a tentative word for it.
            self.client.retarget(1, 0)
        return outcome

    def _make_register(self, place: Place, key: bytes, value: bytes) -> bool:
        """Write a register with its first value, and its buffer, at places 0 and 1 of the client
        journal."""
        register = self.register
        writer = register.row.identify()
        capacity = self.logged.capacity(key, value)
        node = self.index.node_of(place.table)
        size = area_of(len(key)) + register.place.size(capacity)
        wanted = register.row.wanted
        wanted.node, wanted.size, wanted.also = node, size, HEADER + len(value)
        reference = self.allocator.allocate(node, size, self.replicas)
        buffer = 0
        if reference:
            buffer = self.allocator.allocate(node, HEADER + len(value), self.replicas)
        if not buffer:
            return False
        area = area_of(len(key))
        ident = self.tables.ticket()
        register.select(reference, area, ident, capacity, first_of(reference, self.replicas))
        register.row.forget()
        word = tuple_word(register.protocol.clock.guess(), writer, VERIFIED, writer, 0)
        self.logged.birth = 0
        self.logged.write(reference, key, register.begin(word, buffer, value))
        self.made.reference = reference
        self.made.word = word
        return True

    # ---- deleting -------------------------------------------------------------------------------

    def _delete_once(self, key: bytes) -> int:
        self._attend()
        place = self.place
        try:
            self.index.choose(place, key)
            self.index.read_buckets(place)
            slot = self._seek(place, key)
        except NodeFailed as error:
            return self._again_after(error)
        if not slot:
            return MISSING
        register = self.register
        outcome = register.max_register.presence()
        self.cache.drop(key)
        if outcome == DELETED:
            ticket = register.quorum.ticket()
            if ticket:
                self.unmapping.unmap(place, slot, ticket)
            return MISSING if ticket else AGAIN
        if outcome != DONE:
            return AGAIN if outcome == GONE else outcome
        ticket = self.tables.ticket()
        # None of the reads before this one has said that the key is deleted; so we may.
        attempt = 0
        while register.tombstone.write(ticket) == AGAIN:
            self.retries += 1
            quorum = register.quorum
            quorum.wait_again(attempt, quorum.top, "no tombstone can be put over")
            attempt += 1
        return DONE if self.unmapping.unmap(place, slot, ticket) else MISSING

    # ---- what client journals name
    # ------------------------------------------------------------------------

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
        self.restoring.reconcile(_of_slots(pairs), failed)

    def refill(self, node: int, pairs: list[tuple[int, int]]) -> dict[str, int]:
        """As of every replicated store; then each register is made known to the new node."""
        self.restoring.require_replicas(node, self.references)
        self._require_majorities(node)
        found = self.restoring.refill(node, _of_slots(pairs))
        for count, reference in enumerate(self.slots_taken()):
            if not count & 7:  # each takes reads and writes of a whole register
                self.pool.membership.progress()
            level(self.register.recycling, reference, node)
        # A node that failed just now may have had the slots of registers, which were passed over.
        for other, state in enumerate(self.tables.view.states()):
            if state == IN_SERVICE and self.endpoint.lost(other):
                raise NodeFailed(other, "it was lost while another node was filled")
        return found

    def _require_majorities(self, node: int) -> None:
        """Of each register on the node a majority has to be left, which has its last tuple."""
        states = self.tables.view.states()
        if sum(state != IN_SERVICE for state in states) <= self.losses_survived:
            return
        gone = 0
        for count, reference in enumerate(self.slots_taken()):
            if not count & 0xFFF:
                self.pool.membership.progress()
            places = [self.heap.replica(reference, k) >> NODE_SHIFT for k in range(self.replicas)]
            left = sum(states[place] == IN_SERVICE for place in places)
            gone += node in places and left < self.register.quorum.majority
        if gone:
            raise NodeFailed(
                node,
                f"with new memory there, older values of {gone} entries of {self.name!r} could be "
                "taken for the last ones, since a majority of their replicas was lost; save what "
                "is left, destroy the pool, and create it again",
            )

    def left_by(self, ident: int) -> set[str]:
        """What the client journal of a dead client shows of what it did to slots and registers."""
        found: set[str] = self.register_check.left_by(ident)
        return found | points_of(self, ident)

    # ---- the whole table ------------------------------------------------------------------------

    def references(self) -> Any:
        """References to all registers and to the buffers that they name.

        Those of a register that is being given up are as if in the client journal that it is in.
        """
        registers = self.register_check.pairs()
        buffers: set[int] = set()
        for count, reference in enumerate([*registers.tolist(), *self._registers_in_hands()]):
            self.show_progress(count)
            if self.register.recycling.visit(reference):
                buffers |= self.register.recycling.buffers_named()
        everything = self.register_check.references()
        return np.concatenate([everything, np.array(sorted(buffers), dtype=np.uint64)])

    def _registers_in_hands(self) -> list[int]:
        return [
            reference
            for reference, link_address in self.tables.view.journals()
            if Link.of(link_address).entry == self.tables.number_of_store
            and is_slot(link_address)
            and not reference & FROZEN
        ]

    def slots_taken(self) -> list[int]:
        """References to all registers; of those whose nodes are lost, some."""
        found: list[int] = self.register_check.pairs().tolist()
        return found

    def __len__(self) -> int:
        """The number of keys; reads all of them."""
        return sum(1 for _ in self.keys())

    def keys(self) -> Any:
        """Every key, a group at a time; as weakly consistent as `iter` says."""
        return self.register_check.keys(self._attending)

    def _attending(self, step: Any, *arguments: Any) -> Any:
        """`within`, with what replaced nodes have."""
        self.client.enter()
        try:
            self.require_there()
            self._attend()
            return step(*arguments)
        finally:
            self.client.leave()

    def index_size(self) -> int:
        """Bytes of all subtables, of one replica."""
        return int(self.register_check.outliving(self.within, lambda: HashStore.index_size(self)))


def _of_slots(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those pairs of client journals that name slots."""
    return [
        (reference, link_address) for reference, link_address in pairs if not link_address & BUFFER
    ]
