"""How a cache makes room, by evicting: `Room`.

There are three kinds of room:
    the cache's bounds   the hand (hand.py) goes on until the ledger has room
    the pool's memory    more and more of the cache is evicted, up to all of it
    a slot of a key      when the subtable cannot be split for want of memory, one of the entries in
                         the key's buckets is evicted
"""

from __future__ import annotations

from typing import Any, Final

from limpet.shm.errors import StoreFull
from limpet.stores.base import Store
from limpet.stores.cache.counters import Counters
from limpet.stores.cache.hand import Hand
from limpet.stores.cache.layout import (
    EVICTED_MS,
    EVICTIONS,
    EXPIRATIONS,
    HITS_MAX,
    ITEMS_SHIFT,
    UNIT,
)
from limpet.stores.cache.ledger import Ledger
from limpet.stores.race.index import Index, Place

HOPELESS: Final = 64
"""Steps of the hand in a row that free nothing, before it becomes ruthless and ends laps."""
GIVE_UP: Final = 4096


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

    def within_bounds(self, store: Store, units: int) -> None:
        """Evict until there is room for an object of so many units. StoreFull: that is in vain."""
        in_vain = 0
        enough = False
        scope = self.endpoint.background(True)
        try:
            while not enough:
                self.client.enter()
                try:
                    store.require_there()
                    enough = self.ledger.has_room(units)
                    if not enough:
                        hopeless = in_vain > HOPELESS
                        freed = self.evict(units, hopeless, hopeless)
                        in_vain = 0 if freed else in_vain + 1
                        enough = freed != 0 and self.ledger.has_room(units)
                finally:
                    self.client.leave()
                if in_vain and in_vain % HOPELESS == 0:
                    self._wait_for_lap(store, in_vain)
        finally:
            self.endpoint.background(scope)

    def evict(self, units: int, ruthless: bool, ends: bool) -> int:
        """One step of the hand. Within an operation."""
        freed = self.hand.step(units, ruthless, ends)
        self._count_evicted()
        return freed

    def _count_evicted(self) -> None:
        if self.hand.evicted:
            self.counters.count(EVICTIONS, self.hand.evicted)
            self.counters.count(EVICTED_MS, self.hand.aged_ms)
        if self.hand.expired:
            self.counters.count(EXPIRATIONS, self.hand.expired)

    def _wait_for_lap(self, store: Store, in_vain: int) -> None:
        """Help the lap to end: there is nothing to evict, but too much by the ledger, which killed
        clients have left, or other clients are about to link."""
        if in_vain > GIVE_UP:
            raise StoreFull(
                f"{store.name}: {self.pool.url}: nothing can be evicted: other clients stand still "
                "in operations on the cache, or it has room for fewer entries than there are "
                "writers"
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
