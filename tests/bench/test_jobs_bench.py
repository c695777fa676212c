"""Jobs against their peers: every case runs with every contender that is installed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from limpet.bench.cli import bench
from limpet.bench.peers import jobs

pytestmark = pytest.mark.either_build("benchmarks are not compiled")


@pytest.mark.parametrize("case", jobs.CASES)
def test_a_case_is_timed_with_every_contender(case: str) -> None:
    ((text, found),) = jobs.run((case,), (2,), 20, 1)
    assert text == f"{case}, 2 workers"
    names = [*jobs.EXECUTORS] if case == "calls" else [cls.name for cls in jobs.CONTENDERS]
    assert sorted(one.contender for one in found) == sorted(names)
    timed = [one for one in found if one.missing is None]
    assert timed[0].contender.startswith("limpet")
    assert all(one.per_second > 0 for one in timed)
    assert [one.ratio is None for one in timed] == [True] + [False] * (len(timed) - 1)
    assert not list(Path("/dev/shm").glob(f"limpet.limpet-jobs-{os.getpid()}.*"))


def test_the_command_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs.RedisDriver, "missing", lambda self: "not today")
    options = ["--workers", "1", "--jobs", "10", "--rounds", "1", "--cases", "jobs"]
    result = CliRunner().invoke(bench, ["jobs", *options])
    assert result.exit_code == 0, result.output
    assert "missing: Redis stream: not today" in result.output
