"""LOCO's figures 4, 5 and 7, and its fence, as entries."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Final

from limpet.bench.figures import power
from limpet.bench.figures.entries import Entry, Impossible, Point, Run, Scale, Value
from limpet.bench.figures.virtual import HIGHER, LOWER, load, over, said
from limpet.bench.peers import channels, mpi
from limpet.bench.peers.ycsb import READ_SHARE
from limpet.fault.explore.sim_latency import PRESETS
from limpet.fault.explore.sim_time import Workload, run_timed

PROCESSES: Final = 2
KEYS: Final = 10_000
THREADS: Final = 64
WINDOW: Final = 3
DRAWN: Final = {"uniform": 0.0, "Zipf": 0.99}
BESIDE: Final[Mapping[tuple[str, str], Value]] = {
    ("uniform", "C"): LOWER, ("uniform", "A"): HIGHER, ("uniform", "W"): HIGHER,
    ("Zipf", "C"): LOWER, ("Zipf", "A"): LOWER, ("Zipf", "W"): LOWER,
}  # fmt: skip
"""Sherman's throughput over LOCO's, with a window of three."""


def _against_mpi(case: str, paper: tuple[float, float], scale: Scale) -> Run:
    if missing := mpi.missing():
        raise Impossible(missing)
    seconds = 0.05 if scale.quick else 0.5
    (found,) = channels.run((case,), (PROCESSES,), seconds, 1 if scale.quick else 5)
    points = [
        Point(case, one.contender, 1 / one.ratio, paper)
        for one in found[1]
        if one.contender == mpi.MPI and one.ratio
    ]
    points.append(Point(case, channels.LIMPET, 1.0, 1.0))
    return Run({"processes": PROCESSES, "seconds": seconds}, points)


def _stores(scale: Scale) -> Run:
    """Throughput of many threads beside Sherman's; and of two, whose windows differ."""
    points = []
    few, many, large = (2, 8, 8) if scale.quick else (2, THREADS, 128)
    for (drawn, mix), paper in BESIDE.items():
        if scale.quick and mix == "W":
            continue
        reports = {
            (store, clients): run_timed(
                Workload(
                    store, clients, max(12, 2000 // clients), 300 if scale.quick else KEYS,
                    key_size=12, value_size=8, theta=DRAWN[drawn], nodes=4, seed=scale.seed,
                    write_share=1 - READ_SHARE[mix], met_drawn=True, scattered=True,
                ),
                PRESETS["rdma"],
            )
            for store, counts in (
                ("loco", (few, WINDOW * few, large * few, WINDOW * many)),
                ("sherman", (WINDOW * many,)),
            )
            for clients in counts
        }  # fmt: skip
        values = {at: report.busy_throughput / 1e6 for at, report in reports.items()}
        beside = {store: values[store, WINDOW * many] for store in ("loco", "sherman")}
        name = f"{drawn} {mix}, {many} threads with windows of 3"
        points += over(f"{name}, over loco's", beside, {"sherman": paper})
        points += (Point(f"{name}, Mops", store, mops) for store, mops in beside.items())
        windows = {
            f"window of {window}": values["loco", window * few] for window in (WINDOW, 1, large)
        }
        papers: dict[str, Value] = {f"window of {large}": HIGHER}
        points += over(f"{drawn} {mix}, loco, {few} threads, over windows of 3", windows, papers)
        for store in ("loco", "sherman"):
            points += load(reports[store, WINDOW * many], f"{drawn} {mix}, {store}")
    return Run(said(reports["loco", WINDOW * many]), points)


def _loop(scale: Scale) -> Run:
    periods = (20, 40, 80) if scale.quick else (10, 20, 40, 50, 60, 80)
    points = []
    for period in periods:
        found = power.run(power.Setting(period))
        points.append(Point("stable", f"{period} us", float(found.stable), float(period <= 40)))
        points.append(Point("ripple, V", f"{period} us", found.ripple_v))
    return Run({"converters": 20, "ms": 20}, points)


def _entries() -> Iterator[Entry]:
    text = "section 7.1, a picture without numbers: "
    yield Entry(
        "4 lock", "throughput of one contended lock, over ours", "over limpet's",
        f"{text}Open MPI's lock is consistently faster.",
        functools.partial(_against_mpi, "number", (1.05, 100.0)), clock="machine",
    )  # fmt: skip
    yield Entry(
        "4 transactions", "throughput of transfers under two locks, over ours", "over limpet's",
        f"{text}LOCO is faster than Open MPI.",
        functools.partial(_against_mpi, "transfer", (0.0, 0.95)), clock="machine",
        reason="processes of one host, which Open MPI serves by shared memory.",
    )  # fmt: skip
    yield Entry(
        "5", "throughput of the kvstore, beside Sherman's", "over loco's; Mops",
        "section 7.2: with windows of 3 LOCO is faster under C, and with Zipfian keys; Sherman "
        "under A and W (updates only) with uniform keys. A window of 128 is a significant "
        "improvement.",
        _stores,
        reason="a window of so many operations is so many clients here, which is the same to the "
        "memory nodes: clients are threads times window, 256 at most. There are 4 nodes and fewer "
        "keys (the parameters). `sherman` reads and writes whole nodes, so an operation takes ten "
        "times the bytes of LOCO's, which has more messages; Scythe and Redis are not here.",
    )  # fmt: skip
    yield Entry(
        "7", "output of 20 converters by the period of their controller's loop", "1: stable",
        "appendix: stable up to 40 us, increasingly unstable above; the curves have no numbers.",
        _loop,
        reason="the paper prints no parameters of the circuit; ours settle up to 40 us.",
    )  # fmt: skip
    yield Entry(
        "fence", "what a fence between write and release costs an update", "",
        "section 7.2: 15 %.", None,
        reason="verbs on one memory node take effect in order, so a fence of a pair costs nothing "
        "(docs/channels.md).",
    )  # fmt: skip


ENTRIES: Final = tuple(_entries())
