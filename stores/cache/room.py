"""How a cache makes room, by evicting: `Room`.

There are three kinds of room:
    the cache's bounds   the hand goes on until the ledger has room
    the pool's memory    more and more of the cache is evicted, up to all of it
    a slot of a key      when the subtable cannot be split for want of memory, one of the entries in
                         the key's buckets is evicted

Eviction: the hand (`Hand`) goes round the table, a window at a time (the policy: __init__.py). It
is one word: the lap, and a place, which is a directory, the bits of a hash and a group. The bits
lead to a subtable, as those of a key do (race/index.py), so the hand goes on in the halves of one
that is split, and meets each group at least once a lap.

Step of a client that wants room, an operation of its own
    1. read the hand; read groups from there on until they have 16 entries, or 32 groups
    2. account for each of their objects in this lap (ledger.py)
    3. unlink those that are void: expired or invalidated
    4. if that was not enough, unlink the oldest of those with no hits; if there is none, count the
       hits of all down by one
    5. CAS the hand to the place behind the window; at the end of the table, see `Ledger.end_lap`

The hand moves last. If a client is killed before that, the next client repeats the window; so no
entry is passed over, and the ledger depends on this. Several clients may be at one window: each
unlinks by a CAS of the slot, and one of them wins.

The hand takes no entry whose value a client is computing (flight.py), unless it is told to be
`ruthless`, because there is no other entry.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from limpet.shm.endpoint.slots import CLIENT_JOURNAL_SIZE
from limpet.shm.endpoint.words import ADDRESS_MASK, REFERENCE_MASK
from limpet.shm.errors import StoreFull
from limpet.stores.cache.layout import (
    BORN_MASK,
    BORN_SHIFT,
    DEAD,
    EVICTED_MS,
    EVICTIONS,
    EXPIRATIONS,
    FLIGHT,
    GROUP_MASK,
    HAND,
    HITS_MASK,
    HITS_MAX,
    ITEMS_SHIFT,
    LAP_AT,
    LAP_MASK,
    LAP_SHIFT,
    LIFE,
    PREFIX,
    PREFIX_AT,
    PREFIX_MASK,
    STALE,
    TABLE_AT,
    UNDECIDED,
    UNIT,
    UNITS_MASK,
    US_PER_MS,
    VOID,
)
from limpet.stores.cache.ledger import Counters, Ledger
from limpet.stores.core.base import Store
from limpet.stores.race.index import Index, Place, is_frozen, is_split, is_valid
from limpet.stores.race.layout import OBJECT_MASK
from limpet.stores.race.parameters import GROUP_SIZE, GROUP_WORDS

WINDOW: Final = 16
"""Entries of a window, or a few more."""
WINDOW_GROUPS: Final = 32
ROOM: Final = 64
"""Entries that a window has at most: any more are passed over as if they had hits."""
LAP_SHARE: Final = 16
"""Times that the hand goes round before it tries to end a lap, unless it is told to."""


class Hand:
    """Evicts entries of a cache."""

    def __init__(
        self, pool: Any, index: Any, objects: Any, ledger: Any, validity: Any, counts_hits: bool
    ) -> None:
        self.endpoint = pool.endpoint
        self.client = pool.client
        self.index = index
        self.objects = objects
        self.ledger = ledger
        self.validity = validity
        self.counts_hits = counts_hits
        self.row = array("Q", bytes(8 * GROUP_WORDS))
        self.window = array("Q", bytes(24 * ROOM))
        """Of each entry of the window: slot, its word, life."""
        self.seen = 0
        self.rounds = 0
        """How often this client has seen the hand at the end of the table."""
        self.evicted = 0
        self.expired = 0
        """Entries that the last step unlinked."""
        self.aged_ms = 0
        """The ages of those that it evicted, together."""

    def step(self, want: int, ruthless: bool, ends: bool) -> int:
        """One step, for `want` units; how many it freed. `ends`: it should end a lap if it can."""
        index = self.index
        endpoint = self.endpoint
        at = self.ledger.words + HAND
        hand = endpoint.load(at)
        lap = hand >> LAP_AT
        table = hand >> TABLE_AT & 0xFF
        prefix = hand >> PREFIX_AT & PREFIX_MASK
        group = hand & GROUP_MASK
        depth = index.depth_first
        number = 1 << depth | prefix >> index.depth_max - depth
        pointer = endpoint.load(index.entry(table, number))
        while is_split(pointer):
            index.below(number)
            depth += 1
            number = 1 << depth | prefix >> index.depth_max - depth
            pointer = endpoint.load(index.entry(table, number))
        self.seen = self.evicted = self.expired = self.aged_ms = 0
        freed = 0
        last = group + WINDOW_GROUPS
        if last > index.groups:
            last = index.groups
        if pointer:
            base = index.base_of(pointer)
            everything = endpoint.load(self.validity.tags)
            while group < last and self.seen < WINDOW:
                freed += self._scan_group(base + group * GROUP_SIZE, lap, ruthless, everything)
                group += 1
        else:
            group = index.groups
        endpoint.wait()
        if freed < want:
            freed += self._choose(want - freed)
        if group >= index.groups:
            group = 0
            width = index.depth_max - depth
            prefix = (prefix >> width) + 1 << width
            if prefix >> index.depth_max:
                prefix = 0
                table += 1
        if table >= index.subtables:
            table = 0
            self.rounds += 1
            if (ends or self.rounds % LAP_SHARE == 0) and self.ledger.end_lap(hand):
                return freed
        moved = lap << LAP_AT | table << TABLE_AT | prefix << PREFIX_AT | group
        if moved != hand:
            endpoint.cas(at, hand, moved)
        endpoint.wait()
        return freed

    def _scan_group(self, group: int, lap: int, ruthless: bool, everything: int) -> int:
        """Account for the entries of the group at this address, and note them in the window; units
        freed by unlinking void entries. `everything`: the word of tag 0."""
        freed = 0
        self.endpoint.read_words(group, self.row, GROUP_WORDS)
        for index in range(GROUP_WORDS):
            word = self.row[index]
            if not index & 7 or not is_valid(word):
                continue
            head = word & OBJECT_MASK & ADDRESS_MASK
            life = self._read_head(head)
            if life >> LAP_SHIFT & LAP_MASK != lap:
                life = self.ledger.restamp(head, life, self._units(head), lap)
            if life & DEAD or is_frozen(word):
                continue
            state = self.validity.state(everything)
            if state == STALE and self.validity.head[FLIGHT >> 3]:
                state = UNDECIDED
            if state == VOID:
                taken = self._unlink(group + 8 * index, word)
                if taken:
                    self.expired += 1
                freed += taken
            elif self.seen < ROOM and (ruthless or state != UNDECIDED):
                at = 3 * self.seen
                self.window[at] = group + 8 * index
                self.window[at + 1] = word
                self.window[at + 2] = life
                self.seen += 1
        return freed

    def _read_head(self, head: int) -> int:
        """Read the words of a head, which `Validity.state` judges; its life."""
        validity = self.validity
        self.endpoint.read_words(head, validity.head, PREFIX >> 3)
        return validity.head[LIFE >> 3]

    def _units(self, head: int) -> int:
        """Units of the object whose head is here."""
        return self.objects.units_of(self.endpoint.load(head + PREFIX))

    def _choose(self, want: int) -> int:
        """Unlink the oldest entries of the window that have no hits, until there are `want` units;
        if there are none, count all hits down."""
        freed = 0
        found = True
        while found and freed < want:
            best = self._oldest()
            found = best >= 0
            if found:
                taken = self._unlink(self.window[best], self.window[best + 1])
                self.window[best + 1] = 0
                if taken:
                    self.evicted += 1
                    self.aged_ms += self._age(self.window[best + 2])
                freed += taken
        if not freed:
            self._count_down()
        return freed

    def _oldest(self) -> int:
        """Where in the window the oldest entry without hits is; -1: there is none."""
        now = self.endpoint.microseconds() // US_PER_MS
        best = -1
        most = 0
        for number in range(self.seen):
            life = self.window[3 * number + 2]
            if self.window[3 * number + 1] and not (self.counts_hits and life & HITS_MASK):
                age = now - (life >> BORN_SHIFT) & BORN_MASK
                if best < 0 or age > most:
                    best = 3 * number
                    most = age
        return best

    def _age(self, life: int) -> int:
        """Ms since an entry with this life was born."""
        now = self.endpoint.microseconds() // US_PER_MS
        return now - (life >> BORN_SHIFT) & BORN_MASK

    def _count_down(self) -> None:
        for number in range(self.seen):
            life = self.window[3 * number + 2]
            if self.window[3 * number + 1] and life & HITS_MASK:
                head = self.window[3 * number + 1] & OBJECT_MASK & ADDRESS_MASK
                self.endpoint.cas(head + LIFE, life, life - 1)

    def _unlink(self, slot: int, word: int) -> int:
        """Unlink the object of a slot with this word; its units, or 0: another client was faster,
        or this operation has as many in its journal as it can."""
        if self.client.held >= CLIENT_JOURNAL_SIZE - 1:
            return 0
        self.client.log(word & REFERENCE_MASK, slot)
        # LINEARIZES: eviction
        if self.endpoint.cas(slot, word, 0) != word:
            return 0
        # A kill here: the object is in the client journal and no longer linked.
        head = word & OBJECT_MASK & ADDRESS_MASK
        units = self._units(head)
        self.ledger.account(head, units)
        return units

    def evict_from(self, words: Any, place: Any) -> int:
        """Unlink the best of the entries in the buckets that were read for a key; units freed."""
        self.seen = self.evicted = self.expired = self.aged_ms = 0
        for index in range(32):
            word = words[index]
            if not index & 7 or not is_valid(word) or is_frozen(word):
                continue
            head = word & OBJECT_MASK & ADDRESS_MASK
            at = 3 * self.seen
            self.window[at] = self.index.address(place, index)
            self.window[at + 1] = word
            self.window[at + 2] = self.endpoint.load(head + LIFE)
            self.seen += 1
        return self._choose(1)


HOPELESS: Final = 64
"""Steps of the hand in a row that free nothing, before it becomes ruthless and ends laps."""
GIVE_UP: Final = 4096
YIELD: Final = 8
"""The argument of `pause` from which it yields the core to other processes."""


class Room:
    """Makes room in a cache. `store`, in the methods: the cache whose operation needs room."""

    def __init__(
        self, pool: Any, index: Index, ledger: Ledger, hand: Hand, counters: Counters
    ) -> None:
        self.pool = pool
        self.endpoint = pool.endpoint
        self.client = pool.client
        self.index = index
        self.ledger = ledger
        self.hand = hand
        self.counters = counters

    def within_bounds(self, store: Store, more: int) -> None:
        """Evict until there is room for so much more, packed as in a bank, or it is more than the
        bounds. StoreFull: that is in vain."""
        in_vain = 0
        enough = False
        scope = self.endpoint.background(True)
        try:
            while not enough:
                self.client.enter()
                try:
                    store.require_there()
                    excess = self._excess(more)
                    enough = excess == 0 or not self.ledger.fits(more)
                    if not enough:
                        hopeless = in_vain > HOPELESS
                        freed = self.evict(excess, hopeless, hopeless)
                        in_vain = 0 if freed else in_vain + 1
                        enough = freed != 0 and self.ledger.has_room(more)
                finally:
                    self.client.leave()
                if in_vain:
                    # All slots may be frozen: the client that splits the subtable has to go on.
                    self.endpoint.pause(min(in_vain, YIELD))
                if in_vain and in_vain % HOPELESS == 0:
                    self._wait_for_lap(store, in_vain)
        finally:
            self.endpoint.background(scope)

    def _excess(self, more: int) -> int:
        """About how many units are to be evicted, if there is so much more; 0: none."""
        ledger = self.ledger
        total = ledger.total(ledger.lap())
        if ledger.fits(total + more):
            return 0
        units = max(1, more & UNITS_MASK)
        most = ledger.limits & UNITS_MASK
        if (total & UNITS_MASK) > most + units:
            units = (total & UNITS_MASK) - most
        items = total >> ITEMS_SHIFT
        most = ledger.limits >> ITEMS_SHIFT
        if items > most + 1:  # as much as so many entries have on average
            units = max(units, (items - most) * ((total & UNITS_MASK) // items))
        return units

    def evict(self, units: int, ruthless: bool, ends: bool) -> int:
        """One step of the hand. Within an operation."""
        freed = self.hand.step(units, ruthless, ends)
        self._count_evicted()
        return freed

    def _count_evicted(self) -> None:
        scope = self.endpoint.background(True)
        if self.hand.evicted:
            self.counters.count(EVICTIONS, self.hand.evicted)
            self.counters.count(EVICTED_MS, self.hand.aged_ms)
        if self.hand.expired:
            self.counters.count(EXPIRATIONS, self.hand.expired)
        self.endpoint.background(scope)

    def _wait_for_lap(self, store: Store, in_vain: int) -> None:
        """Help the lap to end: there is nothing to evict, but too much by the ledger, which killed
        clients have left, or other clients are about to link."""
        if in_vain > GIVE_UP:
            raise StoreFull(
                f"{store.name}: {self.pool.url}: nothing can be evicted: other clients stand still "
                "in operations on the cache, or it has room for fewer entries than there are "
                "writers; end those clients, or make the cache larger"
            )
        self.pool.exclusively(self._hurry)

    def _hurry(self) -> None:
        pool = self.pool
        for laggard in pool.grace.laggards(pool.grace.now()):
            pool.membership.hurry(laggard)

    def in_memory(self, store: Any, key: bytes, size: int) -> None:
        """Have memory ready for an object of this size; evict for it. Raises StoreFull."""
        share = size // UNIT + 1
        while True:
            try:
                store.find_memory(False, key, size)
                return
            except StoreFull:
                share = 2 * share + 4096
                if self._evict_units(store, share):
                    continue
                # Nothing is left of the cache: take the memory that the pool keeps for updates.
                store.find_memory(True, key, size)
                return

    def _evict_units(self, store: Any, units: int) -> int:
        """Evict about so many units, or all that there are; the units freed."""
        freed = in_vain = 0
        scope = self.endpoint.background(True)
        try:
            while freed < units and in_vain < GIVE_UP:
                if in_vain >= HOPELESS and not store.within(self.total) >> ITEMS_SHIFT:
                    break
                step = store.within(self.evict, units - freed, in_vain > HOPELESS, False)
                freed += step
                in_vain = 0 if step else in_vain + 1
                if in_vain:
                    self.endpoint.pause(min(in_vain, YIELD))
        finally:
            self.endpoint.background(scope)
        return freed

    def total(self) -> int:
        """Items and units by the ledger, as `Ledger.total` packs them. Within an operation."""
        return self.ledger.total(self.ledger.lap())

    def in_buckets(self, place: Place, key: bytes) -> None:
        """Evict one of the entries in the buckets of a key. Within an operation."""
        self.index.choose(place, key)
        self.index.read_buckets(place)
        # The first time it may only count hits down.
        for _ in range(HITS_MAX + 1):
            if self.hand.evict_from(self.index.words, place):
                break
        self._count_evicted()
