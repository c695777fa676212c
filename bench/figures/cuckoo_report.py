"""`limpet bench cuckoo`: the runs that its figures take, and tables beside the paper's numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from rich.table import Table

from limpet.bench.figures import cuckoo
from limpet.bench.figures.cuckoo import FULL, INDEPENDENT, PREFILL
from limpet.cli.common import table, time_text
from limpet.stores.rcuckoo.parameters import LOCALITY

BOTH: Final = (LOCALITY, INDEPENDENT)
NEAR_FULL: Final = 0.9
Advance = Callable[[str], None]


@dataclasses.dataclass
class Found:
    """The figures that were asked for; the others are empty."""

    distances: list[cuckoo.Distances] = dataclasses.field(default_factory=list)
    fills: list[cuckoo.Fill] = dataclasses.field(default_factory=list)
    spans: list[cuckoo.Spans] = dataclasses.field(default_factory=list)
    buckets: list[cuckoo.Bucket] = dataclasses.field(default_factory=list)
    contended: list[cuckoo.Contended] = dataclasses.field(default_factory=list)
    grains: list[cuckoo.Grain] = dataclasses.field(default_factory=list)


def steps(figures: Sequence[str], tables: int) -> int:
    """How often `run` will say that it gets on."""
    grid = len(cuckoo.ROWS_PER_LOCK)
    each = {
        "4a": 1, "4b": len(cuckoo.LOCALITIES) + 1, "5": grid * len(cuckoo.LOCKS_PER_MESSAGE),
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
        found.distances += cuckoo.distances(rows, rows, seed)
        advance("4a")
    if "4b" in figures:
        for fill in cuckoo.fills(small_rows, tables, seed):
            found.fills.append(fill)
            advance("4b")
    for locality in BOTH[: _fillings(figures)]:
        _fill_up(found, figures, rows, locality, seed)
        advance("4c, 7")
    if "5" in figures:
        for locks in cuckoo.LOCKS_PER_MESSAGE:
            for each in cuckoo.ROWS_PER_LOCK:
                found.contended.append(cuckoo.contended(each, locks, seed))
                advance("5")
    if "8b" in figures:
        for locality in BOTH:
            for each in cuckoo.ROWS_PER_LOCK:
                found.grains.append(cuckoo.grain(small_rows, each, locality, seed))
                advance("8b")
    return found


def _fill_up(found: Found, figures: Sequence[str], rows: int, locality: float, seed: int) -> None:
    inserts = cuckoo.fill_up(rows, locality, seed)
    if "4c" in figures:
        found.spans += [
            cuckoo.spans(rows, locality, inserts, low) for low in (0.0, PREFILL, NEAR_FULL)
        ]
    if "7" in figures and locality == LOCALITY:
        found.buckets += cuckoo.buckets(inserts)


def as_json(found: Found) -> dict[str, Any]:
    """All of it."""
    return dataclasses.asdict(found)


# ---- tables -------------------------------------------------------------------------------------


def tables(found: Found) -> Iterator[Table]:
    """A table for each figure that there is."""
    if found.distances:
        yield distances_table(found.distances)
    if found.fills:
        yield fills_table(found.fills)
    if found.spans:
        yield spans_table(found.spans)
    if found.buckets:
        yield buckets_table(found.buckets)
    if found.contended:
        yield contended_table(found.contended)
    if found.grains:
        yield grains_table(found.grains)


def _of(locality: float) -> str:
    return "independent" if locality == INDEPENDENT else f"f = {locality:g}"


def _share(share: float) -> str:
    """A percentage; its decimals are kept where they count."""
    return f"{share:.2%}" if 0 < 1 - share < 0.005 or 0 < share < 0.005 else f"{share:.1%}"


def distances_table(found: Sequence[cuckoo.Distances]) -> Table:
    """Figure 4(a)."""
    numbers = (*(f"<= {within}" for within in cuckoo.WITHIN), "same row")
    title = f"figure 4(a): rows between a key's two rows, {found[0].keys:,} keys"
    shown = table(title, "locality", "", *numbers, right=numbers)
    for one in found:
        counted = [_share(one.counted[within]) for within in cuckoo.WITHIN]
        printed = [_share(one.printed[within]) for within in cuckoo.WITHIN]
        shown.add_row(_of(one.locality), "ours, odd distances", *counted, "0.0%")
        shown.add_row("", "formula as printed", *printed, _share(one.same))
        if one.locality == LOCALITY:
            reported = [
                f"{cuckoo.PAPER_WITHIN:.0%}" if within == 5 else "-" for within in cuckoo.WITHIN
            ]
            shown.add_row("", "paper, reported", *reported, "-")
    shown.caption = (
        "Ours are odd: the formula, | 1. So they are within 5 rows as often as by the formula as "
        "it is printed, and never the same row. The paper reports 68 % at f = 2.3."
    )
    return shown


def fills_table(found: Sequence[cuckoo.Fill]) -> Table:
    """Figure 4(b)."""
    numbers = ("mean", "least", "most", "paper")
    title = (
        f"figure 4(b): fill when the first insert fails, {found[0].tables} tables of "
        f"{found[0].rows:,} rows"
    )
    shown = table(title, "locality", *numbers, right=numbers)
    for one in found:
        paper = f"> {cuckoo.PAPER_FILL:.0%}" if one.locality == LOCALITY else "-"
        shares = (_share(share) for share in (one.mean, one.least, one.most))
        shown.add_row(_of(one.locality), *shares, paper)
    return shown


def spans_table(found: Sequence[cuckoo.Spans]) -> Table:
    """Figure 4(c)."""
    numbers = (
        "filled", "inserts", "full", "no path", *(f"<= {w}" for w in cuckoo.WITHIN_SPANS),
        "median", f"> {cuckoo.FAR}", "one MCAS", "at any byte",
    )  # fmt: skip
    title = f"figure 4(c): rows that cuckoo paths span, table of {found[0].rows:,} rows"
    shown = table(title, "locality", *numbers, right=numbers)
    for one in found:
        within = (_share(one.within[limit]) for limit in cuckoo.WITHIN_SPANS)
        shown.add_row(
            _of(one.locality), f"{one.low:.0%} to {FULL:.0%}", f"{one.inserts:,}", str(one.full),
            _share(one.no_path), *within, f"{one.path_median:,.0f}", _share(one.beyond),
            _share(one.one_mcas), _share(one.one_window),
        )  # fmt: skip
    no_path, near, far = cuckoo.PAPER_SPANS
    shown.add_row(
        "paper", f"to {FULL:.0%}", "-", "-", f"> {no_path:.0%}", f"{near:.0%}",
        f"{far:.0%}", "-", "-", "-", f"{cuckoo.PAPER_ONE_MCAS:.0%}",
    )  # fmt: skip
    shown.caption = (
        "Shares of all inserts, but the median and > 2048: of those with a path. In the paper, "
        "with independent hashing almost all of those span 2K rows or more. One MCAS: the locks "
        "are in one group, of 64 aligned bits; at any byte: in 64 bits from some byte on, as the "
        "paper's."
    )
    return shown


def buckets_table(found: Sequence[cuckoo.Bucket]) -> Table:
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
            _share(one.no_path), _share(one.one_mcas), f"{one.bytes_read:,.0f}",
            f"{one.bytes_written:,.0f}", f"{one.bytes_factor:.2f}", f"{one.locked_factor:.2f}",
            f"{one.messages:.1f}", f"{one.messages_factor:.2f}",
        )  # fmt: skip
    moved, messages = cuckoo.PAPER_FACTORS
    shown.add_row(
        "paper", *("-" for _ in range(6)), f"{cuckoo.PAPER_ONE_MCAS:.0%}", "-", "-", "-",
        f"<= {moved:g}", "-", f"<= {messages:g}",
    )  # fmt: skip
    shown.caption = (
        "per s: inserts. RTT: round trips, mean. x: over the bytes, and the verbs, of the first "
        "line, whose inserts read two rows. x locked: over the bytes of an insert that reads all "
        "rows under its locks, as each insert of the paper does. Verbs include the journal's."
    )
    return shown


def contended_table(found: Sequence[cuckoo.Contended]) -> Table:
    """Figure 5."""
    columns = tuple(str(each) for each in cuckoo.ROWS_PER_LOCK)
    title = (
        f"figure 5: round trips of an insert, 99th percentile, {cuckoo.CLIENTS} clients fill "
        f"{cuckoo.SMALL_ROWS} rows to {FULL:.0%}; by locks per "
        "message and rows per lock"
    )
    shown = table(title, "locks", *columns, "full", right=columns)
    for locks in cuckoo.LOCKS_PER_MESSAGE:
        row = [one for one in found if one.locks_per_message == locks]
        shown.add_row(
            str(locks), *(f"{one.round_trips_p99:.0f}" for one in row),
            str(sum(one.full for one in row)),
        )  # fmt: skip
    last = [one for one in found if one.locks_per_message == cuckoo.LOCKS_PER_MESSAGE[-1]]
    shown.add_row("64: mean", *(f"{one.round_trips:.2f}" for one in last), "")
    shown.add_row("64: p99 time", *(time_text(one.p99_ns) for one in last), "")
    shown.caption = "Of the whole insert, in virtual time; the paper's: to take its locks."
    return shown


def grains_table(found: Sequence[cuckoo.Grain]) -> Table:
    """Figure 8(b)."""
    columns = tuple(str(each) for each in cuckoo.ROWS_PER_LOCK)
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
            ("one MCAS", [_share(one.one_mcas) for one in row]),
        )
        for number, (name, values) in enumerate(lines):
            shown.add_row("" if number else _of(locality), name, *values)
    shown.caption = (
        "One client; of the whole insert. Both search breadth first; the paper compares with "
        "independent hashing that searches depth first, and finds ten times the 99th percentile."
    )
    return shown
