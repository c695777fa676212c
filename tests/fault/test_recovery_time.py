"""Timing recoveries: clients really die, are really recovered, and the steps add up."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from limpet.cli.drill import drill
from limpet.fault.drill import recovery_time

pytestmark = pytest.mark.either_build("checkers and drills are not compiled")


@pytest.mark.parametrize("store", ["race", "fusee"])
def test_clients_die_in_updates_and_are_recovered(store: str) -> None:
    found = recovery_time.run(store, updates=20, rounds=6, seed=3)
    assert list(found.steps_ms) == list(recovery_time.STEPS)
    assert all(took > 0 for took in found.steps_ms.values())
    assert found.total_ms == pytest.approx(sum(found.steps_ms.values()))
    assert found.settled > 0
    assert found.leaked == 0
    assert not list(Path("/dev/shm").glob(f"limpet.limpet-recovery-{os.getpid()}.*"))


def test_command_prints_json() -> None:
    arguments = ["recovery", "race", "--updates", "5", "--rounds", "2", "--json"]
    result = CliRunner().invoke(drill, arguments)
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["rounds"] == 2
