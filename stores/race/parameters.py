"""Parameters of a `race` store: checked when made, stored in the catalogue."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from limpet.shm.errors import ParameterError
from limpet.shm.parameters import check_whole
from limpet.shm.replicas.replica_layout import ReplicaLayout
from limpet.stores.race.layout import DIRECTORY_ENTRY

if TYPE_CHECKING:
    from limpet.shm.endpoint.layout import NodeLayout
    from limpet.shm.parameters import PoolParameters

GROUP_SIZE: Final = 192
GROUP_WORDS: Final = GROUP_SIZE // 8
SLOTS_PER_BUCKET: Final = 7
SLOTS_PER_GROUP: Final = 21
FILL_PERCENT: Final = 70
"""Share of the slots that `capacity` keys take: with two choices of 14 slots, no bucket is full."""
TABLE_GROUPS_MAX: Final = 1 << 31
GROUPS: Final = 8
"""Default groups of a subtable that can be split, 1.5 KiB: the more there are, the longer a split
takes, and the client that finds no room waits for all of it."""
GROUPS_COPIED: Final = 4
"""The same, if each slot has three replicas or more, which are all changed one by one."""
PAIR_SIZE: Final = 32
"""Bytes of the smallest pair."""
SUBTABLES_MAX: Final = 1 << 22
"""The default aims at no more subtables a node than this: on a large node they have more groups."""
DEPTH_MAX: Final = 24
SPREAD: Final = 4
"""Keys fall on subtables by chance: each has room for so many standard deviations more."""
CAPACITY: Final = 1000
CAPACITY_MAX: Final = 1 << 36


@dataclasses.dataclass(frozen=True)
class RaceParameters:
    """`capacity`: keys that surely fit; `subtables`: one a node; `groups`: in each subtable."""

    capacity: int
    subtables: int
    groups: int

    def __post_init__(self) -> None:
        for name, low, high in (
            ("capacity", 1, CAPACITY_MAX),
            ("subtables", 1, 255),
            ("groups", 2, TABLE_GROUPS_MAX),
        ):
            check_whole(name, getattr(self, name), low, high)

    @classmethod
    def for_pool(
        cls, pool: PoolParameters, layout: NodeLayout, *, capacity: int | None = None
    ) -> RaceParameters:
        """The parameters for a pool. By default a key for every 512 bytes of its blocks."""
        if capacity is None:
            capacity = max(64, pool.nodes * layout.block_count * layout.block_size // 512)
        if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
            raise ParameterError(f"capacity must be a whole number of keys, not {capacity!r}")
        return cls(capacity, pool.nodes, groups_for(capacity / pool.nodes))


@dataclasses.dataclass(frozen=True)
class GrowingParameters(RaceParameters):
    """`capacity`: keys that fit before subtables are split, but for a few of these; `subtables`:
    directories, one a node; `groups`: of a subtable; `depth`: splits that the first subtables have
    behind them; `depth_max`: the most splits of any; `bucket_size`: slots of a bucket that are
    used, 7 but in tests of growth; `limit`: keys that surely fit at last; 0: as many as memory has
    room for.
    """

    depth: int
    depth_max: int
    bucket_size: int
    limit: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("depth_max", self.depth_max, 0, DEPTH_MAX)
        check_whole("depth", self.depth, 0, self.depth_max)
        check_whole("bucket_size", self.bucket_size, 1, SLOTS_PER_BUCKET)
        check_whole("limit", self.limit, 0, CAPACITY_MAX)

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
    ) -> GrowingParameters:
        """The parameters for a pool. By default room for 1,000 keys at first.

        Without a `limit`, the directory of a store takes up to 1/64 of each node.
        """
        return cls(*cls.sizes(pool, layout, capacity, groups, bucket_size, limit))

    @staticmethod
    def sizes(
        pool: PoolParameters,
        layout: NodeLayout,
        capacity: int | None,
        groups: int | None,
        bucket_size: int,
        limit: int,
        replicas: int = 1,
    ) -> tuple[int, int, int, int, int, int, int]:
        """The fields of this class, in their order, for subtables with so many replicas."""
        check_whole("limit", limit, 0, CAPACITY_MAX)
        check_whole("bucket_size", bucket_size, 1, SLOTS_PER_BUCKET)
        wanted = capacity
        if wanted is None:
            wanted = min(CAPACITY, limit) if limit else CAPACITY
        base = RaceParameters.for_pool(pool, layout, capacity=wanted)
        share = base.capacity / pool.nodes
        blocks = layout.block_count * layout.block_size
        if groups is None:
            few = blocks // (GROUP_SIZE * SUBTABLES_MAX)
            groups = max(GROUPS if replicas < 3 else GROUPS_COPIED, few)
            if replicas > 1:  # no object with replicas is larger than a region
                placement = ReplicaLayout(pool.nodes, layout.block_count, layout.block_size)
                region = placement.region_blocks * layout.block_size
                groups = max(2, min(groups, region // GROUP_SIZE))
        check_whole("groups", groups, 2, TABLE_GROUPS_MAX)
        depth = depth_for(share, groups, 0)
        # when memory is full, half of the slots have pairs, or more
        pairs = groups * 3 * bucket_size // 2
        deepest = (blocks // (groups * GROUP_SIZE + pairs * PAIR_SIZE)).bit_length()
        if limit:
            if limit < base.capacity:
                raise ParameterError(f"limit={limit} is less than the capacity, {base.capacity}")
            deepest = min(deepest, depth_for(limit / pool.nodes, groups))
        depth_max = min(max(depth, deepest), DEPTH_MAX)
        return base.capacity, base.subtables, groups, depth, depth_max, bucket_size, limit

    @property
    def subtable_size(self) -> int:
        """Bytes of a subtable."""
        return self.groups * GROUP_SIZE

    @property
    def directory_size(self) -> int:
        """Bytes of a directory."""
        return DIRECTORY_ENTRY << self.depth_max + 1


def depth_for(keys: float, groups: int, spread: int = SPREAD) -> int:
    """How often subtables of so many groups are split when so many keys surely fit on a node; with
    a `spread` of 0, when they fit if each subtable gets its share."""
    depth = 0
    while groups_for(keys / 2**depth, spread) > groups and depth < DEPTH_MAX:
        depth += 1
    return depth


def groups_for(keys: float, spread: int = SPREAD) -> int:
    """Groups of a subtable in which so many keys, by chance some more, surely fit."""
    slots = (keys + spread * keys**0.5 + 8) * 100 / FILL_PERCENT
    return max(2, int(-(-slots // SLOTS_PER_GROUP)))
