"""Processes with values of many sizes in little memory: they get on, and nothing is left."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from limpet.bench.cli import bench
from limpet.bench.peers import scarce

pytestmark = pytest.mark.either_build("benchmarks are not compiled")


@pytest.mark.parametrize("store", ["race", "fusee"])
def test_processes_on_few_blocks_get_on(store: str) -> None:
    found = scarce.run(store, 3, "4MiB", 1000, 200)
    assert 0.01 < found.filled < 0.5
    assert found.ops_per_cpu_s > 0
    assert found.longest_us > 0
    assert found.longest_cpu_us > 0
    assert not list(Path("/dev/shm").glob(f"limpet.limpet-scarce-{os.getpid()}.*"))


def test_command_prints_json() -> None:
    arguments = ["scarce", "--store", "race", "--processes", "2", "--node-size", "4MiB",
                 "--keys", "500", "--ops", "100", "--json"]  # fmt: skip
    result = CliRunner().invoke(bench, arguments)
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.output)
    assert found["processes"] == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["scarce", "--processes", "0"],
        ["scarce", "--processes", "2,-1"],
        ["contention", "--keys", "0"],
        ["transactions", "--processes", "0"],
    ],
)
def test_none_of_something_is_refused_before_anything_is_run(arguments: list[str]) -> None:
    result = CliRunner().invoke(bench, arguments)
    assert result.exit_code == 2, result.output
    assert "is not a list such as 1,2" in result.output
    assert "is below 1" in result.output
