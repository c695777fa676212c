"""Checks that the parameters of several store kinds share: keys in all, and keys of a table.

A store has one of its `tables` on each memory node. `loco` and `rcuckoo` have pairs in tables of a
fixed size (inline.py), and share the parameters in `FIELDS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from limpet.shm.errors import ParameterError
from limpet.shm.parameters import check_whole

if TYPE_CHECKING:
    from limpet.shm.endpoint.layout import NodeLayout
    from limpet.shm.parameters import PoolParameters


CAPACITY_MAX: Final = 1 << 36
PAIR_SIZE: Final = 512
"""Bytes of the pool's blocks for each key, if a program does not say how many keys there are."""
CAPACITY_MIN: Final = 64
"""The number of keys, likewise."""
TABLES: Final = (1, 255)
SPREAD: Final = 4
"""Keys fall on tables by chance: each has room for this many standard deviations more."""
LINE: Final = 64


def capacity_for(
    pool: PoolParameters,
    layout: NodeLayout,
    capacity: int | None,
    each: int = PAIR_SIZE,
    most: int = CAPACITY_MAX,
) -> int:
    """The capacity that was asked for, at most `most`; or a key for every `each` bytes of the
    pool's blocks."""
    if capacity is None:
        size = pool.nodes * layout.block_count * layout.block_size
        return max(CAPACITY_MIN, size // each)
    check_whole("capacity", capacity, 1, most)
    return capacity


def share_of(capacity: int, pool: PoolParameters) -> float:
    """Keys for which the table on one node has to have room."""
    share = capacity / pool.nodes
    return share + SPREAD * share**0.5


def check_replicas(replicas: int, most: int, pool: PoolParameters, name: str = "replicas") -> None:
    """Raise ParameterError if a store of the pool cannot have so many. `name`: the parameter's."""
    check_whole(name, replicas, 1, most)
    if replicas > pool.nodes:
        raise ParameterError(
            f"{name}={replicas} needs as many memory nodes; the pool has {pool.nodes}"
        )


def aligned(size: int) -> int:
    """The same, or more: a whole number of cache lines."""
    return size + LINE - 1 & -LINE


KEY_SIZE_MAX: Final = 255
VALUE_SIZE: Final = 64
VALUE_SIZE_MAX: Final = 4096

FIELDS: Final = {
    "capacity": (1, 1 << 34),
    "tables": TABLES,
    "key_size": (0, KEY_SIZE_MAX),
    "value_size": (0, VALUE_SIZE_MAX),
}
"""The least and the most of the parameters that they share."""


def check_sizes(key_size: int, value_size: int) -> None:
    """Raise ParameterError if a table cannot have such keys and values."""
    check_whole("key_size", key_size, 0, KEY_SIZE_MAX)
    check_whole("value_size", value_size, 0, VALUE_SIZE_MAX)


def inline_capacity(
    pool: PoolParameters, layout: NodeLayout, capacity: int | None, entry_words: int
) -> int:
    """The capacity that was asked for; or a key for every 512 bytes of the pool's blocks, or for
    the bytes of every four entries."""
    return capacity_for(pool, layout, capacity, max(PAIR_SIZE, 32 * entry_words), CAPACITY_MAX)
