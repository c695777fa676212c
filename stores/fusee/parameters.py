"""Parameters of a store on the replicated index: checked when made, stored in the catalogue."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from limpet.shm.endpoint.words import REPLICAS_MAX
from limpet.shm.errors import ParameterError
from limpet.shm.parameters import check_fields, check_flag, check_number
from limpet.stores.core.parameters import PAIR_SIZE, capacity_for, check_replicas
from limpet.stores.race.parameters import SLOTS_PER_BUCKET, GrowingParameters

if TYPE_CHECKING:
    from limpet.shm.endpoint.layout import NodeLayout
    from limpet.shm.parameters import PoolParameters

REPLICAS: Final = 2
CACHE_SIZE_DEFAULT_MAX: Final = 1 << 17
CACHE_SIZE_MAX: Final = 1 << 24
"""The most keys of a cache, of 16 bytes each, which every handle allocates at once."""
CACHE_THRESHOLD: Final = 0.5


@dataclasses.dataclass(frozen=True)
class FuseeParameters(GrowingParameters):
    """The parameters of `race`, and

    `replicas`: of each object, on as many memory nodes; `sequential`: replicas of a slot are
    changed one after another (FUSEE-CR); `cache_size`: keys whose slots a handle remembers, 0 for
    none (FUSEE-NC); `cache_threshold`: the share of invalid answers above which the cache is not
    asked for a key; `index_replicas`: of the index, its directories and subtables, on as many
    memory nodes; 0: as many as `replicas`.

    A key is served as long as a replica of its slot and one of its object are left, so the store
    survives the loss of one node less than the smaller of both numbers. With `index_replicas=1`,
    slots are changed without rounds, and the keys of an index that is lost with its node are lost,
    however many replicas their objects have.
    """

    replicas: int
    sequential: bool
    cache_size: int
    cache_threshold: float
    index_replicas: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, replicas=(1, REPLICAS_MAX), cache_size=(0, CACHE_SIZE_MAX))
        check_fields(self, index_replicas=(0, REPLICAS_MAX))
        if not self.index_replicas:
            object.__setattr__(self, "index_replicas", self.replicas)
        check_flag("sequential", self.sequential)
        threshold = self.cache_threshold
        check_number("cache_threshold", threshold)
        if not 0 <= threshold <= 1:
            raise ParameterError(f"cache_threshold must be from 0 to 1: {threshold!r}")

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
        replicas: int | None = None,
        sequential: bool = False,
        cache_size: int | None = None,
        cache_threshold: float = CACHE_THRESHOLD,
        index_replicas: int | None = None,
    ) -> FuseeParameters:
        """The parameters for a pool.

        By default 2 replicas, if there are as many nodes, also of the index; room for 1,000 keys at
        first; a cache for as many keys as there may come to be, one for every 512 bytes of blocks
        that the replicas of objects leave, or for 131,072.
        """
        if replicas is None:
            replicas = min(REPLICAS, pool.nodes)
        check_replicas(replicas, REPLICAS_MAX, pool)
        if index_replicas is None:
            index_replicas = replicas
        check_replicas(index_replicas, REPLICAS_MAX, pool, "index_replicas")
        sizes = cls.sizes(pool, layout, capacity, groups, bucket_size, limit, index_replicas)
        if cache_size is None:
            cache_size = cache_size_for(pool, layout, sizes[0], replicas * PAIR_SIZE)
        return cls(*sizes, replicas, sequential, cache_size, cache_threshold, index_replicas)


def cache_size_for(pool: PoolParameters, layout: NodeLayout, capacity: int, each: int) -> int:
    """Room for `capacity` keys, and one for every `each` bytes of blocks; or for 131,072."""
    return min(max(capacity, capacity_for(pool, layout, None, each)), CACHE_SIZE_DEFAULT_MAX)
