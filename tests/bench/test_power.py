"""Figure 7 of the LOCO paper: stable up to 40 us, and not beyond."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

import limpet
from limpet.bench.cli import bench
from limpet.bench.figures import power
from limpet.bench.figures.power import Setting
from limpet.stores.channels.power_controller import Circuit

pytestmark = pytest.mark.either_build("benchmarks are not compiled")

FEW = Circuit(converters=2, reference_v=24)
"""As 20 of them, at a tenth of the voltage."""


def test_it_is_stable_up_to_40_us_and_ever_less_beyond() -> None:
    found = [power.run(Setting(period, 14_000, 0, 1, FEW)) for period in (20, 40, 60, 80)]
    assert [one.stable for one in found] == [True, True, False, False]
    ripples = [one.ripple_v for one in found]
    assert ripples[0] < 0.1
    assert ripples[1] < 0.5
    assert 5 < ripples[2] < ripples[3]
    assert found[0].output[-1] == pytest.approx(24, abs=0.1)


def test_equal_settings_give_equal_output() -> None:
    assert power.run(Setting(40, 1000)) == power.run(Setting(40, 1000))


def test_what_cannot_be_is_refused() -> None:
    for wrong in ({"reference_v": 2000}, {"load_ohm": 0}):
        with pytest.raises(limpet.ParameterError):
            Circuit(**wrong)
    for period, processes in ((0, 1), (10, 21)):
        with pytest.raises(limpet.ParameterError):
            Setting(period, processes=processes)


def test_command_prints_a_table_json_and_a_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "output.png"
    few = ["power", "--periods", "20,80", "--ms", "0.5"]
    shown = CliRunner().invoke(bench, [*few, "--plot", str(plot)])
    assert shown.exit_code == 0, shown.output
    assert "figure 7" in shown.output
    assert "unstable" in shown.output
    assert plot.read_bytes()[:4] == b"\x89PNG"
    found = json.loads(CliRunner().invoke(bench, [*few, "--json"]).stdout)
    assert [one["setting"]["period_us"] for one in found] == [20, 80]
    assert [len(one["output"]) for one in found] == [50, 50]
    assert CliRunner().invoke(bench, ["power", "--periods", "0"]).exit_code == 2


@pytest.mark.exhaustive("seconds of processes")
def test_live_processes_regulate_it() -> None:
    found = power.run(Setting(20, 1500, scale=1000, processes=2))
    assert len(found.output) == 75
    # it rises from 0; how close it comes to what it should be is the machine's, too
    assert 30 < found.output[-1] < 600
    assert not list(Path("/dev/shm").glob(f"limpet.limpet-power-{os.getpid()}.*"))
