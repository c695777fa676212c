"""Parameters of a `clover` store: checked when made, stored in the catalogue."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from limpet.shm.errors import ParameterError
from limpet.shm.parameters import check_fields
from limpet.stores.core.parameters import CAPACITY_MAX, TABLES, capacity_for, share_of

if TYPE_CHECKING:
    from limpet.shm.endpoint.layout import NodeLayout
    from limpet.shm.parameters import PoolParameters

CACHE_SIZE: Final = 1 << 17
CACHE_SIZE_MAX: Final = 1 << 32


@dataclasses.dataclass(frozen=True)
class CloverParameters:
    """`capacity`: keys that surely fit; `tables`: of rows, one a node; `heads`: rows of each table;
    `cache_size`: keys that a handle remembers, 0 for none."""

    capacity: int
    tables: int
    heads: int
    cache_size: int

    def __post_init__(self) -> None:
        check_fields(
            self, capacity=(1, CAPACITY_MAX), tables=TABLES, heads=(1, 1 << 36),
            cache_size=(0, CACHE_SIZE_MAX),
        )  # fmt: skip

    @classmethod
    def for_pool(
        cls, pool: PoolParameters, layout: NodeLayout, *, capacity: int | None = None,
        cache_size: int = CACHE_SIZE,
    ) -> CloverParameters:  # fmt: skip
        """The parameters for a pool. By default a key for every 512 bytes of its blocks."""
        if pool.multi_host:
            raise ParameterError(
                "a clover store has one metadata process, which clients on other hosts cannot "
                "reach; create the pool without multi_host"
            )
        if not pool.coherent:
            raise ParameterError(
                "a clover store changes words of its objects by CAS; create the pool with "
                "coherent=True"
            )
        capacity = capacity_for(pool, layout, capacity)
        heads = capacity if pool.nodes == 1 else int(share_of(capacity, pool) + 8)
        return cls(capacity, pool.nodes, heads, cache_size)
