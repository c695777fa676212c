"""Parameters of a cache: checked when made, stored in the catalogue."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from limpet.shm.errors import ParameterError
from limpet.shm.parameters import check_whole, parse_size
from limpet.shm.times import LONGEST_S, MS
from limpet.stores.cache.layout import GROUP_MASK, PREFIX, UNIT, UNITS_MASK, words_size
from limpet.stores.core.object_layout import HEADER
from limpet.stores.race.parameters import CAPACITY, SLOTS_PER_BUCKET, GrowingParameters

if TYPE_CHECKING:
    from limpet.shm.endpoint.layout import NodeLayout
    from limpet.shm.parameters import PoolParameters

ITEMS_MAX: Final = (1 << 27) - 1
LIFE_MAX_MS: Final = LONGEST_S * MS
"""A hundred years: of a time to live."""
TTL_MAX_MS: Final = (1 << 32) - 1
"""49 days: of all other times, and of a time to live that each read begins anew."""
POLICIES: Final = ("clock", "fifo")
GROWTH: Final = 16
"""Times `max_items` for which the directory of a cache has room, as `Cache.resize` may want it."""
LEAST: Final = PREFIX + HEADER
"""Bytes of an entry with an empty key and value."""


def bounds_for(pool: PoolParameters, layout: NodeLayout, size: int | str) -> tuple[int, int]:
    """Items that fit into so many bytes, and those. ParameterError: the pool has fewer."""
    memory = pool.nodes * layout.block_count * layout.block_size
    size = parse_size(size)
    if size > memory:
        raise ParameterError(f"max_bytes={size} is more than the pool's memory, {memory} bytes")
    return min(max(1, size // LEAST), ITEMS_MAX), size


@dataclasses.dataclass(frozen=True)
class CacheParameters(GrowingParameters):
    """Those of `race`, and

    `max_items` and `max_bytes`: the cache's bounds; an entry counts as key, value and 64 bytes.
    `ttl_ms`: how long an entry lives unless it says so itself; 0: until it is evicted. `policy`:
    "clock", or "fifo", in which a hit writes nothing. `clients`: slots of the pool.
    """

    max_items: int
    max_bytes: int
    ttl_ms: int
    policy: str
    clients: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("max_items", self.max_items, 1, ITEMS_MAX)
        check_whole("max_bytes", self.max_bytes, 2 * LEAST, UNITS_MASK * UNIT)
        check_whole("ttl_ms", self.ttl_ms, 0, LIFE_MAX_MS)
        check_whole("clients", self.clients, 1, 1 << 20)
        check_whole("groups", self.groups, 2, GROUP_MASK)
        if self.policy not in POLICIES:
            raise ParameterError(
                f"there is no cache policy {self.policy!r}; there is {', '.join(POLICIES)}"
            )

    @classmethod
    def for_pool(
        cls,
        pool: PoolParameters,
        layout: NodeLayout,
        *,
        capacity: int | None = None,
        groups: int | None = None,
        bucket_size: int = SLOTS_PER_BUCKET,
        limit: int = 0,
        max_items: int | None = None,
        max_bytes: int | str | None = None,
        ttl_ms: int = 0,
        policy: str = "clock",
    ) -> CacheParameters:
        """The parameters for a pool. By default half of its memory, for as many items as fit."""
        memory = pool.nodes * layout.block_count * layout.block_size
        most, size = bounds_for(pool, layout, memory // 2 if max_bytes is None else max_bytes)
        items = most if max_items is None else max_items
        check_whole("max_items", items, 1, ITEMS_MAX)
        most = min(items, most)
        if capacity is None:
            capacity = min(CAPACITY, most)
        if not limit:
            limit = max(min(GROWTH * most, memory // LEAST), most, capacity)
        race = cls.sizes(pool, layout, capacity, groups, bucket_size, limit)
        return cls(*race, items, size, ttl_ms, policy, pool.clients)

    @property
    def region_size(self) -> int:
        """Bytes of a node's region: a directory, and the cache's words."""
        return self.words_at + words_size(self.clients)

    @property
    def words_at(self) -> int:
        """Where in the region of node 0 the cache's words begin."""
        return (self.directory_size + 63) & ~63
