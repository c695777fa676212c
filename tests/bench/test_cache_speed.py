"""`limpet bench cache --speed`."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from limpet.__main__ import main
from limpet.bench.peers import caches, measure
from limpet.bench.peers.cache_report import times_as_long
from limpet.bench.peers.measure import Measurement
from limpet.bench.peers.workers import COMPUTE
from limpet.bench.peers.ycsb import Workload

pytestmark = pytest.mark.either_build("benchmarks are not compiled")

TINY = ["bench", "cache", "--speed", "--rounds=1", "--records=60", "--seconds-per-cell=0.01"]


def test_what_runs_in_one_process_is_measured_in_one() -> None:
    pytest.importorskip("cachetools")
    asked = [*TINY, "--peers", "race,manager,cachetools", "--processes", "1,2", "--json"]
    done = CliRunner().invoke(main, asked)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["benchmark"] == "cache"
    measured = {(row["store"], row["processes"]) for row in found["measurements"]}
    assert measured == {
        (name, count) for name in ("cache", "race", "manager") for count in (1, 2)
    } | {("cachetools", 1)}
    assert {row["loop"] for row in found["measurements"]} == {"get", "update", COMPUTE, "R"}


def test_tables_have_bars_and_name_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    done = CliRunner().invoke(main, [*TINY, "--peers", "redis", "--processes", "1"])
    assert done.exit_code == 0, done.output
    assert done.stdout.count("█") >= 4
    assert "redis-server is not on the PATH" in " ".join(done.stdout.split())


def test_unknown_peer_is_refused() -> None:
    done = CliRunner().invoke(main, [*TINY, "--peers", "memcached"])
    assert done.exit_code == 2
    assert "'memcached'; there are cache, race" in " ".join(done.output.split())


@pytest.mark.parametrize("name", list(caches.MAKERS))
def test_every_one_gets_sets_computes_and_deletes(name: str) -> None:
    driver = caches.MAKERS[name]()
    if reason := driver.missing():
        pytest.skip(reason)
    workload = Workload(records=30, operations=30)
    try:
        driver.start(workload)
        driver.load(workload.pairs())
        there = driver.attach()
        for key, value in workload.pairs():
            assert there.get(key) == value
        there.put(key, b"another")
        assert there.get(key) == b"another"
        computed = []
        for _ in range(2):
            there.computes()(b"new", lambda: computed.append(1) or b"value")  # type: ignore[func-returns-value]
        assert computed == [1]
        assert there.get(b"new") == b"value"
        assert there.delete is not None
        for _ in range(2 if name == caches.OURS else 1):  # a cache may have evicted the key before
            there.delete(b"new")
        assert there.get(b"new") is None
        there.close()
    finally:
        driver.stop()


def test_ratio_is_taken_within_a_round() -> None:
    def row(store: str, round_: int, ns: float) -> Measurement:
        return Measurement(store, "get", 1, round_, 10, ns, 1e6 / ns)

    ours = [row("cache", 0, 100), row("cache", 1, 1000), row("cache", 2, 100)]
    theirs = [row("race", 0, 50), row("race", 1, 500), row("race", 2, 90)]
    assert times_as_long(theirs, ours, "get") == pytest.approx(0.5)
    assert measure.LOOPS == ("get", "update")
