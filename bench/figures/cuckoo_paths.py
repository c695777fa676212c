"""Figures 4(c), 7 and 8(b) of the RCuckoo paper: paths and cost of inserts as a table fills."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from rich.table import Table

from limpet.bench.figures.cuckoo_tables import (
    BOTH,
    FULL,
    PREFILL,
    ROWS_PER_LOCK,
    Filling,
    column,
    means,
    of_locality,
    percentiles,
    share_text,
    table_of,
)
from limpet.cli.common import table

WITHIN_SPANS: Final = (32, 256)
FAR: Final = 2048
BUCKET: Final = 0.05
PAPER_SPANS: Final = (0.5, 0.95, 0.99)
"""Of the paper, at f = 2.3: inserts without a path, within 32 rows, within 256."""
PAPER_ONE_MCAS: Final = 0.99
PAPER_FACTORS: Final = (2.0, 1.5)
"""Of the paper: bytes and messages of an insert into a full table, over an empty one; at most."""


@dataclasses.dataclass(frozen=True)
class Spans:
    """Paths of the inserts that fill a table from `low` to 95 %; `within`: shares of all inserts.

    Of those that need a path, `path_median` is the median of the rows that it spans, `beyond` the
    share that spans more than 2048. `one_mcas`: the share whose locks were one group;
    `one_window`: would be, if a masked CAS could be at any byte, as in the paper.
    """

    locality: float
    low: float
    rows: int
    inserts: int
    full: int
    no_path: float
    within: dict[int, float]
    path_median: float
    beyond: float
    one_mcas: float
    one_window: float


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Inserts while the table was from `low` to `high` full; means, but for the percentiles.

    `bytes_factor`, `messages_factor`: how many times those of the first bucket. `locked_factor`:
    how many times the bytes of an insert without a path that, as in the paper, reads all rows under
    its locks. `per_second` is measured; all else is counted.
    """

    low: float
    high: float
    inserts: int
    full: int
    round_trips: float
    round_trips_p50: float
    round_trips_p99: float
    no_path: float
    one_mcas: float
    bytes_read: float
    bytes_written: float
    messages: float
    bytes_factor: float
    locked_factor: float
    messages_factor: float
    per_second: float


def fill_up(
    rows: int, locality: float, seed: int, **parameters: Any
) -> list[npt.NDArray[np.int64]]:
    """Fill a table to 95 %; the cost of each insert, by shares of 5 % of its entries."""
    with table_of(rows, locality=locality, **parameters) as store:
        filling = Filling(store, seed)
        found = [filling.fill(BUCKET * number) for number in range(1, round(FULL / BUCKET) + 1)]
        store.check()
        return found


def spans(
    rows: int, locality: float, found: Sequence[npt.NDArray[np.int64]], low: float = 0.0
) -> Spans:
    """The paths of those inserts of `fill_up` that were made when the table was so full."""
    every = np.concatenate(found[round(low / BUCKET) :])
    done = every[column(every, "full") == 0]
    span = column(done, "span")
    moved = span[column(done, "path") > 0]
    return Spans(
        locality=locality,
        low=low,
        rows=rows,
        inserts=len(every),
        full=len(every) - len(done),
        no_path=float(1 - len(moved) / len(done)),
        within={limit: float((span <= limit).mean()) for limit in WITHIN_SPANS},
        path_median=float(np.median(moved)) if len(moved) else 0.0,
        beyond=float((moved > FAR).mean()) if len(moved) else 0.0,
        one_mcas=float((column(done, "groups") == 1).mean()),
        one_window=float(column(done, "window").mean()),
    )


def buckets(found: Sequence[npt.NDArray[np.int64]]) -> Iterator[Bucket]:
    """The cost of inserts as the table fills."""
    first = means(found[0])
    least = first["bytes_read"] + first["bytes_written"]
    locked = first["locked"] + first["bytes_written"]
    for number, some in enumerate(found):
        mean = means(some)
        usual, late = percentiles(column(some, "round_trips"))
        moved = mean["bytes_read"] + mean["bytes_written"]
        yield Bucket(
            low=round(BUCKET * number, 2),
            high=round(BUCKET * (number + 1), 2),
            inserts=len(some),
            full=int(column(some, "full").sum()),
            round_trips=mean["round_trips"],
            round_trips_p50=usual,
            round_trips_p99=late,
            no_path=float((column(some, "path") == 0).mean()),
            one_mcas=float((column(some, "groups") == 1).mean()),
            bytes_read=mean["bytes_read"],
            bytes_written=mean["bytes_written"],
            messages=mean["messages"],
            bytes_factor=moved / least,
            locked_factor=moved / locked,
            messages_factor=mean["messages"] / first["messages"],
            per_second=1e9 / mean["ns"],
        )


def spans_table(found: Sequence[Spans]) -> Table:
    """Figure 4(c)."""
    numbers = (
        "filled", "inserts", "full", "no path", *(f"<= {w}" for w in WITHIN_SPANS),
        "median", f"> {FAR}", "one MCAS", "at any byte",
    )  # fmt: skip
    title = f"figure 4(c): rows that cuckoo paths span, table of {found[0].rows:,} rows"
    shown = table(title, "locality", *numbers, right=numbers)
    for one in found:
        within = (share_text(one.within[limit]) for limit in WITHIN_SPANS)
        shown.add_row(
            of_locality(one.locality), f"{one.low:.0%} to {FULL:.0%}", f"{one.inserts:,}",
            str(one.full), share_text(one.no_path), *within, f"{one.path_median:,.0f}",
            share_text(one.beyond), share_text(one.one_mcas), share_text(one.one_window),
        )  # fmt: skip
    no_path, near, far = PAPER_SPANS
    shown.add_row(
        "paper", f"to {FULL:.0%}", "-", "-", f"> {no_path:.0%}", f"{near:.0%}",
        f"{far:.0%}", "-", "-", "-", f"{PAPER_ONE_MCAS:.0%}",
    )  # fmt: skip
    shown.caption = (
        "Shares of all inserts, but the median and > 2048: of those with a path. In the paper, "
        "with independent hashing almost all of those span 2K rows or more. One MCAS: the locks "
        "are in one group, of 64 aligned bits; at any byte: in 64 bits from some byte on, as the "
        "paper's."
    )
    return shown


def buckets_table(found: Sequence[Bucket]) -> Table:
    """Figure 7(c) and (d)."""
    numbers = (
        "per s", "full", "RTT", "p50", "p99", "no path", "one MCAS", "read B", "written", "x",
        "x locked", "verbs", "x ",
    )  # fmt: skip
    shown = table("figure 7: inserts as the table fills", "to", *numbers, right=numbers)
    for one in found:
        shown.add_row(
            f"{one.high:.0%}", f"{one.per_second:,.0f}", str(one.full),
            f"{one.round_trips:.2f}", f"{one.round_trips_p50:.0f}", f"{one.round_trips_p99:.0f}",
            share_text(one.no_path), share_text(one.one_mcas), f"{one.bytes_read:,.0f}",
            f"{one.bytes_written:,.0f}", f"{one.bytes_factor:.2f}", f"{one.locked_factor:.2f}",
            f"{one.messages:.1f}", f"{one.messages_factor:.2f}",
        )  # fmt: skip
    moved, messages = PAPER_FACTORS
    shown.add_row(
        "paper", *("-" for _ in range(6)), f"{PAPER_ONE_MCAS:.0%}", "-", "-", "-",
        f"<= {moved:g}", "-", f"<= {messages:g}",
    )  # fmt: skip
    shown.caption = (
        "per s: inserts. RTT: round trips, mean. x: over the bytes, and the verbs, of the first "
        "line, whose inserts read two rows. x locked: over the bytes of an insert that reads all "
        "rows under its locks, as each insert of the paper does. Verbs include the journal's."
    )
    return shown


@dataclasses.dataclass(frozen=True)
class Grain:
    """Inserts that fill a table from 85 % to 95 %, by how many rows a lock has."""

    rows_per_lock: int
    locality: float
    inserts: int
    full: int
    round_trips: float
    round_trips_p50: float
    round_trips_p99: float
    one_mcas: float


def grain(rows: int, rows_per_lock: int, locality: float, seed: int) -> Grain:
    """Round trips of the inserts into a table that is nearly full."""
    with table_of(rows, locality=locality, rows_per_lock=rows_per_lock) as store:
        filling = Filling(store, seed)
        filling.prefill(PREFILL)
        found = filling.fill(FULL)
        store.check()
    trips = column(found, "round_trips")
    usual, late = percentiles(trips)
    full = int(column(found, "full").sum())
    alone = float((column(found, "groups") == 1).mean())
    mean = float(trips.mean())
    return Grain(rows_per_lock, locality, len(found), full, mean, usual, late, alone)


def grains_table(found: Sequence[Grain]) -> Table:
    """Figure 8(b)."""
    columns = tuple(str(each) for each in ROWS_PER_LOCK)
    title = (
        f"figure 8(b): round trips of an insert, from {PREFILL:.0%} to {FULL:.0%} full; columns: "
        "rows per lock"
    )
    shown = table(title, "hashing", "", *columns, right=columns)
    for locality in BOTH:
        row = [one for one in found if one.locality == locality]
        lines = (
            ("median", [f"{one.round_trips_p50:.0f}" for one in row]),
            ("p99", [f"{one.round_trips_p99:.0f}" for one in row]),
            ("mean", [f"{one.round_trips:.2f}" for one in row]),
            ("one MCAS", [share_text(one.one_mcas) for one in row]),
        )
        for number, (name, values) in enumerate(lines):
            shown.add_row("" if number else of_locality(locality), name, *values)
    shown.caption = (
        "One client; of the whole insert. Both search breadth first; the paper compares with "
        "independent hashing that searches depth first, and finds ten times the 99th percentile."
    )
    return shown
