"""Parameters of a `pdpm` store: checked when made, stored in the catalogue."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from limpet.shm.parameters import check_fields
from limpet.stores.core.parameters import CAPACITY_MAX, TABLES, capacity_for, share_of

if TYPE_CHECKING:
    from limpet.shm.endpoint.layout import NodeLayout
    from limpet.shm.parameters import PoolParameters

BUCKET_SIZE: Final = 128
BUCKET_WORDS: Final = BUCKET_SIZE // 8
SLOTS_PER_BUCKET: Final = 14
FILL_PERCENT: Final = 60
"""Share of the slots that `capacity` keys take: with two choices of 14 slots, none is then full."""


@dataclasses.dataclass(frozen=True)
class PdpmParameters:
    """`capacity`: keys that surely fit; `tables`: one a node; `buckets`: in each table."""

    capacity: int
    tables: int
    buckets: int

    def __post_init__(self) -> None:
        check_fields(self, capacity=(1, CAPACITY_MAX), tables=TABLES, buckets=(2, 1 << 32))

    @classmethod
    def for_pool(
        cls, pool: PoolParameters, layout: NodeLayout, *, capacity: int | None = None
    ) -> PdpmParameters:
        """The parameters for a pool. By default a key for every 512 bytes of its blocks."""
        capacity = capacity_for(pool, layout, capacity)
        slots = (share_of(capacity, pool) + 8) * 100 / FILL_PERCENT
        return cls(capacity, pool.nodes, max(2, int(-(-slots // SLOTS_PER_BUCKET))))
