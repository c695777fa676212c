"""`limpet bench virtual`: the simulator of the drills, run with YCSB's mixes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from limpet.__main__ import main

pytestmark = pytest.mark.either_build("benchmarks are not compiled")

SMALL = ["--clients", "1,3", "--ops", "8", "--keys", "20"]


def figures(*arguments: str) -> Any:
    done = CliRunner().invoke(main, ["bench", "virtual", *SMALL, *arguments, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_equal_arguments_give_equal_figures() -> None:
    found = figures("--mix", "A,C")
    assert found == figures("--mix", "A,C")
    assert [(cell["mix"], cell["clients"]) for cell in found] == [
        ("A", 1), ("A", 3), ("C", 1), ("C", 3),
    ]  # fmt: skip
    assert found != figures("--mix", "A,C", "--seed", "1")


def test_figures_are_those_of_the_mix_and_of_the_drill() -> None:
    (cell,) = (cell for cell in figures("--mix", "C") if cell["clients"] == 3)
    (get,) = cell["report"]["kinds"]
    # and one for the first look at each subtable, by each client
    assert (get["kind"], get["count"], get["round_trips"]) == ("get", 3 * 8, 2 + 17 / 24)
    drill = ["--clients", "3", "--ops", "8", "--keys", "20", "--write-share", "0", "--json"]
    latency = CliRunner().invoke(main, ["drill", "latency", "race", *drill])
    assert json.loads(latency.stdout)["kinds"] == [get]


def test_parameters_reach_the_store() -> None:
    assert figures("--mix", "C", "--parameter", "capacity=999")[0]["report"]["workload"][
        "parameters"
    ] == {"capacity": 999}
    failed = CliRunner().invoke(main, ["bench", "virtual", *SMALL, "--parameter", "hat=1"])
    assert failed.exit_code == 2
    assert "hat" in failed.output


@pytest.mark.parametrize("wrong", [["--mix", "Q"], ["--clients", "x"], ["--store", "nonesuch"]])
def test_what_makes_no_sense_is_refused(wrong: list[str]) -> None:
    assert CliRunner().invoke(main, ["bench", "virtual", *SMALL, *wrong]).exit_code == 2
