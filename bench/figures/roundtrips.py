"""Round trips in virtual time, beside those of the SWARM paper (sections 7, 7.8 and 7.9).

All of it is counted, on the clock of the paper's RDMA network
(limpet/fault/explore/sim_latency.py), so equal arguments give equal figures on any machine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Final

from limpet.bench.peers.ycsb import READ_SHARE
from limpet.fault.explore.sim_latency import PRESETS
from limpet.fault.explore.sim_time import KindResult, Workload, run_timed

NODES: Final = 4
"""As in the paper."""
TABLE_2: Final = {
    "raw": ("1", "1", "1", "1"),
    "swarm": ("1", "1", "1", "1"),
    "dm-abd": ("2", "2", "2", "2"),
    "fusee": ("1-2", "4", "2", "5"),
}
"""Of the paper, in round trips: common GET and UPDATE, and their 99th percentiles."""
CONTENDED: Final = {
    ("swarm", 16, "get"): (0.14, 0.08, 0.78),
    ("swarm", 16, "update"): (0.73, 0.07, 0.20),
}
"""Of the paper: the shares in 1, 2 and more round trips (of updates, 14 % in 3 and 6 % in 4)."""
SHARED: Final = {
    ("B", 1): 0.23, ("B", 4): 0.57, ("B", 16): 0.86, ("B", 64): 0.99,
    ("A", 1): 0.02, ("A", 4): 0.11, ("A", 16): 0.39, ("A", 64): 0.99,
}  # fmt: skip
"""Of the paper: the share of updates in 1 round trip, by workload and metadata words."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One operation of one run. `paper`: the paper's numbers, as in the tables above."""

    store: str
    clients: int
    mix: str
    result: KindResult
    buffers: int | None = None
    paper: tuple[Any, ...] | None = None


def _run(store: str, clients: int, mix: str, **more: Any) -> Iterator[KindResult]:
    workload = Workload(
        store, clients, write_share=1 - READ_SHARE[mix], nodes=NODES, key_size=24, value_size=64,
        **more,
    )  # fmt: skip
    yield from run_timed(workload, PRESETS["rdma"]).kinds


def common(ops: int, keys: int, seed: int) -> Iterator[Row]:
    """Table 2: YCSB B, Zipfian, 4 clients that have used the store for a while."""
    for store, paper in TABLE_2.items():
        for result in _run(store, 4, "B", ops=ops, warm_up=ops, keys=keys, seed=seed):
            first = 0 if result.kind == "get" else 1
            yield Row(store, 4, "B", result, paper=paper[first::2])


def contended(ops: int, seed: int) -> Iterator[Row]:
    """Section 7.8: one key, YCSB A."""
    for store in ("swarm", "dm-abd"):
        for clients in (16, 32):
            parameters = {"writers": clients}
            made = _run(
                store, clients, "A", ops=ops, warm_up=1, keys=1, seed=seed, parameters=parameters
            )
            for result in made:
                paper = CONTENDED.get((store, clients, result.kind))
                yield Row(store, clients, "A", result, paper=paper)


def shared(ops: int, seed: int) -> Iterator[Row]:
    """Section 7.9: 64 writers with fewer words of metadata for each key than writers.

    Few keys, and a long time before: the result depends on writes of other clients to a key since a
    client last saw it.
    """
    for (mix, buffers), paper in SHARED.items():
        parameters = {"writers": 64, "buffers": buffers}
        made = _run(
            "swarm",
            64,
            mix,
            ops=ops // 2,
            warm_up=5 * ops // 2,
            keys=500,
            seed=seed,
            parameters=parameters,
        )
        for result in made:
            if result.kind == "update":
                yield Row("swarm", 64, mix, result, buffers, (paper,))
