"""Parameters of a `loco` store: checked when made, stored in the catalogue."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from limpet.shm.errors import ParameterError
from limpet.shm.parameters import check_fields, check_whole
from limpet.stores.channels.lock.ticket_lock import ticket_lock_size
from limpet.stores.core.parameters import (
    FIELDS,
    VALUE_SIZE,
    aligned,
    check_sizes,
    inline_capacity,
    share_of,
)
from limpet.stores.loco.layout import (
    ARRAY_MAX,
    KEY,
    LOCK_BITS,
    REDO,
    RING,
    RING_MAX,
    RING_MIN,
)

if TYPE_CHECKING:
    from limpet.shm.endpoint.layout import NodeLayout
    from limpet.shm.parameters import PoolParameters

KEY_SIZE: Final = 32
LOCKS: Final = (16, 1024)
"""Bounds of the number of locks of a table, by default."""
SHARE: Final = 16
"""Entries for each lock of a table, by default; at most twice as many within the bounds."""
LOCKS_MAX: Final = 1 << LOCK_BITS
WAITERS: Final = 16
"""Places of each ticket lock; a client that finds none free waits without order."""
PART: Final = 4096
"""Entries of a part of the data array, at least."""
SLACK: Final = 32
"""One entry more for so many, where there are parts: keys fall on them by chance."""
TRACKER_MIN: Final = 16
"""Messages that a tracker has room for by default, at least."""


@dataclasses.dataclass(frozen=True)
class LocoParameters:
    """Sizes in bytes.

    `capacity`: keys that surely fit; `tables`: one a node; `entries`: of each data array;
    `key_size`: of the longest key; `value_size`: of the longest value that is in the array itself;
    `locks`: of each table (NUM_LOCKS in the paper); `tracker`: messages that the tracker of each
    lock's keys has room for; both are powers of two. `part`: entries that a client looks at
    together, at least, as it learns the keys of a table (local_index.py).
    """

    capacity: int
    tables: int
    entries: int
    key_size: int
    value_size: int
    locks: int
    tracker: int
    part: int

    def __post_init__(self) -> None:
        check_fields(
            self,
            **FIELDS,
            entries=(1, ARRAY_MAX),
            locks=(1, LOCKS_MAX),
            tracker=(RING_MIN, RING_MAX),
            part=(1, ARRAY_MAX),
        )
        for name in ("locks", "tracker"):
            value = getattr(self, name)
            if value & (value - 1):
                raise ParameterError(f"{name} must be a power of two: {value}")

    @classmethod
    def for_pool(
        cls,
        pool: PoolParameters,
        layout: NodeLayout,
        *,
        capacity: int | None = None,
        key_size: int = KEY_SIZE,
        value_size: int = VALUE_SIZE,
        locks: int | None = None,
        tracker: int | None = None,
        part: int = PART,
    ) -> LocoParameters:
        """The parameters for a pool.

        By default a key for every 512 bytes of its blocks, or for every four entries' bytes; a lock
        for every 16 entries; and a message for every entry, so that a late client looks at no more
        entries than others have changed.
        """
        check_sizes(key_size, value_size)
        check_whole("part", part, 1, ARRAY_MAX)
        capacity = inline_capacity(pool, layout, capacity, entry_words(key_size, value_size))
        entries = int(share_of(capacity, pool)) + 8
        if entries >= 2 * part:
            entries += entries // SLACK
        if locks is None:
            locks = max(LOCKS[0], min(LOCKS[1], 1 << max(1, entries // SHARE).bit_length() - 1))
        check_whole("locks", locks, 1, LOCKS_MAX)
        if tracker is None:
            tracker = max(TRACKER_MIN, 1 << (entries // locks).bit_length())
        return cls(capacity, pool.nodes, entries, key_size, value_size, locks, tracker, part)

    @property
    def entry_words(self) -> int:
        """Words of an entry of the data array."""
        return entry_words(self.key_size, self.value_size)

    @property
    def record_size(self) -> int:
        """Bytes of a lock's record: the lock, and from `journal_at` on its journal."""
        return aligned(self.journal_at + REDO + 8 * (self.entry_words - 1))

    @property
    def journal_at(self) -> int:
        """Where in a lock's record its journal begins."""
        return aligned(ticket_lock_size(WAITERS))

    @property
    def parts(self) -> int:
        """Parts of each data array."""
        return max(1, self.entries // self.part)

    @property
    def tracker_size(self) -> int:
        """Bytes of a tracker; a table begins with them."""
        return aligned(RING + 8 * self.tracker)

    @property
    def reaches_at(self) -> int:
        """Where in a table the reaches of the parts begin."""
        return self.locks * self.tracker_size

    @property
    def locks_at(self) -> int:
        """Where in a table the locks begin."""
        return aligned(self.reaches_at + 8 * self.parts)

    @property
    def entries_at(self) -> int:
        """Where in a table the data array begins."""
        return self.locks_at + self.locks * self.record_size

    @property
    def table_size(self) -> int:
        """Bytes of a table."""
        return self.entries_at + 8 * self.entry_words * self.entries


def entry_words(key_size: int, value_size: int) -> int:
    """Words of an entry for such keys and values."""
    return KEY + (key_size + 7) // 8 + (value_size + 7) // 8
