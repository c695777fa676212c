"""Parameters of an `rcuckoo` store: checked when made, stored in the catalogue."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from limpet.shm.errors import ParameterError
from limpet.shm.parameters import check_fields, check_flag, check_number, check_whole
from limpet.stores.core.parameters import (
    FIELDS,
    VALUE_SIZE,
    aligned,
    check_sizes,
    inline_capacity,
    share_of,
)
from limpet.stores.rcuckoo.layout import HEAD_AT, LINE_WORDS, PATH_MAX, REDO, SLOTS

if TYPE_CHECKING:
    from limpet.shm.endpoint.layout import NodeLayout
    from limpet.shm.parameters import PoolParameters

KEY_SIZE: Final = 31
LOCALITY: Final = 2.3
LOCALITY_MAX: Final = 16.0
ROWS_PER_LOCK: Final = 16
LOCKS_MAX: Final = 1 << 21
"""As many as the bits of the memory of the paper's NIC, 256 KiB."""
DEPTH: Final = 5
CACHE_ROWS: Final = 2048
"""160 KiB; the paper's cache of 64 KiB has whole rows."""
ROWS_MAX: Final = 1 << 31
FILL_PERCENT: Final = 85
"""Share of the entries that `capacity` keys take; at f = 2.3 inserts fail above 95."""


@dataclasses.dataclass(frozen=True)
class RcuckooParameters:
    """Sizes in bytes.

    `capacity`: keys that surely fit, at the default `locality` and `depth` or above; `tables`: one
    a node; `rows`: of each table, an even number; `key_size`: of the longest key; `value_size`: of
    the longest value that is in the row itself; `locality`: f of section 3.3, 0 for two places that
    have nothing to do with each other; `rows_per_lock`; `locks`: words of each lock table, on
    which all locks are mapped; `locks_per_message`: how many adjacent ones a phase may take, 0: all
    of an operation; `depth`: of the search for a path; `cache_rows`: rows that a handle remembers
    for it; `sums`: rows have sums also in a coherent pool of one host (rows.py).
    """

    capacity: int
    tables: int
    rows: int
    key_size: int
    value_size: int
    locality: float
    rows_per_lock: int
    locks: int
    locks_per_message: int
    depth: int
    cache_rows: int
    sums: bool

    def __post_init__(self) -> None:
        check_fields(
            self,
            **FIELDS,
            rows=(2, ROWS_MAX),
            rows_per_lock=(1, ROWS_MAX),
            locks=(1, LOCKS_MAX),
            locks_per_message=(0, LOCKS_MAX),
            depth=(1, PATH_MAX - 1),
            cache_rows=(1, 1 << 24),
        )
        check_flag("sums", self.sums)
        if self.rows % 2:
            raise ParameterError(f"rows must be an even number: {self.rows}")
        locality = self.locality
        check_number("locality", locality)
        if locality and not 1 < locality <= LOCALITY_MAX:
            raise ParameterError(
                f"locality must be 0, or above 1 and at most {LOCALITY_MAX}: {locality!r}"
            )

    @classmethod
    def for_pool(
        cls,
        pool: PoolParameters,
        layout: NodeLayout,
        *,
        capacity: int | None = None,
        key_size: int = KEY_SIZE,
        value_size: int = VALUE_SIZE,
        locality: float = LOCALITY,
        rows_per_lock: int = ROWS_PER_LOCK,
        locks: int | None = None,
        locks_per_message: int = 0,
        depth: int = DEPTH,
        cache_rows: int | None = None,
        sums: bool = False,
    ) -> RcuckooParameters:
        """The parameters for a pool.

        By default a key for every 512 bytes of its blocks, or for every four entries' bytes, and a
        word for each lock, up to 2,097,152.
        """
        check_sizes(key_size, value_size)
        check_whole("rows_per_lock", rows_per_lock, 1, ROWS_MAX)
        capacity = inline_capacity(pool, layout, capacity, entry_words(key_size, value_size))
        entries = (share_of(capacity, pool) + 8) * 100 / FILL_PERCENT
        rows = max(2, 2 * int(-(-entries // (2 * SLOTS))))
        if locks is None:
            locks = min(LOCKS_MAX, -(-rows // rows_per_lock))
        if cache_rows is None:
            cache_rows = min(CACHE_ROWS, rows)
        return cls(
            capacity, pool.nodes, rows, key_size, value_size, locality, rows_per_lock, locks,
            locks_per_message, depth, cache_rows, sums,
        )  # fmt: skip

    @property
    def entry_words(self) -> int:
        """Words of an entry."""
        return entry_words(self.key_size, self.value_size)

    @property
    def row_words(self) -> int:
        """Words from one row to the next."""
        return LINE_WORDS + SLOTS * self.entry_words

    @property
    def journal_size(self) -> int:
        """Bytes of a client's journal."""
        return aligned(REDO + 8 + 8 * self.entry_words)

    def locks_at(self, clients: int) -> int:
        """Where in a table the locks begin, if the pool has so many client slots."""
        return clients * self.journal_size

    def rows_at(self, clients: int) -> int:
        """Where in a table the rows begin."""
        return aligned(self.locks_at(clients) + 8 * self.locks) + 8 * HEAD_AT

    def table_size(self, clients: int) -> int:
        """Bytes of a table."""
        return self.rows_at(clients) + 8 * self.row_words * self.rows


def entry_words(key_size: int, value_size: int) -> int:
    """Words of an entry for such keys and values."""
    return (key_size + 7) // 8 + max(1, (value_size + 7) // 8)
