"""Parameters of a `clover` store: checked when made, stored in the catalogue."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from limpet.shm.errors import ParameterError
from limpet.shm.parameters import check_fields
from limpet.stores.core.parameters import CAPACITY_MAX, TABLES, capacity_for, share_of

if TYPE_CHECKING:
    from limpet.shm.endpoint.layout import NodeLayout
    from limpet.shm.parameters import PoolParameters


@dataclasses.dataclass(frozen=True)
class CloverParameters:
    """`capacity`: keys that surely fit; `tables`: of heads, one a node; `heads`: in each table."""

    capacity: int
    tables: int
    heads: int

    def __post_init__(self) -> None:
        check_fields(self, capacity=(1, CAPACITY_MAX), tables=TABLES, heads=(1, 1 << 36))

    @classmethod
    def for_pool(
        cls, pool: PoolParameters, layout: NodeLayout, *, capacity: int | None = None
    ) -> CloverParameters:
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
        return cls(capacity, pool.nodes, heads)
