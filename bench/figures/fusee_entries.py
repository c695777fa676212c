"""Figures 2, 3 and 10 to 21 and table 1 of the FUSEE paper as entries.

The paper has 2 memory nodes, 5 where replicas are varied, 128 clients, pairs of 1 KiB, 100,000 keys
and Zipf(0.99), unless an entry says otherwise. So have these, but for fewer keys. In its sections
6.2 and 6.3 all stores have one replica of the index and two of the data; here `fusee` has two of
both, or one of both, which is all that Clover and pDPM have. The model is `rdma` with its testbed's
56 Gb/s.

Clover is there twice: with its cache, and asking its metadata server at each operation. FUSEE says
that caches were on; RCuckoo (section 5.2) says that they were not.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any, Final

from limpet.bench.figures.entries import Entry, Point, Run, Scale, Value
from limpet.bench.figures.virtual import HIGHER, LOWER, SAME, load, over, said
from limpet.fault.drill import recovery_time
from limpet.fault.explore.sim_latency import LatencyModel, model_with
from limpet.fault.explore.sim_time import KindResult, TimedReport, Workload, run_timed

MODEL: Final = model_with("rdma", {"byte_ns": 8 / 56})
CLIENTS: Final = 128
KEYS: Final = 5000
KEYS_OF_ONE: Final = 1000
OPS: Final = 2500
KEY_SIZE: Final = 24
PAIR: Final = 1024
FAULT_NODES: Final = 5
"""Where replicas are varied."""
SINGLE, CLOVER, ASKING = "fusee, 1 replica", "clover", "clover, no cache"
STORES: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "fusee": ("fusee", {}),
    SINGLE: ("fusee", {"replicas": 1}),
    CLOVER: ("clover", {}),
    ASKING: ("clover", {"cache_size": 0}),
    "pdpm": ("pdpm", {}),
}
OTHERS: Final = tuple(STORES)[2:]
MIXES: Final[Mapping[str, Mapping[str, Any]]] = {
    "A": {"write_share": 0.5},
    "B": {"write_share": 0.05},
    "C": {"write_share": 0.0},
    "D": {"write_share": 0.05, "fresh": True, "latest": True},
    "INSERT": {"write_share": 1.0, "fresh": True},
    "UPDATE": {"write_share": 1.0},
    "DELETE": {"write_share": 1.0, "deletes": True},
}
OPERATIONS: Final = {"INSERT": "INSERT", "UPDATE": "UPDATE", "SEARCH": "C", "DELETE": "DELETE"}
"""The mix that is this operation only."""


@functools.cache
def _timed(
    store: str,
    mix: str,
    clients: int,
    scale: Scale,
    model: LatencyModel = MODEL,
    parameters: tuple[tuple[str, Any], ...] = (),
    **more: Any,
) -> TimedReport:
    """A run of the paper's workload, but for what `more` says; several entries have some runs."""
    kind, own = STORES.get(store, (store, {}))
    keys, ops = (KEYS if clients > 1 else KEYS_OF_ONE), max(30, min(400, OPS // clients))
    if scale.quick:
        keys, ops = 200, max(12, 100 // clients)
    if kind.startswith("fusee"):
        own = {**own, "capacity": 4 * keys}  # no subtable is split
    workload = Workload(
        kind, clients, ops, parameters={**own, **dict(parameters)},
        **{
            "keys": keys, "key_size": KEY_SIZE, "value_size": PAIR - KEY_SIZE, "warm_up": ops,
            "met_drawn": True, "seed": scale.seed, "node_size": 256 << 20, "block_size": 64 << 10,
            **MIXES[mix], **more,
        },
    )  # fmt: skip
    return run_timed(workload, model)


def _mops(report: TimedReport) -> float:
    return report.busy_throughput / 1e6


def _result(report: TimedReport) -> KindResult:
    """Of a mix that is one kind of operation."""
    (found,) = report.kinds
    return found


def _clients(scale: Scale) -> int:
    return 24 if scale.quick else CLIENTS


def _of(mix: str) -> tuple[str, ...]:
    """The stores beside `fusee` that have the operations of a mix: Clover has no DELETE."""
    return ("pdpm",) if mix == "DELETE" else OTHERS


def _servers(scale: Scale) -> Run:
    """Clover by the cores of its metadata server, each of which serves a request in 1 us."""
    clients = 24 if scale.quick else 64
    points = []
    papers: Mapping[str, Value] = {"1 core": LOWER, "3 cores": LOWER, "8 cores": SAME}
    for store in (CLOVER, ASKING):
        values = {}
        for cores in (6, 1, 3, 8):
            model = dataclasses.replace(MODEL, metadata_ns=1000 / cores)
            report = _timed(store, "A", clients, scale, model)
            values["1 core" if cores == 1 else f"{cores} cores"] = _mops(report)
        points += over(f"{store}, over 6 cores'", values, papers)
        points += (Point(f"{store}, Mops", name, value) for name, value in values.items())
    return Run(said(report), points)


def _one_object(scale: Scale) -> Run:
    points = []
    for clients in (1, 24) if scale.quick else (1, 8, 32, 128):
        for store, name in (("pdpm", "lock"), ("fusee", "SNAPSHOT")):
            report = _timed(store, "UPDATE", clients, scale, keys=1)
            points.append(Point("Mops", f"{name}, {clients} clients", _mops(report)))
    return Run(said(report), points)


def _latencies(scale: Scale) -> Run:
    papers: Mapping[str, Mapping[str, Value]] = {
        "INSERT": dict.fromkeys(OTHERS, HIGHER),
        "UPDATE": dict.fromkeys(OTHERS, HIGHER),
        "SEARCH": {CLOVER: LOWER},
        "DELETE": {"pdpm": LOWER},
    }
    points = []
    for name, mix in OPERATIONS.items():
        reports = {store: _timed(store, mix, 1, scale) for store in ("fusee", *_of(mix))}
        results = {store: _result(report) for store, report in reports.items()}
        medians = {store: result.p50_ns for store, result in results.items()}
        points += over(f"{name}, median, over fusee's", medians, papers[name])
        for store, result in results.items():
            points.append(Point(f"{name}, round trips", store, result.round_trips))
            for percent in (50, 99):
                value = getattr(result, f"p{percent}_ns") / 1e3
                points.append(Point(f"{name}, us", f"{store}, {percent} %", value))
    return Run(said(reports["fusee"]), points)


def _beside(
    group: str, mix: str, scale: Scale, papers: Mapping[str, Value], clients: int = 0,
    loads: bool = False,
) -> list[Point]:  # fmt: skip
    """Throughput of the stores, over that of `fusee`; `loads`: and what it follows from."""
    reports = {
        store: _timed(store, mix, clients or _clients(scale), scale)
        for store in ("fusee", SINGLE, *_of(mix))
    }
    values = {store: _mops(report) for store, report in reports.items()}
    points = over(f"{group}, over fusee's", values, papers)
    points.append(Point(f"{group}, Mops", "fusee", values["fusee"]))
    for store, report in reports.items() if loads else ():
        points += (
            dataclasses.replace(point, group=f"{group}, {point.group}")
            for point in load(report, store)
        )
    return points


def _operations(scale: Scale) -> Run:
    papers = dict.fromkeys(OTHERS, LOWER)
    points = [
        point
        for name, mix in OPERATIONS.items()
        for point in _beside(name, mix, scale, papers, loads=True)
    ]
    return Run(said(_timed("fusee", "C", _clients(scale), scale)), points)


def _pairs(scale: Scale) -> Run:
    points = []
    clients = _clients(scale)
    of_reads: Mapping[str, Value] = {"512 bytes": 1.441, "256 bytes": 1.559}
    for mix, papers in (("A", {}), ("C", of_reads)):
        reports = {
            f"{size} bytes": _timed("fusee", mix, clients, scale, value_size=size - KEY_SIZE)
            for size in (PAIR, 512, 256)
        }
        values = {name: _mops(report) for name, report in reports.items()}
        points += over(f"{mix}, over 1,024 bytes'", values, papers)
        for name, report in reports.items():
            points += (Point(f"{mix}, Mops", name, _mops(report)), *load(report, f"{mix}, {name}"))
    return Run(said(report), points)


def _ycsb(scale: Scale) -> Run:
    points = []
    for mix in "AC" if scale.quick else "ABCD":
        for clients in (1, 24) if scale.quick else (8, CLIENTS):
            papers: dict[str, Value] = {ASKING: LOWER}
            if clients <= 8:
                papers = {CLOVER: HIGHER}
            elif mix == "A":
                papers = {CLOVER: 1 / 4.9, ASKING: 1 / 4.9, "pdpm": 1 / 117}
            loads = clients == CLIENTS and mix in "AB"
            points += _beside(f"{mix}, {clients} clients", mix, scale, papers, clients, loads)
    return Run(said(_timed("fusee", "A", clients, scale)), points)


def _nodes(scale: Scale) -> Run:
    points = []
    for mix in "AC":
        for store in ("fusee", CLOVER, "pdpm"):
            reports = {
                f"{nodes} nodes": _timed(store, mix, _clients(scale), scale, nodes=nodes)
                for nodes in ((2, 3) if scale.quick else (2, 3, 5))
            }
            papers: dict[str, Value] = {"3 nodes": SAME, "5 nodes": SAME}
            if store == "fusee":
                papers = {"3 nodes": HIGHER}
            values = {name: _mops(report) for name, report in reports.items()}
            points += over(f"{store}, {mix}, over 2 nodes'", values, papers)
            points += (
                Point(f"{store}, {mix}, busiest node serves, share", name, report.node_busy)
                for name, report in reports.items()
            )
    return Run(said(reports["2 nodes"]), points)


def _ratios(scale: Scale) -> Run:
    points: list[Point] = []
    papers = {ASKING: LOWER, "pdpm": LOWER}
    for mix, share in (("C", "none"), ("A", "half"), ("UPDATE", "all")):
        *ratios, mops = _beside(share, mix, scale, papers)
        points += (*ratios, dataclasses.replace(mops, group="Mops", name=share))
    return Run(said(_timed("fusee", "A", _clients(scale), scale)), points)


def _thresholds(scale: Scale) -> Run:
    points: list[Point] = []
    for threshold in (0.0, 1.0) if scale.quick else (0.0, 0.5, 1.0):
        report = _timed(
            "fusee", "A", _clients(scale), scale, parameters=(("cache_threshold", threshold),)
        )
        points.append(Point("Mops", f"threshold {threshold}", _mops(report)))
        name = f"with {threshold}"
        points += load(report, name)
        points += (
            Point(f"{kind.kind}, {count}", name, getattr(kind, field))
            for kind in report.kinds
            for count, field in (("round trips", "round_trips"), ("bytes read", "bytes_read"))
        )
    return Run(said(report), points)


def _replicas(scale: Scale) -> Run:
    points = []
    counts = (1, 3) if scale.quick else (1, 2, 5)
    for mix in "AC" if scale.quick else "ABCD":
        reports = {
            f"{replicas} replicas": _timed(
                "fusee", mix, _clients(scale), scale, nodes=FAULT_NODES,
                parameters=(("replicas", replicas),),
            )
            for replicas in counts
        }  # fmt: skip
        paper = {"A": LOWER, "B": LOWER, "C": SAME, "D": 8.6 / 8.8}[mix]
        values = {name: _mops(report) for name, report in reports.items()}
        points += over(f"{mix}, over 1 replica's", values, dict.fromkeys(values, paper))
        points += (Point(f"{mix}, Mops", name, value) for name, value in values.items())
        for name, report in reports.items() if mix == "A" else ():
            points += load(report, f"{mix}, {name}")
    return Run(said(reports["1 replicas"]), points)


def _variants(scale: Scale) -> Run:
    points = []
    papers: dict[str, Mapping[str, Value]] = {
        "INSERT": {"fusee-nc": (0.9, 1.0), "fusee-cr": HIGHER},
        "UPDATE": {"fusee-nc": HIGHER, "fusee-cr": HIGHER},
        "SEARCH": {"fusee-nc": HIGHER, "fusee-cr": SAME},
        "DELETE": {"fusee-nc": HIGHER, "fusee-cr": HIGHER},
    }
    for operation, mix in OPERATIONS.items():
        for replicas in (1, 3) if scale.quick else (1, 3, 5):
            medians = {
                store: _result(
                    _timed(
                        store, mix, 1, scale, nodes=FAULT_NODES,
                        parameters=(("replicas", replicas),),
                    )
                ).p50_ns
                for store in ("fusee", "fusee-nc", "fusee-cr")
            }  # fmt: skip
            paper = dict(papers[operation])
            if replicas == 1:  # nothing is changed in sequence
                paper["fusee-cr"] = SAME
            points += over(f"{operation}, {replicas} replicas, over fusee's", medians, paper)
            us = medians["fusee"] / 1e3
            points.append(Point(f"{operation}, us", f"fusee, {replicas} replicas", us))
    return Run({"clients": 1, "keys": KEYS_OF_ONE}, points)


def _lost_node(scale: Scale) -> Run:
    reports = {
        f"{2 - lost} of 2 nodes": _timed("fusee", "C", _clients(scale), scale, lost=lost)
        for lost in (0, 1)
    }
    values = {name: _mops(report) for name, report in reports.items()}
    points = over("throughput, over that before", values, {"1 of 2 nodes": 0.5})
    for name, report in reports.items():
        points += (Point("Mops", name, _mops(report)), *load(report, name))
    return Run(said(report), points)


def _more_clients(scale: Scale) -> Run:
    reports = {f"{clients} clients": _timed("fusee", "C", clients, scale) for clients in (16, 32)}
    values = {name: _mops(report) for name, report in reports.items()}
    points = over("throughput, over 16 clients'", values, {"32 clients": (1.06, 2.0)})
    return Run(said(reports["32 clients"]), points)


def _recovery(scale: Scale) -> Run:
    updates, rounds = (50, 2) if scale.quick else (1000, 20)
    found = recovery_time.run("fusee", updates, rounds)
    papers = recovery_time.PAPER_MS
    points = [Point("ms", step, ms, papers.get(step)) for step, ms in found.steps_ms.items()]
    points.append(Point("ms", "all", found.total_ms, sum(papers.values())))
    return Run({"updates": updates, "rounds": rounds}, points)


def _entries() -> Iterator[Entry]:
    no_numbers = "the picture has no numbers in the text"
    yield Entry(
        "2", "throughput of Clover by the cores of its metadata server", "over 6 cores'; Mops",
        f"section 2.2: low with few cores, and six are needed until it is no bottleneck; "
        f"{no_numbers}.",
        _servers,
        reason="a request takes 1 us of a core, which is an assumption. With its cache, a client "
        "waits for the server once in 64 updates only.",
    )  # fmt: skip
    yield Entry(
        "3", "throughput of updates of one object under a lock", "Mops",
        f"section 3.2: poor, and it does not grow with the clients; {no_numbers}. Derecho, the "
        "consensus beside it, is not here.",
        _one_object,
        (("lock, 128 clients", "SNAPSHOT, 128 clients"),
         ("lock, 24 clients", "SNAPSHOT, 24 clients")),
    )  # fmt: skip
    yield Entry(
        "10", "latency of operations of one client", "us; over fusee's",
        f"section 6.2: FUSEE has the shortest INSERT and UPDATE; Clover's SEARCH and pDPM's DELETE "
        f"are a little shorter than FUSEE's. {no_numbers}.",
        _latencies,
        reason="round trips. Clover's INSERT and UPDATE are 2, as it tells the metadata server and "
        "does not wait; in the paper both allocate memory and change the index by RPCs. pDPM's "
        "INSERT is 2, as there is no consensus. A slot adds 8 bytes to a SEARCH of 1 KiB.",
    )  # fmt: skip
    yield Entry(
        "11", "throughput of operations", "over fusee's; Mops",
        f"section 6.2: FUSEE's is the highest; {no_numbers}.", _operations,
        reason="bytes: `fusee` writes two replicas, with which its nodes are busy all the time; "
        "Clover and pDPM write one, where the paper's write two. Clients of Clover do not wait for "
        "its server, nor those of pDPM for a consensus.",
    )  # fmt: skip
    yield Entry(
        "12", "throughput of FUSEE by the size of pairs", "over 1,024 bytes'; Mops",
        "section 6.3: under C, 44.1 % more with 512 bytes, 55.9 % with 256.", _pairs,
        reason="clients compute nothing in the model, so the nodes limit small pairs, too.",
    )  # fmt: skip
    yield Entry(
        "13", "throughput under YCSB", "over fusee's; Mops",
        "section 6.3: with few clients Clover is best; with 128 FUSEE is 4.9 times as fast as "
        "Clover, and 117 times as fast as pDPM.",
        _ycsb,
        reason="as figure 11: the nodes' 56 Gb/s limit `fusee`, and hardly anything the others. "
        "For a ratio of 4.9, Clover's server would have to take 7 us of each of eight cores for a "
        "request; for one of 117, pDPM would have to be four times as slow as updates of one "
        "object under a lock (figure 3).",
    )  # fmt: skip
    yield Entry(
        "14", "throughput by memory nodes", "over 2 nodes'",
        "section 6.3: FUSEE's grows from 2 nodes to 3, and then is limited by the compute nodes; "
        "the others' stays.",
        _nodes,
        reason="the nodes' bandwidth limits all of them (the shares); compute nodes limit none.",
    )  # fmt: skip
    yield Entry(
        "15", "throughput by the share of UPDATEs", "over fusee's; Mops",
        f"section 6.3: falls as UPDATEs grow; FUSEE's is the highest; {no_numbers}.",
        _ratios, (("all", "half"), ("half", "none")),
        reason="as figure 11.",
    )  # fmt: skip
    yield Entry(
        "16", "throughput under YCSB A by the threshold of the adaptive cache", "Mops",
        f"section 6.3: falls with the threshold; {no_numbers}.",
        _thresholds, (("threshold 1.0", "threshold 0.0"),),
    )  # fmt: skip
    yield Entry(
        "17", "memory that the memory nodes allocate", "",
        "section 6.3: under A, throughput falls by 90.9 %; under C, it stays.", None,
        reason="memory nodes are passive: there is no processor that could allocate.",
    )  # fmt: skip
    yield Entry(
        "18", "throughput by replicas", "over 1 replica's; Mops",
        "section 6.4: under A and B it falls; under D, from 8.8 to 8.6 Mops; under C it stays.",
        _replicas,
    )  # fmt: skip
    yield Entry(
        "19", "latency of FUSEE's variants by replicas", "us; over fusee's",
        "section 6.4: of FUSEE-CR it grows with each replica, but for SEARCH; of FUSEE-NC it is "
        f"longer, but for INSERT, which is slightly shorter; {no_numbers}.",
        _variants,
        reason="with one replica, an INSERT does not put its key into the cache, so a DELETE of it "
        "reads the buckets.",
    )  # fmt: skip
    yield Entry(
        "20", "a memory node is lost under YCSB C", "over before; Mops",
        "section 6.4: throughput falls to a half.", _lost_node,
    )  # fmt: skip
    yield Entry(
        "21", "16 clients more under YCSB C", "over 16 clients'",
        f"section 6.4: throughput grows, and falls again when they leave; {no_numbers}.",
        _more_clients,
        reason="two runs: joining takes no virtual time.",
    )  # fmt: skip
    yield Entry(
        "table 1", "recovery of a client that crashed after 1,000 UPDATEs", "ms",
        "table 1.", _recovery, clock="machine",
        reason="no connections are made, and the client journal says what was unfinished, so no "
        "log is traversed (`limpet drill recovery` has the steps).",
    )  # fmt: skip


ENTRIES: Final = tuple(_entries())
