"""The figures of the RCuckoo paper, counted on `rcuckoo` stores (3.3, 3.4.1, 5.3, 5.5).

Each table is one region of a pool of its own, which has no name. Counts follow from the arguments,
on any machine; times are those of this machine. The figures and their tables are in
cuckoo_hashing.py (4a, 4b), cuckoo_paths.py (4c, 7, 8b) and cuckoo_contention.py (5).

    distances   figure 4(a): how far apart a key's two rows are
    fills       figure 4(b): how full a table is when the first insert fails
    spans       figure 4(c): how many rows the cuckoo path of an insert lies in
    buckets     figures 7(c) and (d): the cost of inserts as the table fills
    contended   figure 5: round trips of an insert, of eight clients, in virtual time
    grains      figure 8(b): round trips of an insert into a table that is nearly full
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from rich.table import Table

from limpet.bench.figures import cuckoo_contention, cuckoo_hashing, cuckoo_paths
from limpet.bench.figures.cuckoo_tables import BOTH, LOCALITIES, PREFILL, ROWS_PER_LOCK
from limpet.stores.rcuckoo.parameters import LOCALITY

NEAR_FULL: Final = 0.9
Advance = Callable[[str], None]


@dataclasses.dataclass
class Found:
    """The figures that were asked for; the others are empty."""

    distances: list[cuckoo_hashing.Distances] = dataclasses.field(default_factory=list)
    fills: list[cuckoo_hashing.Fill] = dataclasses.field(default_factory=list)
    spans: list[cuckoo_paths.Spans] = dataclasses.field(default_factory=list)
    buckets: list[cuckoo_paths.Bucket] = dataclasses.field(default_factory=list)
    contended: list[cuckoo_contention.Contended] = dataclasses.field(default_factory=list)
    grains: list[cuckoo_paths.Grain] = dataclasses.field(default_factory=list)


def steps(figures: Sequence[str], tables: int) -> int:
    """How often `run` calls `advance`."""
    grid = len(ROWS_PER_LOCK)
    each = {
        "4a": 1, "4b": len(LOCALITIES) + 1, "5": grid * len(cuckoo_contention.LOCKS_PER_MESSAGE),
        "8b": grid * len(BOTH),
    }  # fmt: skip
    return sum(each.get(name, 0) for name in figures) + _fillings(figures)


def _fillings(figures: Sequence[str]) -> int:
    return len(BOTH) if "4c" in figures else int("7" in figures)


def run(
    figures: Sequence[str], advance: Advance, *, rows: int, small_rows: int, tables: int, seed: int
) -> Found:
    """Count what these figures of the paper show."""
    found = Found()
    if "4a" in figures:
        found.distances += cuckoo_hashing.distances(rows, rows, seed)
        advance("4a")
    if "4b" in figures:
        for fill in cuckoo_hashing.fills(small_rows, tables, seed):
            found.fills.append(fill)
            advance("4b")
    for locality in BOTH[: _fillings(figures)]:
        _fill_up(found, figures, rows, locality, seed)
        advance("4c, 7")
    if "5" in figures:
        for locks in cuckoo_contention.LOCKS_PER_MESSAGE:
            for each in ROWS_PER_LOCK:
                found.contended.append(cuckoo_contention.contended(each, locks, seed))
                advance("5")
    if "8b" in figures:
        for locality in BOTH:
            for each in ROWS_PER_LOCK:
                found.grains.append(cuckoo_paths.grain(small_rows, each, locality, seed))
                advance("8b")
    return found


def _fill_up(found: Found, figures: Sequence[str], rows: int, locality: float, seed: int) -> None:
    inserts = cuckoo_paths.fill_up(rows, locality, seed)
    if "4c" in figures:
        found.spans += [
            cuckoo_paths.spans(rows, locality, inserts, low) for low in (0.0, PREFILL, NEAR_FULL)
        ]
    if "7" in figures and locality == LOCALITY:
        found.buckets += cuckoo_paths.buckets(inserts)


def as_json(found: Found) -> dict[str, Any]:
    """All of it."""
    return dataclasses.asdict(found)


def tables(found: Found) -> Iterator[Table]:
    """A table for each figure that there is."""
    if found.distances:
        yield cuckoo_hashing.distances_table(found.distances)
    if found.fills:
        yield cuckoo_hashing.fills_table(found.fills)
    if found.spans:
        yield cuckoo_paths.spans_table(found.spans)
    if found.buckets:
        yield cuckoo_paths.buckets_table(found.buckets)
    if found.contended:
        yield cuckoo_contention.contended_table(found.contended)
    if found.grains:
        yield cuckoo_paths.grains_table(found.grains)
