"""Figures 11 to 18 and table 2 of the rTX paper as entries.

Designs are those of overhead.py; steps those of factors.py; leases are expiry.py's, timelines
timeline.py's. The paper has 120 clients at most, 100 million keys and one memory node.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, Final

from limpet.bench.figures import expiry, timeline
from limpet.bench.figures.entries import Entry, Point, Run, Scale, Value
from limpet.bench.figures.factors import DTX as DTX_STEP
from limpet.bench.figures.factors import STEPS, inserts
from limpet.bench.figures.overhead import (
    DTX,
    INDEXES,
    MIXES,
    OPTIMAL,
    RTX,
    SKEWED,
    designs,
    latency_ns,
)
from limpet.fault.explore.sim_latency import PRESETS
from limpet.fault.explore.sim_time import Workload, run_timed
from limpet.stores.transactions.layout import DRIFT_US, EACH_US

CLIENTS: Final = 120
"""Five nodes of 24 threads."""
OPS: Final = 3000
KEYS: Final = 20_000
DRAWN: Final = {"uniform": 0.0, "skewed": SKEWED}
SHARES: Final[dict[tuple[str, str], tuple[Value, Value]]] = {
    ("uniform", "A"): (None, 0.87),
    ("uniform", "B"): (None, 0.90),
    ("uniform", "C"): (0.92 / 0.93, 0.92),
    ("uniform", "D"): (None, 0.92),
    ("uniform", "E"): (0.92 / 0.93, 0.92),
    ("skewed", "A"): ((0.58 / 2, 0.58 / 1.2), 0.58),
    ("skewed", "B"): ((0.60 / 2, 0.60 / 1.2), 0.60),
    ("skewed", "C"): (0.92 / 0.93, 0.92),
    ("skewed", "E"): (0.92 / 0.93, 0.92),
}
"""Throughput of DTX and rTX over Optimal's: section 6.2."""


def _size(scale: Scale, clients: int) -> dict[str, int]:
    """Clients, operations of each and keys."""
    if scale.quick:
        return {"clients": min(clients, 8), "ops": 12, "keys": 300}
    return {"clients": clients, "ops": max(10, OPS // clients), "keys": KEYS}


def _throughput(index: str, scale: Scale) -> Run:
    size = _size(scale, CLIENTS)
    points = []
    for drawn, theta in DRAWN.items():
        for mix in "AC" if scale.quick else MIXES if index == "tree" else "ABCD":
            reports = designs(index, mix, theta, **size, seed=scale.seed)
            base = reports[OPTIMAL].busy_throughput
            paper = SHARES.get((drawn, mix), (None, None)) if index == "tree" else (None, None)
            for design, value in zip((OPTIMAL, DTX, RTX), (1.0, *paper), strict=True):
                share = reports[design].busy_throughput / base
                points.append(Point(f"{drawn} {mix}", design, share, value))
    return Run({**size, "stores": ", ".join(INDEXES[index].kinds.values())}, points)


def _latency(scale: Scale) -> Run:
    points = []
    counts = (1, 8) if scale.quick else (1, 64, 256)
    for drawn, theta in DRAWN.items():
        for count in counts:
            reports = designs("tree", "A", theta, **_size(scale, count), seed=scale.seed)
            base = latency_ns(reports[OPTIMAL])
            papers: tuple[Value, ...] = (1.0, None, (1.6, 2.0) if count == 1 else None)
            for design, value in zip((OPTIMAL, DTX, RTX), papers, strict=True):
                group = f"{drawn}, {count} clients"
                points.append(Point(group, design, latency_ns(reports[design]) / base, value))
    return Run({"operations": OPS, "keys": _size(scale, 1)["keys"]}, points)


def _killed(moment: str, stores: tuple[str, ...], papers: tuple[Value, ...], scale: Scale) -> Run:
    setting = timeline.Setting(stores[0], moment, seconds=0.3 if scale.quick else 2.0)
    points = []
    for store, paper in zip(stores, papers, strict=True):
        found = timeline.run(dataclasses.replace(setting, store=store))
        points.append(Point("blocked survivors, of 2", store, float(found.blocked), paper))
        if moment == timeline.INSERT and store == "rtx-sherman":
            points.append(Point("after over before", store, found.after / found.before, 4.2 / 6.5))
    return Run({"clients": setting.clients, "seconds": setting.seconds}, points)


def _rehash(scale: Scale) -> Run:
    """The longest of a client's inserts, in which it splits a subtable."""
    keys = 400 if scale.quick else 4000
    longest = {}
    for design, kind in INDEXES["hash"].kinds.items():
        workload = Workload(
            kind, 1, keys // 4, keys, theta=0, write_share=1, fresh=True, scattered=True,
            seed=scale.seed, parameters={"groups": 16 if scale.quick else 256},
        )  # fmt: skip
        longest[design] = run_timed(workload, PRESETS["rdma"]).kinds[0].max_ns
    return Run(
        {"keys": keys},
        [
            Point("rehash", RTX, 1.0, 1.0),
            Point("rehash", OPTIMAL, longest[OPTIMAL] / longest[RTX], 1300 / 200),
            Point("rehash", DTX, longest[DTX] / longest[RTX]),
        ],
    )


def _steps(clients: int, scale: Scale) -> Run:
    """Of figure 16 with many clients, of figure 17 with one: over the step before."""
    size = _size(scale, clients)
    points = []
    before = 0.0
    for step in STEPS:
        result, throughput = inserts(step, **size, seed=scale.seed)
        value = throughput if clients > 1 else result.mean_ns
        paper = step.throughput if clients > 1 else step.latency
        if before:
            points.append(Point(step.name, "before", 1.0, 1.0))
            points.append(Point(step.name, "after", value / before, paper))
        before = value
    return Run(size, points)


def _table_2(scale: Scale) -> Run:
    papers = {OPTIMAL: (1024, 1032, 1), DTX: (1040, 2056, 1), RTX: (1040, 1032, 3)}
    steps = {OPTIMAL: STEPS[0], DTX: DTX_STEP, RTX: STEPS[-1]}
    points = []
    for design, step in steps.items():
        result, _ = inserts(step, 1, 12, 200, scale.seed)
        found = (result.bytes_read, result.bytes_written, result.cas)
        for group, ours, paper in zip(("READ", "WRITE", "CAS"), found, papers[design], strict=True):
            points.append(Point(group, design, ours, float(paper)))
    return Run({"clients": 1, "ops": 12, "keys": 200}, points)


def _drifts(scale: Scale) -> Run:
    points = []
    clients, transactions = (12, 20) if scale.quick else (72, 50)
    for objects in (10, 100):
        for drift, paper in ((0, None), (5, (0.0, 0.01)), (8, 0.0), (16, 0.0)):
            one = expiry.Setting(
                1000 * drift, objects=objects, clients=clients, transactions=transactions,
                seed=scale.seed,
            )  # fmt: skip
            value = paper if objects == 100 else None
            found = expiry.run_setting(one)
            points.append(Point(f"{objects} objects", f"{drift} ms", found.rate, value))
            if objects == 100:
                blocked_ns = expiry.run_setting(expiry.died(one)).blocked_ns or 0.0
                name = "blocked by a dead client's lock, ms"
                points.append(Point(name, f"{drift} ms", blocked_ns / 1e6))
    return Run(_conditions(one), points)


def _locks(scale: Scale) -> Run:
    points = []
    objects, clients, transactions = (400, 4, 3) if scale.quick else (2000, 16, 10)
    for locks, papers in ((20, (0.001, 0.0)), (80, (0.475, 0.004))):
        for each, name, paper in zip((0, EACH_US), ("fixed", "growing"), papers, strict=True):
            one = expiry.Setting(
                DRIFT_US, each, locks, objects, clients, transactions, seed=scale.seed
            )
            points.append(Point(f"{locks} objects", name, expiry.run_setting(one).rate, paper))
    return Run(_conditions(one), points)


def _conditions(setting: expiry.Setting) -> dict[str, Any]:
    return {
        "clients": setting.clients, "transactions of each": setting.transactions,
        "clocks differ by (us, standard deviation)": setting.skew_us,
        "share of verbs that are late": setting.late, "by (us, mean)": setting.late_us,
    }  # fmt: skip


def _entries() -> Iterator[Entry]:
    slower = ((RTX, OPTIMAL),)
    yield Entry(
        "11", "throughput of trees under YCSB", "shares of Optimal's throughput",
        "section 6.2. The text gives rTX over Optimal, and over DTX: 7 % slower under C and E, 1.2 "
        "to 2 times as fast under A and B with skewed keys. The bars have no numbers.",
        functools.partial(_throughput, "tree"), slower,
        reason="fewer keys (the parameters), and no hyper-threads: the node is one queue.",
    )  # fmt: skip
    yield Entry(
        "12", "throughput of hash tables under YCSB", "shares of Optimal's throughput",
        "section 6.2 has no numbers: rTX costs two READs an operation, and so throughput.",
        functools.partial(_throughput, "hash"), slower,
        reason="`rtx-race` looks at no lock of a subtable: a late client finds a frozen slot "
        "(docs/race.md). It costs nothing until a subtable is split.",
    )  # fmt: skip
    yield Entry(
        "13", "latency of trees under YCSB A, over Optimal's", "mean latency over Optimal's",
        "section 6.2: one client's is 1.6 to 2 times Optimal's. The curves have no numbers.",
        _latency, ((OPTIMAL, RTX),),
        reason="one client guesses the pointer right, and waits once for lock, pointer and node, "
        "and an update locks the leaf before it reads it.",
    )  # fmt: skip
    yield Entry(
        "14", "a client is killed in an insert into a tree", "survivors; throughput",
        "section 6.2: of Optimal, one client after another is blocked; of rTX none is, and "
        "throughput falls from 6.5 to 4.2 million, as three clients become two.",
        functools.partial(
            _killed, timeline.INSERT, ("sherman", "dtx-sherman", "rtx-sherman"),
            ((1.0, 2.0), 0.0, 0.0),
        ),
        clock="machine",
        reason="the clients share this machine's cores: two of them may do as much as three did. "
        "`limpet bench timeline` draws it.",
    )  # fmt: skip
    yield Entry(
        "15", "a client is killed in a rehash of a hash table", "survivors",
        "section 6.2: of Optimal, one client after another is blocked; rTX and DTX go on.",
        functools.partial(
            _killed, timeline.GROWTH, ("race-locks", "dtx-race", "rtx-race"),
            ((1.0, 2.0), 0.0, 0.0),
        ),
        clock="machine",
        reason="recovery takes the paper's rTX 185 ms, with subtables of millions of pairs; ours "
        "are small. `limpet bench timeline --moment growth` draws it.",
    )  # fmt: skip
    yield Entry(
        "15b", "a rehash, over rTX's", "time over rTX's",
        "section 6.2: 1.3 s and 200 ms. rTX writes a subtable as a whole; Optimal moves each pair.",
        _rehash,
        reason="`race-locks` moves a pair by a CAS, and looks at the slot afterwards. `rtx-race` "
        "does not write the table as a whole: it moves pairs by CASes, many in a phase.",
    )  # fmt: skip
    yield Entry(
        "16", "steps from Sherman to rTX: throughput of inserts", "over the step before",
        "section 6.3: 33 % less, 14 % less, 26 % less, 1.06 times, 1.43 times (with +Opt2).",
        functools.partial(_steps, CLIENTS),
        reason="lock and validation share a round trip here, so +OCC costs 16 bytes; a client that "
        "reads without the lock holds it for a shorter time.",
    )  # fmt: skip
    yield Entry(
        "17", "steps from Sherman to rTX: latency of one client's insert", "over the step before",
        "section 6.3: 1.35 times, limited, 1.7 times, unchanged, 30 % less (with +Opt2).",
        functools.partial(_steps, 1),
        reason="+OCC as in figure 16; with one client, nothing waits.",
    )  # fmt: skip
    yield Entry(
        "18a", "false expiries of a lock for each transaction, by drift", "share of transactions",
        "section 6.4: less than 1 % with 5 ms, none above 8 ms; 100 objects, 72 clients.", _drifts,
        reason="how clocks differ and verbs are late is assumed: the paper only says NTP.",
    )  # fmt: skip
    yield Entry(
        "18b", "false expiries for each transaction, by its objects; a fixed and a growing lease",
        "share of transactions",
        "section 6.4: fixed, 0.1 % with 20 objects and 47.5 % with 80; growing, 0.4 % with 80.",
        _locks,
        reason="as 18a. A lock's lease is looked at after four attempts here. 160 transactions do "
        "not show 0.1 %.",
    )  # fmt: skip
    yield Entry(
        "table 2", "verbs of an insert into a tree, which splits nothing", "bytes; CASes",
        "table 2, n = 1.", _table_2,
    )  # fmt: skip


ENTRIES: Final = tuple(_entries())
