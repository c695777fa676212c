"""Round trips as in the SWARM paper: Table 2, one key for all, few words of metadata."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from limpet.__main__ import main
from limpet.bench.figures import roundtrips
from limpet.bench.figures.roundtrips import NODES, TABLE_2, common, contended
from limpet.fault.explore.sim_latency import PRESETS
from limpet.fault.explore.sim_time import KindResult, Workload, run_timed
from limpet.shm.endpoint.fabric import BUILD

pytestmark = pytest.mark.either_build("benchmarks are not compiled")

COMPILED = BUILD == "compiled"


def test_table_2_of_the_paper() -> None:
    rows = list(common(1500 if COMPILED else 60, 1000 if COMPILED else 300, seed=1))
    assert {row.store for row in rows} == set(TABLE_2)
    for row in rows:
        found, (usual, late) = row.result, row.paper or ("", "")
        assert f"{found.round_trips_p50:.0f}" in usual.split("-")
        assert found.round_trips_p99 <= int(late)
        assert found.round_trips_p99 == int(late) or row.store == "fusee"
        assert sum(found.shares.values()) == pytest.approx(1)


@pytest.mark.exhaustive("many clients")
def test_one_key_for_sixteen_clients() -> None:
    """Most updates are not touched by it, and of gets most are; no client waits long."""
    found = {
        (row.store, row.clients, row.result.kind): row.result
        for row in contended(40 if COMPILED else 8, seed=1)
    }
    assert len(found) == 8
    assert found["swarm", 16, "update"].shares[1] > 0.6
    assert found["swarm", 16, "get"].shares.get(1, 0) < 0.5
    assert found["swarm", 32, "update"].round_trips_max <= 10
    for kind in ("get", "update"):
        assert min(found["dm-abd", 16, kind].shares) == 2


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


@pytest.mark.exhaustive("all tables")
def test_command_prints_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roundtrips, "SHARED", {})
    monkeypatch.setattr(roundtrips, "TABLE_2", {"raw": TABLE_2["raw"]})
    few = ["bench", "roundtrips", "--ops", "10", "--keys", "10"]
    done = CliRunner().invoke(main, few)
    assert done.exit_code == 0, done.output
    assert "Table 2" in done.stdout
    assert "7.8" in done.stdout
    rows = json.loads(CliRunner().invoke(main, [*few, "--json"]).stdout)
    assert {row["store"] for row in rows} == {"raw", "swarm", "dm-abd"}
    assert all(row["result"]["round_trips_max"] >= 1 for row in rows)
