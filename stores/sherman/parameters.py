"""Parameters of a tree store: checked when made, stored in the catalogue."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar, Final

from limpet.shm.errors import ParameterError
from limpet.shm.parameters import check_fields, check_flag, check_whole
from limpet.stores.core.parameters import CAPACITY_MAX, TABLES, capacity_for, share_of
from limpet.stores.sherman.layout import SLOTS
from limpet.stores.transactions.layout import DRIFT_US, EACH_US, OBJECT_SIZE

if TYPE_CHECKING:
    from typing_extensions import Self

    from limpet.shm.endpoint.layout import NodeLayout
    from limpet.shm.parameters import PoolParameters

KEY_SIZE: Final = 64
KEY_SIZE_MAX: Final = 255
VALUE_SIZE: Final = 64
VALUE_SIZE_MAX: Final = 4096
NODE_SIZE: Final = 1024
NODE_SIZE_MAX: Final = 1 << 15
ENTRIES_MIN: Final = 4
"""Entries of the largest size for which every node has room, so that it can be split."""
OBJECTS_MIN: Final = 64
CACHE_SIZE: Final = 1 << 20


@dataclasses.dataclass(frozen=True)
class TreeParameters:
    """Of every tree store. Sizes in bytes.

    `capacity`: keys that surely fit, if there is memory for them; `trees`: one for each memory
    node; `objects`: TXObjs of each tree, one for each tree node; `node_size`: of a tree node;
    `key_size`: of the longest key; `value_size`: of the longest value that is in the node itself;
    `cache_size`: leaves that a handle remembers of each tree.
    """

    overhead: ClassVar[int] = 0
    """Bytes of a node that are not in a page (page.py)."""

    capacity: int
    trees: int
    objects: int
    node_size: int
    key_size: int
    value_size: int
    cache_size: int

    CACHE_LEAST = 1
    """The least `cache_size`, for a handle that needs no cache."""

    def __post_init__(self) -> None:
        check_fields(
            self,
            capacity=(1, CAPACITY_MAX),
            trees=TABLES,
            objects=(1, CAPACITY_MAX),
            node_size=(256, NODE_SIZE_MAX),
            key_size=(0, KEY_SIZE_MAX),
            value_size=(0, VALUE_SIZE_MAX),
            cache_size=(self.CACHE_LEAST, 1 << 24),
        )
        if self.node_size % 64:
            raise ParameterError(f"node_size must be a multiple of 64: {self.node_size}")
        smallest = self._node_size_min(self.key_size, self.value_size)
        if self.node_size < smallest:
            raise ParameterError(
                f"node_size must be at least {smallest} for keys of up to {self.key_size} bytes "
                f"and values of up to {self.value_size}: {self.node_size}"
            )

    @classmethod
    def for_pool(
        cls,
        pool: PoolParameters,
        layout: NodeLayout,
        *,
        capacity: int | None = None,
        node_size: int | None = None,
        key_size: int = KEY_SIZE,
        value_size: int = VALUE_SIZE,
        cache_size: int = CACHE_SIZE,
        **others: Any,
    ) -> Self:
        """The parameters for a pool. By default a key for every 512 bytes of its blocks.

        `others`: fields that a class has besides.
        """
        check_whole("key_size", key_size, 0, KEY_SIZE_MAX)
        check_whole("value_size", value_size, 0, VALUE_SIZE_MAX)
        blocks = layout.block_count * layout.block_size
        capacity = capacity_for(pool, layout, capacity)
        if node_size is None:
            node_size = NODE_SIZE
            while node_size < cls._node_size_min(key_size, value_size):
                node_size *= 2
        check_whole("node_size", node_size, 256, NODE_SIZE_MAX)
        objects = max(OBJECTS_MIN, int(share_of(capacity, pool)), blocks // node_size)
        return cls(
            capacity, pool.nodes, objects, node_size, key_size, value_size, cache_size, **others
        )  # fmt: skip

    @property
    def table_size(self) -> int:
        """Bytes of the region of a tree."""
        raise NotImplementedError

    @classmethod
    def _node_size_min(cls, key_size: int, value_size: int) -> int:
        """Bytes of a node that can always be split, with such keys and values."""
        entry = 8 + key_size + max(value_size, 8)
        size = cls.overhead + 8 * SLOTS + 2 * key_size + ENTRIES_MIN * entry
        return (size + 63) // 64 * 64


@dataclasses.dataclass(frozen=True)
class ShermanParameters(TreeParameters):
    """Those of every tree, and how long a lease is, in us.

    A lease is `drift_us`, and `each_us` more for each object of the transaction. `opt1`: a change
    of one leaf takes no log; `opt2`: it locks the leaf before it reads it (rTX section 4.5). Both
    can be switched off for comparison.
    """

    drift_us: int
    each_us: int
    opt1: bool
    opt2: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, drift_us=(0, 1 << 32), each_us=(0, 1 << 32))
        check_flag("opt1", self.opt1)
        check_flag("opt2", self.opt2)

    @classmethod
    def for_pool(
        cls,
        pool: PoolParameters,
        layout: NodeLayout,
        *,
        drift_us: int = DRIFT_US,
        each_us: int = EACH_US,
        opt1: bool = True,
        opt2: bool = True,
        **others: Any,
    ) -> Self:
        """The parameters for a pool; `others` are those of every tree."""
        lease = {"drift_us": drift_us, "each_us": each_us}
        return super().for_pool(pool, layout, **lease, opt1=opt1, opt2=opt2, **others)

    @property
    def table_size(self) -> int:
        """Bytes of a tree's objects."""
        return self.objects * OBJECT_SIZE
