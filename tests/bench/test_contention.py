"""Processes that update the same keys: all get on, and the report adds up."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

import limpet
from limpet.bench.cli import bench
from limpet.bench.peers import contention

pytestmark = pytest.mark.either_build("benchmarks are not compiled")


@pytest.mark.exhaustive("seconds of processes each", quick=["1-race"])
@pytest.mark.parametrize("store", ["race", "fusee"])
@pytest.mark.parametrize("keys", [1, 100])
def test_every_process_gets_on(store: str, keys: int) -> None:
    found = contention.run(store, 3, keys, 0.5)
    assert len(found.shares) == 3
    assert all(share > 0 for share in found.shares)
    assert found.updates_per_s == pytest.approx(sum(found.shares) / 0.5)
    assert found.longest_us >= found.median_us > 0
    assert not list(Path("/dev/shm").glob(f"limpet.limpet-contention-{os.getpid()}.*"))


def test_fairness_is_jains_index() -> None:
    one = contention.Contention("race", 2, 1, 1.0, (10, 10), 0, 1.0, 1.0)
    assert one.fairness == 1
    assert contention.Contention("race", 2, 1, 1.0, (10, 0), 0, 1.0, 1.0).fairness == 0.5


def test_a_process_that_dies_is_not_taken_for_one_that_came_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(contention, "_work", lambda *_: None)
    with pytest.raises(limpet.LimpetError, match="ended without an answer"):
        contention.run("race", 2, 1, 0.1)
    assert not list(Path("/dev/shm").glob(f"limpet.limpet-contention-{os.getpid()}.*"))


def test_command_prints_json() -> None:
    arguments = ["contention", "--store", "race", "--processes", "2", "--keys", "1",
                 "--seconds", "0.2", "--json"]  # fmt: skip
    result = CliRunner().invoke(bench, arguments)
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.output)
    assert found["processes"] == 2
    assert 0.5 <= found["fairness"] <= 1
