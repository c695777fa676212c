"""`limpet drill damage` and the new options of `limpet drill matrix`."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from limpet.__main__ import main
from limpet.fault.drill import damage

pytestmark = pytest.mark.either_build("commands are not compiled")


def run(*words: str) -> Result:
    return CliRunner().invoke(main, words)


def test_drill_damage_counts_cases_of_each_kind() -> None:
    shown = run("drill", "damage", "counter", "race", "--cases", "6", "--seed", "1")
    assert shown.exit_code == 0, shown.output
    assert "damage, seed 1" in shown.stdout
    found = run("drill", "damage", "counter", "race", "--cases", "6", "--seed", "1", "--json")
    reports = json.loads(found.stdout)
    assert [(one["kind"], one["cases"], one["verdict"]) for one in reports] == [
        ("counter", 3, "ok"), ("race", 3, "ok"),
    ]  # fmt: skip


def test_drill_damage_tells_how_to_repeat_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unlucky(damage.Drill):
        def case(self, number: int) -> damage.Case:
            there = super().case(number)
            return damage.Case(number, there.damages, "right", ("error: nothing is right",), ())

    monkeypatch.setattr(damage, "Drill", Unlucky)
    shown = run("drill", "damage", "event", "--cases", "2", "--seed", "5")
    assert shown.exit_code == 1
    assert "error: nothing is right" in shown.stdout
    assert "limpet drill damage event --seed 5 --case 1" in shown.stdout
    again = run("drill", "damage", "event", "--seed", "5", "--case", "1")
    assert "event, case 1:" in again.stdout
    assert "event, case 0:" not in again.stdout


def test_drill_damage_refuses_what_it_does_not_know() -> None:
    assert run("drill", "damage", "nonsense").exit_code == 2
    assert run("drill", "damage", "race", "--cases", "0").exit_code == 2


def test_drill_matrix_takes_channels_and_single_steps() -> None:
    shown = run("drill", "matrix", "counter", "--every", "--op", "add")
    assert shown.exit_code == 0
    assert "3 of 3" in shown.stdout
    assert "succeeded" in shown.stdout
    one = run("drill", "matrix", "race", "--op", "delete", "--only", "succeeded", "--step", "2")
    assert one.exit_code == 0
    assert "1 of 7" in one.stdout
    assert run("drill", "matrix", "counter", "--op", "insert").exit_code == 2
    assert run("drill", "matrix", "counter", "--only", "nonsense").exit_code == 2


def test_drill_matrix_tells_how_to_repeat_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    from limpet.fault.matrix.channel_matrix import ChannelTestbed
    from limpet.fault.matrix.operations import demand

    monkeypatch.setattr(ChannelTestbed, "inspect", lambda self: demand(False, "nothing is right"))
    shown = run("drill", "matrix", "event", "--op", "set", "--only", "killed")
    assert shown.exit_code == 1
    assert 'limpet drill matrix event --op "set" --only "killed" --step 1' in shown.stdout
