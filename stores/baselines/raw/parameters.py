"""Parameters of a `raw` store: checked when made, stored in the catalogue. Constants of its
objects.

No word of an object counts up.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from limpet.shm.parameters import check_fields
from limpet.stores.core.parameters import PAIR_SIZE
from limpet.stores.fusee.parameters import CACHE_SIZE_MAX, cache_size_for
from limpet.stores.race.parameters import SLOTS_PER_BUCKET, GrowingParameters

if TYPE_CHECKING:
    from limpet.shm.endpoint.layout import NodeLayout
    from limpet.shm.parameters import PoolParameters


DELETED: Final = 1 << 63
SIZES_MASK: Final = DELETED - 1
PREFETCH_SIZE: Final = 192
"""Bytes of a pair that the first read fetches."""


ROOM: Final = 1024
ROOM_MAX: Final = 1 << 20


@dataclasses.dataclass(frozen=True)
class RawParameters(GrowingParameters):
    """Those of `race`, and

    `room`: bytes of the longest value, which each key has; `cache_size`: keys whose place a handle
    remembers.
    """

    room: int
    cache_size: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, room=(0, ROOM_MAX), cache_size=(0, CACHE_SIZE_MAX))

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
        room: int = ROOM,
        cache_size: int | None = None,
    ) -> RawParameters:
        """The parameters for a pool.

        By default room for 1,000 keys at first; a cache for as many keys as there may come to be,
        one for every 512 bytes of blocks, or for 131,072.
        """
        sizes = cls.sizes(pool, layout, capacity, groups, bucket_size, limit)
        if cache_size is None:
            cache_size = cache_size_for(pool, layout, sizes[0], PAIR_SIZE)
        return cls(*sizes, room, cache_size)
