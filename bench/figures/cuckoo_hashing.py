"""Figures 4(a) and 4(b) of the RCuckoo paper: distances of the rows of a key; fill of tables."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from array import array
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from rich.table import Table

from limpet.bench.figures.cuckoo_tables import (
    INDEPENDENT,
    LOCALITIES,
    VALUE,
    ZEROS,
    keys_of,
    of_locality,
    share_text,
    table_of,
)
from limpet.cli.common import table
from limpet.shm.endpoint.fabric import hash64
from limpet.shm.errors import StoreFull
from limpet.stores.rcuckoo.layout import SLOTS
from limpet.stores.rcuckoo.parameters import LOCALITY
from limpet.stores.rcuckoo.rows import DependentHash

WITHIN: Final = (1, 2, 5, 10, 32, 256)
PAPER_WITHIN: Final = 0.68
"""Of the paper: the share of keys whose rows are within five, at f = 2.3."""
PAPER_FILL: Final = 0.95
"""Of the paper: how full a table is, at least, when the first insert fails, at f = 2.3."""


@dataclasses.dataclass(frozen=True)
class Distances:
    """The share of keys whose rows are at most so far apart: counted, and by the paper's formula.

    `same`: by the formula, the share of keys both of whose rows are the same.
    """

    locality: float
    keys: int
    counted: dict[int, float]
    printed: dict[int, float]
    same: float


def distances(rows: int, keys: int, seed: int) -> Iterator[Distances]:
    """How far apart a key's rows are, for each locality."""
    hashes = [hash64(key) for key in itertools.islice(keys_of(seed, 0), keys)]
    for locality in LOCALITIES:
        places = DependentHash(rows, locality)
        found = array("q")
        for hashed in hashes:
            places.place(hashed)
            found.append(abs(places.first - places.second))
        apart = np.frombuffer(found, np.int64)
        apart = np.minimum(apart, rows - apart)
        counted = {within: float((apart <= within).mean()) for within in WITHIN}
        printed = {within: _printed(locality, within) for within in WITHIN}
        yield Distances(locality, keys, counted, printed, _printed(locality, 0))


def _printed(locality: float, within: int) -> float:
    """The share of keys with d <= `within`, where d = h2 mod floor(f^(f + Z))."""
    return sum(
        0.5 ** (zeros + 1) * min(1, (within + 1) / int(locality ** (locality + zeros)))
        for zeros in range(ZEROS)
    )


def distances_table(found: Sequence[Distances]) -> Table:
    """Figure 4(a)."""
    numbers = (*(f"<= {within}" for within in WITHIN), "same row")
    title = f"figure 4(a): rows between a key's two rows, {found[0].keys:,} keys"
    shown = table(title, "locality", "", *numbers, right=numbers)
    for one in found:
        counted = [share_text(one.counted[within]) for within in WITHIN]
        printed = [share_text(one.printed[within]) for within in WITHIN]
        shown.add_row(of_locality(one.locality), "ours, odd distances", *counted, "0.0%")
        shown.add_row("", "formula as printed", *printed, share_text(one.same))
        if one.locality == LOCALITY:
            reported = [f"{PAPER_WITHIN:.0%}" if within == 5 else "-" for within in WITHIN]
            shown.add_row("", "paper, reported", *reported, "-")
    shown.caption = (
        "Ours are odd: the formula, | 1. So they are within 5 rows as often as by the formula as "
        "it is printed, and never the same row. The paper reports 68 % at f = 2.3."
    )
    return shown


@dataclasses.dataclass(frozen=True)
class Fill:
    """How full tables are when the first insert fails, as a share of their entries."""

    locality: float
    rows: int
    tables: int
    mean: float
    least: float
    most: float


def fills(rows: int, tables: int, seed: int) -> Iterator[Fill]:
    """How full tables are when the first insert fails, for each locality."""
    for locality in (*LOCALITIES, INDEPENDENT):
        found = [_first_failure(rows, locality, seed, table) for table in range(tables)]
        mean = float(np.mean(found))
        yield Fill(locality, rows, tables, mean, min(found), max(found))


def _first_failure(rows: int, locality: float, seed: int, table: int) -> float:
    with table_of(rows, locality=locality) as store:
        count = 0
        with contextlib.suppress(StoreFull):
            for key in keys_of(seed, table):
                store.insert(key, VALUE)
                count += 1
        return count / (SLOTS * rows)


def fills_table(found: Sequence[Fill]) -> Table:
    """Figure 4(b)."""
    numbers = ("mean", "least", "most", "paper")
    title = (
        f"figure 4(b): fill when the first insert fails, {found[0].tables} tables of "
        f"{found[0].rows:,} rows"
    )
    shown = table(title, "locality", *numbers, right=numbers)
    for one in found:
        paper = f"> {PAPER_FILL:.0%}" if one.locality == LOCALITY else "-"
        shares = (share_text(share) for share in (one.mean, one.least, one.most))
        shown.add_row(of_locality(one.locality), *shares, paper)
    return shown
