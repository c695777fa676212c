"""Tables 2 and 3 and figures 5 to 13 of the SWARM paper as entries.

The paper has 4 memory nodes, 100,000 keys of 24 bytes with values of 64, Zipf(0.99), 3 replicas,
and 4 clients with one operation at a time, unless an entry says otherwise. So have these, but for
fewer keys. YCSB B is 5 % updates, A half of them.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import limpet
from limpet.bench.figures.entries import Entry, Point, Run, Scale, Value
from limpet.bench.figures.virtual import said
from limpet.bench.peers import footprint
from limpet.bench.peers.ycsb import READ_SHARE
from limpet.fault.explore.sim_latency import PRESETS
from limpet.fault.explore.sim_time import KindResult, TimedReport, Workload, run_timed

NODES: Final = 4
KEYS: Final = 10_000
KEYS_OF_MANY: Final = 2000
"""With many clients, each of which has to meet each key before."""
OPS: Final = 1500
CLIENTS: Final = 4
STORES: Final = ("raw", "swarm", "dm-abd", "fusee")
LARGE: Final = 8192
TABLE_2: Final[Mapping[str, tuple[Value, ...]]] = {
    "raw": (1.0, 1.0, 1.0, 1.0),
    "swarm": (1.0, 1.0, 1.0, 1.0),
    "dm-abd": (2.0, 2.0, 2.0, 2.0),
    "fusee": ((1.0, 2.0), 4.0, 2.0, 5.0),
}
"""Round trips: common GET and UPDATE, and their 99th percentiles."""
LATENCIES: Final[Mapping[str, tuple[Value, ...]]] = {
    "raw": (1.9, 1.6, None, None),
    "swarm": (2.4, 3.1, None, None),
    "dm-abd": (4.3, 4.9, None, None),
    "fusee": (2.9, 8.5, 4.8, 10.4),
}
"""In us: medians of GET and UPDATE, and their 90th percentiles."""
SHARES: Final[Mapping[str, tuple[float, float, float]]] = {
    "get": (0.14, 0.08, 0.78),
    "update": (0.73, 0.07, 0.20),
}
"""Of 16 clients on one key: in 1, 2 and more round trips."""
SHARED: Final[Mapping[tuple[str, int], float]] = {
    ("B", 1): 0.23, ("B", 4): 0.57, ("B", 16): 0.86, ("B", 64): 0.99,
    ("A", 1): 0.02, ("A", 4): 0.11, ("A", 16): 0.39, ("A", 64): 0.99,
}  # fmt: skip
"""The share of updates in 1 round trip, by workload and metadata words."""


def _timed(store: str, clients: int, mix: str, scale: Scale, **more: Any) -> TimedReport:
    """A run of the paper's workload, but for what `more` says."""
    size: dict[str, Any] = {"ops": OPS, "keys": KEYS}
    if clients > CLIENTS:
        size = {"ops": max(40, 4 * OPS // clients), "keys": KEYS_OF_MANY}
    if scale.quick:  # of all clients at least 240, so that there are updates
        size = {"ops": max(30, 400 // clients), "keys": 400}
    size["warm_up"] = size["ops"]
    workload = Workload(
        store, clients, write_share=1 - READ_SHARE[mix],
        **{"nodes": NODES, "key_size": 24, "value_size": 64, "seed": scale.seed, **size, **more},
    )  # fmt: skip
    return run_timed(workload, PRESETS["rdma"])


def _kinds(report: TimedReport) -> tuple[KindResult, KindResult]:
    """Gets and updates."""
    found = {result.kind: result for result in report.kinds}
    return found["get"], found["update"]


def _of_stores(
    papers: Mapping[str, tuple[Value, ...]],
    usual: Callable[[KindResult], float],
    late: tuple[str, Callable[[KindResult], float]],
    scale: Scale,
) -> Run:
    """Of each store a usual value of GETs and UPDATEs, and one of a high percentile."""
    points = []
    high, late_of = late
    for store, paper in papers.items():
        report = _timed(store, CLIENTS, "B", scale)
        for name, result, values in zip(
            ("GET", "UPDATE"), _kinds(report), (paper[::2], paper[1::2]), strict=True
        ):
            points.append(Point(f"{name}, median", store, usual(result), values[0]))
            points.append(Point(f"{name}, {high}", store, late_of(result), values[1]))
    return Run(said(report), points)


def _small_caches(scale: Scale) -> Run:
    """Caches of the paper's shares of the keys."""
    points = []
    for store, share, most, paper in (
        ("swarm", 0.164, 1, 0.456), ("dm-abd", 0.218, 2, 0.425), ("fusee", 0.218, 1, 0.488)
    ):  # fmt: skip
        keys = 400 if scale.quick else KEYS
        cache = {"cache_size": int(share * keys)}
        report = _timed(store, CLIENTS, "B", scale, keys=keys, parameters=cache)
        get, update = _kinds(report)
        missed = sum(part for trips, part in get.shares.items() if trips > most)
        points.append(Point("GETs that read the index, share", f"of {store}", missed, paper))
        points.append(Point("GET, mean", store, get.mean_ns / 1e3))
        points.append(Point("UPDATE, mean", store, update.mean_ns / 1e3))
    return Run(said(report), points)


LOADS: Final[Mapping[str, Mapping[int, tuple[Value, Value]]]] = {
    "A": {1: (2.7, 264.0), 2: (2.8, 499.0), 3: (3.4, 609.0), 6: (None, 640.0), 8: (None, None)},
    "B": {1: (2.4, 389.0), 3: (None, None), 5: (None, 1030.0), 8: (None, None)},
}
"""Of `swarm`, by workload and concurrent operations: us, and a client's kops."""


def _load(scale: Scale) -> Run:
    points = []
    for mix, of_mix in LOADS.items():
        for concurrent, paper in of_mix.items():
            if scale.quick and concurrent > 3:
                continue
            for store in ("swarm", "dm-abd"):
                report = _timed(store, CLIENTS, mix, scale, concurrent=concurrent)
                count = sum(result.count for result in report.kinds)
                mean_ns = sum(result.mean_ns * result.count for result in report.kinds) / count
                each = report.busy_throughput / CLIENTS / 1e3
                ours = paper if store == "swarm" else (None, None)
                group = f"{mix}, {concurrent} at a time"
                points.append(Point(f"{group}: mean, us", store, mean_ns / 1e3, ours[0]))
                points.append(Point(f"{group}: a client's kops", store, each, ours[1]))
    return Run(said(report), points)


def _many_clients(scale: Scale) -> Run:
    """One operation at a time; and, of the paper's stores, 4."""
    points = []
    runs: Mapping[tuple[int, int], tuple[Value, Value, Value]] = {
        (1, 1): (2.2, 2.7, None), (1, 16): (None, None, None), (1, 64): (3.69, 4.3, 15.9),
        (4, 1): (None, None, None), (4, 40): (5.5, 6.22, 28.3),
    }  # fmt: skip
    if scale.quick:
        runs = {run: paper for run, paper in runs.items() if run[1] < 40}
    for (concurrent, clients), paper in runs.items():
        for store in STORES if concurrent == 1 else ("swarm", "dm-abd"):
            report = _timed(store, clients, "B", scale, concurrent=concurrent)
            get, update = _kinds(report)
            ours = paper if store == "swarm" else (None, None, None)
            group = f"{clients} clients, {concurrent} at a time"
            points += [
                Point(f"{group}: GET, mean, us", store, get.mean_ns / 1e3, ours[0]),
                Point(f"{group}: UPDATE, mean, us", store, update.mean_ns / 1e3, ours[1]),
                Point(f"{group}: Mops", f"with {store}", report.busy_throughput / 1e6, ours[2]),
            ]
    return Run(said(report), points)


def _sizes(scale: Scale) -> Run:
    """In place over out of place only."""
    points = []
    papers: Mapping[int, tuple[Value, ...]] = {LARGE: (0.67, (0.95, 1.05), 1.5)}
    for size in (16, 1024, LARGE):
        found = []
        for in_place in (True, False):
            report = _timed(
                "swarm", CLIENTS, "B", scale, value_size=size, keys=400 if scale.quick else 1000,
                node_size=128 << 20, parameters={"in_place": in_place},
            )  # fmt: skip
            get, update = _kinds(report)
            found.append((get.p50_ns, update.p50_ns, report.busy_throughput))
        names = ("GET, median", "UPDATE, median", "throughput")
        for name, here, there, paper in zip(
            names, *found, papers.get(size, (None, None, None)), strict=True
        ):
            points.append(Point(f"{size} bytes", name, here / there, paper))
    return Run(said(report), points)


def _replicas(scale: Scale) -> Run:
    points = []
    papers: Mapping[str, Mapping[int, tuple[Value, ...]]] = {
        "swarm": {3: (2.3, 3.0, 1.0), 5: (2.5, 3.5, 0.91), 7: (2.7, 4.0, 0.91 * 0.93)},
        "dm-abd": {3: (4.3, 4.7, 1.0)},
    }
    for store, of_store in papers.items():
        base = 0.0
        for replicas in (3, 5, 7):
            report = _timed(
                store, CLIENTS, "B", scale, nodes=7, parameters={"replicas": replicas},
                keys=400 if scale.quick else KEYS_OF_MANY,
            )  # fmt: skip
            get, update = _kinds(report)
            base = base or report.busy_throughput
            ours = (get.p50_ns / 1e3, update.p50_ns / 1e3, report.busy_throughput / base)
            names = ("GET, median, us", "UPDATE, median, us", "throughput, over 3 replicas'")
            paper = of_store.get(replicas, (None, None, None))
            for name, value, text in zip(names, ours, paper, strict=True):
                points.append(Point(f"{store}: {name}", f"{replicas} replicas", value, text))
    return Run(said(report), points)


def _lost_node(scale: Scale) -> Run:
    """Round trips of one client before a node is lost, when it first meets each key, and later."""
    keys = [b"key %020d" % number for number in range(40 if scale.quick else 400)]
    url = f"shm://limpet-figures-{os.getpid()}"
    points = []
    with limpet.create(url, nodes=NODES, node_size="8MiB") as pool:
        try:
            store = pool.store("swarm", name="store")
            for round_ in range(2):
                for key in keys:
                    store.put(key, b"%64d" % round_)

            def trips(operation: Any) -> float:
                before = store.stats()["round_trips"]
                for key in keys:
                    operation(key)
                return float(store.stats()["round_trips"] - before) / len(keys)

            def update(key: bytes) -> None:
                store.update(key, b"%64d" % 7)

            for moment in ("before", "at once", "later"):
                points.append(Point("GET", moment, trips(store.get)))
                points.append(Point("UPDATE", moment, trips(update)))
                if moment == "before":
                    pool.fail_node(0)
        finally:
            limpet.destroy(url)
    return Run({"clients": 1, "keys": len(keys)}, points)


def _one_key(scale: Scale) -> Run:
    points = []
    for clients in (16, 32):
        for store in ("swarm", "dm-abd"):
            ops = 12 if scale.quick else 400
            report = _timed(
                store, clients, "A", scale, ops=ops, keys=1, warm_up=1,
                parameters={"writers": clients},
            )  # fmt: skip
            for result in _kinds(report):
                name = {"get": "GET", "update": "UPDATE"}[result.kind]
                if (store, clients) == ("swarm", 16):
                    one, two = (result.shares.get(count, 0.0) for count in (1, 2))
                    shares = zip(
                        ("1", "2", "more"), (one, two, 1 - one - two), SHARES[result.kind],
                        strict=True,
                    )  # fmt: skip
                    points += [
                        Point(f"{name} in so many round trips, share", *share) for share in shares
                    ]
                    late = {"get": 30.0, "update": 10.0}[result.kind]
                    points.append(Point("99th percentile, us", name, result.p99_ns / 1e3, late))
                paper = 47.0 if (store, clients) == ("dm-abd", 32) else None
                group = f"{clients} clients: {name}, median, us"
                points.append(Point(group, store, result.p50_ns / 1e3, paper))
    return Run(said(report), points)


def _words(scale: Scale) -> Run:
    points = []
    latencies = {1: 3.1, 4: 3.2, 16: 3.3, 64: 3.6}
    size = {"ops": 20, "warm_up": 40, "keys": 60}
    if not scale.quick:
        size = {"ops": 200, "warm_up": 1000, "keys": 500}
    for (mix, words), paper in SHARED.items():
        if scale.quick and (mix == "A" or words in (4, 16)):
            continue
        report = _timed(
            "swarm", 64, mix, scale, **size, parameters={"writers": 64, "buffers": words}
        )
        get, update = _kinds(report)
        group = f"{mix}: UPDATEs in 1 round trip, share"
        points.append(Point(group, f"{words} words", update.shares.get(1, 0.0), paper))
        if mix == "B":
            name = f"{words} words"
            points.append(Point("B: GET, median, us", name, get.p50_ns / 1e3, latencies[words]))
    return Run(said(report), points)


def _resources(scale: Scale) -> Run:
    papers = {"raw": (0.95, 6.55), "dm-abd": (3.0, 6.99), "swarm": (4.06, 7.41),
              "fusee": (2.04, 8.15)}  # fmt: skip
    # With fewer keys, the blocks that are used in part outweigh the keys.
    keys = 4000 if scale.quick else 20_000
    base: tuple[float, float] = (0.0, 0.0)
    points: list[Point] = []
    for store, (memory, bandwidth) in papers.items():
        (found,) = footprint.run((store,), (), keys, 24, 1024)
        report = _timed(
            store, CLIENTS, "B", scale, value_size=1024, keys=400 if scale.quick else KEYS_OF_MANY,
            node_size=128 << 20,
        )  # fmt: skip
        here = (found.bytes_a_key, report.wire_bytes)
        base = here if not points else base
        raw = papers["raw"]
        points.append(Point("memory, over raw's", store, here[0] / base[0], memory / raw[0]))
        points.append(Point("bytes sent, over raw's", store, here[1] / base[1], bandwidth / raw[1]))
        points.append(Point("GiB for a million keys", store, here[0] * 1e6 / (1 << 30), memory))
    return Run({**said(report), "keys for the memory": keys}, points)


def _entries() -> Iterator[Entry]:
    fewer = "Fewer keys (the parameters), so the hottest have more of the operations."
    yield Entry(
        "table 2",
        "round trips of GETs and UPDATEs",
        "round trips",
        "table 2.",
        functools.partial(
            _of_stores,
            TABLE_2,
            lambda result: result.round_trips_p50,
            ("99th percentile", lambda result: result.round_trips_p99),
        ),
        reason=fewer,
    )
    yield Entry(
        "5", "latency under YCSB B", "us", "section 7.1; the curves have no other numbers.",
        functools.partial(
            _of_stores, LATENCIES, lambda result: result.p50_ns / 1e3,
            ("90th percentile", lambda result: result.p90_ns / 1e3),
        ),
        reason="the model charges a read alike in all stores, and no computing: a GET of `fusee` "
        f"whose place is known costs as much as one of `raw` (the paper's 1 us more). {fewer}",
    )  # fmt: skip
    yield Entry(
        "6", "latency under YCSB B with small caches of locations", "us; shares",
        "section 7.1: `swarm`'s average is better than the others'. The curves have no numbers.",
        _small_caches, (("swarm", "dm-abd"), ("swarm", "fusee")),
        reason="caches of the paper's shares of the keys, whatever an entry takes; GETs of `fusee` "
        f"as in figure 5. {fewer}",
    )  # fmt: skip
    windows = (
        "Concurrent operations are a window of a pipeline: each has the time of all, the next "
        "window follows when all of it is done, and its verbs to a node are one series."
    )
    yield Entry(
        "7", "throughput and latency of a client with several operations at a time", "",
        "section 7.2; of the curves the text has these numbers.", _load,
        reason=f"{windows} The paper's client is bound by its processor, which submits each verb; "
        "the model charges no computing.",
    )  # fmt: skip
    yield Entry(
        "8", "many clients under YCSB B", "",
        "section 7.3: with one operation at a time, and with 4. The text says that `swarm`'s "
        "latencies are much lower than `dm-abd`'s with one.",
        _many_clients, (("swarm", "dm-abd"), ("raw", "swarm"), ("with swarm", "with raw"),
                        ("with dm-abd", "with swarm")),
        reason="the paper has `swarm` and `dm-abd` here. Its clients share cores as hyper-threads "
        f"above 32. {windows} GETs of `fusee` as in figure 5. {fewer}",
    )  # fmt: skip
    yield Entry(
        "9", "values in place, over out of place only", "over out of place",
        "section 7.4: GETs of 8 KiB are 33 % faster, UPDATES just as fast, throughput under B is "
        "50 % higher.",
        _sizes,
    )  # fmt: skip
    yield Entry(
        "10",
        "3, 5 and 7 replicas under YCSB B",
        "us; over 3 replicas'",
        "section 7.5.",
        _replicas,
        reason="7 memory nodes, as no node has two replicas of a key here; the paper has 4.",
    )
    yield Entry(
        "11", "a memory node is lost", "round trips",
        "section 7.7: operations go on; latency rises, as values in place are lost and replicas "
        "not unanimous, until operations have rebuilt both. The curves have no numbers.",
        _lost_node, (("before", "at once"), ("later", "at once")), clock="machine",
        reason="round trips, which are exact, in place of times.",
    )  # fmt: skip
    yield Entry(
        "12", "all clients on one key, YCSB A", "us; shares", "section 7.8.", _one_key,
        (("swarm", "dm-abd"),),
        reason="an atomic keeps a word for 333 ns in the model, and a read waits for it once; "
        "`dm-abd` pays more than that in the paper.",
    )  # fmt: skip
    yield Entry(
        "13", "64 clients that share metadata words", "us; shares",
        "section 7.9.", _words, reason=fewer,
    )  # fmt: skip
    yield Entry(
        "table 3", "memory, and bytes sent", "over raw's; GiB",
        "table 3, with values of 1 KiB under YCSB B; processor time and caches are not counted.",
        _resources, reason="pages of the segments, which hold what growing leaves behind.",
    )  # fmt: skip


ENTRIES: Final = tuple(_entries())
