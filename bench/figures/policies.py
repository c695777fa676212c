"""Cache policies of one process, exact or as their authors approximate them; one class each.

A call is one request of a key: a get, and a set if that was a miss. It returns whether it was a
hit. None of them runs as it is in shared memory: each has a list that a hit or a miss changes, or
one count of all requests.

    Lru        the list is in the order of reads
    Sieve      Zhang et al., "SIEVE is simpler than LRU", NSDI '24
    S3Fifo     Yang et al., "FIFO queues are all you need for cache eviction", SOSP '23, algorithm 1
    RedisLru   Redis 7, evict.c, allkeys-lru: of 5 sampled keys and 16 remembered ones, the key that
               was read longest ago; here by an exact clock, where Redis has one of a second
    RedisLfu   the same, allkeys-lfu: logarithmic counts, factor 10; Redis also takes one off a
               count each minute, and no minute passes here
"""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from typing import Final

REDIS_SAMPLES: Final = 5
REDIS_POOL: Final = 16
LFU_FIRST: Final = 5
LFU_FACTOR: Final = 10
LFU_MOST: Final = 255


class Lru:
    def __init__(self, items: int) -> None:
        self.items = items
        self.there: OrderedDict[int, None] = OrderedDict()

    def __call__(self, key: int) -> bool:
        if key in self.there:
            self.there.move_to_end(key)
            return True
        if len(self.there) >= self.items:
            self.there.popitem(last=False)
        self.there[key] = None
        return False


class Sieve:
    """Its queue is a list of which the newest is last, with places of the dead in it."""

    def __init__(self, items: int) -> None:
        self.items = items
        self.queue: list[int | None] = []
        self.visited: dict[int, bool] = {}
        self.hand = 0

    def __call__(self, key: int) -> bool:
        if key in self.visited:
            self.visited[key] = True
            return True
        if len(self.visited) >= self.items:
            self._evict()
        self.visited[key] = False
        self.queue.append(key)
        return False

    def _evict(self) -> None:
        while True:
            if self.hand >= len(self.queue):
                self.queue = [key for key in self.queue if key is not None]
                self.hand = 0
            key = self.queue[self.hand]
            if key is not None and not self.visited[key]:
                del self.visited[key]
                self.queue[self.hand] = None
                self.hand += 1
                return
            if key is not None:
                self.visited[key] = False
            self.hand += 1


class S3Fifo:
    """A small queue of a tenth of the items, a main one, and keys that the small one let go."""

    def __init__(self, items: int) -> None:
        self.items = items
        self.small_most = max(1, items // 10)
        self.small: deque[int] = deque()
        self.main: deque[int] = deque()
        self.ghosts: OrderedDict[int, None] = OrderedDict()
        self.reads: dict[int, int] = {}

    def __call__(self, key: int) -> bool:
        if key in self.reads:
            self.reads[key] = min(self.reads[key] + 1, 3)
            return True
        while len(self.reads) >= self.items:
            if len(self.small) >= self.small_most or not self.main:
                self._evict_small()
            else:
                self._evict_main()
        if key in self.ghosts:
            del self.ghosts[key]
            self.main.append(key)
        else:
            self.small.append(key)
        self.reads[key] = 0
        return False

    def _evict_small(self) -> None:
        while self.small:
            key = self.small.popleft()
            if self.reads[key] <= 1:
                del self.reads[key]
                self.ghosts[key] = None
                if len(self.ghosts) > self.items - self.small_most:
                    self.ghosts.popitem(last=False)
                return
            self.main.append(key)
            self.reads[key] = 0

    def _evict_main(self) -> None:
        while True:
            key = self.main.popleft()
            if not self.reads[key]:
                del self.reads[key]
                return
            self.reads[key] -= 1
            self.main.append(key)


class _RedisSampled:
    """Evicts the key with the lowest rank among the sampled and the remembered ones."""

    def __init__(self, items: int) -> None:
        self.items = items
        self.rng = random.Random(items)
        self.ranks: dict[int, int] = {}
        self.keys: list[int] = []
        self.place: dict[int, int] = {}
        self.pool: list[tuple[int, int]] = []
        """(rank, key), the lowest first, as they were when they were sampled."""

    def insert(self, key: int, rank: int) -> None:
        if len(self.keys) >= self.items:
            self._evict()
        self.ranks[key] = rank
        self.place[key] = len(self.keys)
        self.keys.append(key)

    def _evict(self) -> None:
        while True:
            pooled = {key for _, key in self.pool}
            sampled = {self.rng.choice(self.keys) for _ in range(REDIS_SAMPLES)} - pooled
            self.pool += [(self.ranks[key], key) for key in sampled]
            self.pool.sort()
            del self.pool[REDIS_POOL:]
            while self.pool:
                _, key = self.pool.pop(0)
                if key in self.ranks:
                    self._remove(key)
                    return

    def _remove(self, key: int) -> None:
        del self.ranks[key]
        place, last = self.place.pop(key), self.keys.pop()
        if last != key:
            self.keys[place] = last
            self.place[last] = place


class RedisLru:
    def __init__(self, items: int) -> None:
        self.sampled = _RedisSampled(items)
        self.clock = 0

    def __call__(self, key: int) -> bool:
        self.clock += 1
        if key in self.sampled.ranks:
            self.sampled.ranks[key] = self.clock
            return True
        self.sampled.insert(key, self.clock)
        return False


class RedisLfu:
    def __init__(self, items: int) -> None:
        self.sampled = _RedisSampled(items)

    def __call__(self, key: int) -> bool:
        count = self.sampled.ranks.get(key)
        if count is None:
            self.sampled.insert(key, LFU_FIRST)
            return False
        chance = 1 / (max(0, count - LFU_FIRST) * LFU_FACTOR + 1)
        if count < LFU_MOST and self.sampled.rng.random() < chance:
            self.sampled.ranks[key] = count + 1
        return True
