"""Tables and figures of the SWARM paper: counts and orders of each entry, quickly."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from click.testing import CliRunner

from limpet.__main__ import main
from limpet.bench.figures.swarm_entries import ENTRIES, NODES
from limpet.fault.explore.sim_latency import PRESETS
from limpet.fault.explore.sim_time import KindResult, Workload, run_timed
from limpet.shm.endpoint.fabric import BUILD

pytestmark = pytest.mark.either_build("benchmarks are not compiled")

COMPILED = BUILD == "compiled"
OTHER_WAY_ROUND = {
    "5": "GET, median: swarm and fusee",
    "6": "GET, mean: swarm and fusee|GETs that read the index",
    "9": "8192 bytes: UPDATE, median and throughput|8192 bytes: GET, median and UPDATE",
    "12": "UPDATE in so many|clients: GET, median, us: swarm and dm-abd",
}
"""Pairs that may be the other way round, by entry: it says why, or there are few operations."""


def quick(*names: str) -> dict[str, Any]:
    done = CliRunner().invoke(main, ["bench", "figures", "swarm", *names, "--quick", "--json"])
    assert done.exit_code == 0, done.output
    return {one["name"]: one for one in json.loads(done.stdout)["entries"]}


def test_round_trips_are_the_papers() -> None:
    found = quick("table 2")
    assert found == quick("table 2")
    assert found["table 2"]["verdict"] == "same order, within a factor of 1.00"


@pytest.mark.exhaustive("all entries", quick=["5", "10", "11"])
@pytest.mark.skipif(not COMPILED, reason="many clients")
@pytest.mark.parametrize("name", [entry.name for entry in ENTRIES if entry.name != "table 2"])
def test_entries_have_the_papers_orders(name: str) -> None:
    found = quick(name)[name]
    assert found["points"]
    allowed = OTHER_WAY_ROUND.get(name, "nothing")
    assert not [pair for pair in found["wrong"] if not re.search(allowed, pair)]


@pytest.mark.exhaustive("hundreds of runs")
@pytest.mark.skipif(not COMPILED, reason="tens of thousands of operations")
@pytest.mark.parametrize(("buffers", "paper"), [(1, 0.23), (4, 0.57), (64, 0.99)])
def test_updates_of_64_writers_with_few_words_of_metadata(buffers: int, paper: float) -> None:
    workload = Workload(
        "swarm", 64, ops=60, warm_up=250, keys=100, write_share=0.05, nodes=NODES, seed=1,
        parameters={"writers": 64, "buffers": buffers},
    )  # fmt: skip
    assert share(workload) == pytest.approx(paper, abs=0.08)


def share(workload: Workload) -> float:
    """Of its updates, those in one round trip."""
    kinds: tuple[KindResult, ...] = run_timed(workload, PRESETS["rdma"]).kinds
    (update,) = (kind for kind in kinds if kind.kind == "update")
    return update.shares.get(1, 0.0)


def test_a_warm_up_is_not_counted() -> None:
    for warm_up in (0, 5):
        workload = Workload("swarm", 2, ops=20, keys=20, nodes=3, warm_up=warm_up, write_share=0.05)
        report = run_timed(workload, PRESETS["rdma"])
        assert sum(kind.count for kind in report.kinds) == 40
        assert report.virtual_ns < 20 * 30_000
        (gets,) = (kind for kind in report.kinds if kind.kind == "get")
        assert (gets.shares.get(1, 0) > 0.8) == (warm_up > 0)
