"""The figures of the RCuckoo paper: counted, repeatable, and near the paper's."""

from __future__ import annotations

import contextlib
from typing import Any

from limpet.bench import cuckoo
from limpet.bench.cuckoo import VALUE, table_of
from limpet.shm.errors import StoreFull
from limpet.shm.fabric import BUILD

COMPILED = BUILD == "compiled"


def first_failure(rows: int, **parameters: Any) -> float:
    with table_of(rows, **parameters) as store:
        count = 0
        with contextlib.suppress(StoreFull):
            for key in cuckoo.keys_of(1, 0):
                store.insert(key, VALUE)
                count += 1
        store.check()
        return count / (8 * rows)


def test_a_small_cache_of_rows_costs_round_trips_and_no_room() -> None:
    """Rows of one place in the cache, which a search needs both, drove out each other for ever."""
    rows = 1000 if COMPILED else 100
    whole = first_failure(rows, cache_rows=rows)
    for cache_rows in (1, 8):
        assert first_failure(rows, cache_rows=cache_rows) > whole - 0.04 > 0.9
