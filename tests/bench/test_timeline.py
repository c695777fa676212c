"""A client is killed in the midst of an insert: what the others do, ms by ms."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from limpet.bench.cli import bench
from limpet.bench.figures import timeline
from limpet.bench.figures.timeline import Setting, Told, longest_run
from limpet.shm.clients.membership import Membership
from limpet.shm.errors import LimpetError, ParameterError

pytestmark = pytest.mark.either_build("benchmarks are not compiled")

MS = 1_000_000
SECONDS = (0.8, 0.8, 1.6, 3.2) * 5


def ran(holds: Callable[[Any], object], *given: Any, **more: Any) -> Any:
    """The words of a run of which this holds. On a busy machine survivors may do nothing for a
    while, and the victim not enough, so it takes some runs."""
    told: object = None
    for seconds in SECONDS:
        setting = Setting(*given, seconds=seconds, keys=200, node_size="64MiB", **more)
        try:
            told = found = timeline.run(setting)
        except LimpetError as error:
            told = error
        else:
            if holds(found):
                return found
    pytest.fail(f"none of the runs is one: {told}")


def go_on(found: Any) -> bool:
    return not found.blocked and sum(found.survivors[-100:]) > 0


def blocks(count: int) -> Callable[[Any], bool]:
    """Whether so many survivors are blocked, and say so."""
    return lambda found: found.blocked == len(found.errors) == count


def no_pool_is_left() -> bool:
    return not list(Path("/dev/shm").glob(f"limpet.limpet-timeline-{os.getpid()}.*"))


@pytest.mark.exhaustive("seconds of processes")
@pytest.mark.soak("a leaf's whole split by processes", cases=["insert-leaf-installed*"])
@pytest.mark.parametrize(
    ("moment", "point"), [("insert", "leaf-locked"), ("insert", "leaf-installed"), ("growth", None)]
)
def test_victim_dies_holding_a_lock_and_the_survivors_go_on(moment: str, point: str | None) -> None:
    found = ran(go_on, "rtx-sherman", moment, point, clients=3)
    assert found.point == (point or "decided")
    assert found.killed_ms >= 400
    assert len(found.buckets) == len(found.survivors) >= found.killed_ms + 399
    assert sum(found.buckets) > sum(found.survivors) > 0
    assert no_pool_is_left()


@pytest.mark.exhaustive("seconds of processes")
def test_half_way_through_an_insert_when_the_kind_has_no_lock() -> None:
    found = ran(go_on, "race", clients=2)
    assert (found.point, found.unlocked_ms) == (None, None)


@pytest.mark.exhaustive("seconds of processes", quick=["race-locks*"])
@pytest.mark.parametrize(
    ("store", "point", "blocked"), [("dtx-race", "entry-locked", 0), ("race-locks", "freezing", 1)]
)
def test_who_dies_splitting_a_subtable_blocks_others_if_nobody_recovers_it(
    store: str, point: str, blocked: int
) -> None:
    """Figure 15 of the rTX paper."""
    found = ran(blocks(blocked), store, "growth", clients=2)
    assert found.point == point
    assert all(error.startswith("StoreStuck: ") for error in found.errors)


@pytest.mark.exhaustive("seconds of processes", quick=["sherman*"])
@pytest.mark.parametrize(("store", "blocked"), [("dtx-sherman", 0), ("sherman", 1)])
def test_who_dies_with_the_lock_of_a_leaf_blocks_others_if_nobody_recovers_it(
    store: str, blocked: int
) -> None:
    """Figure 14 of the rTX paper."""
    found = ran(blocks(blocked), store, clients=2)
    assert found.point == "node-locked"
    assert all(error.startswith("StoreStuck: ") for error in found.errors)


@pytest.mark.exhaustive("seconds of processes")
def test_in_an_insert_that_is_far_longer_than_others() -> None:
    """A kind without a crash point where it grows: a subtable is split word by word."""
    assert ran(go_on, "fusee", "growth", clients=2).point is None


@pytest.mark.exhaustive("seconds of processes")
def test_survivors_of_a_kind_without_recovery_are_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here no client looks for the dead, and the lease does not end."""
    monkeypatch.setattr(Membership, "sweep", lambda self: [])
    parameters = {"drift_us": 1 << 31}
    found = ran(lambda found: found.blocked == 2, "rtx-sherman", clients=3, parameters=parameters)
    assert len(found.blocked_at_ms) == 2
    assert found.unlocked_ms is found.recovered_ms is None
    assert found.gap_ms > 100
    assert found.longest_after_ms > 100
    assert no_pool_is_left()


def test_what_survivors_raise_is_told_unless_it_is_their_own_fault() -> None:
    trace = "Traceback\n  ...\nlimpet.shm.errors.StoreError: client 5 is dead\n"
    ends = [timeline.Exit(1, 2, 3, 1, trace), timeline.Exit(0, 1, 2, -9, "")]
    assert timeline.errors_of(ends) == ("StoreError: client 5 is dead",)
    for wrong in ("limpet.shm.errors.StoreFull: no room\n", "ZeroDivisionError: x\n"):
        with pytest.raises(timeline.LimpetError, match="a client failed"):
            timeline.errors_of([timeline.Exit(1, 2, 3, 1, wrong)])


def test_longest_run() -> None:
    assert longest_run(np.array([True, False, True, True, False, True])) == (2, 2)
    assert longest_run(np.array([True, True])) == (0, 2)
    assert longest_run(np.zeros(3, bool)) == (0, 0)


def test_gap_is_found_in_the_survivors_buckets() -> None:
    """Two clients, an insert each 0.1 ms; the survivor stands still from 50 to 58 ms."""
    steady = np.arange(0, 100 * MS, MS // 10) + 1
    survivor = steady[(steady < 50 * MS) | (steady >= 58 * MS)]
    told = Told(0, 50 * MS, 100 * MS, [steady[steady < 50 * MS], survivor]).figures()
    assert (told["gap_at_ms"], told["gap_ms"], told["gap_before_ms"]) == (0, 8, 0)
    assert told["before"] == 2 * told["survivors_before"] == 2 * told["after"] == 20_000
    assert told["longest_after_ms"] == pytest.approx(8, abs=0.2)
    assert told["longest_before_ms"] == pytest.approx(0.1)


@pytest.mark.exhaustive("seconds of processes")
def test_command_prints_charts_json_and_a_file(tmp_path: Path) -> None:
    path = tmp_path / "buckets.csv"

    def worked(*options: str) -> Result:
        for seconds in SECONDS:
            few = ["timeline", f"--seconds={seconds}", "--keys=100", "--clients=2", *options]
            result = CliRunner().invoke(bench, few)
            if result.exit_code == 0:
                break
        assert result.exit_code == 0, result.output
        return result

    result = worked(f"--csv={path}")
    assert "in the midst of an insert" in result.stdout
    assert "20 ms before the kill" in result.stdout
    assert len(path.read_text().splitlines()) > 600
    assert json.loads(worked("--json").stdout)[0]["point"] == "leaf-locked"


def test_points_and_files_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="no crash point 'leaf'"):
        Setting("rtx-sherman", point="leaf").check()
    with pytest.raises(ParameterError, match="no store kind"):
        Setting("none").check()
    missing = str(tmp_path / "none" / "file.csv")
    assert CliRunner().invoke(bench, ["timeline", "--csv", missing]).exit_code == 2
