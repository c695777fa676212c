"""`limpet bench peers --sizes` and `limpet bench footprint`: small runs, their tables."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from limpet.bench.cli import bench
from limpet.bench.peers import footprint, sizes
from limpet.bench.peers.drivers import DictDriver, LimpetDriver


def test_sizes_give_each_loop_of_each_store() -> None:
    found = sizes.run(lambda: [LimpetDriver("race"), DictDriver()], [64, 5000], 2, 0.001)
    assert not found.failed
    shown = {(one.store, one.size, one.loop) for one in found.results}
    assert shown == {
        *(("race", size, loop) for size in (64, 5000) for loop in ("get", "view", "put")),
        *(("dict", size, loop) for size in (64, 5000) for loop in ("get", "put")),
    }
    assert all(one.us > 0 and one.ratio is None for one in found.results)


def test_the_command_prints_a_table_of_sizes() -> None:
    arguments = ["peers", "--sizes", "64,4KiB", "--peers", "dict", "--rounds", "1"]
    result = CliRunner().invoke(bench, [*arguments, "--seconds-per-cell", "0.001"])
    assert result.exit_code == 0, result.output
    assert "4.0 KiB" in result.output
    wrong = CliRunner().invoke(bench, ["peers", "--sizes", "many"])
    assert wrong.exit_code == 2


def test_footprints_count_the_memory_of_each_key() -> None:
    arguments = ["footprint", "--store", "race,loco", "--peers", "dict", "--keys", "3000", "--json"]
    result = CliRunner().invoke(bench, arguments)
    assert result.exit_code == 0, result.output
    found = {one["store"]: one for one in json.loads(result.stdout)}
    assert set(found) == {"race", "loco", "dict"}
    for one in found.values():
        assert one["bytes_a_key"] > 88
        assert one["longest_ns"] >= one["p999_ns"] >= one["median_ns"] > 0


def test_a_peer_that_is_not_installed_is_named_and_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(footprint.LmdbDriver, "missing", lambda self: "lmdb is not installed")
    arguments = ["footprint", "--store", "race", "--peers", "lmdb,dict", "--keys", "300"]
    result = CliRunner().invoke(bench, arguments)
    assert result.exit_code == 0, result.output
    assert "missing: lmdb: lmdb is not installed" in result.output
    assert "dict" in result.output
    result = CliRunner().invoke(bench, [*arguments, "--json"])
    assert {one["store"] for one in json.loads(result.stdout)} == {"race", "dict"}
    assert "missing: lmdb" in result.stderr
