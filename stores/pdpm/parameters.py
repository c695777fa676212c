"""Parameters of a `pdpm` store: checked when made, stored in the catalogue."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from limpet.shm.errors import ParameterError

if TYPE_CHECKING:
    from limpet.shm.layout import NodeLayout
    from limpet.shm.parameters import PoolParameters

BUCKET_SIZE: Final = 128
BUCKET_WORDS: Final = BUCKET_SIZE // 8
SLOTS_PER_BUCKET: Final = 14
FILL_PERCENT: Final = 60
"""Share of the slots that `capacity` keys take: with two choices of 14 slots, none is then full."""
SPREAD: Final = 4
"""Keys fall on nodes by chance: each has room for this many standard deviations more."""
CAPACITY_MAX: Final = 1 << 36


@dataclasses.dataclass(frozen=True)
class PdpmParameters:
    """`capacity`: keys that surely fit; `tables`: one a node; `buckets`: in each table."""

    capacity: int
    tables: int
    buckets: int

    def __post_init__(self) -> None:
        for name, low, high in (
            ("capacity", 1, CAPACITY_MAX),
            ("tables", 1, 255),
            ("buckets", 2, 1 << 32),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise ParameterError(
                    f"{name} must be a whole number from {low} to {high}: {value!r}"
                )

    @classmethod
    def for_pool(
        cls, pool: PoolParameters, layout: NodeLayout, *, capacity: int | None = None
    ) -> PdpmParameters:
        """The parameters for a pool. By default a key for every 512 bytes of its blocks."""
        if capacity is None:
            capacity = max(64, pool.nodes * layout.block_count * layout.block_size // 512)
        if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
            raise ParameterError(f"capacity must be a whole number of keys, not {capacity!r}")
        share = capacity / pool.nodes
        slots = (share + SPREAD * share**0.5 + 8) * 100 / FILL_PERCENT
        return cls(capacity, pool.nodes, max(2, int(-(-slots // SLOTS_PER_BUCKET))))
