"""Parameters of the stores with pairs in tables of a fixed size (inline.py): `loco`, `rcuckoo`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from limpet.shm.parameters import check_whole
from limpet.stores.parameters import PAIR_SIZE, TABLES, capacity_for

if TYPE_CHECKING:
    from limpet.shm.endpoint.layout import NodeLayout
    from limpet.shm.parameters import PoolParameters

KEY_SIZE_MAX: Final = 255
VALUE_SIZE: Final = 64
VALUE_SIZE_MAX: Final = 4096
CAPACITY_MAX: Final = 1 << 34

FIELDS: Final = {
    "capacity": (1, CAPACITY_MAX),
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
