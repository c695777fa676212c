"""`limpet bench transactions`: every peer that is there does what the case says."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from limpet.bench.cli import bench
from limpet.bench.peers import transactions
from limpet.bench.peers.servers import RedisDriver
from limpet.bench.peers.ycsb import Workload
from limpet.shm.errors import ParameterError

pytestmark = pytest.mark.either_build("benchmarks are not compiled")

WORKLOAD = Workload(records=64)


@pytest.mark.parametrize("peer", transactions.PEERS)
def test_a_transfer_gives_each_key_the_value_of_the_next(peer: str) -> None:
    made, way = transactions._WAYS[peer]
    driver = made()
    if driver.missing():
        pytest.skip(driver.missing() or "")
    driver.start(WORKLOAD)
    try:
        driver.load(WORKLOAD.pairs())
        ways = way(driver)
        pairs = dict(WORKLOAD.pairs())
        keys = list(pairs)[:3]
        ways.transfer(keys)
        assert list(ways.read(keys)) == [pairs[keys[1]], pairs[keys[2]], pairs[keys[0]]]
    finally:
        driver.stop()


def test_report_has_a_row_for_each_case_and_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RedisDriver, "missing", lambda driver: "there is none")
    arguments = [
        "transactions", "--peers", "rtx-race,lmdb,redis-lua", "--transfers", "2", "--reads", "10",
        "--processes", "1", "--rounds", "1", "--seconds", "0.02", "--records", "200", "--json",
    ]  # fmt: skip
    done = CliRunner().invoke(bench, arguments)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["found"]
    assert len(found) == 2 * 2 * 3
    for row in found:
        assert bool(row["missing"]) == (row["peer"] == "redis-lua")
        assert all(rate > 0 for rate in row["rates"])
        assert len(row["rates"]) == (row["peer"] != "redis-lua")


def test_unknown_peer_is_refused() -> None:
    with pytest.raises(ParameterError, match="no peer"):
        transactions.run(["oracle"], transactions.cases([2], []), [1], 1, 0.1, WORKLOAD)


def test_no_processes_are_refused_before_anything_is_run() -> None:
    for wrong in ("0", "2,-1"):
        done = CliRunner().invoke(bench, ["transactions", "--processes", wrong])
        assert done.exit_code == 2, done.output
        assert "is not a list such as 1,2" in done.output
        assert "is below 1" in done.output
