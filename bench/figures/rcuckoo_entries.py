"""Figures 1 and 4 to 8 of the RCuckoo paper as entries.

The paper has one memory node, 100 million entries of 32-bit keys and values in the rows, filled to
90 %, Zipf(0.99), and up to 320 clients; locks are in the NIC's memory. Here keys have 12 bytes and
values 8, which are in the rows too, and there are 100,000 keys; locks are in main memory. `fusee`
has one replica on one node, as in the paper, and `clover` its cache.

Counts of figures 4, 5, 7c, 7d and 8b are those of cuckoo.py.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy.typing as npt

from limpet.bench.figures import cuckoo, kills
from limpet.bench.figures.cuckoo_tables import BOTH, INDEPENDENT, PREFILL, of_locality
from limpet.bench.figures.entries import Entry, Point, Run, Scale, Value
from limpet.bench.figures.virtual import LOWER, SAME, load, over, said
from limpet.bench.peers.ycsb import READ_SHARE
from limpet.fault.explore.sim_latency import PRESETS
from limpet.fault.explore.sim_time import TimedReport, Workload, run_timed
from limpet.stores.rcuckoo.parameters import FILL_PERCENT, LOCALITY

CLIENTS: Final = 320
KEYS: Final = 100_000
OPS: Final = 6400
KEY_SIZE: Final = 12
VALUE_SIZE: Final = 8
ROWS: Final = 100_000
SMALL_ROWS: Final = 10_000
QUICK_ROWS: Final = 400
STORES: Final[Mapping[str, Mapping[str, Any]]] = {
    "rcuckoo": {"key_size": 15},
    "fusee": {"replicas": 1},
    "clover": {},
    "sherman": {},
}


def _timed(store: str, clients: int, scale: Scale, **more: Any) -> TimedReport:
    """A run of the paper's workload, but for what `more` says."""
    keys, ops = KEYS, max(10, min(400, OPS // clients))
    if scale.quick:
        keys, ops = 300, max(10, 100 // clients)
    own = {**STORES[store], **({"capacity": 2 * keys} if store == "fusee" else {})}
    parameters = {**own, **more.pop("parameters", {})}
    workload = Workload(
        store, clients, parameters=parameters,
        **{
            "ops": ops, "keys": keys, "key_size": KEY_SIZE, "value_size": VALUE_SIZE, "nodes": 1,
            "warm_up": ops // 2, "met_drawn": True, "scattered": True, "seed": scale.seed,
            "node_size": 256 << 20, **more,
        },
    )  # fmt: skip
    return run_timed(workload, PRESETS["rdma"])


def _clients(scale: Scale) -> int:
    return 24 if scale.quick else CLIENTS


def _mops(report: TimedReport) -> float:
    return report.busy_throughput / 1e6


def _read_latency(scale: Scale) -> Run:
    """Of one client: a read of 1 KiB, and two of 8 bytes one after the other."""
    small, large = (
        run_timed(
            Workload("raw", 1, 50, 50, value_size=size, write_share=0.0, nodes=1, warm_up=50),
            PRESETS["rdma"],
        )
        for size in (8, 1024)
    )
    mean_us = small.kinds[0].mean_ns / 1e3
    return Run(
        said(small),
        [
            Point("a: latency, us", "1 KiB", large.kinds[0].mean_ns / 1e3),
            Point("a: latency, us", "8 bytes, then 8 bytes", 2 * mean_us),
            Point("a: latency, us", "8 bytes", mean_us),
        ],
    )


def _distances(scale: Scale) -> Run:
    rows = QUICK_ROWS if scale.quick else ROWS
    points = []
    for one in cuckoo.distances(rows, rows, scale.seed):
        name = of_locality(one.locality)
        paper = 0.68 if one.locality == LOCALITY else None
        points += [
            Point("within five rows, share", name, one.counted[5], paper),
            Point("the same, by the formula as printed", name, one.printed[5]),
            Point("both rows are one, by the formula", name, one.same),
        ]
    return Run({"rows": rows, "keys": rows}, points)


def _fills(scale: Scale) -> Run:
    rows, tables = (QUICK_ROWS, 2) if scale.quick else (SMALL_ROWS, 10)
    points = [
        Point(
            "fill when the first insert fails", of_locality(one.locality), one.mean,
            (0.95, 1.0) if one.locality == LOCALITY else None,
        )
        for one in cuckoo.fills(rows, tables, scale.seed)
    ]  # fmt: skip
    return Run({"rows": rows, "tables": tables}, points)


@functools.cache
def _filled(rows: int, locality: float, seed: int) -> list[npt.NDArray[Any]]:
    """The cost of each insert as a table fills; for figures 4(c), 7(c) and 7(d)."""
    return cuckoo.fill_up(rows, locality, seed)


def _rows(scale: Scale) -> int:
    return 10 * QUICK_ROWS if scale.quick else ROWS


def _spans(scale: Scale) -> Run:
    points: list[Point] = []
    for locality in BOTH:
        found = _filled(_rows(scale), locality, scale.seed)
        for low, until in ((0.0, "from an empty table"), (PREFILL, "from 85 % full")):
            one = cuckoo.spans(_rows(scale), locality, found, low)
            group = f"{of_locality(locality)}, {until}"
            papers: Sequence[Value] = (None, None, None, (0.9, 1.0))
            if locality == LOCALITY:
                papers = ((0.5, 0.6), (0.95, 1.0), (0.98, 1.0), None)
            values = {
                "no path": one.no_path, "32 rows or fewer": one.within[32],
                "256 rows or fewer": one.within[256], "over 2,048, of paths": one.beyond,
            }  # fmt: skip
            points += (
                Point(name, group, value, paper)
                for (name, value), paper in zip(values.items(), papers, strict=True)
            )
            paper = 0.99 if locality == LOCALITY else None
            points.append(Point("locks by one MCAS", group, one.one_mcas, paper))
            points.append(Point("the same, at any byte", group, one.one_window, paper))
    return Run({"rows": _rows(scale)}, points)


def _contended(scale: Scale) -> Run:
    """By rows of each lock and locks of each message."""
    points = []
    grid = list(itertools.product((1, 4, 16, 64, 512), (1, 8, 64)))
    for rows, locks in ((1, 1), (16, 64), (512, 64)) if scale.quick else grid:
        one = cuckoo.contended(rows, locks, scale.seed)
        name = f"{rows} rows a lock, {locks} locks a message"
        points.append(Point("round trips, 99th percentile", name, one.round_trips_p99))
        points.append(Point("round trips, mean", name, one.round_trips))
    return Run({"clients": cuckoo.CLIENTS, "rows": cuckoo.SMALL_ROWS}, points)


def _ycsb(scale: Scale) -> Run:
    """Throughput of all stores; with the most clients, over `rcuckoo`'s."""
    points = []
    most = _clients(scale)
    papers: Mapping[str, Mapping[str, Value]] = {
        "C": {"fusee": LOWER, "clover": LOWER, "sherman": LOWER},
        "B": {"fusee": LOWER, "clover": LOWER, "sherman": 1 / 2.5},
        "A": {"fusee": (0.8, 1.05), "clover": 1 / 7.1, "sherman": LOWER},
    }
    for mix in "CA" if scale.quick else "CBA":
        for clients in (most,) if scale.quick else (20, 160, most):
            reports = {
                store: _timed(store, clients, scale, write_share=1 - READ_SHARE[mix])
                for store in STORES
                if store != "clover" or clients == most  # it is not compiled, so a minute a run
            }
            values = {store: _mops(report) for store, report in reports.items()}
            if clients == most:
                points += over(f"{mix}, {clients} clients, over rcuckoo's", values, papers[mix])
                for store, report in reports.items():
                    points += load(report, f"{mix}, {store}")
            points += (
                Point(f"{mix}, {clients} clients, Mops", store, value)
                for store, value in values.items()
            )
    return Run(said(reports["rcuckoo"]), points)


def _inserts(scale: Scale) -> Run:
    """Inserts into an empty table, and into one that is 85 % full."""
    capacity = 20_000 if scale.quick else KEYS
    entries = capacity * 100 // FILL_PERCENT

    def filled(share: float, clients: int, inserts: float, store: str = "rcuckoo") -> TimedReport:
        more = {"capacity": capacity} if store == "rcuckoo" else {}
        return _timed(
            store, clients, scale, keys=max(1, int(share * entries)), ops=10, warm_up=5,
            fresh=True, write_share=inserts, parameters=more,
        )  # fmt: skip

    points = []
    for name, inserts, paper in (("inserts only", 1.0, 4.5 / 11.5), ("half inserts", 0.5, LOWER)):
        reports = {
            fill: filled(share, _clients(scale), inserts)
            for fill, share in (("empty", 0.0), ("85 % full", PREFILL))
        }
        papers: dict[str, Value] = {"85 % full": paper}
        if inserts == 1:
            reports["fusee"] = filled(0.0, _clients(scale), inserts, "fusee")
            papers["fusee"] = 9.1 / 11.5
        values = {fill: _mops(report) for fill, report in reports.items()}
        points += over(f"b: {name}, over an empty table", values, papers)
        points += (Point(f"b: {name}, Mops", fill, value) for fill, value in values.items())
        for fill, report in reports.items():
            points += load(report, f"{name}, {fill}")
    alone = {
        fill: filled(share, 1, 1.0).kinds[0].mean_ns
        for fill, share in (("empty", 0.0), ("85 % full", PREFILL))
    }
    points += over("a: one client's insert, over an empty table", alone, {"85 % full": 2.0})
    first, *_, last = cuckoo.buckets(_filled(_rows(scale), LOCALITY, scale.seed))
    points += [
        Point("c: bytes, over an empty table", "90 to 95 % full", last.bytes_factor, (1.0, 2.0)),
        Point("c: the same, if all rows under the locks are read at first, too", "90 to 95 % full",
              last.locked_factor),
        Point("d: messages, over an empty table", "90 to 95 % full", last.messages_factor,
              (1.0, 1.5)),
        Point("round trips, median", "0 to 5 % full", first.round_trips_p50, 2.0),
        Point("round trips, median", "90 to 95 % full", last.round_trips_p50, 2.0),
        Point("round trips, mean", "0 to 5 % full", first.round_trips),
        Point("round trips, mean", "90 to 95 % full", last.round_trips),
    ]  # fmt: skip
    return Run({"entries": entries, "clients": _clients(scale)}, points)


def _failures(scale: Scale) -> Run:
    """Throughput while clients are cut off in an update."""
    base = kills.Setting("rcuckoo", 2, 0.0, 0.3 if scale.quick else 3.0, emulate=True)
    rates = (0, 200) if scale.quick else (0, 50, 200, 500)
    found = {
        f"{rate} a second": kills.run(dataclasses.replace(base, rate=float(rate))) for rate in rates
    }
    values = {name: one.operations_per_s for name, one in found.items()}
    points = over("throughput, over that without", values, {})
    points += (
        Point("repair, median, us", name, one.took_p50 / 1e3)
        for name, one in found.items()
        if one.took_p50 is not None
    )
    return Run({"processes": base.processes, "seconds": base.seconds}, points)


def _grains(scale: Scale) -> Run:
    """Round trips of inserts into a table from 85 to 95 % full, by rows of each lock."""
    points = []
    rows = 4 * QUICK_ROWS if scale.quick else SMALL_ROWS
    for each in (16,) if scale.quick else (1, 4, 16, 64, 256):
        far = {}
        for locality in BOTH:
            one = cuckoo.grain(rows, each, locality, scale.seed)
            name = of_locality(locality)
            points += [
                Point(f"median, {each} rows a lock", name, one.round_trips_p50),
                Point(f"99th percentile, {each} rows a lock", name, one.round_trips_p99),
            ]
            far[name] = one.round_trips_p99
        paper = {of_locality(INDEPENDENT): 10.0}
        points += over(f"99th percentile, {each} rows a lock, over", far, paper)
    return Run({"rows": rows, "clients": 1}, points)


def _sizes(scale: Scale) -> Run:
    """Entries of several sizes: half inserts, and reads."""
    clients = _clients(scale) if scale.quick else 120
    points = []
    for name, mix in (
        ("half inserts", {"write_share": 0.5, "fresh": True}),
        ("reads", {"write_share": 0.0}),
    ):
        reports = {
            f"{size} bytes": _timed("rcuckoo", clients, scale, value_size=size, **mix)
            for size in ((8, 64) if scale.quick else (8, 16, 32, 64))
        }
        values = {size: _mops(report) for size, report in reports.items()}
        paper = LOWER if "fresh" in mix else SAME
        points += over(f"{name}, over 8 bytes'", values, {"64 bytes": paper})
        for size, report in reports.items():
            points += load(report, f"{name}, {size}")
    return Run(said(report), points)


def _extents(scale: Scale) -> Run:
    """Values of 16 bytes in the rows, over those in extents."""
    clients = _clients(scale) if scale.quick else 120
    points = []
    for mix, paper in (("C", 1.04), ("B", 1.21), ("A", 1.37)):
        reports = {
            name: _timed(
                "rcuckoo", clients, scale, value_size=16, write_share=1 - READ_SHARE[mix],
                parameters={"value_size": inside},
            )
            for name, inside in (("in extents", VALUE_SIZE), ("in rows", 16))
        }  # fmt: skip
        values = {name: _mops(report) for name, report in reports.items()}
        points += over(f"{mix}, over that of extents", values, {"in rows": paper})
        for name, report in reports.items():
            points += load(report, f"{mix}, {name}")
    return Run(said(report), points)


def _entries() -> Iterator[Entry]:
    fewer = "There are fewer keys (the parameters), so the hottest have more of the operations."
    yield Entry(
        "1", "latency of reads by their size", "us",
        "section 2.2: one read of 1 KiB takes less time than two of a few bytes, one after the "
        "other. The curves have no other numbers.",
        _read_latency, (("1 KiB", "8 bytes, then 8 bytes"), ("8 bytes", "1 KiB")),
        reason="1b and 1c are parameters of the model: packets a second, and atomics on one word. "
        "It has no memory on the NIC, where locks are three times as fast.",
    )  # fmt: skip
    yield Entry(
        "4a", "distance of a key's rows", "shares of keys", "section 3.3: 68 % at f = 2.3.",
        _distances, reason="distances are odd here, so no key has one row only.",
    )  # fmt: skip
    yield Entry(
        "4b", "fill when the first insert fails", "share of the entries",
        "section 3.3: more than 95 % at f = 2.3; it grows with f.",
        _fills,
        (("f = 1.9", "f = 2.1"), ("f = 2.1", "f = 2.3"), ("f = 2.3", "f = 2.5"),
         ("f = 2.5", "f = 2.7")),
    )  # fmt: skip
    yield Entry(
        "4c", "rows that cuckoo paths span", "shares of inserts",
        "section 3.3, filling to 95 %: more than half need no path, 95 % span 32 rows or fewer, "
        "99 % 256; 99 % lock by one MCAS. With independent hashing almost all paths span 2,048.",
        _spans,
        reason="both of a key's rows are roots of the search, and an empty entry in the second one "
        "is taken before any path: of all inserts, fewer need one. A group of locks is 64 aligned "
        "bits; the paper's may begin at any byte.",
    )  # fmt: skip
    yield Entry(
        "5", "round trips of an insert by rows a lock and locks a message", "round trips",
        "section 3.4.1: worst with one lock, and with one row a lock and one lock a message; best "
        "with 2 to 16 rows a lock. The picture's numbers are not in the text.",
        _contended,
        (("16 rows a lock, 64 locks a message", "512 rows a lock, 64 locks a message"),
         ("16 rows a lock, 64 locks a message", "1 rows a lock, 1 locks a message")),
        reason="of the whole insert; the paper's are those that take its locks, and spin. Here a "
        "client that is refused a lock pauses, so of eight that want the same one none has many "
        "round trips; but most have more of them, so by the mean it is worse, as in the paper.",
    )  # fmt: skip
    yield Entry(
        "6", "throughput under YCSB", "over rcuckoo's; Mops",
        "section 5.3 and abstract: `rcuckoo` is first everywhere, up to 2.5 times under B and 7.1 "
        "under A; there Clover is last, and FUSEE is beside `rcuckoo`. The curves have no numbers.",
        _ycsb,
        reason="bytes, with which the node is busy under C: a get of `rcuckoo` reads two rows, 483 "
        "bytes (the paper's rows about 146); one of `fusee` 64 in one round trip, as its cache "
        "knows the slot; the paper's takes two. Under A, clients wait for locks of hot rows, which "
        "are not in the NIC's memory; an UPDATE of `fusee` that loses to another is done. Clover's "
        f"clients do not wait for its server. {fewer}",
    )  # fmt: skip
    yield Entry(
        "7", "inserts as the table fills", "over an empty table; Mops",
        "section 5.3: 11.5 Mops of inserts only, at 90 % 4.5, FUSEE 9.1; one client's takes twice "
        "as long; 2 times the bytes and 1.5 times the messages, at most.",
        _inserts,
        reason="an insert into an empty table reads its key's two rows; the paper's reads all rows "
        "under its locks from the start. The node is busy all the time: with the journal's stores, "
        "which come with each insert, its messages are more than those of `fusee`.",
    )  # fmt: skip
    yield Entry(
        "8a", "throughput under YCSB A while clients are cut off in an operation", "over none",
        "section 5.4: high until about 500 a second. The curve has no numbers.",
        _failures, clock="machine",
        reason="processes share this machine's cores, and with others if they are at work: "
        "docs/rcuckoo.md has figures of an idle one.",
    )  # fmt: skip
    yield Entry(
        "8b", "round trips of inserts from 85 % to 95 % full", "round trips",
        "section 5.5: the 99th percentile is ten times lower with dependent hashing.",
        _grains,
        reason="both search breadth first, in a cache of a quarter of the rows (`CACHED`); the "
        "paper's independent hashing searches depth first.",
    )  # fmt: skip
    yield Entry(
        "8c", "throughput by the size of entries", "over 8 bytes'",
        "section 5.5: inserts are limited by bandwidth; reads are hardly affected.", _sizes,
        reason="a get reads two whole rows, whose bytes limit the node.",
    )  # fmt: skip
    yield Entry(
        "8d", "values in rows, over extents", "over extents'",
        "sections 2.2 and 5.5: 4 % more under C, 21 % under B, 37 % under A.", _extents,
    )  # fmt: skip


ENTRIES: Final = tuple(_entries())
