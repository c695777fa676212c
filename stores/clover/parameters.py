"""Parameters of a `clover` store: checked when made, stored in the catalogue."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from limpet.shm.errors import ParameterError

if TYPE_CHECKING:
    from limpet.shm.layout import NodeLayout
    from limpet.shm.parameters import PoolParameters

SPREAD: Final = 4
"""Keys fall on nodes by chance: each has room for this many standard deviations more."""
CAPACITY_MAX: Final = 1 << 36


@dataclasses.dataclass(frozen=True)
class CloverParameters:
    """`capacity`: keys that surely fit; `tables`: of heads, one a node; `heads`: in each table."""

    capacity: int
    tables: int
    heads: int

    def __post_init__(self) -> None:
        for name, low, high in (
            ("capacity", 1, CAPACITY_MAX),
            ("tables", 1, 255),
            ("heads", 1, 1 << 36),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise ParameterError(
                    f"{name} must be a whole number from {low} to {high}: {value!r}"
                )

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
        if capacity is None:
            capacity = max(64, pool.nodes * layout.block_count * layout.block_size // 512)
        if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
            raise ParameterError(f"capacity must be a whole number of keys, not {capacity!r}")
        share = capacity / pool.nodes
        heads = capacity if pool.nodes == 1 else int(share + SPREAD * share**0.5 + 8)
        return cls(capacity, pool.nodes, heads)
