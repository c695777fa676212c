"""Channels against their peers: every case runs, to its end, with every contender."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner
from kit.processes import start

import limpet
from limpet.bench.cli import bench
from limpet.bench.peers import channels, mpi

pytestmark = pytest.mark.either_build("benchmarks are not compiled")

WITH_MPI = pytest.mark.skipif(mpi.missing() is not None, reason=str(mpi.missing()))


@pytest.fixture
def no_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi, "missing", lambda: "not today: go and get it")


@pytest.mark.exhaustive("every case", quick=["queue", "lock"])
@pytest.mark.usefixtures("no_mpi")
@pytest.mark.parametrize("name", channels.CASES)
def test_a_case_is_timed_with_every_contender(name: str) -> None:
    ((text, found),) = channels.run((name,), (2,), 0.01, 1)
    assert text == f"{name}, 2 processes"
    makers = list(channels.CASES[name].makers)
    timed = found[: len(makers)]
    assert [one.contender for one in timed] == makers
    assert all(one.per_second > 0 for one in timed)
    assert [one.ratio is None for one in timed] == [True] + [False] * (len(timed) - 1)
    for one in timed[1:]:
        assert one.ratio == pytest.approx(one.each_us / timed[0].each_us)
    absent = [one.contender for one in found if one.missing == "not today: go and get it"]
    assert absent == (["Open MPI"] if name in ("number", "transfer") else [])
    assert len(timed) + len(absent) == len(found)
    assert not list(Path("/dev/shm").glob(f"limpet.limpet-channels-{os.getpid()}.*"))


def left_of_mpi(pid: int) -> list[str]:
    """Files in memory of a process's runs of Open MPI, and their processes."""
    found = [path.name for path in Path("/dev/shm").glob(f"limpet-bench-{pid}-*")]
    for process in psutil.process_iter(["cmdline", "environ"]):
        of = (process.info["environ"] or {}).get("TMPDIR", "")
        if f"limpet-bench-{pid}-" in of and process.info["cmdline"]:
            found.append(" ".join(process.info["cmdline"]))
    return found


@WITH_MPI
def test_open_mpi_runs_a_case_and_leaves_nothing() -> None:
    assert 0 < mpi.seconds_of("transfer", 2, 20, 100) < 100
    assert left_of_mpi(os.getpid()) == []


@WITH_MPI
def test_open_mpi_is_ended_when_it_takes_too_long_and_told_of_when_it_fails() -> None:
    with pytest.raises(limpet.LimpetError, match="within 1 s"):
        mpi.seconds_of("transfer", 2, 10**12, 1)
    with pytest.raises(limpet.LimpetError, match="KeyError: 'no such case'"):
        mpi.seconds_of("no such case", 1, 1, 100)
    assert left_of_mpi(os.getpid()) == []


@WITH_MPI
def test_open_mpi_ends_with_the_process_that_runs_it() -> None:
    pid, out = start(lambda: mpi.seconds_of("transfer", 2, 10**12, 100))
    out.close()
    limit = time.monotonic() + 60
    while sum("mpi_rank" in one for one in left_of_mpi(pid)) < 3:  # mpirun is one of them
        assert time.monotonic() < limit
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    while any("mpi_rank" in one for one in left_of_mpi(pid)):
        assert time.monotonic() < limit
        time.sleep(0.05)
    for directory in Path("/dev/shm").glob(f"limpet-bench-{pid}-*"):
        shutil.rmtree(directory)


@pytest.mark.parametrize(
    ("there", "says"),
    [
        ([], "apt-get install openmpi-bin"),
        (["echo MPICH"], "is not Open MPI's"),
        (["echo 'mpirun (Open MPI) 4.1.4'"], "pip install 'limpet\\[mpi\\]'"),
    ],
)
def test_what_is_missing_for_open_mpi_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: list[str], says: str
) -> None:
    for script in there:
        (tmp_path / "mpirun").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "mpirun").chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    reason = mpi.missing()
    assert reason is not None
    assert re.search(says, reason)


def test_a_loop_that_fails_is_told() -> None:
    def fails(*_: object) -> None:
        os._exit(3)

    case = channels.Case({"limpet": lambda pool, processes: None}, fails, lambda processes: 1)
    with pytest.raises(limpet.LimpetError, match="has ended"):
        channels.seconds_of(case, "limpet", 2, 1)


@pytest.mark.usefixtures("no_mpi")
def test_command_prints_a_table_and_json() -> None:
    few = ["channels", "--cases", "barrier", "--processes", "2", "--seconds", "0.01"]
    few += ["--rounds", "1"]
    shown = CliRunner().invoke(bench, few)
    assert shown.exit_code == 0, shown.output
    assert "multiprocessing.Barrier" in shown.output
    found = json.loads(CliRunner().invoke(bench, [*few, "--json"]).stdout)
    assert [one["contender"] for one in found] == ["limpet", "Barrier"]
    few[2] = "number"
    shown = CliRunner().invoke(bench, few)
    assert shown.exit_code == 0, shown.output
    assert "missing: Open MPI: not today: go and get it" in shown.output
    for wrong in (["--cases", "no"], ["--processes", "3"]):
        assert CliRunner().invoke(bench, ["channels", *wrong]).exit_code == 2
