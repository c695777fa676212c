"""The cost of repairable transactions under YCSB's mixes (rTX section 6.2, figures 11-13).

Of each index there are the three designs that the paper compares: as it was ("Optimal"), by
distributed transactions ("DTX") and by repairable ones ("rTX"). The mixes are those of its table 1:

    mix   reads                  writes
    A     50 %                   50 % updates
    B     90 %                   10 % updates; YCSB itself has 5 %
    C     100 %
    D     95 %                   5 % inserts of keys that were not there
    E     95 %, they are scans   likewise; trees only

The key is drawn from Zipf(theta); 0 is uniform. In D the draw counts back from the key that was
inserted last, by whichever client: YCSB's "latest". A scan begins at the key that was drawn, and
has 1 to 100 keys, each number as often.

The shipped code runs in virtual time (limpet/fault/explore/sim_time.py), so equal arguments give
equal figures on any machine. Before anything is counted each client has met the leaves, or
subtables, as the paper has all inner nodes cached, and has claimed blocks, which last for all that
is counted: a claim reads the table of blocks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from rich.table import Table

from limpet.cli.common import table, time_text
from limpet.fault.explore.sim_latency import PRESETS
from limpet.fault.explore.sim_time import TimedReport, Workload, run_timed
from limpet.shm.errors import ParameterError

KEY_SIZE: Final = 12
VALUE_SIZE: Final = 8
"""In bytes; the paper's keys have 8, too, which is less than the simulator's."""
SCAN_MAX: Final = 100
WARM_UP: Final = 50
WARM_UP_WRITES: Final = 25
"""Each client does so many operations before it is counted, of which so many, on average, are
writes, if there are any in the mix: by then it has cut its blocks of memory."""
NODE_SIZE: Final = 128 << 20
BLOCK_SIZE: Final = 128 << 10
"""512 clients can have blocks of their own, each of which has 126 nodes of a tree. If no size is
given, the blocks of such a pool are four times as large."""
SKEWED: Final = 0.99
CURVE: Final = (1, 4, 16, 64, 256)
"""Clients of figure 13, as far as there are so many."""

OPTIMAL, DTX, RTX = "Optimal", "DTX", "rTX"
DESIGNS: Final = (OPTIMAL, DTX, RTX)


@dataclasses.dataclass(frozen=True)
class IndexCosts:
    """An index, and the kinds of stores that are its designs.

    `met_share`: so many of the keys are enough for a client to meet all leaves, or subtables.
    """

    kinds: Mapping[str, str]
    met_share: float
    parameters: Mapping[str, Any]


INDEXES: Final = {
    "tree": IndexCosts(
        {OPTIMAL: "sherman", DTX: "dtx-sherman", RTX: "rtx-sherman"},
        met_share=0.1,
        parameters={"value_size": VALUE_SIZE},
    ),
    "hash": IndexCosts(
        {OPTIMAL: "race-locks", DTX: "dtx-race", RTX: "rtx-race"}, met_share=0.01, parameters={}
    ),
}
MIXES: Final[dict[str, dict[str, Any]]] = {
    "A": {"write_share": 0.5},
    "B": {"write_share": 0.1},
    "C": {"write_share": 0.0},
    "D": {"write_share": 0.05, "fresh": True, "latest": True},
    "E": {"write_share": 0.05, "fresh": True, "scan_max": SCAN_MAX},
}
"""The same mixes in the simulator's parameters."""
OF_FIGURE_13: Final = ("tree", "A")
OF_TREES: Final = "E"


@dataclasses.dataclass(frozen=True)
class Paper:
    """Throughput ratios in the paper's text: rTX over Optimal and over DTX; None: not given."""

    share: float | None = None
    over_dtx: str | None = None


PAPER: Final = {
    ("tree", "A", 0.0): Paper(0.87),
    ("tree", "B", 0.0): Paper(0.90),
    ("tree", "C", 0.0): Paper(0.92, "0.93"),
    ("tree", "D", 0.0): Paper(0.92),
    ("tree", "E", 0.0): Paper(0.92, "0.93"),
    ("tree", "A", SKEWED): Paper(0.58, "1.2-2"),
    ("tree", "B", SKEWED): Paper(0.60, "1.2-2"),
    ("tree", "C", SKEWED): Paper(0.92, "0.93"),
    ("tree", "E", SKEWED): Paper(0.92, "0.93"),
}
"""By index, mix and theta. "92 % [...] under uniform and skewed workload for YCSB C and E,
respectively" is taken for both mixes under both."""
PAPER_LATENCY: Final = {("tree", "A"): "1.6-2"}
"""rTX over Optimal, one client."""


@dataclasses.dataclass(frozen=True)
class Row:
    """The designs of an index beside each other, under one mix.

    By design: `throughput` in operations a virtual second, with all clients at work; `latency_ns`,
    the mean of all operations; `share` and `times`, these over Optimal's.
    """

    index: str
    mix: str
    theta: float
    clients: int
    throughput: dict[str, float]
    latency_ns: dict[str, float]
    share: dict[str, float]
    times: dict[str, float]
    paper: Paper
    paper_latency: str | None
    reports: dict[str, TimedReport]


def cells(
    indexes: tuple[str, ...], mixes: tuple[str, ...], thetas: tuple[float, ...], clients: int
) -> list[tuple[str, str, float, int]]:
    """IndexCosts, mix, theta and number of clients of each row. Raises ParameterError."""
    for what, given, known in (("index", indexes, INDEXES), ("mix", mixes, MIXES)):
        if wrong := set(given) - set(known):
            raise ParameterError(f"there is no {what} {min(wrong)}; there is {', '.join(known)}")
    found = []
    for index in indexes:
        for theta in thetas:
            for mix in mixes:
                counts = {1, clients}
                if (index, mix) == OF_FIGURE_13:
                    counts.update(count for count in CURVE if count < clients)
                if index == "tree" or mix != OF_TREES:
                    found += [(index, mix, theta, count) for count in sorted(counts)]
    if not found:
        raise ParameterError("nothing to run: hash tables have no scans, so no mix E")
    return found


def run(
    indexes: tuple[str, ...],
    mixes: tuple[str, ...],
    thetas: tuple[float, ...],
    clients: int,
    ops: int,
    keys: int,
    profile: str,
    seed: int,
    advance: Callable[[str], None],
) -> Iterator[Row]:
    """Run each design with each mix and skew, by one client and by `clients`, `ops` of each.

    Fewer clients do as many operations in all. `advance` is called after each run. Raises
    ParameterError.
    """
    for index, mix, theta, count in cells(indexes, mixes, thetas, clients):
        reports: dict[str, TimedReport] = {}
        write_share = MIXES[mix]["write_share"]
        warm_up = round(WARM_UP_WRITES / write_share) if write_share else WARM_UP
        for design, kind in INDEXES[index].kinds.items():
            workload = Workload(
                kind, count, ops * clients // count, keys, KEY_SIZE, VALUE_SIZE, warm_up=warm_up,
                theta=theta, scattered=True, met_share=INDEXES[index].met_share, seed=seed,
                node_size=NODE_SIZE, block_size=BLOCK_SIZE, parameters=INDEXES[index].parameters,
                **MIXES[mix],
            )  # fmt: skip
            reports[design] = run_timed(workload, PRESETS[profile])
            advance(f"{kind}, {mix}, theta {theta:g}, {count}")
        yield _row(index, mix, theta, count, reports)


def _row(index: str, mix: str, theta: float, clients: int, reports: dict[str, TimedReport]) -> Row:
    throughput = {design: report.busy_throughput for design, report in reports.items()}
    latency = {design: _latency(report) for design, report in reports.items()}
    return Row(
        index, mix, theta, clients, throughput, latency,
        {design: found / throughput[OPTIMAL] for design, found in throughput.items()},
        {design: found / latency[OPTIMAL] for design, found in latency.items()},
        PAPER.get((index, mix, theta), Paper()),
        PAPER_LATENCY.get((index, mix)) if clients == 1 else None,
        reports,
    )  # fmt: skip


def _latency(report: TimedReport) -> float:
    total = sum(kind.count for kind in report.kinds)
    return sum(kind.count * kind.mean_ns for kind in report.kinds) / total


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """All of it."""
    return [dataclasses.asdict(row) for row in rows]


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Figures 11 and 12, the latency of one client, and figure 13."""
    most = max(row.clients for row in rows)
    yield _throughput([row for row in rows if row.clients == most], most)
    yield _alone([row for row in rows if row.clients == 1])
    curve = [row for row in rows if (row.index, row.mix) == OF_FIGURE_13]
    if curve:
        yield _curve(curve)


def _throughput(rows: Sequence[Row], clients: int) -> Table:
    numbers = ("Optimal, ops/s", "DTX", "rTX", "paper: rTX", "rTX / DTX", "paper")
    shown = table(
        f"figures 11 and 12: throughput of {_clients(clients)}, and shares of Optimal's",
        "index", "keys", "mix", *numbers, right=numbers,
    )  # fmt: skip
    for row in rows:
        paper = row.paper
        shown.add_row(
            row.index, _drawn(row.theta), row.mix, f"{row.throughput[OPTIMAL]:,.0f}",
            f"{row.share[DTX]:.0%}", f"{row.share[RTX]:.0%}",
            "-" if paper.share is None else f"{paper.share:.0%}",
            f"{row.share[RTX] / row.share[DTX]:.2f}", paper.over_dtx or "-",
        )  # fmt: skip
    shown.caption = (
        "Virtual time. Modelled: a memory node is one queue, which serves so many verbs and bytes "
        "a second; atomics on one word wait for each other. Not modelled: that they keep reads "
        "waiting, too, to which the paper puts down its skewed A and B; computing. All clients "
        "are at work: the time counts until the first is done. -: the paper's text has no number."
    )
    return shown


def _alone(rows: Sequence[Row]) -> Table:
    numbers = ("Optimal", "DTX", "rTX", "paper: rTX")
    shown = table(
        "one client: mean latency, and over Optimal's",
        "index", "keys", "mix", *numbers, right=numbers,
    )  # fmt: skip
    for row in rows:
        shown.add_row(
            row.index, _drawn(row.theta), row.mix, time_text(row.latency_ns[OPTIMAL]),
            f"{row.times[DTX]:.2f}", f"{row.times[RTX]:.2f}", row.paper_latency or "-",
        )  # fmt: skip
    return shown


def _curve(rows: Sequence[Row]) -> Table:
    numbers = ("clients", *(f"{design}{unit}" for design in DESIGNS for unit in (", ops/s", "")))
    shown = table(
        "figure 13: trees, mix A, throughput and mean latency", "keys", *numbers, right=numbers
    )
    for row in rows:
        shown.add_row(
            _drawn(row.theta), str(row.clients),
            *(
                text
                for design in DESIGNS
                for text in (f"{row.throughput[design]:,.0f}", time_text(row.latency_ns[design]))
            ),
        )  # fmt: skip
    return shown


def _drawn(theta: float) -> str:
    return f"Zipf {theta:g}" if theta else "uniform"


def _clients(count: int) -> str:
    return "one client" if count == 1 else f"{count} clients"
