"""Parameters of a store on the replicated index: checked when made, stored in the catalogue."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from limpet.shm.errors import ParameterError
from limpet.shm.parameters import check_fields, check_flag, check_number
from limpet.shm.words import REPLICAS_MAX
from limpet.stores.parameters import PAIR_SIZE, capacity_for, check_replicas
from limpet.stores.race.parameters import RaceParameters

if TYPE_CHECKING:
    from limpet.shm.layout import NodeLayout
    from limpet.shm.parameters import PoolParameters

REPLICAS: Final = 2
CACHE_SIZE_DEFAULT_MAX: Final = 1 << 17
CACHE_SIZE_MAX: Final = 1 << 24
"""Of 16 bytes each, which every handle has at once."""
CACHE_THRESHOLD: Final = 0.5


@dataclasses.dataclass(frozen=True)
class FuseeParameters(RaceParameters):
    """Those of `race`, and

    `replicas`: of the index and of each object, on as many memory nodes; `sequential`: replicas are
    changed one after another (FUSEE-CR); `cache_size`: keys whose slots a handle remembers, 0 for
    none (FUSEE-NC); `cache_threshold`: the share of invalid answers above which the cache is not
    asked for a key.
    """

    replicas: int
    sequential: bool
    cache_size: int
    cache_threshold: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, replicas=(1, REPLICAS_MAX), cache_size=(0, CACHE_SIZE_MAX))
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
        replicas: int | None = None,
        sequential: bool = False,
        cache_size: int | None = None,
        cache_threshold: float = CACHE_THRESHOLD,
    ) -> FuseeParameters:
        """The parameters for a pool.

        By default 2 replicas, if there are as many nodes; a key for every 512 bytes of blocks
        that they leave; a cache for all keys, or 131,072 of them.
        """
        if replicas is None:
            replicas = min(REPLICAS, pool.nodes)
        check_replicas(replicas, REPLICAS_MAX, pool)
        capacity = capacity_for(pool, layout, capacity, replicas * PAIR_SIZE)
        base = RaceParameters.for_pool(pool, layout, capacity=capacity)
        return cls(
            base.capacity, base.subtables, base.groups, replicas, sequential,
            cache_size_for(base, cache_size), cache_threshold,
        )  # fmt: skip


def cache_size_for(base: RaceParameters, cache_size: int | None) -> int:
    """What was asked for; or room for all keys, or for 131,072 of them."""
    return min(base.capacity, CACHE_SIZE_DEFAULT_MAX) if cache_size is None else cache_size
