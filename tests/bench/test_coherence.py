"""`limpet bench coherence`: what each mode of coherence costs, measured in one run."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from limpet.__main__ import main
from limpet.bench.figures import coherence

pytestmark = pytest.mark.either_build("benchmarks are not compiled")
SMALL = ["--ops", "20", "--rounds", "3", "--sizes", "64,1024"]


def run(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["bench", "coherence", *SMALL, *arguments])


def test_each_mode_is_measured_in_one_run() -> None:
    done = run("--store", "race,loco", "--json")
    assert done.exit_code == 0, done.output
    costs = json.loads(done.stdout)["costs"]
    modes = coherence.modes()
    assert len(costs) == 2 * 2 * 2 * len(modes)
    assert {cost["ratio"] for cost in costs if cost["mode"] == "coherent"} == {1.0}
    for cost in costs:
        flushed = cost["mode"] == "incoherent" and cost["size"] == 1024
        assert (cost["lines"] >= 16) == flushed, cost
        assert cost["ns"] > 0


def test_table_names_modes_and_ratios() -> None:
    done = run("--store", "race")
    assert done.exit_code == 0, done.output
    for word in ("coherent", "hosts", "get", "put", "1.00"):
        assert word in done.stdout


def test_store_that_there_is_none_of_is_named() -> None:
    done = run("--store", "swarm")
    assert done.exit_code == 2
    assert "no such stores here: swarm" in done.output
