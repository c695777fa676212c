"""The kind `cache`: the operations of a cache, bytes to bytes.

A write of an entry is that of `race` (race/hash_store.py) with three steps more:

    1. find the key, and read the lap and the number of the last invalidation meanwhile
    2. read the entry that is there, and account for the new object meanwhile (ledger.py): decide
       how the write ends; if there would be too much, evict and start again
    3. write the object, link it by the CAS of `race`
    4. in the background: take the object that it replaced out of the account

So a write has the round trips of `race`: 3 for an entry that is there; and for a new one, too, as
it is accounted for in the phase in which its slot is tentative, and decided only if there is room.
No fewer: 2 depends on the lap that 1 has read, since a bank may be used only by an operation that
has read its lap, and 3 depends on both.

A read finds the key and judges the entry (validity.py); a hit counts itself in the object.

A full cache evicts. If the pool has no memory for an object though the cache is within its bounds,
the cache evicts more, up to all of its entries. It raises StoreFull only when that does not help,
because other stores have the memory. If a subtable cannot be split for want of memory, one of the
entries in the key's own buckets makes room (room.py).

Every write has `Terms`: the head of the object, and the condition on which the write is made. The
condition of a flight is that the client still has it (flight.py).
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

from limpet.shm.endpoint.fabric import hash64
from limpet.shm.endpoint.words import ADDRESS_MASK, VIEWED
from limpet.shm.errors import LimpetError, StoreError, StoreFull, ValueTooLarge
from limpet.stores.cache.bounds import Bounds
from limpet.stores.cache.entries import CacheObjects, Entries, FlightWord
from limpet.stores.cache.layout import (
    COMPUTATIONS,
    FINISH,
    FRESH,
    ITEM,
    ITEMS_SHIFT,
    LANDING_COUNT,
    LANDINGS,
    LAP_AT,
    MINE,
    MISSES,
    OVER,
    SETS,
    UNIT,
    UNITS_MASK,
    tags_at,
)
from limpet.stores.cache.ledger import Counters, Ledger
from limpet.stores.cache.parameters import CacheParameters
from limpet.stores.cache.room import Hand, Room
from limpet.stores.cache.validity import Terms, Validity
from limpet.stores.channels.waiting import Waiting
from limpet.stores.core import regions
from limpet.stores.core.base import as_bytes
from limpet.stores.core.names import shown
from limpet.stores.core.status import (
    AGAIN,
    DONE,
    FULL,
    INSERT,
    MISSING,
    NO_MEMORY,
    PUT,
)
from limpet.stores.race.check import Check
from limpet.stores.race.hash_store import HashStore
from limpet.stores.race.index import Holds, Index, Place
from limpet.stores.race.layout import OBJECT_MASK
from limpet.stores.race.slots import Slots
from limpet.stores.race.splitter import Splitter
from limpet.stores.race.store import require_room

SPLIT_MISSES: Final = 8


class CacheSlots(Slots):
    """Changes slots; an insert is decided only if the ledger has admitted its object."""

    ledger: Ledger

    def goes_on(self, place: Place, key: bytes, slot: int, attempt: int) -> bool:
        return self.ledger.admits(0) and Slots.goes_on(self, place, key, slot, attempt)


class CacheStore(HashStore):
    """The `cache` store. `CacheParameters`."""

    Parameters: type[CacheParameters] = CacheParameters
    views = True

    def __init__(self, pool: Any, kind: str, name: str, parameters: Any) -> None:
        super().__init__(pool, kind, name, parameters)
        self.allocator = pool.allocator.coherent()
        self.validity = Validity(pool.endpoint)
        self.cached = CacheObjects(pool.heap, self.validity)
        tables = regions.attach(pool, name, parameters.subtables, parameters.region_size)
        index = Index(pool, name, parameters, self.cached, tables, Holds(name))
        self.cache_slots = CacheSlots(index, pool.client)
        self.hold_parts(
            index, self.cache_slots, Splitter(pool, index, parameters), Check(pool, index)
        )
        self.counters = Counters(pool, parameters.clients)
        made = parameters.max_items << ITEMS_SHIFT | parameters.max_bytes // UNIT
        self.hold_ledger(Ledger(pool, made))
        self.usual = Terms(parameters.ttl_ms)
        self._find_words()

    def hold_ledger(self, ledger: Ledger) -> None:
        """Use this ledger, and make the parts that account to it. Called when the store is made."""
        pool, index, validity = self.pool, self.index, self.validity
        counts_hits = self.parameters.policy != "fifo"
        self.ledger = self.cache_slots.ledger = ledger
        self.hand = Hand(pool, index, self.cached, ledger, validity, counts_hits)
        self.room = Room(pool, index, ledger, self.hand, self.counters)
        self.entries = Entries(
            pool, index, self.slots, self.cached, validity, ledger, self.counters, counts_hits
        )
        self.flight = FlightWord(self.entries)
        self.bounds = Bounds(self)

    @staticmethod
    def make(pool: Any, name: str, parameters: Any) -> None:
        """Make the regions; zeros are an empty cache. Raises StoreFull as `race` does."""
        require_room(pool, name, parameters)
        regions.make(pool, name, parameters.subtables, parameters.region_size)

    @staticmethod
    def unmake(pool: Any, name: str, parameters: Any) -> None:
        regions.unmake(pool, name, parameters.subtables)

    def replaced(self, node: int) -> None:
        self.index.replaced(node)
        self._find_words()

    def _find_words(self) -> None:
        words = self.index.tables[0] + self.parameters.words_at
        self.ledger.words = self.validity.words = words
        self.validity.tags = words + tags_at(self.parameters.clients)
        self.counters.place(words)
        remote = self.pool.parameters.multi_host
        self.landings = [
            Waiting(self.endpoint, words + LANDINGS + 8 * number, remote)
            for number in range(LANDING_COUNT)
        ]

    # ---- reading ----------------------------------------------------------------------------

    def search_once(self, place: Place, key: bytes) -> Any:
        self.index.post_choose(place, key)
        return self.entries.read(self.index.find(place, key) != 0)

    def search_batch(self, place: Place, keys: list[bytes], found: list[bytes | None]) -> bool:
        search = self.search
        scope = self.endpoint.background(False)
        self.endpoint.background(scope)
        search.locate_to_read(keys, len(keys))
        for row, key in enumerate(keys):
            at = search.places[row]
            found.append(self.entries.read(self.index.match(at, key, row, False) != 0))
            self.endpoint.background(scope)
        self.endpoint.wait()
        return True

    def hold_once(self, place: Place, key: bytes, owner: Any) -> tuple[int, int] | None:
        self.index.post_choose(place, key)
        slot = self.index.find(place, key)
        if not slot or self.cached.state() != FRESH:
            self.entries.count(MISSES)
            place.word = 0
            return None
        holds = self.client.holds
        holds.take(place.word & OBJECT_MASK | VIEWED, owner)
        # ORDER: the slot after the record, as holds.py says.
        ticket = self.endpoint.post_load(slot)
        self.endpoint.wait()
        if self.endpoint.result(ticket) != place.word:
            holds.give_back(owner)
            return None
        found = self.cached.value_place()
        self.endpoint.background(True)
        self.entries.meet()
        return found

    def reserve(self, key: Any, size: int) -> Any:
        """Raises StoreError: a cache counts an entry before its memory is there."""
        raise StoreError(f"{self.name}: a cache reserves no memory for a value; use set")

    def entry(self, key: Any) -> tuple[bytes, int, int, int] | None:
        """Value, checksum, deadline and times of an entry that counts; it is not a hit."""
        found: tuple[bytes, int, int, int] | None = self.within(
            lambda data: self.entries.inspect(self.place, data), as_bytes("key", key)
        )
        return found

    def __contains__(self, key: Any) -> bool:
        return self.entry(key) is not None

    # ---- writing ----------------------------------------------------------------------------

    def _write(self, key: Any, value: Any, mode: int) -> int:
        return self.write(key, value, mode, self.usual)

    def write(self, key: Any, value: Any, mode: int, terms: Terms) -> int:
        """Write in this mode and on these terms: DONE, EXISTS or MISSING. Raises ValueTooLarge,
        KeyTooLarge, and StoreFull when other stores have the pool's memory."""
        if type(key) is not bytes:
            key = as_bytes("key", key)
        if type(value) is not bytes:
            value = as_bytes("value", value)
        size = self.objects.size_of(key, value)
        if not self.ledger.takes(size):
            self.sizes()  # which looks at the bounds
            self._require_size(key, size)
        self._count(1, 1)
        place = self.place
        attempt = 0
        misses = 0
        evicted = False
        while True:
            self.client.enter()
            try:
                self.require_there()
                outcome = self.write_entry(place, key, value, size, mode, attempt, terms, evicted)
                if outcome == DONE:
                    self.endpoint.background(True)
                    if not terms.pending:
                        self.counters.count(SETS, 1)
                    elif terms.miss:
                        self.counters.count(MISSES, 1)
            finally:
                self.client.leave()
            if outcome == OVER:
                self._require_size(key, size)
                if self.ledger.resizing:
                    self.within(self.bounds.step)
                self.room.within_bounds(self, ITEM + size // UNIT + 1)
                evicted = True
            elif outcome == NO_MEMORY:
                self.room.in_memory(self, key, size)
            elif outcome == AGAIN:
                attempt += 1
                self.retries += 1
                self.endpoint.pause(attempt)
            elif outcome == FULL:
                misses += self._grow_or_evict(key, misses)
            else:
                if self.ledger.resizing and not evicted:
                    self._go_on_resizing()
                return outcome

    def _go_on_resizing(self) -> None:
        """Do a step of a resize that is under way; the client that has begun it may be gone."""
        scope = self.endpoint.background(True)
        try:
            self.within(self.bounds.step)
            with contextlib.suppress(StoreFull):  # to evict is in vain: no matter of this write
                self.room.within_bounds(self, 0)
        finally:
            self.endpoint.background(scope)

    def _require_size(self, key: bytes, size: int) -> None:
        """Raise ValueTooLarge if an entry is larger than the cache was when we looked last."""
        if not self.ledger.takes(size):
            most = (self.ledger.limits & UNITS_MASK) * UNIT
            raise ValueTooLarge(
                f"{self.name}: the entry of {shown(key)} takes {size} bytes, and the cache has "
                f"max_bytes={most}"
            )

    def write_entry(
        self, place: Place, key: bytes, value: bytes, size: int, mode: int, attempt: int,
        terms: Terms, evicted: bool,
    ) -> int:  # fmt: skip
        """DONE, EXISTS, MISSING, AGAIN, FULL, NO_MEMORY, or OVER: evict first. `evicted`: that was
        done. If it is DONE, the accounting scope may be the background then."""
        index = self.index
        objects = self.cached
        ledger = self.ledger
        lap_ticket = ledger.post_lap()
        birth_ticket = self.validity.post_birth()
        index.post_choose(place, key)
        index.read_buckets(place)
        units = objects.units_of(len(key) | len(value) << 16)
        lap = self.endpoint.result(lap_ticket) >> LAP_AT
        # A kill from here on: the bank has an object too many until it is not counted any more.
        ledger.post(lap, units)
        objects.judged = mode != PUT
        try:
            slot = index.match(place, key, 0, True)
        finally:
            objects.judged = True
        head = 0
        spare = 0
        outcome = DONE
        if slot:
            head = objects.at()
            spare = objects.units()
            outcome = self.entries.refusal(mode, terms)
            if outcome == DONE and not ledger.admits(spare):
                outcome = OVER
        elif mode != PUT and mode != INSERT:
            outcome = MISSING
        elif not evicted and ledger.tight(units):
            # A full cache: rather one phase more than an object that is made in vain.
            self.endpoint.wait()
            if not ledger.admits(0):
                outcome = OVER
        if outcome == DONE:
            self.entries.head_next(terms, lap, self.endpoint.result(birth_ticket), slot != 0)
            reference = self.make_object(place, key, value, size, None)
            desired = (place.hash & 0xFF) << 56 | reference
            if not reference:
                outcome = NO_MEMORY
            elif slot:
                outcome = self.slots.replace(place, slot, desired)
            else:
                outcome = self.slots.insert(place, key, desired, attempt)
                if outcome == AGAIN and not ledger.admits(0):
                    outcome = OVER
        if outcome != DONE:
            scope = self.endpoint.background(True)
            ledger.withdraw(lap, units)
            self.endpoint.background(scope)
        elif slot:
            self.endpoint.background(True)
            ledger.account(head, spare)
        return outcome

    def _grow_or_evict(self, key: bytes, misses: int) -> int:
        """Make room for a key whose buckets are full: 0 by a split, 1 by evicting an entry."""
        try:
            self.grow(key)
            return 0
        except StoreFull:
            if misses >= SPLIT_MISSES:
                raise
        self.within(lambda: self.room.in_buckets(self.place, key))
        return 1

    def delete_once(self, place: Place, key: bytes) -> int:
        return self.entries.delete(place, key)

    def touch(self, key: Any, terms: Terms) -> bool:
        """Give an entry that counts another deadline; whether there was one."""
        data = as_bytes("key", key)
        self._count(1, 1)
        return bool(self.within(lambda: self.entries.touch(self.place, data, terms)))

    def take(self, key: Any) -> bytes | None:
        """Delete an entry; its value, or None: there was none that counts. An entry that does not
        count is removed, too, and with it the flight that computes it."""
        data = as_bytes("key", key)
        self._count(1, 1)
        attempt = 0
        while True:
            outcome, value = self.within(lambda: self.entries.take(self.place, data))
            if outcome in (DONE, MISSING):
                return value
            if outcome == FULL:
                self.grow(data)
            attempt += 1
            self.endpoint.pause(attempt)

    def delete_as(self, key: Any, checksum: int) -> bool:
        """Delete an entry if it has this checksum; whether it had."""
        data = as_bytes("key", key)
        self._count(1, 1)
        attempt = 0
        while True:
            outcome = self.within(lambda: self.entries.delete_as(self.place, data, checksum))
            if outcome not in (AGAIN, FULL):
                return bool(outcome == DONE)
            if outcome == FULL:
                self.grow(data)
            attempt += 1
            self.endpoint.pause(attempt)

    def purge(self, key: bytes) -> bool:
        """Remove an entry that does not count; whether there was one."""
        return bool(self.within(lambda: self.entries.purge(self.place, key)))

    def birth(self) -> int:
        """The birth of a value that is begun now."""
        return int(self.within(lambda: self.validity.birth()))

    def invalidate(self, tag: int) -> None:
        """Invalidate all entries with this tag that were begun before now; 0: all entries."""
        self.within(lambda: self.validity.invalidate(tag))

    # ---- flights ----------------------------------------------------------------------------

    def begin_flight(
        self, key: bytes, dead: int, patience: int, early: int = 0, note: Terms | None = None
    ) -> tuple[int, Any, int, int]:
        """Begin to compute the value of a key, unless it is there or another caller computes it.

        (LANDED, value, 0, 0); (MINE, a value that may be served meanwhile or None, birth, flight);
        or (OTHERS, likewise, 0, the other flight). `dead`: a flight whose client is known to be
        dead; it is taken over. `patience`: for how many ms an entry without a value waits for one.
        `early`: as `FlightWord.board`. `note`: terms whose `flight` is, at each moment, the flight
        that this call may have begun, or 0: to be abandoned if a signal handler cuts it off.
        """
        terms = Terms(patience) if note is None else note
        terms.pending = True
        while True:
            found: tuple[int, Any, int, int] | None = self.within(
                lambda: self.flight.board(self.place, key, dead, early, terms)
            )
            if found is not None:
                return found
            birth = self.birth()
            terms.flight = self.flight.following()
            if self.write(key, b"", INSERT, terms) == DONE:
                return MINE, None, birth, terms.flight

    def finish_flight(self, key: bytes, value: bytes, terms: Terms) -> bool:
        """Set the value that `terms.flight` has computed; False: the entry was set, deleted,
        evicted or invalidated meanwhile, and the value is not kept."""
        done = self.write(key, value, FINISH, terms) == DONE
        self.within(lambda: self._landed(key, True))
        return done

    def abandon_flight(self, key: bytes, flight: int) -> bool:
        """End a flight without a value: its caller does not compute it after all. False: the key
        does not have this flight, or not any more, or it is another client's.

        If a signal handler cuts this off, repeat it.
        """
        ended = done = False
        try:
            ended = bool(self.within(lambda: self.flight.alight(self.place, key, flight)))
            self.within(lambda: self._landed(key, False))
            done = True
        finally:
            if not done:
                with contextlib.suppress(LimpetError):  # the first error goes on
                    self.within(lambda: self.flight.alight(self.place, key, flight))
        return ended

    def _landed(self, key: bytes, computed: bool) -> None:
        """Wake the callers that wait for this flight, and some others."""
        if computed:
            self.entries.count(COMPUTATIONS)
        self.landing(key).wake()

    def landing(self, key: bytes) -> Waiting:
        """Where callers sleep that wait for a flight of this key. A delete or a write of the key
        wakes none; they look once in a while."""
        return self.landings[hash64(key) % LANDING_COUNT]

    def expect_landing(self, key: bytes) -> int:
        """`prepare` of that."""
        return int(self.within(lambda: self.landing(key).prepare()))

    def count_request(self, what: int) -> None:
        """Count a request that got a stale value, HITS, or has waited long enough, MISSES."""
        self.within(lambda: self.entries.count(what))

    def flight_of(self, key: bytes) -> int:
        """The flight of a key without a value, its client alive or not; 0: there is none."""
        return int(self.within(lambda: self.flight.find(self.place, key)))

    # ---- the whole cache --------------------------------------------------------------------

    def sizes(self) -> tuple[int, int]:
        """Items and bytes by the ledger: an upper bound, which includes void entries."""
        total = self.within(lambda: self.room.total())
        return total >> ITEMS_SHIFT, (total & UNITS_MASK) * UNIT

    def resize(self, max_items: int | None, max_bytes: int | str | None) -> None:
        """Have these bounds from now on. Raises ParameterError, and StoreFull: to evict is in vain;
        the bounds are on the way then, and writes go on with it."""
        target = self.within(self.bounds.target)
        self.within(self.bounds.ask, self.bounds.packed(max_items, max_bytes, target))
        self._settle_bounds()

    def accept_bounds(self, given: dict[str, Any], way: str) -> None:
        """Open the cache with the bounds among these parameters (bounds.py). Raises StoreMismatch,
        and as `resize`."""
        if self.within(self.bounds.accept, given.get("max_items"), given.get("max_bytes"), way):
            self._settle_bounds()

    def limits(self) -> tuple[int, int]:
        """The most items and bytes that were asked for last."""
        target = self.within(self.bounds.target)
        return target >> ITEMS_SHIFT, (target & UNITS_MASK) * UNIT

    def _settle_bounds(self) -> None:
        """Evict, in steps that are operations of their own, until the resize is at its end."""
        scope = self.endpoint.background(True)
        try:
            settled = False
            while not settled:
                settled = self.within(self.bounds.step)
                self.room.within_bounds(self, 0)
        finally:
            self.endpoint.background(scope)

    def counts(self) -> dict[str, int]:
        """The counts of all clients, living and dead ones."""
        return dict(self.within(self.counters.all))

    def own_counts(self) -> dict[str, int]:
        """The counts of this process's client slot."""
        return dict(self.within(self.counters.own))


assert ADDRESS_MASK & UNIT - 1 == 0
