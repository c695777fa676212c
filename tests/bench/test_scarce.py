"""Processes with values of many sizes in little memory: they get on, and nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
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


@pytest.mark.parametrize(
    "arguments",
    [
        ["batches", "--store", "race", "--rounds", "1000", "--no-counts"],
        ["footprint", "--store", "race", "--peers", "dict"],
        ["scarce", "--store", "race", "--processes", "2", "--ops", "1000000"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_benchmark_that_is_ended_leaves_no_pool(arguments: list[str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "limpet", "bench", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def segments() -> list[Path]:
        return list(Path("/dev/shm").glob(f"limpet.limpet-*-{process.pid}.*"))

    try:
        until = time.monotonic() + 60
        while not segments() and time.monotonic() < until:
            time.sleep(0.01)
        assert segments()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 128 + signal.SIGTERM
        assert not segments()
    finally:
        process.kill()
        process.wait()
        for left in segments():
            left.unlink()
