"""The `fusee` store: its operations, with the index cache (FUSEE sections 4.5 and 4.6).

Phases, one round trip each:
    search, the cache is trusted         read the slot and the object                             1
    search, it knows the slot            read the slot; read the object                           2
    search                               read both buckets; read the object                       2
    update, the cache is trusted         write the new object, read the slot and the old one;
                                         CAS backups; log; CAS primary                            4
    update, delete                       also read the slot, or both buckets, first               5
    insert                               write the object, read both buckets; CAS backups, read
                                         the buckets there; log; CAS primary                      4

A get has no pin if memory is hardware-coherent (glance.py).

With a pin, the slot is read before the object, also when the cache knows both: an object that is
linked in the slot is not used again while we are pinned, so the new user of an old object's memory
is not taken for the old object (trap F7). The key is compared in any case.

    swap                                 write the new object, find the pair; CAS backups; log;
                                         CAS primary                                          4 or 5

Losing operations begin again with a new object that no client has seen (trap F2).
"""

from __future__ import annotations

from typing import Any

from limpet.shm.endpoint.fabric import hash64
from limpet.shm.endpoint.layout import NODE_SHIFT
from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.shm.errors import NodeFailed
from limpet.stores.core.records import Stamps
from limpet.stores.core.status import DELETE, DONE, EXISTS, INSERT, MISSING, NO_MEMORY, PUT, UPDATE
from limpet.stores.fusee.batch_rounds import BatchedSlots, ReplicatedPuts
from limpet.stores.fusee.cache import IndexCache
from limpet.stores.fusee.check import ReplicatedCheck
from limpet.stores.fusee.glance import ReplicatedGlance
from limpet.stores.fusee.growth import ReplicatedSplitter
from limpet.stores.fusee.index import ReplicatedIndex
from limpet.stores.fusee.links import (
    BIRTH,
    ENTRY_SIZE,
    EXPECTED_SIZE,
    FAILED,
    IDLE,
    PLACE_BITS,
    UPDATED,
)
from limpet.stores.fusee.log import LoggedObjects
from limpet.stores.fusee.parameters import FuseeParameters
from limpet.stores.fusee.restoring import Restoring
from limpet.stores.fusee.snapshot import ReplicatedSlot
from limpet.stores.fusee.tables import (
    ReplicatedTables,
    are_complete,
    make_directories,
    unmake_directories,
)
from limpet.stores.race.hash_store import HashStore
from limpet.stores.race.index import Place, is_valid
from limpet.stores.race.layout import OBJECT_MASK


class Fusee(HashStore):
    """A key-value store with r replicas of the index and of objects, on as many memory nodes, of
    which r - 1 may be lost; r is the smaller number if these differ. `FuseeParameters`."""

    Parameters = FuseeParameters
    replicated = True
    resolves = True
    swaps = True
    views = True

    def __init__(self, pool: Any, kind: str, name: str, parameters: FuseeParameters) -> None:
        HashStore.__init__(self, pool, kind, name, parameters)
        self.logged = LoggedObjects(pool.heap, parameters.replicas, Stamps(pool.client))
        self.logged.posts = True
        self.tables = ReplicatedTables(pool, name, parameters, self.entry_number)
        index = ReplicatedIndex(pool, name, parameters, self.logged, self.tables)
        self.writer = BatchedSlots(index, self.tables, self.logged, parameters.sequential)
        freezing = ReplicatedSlot(self.tables, self.logged, parameters.sequential)
        splitter = ReplicatedSplitter(pool, index, parameters, self.tables, freezing)
        self.replicated_check = ReplicatedCheck(pool, index, self.tables, self.logged)
        self.restoring = Restoring(self.tables, index, self.replicated_check, self.logged)
        self.cache = IndexCache(parameters.cache_size, parameters.cache_threshold)
        self.hold_parts(index, self.writer, splitter, self.replicated_check)
        self.replicas = parameters.replicas  # of pairs; the splitter has that of subtables
        self.glance_by(ReplicatedGlance(index, self.tables, self.cache))
        self.deletes_batches = False  # a delete is a round that has no object of its own
        self.puts = ReplicatedPuts(
            self.search, self.writer, self.allocator, self.client, self.replicas, self.cache
        )

    @property
    def losses_survived(self) -> int:  # type: ignore[override]  # a constant in other stores
        return min(int(self.parameters.replicas), int(self.parameters.index_replicas)) - 1

    make = staticmethod(make_directories)
    complete = staticmethod(are_complete)
    unmake = staticmethod(unmake_directories)

    def replaced(self, node: int) -> None:
        HashStore.replaced(self, node)
        self.cache.forget()  # what is free by now has no pages there

    def forget(self) -> None:
        HashStore.forget(self)
        self.cache.forget()

    # ---- search -----------------------------------------------------------------------------

    def search_once(self, place: Place, key: bytes) -> Any:
        """1 round trip if the cache knows the key, else 2."""
        while True:
            try:
                return self._search(place, key)
            except NodeFailed as error:
                if not self.tables.outlive(error.node):
                    raise

    def _search(self, place: Place, key: bytes) -> Any:
        self.index.agree_to_read()
        self.index.post_locate(place, hash64(key))
        if self._guess(place, key):
            return self.objects.value()
        slot = self.index.find(place, key)
        if not slot:
            return None
        self._learn(place, slot)
        return self.objects.value()

    def hold_once(self, place: Place, key: bytes, owner: Any) -> Any:
        while True:
            try:
                return HashStore.hold_once(self, place, key, owner)
            except NodeFailed as error:
                if not self.tables.outlive(error.node):
                    raise

    def search_batch(self, place: Place, keys: list[bytes], found: list[bytes | None]) -> bool:
        before = len(found)
        while len(found) == before:
            try:
                HashStore.search_batch(self, place, keys, found)
            except NodeFailed as error:
                del found[before:]
                if not self.tables.outlive(error.node):
                    raise
        return True

    # ---- the cache --------------------------------------------------------------------------

    def _guess(self, place: Place, key: bytes) -> int:
        """The slot, if the cache knows the key and is right; `place.word` and `objects` are its
        pair."""
        at = self.cache.find(place.hash)
        guess = self.cache.word(at) if at >= 0 else 0
        # the slot was vacant when we last looked; or this handle does not know the subtable
        if not is_valid(guess) or not place.base:
            return 0
        slot = self.index.address(place, self.cache.index(at))
        trusted = self.cache.trusts(at)
        if trusted:
            # The pair is on its way while the slot is read.
            self.endpoint.prefetch(guess & ADDRESS_MASK, EXPECTED_SIZE)
        ticket = self.endpoint.post_load(slot)
        if trusted:
            # ORDER: the object after the slot. On another node, that takes a round trip of its own.
            if (slot ^ guess) >> NODE_SHIFT & 0xFF:
                self.endpoint.wait()
            self.objects.post_keyed(guess & OBJECT_MASK, key)
        self.endpoint.wait()
        word = self.endpoint.result(ticket)
        if not self.index.confirm(place):
            return 0
        self.cache.judge(at, word)
        if word != guess or not trusted:
            if not is_valid(word) or word >> 56 != place.hash & 0xFF:
                return 0
            self.objects.post_keyed(word & OBJECT_MASK, key)
            self.endpoint.wait()
        place.word = word
        return slot if self.objects.matches(key) else 0

    def _learn(self, place: Place, slot: int) -> None:
        """Note the result of a search in the cache."""
        at = self.cache.find(place.hash)
        if at >= 0:
            self.cache.judge(at, place.word)
        self.cache.remember(place.hash, self.index.index_of(place, slot), place.word)

    # ---- changing ---------------------------------------------------------------------------

    def _change_once(
        self, key: bytes, value: bytes, size: int, mode: int, attempt: int, at: int, way: Any
    ) -> int:
        place = self.place
        if way is not None:
            size = self.resume(way)
        self.writer.round.doing = IDLE
        try:
            if way is not None and way.expected is not None:
                return self._swap_once(key, way.expected, value, size, mode)
            if mode == DELETE:
                return self.delete_once(place, key)
            return self._attempt(place, key, value, size, mode, attempt, way)
        except NodeFailed as error:
            outcome = self.writer.recall(error.node)
            if outcome == FAILED:
                raise
            return outcome

    def _attempt(
        self, place: Place, key: bytes, value: bytes, size: int, mode: int, attempt: int, way: Any
    ) -> int:
        self.index.post_choose(place, key)
        at = self.cache.find(place.hash)
        known = mode != INSERT and at >= 0
        # Without backups no client reads the mark before it must be there; an update always has it.
        updates = known or mode == UPDATE or not place.backups
        self.logged.birth = UPDATED if updates else 0
        if known and self.cache.trusts(at):
            self._prefetch(place, at)
        reference = self.make_object(place, key, value, size, way)
        if not reference:
            return NO_MEMORY
        desired = (place.hash & 0xFF) << 56 | reference
        slot = self._guess(place, key) if known else 0
        if not slot:
            self.index.read_buckets(place)
            if mode == PUT and not updates and self.index.candidates(0):
                self.logged.mark(reference, BIRTH, UPDATED)
                updates = True
            slot = self.index.match(place, key, 0, True)
        if slot:
            if mode == INSERT:
                return EXISTS
            outcome = self.writer.replace(place, slot, desired)
        elif mode == UPDATE:
            return MISSING
        else:
            # Before the read of the entry, the number of backups was that which we remembered.
            if updates == (place.backups != 0):
                self.logged.mark(reference, BIRTH, 0 if updates else UPDATED)
                self.endpoint.wait()
            outcome = self.writer.insert(place, key, desired, attempt)
        if outcome == DONE and place.backups:
            slot = self.tables.primary(self.writer.round.link_address & PLACE_BITS)
        if outcome == DONE and slot:
            self.cache.remember(place.hash, self.index.index_of(place, slot), desired)
        return outcome

    def _swap_once(self, key: bytes, expected: bytes, value: bytes, size: int, mode: int) -> int:
        place = self.place
        if not self.tables.announced:
            self.tables.announce_swaps()
        self.index.post_choose(place, key)
        desired = 0
        if mode != DELETE:
            self.logged.birth = UPDATED
            reference = self.make_object(place, key, value, size, None)
            if not reference:
                return NO_MEMORY
            desired = (place.hash & 0xFF) << 56 | reference
        slot = self._find(place, key)
        if not slot:
            return MISSING
        # ORDER: the value is read after the slot's word, so a round of that word, while the client
        # is pinned, shows that the slot had this object all the while.
        if self.objects.value() != expected:
            return EXISTS
        if mode == DELETE:
            return self.writer.remove(place, slot)
        outcome = self.writer.swap(place, slot, desired)
        if outcome == DONE:
            self.cache.remember(place.hash, self.index.index_of(place, slot), desired)
        return outcome

    def _prefetch(self, place: Place, at: int) -> None:
        """Prefetch the memory that an update touches besides its own object."""
        slot = self.index.address(place, self.cache.index(at))
        old = self.cache.word(at) & OBJECT_MASK
        self.endpoint.prefetch(slot, 8, True)
        self.endpoint.prefetch(old & ADDRESS_MASK, EXPECTED_SIZE, True)
        for k in range(1, place.backups + 1):
            self.endpoint.prefetch(self.tables.backup(slot, place.head, k), 8, True)
            # The cache's word may be any, so this is not the heap's `replica`, which refuses some.
            if k < self.replicas:
                replica = self.tables.replica(old & ADDRESS_MASK, k)
                self.endpoint.prefetch(replica, ENTRY_SIZE, True)

    def find_memory(self, update: bool, *wanted: Any) -> Any:
        try:
            return HashStore.find_memory(self, update, *wanted)
        except NodeFailed as error:
            if not self.tables.outlived(self.within, error.node):
                raise

    def have_ready(self, key: bytes, size: int) -> None:
        while True:
            try:
                HashStore.have_ready(self, key, size)
                return
            except NodeFailed as error:
                if not self.tables.outlived(self.within, error.node):
                    raise

    def delete_once(self, place: Place, key: bytes) -> int:
        self.index.post_choose(place, key)
        slot = self._find(place, key)
        return self.writer.remove(place, slot) if slot else MISSING

    def _find(self, place: Place, key: bytes) -> int:
        """The slot that has the key, by the cache or in its buckets; 0: none. The key's pair is in
        `objects`."""
        slot = self._guess(place, key)
        if not slot:
            slot = self.index.find(place, key)
            if slot:
                self._learn(place, slot)
        return slot

    # ---- the whole table --------------------------------------------------------------------

    def __len__(self) -> int:
        return int(self.replicated_check.outliving(self.within, lambda: HashStore.__len__(self)))

    def index_size(self) -> int:
        """Bytes of all subtables, of one replica."""
        return int(self.replicated_check.outliving(self.within, lambda: HashStore.index_size(self)))

    def left_by(self, ident: int) -> set[str]:
        """The crash points of rounds that the client journal of a dead client shows."""
        found: set[str] = self.replicated_check.left_by(ident)
        return found

    # ---- names in client journals ---------------------------------------------------------------

    def resolved(self, reference: int, link_address: int) -> bool:
        """Complete the round of a pair of a client journal; whether its object is linked then."""
        return bool(self.writer.resolved(reference, link_address))

    def reconcile(self, pairs: list[tuple[int, int]], failed: list[int]) -> None:
        """Put the replicas of all slots in order that these pairs of client journals name; for a
        leader."""
        self.restoring.reconcile(pairs, failed)

    def refill(self, node: int, pairs: list[tuple[int, int]]) -> dict[str, int]:
        """Called by the leader, all others parked: make the replicas that belong on a node with new
        memory.

        Raises NodeFailed, with nothing lost, if the node had the last replica of an object.
        """
        self.restoring.require_replicas(node, self.references)
        return self.restoring.refill(node, pairs)
