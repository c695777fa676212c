"""Parameters of a `swarm` store: checked when made, stored in the catalogue."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from limpet.shm.errors import ParameterError
from limpet.shm.parameters import check_fields, check_flag, check_whole
from limpet.stores.core.parameters import check_replicas
from limpet.stores.fusee.parameters import CACHE_SIZE_MAX, cache_size_for
from limpet.stores.race.parameters import SLOTS_PER_BUCKET, GrowingParameters
from limpet.stores.swarm.layout import WRITERS_MAX

if TYPE_CHECKING:
    from limpet.shm.endpoint.layout import NodeLayout
    from limpet.shm.parameters import PoolParameters

REPLICAS: Final = 3
REPLICAS_MAX: Final = 7
WRITERS: Final = 8
REGISTER_SIZE: Final = 2048
"""Bytes of a node's blocks for each key, if a program does not say how many keys there are."""


@dataclasses.dataclass(frozen=True)
class SwarmParameters(GrowingParameters):
    """Those of `race`, and

    `replicas`: 2f + 1 of the index and of each register, on as many memory nodes, of which f may be
    lost; `writers`: clients that write without taking turns (shm/clients/writer_numbers.py);
    `buffers`: words of the metadata array, each for a group of writers; `cache_size`: keys whose
    place a handle remembers; `guess`: guess timestamps (Safe-Guess) instead of reading them first
    (ABD); `in_place`: give registers room for a value in place (In-n-Out).
    """

    replicas: int
    writers: int
    buffers: int
    cache_size: int
    guess: bool
    in_place: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, replicas=(1, REPLICAS_MAX))
        if not self.replicas % 2:
            raise ParameterError(f"replicas must be odd, for a majority: {self.replicas}")
        check_fields(self, writers=(1, WRITERS_MAX))
        check_fields(self, buffers=(1, self.writers), cache_size=(0, CACHE_SIZE_MAX))
        check_flag("guess", self.guess)
        check_flag("in_place", self.in_place)

    @property
    def index_replicas(self) -> int:
        """Replicas of the index: as many as of each register."""
        return self.replicas

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
        writers: int = WRITERS,
        buffers: int | None = None,
        cache_size: int | None = None,
        guess: bool = True,
        in_place: bool = True,
    ) -> SwarmParameters:
        """The parameters for a pool.

        By default 3 replicas, or 1 if there are fewer nodes; room for 1,000 keys at first; a
        metadata word for each writer; a cache for as many keys as there may come to be, one for
        every 2 KiB of blocks that the replicas leave, or for 131,072.
        """
        if not pool.coherent:
            raise ParameterError("a swarm store changes its objects by CAS: it needs coherent=True")
        if replicas is None:
            replicas = REPLICAS if pool.nodes >= REPLICAS else 1
        check_replicas(replicas, REPLICAS_MAX, pool)
        check_whole("writers", writers, 1, WRITERS_MAX)
        sizes = cls.sizes(pool, layout, capacity, groups, bucket_size, limit, replicas)
        if buffers is None:
            buffers = writers
        if cache_size is None:
            cache_size = cache_size_for(pool, layout, sizes[0], replicas * REGISTER_SIZE)
        return cls(*sizes, replicas, writers, buffers, cache_size, guess, in_place)
