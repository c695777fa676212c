"""The kind `cache`: the operations of a cache, bytes to bytes.

A write of an entry is that of `race` (race/hash_store.py) with three steps more:

    1. find the key; decide by what is there, and whether it counts, what the write comes to
    2. account for the new object (ledger.py); if there would be too much, evict and start again
    3. write the object, link it by the CAS of `race`
    4. take the object that it replaced out of the account

A read finds the key and judges the entry (validity.py); a hit counts itself in the object.

A full cache evicts. If the pool has no memory for an object though the cache is within its bounds,
it evicts more, up to all that it has, and raises StoreFull only when that does not help, as memory
is with other stores. If a subtable cannot be split for want of memory, one of the entries in the
key's own buckets makes room.

Every write has `Terms`: what the head of the object will say, and on what condition it is made.
The condition of a flight is that the client has it still (flight.py).
"""

from __future__ import annotations

from typing import Any, Final

from limpet.shm.endpoint.words import ADDRESS_MASK
from limpet.shm.errors import StoreFull, ValueTooLarge
from limpet.stores import regions
from limpet.stores.base import as_bytes
from limpet.stores.cache.hand import Hand
from limpet.stores.cache.layout import (
    BIRTH,
    BORN_MASK,
    BORN_SHIFT,
    COMPUTATIONS,
    COUNTER_SIZE,
    COUNTERS,
    COUNTS,
    DEAD,
    DEADLINE,
    DELETES,
    EVICTIONS,
    EXPIRATIONS,
    FLIGHT,
    HITS,
    HITS_MASK,
    HITS_MAX,
    ITEMS_SHIFT,
    LAP_SHIFT,
    LIFE,
    MISSES,
    PENDING,
    SETS,
    SLIDES,
    TAGGED,
    TAGS,
    TIMES,
    UNIT,
    UNITS_MASK,
    US_PER_MS,
    tags_at,
)
from limpet.stores.cache.ledger import Ledger
from limpet.stores.cache.objects import CacheObjects
from limpet.stores.cache.parameters import CacheParameters
from limpet.stores.cache.status import (
    FINISH,
    FRESH,
    LANDED,
    MINE,
    OTHERS,
    OVER,
    STALE,
    SWAP,
    UNDECIDED,
    VOID,
)
from limpet.stores.cache.validity import Validity
from limpet.stores.race.check import Check
from limpet.stores.race.hash_store import HashStore
from limpet.stores.race.index import Holds, Index, Place
from limpet.stores.race.slots import Slots
from limpet.stores.race.splitter import Splitter
from limpet.stores.race.store import require_room
from limpet.stores.status import (
    AGAIN,
    DONE,
    EXISTS,
    FULL,
    INSERT,
    MISSING,
    NO_MEMORY,
    PUT,
)

HOPELESS: Final = 64
"""Steps of the hand in a row that free nothing, before it becomes ruthless and ends laps."""
GIVE_UP: Final = 4096
SPLIT_MISSES: Final = 8


class Terms:
    """What a write is to say of its entry. Times in ms; `deadline` in us since 1970."""

    def __init__(
        self,
        ttl: int = 0,
        slide: int = 0,
        stale: int = 0,
        tags: int = 0,
        birth: int = -1,
        checksum: int = 0,
        keep: bool = False,
    ) -> None:
        """`ttl`: 0 for ever. `slide`: likewise, and put off at each read. `birth`: -1, now. `keep`:
        deadline, times and tags are those of the entry that is replaced."""
        self.span = slide or ttl
        """From a write to the deadline; 0: there is none."""
        self.slide = slide
        self.stale = stale
        self.tags = tags
        self.born_now = birth < 0
        self.birth = 0 if birth < 0 else birth
        self.checksum = checksum
        self.keep = keep
        self.pending = False

    def deadline(self, now: int) -> int:
        """The deadline of an entry that is written or touched now; 0: never."""
        return now + self.span * US_PER_MS if self.span else 0


class CacheStore(HashStore):
    """The `cache` store. `CacheParameters`."""

    Parameters: type[CacheParameters] = CacheParameters

    def __init__(self, pool: Any, kind: str, name: str, parameters: Any) -> None:
        super().__init__(pool, kind, name, parameters)
        self.allocator = pool.allocator.coherent()
        self.cached = CacheObjects(pool.heap)
        tables = regions.attach(pool, name, parameters.subtables, parameters.region_size)
        index = Index(pool, name, parameters, self.cached, tables, Holds(name))
        slots = Slots(index, pool.client)
        self.hold_parts(index, slots, Splitter(pool, index, parameters), Check(pool, index))
        self.counts_hits = parameters.policy != "fifo"
        self.validity = Validity(pool.endpoint)
        self.hold_ledger(Ledger(pool, parameters.max_items, parameters.max_bytes // UNIT))
        self.usual = Terms(parameters.ttl_ms)
        self.counter = 0
        self.counted = 0
        self._find_words()

    def hold_ledger(self, ledger: Ledger) -> None:
        """Have this ledger, and a hand that accounts to it. Called when the store is made."""
        self.ledger = ledger
        self.hand = Hand(
            self.pool, self.index, self.cached, ledger, self.validity, self.counts_hits
        )

    @staticmethod
    def make(pool: Any, name: str, parameters: Any) -> None:
        """Make the regions; zeros are an empty cache. Raises StoreFull as `race` does."""
        regions.make(pool, name, parameters.subtables, parameters.region_size)
        require_room(pool, name, parameters)

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
        self.counter = 0

    # ---- counts -----------------------------------------------------------------------------

    def count(self, what: int, number: int) -> None:
        """Count in the line of this client's slot, which only this process writes. Pinned."""
        if self.counted != self.client.ident or not self.counter:
            self._find_counter()
        self.endpoint.store(self.counter + what, self.endpoint.load(self.counter + what) + number)

    def _find_counter(self) -> None:
        ident = self.client.ident
        slot = self.pool.membership.place(ident)[0]
        self.counter = self.ledger.words + COUNTERS + COUNTER_SIZE * slot
        self.counted = ident

    # ---- reading ----------------------------------------------------------------------------

    def search_once(self, place: Place, key: bytes) -> Any:
        self.index.choose(place, key)
        return self.read_entry(self.index.find(place, key) != 0)

    def read_entry(self, found: bool) -> Any:
        """The value of the entry in the image, a hit; None, a miss, if it does not count or no
        entry was `found`."""
        if found:
            head = self.cached.at()
            life = self.endpoint.load(head + LIFE)
            if self.validity.state(head, life) == FRESH:
                self.meet(head, life)
                return self.cached.value()
        self.count(MISSES, 1)
        return None

    def meet(self, head: int, life: int) -> None:
        """An entry is read: count the hit in it, if that is not done, and put its deadline off."""
        if self.counts_hits and life & HITS_MASK < HITS_MAX:
            self.endpoint.cas(head + LIFE, life, life + 1)
        if life & SLIDES:
            self.validity.slide(head)
        self.count(HITS, 1)

    def state(self, head: int) -> int:
        """Of the object whose head is here: as `Validity.state`."""
        return self.validity.state(head, self.endpoint.load(head + LIFE))

    def search_batch(self, place: Place, keys: list[bytes], found: list[bytes | None]) -> bool:
        index = self.index
        for row, key in enumerate(keys):
            index.choose_to_read(place, key)
            index.keep(place, row)
        index.end_choosing(place)
        for row in range(len(keys)):
            index.select(place, row)
            index.read_row(place, row)
            index.prefetch_objects(place, row)
        self.endpoint.wait()
        for row, key in enumerate(keys):
            index.select(place, row)
            found.append(self.read_entry(index.match(place, key, row, False) != 0))
        self.endpoint.wait()
        return True

    def entry(self, key: Any) -> tuple[bytes, int, int, int] | None:
        """Value, checksum, deadline and times of an entry that counts; it is not a hit."""
        found: tuple[bytes, int, int, int] | None = self.within(
            self.entry_once, self.place, as_bytes("key", key)
        )
        return found

    def entry_once(self, place: Place, key: bytes) -> Any:
        self.index.choose(place, key)
        if not self.index.find(place, key):
            return None
        head = self.cached.at()
        if self.state(head) != FRESH:
            return None
        deadline = self.endpoint.load(head + DEADLINE)
        times = self.endpoint.load(head + TIMES)
        return self.cached.value(), self.cached.checksum(), deadline, times

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
        if size > self.parameters.max_bytes:
            raise ValueTooLarge(
                f"{self.name}: the entry takes {size} bytes, and the cache was made with "
                f"max_bytes={self.parameters.max_bytes}"
            )
        self.operations += 1
        place = self.place
        attempt = 0
        misses = 0
        while True:
            self.client.enter()
            try:
                self.require_there()
                outcome = self.write_entry(place, key, value, size, mode, attempt, terms)
                if outcome == DONE:
                    self.count(SETS, 1)
            finally:
                self.client.leave()
            if outcome == OVER:
                self.make_room(size // UNIT + 1)
            elif outcome == NO_MEMORY:
                self._obtain(key, size)
            elif outcome == AGAIN:
                attempt += 1
                self.retries += 1
                self.endpoint.pause(attempt)
            elif outcome == FULL:
                misses += self._grow_or_evict(key, misses)
            else:
                return outcome

    def write_entry(
        self, place: Place, key: bytes, value: bytes, size: int, mode: int, attempt: int,
        terms: Terms,
    ) -> int:  # fmt: skip
        """DONE, EXISTS, MISSING, AGAIN, FULL, NO_MEMORY, or OVER: evict first."""
        index = self.index
        objects = self.cached
        index.choose(place, key)
        slot = index.find(place, key)
        head = 0
        spare = 0
        if slot:
            head = objects.at()
            spare = objects.units()
            outcome = self._refused(head, mode, terms)
            if outcome != DONE:
                return outcome
        elif mode != PUT and mode != INSERT:
            return MISSING
        units = objects.units_of(len(key) | len(value) << 16)
        lap = self.ledger.lap()
        if not self.ledger.admit(lap, units, spare):
            return OVER
        # A kill here: the bank has an object too many until it is not counted any more.
        self._head(terms, lap, head)
        reference = self.make_object(place, key, value, size)
        outcome = NO_MEMORY
        if reference:
            desired = (place.hash & 0xFF) << 56 | reference
            if slot:
                outcome = self.slots.replace(place, slot, desired)
            else:
                outcome = self.slots.insert(place, key, desired, attempt)
        if outcome != DONE:
            self.ledger.withdraw(lap, units)
        elif slot:
            self.ledger.account(head, spare)
        return outcome

    def _refused(self, head: int, mode: int, terms: Terms) -> int:
        """DONE, or how a write in this mode ends that finds the entry in the image."""
        if mode == PUT:
            return DONE
        if mode == FINISH:
            flown = self.endpoint.load(head + FLIGHT) == self.client.ident
            return DONE if flown else MISSING
        state = self.state(head)
        if terms.pending:
            return DONE if state == VOID else EXISTS
        counts = state == FRESH
        if mode == INSERT:
            return EXISTS if counts else DONE
        if not counts:
            return MISSING
        if mode == SWAP and self.cached.checksum() != terms.checksum:
            return EXISTS
        return DONE

    def _head(self, terms: Terms, lap: int, head: int) -> None:
        """Prepare the head of the object that is written next."""
        endpoint = self.endpoint
        heading = self.cached.heading
        now = endpoint.microseconds()
        born = now // US_PER_MS & BORN_MASK
        life = born << BORN_SHIFT | lap << LAP_SHIFT
        if terms.pending:
            life |= PENDING
        if terms.keep and head:
            life |= endpoint.load(head + LIFE) & (SLIDES | TAGGED)
            heading[1] = endpoint.load(head + DEADLINE)
            heading[2] = endpoint.load(head + TIMES)
            heading[3] = endpoint.load(head + BIRTH)
            heading[4] = endpoint.load(head + TAGS)
        else:
            if terms.slide:
                life |= SLIDES
            if terms.tags:
                life |= TAGGED
            heading[1] = terms.deadline(now)
            heading[2] = terms.slide | terms.stale << 32
            heading[3] = self.validity.birth() if terms.born_now else terms.birth
            heading[4] = terms.tags
        heading[0] = life
        heading[5] = self.client.ident if terms.pending else 0

    def delete_once(self, place: Place, key: bytes) -> int:
        self.index.choose(place, key)
        slot = self.index.find(place, key)
        if not slot:
            return MISSING
        counts = self.state(self.cached.at()) == FRESH
        outcome = self.unlink(place, slot)
        if outcome == DONE:
            self.count(DELETES if counts else EXPIRATIONS, 1)
            if not counts:
                return MISSING
        return outcome

    def unlink(self, place: Place, slot: int) -> int:
        """Remove the entry in the image, which is in that slot: as `Slots.remove`."""
        head = self.cached.at()
        units = self.cached.units()
        outcome = self.slots.remove(place, slot)
        if outcome == DONE:
            self.ledger.account(head, units)
        return outcome

    def touch(self, key: Any, terms: Terms) -> bool:
        """Give an entry that counts another deadline; whether there was one."""
        data = as_bytes("key", key)
        self.operations += 1
        return bool(self.within(self.touch_once, self.place, data, terms))

    def touch_once(self, place: Place, key: bytes, terms: Terms) -> bool:
        endpoint = self.endpoint
        self.index.choose(place, key)
        if not self.index.find(place, key):
            return False
        head = self.cached.at()
        if self.state(head) != FRESH:
            return False
        deadline = terms.deadline(endpoint.microseconds())
        stale = endpoint.load(head + TIMES) >> 32
        # ORDER: a sliding expiry goes before its deadline, and comes after the new one.
        endpoint.store(head + TIMES, stale << 32)
        endpoint.store(head + DEADLINE, deadline)
        endpoint.store(head + TIMES, terms.slide | stale << 32)
        life = endpoint.load(head + LIFE)
        if terms.slide:
            life = endpoint.fetch_or(head + LIFE, SLIDES)
        # LINEARIZES: touch, unless the object was replaced before
        return life & DEAD == 0

    def take(self, key: Any) -> bytes | None:
        """Delete an entry; its value, or None: there was none that counts."""
        data = as_bytes("key", key)
        self.operations += 1
        attempt = 0
        while True:
            outcome, value = self.within(self.take_once, self.place, data)
            if outcome in (DONE, MISSING):
                return value
            if outcome == FULL:
                self.grow(data)
            attempt += 1
            self.endpoint.pause(attempt)

    def take_once(self, place: Place, key: bytes) -> tuple[int, Any]:
        self.index.choose(place, key)
        slot = self.index.find(place, key)
        if not slot:
            return MISSING, None
        if self.state(self.cached.at()) != FRESH:
            return MISSING, None
        value = self.cached.value()
        outcome = self.unlink(place, slot)
        if outcome == DONE:
            self.count(DELETES, 1)
        return outcome, value

    def purge(self, key: bytes) -> bool:
        """Remove an entry that does not count; whether there was one."""
        return bool(self.within(self.purge_once, self.place, key))

    def purge_once(self, place: Place, key: bytes) -> bool:
        self.index.choose(place, key)
        slot = self.index.find(place, key)
        if not slot:
            return False
        if self.state(self.cached.at()) != VOID or self.unlink(place, slot) != DONE:
            return False
        self.count(EXPIRATIONS, 1)
        return True

    def birth(self) -> int:
        """The birth of a value that is begun now."""
        return int(self.within(self.validity.birth))

    def invalidate(self, tag: int) -> None:
        """From now on no entry with this tag counts that was begun before; 0: no entry at all."""
        self.within(self.validity.invalidate, tag)

    # ---- room -------------------------------------------------------------------------------

    def make_room(self, units: int) -> None:
        """Evict until there is room for an object of so many units. StoreFull: that is in vain."""
        in_vain = 0
        enough = False
        scope = self.endpoint.background(True)
        try:
            while not enough:
                self.client.enter()
                try:
                    self.require_there()
                    enough = self.ledger.has_room(units)
                    if not enough:
                        hopeless = in_vain > HOPELESS
                        freed = self.evict_once(units, hopeless, hopeless)
                        in_vain = 0 if freed else in_vain + 1
                        enough = freed != 0 and self.ledger.has_room(units)
                finally:
                    self.client.leave()
                if in_vain and in_vain % HOPELESS == 0:
                    self._wait_for_lap(in_vain)
        finally:
            self.endpoint.background(scope)

    def evict_once(self, units: int, ruthless: bool, ends: bool) -> int:
        """One step of the hand. Within an operation."""
        freed = self.hand.step(units, ruthless, ends)
        self._count_evicted()
        return freed

    def _count_evicted(self) -> None:
        if self.hand.evicted:
            self.count(EVICTIONS, self.hand.evicted)
        if self.hand.expired:
            self.count(EXPIRATIONS, self.hand.expired)

    def _wait_for_lap(self, in_vain: int) -> None:
        """There is nothing to evict, and too much by the ledger: killed clients have left that, or
        others are about to link it. Help the lap to end."""
        if in_vain > GIVE_UP:
            raise StoreFull(
                f"{self.name}: {self.pool.url}: nothing can be evicted: other clients stand still "
                "in operations on the cache, or it has room for fewer entries than there are "
                "writers"
            )
        self.pool.exclusively(self._hurry)

    def _hurry(self) -> None:
        pool = self.pool
        for laggard in pool.grace.laggards(pool.grace.now()):
            pool.membership.hurry(laggard)

    def _obtain(self, key: bytes, size: int) -> None:
        """Have memory ready for an object of this size; evict for it. Raises StoreFull."""
        share = size // UNIT + 1
        while True:
            try:
                self.find_memory(False, key, size)
                return
            except StoreFull:
                share = 2 * share + 4096
                if self._evict_units(share):
                    continue
                # Nothing is left of the cache: what the pool keeps for updates is the last.
                self.find_memory(True, key, size)
                return

    def _evict_units(self, units: int) -> int:
        """Evict about so many units, or all that there is; what was freed."""
        freed = in_vain = 0
        scope = self.endpoint.background(True)
        try:
            while freed < units and in_vain < GIVE_UP and (in_vain < HOPELESS or self._any()):
                step = self.within(self.evict_once, units - freed, in_vain > HOPELESS, False)
                freed += step
                in_vain = 0 if step else in_vain + 1
        finally:
            self.endpoint.background(scope)
        return freed

    def _any(self) -> bool:
        return self.sizes()[0] > 0

    def _grow_or_evict(self, key: bytes, misses: int) -> int:
        """Make room for a key whose buckets are full: 0 by a split, 1 by evicting one of them."""
        try:
            self.grow(key)
            return 0
        except StoreFull:
            if misses >= SPLIT_MISSES:
                raise
        self.within(self.evict_near, self.place, key)
        return 1

    def evict_near(self, place: Place, key: bytes) -> None:
        """Evict one of the entries in the buckets of a key. Within an operation."""
        self.index.choose(place, key)
        self.index.read_buckets(place)
        # The first time it may only count hits down.
        for _ in range(HITS_MAX + 1):
            if self.hand.evict_from(self.index.words, place):
                break
        self._count_evicted()

    # ---- flights ----------------------------------------------------------------------------

    def begin_flight(self, key: bytes, dead: int, patience: int) -> tuple[int, Any, int]:
        """Begin to compute the value of a key, unless it is there or another client does.

        (LANDED, value, 0); (MINE, a value that may be served meanwhile or None, birth); or (OTHERS,
        likewise, the client). `dead`: a client that is known to be dead; its flight is taken over.
        `patience`: for how many ms an entry without a value waits for one.
        """
        terms = Terms(patience)
        terms.pending = True
        while True:
            found: tuple[int, Any, int] | None = self.within(self.board, self.place, key, dead)
            if found is not None:
                return found
            birth = self.birth()
            if self.write(key, b"", INSERT, terms) == DONE:
                return MINE, None, birth

    def board(self, place: Place, key: bytes, dead: int) -> Any:
        """As `begin_flight`; None: there is no entry to compute."""
        endpoint = self.endpoint
        self.index.choose(place, key)
        if not self.index.find(place, key):
            return None
        head = self.cached.at()
        state = self.state(head)
        if state == FRESH:
            self.meet(head, endpoint.load(head + LIFE))
            return LANDED, self.cached.value(), 0
        value = None
        if state == STALE:
            value = self.cached.value()
        elif state != UNDECIDED:
            return None  # it does not count any more: another one takes its place
        birth = self.validity.birth()
        pilot = endpoint.load(head + FLIGHT)
        if pilot and pilot != dead:
            return OTHERS, value, pilot
        # LINEARIZES: the beginning of a flight
        found = endpoint.cas(head + FLIGHT, pilot, self.client.ident)
        # A kill here: whoever waits for the value sees that its client is dead, and takes over.
        return (MINE, value, birth) if found == pilot else (OTHERS, value, found)

    def finish_flight(self, key: bytes, value: bytes, terms: Terms) -> bool:
        """Set the value that this client has computed; False: the entry was set, deleted, evicted
        or invalidated meanwhile, and the value is not kept."""
        done = self.write(key, value, FINISH, terms) == DONE
        self.within(self.count, COMPUTATIONS, 1)
        return done

    def abandon_flight(self, key: bytes) -> None:
        """This client does not compute the value after all."""
        self.within(self.alight, self.place, key)

    def alight(self, place: Place, key: bytes) -> bool:
        """End this client's flight of a key; False: it has none."""
        self.index.choose(place, key)
        slot = self.index.find(place, key)
        if not slot:
            return False
        head = self.cached.at()
        if self.endpoint.load(head + FLIGHT) != self.client.ident:
            return False
        pending = self.endpoint.load(head + LIFE) & PENDING
        if not pending or self.unlink(place, slot) != DONE:
            self.endpoint.cas(head + FLIGHT, self.client.ident, 0)
        return True

    # ---- the whole cache --------------------------------------------------------------------

    def sizes(self) -> tuple[int, int]:
        """Items and bytes by the ledger: at least what there is, with what is void."""
        total = self.within(self._total)
        return total >> ITEMS_SHIFT, (total & UNITS_MASK) * UNIT

    def _total(self) -> int:
        return self.ledger.total(self.ledger.lap())

    def counts(self) -> dict[str, int]:
        """What all clients have counted, living and dead ones."""
        words = self.within(self._all_counts)
        return {name: sum(words[number::8]) for number, name in enumerate(COUNTS)}

    def _all_counts(self) -> list[int]:
        size = COUNTER_SIZE * self.parameters.clients
        raw = self.endpoint.read(self.ledger.words + COUNTERS, size)
        return memoryview(raw).cast("Q").tolist()

    def own_counts(self) -> dict[str, int]:
        """What the clients of this process's slot have counted."""
        return self.within(self._own_counts)

    def _own_counts(self) -> dict[str, int]:
        self.count(HITS, 0)
        raw = self.endpoint.read(self.counter, COUNTER_SIZE)
        return dict(zip(COUNTS, memoryview(raw).cast("Q").tolist(), strict=False))


assert ADDRESS_MASK & UNIT - 1 == 0
